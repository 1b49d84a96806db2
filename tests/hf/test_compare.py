"""compare finds the layer that is wrong."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shader_text import edited_shaders
from torch import nn
from transformers import DynamicCache

from tests.exact import InFloat64, doubled
from tests.hf.tiny_cases import ALL_FAMILIES
from tests.hf.tiny_models import build, classes, config, ids, padded, random_model, shared
from torch_foundry import ops
from torch_foundry.core import runtime
from torch_foundry.diagnostics.compare import compare
from torch_foundry.diagnostics.compare.kernels import wrong_kernels
from torch_foundry.diagnostics.compare.result import PROMPT as PROMPT_PATH
from torch_foundry.diagnostics.compare.result import REPLAY, STEP, TOKEN
from torch_foundry.generation.step_graph import StepGraph
from torch_foundry.hf.api import patch, report
from torch_foundry.testing.tolerance import FLOOR, relative_error

PROMPT = ids(2, 17)
SHADERS = Path(__file__).parents[2] / "shaders"


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_no_family_is_out_of_line(family: str) -> None:
    model = copy.deepcopy(shared(family))
    drift = compare(model, PROMPT)
    assert drift.first_bad is None, str(drift)
    with torch.no_grad(), InFloat64():
        exact = doubled(model)(PROMPT).logits
    with torch.no_grad():
        error = relative_error(model(PROMPT).logits, exact)
    assert drift.paths[0].logits <= 3 * error + FLOOR[torch.float32], (
        f"stock's error {error:.1e}"
    )  # ours: at most twice that
    assert drift.top1 == 1.0
    assert [path.name for path in drift.paths] == [PROMPT_PATH, TOKEN, STEP, REPLAY] and drift.left_out is None
    steps = drift.paths[2]
    assert [stage.name for stage in steps.stages] == [stage.name for stage in drift.stages]
    assert [stage.name for stage in drift.paths[3].stages] == ["captured", "replay 1", "replay 2"]
    assert [stage.name for stage in drift.stages] == [
        "model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"
    ]  # fmt: skip
    assert classes(model) == classes(shared(family)), "patched for the duration only"


@pytest.mark.parametrize("family", ["falcon", "gpt_neox", "gpt2", "gemma3n"])
def test_layers_and_parts_by_other_names(family: str) -> None:
    """Falcon's layers return attention's weights too, Gemma 3n's several streams."""
    drift = compare(copy.deepcopy(shared(family)), PROMPT)
    assert drift.first_bad is None and drift.left_out is None, str(drift)
    rows = [line.split() for line in str(drift).splitlines() if "h.1" in line or "layers.1" in line]
    steps = next(stage for stage in drift.paths[2].stages if stage.name == rows[0][0])
    assert len(rows) == 1 and rows[0][-3] == f"{steps.drift:.1e}"
    assert [path.name for path in drift.paths] == [PROMPT_PATH, TOKEN, STEP, REPLAY]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_is_not_out_of_line(dtype: torch.dtype) -> None:
    drift = compare(build("llama", dtype, layers=5), PROMPT)
    assert drift.first_bad is None, str(drift)
    assert drift.dtype == dtype and drift.logits > 0


@pytest.mark.parametrize("layer", range(5))
def test_a_fault_is_found_at_its_layer(layer: int) -> None:
    model = patch(build("llama", layers=5))
    mixer = model.model.layers[layer]._foundry.layer.mixer
    mixer.spec = dataclasses.replace(mixer.spec, scale=1.02 * mixer.spec.scale)
    drift = compare(model, PROMPT)
    assert drift.first_bad == f"model.layers.{layer}", str(drift)
    assert str(drift).count("out of line") == 2
    assert drift.stages[layer + 1].growth is None or drift.stages[layer + 1].growth > 10


def test_a_faulty_op_is_found_at_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch(build("llama"))
    right = ops.glu
    monkeypatch.setattr(ops, "glu", lambda *args, **given: 1.001 * right(*args, **given))
    assert compare(model, PROMPT).first_bad == "model.layers.0"


