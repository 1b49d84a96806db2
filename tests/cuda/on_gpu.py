"""Tests that need an NVIDIA GPU; `make test-gpu` runs them. CI has none and does not collect this file."""

from __future__ import annotations

import copy
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_foundry
from tests.engine import test_graphs
from tests.exact import assert_as_exact
from tests.hf import tiny_cases, tiny_models
from tests.msl import test_stdlib
from torch_foundry import ops, quant
from torch_foundry.core import runtime, tuning
from torch_foundry.core.graph import capture
from torch_foundry.engine import Engine
from torch_foundry.hf.api import patch, report
from torch_foundry.testing.tolerance import assert_norm

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "msl" / "kernels"
torch.backends.cuda.matmul.allow_tf32 = False


# --------------------------------------------------------------------------------------------------- standard library


@pytest.fixture(scope="module")
def stdlib() -> Any:
    libraries: dict[str, Any] = {}

    def kernel(file: str, name: str) -> Any:
        if file not in libraries:
            libraries[file] = torch_foundry.compile_shader(KERNELS / file)
        return getattr(libraries[file], name)

    return kernel


def self_check(stdlib: Any, file: str, kernel: str, *buffers: Tensor, groups: int = 1, size: int = 1) -> None:
    failed = torch.zeros(1, dtype=torch.int32, device="cuda")
    stdlib(file, kernel)(failed, *buffers, threadgroups=groups, group_size=size)
    line = int(failed)
    assert not line, f"{file}:{line}: {(KERNELS / file).read_text().splitlines()[line - 1].strip()}"


@pytest.mark.parametrize("kernel", test_stdlib.TYPES)
def test_types(stdlib: Any, kernel: str) -> None:
    self_check(stdlib, "stdlib_types.metal", kernel)


@pytest.mark.parametrize("kernel", test_stdlib.MATH)
def test_functions(stdlib: Any, kernel: str) -> None:
    self_check(stdlib, "stdlib_math.metal", kernel)


@pytest.mark.parametrize("size", [1, 2, 7, 31, 32])
def test_reductions(stdlib: Any, size: int) -> None:
    self_check(stdlib, "stdlib_simd.metal", "reductions", size=size)


@pytest.mark.parametrize("kernel", ["shuffles", "quads"])
def test_lanes(stdlib: Any, kernel: str) -> None:
    self_check(stdlib, "stdlib_simd.metal", kernel, size=32)


def test_simdgroup_matrices(stdlib: Any) -> None:
    """In the permuted numbering of lanes; the layout is checked element by element."""
    self_check(stdlib, "stdlib_simd.metal", "simdgroup_matrices", torch.rand(400, device="cuda"), size=32)


