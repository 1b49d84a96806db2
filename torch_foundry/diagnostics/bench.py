"""Speeds by the protocol of llama-bench: prompts (pp) and new tokens (tg), on a KV cache of some depth."""

from __future__ import annotations

import copy
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation.streamers import BaseStreamer

from torch_foundry.core import devices
from torch_foundry.diagnostics.doctor.machine import machine
from torch_foundry.testing.timing import synchronize

BLOCK = 16  # tokens that generate() reads at a time, and how many come before those that are timed


@dataclass(frozen=True)
class Speed:
    """Repeated measurements of one test: `prompt` tokens read, or `new` ones generated, behind `depth` others."""

    prompt: int
    new: int
    depth: int
    seconds: list[float]

    @property
    def name(self) -> str:
        """As llama-bench calls it: "pp512", "tg128 @ d4096"."""
        name = f"pp{self.prompt}" if self.prompt else f"tg{self.new}"
        return f"{name} @ d{self.depth}" if self.depth else name

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each repetition."""
        return [(self.prompt or self.new) / each for each in self.seconds]

    def to_json(self) -> dict[str, Any]:
        """Under llama-bench's names; and the least and the largest rate."""
        rates = self.rates
        return {
            "test": self.name,
            "n_prompt": self.prompt,
            "n_gen": self.new,
            "n_depth": self.depth,
            "avg_ts": statistics.mean(rates),
            "stddev_ts": statistics.stdev(rates) if len(rates) > 1 else 0.0,
            "min_ts": min(rates),
            "max_ts": max(rates),
            "samples_ts": rates,
            "samples_ns": [round(each * 1e9) for each in self.seconds],
        }


def llmfit(name: str, speeds: Sequence[Speed], device: torch.device) -> dict[str, Any]:
    """Speeds of new tokens of the model `name`, as llmfit's community collects them (its schema, version 1).

    Times are those of the new tokens that are timed, without a prompt. llmfit lists the providers that it takes, and
    this package isn't among them: the file is for comparing, as it is.
    """
    host, gpu = machine(), devices.of(device).describe(device)
    own = gpu.get("gpu_memory_gib")
    kind = "DISCRETE_GPU" if own else "UNIFIED" if gpu.get("gpu") else "CPU_ONLY"
    memory = own or (host["memory_gib"] if kind == "UNIFIED" else None)
    results = []
    for each in speeds:
        if each.new:
            rates, depth = each.rates, f" @ d{each.depth}" if each.depth else ""
            told = {"avgTps": statistics.mean(rates), "minTps": min(rates), "maxTps": max(rates), "avgTtftMs": None}
            counts = {"numRuns": len(rates), "avgOutputTokens": each.new}
            told["avgTotalMs"] = 1000 * statistics.mean(each.seconds)
            results.append({"model": name + depth, "provider": "torch_foundry", **counts, **told})
    return {
        "schemaVersion": 1,
        "submittedAtUnix": int(time.time()),
        "tool": {"name": "torch_foundry", "version": host["torch_foundry"]},
        "hardware": {
            "hwClass": kind,
            "hardwareName": gpu.get("gpu") or host["chip"],
            "memTierGb": None if memory is None else round(memory),
            "vramGb": memory,
            "gpuCount": int(kind != "CPU_ONLY"),
            "unifiedMemory": kind == "UNIFIED",
            "cpu": host["chip"] or host["machine"],
            "cpuCores": host["cpu_cores"],
            "ramGb": host["memory_gib"],
            "os": {"Darwin": "macos"}.get(platform.system(), platform.system().lower()),
        },
        "results": results,
    }


@torch.no_grad()
def measure(model: Any, *, prompt: int = 0, new: int = 0, depth: int = 0, repeats: int = 5) -> Speed:
    """Time one test with random ids and a batch of one, `repeats` times after a run that isn't counted.

    Either `prompt` or `new` is given. A prompt is one forward pass that computes the last token's logits; new tokens
    are greedy ones of generate(), from the 17th on, so that reading the cache's tokens takes no part.
    ValueError: sizes that no test has, or more tokens than the model's positions.
    """
    if (prompt > 0) == (new > 0) or min(prompt, new, depth) < 0 or repeats < 1:
        found = f"{prompt}, {new}, behind {depth} others, {repeats} times"
        raise ValueError(f"expected tokens of a prompt or new ones, once or more, got {found}")
    config = model.config.get_text_config()
    limit, total = getattr(config, "max_position_embeddings", None), depth + (prompt or new + BLOCK + 1)
    if limit is not None and total > limit:
        raise ValueError(f"{total} tokens are beyond the model's {limit} positions")
    ids = torch.randint(0, config.vocab_size, (1, total), generator=torch.Generator().manual_seed(0)).to(model.device)
    timed = (lambda: _read(model, ids, depth)) if prompt else (lambda: _generate(model, ids[:, : depth + 1], new))
    timed()
    return Speed(prompt, new, depth, [timed() for _ in range(repeats)])


def _read(model: Any, ids: torch.Tensor, depth: int) -> float:
    cache = DynamicCache(config=model.config)
    for part in (ids[:, :depth], ids[:, depth:]):
        synchronize(ids.device)
        start = time.perf_counter()
        if part.shape[1]:
            model(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    synchronize(ids.device)
    return time.perf_counter() - start


class _Clock(BaseStreamer):
    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _generate(model: Any, ids: torch.Tensor, new: int) -> float:
    config, clock = copy.deepcopy(model.generation_config), _Clock()
    config.do_sample, config.sync_every, config.max_new_tokens = False, BLOCK, new + BLOCK
    # an id that no token has, so that nothing ends it: None would stand for the model's own
    config.eos_token_id, config.pad_token_id = model.config.get_text_config().vocab_size, 0
    model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=clock)
    return clock.times[-1] - clock.times[BLOCK]  # the first is the prompt's
