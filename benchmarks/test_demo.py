"""Decoding with the bundled model under HF `generate()`: stock beside patched, measured once their tokens are equal."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import torch_foundry
from torch_foundry.demo_model import demo_model_path

TOKENS = 64


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=torch.float32).eval()


def generate(model: Any) -> torch.Tensor:
    ids = torch.arange(300, 316)[None]
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False
    )


@pytest.mark.parametrize("who", ["patched", "stock"])
def test_decode(benchmark: Any, model: Any, who: str) -> None:
    expected = generate(model)
    with torch_foundry.patched(model):
        torch_foundry.reset_counters()
        assert torch.equal(generate(model), expected)
        launches = torch_foundry.counters().launches
    benchmark.group = f"demo model, prefill 16 and decode {TOKENS}, float32"
    with torch_foundry.patched(model) if who == "patched" else contextlib.nullcontext():
        benchmark.pedantic(generate, args=(model,), rounds=5, warmup_rounds=1)
    benchmark.extra_info["tokens/s"] = round(TOKENS / benchmark.stats.stats.median, 1)
    benchmark.extra_info["launches/token"] = launches / TOKENS if who == "patched" else 0
