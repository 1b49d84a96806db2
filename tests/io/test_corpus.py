"""Each file of the corpus is refused by its code, naming place and values, at a bounded cost; or taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.io.corpus.case import Case
from tests.io.corpus.manifest import CASES, MANIFEST, header, lines, load
from torch_foundry.core.load_errors import CODES, LoadError

MIB = 1 << 20
CALLS = 60_000  # of functions, Python's and built-in ones: some 10 ms
READ = 17 * MIB  # bytes of the file
WHOLE = {"ABSENT", "LOOP", "NOT_FILE", "PICKLE", "MAGIC", "ST_TRUNC"}  # of a file as a whole
LARGE = {"K26", "K27", "K37", "T39", "S47"}  # sound files whose headers are large

by_id = {case.id: case for case in CASES}


@pytest.fixture(autouse=True, scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is imported by the first model is no cost of a file."""
    folder = tmp_path_factory.mktemp("first")
    for id in ("A00", "A320", "PM00", "PG00", "PA00", "PB00", "PO00", "PC02"):
        load(by_id[id], by_id[id].write(folder))


class Cost:
    """Of a piece of work: functions called, bytes read, bytes by which the process grew at most."""

    calls = read = memory = 0


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


@contextmanager
def cost(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cost]:
    found = Cost()
    preadv, measured = os.preadv, os.path.exists("/proc/self/clear_refs")

    def counted(fd: int, buffers: Any, offset: int, *rest: Any) -> int:
        count = preadv(fd, buffers, offset, *rest)
        found.read += count
        return count

    def profile(frame: Any, event: str, arg: Any) -> None:
        found.calls += event in ("call", "c_call")

    monkeypatch.setattr(os, "preadv", counted)
    if measured:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
        before = _status("VmHWM")
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        if measured:
            found.memory = _status("VmHWM") - before
        monkeypatch.undo()


@pytest.mark.parametrize("case", [case for case in CASES if case.want], ids=lambda case: case.id)
def test_refused(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = case.write(tmp_path)
    with cost(monkeypatch) as spent, pytest.raises(LoadError) as caught:
        load(case, path)
    error = caught.value
    assert error.code in case.want, str(error)
    assert case.says in str(error)
    assert error.expected and error.found and f"[{error.code}]" in str(error)
    assert error.expected in str(error) and error.found in str(error)
    assert Path(error.file) == path or path in Path(error.file).parents
    if case.id[0] in "HKT":
        assert error.field and error.offset is not None
    if case.id[0] == "P":
        assert error.field or error.code in WHOLE
    assert spent.calls <= CALLS and spent.read <= READ and spent.memory <= 16 * MIB, vars(spent)


@pytest.mark.parametrize("case", [case for case in CASES if not case.want], ids=lambda case: case.id)
def test_taken(case: Case, tmp_path: Path) -> None:
    load(case, case.write(tmp_path))


@pytest.mark.parametrize("id", sorted(LARGE & by_id.keys()))
def test_large_headers_take_little(id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that grows with the header's size only, and memory far below it."""
    path = by_id[id].write(tmp_path)
    with cost(monkeypatch) as spent:
        header(by_id[id], path)
    assert spent.read <= path.stat().st_size + MIB
    assert spent.calls <= 25 * 200_000 and spent.memory <= 64 * MIB, vars(spent)


def test_the_corpus_is_what_its_manifest_says() -> None:
    """Files are the same wherever they are built. After a change: python -m tests.io.corpus.manifest."""
    assert MANIFEST.read_text().splitlines() == lines()
    assert len(by_id) == len(CASES) >= 250


def test_codes_are_known() -> None:
    wanted = {code for case in CASES for code in case.want}
    assert wanted <= CODES.keys()
