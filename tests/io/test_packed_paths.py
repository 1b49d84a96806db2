"""Packed folders whose files change, or come in small pieces, while a model is made of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from tests.io.corpus.case import Case
from tests.io.corpus.packed_bytes import Folder, affine, awq, bitsandbytes, fp8, gptq, own
from torch_foundry import LoadError

BASES: list[Callable[[], Folder]] = [affine, gptq, awq, bitsandbytes, fp8, own]
of_all = pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)


def load(path: Path) -> Any:
    return torch_foundry.load(path, device="cpu", patch=False, progress=False)[0]


def write(base: Callable[[], Folder], folder: Path) -> Path:
    return Case("P", "", (), lambda: base().content()).write(folder)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 96)


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, (0, 0))  # nothing but the inode tells them apart
    other.rename(path)


@of_all
@pytest.mark.parametrize("change", [cut, replaced, Path.unlink], ids=lambda each: each.__name__)
def test_a_change_at_any_read_is_an_error(
    base: Callable[[], Folder], change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first read of weights, in the middle, and at the last."""
    preadv, calls, when = os.preadv, [0], [-1]

    def changing(*arguments: Any) -> int:
        calls[0] += 1
        if calls[0] == when[0]:
            change(path / "model.safetensors")
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", changing)
    path = write(base, tmp_path / "sound")
    load(path)
    for at in (4, calls[0] // 2, calls[0]):
        path = write(base, tmp_path / str(at))
        calls[0], when[0] = 0, at
        with pytest.raises(LoadError) as caught:
            load(path)
        assert caught.value.code in ("CHANGED", "TRUNCATED")
        assert Path(caught.value.file).name == "model.safetensors"


@of_all
def test_short_reads_and_interruptions_make_the_same_model(
    base: Callable[[], Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, preadv, calls = write(base, tmp_path), os.preadv, [0]
    whole = load(path).state_dict()

    def short(fd: int, buffers: Any, offset: int) -> int:
        calls[0] += 1
        if calls[0] % 5 == 0:
            raise InterruptedError
        return preadv(fd, [buffers[0][:999]], offset)

    monkeypatch.setattr(os, "preadv", short)
    pieces = load(path).state_dict()
    assert calls[0] > 100 and pieces.keys() == whole.keys()
    assert all(torch.equal(pieces[name].view(torch.uint8), whole[name].view(torch.uint8)) for name in whole)
