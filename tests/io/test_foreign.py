"""Files that are something else than their names say: the error names what they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torch_foundry
from tests.io.corpus.tensors_file import of, tensor
from torch_foundry.io import LoadError, open_container, open_gguf, open_safetensors

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4661212096\n"
FOREIGN = {
    "git-LFS pointer": LFS,
    "HTML page": b"\n<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n",
    "an HTML page": b"<HTML><body>Bad gateway</body></HTML>" + bytes(64),
    "XML page": b"\xef\xbb\xbf<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    "Entry not found": b"Entry not found",
    "Invalid username or password": b"Invalid username or password.",
    "GGML file": b"lmgg" + bytes(100),
    "GGMF file": b"fmgg\1\0\0\0" + bytes(100),
    "GGJT file": b"tjgg\3\0\0\0" + bytes(100),
    "GGLA file": b"algg" + bytes(100),
    "ZIP archive": b"PK\x03\x04" + bytes(100),
    "gzip archive": b"\x1f\x8b\x08" + bytes(100),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "a pickle": b"\x80\x04\x95" + bytes([1]) * 100,
}
OPENERS: dict[str, Callable[..., Any]] = {
    "gguf": open_gguf,
    "safetensors": open_safetensors,
    "container": open_container,
    "load": lambda path: torch_foundry.load(path, device="cpu", progress=False),
}


def refusal(call: Callable[[], Any]) -> LoadError:
    with pytest.raises(LoadError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("opener", OPENERS)
def test_what_a_file_is_instead(what: str, opener: str, tmp_path: Path) -> None:
    path = tmp_path / ("model.safetensors" if opener == "safetensors" else "model.gguf")
    path.write_bytes(FOREIGN[what])
    error = refusal(lambda: OPENERS[opener](path))
    assert error.code == "MAGIC" and what in error.found, error


def test_a_folder_whose_weights_were_not_downloaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").write_bytes(LFS)
    assert "git-LFS pointer" in refusal(lambda: OPENERS["load"](tmp_path)).found
    (tmp_path / "model.safetensors").rename(tmp_path / "model.gguf")
    assert "git-LFS pointer" in refusal(lambda: OPENERS["load"](tmp_path)).found


def test_the_two_formats_under_each_others_names(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(of(8, a=tensor()))
    for opener in (open_gguf, OPENERS["load"]):
        error = refusal(lambda opener=opener: opener(path))
        assert (error.code, error.found) == ("MAGIC", "a safetensors file")
    with open_container(path) as container:  # goes by the content
        assert list(container.tensors) == ["a"]
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    error = refusal(lambda: open_safetensors(path))
    assert (error.code, error.found) == ("MAGIC", "a GGUF file")
