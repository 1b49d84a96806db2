"""Seeded faults are reported with their .metal line under AddressSanitizer, ThreadSanitizer and in checked builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.msl import host_kit
from torch_foundry.core.sources import compiler

pytestmark = pytest.mark.tier("kernels")

FLAGS = {
    "asan": "-fsanitize=address",
    "tsan": "-fsanitize=thread",
    "checked": "-fsanitize=alignment,float-cast-overflow",
}


def run(sanitizer: str, kernel: str, order: str = "forward") -> str:
    """What a process that runs this kernel under a sanitizer prints."""
    if not host_kit.has_compiler_flag(FLAGS[sanitizer]):
        pytest.skip(f"{compiler()[0]} has no {FLAGS[sanitizer]}")
    command = [sys.executable, "-m", "tests.msl.sanitized", sanitizer, kernel, order]
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0,verify_asan_link_order=0"}
    # The libraries are made by the first process, outside the sanitizer: a compiler under one is slow.
    subprocess.run([sys.executable, "-m", "tests.msl.sanitized", sanitizer], cwd=host_kit.ROOT, check=True)
    if sanitizer != "checked":
        found = subprocess.run([*compiler(), f"-print-file-name=lib{sanitizer}.so"], capture_output=True, text=True)
        environment["LD_PRELOAD"] = found.stdout.strip()
    if sanitizer == "tsan":
        if shutil.which("setarch") is None:
            pytest.skip("ThreadSanitizer needs setarch (util-linux) to fix the address space")
        command = ["setarch", "-R", *command]
    result = subprocess.run(command, cwd=host_kit.ROOT, env=environment, capture_output=True, text=True, timeout=300)
    return result.stdout + result.stderr


def faulty_line(kernel: str) -> int:
    lines = (host_kit.KERNELS / "sanitizers.metal").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"void {kernel}(" in line)
    return next(i for i in range(start, len(lines)) if "// fault" in lines[i]) + 1


@pytest.mark.parametrize("order", host_kit.ORDERS)
@pytest.mark.parametrize("kernel", ["write_past_buffer", "read_past_buffer", "write_past_array", "write_past_argument"])
def test_out_of_bounds(kernel: str, order: str) -> None:
    output = run("asan", kernel, order)
    assert "AddressSanitizer" in output, output
    assert re.search(rf"in {kernel}\b.*sanitizers\.metal:{faulty_line(kernel)}\b", output), output


@pytest.mark.parametrize("order", host_kit.ORDERS)
def test_missing_barrier(order: str) -> None:
    output = run("tsan", "missing_barrier", order)
    assert "data race" in output, output
    assert re.search(rf"missing_barrier .*sanitizers\.metal:{faulty_line('missing_barrier')}\b", output), output


@pytest.mark.parametrize("order", host_kit.ORDERS)
@pytest.mark.parametrize("kernel", ["neighbours", "row_sum"])
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_correct_kernels_are_clean(sanitizer: str, kernel: str, order: str) -> None:
    output = run(sanitizer, kernel, order)
    assert "Sanitizer" not in output, output
    assert ("finished 1.0 0.0" if kernel == "neighbours" else "finished 64.0 64.0") in output


@pytest.mark.parametrize(
    ("kernel", "marked", "message"),
    [
        ("misaligned", "at[i] = float4(1)", "misaligned access: .* 16 bytes"),
        ("zero_divisor", "7 / zero", "integer division by zero"),
        ("zero_in_vector", "v %= uint2", "integer division by zero"),
        ("does_not_fit", "y[0] * 3e9f;", "implicit conversion of a number that does not fit the integer"),
    ],
)
def test_faults_fail_a_checked_launch(kernel: str, marked: str, message: str) -> None:
    lines = (host_kit.KERNELS / "runtime.metal").read_text().splitlines()
    line = next(i for i, text in enumerate(lines) if marked in text) + 1
    output = run("checked", kernel)
    assert re.search(rf"kernel {kernel}: .*runtime\.metal:{line}: {message}", output), output


def test_what_metal_defines_passes_a_checked_launch() -> None:
    assert "finished inf 1.0" in run("checked", "fits")
