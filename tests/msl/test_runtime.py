"""The fiber runtime: ids, threadgroup memory, barriers, lane orders, limits, threads and forks."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.msl import host_kit
from tests.msl.host_kit import Kernel, LaunchError, Runtime

IDS = np.dtype(
    [(name, np.uint32, 4) for name in ("grid_position", "local", "group", "grid", "size", "nominal_size", "groups")]
    + [(name, np.uint32) for name in ("index", "lane", "simdgroup", "simdgroups")]
)


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return host_kit.kernels("runtime.metal")


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield host_kit.runtime()
    host_kit.runtime().configure()


@pytest.fixture(params=host_kit.ORDERS)
def order(request: pytest.FixtureRequest, runtime: Runtime) -> str:
    runtime.configure(order=request.param, seed=7)
    return request.param


@pytest.mark.parametrize(
    ("grid", "group"),
    [
        ((1,), (1,)),
        ((100,), (64,)),
        ((33, 5), (8, 4)),
        ((7, 6, 5), (4, 4, 4)),
        ((5, 1, 9), (1, 3, 32)),
        ((64, 3), (1024, 1)),
    ],
    ids=str,
)
def test_ids_of_ragged_grids(kernels: dict[str, Kernel], order: str, grid: tuple, group: tuple) -> None:
    grid, group = np.array([*grid, 1, 1][:3]), np.array([*group, 1, 1][:3])
    out = np.zeros(int(grid.prod()), IDS)
    kernels["ids"](out, threads=grid, group_size=group)
    groups = -(-grid // group)
    for row, (z, y, x) in zip(out, itertools.product(*map(range, grid[::-1])), strict=True):
        position = np.array([x, y, z])
        group_position = position // group
        local = position - group_position * group
        size = np.minimum(group, grid - group_position * group)
        index = local[0] + size[0] * (local[1] + size[1] * local[2])
        expected = (position, local, group_position, grid, size, group, groups)
        for name, value in zip(IDS.names, expected, strict=False):
            assert (row[name][:3] == value).all(), (name, position)
        assert (row["index"], row["lane"], row["simdgroup"]) == (index, index % 32, index // 32)
        assert row["simdgroups"] == -(-size.prod() // 32)


def test_grid_of_threadgroups(kernels: dict[str, Kernel]) -> None:
    counter = np.zeros(1, np.uint32)
    kernels["count"](counter, groups=(7, 3, 2), group_size=(5, 3, 2))
    assert counter[0] == 7 * 3 * 2 * 30
    kernels["count"](counter, groups=(0, 3), group_size=(32,))
    assert counter[0] == 7 * 3 * 2 * 30


def test_threadgroup_memory(kernels: dict[str, Kernel], order: str) -> None:
    for n in (1, 31, 32, 100, 1024):
        x = np.random.default_rng(0).standard_normal(5 * n, dtype=np.float32)
        y = np.zeros_like(x)
        kernels["reverse"](x, y, groups=(5,), group_size=(n,), threadgroup_memory=[-(-n // 4) * 16])
        assert (y == x.reshape(5, n)[:, ::-1].ravel()).all()


@pytest.mark.parametrize("n", [1, 5, 32, 33, 96, 257, 1024])
def test_many_rounds(kernels: dict[str, Kernel], order: str, n: int) -> None:
    y = np.zeros(3 * n, np.uint32)
    kernels["rounds"](y, groups=(3,), group_size=(n,))
    expected = np.arange(n)
    for turn in range(8):
        expected = np.roll(expected, -1) + turn
    assert (y.reshape(3, n) == expected).all()


def test_threadgroup_memory_is_poisoned_before_each_threadgroup(kernels: dict[str, Kernel]) -> None:
    for _ in range(2):
        y = np.zeros(2, np.uint32)
        kernels["poison"](y, groups=(1,), group_size=(1,), threadgroup_memory=[16])
        assert (y == 0xCBCBCBCB).all()


def test_random_order_is_repeatable(runtime: Runtime) -> None:
    kernel = host_kit.kernels(
        """#include <metal_stdlib>
        using namespace metal;
        kernel void order(device atomic_uint* n [[buffer(0)]], device uint* y [[buffer(1)]],
                          uint i [[thread_index_in_threadgroup]]) {
          y[i] = atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
        }"""
    )["order"]

    def run(order: str, seed: int) -> list[int]:
        runtime.configure(order=order, seed=seed)
        y = np.zeros(64, np.uint32)
        kernel(np.zeros(1, np.uint32), y, groups=(1,), group_size=(64,))
        return y.tolist()

    assert run("forward", 0) == list(range(64))
    assert run("reverse", 0) == list(range(64))[::-1]
    assert run("random", 1) == run("random", 1) != run("random", 2)


def test_divergent_simd_functions_run_with_their_active_lanes(kernels: dict[str, Kernel], order: str) -> None:
    y = np.zeros(32, np.uint32)
    kernels["divergent_sums"](y, groups=(1,), group_size=(32,))
    lane = np.arange(32)
    in_loop = np.cumsum([32, 24, 16, 8])[lane % 4]
    assert (y == in_loop + np.where(lane < 8, 100 * 7, 1000 * 8) + 32_000_000).all()


def test_barrier_divergence_is_an_error(kernels: dict[str, Kernel], order: str) -> None:
    line = _line("early_return", "threadgroup_barrier")
    with pytest.raises(LaunchError, match=rf"kernel early_return: .*runtime\.metal:{line} is reached by 40 of 64"):
        kernels["early_return"](np.zeros(64, np.float32), groups=(1,), group_size=(64,))
    line = _line("two_barriers", "threadgroup_barrier")
    with pytest.raises(LaunchError, match=rf"different barriers, .*runtime\.metal:({line}|{line + 2}) and .*:"):
        kernels["two_barriers"](np.zeros(64, np.float32), groups=(1,), group_size=(64,))


def test_barrier_divergence_can_be_printed_only(
    kernels: dict[str, Kernel], runtime: Runtime, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime.configure(strict=False)
    y = np.zeros(64, np.float32)
    kernels["early_return"](y, groups=(1,), group_size=(64,))
    assert "barrier divergence" in capfd.readouterr().err
    assert y.sum() == 40


def _line(kernel: str, text: str) -> int:
    lines = (host_kit.KERNELS / "runtime.metal").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"void {kernel}(" in line)
    return next(i for i in range(start, len(lines)) if text in lines[i]) + 1


@pytest.mark.parametrize(
    ("kernel", "launch", "message"),
    [
        ("count", {"groups": (1,), "group_size": (32, 33)}, r"32 x 33 x 1 = 1056 threads, Metal allows 1024"),
        ("count", {"groups": (1,), "group_size": (0,)}, r"is empty"),
        ("count", {"groups": (1 << 31,), "group_size": (4,)}, r"do not fit 32 bits"),
        ("count", {"groups": (1,), "threadgroup_memory": [24]}, r"not a multiple of 16"),
        ("count", {"groups": (1,), "threadgroup_memory": [32768, 16]}, r"32784 bytes of threadgroup memory"),
        ("too_much_memory", {"groups": (1,)}, r"32832 bytes of threadgroup memory, Metal allows 32768"),
        ("poison", {"groups": (1,)}, r"threadgroup memory 0 has no length"),
    ],
)
def test_limits(kernels: dict[str, Kernel], kernel: str, launch: dict, message: str) -> None:
    with pytest.raises(LaunchError, match=rf"kernel {kernel}: .*{message}"):
        kernels[kernel](np.zeros(64, np.float32), **launch)


def test_bindings(kernels: dict[str, Kernel]) -> None:
    kernel, x, params = kernels["arguments"], np.arange(4, dtype=np.float32), np.array([1, 2, 3], np.uint32)
    y = np.zeros((4, 4), np.float32)
    kernel(x, None, params, y, threads=(4,))
    assert (y == x[:, None] + 2).all()
    with pytest.raises(LaunchError, match="kernel arguments: buffer 0 is not bound"):
        kernel(None, None, params, y, threads=(4,))
    with pytest.raises(LaunchError, match="kernel arguments: buffer 3 is not bound"):
        kernel(x, None, params, threads=(4,))
    with pytest.raises(LaunchError, match="buffer 2 has 8 bytes, its type needs 12"):
        kernel(x, None, params[:2], y, threads=(4,))
    with pytest.raises(LaunchError, match=r"buffer 3: .* not aligned to the 16 bytes"):
        kernel(x, None, params, np.zeros(20, np.float32)[1:17], threads=(4,))
    with pytest.raises(LaunchError, match=r"Metal allows 0\.\.30"):
        kernel(x, None, params, y, *[None] * 28, threads=(4,))


def test_buffer_index_over_30_does_not_compile() -> None:
    text = host_kit.kernel_text(
        "#include <metal_stdlib>\nkernel void f(device float* x [[buffer(0)]]) { x[0] = 1; }"
    ).replace("msl_::buffer<0>", "msl_::buffer<31>")
    with pytest.raises(RuntimeError, match="Metal allows 0 to 30"):
        host_kit.runtime().load(text)


def test_launches_from_several_threads(kernels: dict[str, Kernel], runtime: Runtime) -> None:
    runtime.configure(threads=4)
    failures: list[str] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(64 * 128, dtype=np.float32)
        for _ in range(20):
            y = np.zeros_like(x)
            kernels["reverse"](x, y, groups=(64,), group_size=(128,), threadgroup_memory=[512])
            if not (y == x.reshape(64, 128)[:, ::-1].ravel()).all():
                failures.append(f"thread {seed}")

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def _count_in_child(kernel: Kernel, queue: multiprocessing.Queue) -> None:
    counter = np.zeros(1, np.uint32)
    kernel(counter, groups=(400,), group_size=(64,))
    queue.put(int(counter[0]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_launch_after_fork(kernels: dict[str, Kernel], runtime: Runtime) -> None:
    runtime.configure(threads=4)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    kernels["count"](np.zeros(1, np.uint32), groups=(400,), group_size=(64,))  # the parent's pool exists
    child = context.Process(target=_count_in_child, args=(kernels["count"], queue))
    child.start()
    assert queue.get(timeout=60) == 400 * 64
    child.join(timeout=60)
    assert child.exitcode == 0


DRIVER = Path(__file__).parent / "driver.cpp"


def _run_driver(cxx: str, flags: list[str], emulator: list[str]) -> str:
    """Builds runtime, kernels and a C++ driver as one static program, and runs its self-test."""
    text = host_kit.runtime_text() + host_kit.kernel_text(host_kit.KERNELS / "runtime.metal") + DRIVER.read_text()
    command = [cxx, "-std=c++17", "-O2", "-w", "-static", "-fno-strict-aliasing", "-fsigned-char", "-pthread", *flags]
    program = host_kit.build(command, text, ".exe")
    return subprocess.run([*emulator, program], capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("option", ["-DMSL_FIBER_UCONTEXT", "-DMSL_CURRENT_BY_CALL"], ids=["ucontext", "as on macOS"])
def test_portable_switch(option: str) -> None:
    assert "3 orders passed" in _run_driver(host_kit.compiler()[0], [option], [])


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("switch", [[], ["-DMSL_FIBER_UCONTEXT"]], ids=["native", "ucontext"])
def test_aarch64(switch: list[str]) -> None:
    tools = host_kit.cross_tools()
    if tools is None:
        pytest.skip("needs a cross compiler and an emulator: apt-get install g++-aarch64-linux-gnu qemu-user-static")
    cxx, qemu = tools
    assert "3 orders passed" in _run_driver(cxx, switch, [qemu])


@pytest.mark.tier("kernels")
def test_clang() -> None:
    names = ["clang++", *(f"clang++-{version}" for version in range(14, 23))]
    compilers = [name for name in names if shutil.which(name)]
    if not compilers:
        pytest.skip("needs a clang: apt-get install clang")
    flags = ["-march=x86-64-v3"] if os.uname().machine == "x86_64" else []
    for cxx in compilers:
        assert "3 orders passed" in _run_driver(cxx, flags, []), cxx
