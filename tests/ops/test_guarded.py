"""What a kernel writes outside the tensors that its op lets it write, or touches far outside of them all, fails the
launch, in every test of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_gated_delta
import test_glu
import test_rms_norm
import test_rope_kv
import torch
from kit import BF16, F16, F32, Fault

import torch_foundry
from torch_foundry.core import environment, runtime
from torch_foundry.core.graph import capture
from torch_foundry.core.shader import ShaderLibrary

pytestmark = [
    pytest.mark.cpu_only,  # the mock has its own copies of the memory
    pytest.mark.skipif(environment.SANITIZE.value() == "address", reason="AddressSanitizer looks instead of guards"),
]

WRITE = """
#include <metal_stdlib>
kernel void write(device float* y, device const float* x, constant int& at, constant int& from) { y[at] = x[from]; }
"""


@pytest.fixture(scope="module")
def lib() -> ShaderLibrary:
    return torch_foundry.compile_shader(WRITE)


@pytest.mark.parametrize("at", [-1, 8, 100], ids=["before", "behind", "far-behind"])
def test_writes_outside_an_output(lib: ShaderLibrary, at: int) -> None:
    x, y = torch.ones(1), torch.zeros(8)
    with pytest.raises(RuntimeError, match=rf"kernel write: wrote to byte {4 * at} of memory of 32 .* write \[0, 32\)"):
        lib.write(y, x, at, 0, threads=1)


@pytest.mark.parametrize("at", [-1, 2], ids=["before", "behind"])
def test_writes_outside_a_view(lib: ShaderLibrary, at: int) -> None:
    x, y = torch.full((1,), 0.1), torch.zeros(8)
    with pytest.raises(RuntimeError, match=rf"byte {4 * (3 + at)} of memory of 32 bytes, .* write \[12, 20\)"):
        lib.write(y[3:5], x, at, 0, threads=1)
    lib.write(y[3:5], x, 1, 0, threads=1)
    assert torch.equal(y, 0.1 * torch.eye(8)[4])


def test_one_storage_may_be_several_arguments(lib: ShaderLibrary) -> None:
    y = torch.arange(8.0)
    lib.write(y[:3], y[5:], 2, 1, threads=1)
    assert y.tolist() == [0, 1, 6, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("name, dtype", [("float", F32), ("half", F16), ("bfloat", BF16)])
def test_what_is_read_outside_is_nan(name: str, dtype: torch.dtype) -> None:
    x, y = torch.ones(3, dtype=dtype), torch.zeros(1, dtype=dtype)
    torch_foundry.compile_shader(WRITE.replace("float", name)).write(y, x, 0, 3, threads=1)
    assert y.isnan().all()


@pytest.mark.parametrize("at", [-10000, 3000, 10000])
def test_what_is_touched_far_outside(lib: ShaderLibrary, at: int) -> None:
    """Reading is as wrong as writing, whatever becomes of it; afterwards all is as before."""
    x, y = torch.ones(3), torch.zeros(8)
    for given, size in (((0, at), 12), ((at, 0), 32)):
        with pytest.raises(RuntimeError, match=rf"kernel write: read or wrote byte {4 * at} of memory of {size} bytes"):
            lib.write(y, x, *given, threads=1)
    lib.write(y, x, 0, 0, threads=1)
    assert y.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_replays_are_guarded(lib: ShaderLibrary) -> None:
    x, y = torch.full((1,), 0.1), torch.zeros(8)
    with runtime.host_options(guard_memory=False), capture() as graph:
        lib.write(y[:4], x, 4, 0, threads=1)
    y.zero_()
    with pytest.raises(RuntimeError, match="wrote to byte 16"):
        graph.replay()


# Of an output, of a cache that is written in place, and of what is read alone.
OVERRUNS = [
    Fault(
        "glu-one-element-beyond-the-output",
        "glu.metal",
        "store(y + row * args.n + i, g);",
        "store(y + row * args.n + i + 1, g);",
        lambda: test_glu.check(test_glu.inputs(test_glu.Case(), F32)),
    ),
    Fault(
        "rope_kv-one-element-before-the-cache",
        "rope_kv_dense.metal",
        "store(out + (moves ? pair.column : pair.first), a);",
        "store(out - 1 + (moves ? pair.column : pair.first), a);",
        lambda: test_rope_kv.check(test_rope_kv.inputs(test_rope_kv.Case(tokens=16, start=0), F32)),
    ),
    Fault(
        "rope_kv-start-in-memory-unbounded",
        "rope_kv_dense.metal",
        "min(uint(step[0]), args.start)",
        "min(uint(step[0]), args.start + 2)",
        test_rope_kv.test_a_start_beyond_the_cache_stays_inside,
        "heads.h",
    ),
    Fault(
        "rms_norm-writes-its-input",
        "rms_norm.metal",
        "device T* y_row = y + row * args.hidden;",
        "device T* y_row = y + row * args.hidden;\n  if (tid == 0) ((device T*)x)[0] = T(0);",
        lambda: test_rms_norm.check(test_rms_norm.inputs(test_rms_norm.Case(), F32)),
    ),
    Fault(
        "gated_delta-reads-behind-a-prompt",  # and uses nothing of it
        "gated_delta_prompt.metal",
        "from < tokens && int(lane) + 32",
        "int(lane) + 32",
        lambda: test_gated_delta.check(
            test_gated_delta.inputs(test_gated_delta.Case(prompts=True, lengths=(33,)), F32)
        ),
    ),
]


@pytest.mark.tier("kernels", quick=1)
@pytest.mark.parametrize("fault", OVERRUNS, ids=str)
def test_a_seeded_overrun_is_noticed(fault: Fault, tmp_path: Path) -> None:
    fault.check()
    with (
        runtime.use_shaders(fault.seed(tmp_path)),
        pytest.raises(RuntimeError, match=r"kernel \w+.*: (wrote to|read or wrote) byte"),
    ):
        fault.check()
