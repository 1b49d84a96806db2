"""The ways to generate that bench_e2e compares. One more is one line in WAYS."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import torch_foundry

Network = Any  # a model of transformers
SYNC_EVERY = "TORCH_FOUNDRY_SYNC_EVERY"  # tokens that a loop of ours hands to the device at once; 0: transformers' loop


def _always(device: torch.device, packed: bool) -> str | None:
    return None


def _needs_dense(device: torch.device, packed: bool) -> str | None:
    return "stock transformers has no packed weights of this format" if packed else None


def _needs_compiler(device: torch.device, packed: bool) -> str | None:
    if device.type != "cuda":
        return f"generate() of transformers compiles nothing on {device.type}"
    return _needs_dense(device, packed)


@dataclass(frozen=True)
class GenerationMode:
    """One way: the model generates inside of `ready(network)`, with `options` for generate(); greedily by default.

    why_not: the reason for which it cannot run with (device, packed weights), or None. rank: a right token is one of
    that many most likely ones.
    """

    title: str
    ready: Callable[[Network], contextlib.AbstractContextManager[Network]] = contextlib.nullcontext
    options: dict[str, Any] = field(default_factory=dict)
    why_not: Callable[[torch.device, bool], str | None] = _always
    ours: bool = False
    rank: int = 1


@contextlib.contextmanager
def _patched(network: Network, sync_every: int) -> Iterator[Network]:
    """With so many tokens handed to the device at once."""
    before = os.environ.get(SYNC_EVERY)
    os.environ[SYNC_EVERY] = str(sync_every)
    try:
        with torch_foundry.patched(network):
            yield network
    finally:
        if before is None:
            del os.environ[SYNC_EVERY]
        else:
            os.environ[SYNC_EVERY] = before


RANK = 50
SAMPLED = {"do_sample": True, "temperature": 0.8, "top_k": RANK, "top_p": 0.9}
BASELINE = "eager"
KERNELS = " with flash-linear-attention" if importlib.util.find_spec("fla") else ""  # transformers uses what it finds
WAYS = {
    BASELINE: GenerationMode(f"HF eager{KERNELS}", why_not=_needs_dense),
    "compiled": GenerationMode(
        f"HF static cache + compile{KERNELS}", options={"cache_implementation": "static"}, why_not=_needs_compiler
    ),
    "patched": GenerationMode("patched", ready=torch_foundry.patched, ours=True),
    "patched-hf-loop": GenerationMode("patched, HF's loop", ready=functools.partial(_patched, sync_every=0), ours=True),
    "patched-sampled": GenerationMode("patched, sampled", torch_foundry.patched, SAMPLED, ours=True, rank=RANK),
}


def synced(every: Sequence[int]) -> dict[str, GenerationMode]:
    """Patched, with a wait for the device after so many tokens each."""
    return {
        f"patched-sync-{n}": GenerationMode(
            f"patched, {n} at once", ready=functools.partial(_patched, sync_every=n), ours=True
        )
        for n in every
    }
