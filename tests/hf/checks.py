"""What models of several files of tests are held to."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.engine.test_drafting import steps_of_a_second
from tests.hf.test_families import MODES, patched_model, stock_tokens
from tests.hf.tiny_models import build, ids, shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report


def check_tokens(family: str, mode: str) -> None:
    """A way of generating (`MODES`) gives stock's tokens, on our code alone."""
    model = patched_model(family)
    assert MODES[mode](model).tolist() == stock_tokens(family, mode).tolist()
    assert not report(model).fallbacks and not report(model).not_replaced, str(report(model))


def check_engine(family: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Drafts are rejected, a second request goes on from what the first one left, and some are preempted.

    Returns the engine, when all is done.
    """
    steps_of_a_second(monkeypatch)
    stock, model = shared(family), patch(copy.deepcopy(shared(family)))
    texts = [(ids(1, 6, seed=9).repeat(1, 6)[0].tolist() + ids(1, n, seed=n)[0].tolist())[: 16 + n] for n in (3, 30)]
    draft = patch(build(family, seed=3))  # of other weights: nearly all that it drafts is wrong
    engine = Engine(model, requests=2, budget=24, blocks=7, assistant_model=draft)
    greedy = SamplingParams(max_tokens=20, temperature=0)
    for _ in range(2):
        streams = [engine.submit(text, greedy) for text in texts]
        engine.run()
        for text, stream in zip(texts, streams, strict=True):
            whole = stock.generate(torch.tensor([text]), max_new_tokens=20, do_sample=False)
            assert stream.tokens == whole[0, len(text) :].tolist()
    assert engine.speculation.drafted and engine.speculation.accepted < engine.speculation.drafted
    assert streams[1].sequence.reused and not report(model).eager
    return engine