# of norm_linear.metal, which no prompt goes through
FAULTS = {
    "norm_glu": ("llama", "gated(args.activation, value * args.gate_scale, up)", "gated(args.activation, up, value)"),
    "norm_qkv": ("llama", "is_first ? -other : other", "is_first ? other : -other"),
    "norm_linear": ("qwen3", "= T(sums[i] + bias_of", "= T(1.1f * sums[i] + bias_of"),
}


@pytest.fixture
def shaders(tmp_path: Path) -> Callable[[str, str, str], Any]:
    def edited(file: str, old: str, new: str) -> Any:
        return runtime.use_shaders(edited_shaders(tmp_path, (file, old, new)))

    return edited


# The fault is named by the op alone: packed weights, which are compared all the same, once.
@pytest.mark.tier("models")
@pytest.mark.parametrize(
    "op, quantize",
    [
        ("norm_glu", None),
        ("norm_qkv", None),
        ("norm_linear", None),
        ("norm_linear", "q8_0"),
        pytest.param("norm_glu", "q8_0", marks=pytest.mark.tier("nightly")),
        pytest.param("norm_qkv", "q8_0", marks=pytest.mark.tier("nightly")),
    ],
)
def test_a_faulty_kernel_of_decode_steps_is_named(op: str, quantize: str | None, shaders: Any) -> None:
    family, *change = FAULTS[op]
    model = patch(build(family), quantize=quantize)
    assert compare(model, PROMPT).first_bad is None
    with shaders("norm_linear.metal", *change):
        drift = compare(model, PROMPT)
    assert drift.bad_path is drift.paths[2] and drift.first_bad == "model.layers.0", str(drift)
    assert drift.bad_path.kernels == [op]
    assert drift.logits > 0.01 and drift.paths[0].logits < 1e-5
    assert f"first out of line: model.layers.0 of the decode step, by {op}" in str(drift)


@pytest.mark.tier("models")
@pytest.mark.parametrize("name", ["LlamaConfig", "DiffLlamaConfig"])
def test_a_faulty_kernel_for_few_rows_is_named(name: str, shaders: Any) -> None:
    """In a model of which nothing is known but its linear layers and embeddings, too."""
    model = patch(random_model(config(name)))
    stored = "addends_of(m, n, bias, residual, args); store_output("
    with shaders("linear.metal", f"{stored}sums[i],", f"{stored}1.1f * sums[i],"):
        drift = compare(model, PROMPT)
    assert drift.bad_path is drift.paths[1] and drift.bad_path.kernels == ["linear"], str(drift)
    assert (drift.left_out is None) == (name == "LlamaConfig")
    assert name == "LlamaConfig" or "decode steps were not compared: DiffLlamaForCausalLM is no known" in str(drift)


@torch.no_grad()
@pytest.mark.parametrize("family", ["olmo2", "olmoe", "minimax_m2", "qwen3_5_moe"])
def test_right_kernels_are_not_named(family: str) -> None:
    """Norms of all heads at once, and routers whose weights don't add up to 1 or pass sigmoids."""
    model = patch(copy.deepcopy(shared(family)))
    cache = DynamicCache(config=model.config)
    model(PROMPT, past_key_values=cache)
    assert wrong_kernels(lambda: model(PROMPT[:, :1], past_key_values=cache)) == []


def test_a_graph_that_differs_from_its_kernels_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StepGraph.run

    def stale(self: StepGraph[Any]) -> torch.Tensor:
        """The first step again and again."""
        if self.captured:
            assert self._result is not None
            self.decoder.steps += 1
            return self._result
        return right(self)

    monkeypatch.setattr(StepGraph, "run", stale)
    drift = compare(build("llama"), PROMPT)
    assert drift.bad_path is drift.paths[3] and drift.first_bad == "replay 1", str(drift)
    assert "launched one by one" in str(drift)


def test_nan_is_out_of_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch(build("llama"))
    monkeypatch.setattr(ops, "glu", lambda gate, *_, **__: torch.full_like(gate, torch.nan))
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