def test_atomics(stdlib: Any) -> None:
    ints = torch.zeros(5, dtype=torch.int32, device="cuda")
    floats, longs = torch.zeros(1, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    self_check(stdlib, "stdlib_simd.metal", "atomics", ints, floats, longs, groups=50, size=64)
    n = 50 * 64
    assert ints.tolist() == [2 * n, n - 1, 1 - n, 0, n]
    assert float(floats) == -n / 2 and int(longs) == (n - 1) << 33


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_math_library(dtype: torch.dtype) -> None:
    """Within four units in the last place of the exact value: CUDA's library is a little wider than the host's."""
    source = "\n".join(
        f"""template <typename T> kernel void {name}_(device T* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
              x[i] = {name}(x[i]);
            }}
            template [[host_name("{name}_float32")]] kernel decltype({name}_<float>) {name}_<float>;
            template [[host_name("{name}_float16")]] kernel decltype({name}_<half>) {name}_<half>;"""
        for name in test_stdlib.UNARY
    )
    library = torch_foundry.compile_shader(f"#include <metal_stdlib>\nusing namespace metal;\n{source}")
    wrong = {}
    for name, (reference, low, high) in test_stdlib.UNARY.items():
        if dtype == torch.float16:
            low, high = (-4, 4) if name == "exp10" else (max(low, -9.0), min(high, 9.0))
        x = torch.from_numpy(np.random.default_rng(1).uniform(low, high, 1000)).to(dtype)
        y = x.cuda()
        getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")(y, threads=x.numel())
        expected = reference(x.double().numpy())
        finfo = torch.finfo(dtype)
        ulp = finfo.eps * np.maximum(np.abs(expected), float(finfo.tiny))
        error = np.abs(y.cpu().double().numpy() - expected) / (4 * ulp + 2.0**-40)
        if not (error <= 1).all():
            wrong[name] = float(error.max())
    assert not wrong


# ----------------------------------------------------------------------------------------------- arguments and limits

PLAIN = """
#include <metal_stdlib>
using namespace metal;
struct Args { uint n; float factor; };
kernel void scaled(device float* y [[buffer(0)]], constant Args& a [[buffer(1)]], constant float* table [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) { y[i] += a.factor * table[i % a.n]; }
kernel void ragged(device int* y [[buffer(0)]], uint2 p [[thread_position_in_grid]], uint2 grid [[threads_per_grid]],
                   uint2 size [[threads_per_threadgroup]], uint2 at [[threadgroup_position_in_grid]],
                   uint index [[thread_index_in_threadgroup]], uint2 in [[thread_position_in_threadgroup]]) {
  y[p.y * grid.x + p.x] = int(size.x + 100 * size.y + 10000 * (at.x + 10 * at.y))
                        + (index == in.y * size.x + in.x ? 0 : 1 << 30);
}
kernel void reversed(device float* y [[buffer(0)]], threadgroup float* a [[threadgroup(0)]],
                     threadgroup float* b [[threadgroup(1)]], uint i [[thread_position_in_threadgroup]],
                     uint n [[threads_per_threadgroup]]) {
  a[i] = y[i];
  b[i] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = a[n - 1 - i] + b[n - 1 - i];
}
kernel void early(device float* y [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {
  if (i >= 40) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = 1;
}
"""


@pytest.fixture(scope="module")
def plain() -> Any:
    return torch_foundry.compile_shader(PLAIN)


def test_arguments_by_value_and_from_memory(plain: Any) -> None:
    """Every way to give `constant T&` and `constant T*`: bytes or a tensor."""
    args = np.array([3], np.uint32).tobytes() + np.array([2.0], np.float32).tobytes()
    table = torch.tensor([1.0, 2.0, 3.0])
    in_memory = torch.frombuffer(bytearray(args), dtype=torch.uint8).cuda()
    expected = 2 * table[torch.arange(10) % 3]
    for given in (args, in_memory):
        for values in (table.cuda(), table.numpy().tobytes()):
            y = torch.zeros(10, device="cuda")
            plain.scaled(y, given, values)
            assert torch.equal(y.cpu(), expected)


def test_ragged_edges(plain: Any) -> None:
    width, height, a, b = 37, 11, 16, 4
    y = torch.zeros(height, width, dtype=torch.int32, device="cuda")
    plain.ragged(y, threads=(width, height), group_size=(a, b))
    rows, columns = np.mgrid[:height, :width]
    size_x, size_y = np.minimum(a, width - columns // a * a), np.minimum(b, height - rows // b * b)
    expected = size_x + 100 * size_y + 10000 * (columns // a + 10 * (rows // b))
    assert (y.cpu().numpy() == expected).all()


def test_threadgroup_memory(plain: Any) -> None:
    y = torch.arange(256.0, device="cuda")
    plain.reversed(y, threadgroups=1, group_size=256, threadgroup_memory=[1024, 1024])
    assert torch.equal(y.cpu(), torch.arange(255.0, -1, -1) + 1)


def test_metals_limits_are_errors(plain: Any) -> None:
    y = torch.zeros(4, device="cuda")
    with pytest.raises(RuntimeError, match="Metal allows 1024"):
        plain.early(y, threadgroups=1, group_size=1025)
    with pytest.raises(RuntimeError, match="Metal allows 32768"):
        plain.reversed(y, threadgroups=1, group_size=4, threadgroup_memory=[16384, 16400])
    with pytest.raises(RuntimeError, match="65535"):
        plain.early(y, threadgroups=(1, 70000), group_size=1)
    with pytest.raises(RuntimeError, match=r"does not compile for CUDA.*\n.*\(3\): error"):
        torch_foundry.compile_shader(
            "#include <metal_stdlib>\nusing namespace metal;\nkernel void f(device float* y) { y[0] = q; }"
        ).f(y)


def test_barrier_divergence_is_reported_by_checked_builds() -> None:
    script = f"import torch, torch_foundry\nlib = torch_foundry.compile_shader({PLAIN!r})\n"
    script += "lib.early(torch.zeros(64, device='cuda'), threadgroups=1, group_size=64)\ntorch.cuda.synchronize()"
    environment = {**os.environ, "TORCH_FOUNDRY_CHECKED": "1"}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    line = 1 + max(i for i, text in enumerate(PLAIN.splitlines()) if "threadgroup_barrier" in text)
    expected = f":{line}: barrier divergence in threadgroup 0, 0, 0: 40 of 64 threads arrive"
    assert expected in result.stdout, result


# ------------------------------------------------------------------------------------------------- streams and graphs


def block(x: Tensor, weight: Tensor, norm: Tensor) -> Tensor:
    h = ops.rms_norm(x, norm, 1e-6)
    return ops.linear(ops.linear(h, weight, activation="silu"), weight)


@pytest.fixture
def given() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 64, device="cuda"), torch.randn(64, 64, device="cuda") / 8, torch.randn(64, device="cuda")


def test_a_captured_graph_is_a_cuda_graph(given: Any) -> None:
    """Equal to the code on new inputs, on any stream, many times over."""
    x = given[0]
    block(*given)
    with torch_foundry.capture() as graph:
        y = block(*given)
    assert len(graph) == 3
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, block(*given))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
        for _ in range(50):
            graph.replay()
    side.synchronize()
    assert torch.equal(y, block(*given))


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k"])
def test_more_rows_are_copied_ahead(name: str) -> None:
    """As the table of a Hopper has it: variants with more threadgroup memory than other executors have."""
    for m, n, k in ((17, 1000, 4096), (32, 4096, 14336), (64, 6144, 4096), (33, 14336, 2048), (61, 28672, 512)):
        weight = quant.quantize(torch.randn(n, k) * k**-0.5, name).cuda()
        x, dense = torch.randn(m, k).half().cuda(), quant.dequantize(weight, name).double()
        with capture() as graph:
            got = ops.linear(x, weight, format=name)
        graph.replay()
        if torch.cuda.get_device_capability()[0] == 9:
            assert [launch.kernel.split("<")[0] for launch in graph.launches()] == ["linear_matrix_ahead"]
        assert_norm(got, x.double() @ dense.T, x @ dense.half().T)


EXPERTS = [("q4_0", 512, 2048), ("q4_0", 2816, 704), ("q8_0", 2048, 512), ("q4_k", 768, 2048), ("mxfp4", 2880, 2880)]


@pytest.mark.parametrize("name, n, k", EXPERTS)
def test_experts_of_prompts_go_by_matrices(name: str, n: int, k: int) -> None:
    """As the table of a Hopper has it; a tile is full, has one pair, or none."""
    weight = quant.quantize(torch.randn(8 * n, k) * k**-0.5, name).view(8, n, -1).cuda()
    dense = quant.dequantize(weight.flatten(0, 1), name).view(8, n, k)
    x, ids = torch.randn(100, k).half().cuda(), torch.randint(0, 7, (100, 2), dtype=torch.int32).cuda()
    ids[0, 0] = 7
    order, tiles = ops.moe_group(ids, 8)
    with capture() as graph:
        got = ops.moe_linear(x, order, tiles, weight, format=name)
    graph.replay()
    if torch.cuda.get_device_capability()[0] == 9:
        assert [launch.kernel.split("<")[0] for launch in graph.launches()] == ["moe_matrix"]
    rows, own = x.repeat_interleave(2, 0), ids.flatten()
    for expert in range(8):
        of_it, matrix = rows[own == expert], dense[expert].double()
        assert_norm(got[own == expert], of_it.double() @ matrix.T, of_it @ matrix.half().T)


def test_launches_and_replays_are_captured(given: Any) -> None:
    x = given[0]
    block(*given)
    with torch_foundry.capture() as graph:
        y = block(*given)
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        z = block(*given)
        graph.replay()
    for seed in range(2):
        torch.manual_seed(seed)
        x.copy_(torch.randn_like(x))
        outer.replay()
        expected = block(*given)
        assert torch.equal(z, expected) and torch.equal(y, expected)


def test_a_kernel_that_is_not_loaded_cannot_be_captured() -> None:
    script = """
import torch
from torch_foundry import ops, quant
x = torch.randn(3, 64, device="cuda")
norm = torch.ones(64, device="cuda")
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        ops.rms_norm(x, norm, 1e-6)
except RuntimeError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "run it once before the capture" in result.stdout, result


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices(given: Any) -> None:
    expected = block(*given)
    other = block(*(tensor.to("cuda:1") for tensor in given))
    assert other.device.index == 1 and torch.equal(other.cpu(), expected.cpu())
    with pytest.raises(RuntimeError, match="cuda"):
        ops.rms_norm(given[0], given[2].to("cuda:1"), 1e-6)


# ------------------------------------------------------------------------------------------------------------ numbers


MODULES = ["attention", "embedding", "glu", "linear", "rms_norm", "rope_kv"]


def all_cases() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "tests" / "ops"))
    for name in MODULES:
        module = importlib.import_module(f"test_{name}")
        for case, dtype in module.CASES:
            yield pytest.param(module, case, dtype, id=f"{name}-{case}-{dtype}")


@pytest.fixture(scope="module")
def same_variants() -> Iterator[None]:
    """The host runs the variants that CUDA does: its sums are in the same order."""
    with importlib.import_module("kit").choices_of(tuning.family("cuda")):
        yield


@pytest.mark.parametrize("module, case, dtype", list(all_cases()))
@pytest.mark.usefixtures("same_variants")
def test_host_and_cuda_agree(module: Any, case: Any, dtype: torch.dtype) -> None:
    """No further apart than a few roundings of the result's type, by norm: exp amplifies those of its argument."""
    host = module.inputs(case, dtype)
    device = {k: copy.deepcopy(v).cuda() if isinstance(v, Tensor) else v for k, v in host.items()}
    a, b = module.run(**host), module.run(**device)
    for x, y in zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]:
        if x is None:
            continue
        y = y.cpu()
        if not x.is_floating_point():
            assert torch.equal(x, y)
            continue
        assert torch.equal(torch.isnan(x), torch.isnan(y))
        unit = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[x.dtype]
        both = torch.isfinite(x) & torch.isfinite(y)
        x, y = x.double()[both], y.double()[both]
        assert float((x - y).norm() / x.norm().clamp(min=1e-30)) <= unit


