"""MTLBinaryArchive: pipelines kept from one process to the next, on the mock of Metal."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

import torch_foundry
from torch_foundry import compile_shader

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry
SOURCE = "kernel void NAME(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = 3 * i; }\n"
Run = Callable[..., tuple[str, str]]
numbers = count()


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """What a process does that runs kernels of these names and ends: its pipelines and its warnings."""

    def process(*names: str) -> tuple[str, str]:
        mock.trace()
        capfd.readouterr()
        foundry._metal_archive(str(tmp_path / "digest-"))
        for name in names:
            # a comment of its own makes it another text for the executor, not for the archive
            kernel = getattr(compile_shader(SOURCE.replace("NAME", name) + f"// {next(numbers)}\n"), name)
            y = torch.zeros(4, device="mps")
            with torch_foundry.capture() as graph:
                kernel(y)
            graph.replay()
            assert y.tolist() == [0, 3, 6, 9]
        foundry._metal_save_archive()
        made = ", ".join(event for event in mock.trace() if event.startswith("pipeline"))
        return made, "\n".join(line for line in capfd.readouterr().err.splitlines() if "Warning" in line)

    yield process
    foundry._metal_archive("")


def archive(place: Path) -> Path:
    return place / "digest-apple9.archive"


def write(place: Path, content: bytes) -> None:
    """An archive as it is kept: with its sum."""
    archive(place).write_bytes(content)
    Path(f"{archive(place)}.sum").write_text(f"{hashlib.sha1(content).hexdigest()} {len(content)}\n")


def test_the_next_process_finds_what_the_last_one_made(run: Run, tmp_path: Path) -> None:
    assert run("a") == ("pipeline a", "")
    assert run("a", "b") == ("pipeline from archive a, pipeline b", "")
    before = archive(tmp_path).read_bytes()
    assert run("b", "a") == ("pipeline from archive b, pipeline from archive a", "")
    assert archive(tmp_path).read_bytes() == before


def test_pipelines_for_indirect_commands_are_others(run: Run) -> None:
    foundry._metal_replays("indirect")
    try:
        assert run("a") == ("pipeline a, pipeline a", "")
        assert run("a") == ("pipeline from archive a, pipeline from archive a", "")
    finally:
        foundry._metal_replays("serial")


@pytest.mark.parametrize("content", [b"\n", b"MTLArchive of another system\n"], ids=["empty", "foreign"])
def test_a_file_that_is_none_is_left_out_and_written_anew(content: bytes, run: Run, tmp_path: Path) -> None:
    write(tmp_path, content)
    made, warning = run("a", "b")
    assert made == "pipeline a, pipeline b"
    assert warning.count("Warning") == 1
    assert f"archive of compiled kernels {archive(tmp_path)} is not used (Invalid file" in warning
    assert run("a", "b") == ("pipeline from archive a, pipeline from archive b", "")


@pytest.mark.parametrize("change", [lambda old: old[:-1], lambda old: old[:-1] + b"?"], ids=["cut", "changed"])
def test_a_file_that_is_not_as_it_was_written(change: Callable[[bytes], bytes], run: Run, tmp_path: Path) -> None:
    run("a")
    archive(tmp_path).write_bytes(change(archive(tmp_path).read_bytes()))
    made, warning = run("a")
    assert made == "pipeline a" and "is not used (it is not as it was written)" in warning
    assert run("a") == ("pipeline from archive a", "")


def test_a_system_that_makes_none(run: Run, tmp_path: Path) -> None:
    before = mock.set("archives", 0)
    try:
        made, warning = run("a", "b")
    finally:
        mock.set("archives", before)
    assert made == "pipeline a, pipeline b"
    assert (
        warning.count("Warning") == 1 and "can't be made (Binary archives are not supported on this device)" in warning
    )
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    archive(tmp_path).mkdir()  # so that nothing can be renamed to it
    made, warnings = run("a")
    not_read, not_written = warnings.splitlines()
    assert made == "pipeline a" and "is not used" in not_read
    assert "was not written (torch_foundry: cannot write" in not_written and "Is a directory" in not_written
    assert list(tmp_path.iterdir()) == [archive(tmp_path)]


PROGRAM = f"""
import torch, torch_foundry
torch_foundry.compile_shader({SOURCE!r}.replace("NAME", "a")).a(torch.zeros(4, device="mps"))
print(*(event for event in torch.ops.mock_metal.trace() if event.startswith("pipeline")))
"""


def test_the_environment_asks_for_it(tmp_path: Path) -> None:
    """On by default; written when the process ends."""

    def process(value: str) -> tuple[str, str]:
        own = {"TORCH_FOUNDRY_METAL_ARCHIVE": value, "TORCH_FOUNDRY_CACHE": str(tmp_path)}
        command = [sys.executable, "-c", "import torch_foundry.core.extension" + PROGRAM]
        result = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
        return result.stdout.strip(), result.stderr

    assert process("0")[0] == "pipeline a" and not (tmp_path / "metal").exists()
    assert [process("")[0] for _ in range(2)] == ["pipeline a", "pipeline from archive a"]
    file, of_it = sorted((tmp_path / "metal").iterdir())
    assert file.name.endswith("-apple9.archive") and of_it.name == f"{file.name}.sum"
    assert "TORCH_FOUNDRY_METAL_ARCHIVE='yes': expected one of '1', '0'" in process("yes")[1]
