"""The GGUF reader against files that the gguf package wrote."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from torch_foundry.io import LoadError, open_gguf
from torch_foundry.io.storage import GGML, GGML_GONE, TYPES

TYPE_IDS = [int(kind) for kind in gguf.GGML_QUANT_SIZES]


def blocks(kind: int, rows: tuple[int, ...], count: int = 2, seed: int = 0) -> np.ndarray:
    """Rows of `count` random blocks of a type, no scale of which is NaN or infinite: uint8 [*rows, bytes]."""
    size = GGML[kind].nbytes * count
    return np.random.default_rng(seed).integers(0, 0x60, (*rows, size), dtype=np.uint8)  # exponents stay below the top


def write(path: Path, tensors: dict[str, tuple[int, np.ndarray]], alignment: int = 0, **fields: object) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for name, value in fields.items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)
    for name, (kind, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_types_are_those_of_the_gguf_package() -> None:
    assert {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()} == {
        number: (storage.block, storage.nbytes) for number, storage in GGML.items()
    }
    assert {int(kind): kind.name.lower() for kind in gguf.GGMLQuantizationType} == {
        number: storage.name for number, storage in GGML.items()
    }
    assert not GGML.keys() & GGML_GONE.keys()


@pytest.mark.parametrize("kind", TYPE_IDS, ids=lambda kind: GGML[kind].name)
@pytest.mark.parametrize("rows", [(1,), (5,), (2, 3), (2, 3, 4)], ids=str)
def test_tensors_of_all_types_read_back_equal(tmp_path: Path, kind: int, rows: tuple[int, ...]) -> None:
    data = blocks(kind, rows)
    path = write(tmp_path / "m.gguf", {"first": (24, blocks(24, (3,), 7)), "t": (kind, data)})
    oracle = {each.name: each for each in gguf.GGUFReader(path).tensors}["t"]
    with open_gguf(path) as container:
        info = container.tensors["t"]
        assert info.shape == tuple(int(dim) for dim in oracle.shape[::-1])
        assert (info.format, info.offset, info.nbytes) == (GGML[kind].name, oracle.data_offset, oracle.n_bytes)
        whole = container.read("t")
        assert whole.dtype == TYPES[info.format].dtype
        assert whole.view(torch.uint8).numpy().tobytes() == data.tobytes()
        assert container.mapped("t").view(torch.uint8).numpy().tobytes() == data.tobytes()
        part = container.read("t", rows[0] // 2)
        assert torch.equal(part.view(torch.uint8), whole[rows[0] // 2 :].view(torch.uint8))


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_alignments(tmp_path: Path, alignment: int) -> None:
    tensors = {f"t{i}": (24, blocks(24, (i + 1,), 13, seed=i)) for i in range(5)}
    path = write(tmp_path / "m.gguf", tensors, alignment)
    with open_gguf(path) as container:
        assert all(info.offset % alignment == 0 for info in container.tensors.values())
        for name, (_, data) in tensors.items():
            assert container.read(name).view(torch.uint8).numpy().tobytes() == data.tobytes()


VALUES: dict[str, object] = {
    "text": "größer ✓ 𝄞",
    "empty": "",
    "yes": True,
    "number": -7,
    "real": 0.25,
    "texts": ["a", "", "ä𝄞", "b" * 300],
    "numbers": [1, -2, 3],
    "reals": [0.5, -1.25],
    "flags": [True, False, True],
}


def test_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"t": (0, blocks(0, (2,), 8))}, **VALUES)
    with open_gguf(path) as container:
        assert {name: container.metadata[name] for name in VALUES} == VALUES
        assert container.metadata["general.architecture"] == "llama"
        assert container.metadata["texts"][2] == "ä𝄞" and container.metadata["numbers"][1:] == [-2, 3]
        assert type(container.metadata["flags"][0]) is bool and type(container.metadata["numbers"][0]) is int


def test_every_cut_of_a_valid_file_is_a_load_error(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": (8, blocks(8, (3,), 2)), "b": (0, blocks(0, (2,), 8))}, **VALUES)
    whole = path.read_bytes()
    open_gguf(path).close()
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        os.utime(cut, (0, 0))  # else the reader waits until a change could be told from this
        with pytest.raises(LoadError):
            open_gguf(cut)


def test_tensors_without_end_over_the_same_bytes_are_refused_at_the_second(tmp_path: Path) -> None:
    """Nothing of what follows is read: here, that the file hasn't got it."""
    info = struct.pack("<Q1sIQIQ", 1, b"a", 1, 32, 24, 0)
    other = struct.pack("<Q1sIQIQ", 1, b"b", 1, 32, 24, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 3, 0) + info + other + bytes(40))
    with pytest.raises(LoadError) as caught:
        open_gguf(path)
    assert (caught.value.code, caught.value.field) == ("OVERLAP", "b")
