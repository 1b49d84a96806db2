"""MTLBinaryArchive: pipelines kept from one process to the next, on the mock of Metal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = "kernel void NAME(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = 3 * i; }"
PROGRAM = f"""
import sys, torch, torch_foundry._ext
mock = torch.ops.mock_metal
setting, value, *names = sys.argv[1:]
if setting:
    mock.set(setting, int(value))
for name in names:
    y = torch.zeros(4, device="mps")
    kernel = getattr(torch_foundry.compile_shader({SOURCE!r}.replace("NAME", name)), name)
    kernel(y)
    with torch_foundry.record() as tape:
        kernel(y)
    tape.replay()
    assert y.tolist() == [0, 3, 6, 9]
print(*(event for event in mock.trace() if event.startswith("pipeline")), sep=", ")
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(shared: Path) -> Path:
    """A cache without archives. What the mock's GPU compiles for itself stays there."""
    shutil.rmtree(shared / "metal", ignore_errors=True)
    return shared


def run(cache: Path, *names: str, on: str = "1", icb: str = "0", setting: str = "", value: int = 0) -> tuple[str, str]:
    """Pipelines that a process made for kernels of these names, and the warnings that it gave."""
    own = {"TORCH_FOUNDRY_METAL_ARCHIVE": on, "TORCH_FOUNDRY_ICB": icb, "TORCH_FOUNDRY_CACHE": str(cache)}
    command = [sys.executable, "-c", PROGRAM, setting, str(value), *names]
    result = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), "\n".join(line for line in result.stderr.splitlines() if "Warning" in line)


def archive(cache: Path) -> Path:
    (file,) = (cache / "metal").iterdir()
    assert file.name.endswith("-apple9.archive")
    return file


def test_the_next_process_finds_what_the_last_one_made(cache: Path) -> None:
    assert run(cache, "a") == ("pipeline a", "")
    assert run(cache, "a", "b") == ("pipeline from archive a, pipeline b", "")
    before = archive(cache).read_bytes()
    assert run(cache, "b", "a") == ("pipeline from archive b, pipeline from archive a", "")
    assert archive(cache).read_bytes() == before


def test_pipelines_for_indirect_commands_are_others(cache: Path) -> None:
    assert run(cache, "a", icb="1") == ("pipeline a, pipeline a", "")
    assert run(cache, "a", icb="1") == ("pipeline from archive a, pipeline from archive a", "")


def test_off_by_default(cache: Path) -> None:
    assert run(cache, "a", on="") == ("pipeline a", "")
    assert not (cache / "metal").exists()


@pytest.mark.parametrize("content", [b"", b"MTLArchive of another system\n"], ids=["empty", "foreign"])
def test_a_file_that_is_none_is_left_out_and_written_anew(content: bytes, cache: Path) -> None:
    run(cache, "a")
    archive(cache).write_bytes(content)
    made, warning = run(cache, "a", "b")
    assert made == "pipeline a, pipeline b"
    assert warning.count("Warning") == 1
    assert f"archive of compiled kernels {archive(cache)} is not used (Invalid file" in warning
    assert run(cache, "a", "b") == ("pipeline from archive a, pipeline from archive b", "")


def test_a_system_that_makes_none(cache: Path) -> None:
    made, warning = run(cache, "a", "b", setting="archives", value=0)
    assert made == "pipeline a, pipeline b"
    assert (
        warning.count("Warning") == 1 and "can't be made (Binary archives are not supported on this device)" in warning
    )
    assert not list((cache / "metal").iterdir())


def test_a_file_that_cannot_be_written(cache: Path) -> None:
    run(cache, "a")
    file = archive(cache)
    file.unlink()
    file.mkdir()  # so that nothing can be renamed to it
    made, warnings = run(cache, "a")
    not_read, not_written = warnings.splitlines()
    assert made == "pipeline a" and "is not used" in not_read
    assert "was not written (it can't be renamed)" in not_written
    assert list((cache / "metal").iterdir()) == [file]


def test_a_setting_that_is_none(cache: Path) -> None:
    own = {"TORCH_FOUNDRY_METAL_ARCHIVE": "yes"}
    command = [sys.executable, "-c", "import torch_foundry._ext"]
    result = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    assert "TORCH_FOUNDRY_METAL_ARCHIVE='yes': expected one of '0', '1'" in result.stderr
