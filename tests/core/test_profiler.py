"""torch.profiler shows kernels by their names, inside the ops that launch them."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

import torch_foundry
from torch_foundry import ops


def test_kernels_have_their_names_inside_their_ops() -> None:
    x, w = torch.ones(2, 64), torch.ones(64)
    weight = torch.ones(32, 64)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        ops.linear(ops.rms_norm(x, w, 1e-6), weight)
    kernels = [event for event in seen.events() if event.name.startswith("kernel ")]
    assert [event.name.partition("<")[0] for event in kernels] == ["kernel rms_norm", "kernel linear_rows"]
    assert [event.cpu_parent.name for event in kernels] == ["torch_foundry::rms_norm", "torch_foundry::linear"]
    assert kernels[1].name.startswith("kernel linear_rows<F32, float, 2, ")


def test_graphs_and_their_kernels() -> None:
    x, w = torch.ones(2, 64), torch.ones(64)
    with torch_foundry.capture() as graph:
        ops.rms_norm(ops.rms_norm(x, w, 1e-6), w, 1e-6)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        graph.replay()
    (whole,) = (event for event in seen.events() if event.name == "graph of 2 kernels")
    kernels = [event for event in seen.events() if event.name.startswith("kernel rms_norm<")]
    assert len(kernels) == 2 and all(event.cpu_parent is whole for event in kernels)
