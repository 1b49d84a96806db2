"""The host executor compiles and links for macOS, and `make check-macos` would say so if it did not: the mistakes that
it once had, and some more, are reported. Needs what that command installs and downloads, as test_macos_check.py."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent / "macos"))
import host  # noqa: E402
import llvm  # noqa: E402
import wheels  # noqa: E402

SHADER = """#include <metal_stdlib>
kernel void total(device float* y, uint i [[thread_position_in_grid]]) { y[i] = metal::exp(metal::simd_sum(y[i])); }
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the host executor compiles, with one shader."""
    reason = llvm.unavailable() or ("" if wheels.system_there() else "macOS's C library has not been downloaded")
    if reason:
        pytest.skip(f"run `make check-macos` first: {reason}")
    for folder in ("csrc/host", "csrc/prelude"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "shaders").mkdir()
    (tmp_path / "shaders" / "total.metal").write_text(SHADER)
    return tmp_path


def replace(path: Path, right: str, wrong: str) -> None:
    assert path.read_text().count(right) >= 1
    path.write_text(path.read_text().replace(right, wrong))


def test_what_is_right_passes(tree: Path) -> None:
    assert host.check(tree / "out", tree) == 1


def test_a_call_that_only_linux_has(tree: Path) -> None:
    replace(tree / "csrc/host/runtime.cpp", "#if defined(__linux__)", "#if 1")
    with pytest.raises(llvm.Failure, match=r"runtime: (.|\n)*(sched_getaffinity|cpu_set_t)"):
        host.check(tree / "out", tree)


def test_a_header_with_a_name_of_the_c_library(tree: Path) -> None:
    (tree / "csrc/prelude/float_math.h").rename(tree / "csrc/prelude/math.h")
    for path in ("csrc/host/prelude/metal_prelude.h", "csrc/prelude/integer.h"):
        replace(tree / path, '"float_math.h"', '"math.h"')
    with pytest.raises(llvm.Failure, match=r"didn't find libc\+\+'s <math.h> header"):
        host.check(tree / "out", tree)


def test_a_thread_local_of_another_library(tree: Path) -> None:
    replace(tree / "csrc/host/runtime_state.h", "#if defined(__APPLE__)", "#if 0")
    with pytest.raises(llvm.Failure, match=r"total: (.|\n)*thread-local"):
        host.check(tree / "out", tree)


def test_a_function_that_the_runtime_does_not_export(tree: Path) -> None:
    replace(tree / "csrc/host/runtime_state.h", "MSL_EXPORT msl_::Thread* msl_rt_next", "msl_::Thread* msl_rt_next")
    with pytest.raises(llvm.Failure, match=r"total\.metal: neither macOS nor the runtime has\n_msl_rt_next"):
        host.check(tree / "out", tree)


def test_a_function_that_macos_lacks(tree: Path) -> None:
    text = 'extern "C" int no_such_function();\nuint32_t msl_rt_abi() { return MSL_ABI + no_such_function(); }'
    replace(tree / "csrc/host/runtime.cpp", "uint32_t msl_rt_abi() { return MSL_ABI; }", text)
    with pytest.raises(llvm.Failure, match=r"macOS has not what the runtime uses:\n_?no_such_function"):
        host.check(tree / "out", tree)
