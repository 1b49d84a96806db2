"""Every rule of the mock notices its breach: a client makes one mistake at a time, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

mock = torch.ops.mock_metal
MISTAKES = [name for name in mock.mistakes() if not name.startswith(("right/", "missing-barrier"))]


def in_a_child(work: Callable[[], Any]) -> Any:
    """What `work` returns (as JSON) in a forked process, so that a broken stream stays there."""
    mock.synchronize()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text)


def made(name: str) -> tuple[str, list[str]]:
    """The first line of the error that a mistake raises, and the violations that are on record."""
    error = ""
    try:
        mock.mistake(name, torch.arange(8.0).to("mps"))
        mock.synchronize()
    except RuntimeError as raised:
        error = str(raised).splitlines()[0]
    return error, mock.violations()


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_caught_by_name(name: str) -> None:
    rule = name.removeprefix("off:").partition("/")[0]
    error, violations = in_a_child(lambda: made(name))
    assert f"MockMetal: {rule}: " in " ".join([error, *violations]), (error, violations)


@pytest.mark.parametrize("name, factor", [("direct", 2), ("indirect", 4), ("handler", 2), ("concurrent", 4)])
def test_right_client(name: str, factor: int) -> None:
    x = torch.arange(8.0)
    mock.trace()
    assert torch.equal(mock.mistake(f"right/{name}", x.to("mps")).cpu(), factor * x)
    assert ("handler" in mock.trace()) == (name == "handler")


def test_every_rule_has_its_mistake() -> None:
    """But those for which there are other tests, or that the mock's own tests would have to break."""
    here = Path(__file__).parent / "mock"
    text = "".join(path.read_text() for path in here.iterdir() if path.is_file())
    rules = set(re.findall(r'(?:MOCK_RULE|fail|note)\(\s*"([a-z-]+)"', text))
    caught = {name.removeprefix("off:").partition("/")[0] for name in MISTAKES}
    assert rules - caught == {"kernel-name", "out-of-memory"}
    assert caught - rules == {"command-buffer-error"}, "raised by hand"


def test_leak_is_counted() -> None:
    def functions(name: str) -> int:
        mock.mistake(name, torch.arange(8.0).to("mps"))
        return int(mock.alive()["MockFunction"])

    assert in_a_child(lambda: functions("right/direct")) == 0
    assert in_a_child(lambda: functions("right/but-leaks")) == 1


@pytest.mark.parametrize("name", ["missing-barrier", "missing-barrier/concurrent"])
def test_missing_barrier_changes_the_numbers(name: str) -> None:
    x = torch.arange(8.0)
    assert not torch.equal(mock.mistake(name, x.to("mps")).cpu(), 4 * x)


def test_memory_of_a_freed_tensor_is_poisoned() -> None:
    x = torch.ones(1024, device="mps")
    before = mock.allocated()
    del x
    assert mock.allocated() == before - 4096
    assert torch.empty(1024, device="mps").isnan().all()  # and so is memory that nothing was written to


def test_out_of_memory_has_torchs_words() -> None:
    before = mock.set("memory", mock.allocated() + 1000)
    try:
        with pytest.raises(RuntimeError, match=r"MPS backend out of memory.*Tried to allocate"):
            torch.empty(1001, dtype=torch.uint8, device="mps")
        torch.empty(1000, dtype=torch.uint8, device="mps")
    finally:
        mock.set("memory", before)
