"""Models in several files: shards of safetensors under an index, parts of a GGUF model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch

from torch_foundry.io import LoadError, open_container, open_gguf, open_safetensors

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def code_of(path: Path, opener: Any = open_safetensors) -> str:
    with pytest.raises(LoadError) as caught:
        opener(path)
    return caught.value.code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    safetensors.torch.save_file({"a": torch.arange(3)}, tmp_path / ONE, metadata={"format": "pt", "part": "1"})
    safetensors.torch.save_file({"b": torch.ones(2, 2)}, tmp_path / TWO, metadata={"format": "pt", "part": "2"})
    index(tmp_path, {"a": ONE, "b": TWO})
    return tmp_path


def index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 40}, "weight_map": weight_map}))


def test_shards_are_one_container(folder: Path) -> None:
    for opener in (open_safetensors, open_container):
        with opener(folder) as container:
            assert set(container.tensors) == {"a", "b"} and container.metadata == {"format": "pt", "part": "1"}
            assert container.read("a").tolist() == [0, 1, 2] and container.mapped("b").tolist() == [[1, 1], [1, 1]]
            assert container.tensors["b"].path == folder / TWO


def test_shards_may_be_links_as_in_the_cache_of_the_hub(folder: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name in (ONE, TWO, INDEX):
        (folder / name).rename(blobs / name)
        (folder / name).symlink_to(blobs / name)
    with open_safetensors(folder) as container:
        assert container.read("a").tolist() == [0, 1, 2]
    (blobs / TWO).unlink()
    assert code_of(folder) == "IDX_FILE"


@pytest.mark.parametrize(
    ("code", "weight_map"),
    [
        ("IDX_JSON", None),
        ("IDX_JSON", {}),
        ("IDX_JSON", [ONE]),
        ("IDX_JSON", {"a": [ONE]}),
        ("IDX_JSON", {"a": None}),
        ("IDX_FILE", {"a": ONE, "b": "absent.safetensors"}),
        ("IDX_PATH", {"a": ONE, "b": "../" + TWO}),
        ("IDX_PATH", {"a": ONE, "b": "/" + TWO}),
        ("IDX_PATH", {"a": ONE, "b": "x\\" + TWO}),
        ("IDX_PATH", {"a": ONE, "b": "c:" + TWO}),
        ("IDX_PATH", {"a": ONE, "b": ".."}),
        ("IDX_PATH", {"a": ONE, "b": TWO + "\0"}),
        ("IDX_PATH", {"a": ONE, "b": "config.json"}),
        ("PICKLE", {"a": ONE, "b": "model.bin"}),
        ("IDX_MISSING", {"a": ONE, "b": TWO, "c": TWO}),
        ("IDX_MISSING", {"a": TWO, "b": ONE}),
        ("IDX_EXTRA", {"a": ONE, "c": TWO}),
    ],
)
def test_bad_indexes(folder: Path, code: str, weight_map: Any) -> None:
    index(folder, weight_map)
    assert code_of(folder) == code


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("IDX_JSON", b""),
        ("IDX_JSON", b"[]"),
        ("IDX_JSON", b"[" * 100_000),
        ("IDX_JSON", b'{"weight_map": {"\xff": "a"}}'),
        ("IDX_JSON", b'{"metadata": {}}'),
        ("IDX_JSON", b'{"weight_map": {"a": "x.safetensors"}, "weight_map": {"a": "x.safetensors"}}'),
        ("IDX_DUP", b'{"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}}'),
    ],
)
def test_bad_text_of_an_index(folder: Path, code: str, text: bytes) -> None:
    (folder / INDEX).write_bytes(text)
    assert code_of(folder) == code


def test_a_huge_index_is_not_read(folder: Path) -> None:
    os.truncate(folder / INDEX, 1 << 36)
    assert code_of(folder) == "IDX_JSON"


def test_the_same_tensor_in_two_shards(folder: Path) -> None:
    safetensors.torch.save_file({"a": torch.arange(3), "b": torch.ones(2, 2)}, folder / TWO)
    assert code_of(folder) == "IDX_DUP"


def test_folders_without_an_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    assert code_of(folder) == "IDX_FILE"
    (folder / TWO).unlink()
    assert code_of(folder) == "IDX_FILE"  # the name says that there are two
    (folder / ONE).rename(folder / "adapter.safetensors")
    with open_safetensors(folder) as container:
        assert list(container.tensors) == ["a"]
    (folder / "adapter.safetensors").rename(folder / "model.safetensors")
    with open_safetensors(folder) as container:
        assert list(container.tensors) == ["a"]
    (folder / "model.safetensors").unlink()
    assert code_of(folder) == "NOT_MODEL"
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert code_of(folder) == "PICKLE" and code_of(folder, open_container) == "PICKLE"


def test_a_broken_link_is_not_passed_over(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to(folder / "absent")
    assert code_of(folder) == "ABSENT"


NAMES = [f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]


def part(path: Path, number: int, count: int = 3, tensors: tuple[str, ...] = (), total: int = 4, **fields: Any) -> None:
    """A part as llama.cpp writes them: `fields` replace its own, None leaves them out."""
    writer = gguf.GGUFWriter(path, fields.pop("architecture", "llama"))
    values = {"split.no": number, "split.count": count, "split.tensors.count": total} | fields
    for key, value in values.items():
        if value is not None:
            kind = gguf.GGUFValueType.get_type(value) if not isinstance(value, int) else gguf.GGUFValueType.INT32
            writer.add_key_value(key, value, kind)
    for name in tensors:
        writer.add_tensor(name, np.full((2, 8), ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for number, (name, tensors) in enumerate(zip(NAMES, ("ab", "c", "d"), strict=True)):
        part(tmp_path / name, number, tensors=tuple(tensors))
    return tmp_path


@pytest.mark.parametrize("name", [*NAMES, ""], ids=["first", "second", "third", "folder"])
def test_parts_are_one_container(parts: Path, name: str) -> None:
    with open_container(parts / name) as container:
        assert list(container.tensors) == ["a", "b", "c", "d"] and container.metadata["split.no"] == 0
        for tensor in "abcd":
            assert bool((container.read(tensor) == ord(tensor)).all())
        assert container.tensors["d"].path == parts / NAMES[2]


@pytest.mark.parametrize(
    ("which", "change"),
    [
        (1, {"number": 2}),
        (1, {"count": 2}),
        (1, {"total": 5}),
        (1, {"split.no": None}),
        (1, {"split.count": None}),
        (1, {"split.tensors.count": None}),
        (1, {"split.no": "1"}),
        (1, {"split.no": -1}),
        (0, {"split.no": None}),
        (0, {"split.count": None}),
        (0, {"split.count": 2.0}),
        (0, {"split.tensors.count": None}),
        (1, {"tensors": ("a",)}),
        (1, {"tensors": ("c", "e")}),
        (1, {"tensors": ()}),
        (1, {"architecture": "qwen2"}),
    ],
    ids=str,
)
def test_parts_that_do_not_belong_together(parts: Path, which: int, change: dict[str, Any]) -> None:
    given: dict[str, Any] = {"number": which, "tensors": (("a", "b"), ("c",))[which]} | change
    part(parts / NAMES[which], **given)
    assert code_of(parts / NAMES[0], open_gguf) == "SPLIT"


def test_parts_that_are_absent_or_called_something_else(parts: Path) -> None:
    (parts / NAMES[0]).rename(parts / "m.gguf")
    assert code_of(parts / "m.gguf", open_gguf) == "SPLIT"
    (parts / "m.gguf").rename(parts / "m-00001-of-00002.gguf")
    assert code_of(parts / "m-00001-of-00002.gguf", open_gguf) == "SPLIT"
    assert code_of(parts / NAMES[1], open_gguf) == "SPLIT"


def test_a_part_that_is_broken_names_its_own_fault(parts: Path) -> None:
    os.truncate(parts / NAMES[2], (parts / NAMES[2]).stat().st_size - 32)
    assert code_of(parts / NAMES[0], open_gguf) == "DATA_SHORT"


def test_a_lone_file_may_say_that_it_is_one_of_one(tmp_path: Path) -> None:
    part(tmp_path / "m.gguf", 0, 1, ("a",), 1)
    open_gguf(tmp_path / "m.gguf").close()
    part(tmp_path / "m.gguf", 1, 1, ("a",), 1)
    assert code_of(tmp_path / "m.gguf", open_gguf) == "SPLIT"
    part(tmp_path / "m.gguf", 0, 3, ("a",), 1)
    assert code_of(tmp_path / "m.gguf", open_gguf) == "SPLIT"
