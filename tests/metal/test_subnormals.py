"""Packed codes as subnormal halves on the mock, whose GPU keeps such halves, or whose shader says that it doesn't."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torch_foundry
from tests.hf.tiny_models import shared
from tests.ops.shader_text import edited_shaders
from torch_foundry import ops
from torch_foundry.core import environment, extension, runtime, tuning
from torch_foundry.core.graph import capture
from torch_foundry.testing import weights as blocks

mock = torch.ops.mock_metal
FLUSHED = ("subnormals.metal", "args.words[i], 0x00ff00ffu, 0, 0.0h", "args.words[i], 0u, 0, 0.0h")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    extension.add_own_shaders()
    tuning.load_environment()


def product(name: str) -> tuple[str, Tensor]:
    """The kernel of a product in a captured step, and its result."""
    g = torch.Generator().manual_seed(1)
    weight = blocks.packed(torch.randn(8, 512, generator=g), name).to("mps")
    x = torch.randn(1, 512, generator=g).half().to("mps")
    with capture() as graph:
        y = ops.linear(x, weight, format=name)
    (launch,) = graph.launches()
    return launch.kernel, y.cpu()


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k"])
def test_yes_and_no(name: str, tmp_path: Path) -> None:
    """The same bits by the launches of the other policy."""
    kernel, kept = product(name)
    assert runtime.subnormal_codes("mps") and kernel.endswith(", 2>")
    with runtime.use_shaders(edited_shaders(tmp_path, FLUSHED)):
        tuning.load_environment()
        other, flushed = product(name)
        assert not runtime.subnormal_codes("mps") and other == kernel.replace(", 2>", ", 1>")
    assert torch.equal(kept, flushed)


@pytest.mark.parametrize("ahead", ["0", "1"])
def test_patch_asks(ahead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it compiles what the first token needs: later nobody waits for the answer."""
    monkeypatch.setenv(environment.COMPILE_AHEAD.name, ahead)
    monkeypatch.setattr(torch_foundry.hf.first_token, "PROMPTS", ())  # nor compiles more than the step
    text = (extension.BUILT / "translated" / "subnormals.metal").read_text()
    torch.ops.torch_foundry._add_source("subnormals.metal", f"{text}// {ahead}\n", "")  # it is asked again
    tuning.load_environment()
    torch_foundry.patch(copy.deepcopy(shared("llama")).half().to("mps"), quantize="q8_0")
    mock.trace()
    assert runtime.subnormal_codes("mps") and not mock.trace()
