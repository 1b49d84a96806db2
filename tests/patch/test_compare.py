"""compare finds the layer that is wrong."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from tests.exact import InFloat64, doubled
from tests.patch.zoo import FAMILIES, build, classes, ids, padded, shared
from torch_foundry import ops
from torch_foundry.compare import compare
from torch_foundry.doctor.truth import FLOOR, relative_error
from torch_foundry.patch import patch, report

PROMPT = ids(2, 17)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_is_out_of_line(family: str) -> None:
    model = copy.deepcopy(shared(family))
    drift = compare(model, PROMPT)
    assert drift.first_bad is None, str(drift)
    with torch.no_grad(), InFloat64():
        exact = doubled(model)(PROMPT).logits
    with torch.no_grad():
        error = relative_error(model(PROMPT).logits, exact)
    assert drift.logits <= 3 * error + FLOOR[torch.float32], f"stock's error {error:.1e}"  # ours: at most twice that
    assert drift.top1 == 1.0
    assert [stage.name for stage in drift.stages] == [
        "model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"
    ]  # fmt: skip
    assert classes(model) == classes(shared(family)), "patched for the duration only"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_is_not_out_of_line(dtype: torch.dtype) -> None:
    drift = compare(build("llama", dtype, layers=5), PROMPT)
    assert drift.first_bad is None, str(drift)
    assert drift.dtype == dtype and drift.logits > 0


@pytest.mark.parametrize("layer", range(5))
def test_a_fault_is_found_at_its_layer(layer: int) -> None:
    model = patch(build("llama", layers=5))
    plan = model.model.layers[layer]._foundry
    plan.spec = dataclasses.replace(plan.spec, scale=1.02 * plan.spec.scale)
    drift = compare(model, PROMPT)
    assert drift.first_bad == f"model.layers.{layer}", str(drift)
    assert str(drift).count("out of line") == 2
    assert drift.stages[layer + 1].growth is None or drift.stages[layer + 1].growth > 10


def test_a_faulty_op_is_found_at_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch(build("llama"))
    right = ops.glu
    monkeypatch.setattr(ops, "glu", lambda *args: 1.001 * right(*args))
    assert compare(model, PROMPT).first_bad == "model.layers.0"


def test_nan_is_out_of_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch(build("llama"))
    monkeypatch.setattr(ops, "glu", lambda gate, *_: torch.full_like(gate, torch.nan))
    assert compare(model, PROMPT).first_bad == "model.layers.0"


def test_inputs_and_state_are_kept() -> None:
    model = build("mistral").train()
    inputs = padded([12, 7])
    drift = compare(model, inputs["input_ids"], attention_mask=inputs["attention_mask"])
    assert drift.first_bad is None
    assert model.training and not report(model).swapped
    assert not any(m._forward_hooks for m in model.modules())


def test_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="nothing in ReLU could be patched"):
        compare(nn.ReLU(), PROMPT)
