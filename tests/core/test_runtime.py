"""Counters, scopes and the host executor's switches."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import torch_foundry
from torch_foundry import compile_shader
from torch_foundry.core import runtime

FILL = (
    "#include <metal_stdlib>\n"
    "kernel void fill(device float* y, constant float& v, uint i [[thread_position_in_grid]]) { y[i] = v; }\n"
    "kernel void last(device uint* y, uint i [[thread_position_in_grid]]) { y[0] = i; }\n"
)


@pytest.fixture(scope="module")
def lib() -> torch_foundry.core.shader.ShaderLibrary:
    return torch_foundry.compile_shader(FILL)


def test_launches_and_bytes_are_counted_in_total_and_per_scope(lib) -> None:
    y = torch.zeros(100)
    runtime.reset_counters()
    lib.fill(y, 1.0)
    with runtime.scope("layers.0"):
        lib.fill(y, 1.0)
        with runtime.scope("mlp"):
            lib.fill(y, 1.0)
    total, scopes = runtime.counters(), runtime.scope_counters()
    assert (total.launches, total.bytes) == (3, 1200)
    assert total.host_ns > 0
    assert {name: c.launches for name, c in scopes.items()} == {"layers.0": 2, "layers.0.mlp": 1}
    runtime.reset_counters()
    assert runtime.counters().launches == 0 and not runtime.scope_counters()


def test_a_scope_is_left_when_its_block_raises(lib) -> None:
    runtime.reset_counters()
    with pytest.raises(KeyError), runtime.scope("broken"):
        raise KeyError
    lib.fill(torch.zeros(1), 0.0)
    assert "broken" not in runtime.scope_counters()


def test_a_scope_that_was_never_opened() -> None:
    with pytest.raises(RuntimeError, match="scope closed that was never opened"):
        torch.ops.torch_foundry._pop_scope()


def test_no_op_names_a_device_but_those_of_files() -> None:
    """So that an executor for one more device needs no op edited."""
    ops = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("torch_foundry::")]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    named = {name for name in ops for device in ("CPU", "CUDA", "MPS", "PrivateUse1") if has(name, device)}
    assert has("torch_foundry::linear", "CompositeExplicitAutograd")
    assert named == {"torch_foundry::pack_weight", "torch_foundry::unpack_weight"}  # no kernels: they read files


def test_executor_names() -> None:
    assert runtime.executor("cpu") == "host"
    with pytest.raises(RuntimeError, match="no executor for device 'meta'"):
        runtime.executor("meta")


def test_lane_orders_run_the_lanes_in_that_order(lib) -> None:
    seen = {}
    for order in runtime.LANE_ORDERS:
        y = torch.zeros(1, dtype=torch.int32)
        with runtime.host_options(lane_order=order, threads=1):
            lib.last(y, threads=32, group_size=32)
        seen[order] = y.item()
    assert (seen["forward"], seen["reverse"]) == (31, 0)


@pytest.mark.parametrize("options", [{"lane_order": "sideways"}, {"threads": -1}])
def test_bad_host_options_raise(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))), runtime.host_options(**options):
        pass


def test_options_nest_and_are_restored(lib) -> None:
    y = torch.zeros(1, dtype=torch.int32)
    with runtime.host_options(lane_order="reverse", threads=1):
        with runtime.host_options(lane_order="forward"):
            pass
        lib.last(y, threads=32, group_size=32)
    assert y.item() == 0


def test_use_shaders_needs_shaders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \.metal files"), runtime.use_shaders(tmp_path):
        pass


def test_many_threads_may_launch_at_once(lib) -> None:
    tensors = [torch.zeros(5000) for _ in range(6)]
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for _ in range(50):
                lib.fill(tensors[index], float(index))
                assert bool((tensors[index] == index).all())
                tensors[index].zero_()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_the_commit_policy_says_when_it_has_no_effect() -> None:
    if runtime.has_executor("mps"):
        pytest.skip("this build runs on mps")
    with pytest.warns(UserWarning, match=r"runtime.commit_every has no effect: this build .* has no Metal executor"):
        runtime.commit_every(10)
    with pytest.warns(UserWarning, match="runtime.commit has no effect"):
        runtime.commit()
    with pytest.raises(ValueError, match=r"launches=-1: expected 0 \(when torch does\) or a number of launches"):
        runtime.commit_every(-1)


SUBNORMAL = """
kernel void products(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                     device const half* h [[buffer(2)]], device const bfloat* b [[buffer(3)]]) {
  y[0] = x[0] * 2.0f;
  y[1] = x[1] * 0.25f;
  y[2] = float(h[0]) * 2.0f;
  y[3] = float(b[0]) * 4.0f;
}
"""


def test_subnormals_as_on_apples_gpus() -> None:
    """Those of float32 and bfloat16 are zero on the way in and out; float16 keeps its own."""
    small = 2.0**-130
    x, h = torch.tensor([small, 2.0**-126]), torch.tensor([2.0**-24], dtype=torch.float16)
    b = torch.tensor([2.0**-130], dtype=torch.bfloat16)
    assert b.item() != 0
    kernel, y = compile_shader(SUBNORMAL).products, torch.zeros(4)
    kept = [2 * small, 2.0**-128, 2.0**-23, 4 * small]
    for flush, expected in ((None, kept), (True, [0.0, 0.0, 2.0**-23, 0.0]), (False, kept)):
        with runtime.host_options(flush_subnormals=flush):
            kernel(x, y, h, b, threads=1)
        assert y.tolist() == expected
    assert (x * 2)[0] == 2 * small, "the calling thread's own arithmetic is as it was"
