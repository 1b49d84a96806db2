"""NaN and infinities are found wherever they make a weight that is none: held against the gguf package's unpacking."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from tests.io.test_gguf_reader import write
from torch_foundry.io import LoadError, open_gguf
from torch_foundry.io.storage import GGML, TYPES, nonfinite
from torch_foundry.quant import FORMATS, dequantize

NUMBERS = {storage.name: number for number, storage in GGML.items()}
UNPACKED = [storage.name for number, storage in GGML.items() if storage.packed and storage.name not in ("q8_1", "q8_k")]
FLOATS = [name for name, storage in TYPES.items() if storage.dtype.is_floating_point or storage.dtype.is_complex]


def poisoned(nbytes: int, seeds: int) -> torch.Tensor:
    """Random blocks and one of ones, each with each of its bytes set to each value: uint8 [blocks, nbytes]."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (seeds, 1, 1, nbytes), dtype=torch.uint8, generator=generator)
    blocks[-1] = 255
    blocks = blocks.repeat(1, nbytes, 256, 1)
    for at in range(nbytes):
        blocks[:, at, :, at] = torch.arange(256, dtype=torch.uint8)
    return blocks.view(-1, nbytes)


def found(blocks: torch.Tensor, name: str) -> list[int]:
    """Indices of all blocks that are found, one after the other."""
    nbytes, indices, begin = blocks.shape[1], [], 0
    while (at := nonfinite(blocks[begin:].reshape(-1), TYPES[name])) is not None:
        assert at % nbytes == 0
        begin += at // nbytes + 1
        indices.append(begin - 1)
    return indices


def test_each_packed_format_is_looked_at() -> None:
    assert all(storage.floats for storage in GGML.values() if storage.packed)
    assert all(each.scales for each in FORMATS.values() if each.packed)


@pytest.mark.parametrize("name", UNPACKED)
def test_blocks_with_a_bad_scale_are_those_that_unpack_to_what_is_no_number(name: str) -> None:
    blocks = poisoned(TYPES[name].nbytes, 2 if TYPES[name].nbytes > 50 else 4)
    if name in ("nvfp4", "q1_0"):  # of E4M3's NaN ggml makes 0; q1_0 the package can't unpack
        scales = blocks[:, :4] if name == "nvfp4" else blocks[:, 1:2]
        expected = ((scales & 0x7F) == 0x7F if name == "nvfp4" else (scales & 0x7C) == 0x7C).any(1)
    else:
        with np.errstate(all="ignore"):
            values = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType(NUMBERS[name]))
        expected = torch.from_numpy(~np.isfinite(values).all(axis=1))
    indices = expected.nonzero()[:, 0].tolist()
    assert 0 < len(indices) < len(blocks)
    few = sorted({*range(0, len(blocks), 37), *indices[:40], *indices[-40:]})
    assert found(blocks[few], name) == [few.index(i) for i in few if expected[i]]


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.packed and each.gguf_type is None])
def test_blocks_of_packed_safetensors(name: str) -> None:
    """Each place of a scale, with all values of its highest byte: what unpacks to no number is found."""
    zero = torch.zeros(FORMATS[name].block_bytes, dtype=torch.uint8)
    assert TYPES[name].floats == FORMATS[name].scales
    for at, kind in FORMATS[name].scales:
        width = {"f16": 2, "bf16": 2, "f32": 4, "e8m0_480": 1, "ue4m3": 1}[kind]
        blocks = zero.repeat(256, 1)
        blocks[:, at : at + width] = 0xFF
        blocks[:, at + width - 1] = torch.arange(256, dtype=torch.uint8)
        unpacked = {int(i) for i in (~torch.isfinite(dequantize(blocks, name))).any(1).nonzero()}
        expected = {0x7F, 0xFF} if kind == "ue4m3" else unpacked  # a NaN that is unpacked to 0
        missed = expected - set(found(blocks, name))
        assert expected and not missed and set(found(blocks, name)) <= expected | set(range(247, 255))
    assert nonfinite(zero.repeat(3, 1).view(-1), TYPES[name]) is None


@pytest.mark.parametrize("name", ["q8_1", "q8_k"])
def test_blocks_that_ggml_keeps_to_itself(name: str) -> None:
    blocks = torch.zeros(3, TYPES[name].nbytes, dtype=torch.uint8)
    blocks[1, 0:4] = torch.tensor([0, 0, 0x80, 0x7F])
    assert found(blocks, name) == [1]


@pytest.mark.parametrize("name", FLOATS)
def test_elements(name: str) -> None:
    size = TYPES[name].nbytes
    elements = poisoned(size, 40)
    values = elements.view(TYPES[name].dtype)[:, 0]
    wide = values if size > 2 else values.to(torch.float32)
    expected = (~torch.isfinite(wide)).nonzero()[:, 0].tolist()
    few = sorted({*range(0, len(elements), 37), *expected[:40]})
    assert expected
    assert found(elements[few], name) == [few.index(i) for i in few if i in set(expected)]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 2047, 2048, 2049, 5000])
def test_every_place_in_pieces_of_any_length(count: int) -> None:
    for at in {0, 1, count // 2, count - 1} & set(range(count)):
        values = torch.full((count,), 65504, dtype=torch.float16)
        assert nonfinite(values.view(torch.uint8), TYPES["f16"]) is None
        values[at] = -torch.inf
        assert nonfinite(values.view(torch.uint8), TYPES["f16"]) == 2 * at


def test_reading_says_where_it_is_and_can_be_told_not_to_look(tmp_path: Path) -> None:
    data = np.zeros((3, 68), np.uint8)  # 2 blocks of q8_0 a row
    data[2, 34:36] = 0, 0x7C
    path = write(tmp_path / "m.gguf", {"t": (8, data)})
    with open_gguf(path) as container:
        assert container.read("t", 0, 2).shape == (2, 68)
        for read in (lambda: container.read("t"), lambda: container.read_into("t", torch.empty(1, 68).byte(), 2)):
            with pytest.raises(LoadError) as caught:
                read()
            assert (caught.value.code, caught.value.field) == ("NONFINITE", "t")
            assert caught.value.offset == container.tensors["t"].offset + 2 * 68 + 34
        assert container.mapped("t").tolist() == data.tolist()
    with open_gguf(path, check_finite=False) as container:
        assert container.read("t").tolist() == data.tolist()
