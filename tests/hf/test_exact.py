"""The criterion of whole models (tests/exact.py) notices small mistakes, and takes no other computation for float64."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from tests.exact import InFloat64, assert_as_exact, assert_found_as_exact, doubled
from tests.hf.tiny_models import ids, shared
from torch_foundry import ops
from torch_foundry.hf.api import patch
from torch_foundry.testing.tolerance import Mismatch


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """Of a prompt, then of a token, which a graph computes."""
    cache = DynamicCache(config=model.config)
    parts = [model(given, past_key_values=cache).logits for given in (ids(2, 12), ids(2, 1))]
    return torch.cat(parts, dim=1)


def scale(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = model.model.layers[1]._foundry.layer.mixer
    mixer.spec = dataclasses.replace(mixer.spec, scale=1.0001 * mixer.spec.scale)


def rope(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.model.rotary_emb.inv_freq[3] *= 1.0001


def activation(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.glu
    monkeypatch.setattr(ops, "glu", lambda *args, **given: 1.00001 * right(*args, **given))


def weight(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of a matrix."""
    model.model.layers[0].mlp.down_proj.weight.data[5, 7] += 1e-3


def embedding(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of one token's row."""
    model.model.embed_tokens.weight.data[int(ids(2, 12)[0, 11]), 0] += 1e-3


@pytest.mark.parametrize("fault", [scale, rope, activation, weight, embedding], ids=lambda f: f.__name__)
def test_small_mistakes_are_noticed(fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch(copy.deepcopy(shared("llama")))
    assert_as_exact(logits, model, shared("llama"))
    fault(model, monkeypatch)
    with pytest.raises(Mismatch):
        assert_as_exact(logits, model, shared("llama"))


def test_no_part_of_the_truth_is_float32() -> None:
    """Stock's own model in float64 is not: its norms and softmax compute in float32 in every dtype."""
    exact = doubled(shared("gemma2"))
    made: list[torch.dtype] = []

    class Look(InFloat64):
        """Keeps the dtypes of all results."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = super().__torch_function__(func, types, args, kwargs)
            if isinstance(result, torch.Tensor) and result.dtype.is_floating_point:
                made.append(result.dtype)
            return result

    with Look():
        assert logits(exact).dtype == torch.float64
    assert len(made) > 100 and set(made) == {torch.float64}


def test_another_computation_is_not_taken_for_the_truth() -> None:
    model = patch(copy.deepcopy(shared("llama")))

    def other_in_float64(each: Any) -> torch.Tensor:
        return logits(each) * (1.1 if each.dtype == torch.float64 else 1.0)

    with pytest.raises(AssertionError, match="not the same computation"):
        assert_found_as_exact(logits(model), other_in_float64, shared("llama"))
