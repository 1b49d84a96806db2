"""A few of the fuzzer's mutants (`make fuzz` makes more); what it must not overlook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.fuzz import target
from tests.io.fuzz.header import build, feed
from tests.io.fuzz.mutants import STRATEGIES, mutant
from tests.io.fuzz.run import work
from torch_foundry.core.load_errors import LoadError

pytestmark = pytest.mark.tier("files")

SAMPLE = 6000


@pytest.mark.parametrize("kind", target.KINDS)
def test_mutants_are_refused_or_true(kind: str) -> None:
    found = work(kind, range(SAMPLE))
    assert not found.crashes and not found.hangs, found
    assert found.inputs == SAMPLE and len(found.strategies) == len(STRATEGIES[kind])
    assert found.codes["accepted"] > SAMPLE / 20 and len(found.codes) >= 18


def test_there_are_many_strategies_and_each_changes_files() -> None:
    assert len(set().union(*STRATEGIES.values())) >= 60
    for kind in target.KINDS:
        assert mutant(kind, 7) == mutant(kind, 7)
        assert len({mutant(kind, number)[0] for number in range(200)}) > 150


def test_the_reader_of_headers_is_sound_under_sanitizers(tmp_path: Path) -> None:
    """Built alone with AddressSanitizer; what it says doesn't depend on the pieces that it is fed in."""
    program = build(tmp_path)
    found = feed(program, (mutant("safetensors", number)[0] for number in range(3000)))
    assert sum(found.values()) == 3000 and found["accepted"] and found["ST_OVERLAP"]


class Longer(target.Memory):
    """Says that it has more bytes than are there."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.size += 64


@pytest.mark.parametrize("fault", ["raises", "accepts an overlap", "reads too far"])
def test_mistakes_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_foundry.io.gguf import reader

    if fault == "raises":
        monkeypatch.setattr(reader, "_read_type", lambda cursor: {}[cursor.u32()])
    elif fault == "accepts an overlap":
        monkeypatch.setattr(reader, "_check_layout", lambda cursor, tensors, alignment: 0)
    else:
        monkeypatch.setattr(target, "Memory", Longer)
    assert work("gguf", range(300)).crashes


@pytest.mark.parametrize("fault", ["zeros", "order", "biases", "scales"])
def test_wrong_weights_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of packs that are accepted: held against the formulas of the methods, and finite."""
    from torch_foundry.io.packed import blocks, gptq_awq, mlx

    if fault == "zeros":
        monkeypatch.setattr(gptq_awq, "_AWQ_COLUMNS", (0, 1, 2, 3, 4, 5, 6, 7))
    elif fault == "order":
        monkeypatch.setattr(gptq_awq, "_order", lambda *_: None)
    elif fault == "biases":
        monkeypatch.setattr(mlx, "as_bytes", lambda tensor: blocks.as_bytes(tensor.flip(-1)))
    else:
        monkeypatch.setattr(blocks.Parts, "finite", lambda self, name: False)
    assert work("packs", range(1500)).crashes


def test_hangs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.io.fuzz import run
    from torch_foundry.io.gguf import reader

    def forever(cursor: object) -> None:
        while True:
            pass

    monkeypatch.setattr(run, "HANG", 0.05)
    monkeypatch.setattr(reader, "_read_type", forever)
    assert work("gguf", range(8)).hangs


def test_a_load_error_is_what_probe_expects() -> None:
    with pytest.raises(LoadError):
        target.open_memory("gguf", b"")
    assert target.probe("gguf", b"") == "TRUNCATED"
