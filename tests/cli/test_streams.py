"""The command where its streams are not those of a terminal: closed, full, of another encoding, read by nobody."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from torch_foundry.cli import main

COMMAND = [sys.executable, "-m", "torch_foundry"]


def run(*args: str, shell: str) -> subprocess.CompletedProcess[str]:
    """The command's result, by a shell that redirects "$@"."""
    return subprocess.run(["bash", "-c", shell, "bash", *COMMAND, *args], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("args", [[], ["chat", "--json"]])
def test_nobody_reads(args: list[str]) -> None:
    found = run(*args, shell='echo hi | "$@" | true; exit ${PIPESTATUS[1]}')
    assert (found.returncode, found.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("args", [[], ["completion", "bash"]])
def test_a_full_disk(args: list[str]) -> None:
    found = run(*args, shell='"$@" > /dev/full')
    assert (found.returncode, found.stderr) == (2, "torch-foundry: [Errno 28] No space left on device\n")


def test_closed_streams() -> None:
    found = run("chat", shell='"$@" <&-')
    assert found.returncode == 2 and "nothing came through the pipe" in found.stderr
    assert "Traceback" not in found.stderr
    assert run("completion", "bash", shell='"$@" >&-').returncode == 0


def test_an_encoding_that_lacks_letters(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert main(["convert", str(tiny_model), str(tmp_path / "ü.gguf")]) == 0
    assert b"\\xfc.gguf: " in written.getvalue()


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_input_that_is_no_text(errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"na\xefve"), "utf-8", errors))
    assert main(["chat"]) == 2
    assert "what came through the pipe: expected text in utf-8, found other bytes" in capsys.readouterr().err


def test_arguments_that_are_no_text(tiny_model: Path, capsys: pytest.CaptureFixture) -> None:
    for args, what in (["chat", "--system"], "--system"), (["generate", "--raw", "--prompt"], "the prompt"):
        model = [str(tiny_model)] if args[0] == "chat" else ["--model", str(tiny_model)]
        assert main([args[0], *model, *args[1:], "na\udcefve"]) == 2
        assert capsys.readouterr().err.endswith(f"{what}: expected text in utf-8, found other bytes\n")