@pytest.mark.parametrize("k", [896, 4096])
def test_float32_matrix_products_are_as_exact_as_the_hosts(k: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, k), torch.randn(96, k)
    exact = x.double() @ w.double().T
    host = (ops.linear(x, w).double() - exact).norm() / exact.norm()
    cuda = (ops.linear(x.cuda(), w.cuda()).cpu().double() - exact).norm() / exact.norm()
    plain = (torch.nn.functional.linear(x.cuda(), w.cuda()).cpu().double() - exact).norm() / exact.norm()
    print(f"\nk {k}: relative error host {host:.2e}, CUDA {cuda:.2e}, torch on CUDA {plain:.2e}")
    assert cuda <= 1.2 * host


# ------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("family", tiny_cases.FAMILIES)
def test_patched_models_give_stocks_tokens(family: str) -> None:
    stock = copy.deepcopy(tiny_models.shared(family)).cuda()
    ours = patch(copy.deepcopy(stock))
    inputs = {name: value.cuda() for name, value in tiny_models.padded([9, 20, 14]).items()}
    options = {"max_new_tokens": 40, "do_sample": False}
    assert torch.equal(ours.generate(**inputs, **options), stock.generate(**inputs, **options))
    runtime.reset_counters()
    prompt = tiny_models.ids(2, 40).cuda()
    with torch.no_grad():
        assert_as_exact(lambda model: model(prompt).logits, ours, stock)
    assert runtime.counters().launches > 8


@pytest.mark.parametrize("family, requests", [*itertools.product(tiny_cases.FAMILIES, [5, 20]), ("llama", 80)])
def test_an_engines_steps_are_what_the_ops_compute(family: str, requests: int) -> None:
    """One graph of our own, or a graph of torch's with its products."""
    model = patch(tiny_models.build(family, dtype=torch.float16).cuda())
    engine = Engine(model, requests=requests, budget=max(60, 2 * requests))
    steps, prompted = test_graphs.compared(engine, requests + 3)  # the last of which begin beside those that generate
    assert steps > 8 and prompted
    assert report(model).captured and not report(model).eager


@pytest.mark.usefixtures("same_variants")
@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_quantized_models_give_the_hosts_tokens(quantize: str) -> None:
    stock = tiny_models.shared("llama")
    host = patch(copy.deepcopy(stock), quantize=quantize)
    device = patch(copy.deepcopy(stock).cuda(), quantize=quantize)
    prompt = tiny_models.ids(1, 12)
    options = {"max_new_tokens": 24, "do_sample": False}
    assert device.generate(prompt.cuda(), **options).tolist() == host.generate(prompt, **options).tolist()
