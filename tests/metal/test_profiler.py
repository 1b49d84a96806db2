"""What torch's profilers see of launches on the mock of Metal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_foundry
from torch_foundry import compile_shader, ops
from torch_foundry.core import environment

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry
COUNT = "kernel void count(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] += 1; }"


@pytest.fixture
def signposts() -> Iterator[None]:
    mock.profile(True)
    yield
    mock.profile(False)
    foundry._metal_replays("serial")


def events() -> list[str]:
    kinds = ("begin", "end", "dispatch", "icb")
    return [event.partition("<")[0].partition("_float")[0] for event in mock.trace() if event.startswith(kinds)]


def test_signposts_of_kernels(signposts: None) -> None:
    """torch.mps.profiler's: around what is encoded, by the kernel's name."""
    x, w = torch.ones(2, 64, device="mps"), torch.ones(64, device="mps")
    ops.rms_norm(x, w, 1e-6)
    y = torch.zeros(4, device="mps")
    mock.trace()
    ops.rms_norm(x, w, 1e-6)
    compile_shader(COUNT).count(y)
    assert events() == ["begin rms_norm", "dispatch rms_norm", "end", "begin count", "dispatch count", "end"]


@pytest.mark.parametrize("how", environment.REPLAYS.allowed)
def test_signposts_of_graphs(how: str, signposts: None) -> None:
    foundry._metal_replays(how)
    count, y = compile_shader(COUNT).count, torch.zeros(4, device="mps")
    with torch_foundry.capture() as graph:
        count(y)
        count(y)
    mock.trace()
    graph.replay()
    assert events() == [
        "begin torch_foundry graph",
        *(["icb x2"] if how == "indirect" else ["dispatch count"] * 2),
        "end",
    ]


def test_no_signposts_without_the_profiler() -> None:
    y = torch.zeros(4, device="mps")
    mock.trace()
    compile_shader(COUNT).count(y)
    assert events() == ["dispatch count"]


def test_torch_profiler_names_the_kernels() -> None:
    x, w = torch.ones(2, 64, device="mps"), torch.ones(64, device="mps")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ops.rms_norm(x, w, 1e-6)
        with torch_foundry.capture() as graph:
            compile_shader(COUNT).count(x)
        graph.replay()
    names = [event.name for event in profile.events()]
    assert any(name.startswith("kernel rms_norm<float, ") for name in names)
    assert names.count("kernel count") == 1 and names.count("graph of 1 kernels") == 1
