"""Other engines on the same shapes. Each is optional; what is missing is said in the row that it would have filled."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.generating import Cell
from benchmarks.harness.clock import Times
from benchmarks.harness.machine import Machine
from benchmarks.harness.record import Parity, Record
from benchmarks.models import MODELS
from benchmarks.parity import judge
from benchmarks.ways import Network
from torch_foundry.diagnostics.compare import LIMIT

SIGMAS = 8  # times the error of a layer that `compare` allows, in standard deviations of the logits


@dataclass(frozen=True)
class Job:
    """What a peer is asked to do."""

    models: tuple[str, ...]
    formats: tuple[str, ...]
    rows: tuple[int, ...]
    cells: tuple[Cell, ...]  # of one sequence
    device: torch.device
    machine: Machine
    cache_bytes: int
    iterations: int
    seed: int


@dataclass(frozen=True)
class Peer:
    """An engine: the modules it needs and, in `benchmarks.peers`, the one that measures it by its `records(job)`."""

    needs: tuple[str, ...]
    module: str

    def why_not(self) -> str | None:
        """The reason for which it cannot be measured here, or None."""
        for name in self.needs:
            try:
                importlib.import_module(name)
            except Exception as error:  # not there, or there without the libraries that it was built with
                if isinstance(error, ModuleNotFoundError):
                    return f"{error.name or name} is not installed"
                return f"{name}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        return None

    def records(self, job: Job) -> Iterator[Record]:
        """Its rows."""
        measured: Callable[[Job], Iterator[Record]] = importlib.import_module(f"benchmarks.peers.{self.module}").records
        return measured(job)


PEERS = {
    "mlx-ops": Peer(("mlx.core", "numpy"), "mlx_ops"),
    "mlx-models": Peer(("mlx.core", "mlx_lm"), "mlx_models"),
    "llama.cpp": Peer(("llama_cpp", "gguf"), "llama_cpp"),
}


@dataclass(frozen=True)
class Generations:
    """Greedy runs of one engine: the tokens of the last, and seconds of prompts and of tokens after them."""

    tokens: list[int]
    prefill: Times
    decode: Times


def repeat(generate: Callable[[int], tuple[list[int], float, float]], cell: Cell, iterations: int) -> Generations:
    """Generations by `generate(count)`, which gives tokens, seconds to the first and from there to the last."""
    generate(1 + cell.tokens)  # warm-up
    runs = [generate(1 + cell.tokens) for _ in range(iterations)]
    decode = Times(tuple(rest / cell.tokens for _, _, rest in runs))
    return Generations(runs[-1][0], Times(tuple(first for _, first, _ in runs)), decode)


def generation_record(
    job: Job, name: str, way: str, fmt: str, cell: Cell, found: Generations, parity: Parity
) -> Record:
    """A row of a whole model."""
    us = found.decode.as_dict()
    speeds = {key: round(1e6 / us[of], 1) for key, of in (("min", "max"), ("avg", "avg"), ("max", "min"))}
    shape = {"batch": cell.batch, "prompt": cell.prompt, "tokens": cell.tokens}
    return Record(
        *("peer", name, way, fmt, shape, job.machine),
        times=found.decode,
        prefill=found.prefill,
        parity=parity,
        seed=job.seed,
        extra={"tokens_per_s": speeds, "iterations": job.iterations},
    )


def parity_of(network: Network, ids: torch.Tensor, tokens: list[int]) -> Parity:
    """Whether each token lies near the largest logit of `network`, stock and with the same weights. Other engines may
    round more than stock does, as those that multiply by packed activations: the limit is fixed.
    """
    found = judge(network, ids, torch.tensor([tokens]))
    limit = SIGMAS * LIMIT[network.dtype]
    return dataclasses.replace(
        found, ok=(found.error or 0.0) <= limit, criterion=f"each token within {limit:.1e} of HF's largest logit"
    )


def known(names: tuple[str, ...]) -> dict[str, Any]:
    """Models by name."""
    return {name: MODELS[name] for name in names}
