"""A trained hybrid with a trained MTP head (`tools/demo_model/hybrid.py`): its drafts are right often enough, and the
texts are those without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from tests.exact import assert_as_exact
from tools.demo_model.evaluate import perplexity
from tools.demo_model.hybrid import SAMPLED, always, generate
from torch_foundry.demo_model import held_out_sample
from torch_foundry.engine import Engine, SamplingParams

FOLDER = Path(__file__).parent / "hybrid"
METRICS = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))
TEXTS = held_out_sample(4)
FLOORS = [(1, 0.7, 1.5), (3, 0.5, 2.0)]  # drafts of a step; of these right, and tokens a step, at least


@pytest.fixture(scope="module")
def hybrid() -> Any:
    model, _ = torch_foundry.load(FOLDER, device="cpu", allow=("VOCAB_MISSING",))
    torch_foundry.load_mtp(model)
    return model


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_000_000
    assert METRICS["parameters"] == {"model": 1_187_192, "head": 197_376}


@torch.no_grad()
def test_patched_packed_weights_are_as_exact_as_stock_code_on_dense_ones(hybrid: Any, tokenizer: Any) -> None:
    """And so the perplexity is the one on record, of both."""
    told = {"device": "cpu", "patch": False, "allow": ("VOCAB_MISSING",), "attn_implementation": "eager"}
    stock = torch_foundry.dequantize(torch_foundry.load(FOLDER, **told)[0])
    ids = tokenizer(TEXTS[0], add_special_tokens=False, return_tensors="pt").input_ids
    assert_as_exact(lambda model, ids: model(ids, use_cache=False).logits, hybrid, stock, ids)
    assert not torch_foundry.report(hybrid).fallbacks
    found = [perplexity(model, tokenizer, held_out_sample()) for model in (hybrid, stock)]
    assert found == pytest.approx([METRICS["perplexity"]] * 2, rel=1e-3)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_are_right_and_change_no_token(hybrid: Any, tokenizer: Any, sampling: dict[str, Any]) -> None:
    plain, _ = generate(hybrid, tokenizer, TEXTS, **sampling)
    for drafts, share, tokens in FLOORS:
        with always(drafts):
            drafted, stats = generate(hybrid, tokenizer, TEXTS, use_mtp=True, **sampling)
        assert drafted == plain
        assert stats.accepted > share * stats.drafted and stats.tokens > tokens * stats.steps, str(stats)
    assert not torch_foundry.report(hybrid).eager


def test_an_engine_drafts_as_well(hybrid: Any, tokenizer: Any) -> None:
    prompts = [tokenizer(text, add_special_tokens=False).input_ids[:40] for text in TEXTS[:4]]
    answers = []
    for drafts in (False, True):
        engine = Engine(hybrid, requests=4, blocks=40, use_mtp=drafts)
        params = [SamplingParams(max_tokens=48, temperature=0.8 * (i % 2), seed=i) for i in range(4)]
        with always(1):
            streams = [engine.submit(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
            engine.run()
        answers.append([stream.tokens for stream in streams])
    assert answers[0] == answers[1]
    assert engine.speculation.accepted > 0.5 * engine.speculation.drafted > 0, str(engine.speculation)
