"""Generation with one model in one way: its times, its tokens, and whether they are right."""

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
from benchmarks.harness.record import Parity
from benchmarks.ways import Network, Way
from torch_foundry import compare, report, runtime
from torch_foundry.compare import LIMIT
from torch_foundry.doctor.timing import synchronize

SIGMAS = 8  # how many times the logits' error a chosen token may lie below the largest logit
COMPARED = 64  # tokens of the prompt that `compare` looks at, layer by layer


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


def time_generation(network: Network, way: Way, ids: Tensor, cell: Cell, iterations: int) -> Generated:
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


# --------------------------------------------------------------------------------------------------------------- parity

STRICT = "the greedy tokens of HF eager"


@torch.no_grad()
def parity(network: Network, way: Way, ids: Tensor, got: Tensor, expected: Tensor | None) -> Parity:
    """Whether `got` is right. `network` is the stock model; `expected` are HF eager's tokens, or None for packed
    weights.

    Equal tokens are right; in float32 nothing else is. In other dtypes rounding may decide between tokens: each one
    must lie, in the stock model's logits for the same sequence, within rounding of the largest; and no stage of a
    patched model may be out of line (`torch_foundry.compare`, with the same packed weights on both sides).
    """
    dtype, expected = network.dtype, expected if way.rank == 1 else None
    if expected is not None and torch.equal(got, expected):
        return Parity(True, STRICT, 0.0)
    if dtype == torch.float32 and expected is not None:
        return Parity(False, STRICT, None, f"tokens differ from step {_first_difference(got, expected)} on")
    drift, detail = LIMIT[dtype], ""
    if way.ours:
        found = compare(network, ids[:1, :COMPARED])
        if found.first_bad is not None:
            return Parity(False, "compare: no stage out of line", found.logits, f"{found.first_bad} is out of line")
        drift = max(drift, found.logits)
    if expected is not None:
        detail = f"tokens differ from step {_first_difference(got, expected)} on"
    of = "largest logit" if way.rank == 1 else f"{way.rank} largest logits"
    criterion = f"each token within {SIGMAS} x {drift:.1e} of stock's {of}" + ", compare" * way.ours
    regret = worst_regret(network, ids, got, way.rank)
    return Parity(regret <= SIGMAS * drift, criterion, regret, detail)


@torch.no_grad()
def worst_regret(network: Network, ids: Tensor, got: Tensor, rank: int = 1) -> float:
    """How far below the `rank` largest logits the chosen tokens lie at most, in standard deviations of those logits.

    The logits come from one pass over prompt and tokens, which decodes nothing: `got` is [batch, n].
    """
    worst = 0.0
    for prompt, chosen in zip(ids, got, strict=True):  # one by one: logits are large
        whole = torch.cat((prompt, chosen[:-1]))[None]
        logits = network(whole, use_cache=False, logits_to_keep=len(chosen)).logits[0].float()
        gap = logits.topk(rank).values[:, -1] - logits.gather(-1, chosen[:, None])[:, 0]
        worst = max(worst, float((gap / logits.std(-1)).nan_to_num(torch.inf).max()))
    return worst


def _first_difference(a: Tensor, b: Tensor) -> int:
    return int((a != b).any(0).nonzero()[0])


# -------------------------------------------------------------------------------------------------------------- profile


@contextlib.contextmanager
def profiled(device: torch.device) -> Iterator[Any]:
    """torch.profiler, with the device's activities where there are any."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        yield profile
