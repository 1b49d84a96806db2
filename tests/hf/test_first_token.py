"""What a model's first token launches, known before there is any data, and compiled if that is asked for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import torch_foundry
from tests.hf import tiny_wrappers
from tests.hf.tiny_cases import ALL_FAMILIES, KIN
from tests.hf.tiny_models import PROMPT, shared
from torch_foundry import ops
from torch_foundry.core import runtime
from torch_foundry.core.ahead import KernelList, recording_for
from torch_foundry.core.graph import captures
from torch_foundry.hf import first_token
from torch_foundry.hf.api import _state_of, report

CPU = torch.device("cpu")
FAMILIES = ["llama", "qwen3", "olmo2", "gemma3", "gemma3n", "gemma4_e", "mixtral", "qwen3_next", "lfm2"]
STOCK = "Expected inputs of BF16 type"  # of stock code for the experts of many tokens in float32


def patched(family: str = "llama", **options: Any) -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(family)), **options)


def recorded(model: Any) -> KernelList:
    kernels = KernelList(CPU)
    with kernels.record(), torch.no_grad():
        first_token.first_token(first_token.on_meta(model))
    return kernels


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_a_generation_launches_what_was_recorded(family: str, quantize: str | None) -> None:
    model = patched(family, quantize=quantize)
    known = {entry for _, entry in recorded(model).names()}
    with captures() as graphs:
        model.generate(PROMPT, max_new_tokens=3, do_sample=False)
    launched = {launch.kernel for graph in graphs for launch in graph.launches()}
    assert launched and launched <= known
    assert not report(model).eager


@pytest.mark.tier("models")
@pytest.mark.parametrize("family", ALL_FAMILIES | KIN)
def test_every_family_can_be_recorded(family: str) -> None:
    kernels, problems = first_token.record_first_token(patched(family), CPU)
    assert len(kernels) > 8 and all(STOCK in str(problem) for problem in problems), str(problems)


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "qwen3_5"])
def test_a_wrapper_launches_for_text_what_was_recorded(name: str) -> None:
    model = torch_foundry.patch(copy.deepcopy(tiny_wrappers.shared(name)))
    known = {entry for _, entry in recorded(model).names()}
    with captures() as graphs:
        model.generate(PROMPT, max_new_tokens=3, do_sample=False)
    launched = {launch.kernel for graph in graphs for launch in graph.launches()}
    assert launched and launched <= known


@pytest.mark.tier("models")
@pytest.mark.parametrize("name", tiny_wrappers.WRAPPERS)
def test_every_wrapper_can_be_recorded(name: str) -> None:
    model = torch_foundry.patch(copy.deepcopy(tiny_wrappers.shared(name)))
    kernels, problems = first_token.record_first_token(model, CPU)
    assert len(kernels) > 8 and all(STOCK in str(problem) for problem in problems), str(problems)


def test_recording_touches_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """No counter, no random number, no hook, no tensor of the model."""
    model, called = patched(), []
    model.model.layers[0].mlp.register_forward_hook(lambda *given: called.append(given))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    runtime.reset_counters()
    seed = torch.get_rng_state()
    seen = str(report(model))
    assert len(recorded(model)) > 8
    assert runtime.counters().launches == 0 and torch.equal(torch.get_rng_state(), seed) and not called
    assert str(report(model)) == seen and recording_for() is None and not runtime.has_executor("meta")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert capfd.readouterr() == ("", "")


def test_only_meta_tensors_of_the_recording_thread_are_recorded() -> None:
    x, weight = torch.randn(2, 64), torch.ones(64)
    expected, kernels = ops.rms_norm(x, weight, 1e-6), KernelList(CPU)
    with kernels.record():
        assert torch.equal(ops.rms_norm(x, weight, 1e-6), expected) and not len(kernels)
        assert ops.rms_norm(x.to("meta"), weight.to("meta"), 1e-6).is_meta
        with pytest.raises(RuntimeError, match="weight"):
            ops.rms_norm(x.to("meta"), weight[:9].to("meta"), 1e-6)
    ops.rms_norm(x.to("meta").half(), weight.to("meta").half(), 1e-6)
    assert kernels.names() == [("rms_norm.metal", "rms_norm<float, Llama, 8>")]


def test_twins_share_what_is_shared() -> None:
    """A tied weight stays one, and nothing has memory."""
    model = patched()
    model.lm_head.weight = model.model.embed_tokens.weight
    twin = first_token.on_meta(model)
    assert twin.lm_head.weight is twin.model.embed_tokens.weight
    assert all(tensor.is_meta for tensor in twin.state_dict().values())
    assert list(twin.state_dict()) == list(model.state_dict()) and model.lm_head.weight.device == CPU


# ------------------------------------------------------------------------------------------------------------ by patch


def test_models_on_the_cpu_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_token, "on_meta", None)  # whatever calls it fails
    assert _state_of(patched()).ahead == ""
    with torch.device("meta"):
        model = type(shared("llama"))(shared("llama").config)
    assert _state_of(torch_foundry.patch(model)).ahead == ""


def test_it_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[KernelList] = []
    monkeypatch.setenv("TORCH_FOUNDRY_COMPILE_AHEAD", "1")
    monkeypatch.setattr(KernelList, "compile", lambda self: compiled.append(self))
    model = patched()
    assert len(compiled) == 1 and _state_of(model).ahead == f"{len(compiled[0])} kernels"
    monkeypatch.setenv("TORCH_FOUNDRY_COMPILE_AHEAD", "0")
    patched()
    assert len(compiled) == 1


def test_what_goes_wrong_is_noted_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose code needs data is patched like any other; so is one whose tensors are of another class."""
    monkeypatch.setenv("TORCH_FOUNDRY_COMPILE_AHEAD", "1")
    monkeypatch.setattr(KernelList, "compile", lambda self: None)
    own = copy.deepcopy(shared("llama"))
    own.model.norm.forward = own.model.norm.forward
    assert "0 kernels; ValueError: LlamaRMSNorm has a forward" in _state_of(torch_foundry.patch(own)).ahead

    def broken(self: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(KernelList, "compile", broken)
    model = patched()
    assert _state_of(model).ahead.endswith(" kernels; RuntimeError: no compiler")
    assert model.generate(PROMPT, max_new_tokens=2).shape[1] == PROMPT.shape[1] + 2


def test_a_kernel_that_does_not_compile_is_said_where_it_is_needed(tmp_path: Any) -> None:
    """Not before, and then as always."""
    import shutil

    from torch_foundry.core import extension

    shutil.copytree(extension.CHECKOUT / "shaders", tmp_path / "shaders")
    broken = tmp_path / "shaders" / "norm" / "rms_norm.metal"
    broken.write_text(broken.read_text().replace("weigh<T, Kind>", "of_no_metal<T, Kind>"))
    with runtime.use_shaders(tmp_path / "shaders"):
        kernels = KernelList(CPU)
        x, weight = torch.randn(2, 96), torch.ones(96)
        with kernels.record():
            ops.rms_norm(x.to("meta"), weight.to("meta"), 1e-6)
        kernels.compile()
        with pytest.raises(RuntimeError, match="does not compile"):
            ops.rms_norm(x, weight, 1e-6)
