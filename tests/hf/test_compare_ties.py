"""compare leaves out tokens whose experts rounding may choose, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig

from tests.hf.tiny_models import ids, shared
from torch_foundry.diagnostics import compare as home
from torch_foundry.diagnostics.compare import compare, ties
from torch_foundry.diagnostics.compare.kernels import wrong_kernels
from torch_foundry.hf.api import patch, patched
from torch_foundry.models.moe import ExpertBlock

# glm4_moe chooses by a correction as well; gemma4_moe's experts lie beside an MLP
MIXTURES = ["mixtral", "qwen3_moe", "gpt_oss", "phimoe", "glm4_moe", "gemma4_moe"]
PROMPT = ids(2, 40)


def undecided(model: Any) -> dict[str, torch.Tensor]:
    with patched(model):
        layers = {
            name: layer for name, layer in model.named_modules() if hasattr(layer, "mlp") and "_foundry" in vars(layer)
        }
        for layer in layers.values():
            layer._foundry.state.enabled = False
        found = ties.undecided(layers, lambda: model(PROMPT, use_cache=False))
        for layer in layers.values():
            layer._foundry.state.enabled = True
    return found


@pytest.mark.parametrize("family", MIXTURES)
def test_equal_experts_are_a_tie_and_rounding_decides_few(family: str) -> None:
    """In float32 next to none is undecided; where a router's rows are the same, all are, if they alone decide."""
    model = copy.deepcopy(shared(family))
    with torch.no_grad():
        found = undecided(model)
        assert found and all(mask.shape == (PROMPT.numel(),) and mask.sum() <= 1 for mask in found.values())
        for name in found:
            layer: Any = model.get_submodule(name)
            with patched(model):
                matrix, _ = layer._foundry.layer.experts.choosing()
                for parameter in matrix.parameters():
                    parameter.copy_(parameter[:1].clone())
        share = torch.stack([*undecided(model).values()]).float().mean()
        assert share == 0 if family == "glm4_moe" else share > 0.9


@pytest.mark.parametrize("family", MIXTURES)
def test_a_mixture_is_compared(family: str) -> None:
    drift = compare(copy.deepcopy(shared(family)), PROMPT)
    assert drift.first_bad is None and len(drift.paths) == 4


def test_a_copy_of_a_patched_model_is_compared() -> None:
    """Its layers have no plan of their own yet."""
    model = copy.deepcopy(patch(copy.deepcopy(shared("qwen3_moe"))))
    assert compare(model, PROMPT).first_bad is None


def test_a_choice_of_rounding_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tokens that are left, a layer's error of a prompt is that of a token whose experts are certain."""
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "num_local_experts": 32, "vocab_size": 300}
    config = GptOssConfig(num_hidden_layers=2, **heads, **sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embed" not in name:
            parameter.data.normal_(std=parameter[0].numel() ** (-0.5 / (parameter.dim() - 1)))
    prompt = torch.randint(0, 300, (1, 96))
    without = compare(model, prompt)
    monkeypatch.setattr(ties, "decided", lambda rows, mask: rows)
    within = compare(model, prompt)
    alone = [[stage.alone for stage in drift.stages if stage.is_layer] for drift in (without, within)]
    assert max(alone[0]) < 0.014 < 1.5 * 0.014 < max(alone[1]), alone


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_is_left_of_rows(share: float) -> None:
    rows = torch.arange(24.0).view(2, 4, 3)
    mask = torch.arange(8) < 8 * share
    left = ties.decided(rows, mask)
    assert torch.equal(left, rows.view(8, 3) if share in (0.0, 1.0) else rows.view(8, 3)[4:])
    assert torch.equal(ties.decided(rows, None), rows.view(8, 3))


def test_a_fault_of_experts_is_found_beside_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(shared("qwen3_moe")).bfloat16()
    block = ExpertBlock
    run = block._block
    monkeypatch.setattr(block, "_block", lambda self, x, residual, gemm: run(self, x, residual, gemm) * 1.3)
    assert home.compare(model, PROMPT).first_bad == "model.layers.0"


@pytest.mark.parametrize("family", MIXTURES)
def test_no_right_kernel_is_called_wrong(family: str) -> None:
    """Those of experts with biases, too."""
    model = copy.deepcopy(shared(family))
    with torch.no_grad(), patched(model):
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.normal_()
        assert wrong_kernels(lambda: model(PROMPT[:, :2])) == []


def test_where_all_tokens_are_ties_kernels_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers whose rows are the same but for roundings: a step's token goes to other experts than stock's."""
    model = copy.deepcopy(shared("qwen3_moe")).bfloat16()
    with torch.no_grad():
        for layer in model.model.layers:
            weight = layer.mlp.gate.weight
            weight.copy_(weight[:1] * (1 + 1e-3 * torch.randn(len(weight), 1)))
    drift = compare(model, PROMPT[:1])
    assert drift.first_bad is None and len(drift.paths) == 4
    monkeypatch.setattr(ties, "wrong_kernels", lambda run: ["moe_glu"])
    paths = {path.name: path.first_bad for path in compare(model, PROMPT[:1]).paths}
    assert paths["one token"] and paths["decode step"], "experts differ, which is what is left out"
