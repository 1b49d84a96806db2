"""generate() on graphs: every family gives stock's tokens, with one read for each block of tokens."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_foundry
from tests.hf.tiny_cases import ALL_FAMILIES
from tests.hf.tiny_models import ids, padded, shared
from torch_foundry.hf.api import report

INPUTS = {
    "one row": lambda: {"input_ids": ids(1, 9), "attention_mask": torch.ones(1, 9, dtype=torch.long)},
    "left padding": lambda: padded([9, 4, 7]),
}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_greedy_tokens_are_stocks(family: str, inputs: str) -> None:
    stock = shared(family)
    model = torch_foundry.patch(copy.deepcopy(stock))
    given = INPUTS[inputs]()
    expected, found = (m.generate(**given, max_new_tokens=40, do_sample=False) for m in (stock, model))
    assert found.tolist() == expected.tolist()
    seen = report(model)
    assert (seen.tokens, seen.steps, seen.captured, seen.reads) == (40, 39, 1, 10), str(seen)
    assert not seen.eager and not seen.fallbacks, str(seen)
