"""Every prefix of a sound file is refused cleanly."""

from __future__ import annotations

from pathlib import Path

import pytest

import torch_foundry
from tests.io.corpus.case import write
from tests.io.corpus.container_head import K
from tests.io.corpus.container_tensors import GOOD
from tests.io.corpus.folders import INDEX, ONE, folder
from tests.io.corpus.model_bytes import model
from tests.io.corpus.tensors_file import S
from tests.io.fuzz.target import probe
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.safetensors import open_safetensors

HEADERS = {"HKTD": {"TRUNCATED", "STRLEN", "ARRLEN", "COUNT", "DATA_SHORT"}, "S": {"ST_SHORT", "ST_HLEN", "ST_TRUNC"}}


def _sound(table: object, id: str) -> bytes:
    content = next(case.build() for case in table.cases if case.id == id)  # type: ignore[attr-defined]
    assert isinstance(content, bytes)
    return content


@pytest.mark.parametrize(
    ("kind", "data", "codes"),
    [
        ("gguf", GOOD, HEADERS["HKTD"]),
        ("gguf", _sound(K, "K72"), HEADERS["HKTD"]),
        ("safetensors", _sound(S, "S00"), HEADERS["S"]),
        ("safetensors", _sound(S, "S134"), HEADERS["S"]),
    ],
    ids=["gguf", "each type", "safetensors", "each dtype"],
)
def test_every_prefix_of_a_container(kind: str, data: bytes, codes: set[str]) -> None:
    assert probe(kind, data) == ""
    assert {probe(kind, data[:size]) for size in range(len(data))} <= codes


def test_every_prefix_of_a_models_header() -> None:
    """The tensors of the model begin behind its vocabulary."""
    data = model().bytes()
    end = data.rindex(b"output.weight")
    assert 7000 < end < len(data) / 2
    assert {probe("gguf", data[:size]) for size in range(end)} <= HEADERS["HKTD"]


def test_prefixes_of_a_whole_model(tmp_path: Path) -> None:
    data, path = model().bytes(), tmp_path / "m.gguf"
    write(path, data)
    torch_foundry.load(path, device="cpu", patch=False, progress=False)
    for size in [*range(0, len(data), 4999), len(data) - 1]:
        write(path, data[:size])
        with pytest.raises(LoadError) as caught:
            torch_foundry.load(path, device="cpu", patch=False, progress=False)
        assert caught.value.code in HEADERS["HKTD"] | {"ST_SHORT", "ST_HLEN"}, size


@pytest.mark.parametrize("name", [INDEX, ONE])
def test_every_prefix_in_a_folder(name: str, tmp_path: Path) -> None:
    """Of the index, or of a shard that it names; spaces behind the index's last brace don't matter."""
    for each, content in folder().items():
        assert isinstance(content, bytes)
        write(tmp_path / each, content)
    open_safetensors(tmp_path).close()
    data = (tmp_path / name).read_bytes()
    for size in range(len(data)):
        write(tmp_path / name, data[:size])
        with pytest.raises(LoadError) as caught:
            open_safetensors(tmp_path)
        assert caught.value.code in HEADERS["S"] | {"IDX_JSON"}, size
