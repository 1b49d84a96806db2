"""Generation with one model in one way: its times and its tokens."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from benchmarks.harness import clock
from benchmarks.harness.clock import Times
from benchmarks.ways import GenerationMode, Network
from torch_foundry import report
from torch_foundry.core import runtime
from torch_foundry.testing.timing import synchronize


@dataclass(frozen=True)
class Cell:
    """Prompts of `prompt` tokens, and `tokens` more after the first."""

    batch: int
    prompt: int
    tokens: int

    def ids(self, vocabulary: int, device: torch.device, seed: int) -> Tensor:
        """Random prompts, [batch, prompt]."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, vocabulary, (self.batch, self.prompt), generator=generator).to(device)


@dataclass(frozen=True)
class Generated:
    """What was generated, [batch, 1 + tokens], and how long a prompt took, and a token of the whole batch after it."""

    ids: Tensor
    prefill: Times
    decode: Times
    launches: float
    host_us: float
    flags: tuple[str, ...]


def generate(network: Network, ids: Tensor, new: int, **options: Any) -> Tensor:
    """`new` tokens after each prompt, [batch, new]: greedy ones unless `options` say something else."""
    torch.manual_seed(0)
    mask = torch.ones_like(ids)
    out = network.generate(ids, attention_mask=mask, max_new_tokens=new, **{"do_sample": False, **options})
    return out[:, ids.shape[1] :]


def time_generation(network: Network, way: GenerationMode, ids: Tensor, cell: Cell, iterations: int) -> Generated:
    """Times of generate() by the CPU's clock, as a user sees it.

    An iteration generates one token, then all; the difference is the time of decoding. Single steps are examined in a
    run of their own, because streaming makes every step wait.
    """
    device = ids.device

    def run(new: int, **more: Any) -> Tensor:
        return generate(network, ids, new, **way.options, **more)

    tokens = run(1 + cell.tokens)  # warm-up: compiles, fills caches and tables
    prefill, decode = [], []
    for _ in range(iterations):
        first = clock.wall(device, lambda: run(1))
        whole = clock.wall(device, lambda: run(1 + cell.tokens))
        prefill.append(first)
        decode.append((whole - first) / cell.tokens)
    runtime.reset_counters()
    run(1)
    one = runtime.counters()
    run(1 + cell.tokens)
    both = runtime.counters()
    stamps = Stamps(device)
    again = run(1 + cell.tokens, streamer=stamps)
    flags = [] if (swallowed := clock.swallowed(stamps.steps())) is None else [swallowed]
    if min(decode) <= 0.0:
        flags.append("timing artefact: a prompt alone took longer than with the tokens after it")
    if not torch.equal(again, tokens):
        flags.append("two runs gave different tokens")
    if way.ours:
        flags += [f"stock code ran {n} times: {why}" for why, n in report(network).fallbacks.items()]
    return Generated(
        tokens,
        Times(tuple(prefill)),
        Times(tuple(decode)),
        (both.launches - 2 * one.launches) / cell.tokens,
        round((both.host_ns - 2 * one.host_ns) / cell.tokens / 1e3, 3),
        tuple(flags),
    )


class Stamps(BaseStreamer):
    """When each token was there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        """Called with the prompt, then with the tokens of each step."""
        synchronize(self.device)
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing follows."""

    def steps(self) -> list[float]:
        """Seconds of each decoding step; the prompt's are not among them."""
        return [b - a for a, b in itertools.pairwise(self.times[1:])]


# -------------------------------------------------------------------------------------------------------------- profile


@contextlib.contextmanager
def profiled(device: torch.device) -> Iterator[Any]:
    """torch.profiler, with the device's activities where there are any."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        yield profile
