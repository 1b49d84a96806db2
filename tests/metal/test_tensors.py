"""Tensor operations on the mock: which GPUs, languages and shaders they are used with, and that doctor says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.shader_text import edited_shaders
from torch_foundry.core import environment

# A GPU's family is asked for once, so each case is a process.
CASE = """
import sys, torch
import torch_foundry.core.extension
from torch_foundry import ops
from torch_foundry.core import runtime, tuning
from torch_foundry.diagnostics.doctor.examine import describe_device
from torch_foundry.testing import weights
mock = torch.ops.mock_metal
mock.set("family", {family})
shaders = {shaders!r}
if shaders:
    torch_foundry.core.extension.add_shaders(torch_foundry.core.extension.Path(shaders))
torch.manual_seed(0)
x, weight = torch.randn(40, 64).half(), weights.packed(torch.randn(24, 64), "q8_0")
got = ops.linear(x.to("mps"), weight.to("mps"), format="q8_0").cpu()
trace = mock.trace()
print(sorted({{e.split()[1] for e in trace if e.startswith("dispatch linear")}}))
choices = tuning.choice("host", tuning.Key("linear_routes", "q8_0", 1, 24, 64))
tuning.use("host", tuning.Key("linear_routes", "q8_0", 1, 24, 64), {{**choices, "tensors": 512}})
print(torch.equal(got, ops.linear(x, weight, format="q8_0")))
print(describe_device(torch.device("mps"))["ours"].partition("; packed")[2])
"""
TENSORS = "linear_tensors_Q8_0__half__8_"
PROBED = ["linear_tensors_BF16__bfloat__8_", "linear_tensors_F16__half__8_"]
TILES = "linear_tiles_Q8_0__half__8_"


def run(family: int = 1010, shaders: str = "", **given: str) -> list[str]:
    code = CASE.format(family=family, shaders=shaders)
    environment_ = {**os.environ, environment.METAL_ARCHIVE.name: "0", **given}
    result = subprocess.run([sys.executable, "-c", code], env=environment_, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_on_an_m5() -> None:
    """It is asked once, before the first product, whose bits are those of the host's tensor operations."""
    kernels, equal, said = run()
    assert eval(kernels) == [*PROBED, TENSORS] and equal == "True"
    assert said.startswith(" codes are subnormal halves; tensor operations: error ") and "not used" not in said


@pytest.mark.parametrize("other", ["M4", "Metal 3.2", "told not to"])
def test_elsewhere(other: str) -> None:
    """Nothing is asked, nor compiled: the header alone would not be there."""
    given = {"Metal 3.2": {environment.METAL_VERSION.name: "3.2"}, "told not to": {environment.TENSORS.name: "0"}}
    kernels, equal, said = run(1009 if other == "M4" else 1010, **given.get(other, {}))
    assert eval(kernels) == [TILES] and equal == "True"  # tiles round weights alike, and so few products add up alike
    assert ("tensor operations: not used, error " in said) == (other == "told not to")


@pytest.mark.parametrize("fault", ["wrong", "does not compile"])
def test_a_gpu_that_is_wrong(fault: str, tmp_path: Path) -> None:
    old = "product.run(x_tile, w_tile, sum);"
    new = f"{old} sum[0] = float(half(sum[0]));" if fault == "wrong" else "product.walk(x_tile);"
    shaders = edited_shaders(tmp_path, ("linear_tensors.metal", old, new))
    kernels, _, said = run(shaders=str(shaders))
    probed = PROBED if fault == "wrong" else []
    assert eval(kernels) == [*probed, TILES] and "tensor operations: not used, error " in said


def test_one_who_insists() -> None:
    assert eval(run(**{environment.TENSORS.name: "1"})[0]) == [TENSORS]
