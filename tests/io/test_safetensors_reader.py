"""The safetensors reader against files that the safetensors package wrote, and against what may be wrong with one."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from torch_foundry import quant
from torch_foundry.io import LoadError, open_safetensors
from torch_foundry.io.storage import SAFETENSORS

Description = dict[str, object]


def made(path: Path, header: bytes, data: bytes = b"") -> Path:
    """A file with this header."""
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    os.utime(path, (0, 0))  # else the reader waits until a change could be told from this
    return path


def described(dtype: str = "U8", shape: object = (4,), offsets: object = (0, 4)) -> Description:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("name", [name for name in SAFETENSORS if name not in ("F4", "F6_E2M3", "F6_E3M2")])
def test_tensors_of_all_dtypes_read_back_equal(tmp_path: Path, name: str) -> None:
    dtype = SAFETENSORS[name].dtype
    generator = torch.Generator().manual_seed(0)
    tensors = {
        key: torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype)[..., 0]
        for key, shape in {"scalar": (), "row": (3,), "none": (0, 5), "cube": (4, 3, 5)}.items()
    }
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt", "ä": "𝄞\n"})
    with safetensors.safe_open(path, "pt") as oracle, open_safetensors(path) as container:
        assert container.metadata == oracle.metadata()
        assert set(container.tensors) == set(oracle.keys()) and len(container.tensors) == len(tensors)
        for key, tensor in tensors.items():
            assert container.tensors[key].shape == tuple(tensor.shape)
            for found in (container.read(key), container.mapped(key)):
                assert found.dtype == dtype and found.shape == tensor.shape
                assert found.numpy(force=True).tobytes() == tensor.numpy().tobytes() if dtype in PLAIN else True
                assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


PLAIN = (torch.float32, torch.int32)


def test_blocks_that_lie_where_kernels_cannot_read_them_are_not_mapped(tmp_path: Path) -> None:
    """Their element is a byte, but their scales and words are not."""
    packed = quant.quantize(torch.randn(1, 64), "affine4_g64_f16")
    expected = quant.dequantize(packed, "affine4_g64_f16")
    for before in range(8):
        tensors = {"0": torch.zeros(before, dtype=torch.uint8), "1": packed}
        safetensors.torch.save_file(tensors, tmp_path / "m.safetensors")
        with open_safetensors(tmp_path / "m.safetensors") as container:
            assert torch.equal(quant.dequantize(container.mapped("1"), "affine4_g64_f16"), expected)


@pytest.mark.parametrize(("name", "columns", "nbytes"), [("F4", 6, 3), ("F6_E2M3", 8, 6), ("F6_E3M2", 4, 3)])
def test_elements_smaller_than_bytes_are_rows_of_bytes(tmp_path: Path, name: str, columns: int, nbytes: int) -> None:
    header = json.dumps({"a": described(name, [2, columns], [0, 2 * nbytes])}).encode()
    path = made(tmp_path / "m.safetensors", header, bytes(range(2 * nbytes)))
    assert safetensors.deserialize(path.read_bytes())[0][1]["shape"] == [2, columns]  # the package takes it too
    with open_safetensors(path) as container:
        assert container.tensors["a"].format == name.lower() and container.tensors["a"].shape == (2, columns)
        assert container.read("a", 1).tolist() == [list(range(nbytes, 2 * nbytes))]


def test_any_order_of_fields_and_tensors_and_white_space(tmp_path: Path) -> None:
    header = b'{ "b" :{"data_offsets": [4,\n8] ,"shape":[ 4 ],"dtype":"U8"}\t, "\\u0061\\ud834\\udd1e" : '
    header += json.dumps(described()).encode() + b', "s":{"dtype":"F32","shape":[],"data_offsets":[8,12]}, '
    header += b'"__metadata__":{}}   '
    with open_safetensors(made(tmp_path / "m.safetensors", header, bytes(range(12)))) as container:
        assert list(container.tensors) == ["b", "a𝄞", "s"]
        assert container.read("a𝄞").tolist() == [0, 1, 2, 3] and container.read("b").tolist() == [4, 5, 6, 7]
        assert "c" not in container.tensors and container.read("s").shape == ()


def test_every_cut_of_a_valid_file_is_a_load_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {"a": torch.ones(3, 2), "b": torch.ones(4, dtype=torch.uint8)}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    whole = path.read_bytes()
    open_safetensors(path).close()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        os.utime(path, (0, 0))
        with pytest.raises(LoadError):
            open_safetensors(path)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64])
def test_the_header_may_come_in_any_pieces(piece: int) -> None:
    table = [(name, storage.block, storage.nbytes) for name, storage in SAFETENSORS.items()]
    tensors = {f"tensor {i} ä𝄞": described("U8", [1], [i, i + 1]) for i in range(50)}
    text = json.dumps({"__metadata__": {"long": "ß" * 300}, **tensors}, ensure_ascii=False).encode()
    header = torch.classes.torch_foundry.SafetensorsHeader(table, len(text))
    for at in range(0, len(text), piece):
        part = torch.frombuffer(bytearray(text[at : at + piece]), dtype=torch.uint8)
        assert header.feed(part, at + piece >= len(text)) is None
    assert header.finish(50) is None
    assert [header.name(i) for i in range(header.size())] == list(tensors)
    assert dict(header.metadata()) == {"long": "ß" * 300}
    assert [header.find(name) for name in tensors] == list(range(50)) and header.find("tensor") == -1


U64 = 2**64
BAD: dict[str, tuple[str, object]] = {
    "no dtype": ("ST_JSON", {"a": {"shape": [4], "data_offsets": [0, 4]}}),
    "unknown field": ("ST_EXTRA", {"a": {**described(), "x": 1}}),
    "unknown dtype": ("ST_DTYPE", {"a": described("F33")}),
    "dtype is a number": ("ST_JSON", {"a": {**described(), "dtype": 3}}),
    "shape is a number": ("ST_JSON", {"a": described(shape=4)}),
    "shape of floats": ("ST_JSON", {"a": described(shape=[4.0])}),
    "shape of truth values": ("ST_JSON", {"a": described(shape=[True])}),
    "nested shape": ("ST_JSON", {"a": described(shape=[[4]])}),
    "negative size": ("ST_JSON", {"a": described(shape=[-4])}),
    "too many sizes": ("ST_NDIMS", {"a": described(shape=[1] * 65)}),
    "one offset": ("ST_JSON", {"a": described(offsets=[4])}),
    "three offsets": ("ST_JSON", {"a": described(offsets=[0, 4, 4])}),
    "negative offset": ("ST_OFFS", {"a": described(offsets=[-4, 0])}),
    "offsets the wrong way round": ("ST_OFFS", {"a": described(offsets=[4, 0])}),
    "offset over 63 bits": ("ST_OFFS", {"a": described(offsets=[0, 2**63])}),
    "offset over 64 bits": ("ST_OFFS", {"a": described(offsets=[0, U64 + 4])}),
    "size over 64 bits": ("ST_OVF", {"a": described(shape=[U64 + 4])}),
    "a size over 63 bits beside a 0": ("ST_OVF", {"a": described(shape=[0, 2**63], offsets=[0, 0])}),
    "elements wrap": ("ST_OVF", {"a": described(shape=[2, U64 - 2])}),
    "elements wrap to 0": ("ST_OVF", {"a": described(shape=[2**32, 2**32], offsets=[0, 0])}),
    "bytes wrap": ("ST_OVF", {"a": described("F64", [2**61], [0, 0])}),
    "shape and offsets disagree": ("ST_SIZE", {"a": described("F32")}),
    "half a byte left": ("ST_SUBBYTE", {"a": described("F4", [3], [0, 2])}),
    "rows of half bytes": ("ST_SUBBYTE", {"a": described("F4", [4, 2, 1], [0, 4])}),
    "a scalar of half a byte": ("ST_SUBBYTE", {"a": described("F4", [], [0, 0])}),
    "begins behind the first byte": ("ST_HOLE", {"a": described(shape=[3], offsets=[1, 4])}),
    "a hole": ("ST_HOLE", {"a": described(shape=[1], offsets=[0, 1]), "b": described(shape=[2], offsets=[2, 4])}),
    "an overlap": (
        "ST_OVERLAP",
        {"a": described(shape=[3], offsets=[0, 3]), "b": described(shape=[2], offsets=[2, 4])},
    ),
    "twice the same bytes": ("ST_OVERLAP", {"a": described(), "b": described()}),
    "too few data": ("ST_TRUNC", {"a": described(shape=[5], offsets=[0, 5])}),
    "too many data": ("ST_TRAILING", {"a": described(shape=[3], offsets=[0, 3])}),
    "a list instead of a tensor": ("ST_JSON", {"a": ["U8", [4], [0, 4]]}),
    "nothing instead of a tensor": ("ST_JSON", {"a": None}),
    "metadata is a number": ("ST_JSON", {"__metadata__": {"a": 1}, "b": described()}),
    "metadata is a list": ("ST_JSON", {"__metadata__": [], "b": described()}),
    "a list": ("ST_JSON", []),
    "half of a surrogate pair": ("ST_NAME", {"\ud800": described()}),
    "the other half": ("ST_NAME", {"\udc00x": described()}),
    "surrogates the wrong way round": ("ST_NAME", {"\udc00\ud800": described()}),
    "half of a pair in metadata": ("ST_JSON", {"__metadata__": {"a": "\ud800"}, "b": described()}),
    "no name": ("ST_NAME", {"": described()}),
    "a zero byte": ("ST_NAME", {"a\0b": described()}),
    "a control character": ("ST_NAME", {"a\x85": described()}),
    "an absolute path": ("ST_NAME", {"/a": described()}),
    "a path upwards": ("ST_NAME", {"../../x": described()}),
    "a path upwards in the middle": ("ST_NAME", {"a/../x": described()}),
}
ENTRY = json.dumps(described()).encode()
BAD_TEXT: dict[str, tuple[str, bytes]] = {
    "no header": ("ST_JSON", b""),
    "open": ("ST_JSON", b"{"),
    "white space first": ("ST_BRACE", b' {"a":' + ENTRY + b"}"),
    "many brackets": ("ST_JSON", b"[" * 100_000),
    "many braces": ("ST_JSON", b'{"a":' * 100_000),
    "something behind": ("ST_JSON", b'{"a":' + ENTRY + b"} x"),
    "zero bytes behind": ("ST_JSON", b'{"a":' + ENTRY + b"}\0\0"),
    "a comma too many": ("ST_JSON", b'{"a":' + ENTRY + b",}"),
    "no comma": ("ST_JSON", b'{"a":' + ENTRY + b'"b":' + ENTRY + b"}"),
    "no colon": ("ST_JSON", b'{"a"' + ENTRY + b"}"),
    "a comma first": ("ST_JSON", b'{,"a":' + ENTRY + b"}"),
    "two commas": ("ST_JSON", b'{"a":{"dtype":"U8",,"shape":[4],"data_offsets":[0,4]}}'),
    "numbers without comma": ("ST_JSON", b'{"a":{"dtype":"U8","shape":[4 1],"data_offsets":[0,4]}}'),
    "an exponent": ("ST_JSON", b'{"a":{"dtype":"U8","shape":[4e0],"data_offsets":[0,4]}}'),
    "a zero before a number": ("ST_JSON", b'{"a":{"dtype":"U8","shape":[04],"data_offsets":[0,4]}}'),
    "a plus": ("ST_JSON", b'{"a":{"dtype":"U8","shape":[+4],"data_offsets":[0,4]}}'),
    "not UTF-8": ("ST_UTF8", b'{"\xff":' + ENTRY + b"}"),
    "an overlong form": ("ST_UTF8", b'{"\xc0\xaf":' + ENTRY + b"}"),
    "half of a pair, a character behind the other halves": ("ST_NAME", b'{"\\ud800\\ue000":' + ENTRY + b"}"),
    "an encoded surrogate": ("ST_UTF8", b'{"\xed\xa0\x80":' + ENTRY + b"}"),
    "past U+10FFFF": ("ST_UTF8", b'{"\xf4\x90\x80\x80":' + ENTRY + b"}"),
    "a character cut off": ("ST_UTF8", b'{"\xe2\x82":' + ENTRY + b"}"),
    "a third byte that goes on nothing": ("ST_UTF8", b'{"\xe2\x82(":' + ENTRY + b"}"),
    "half of a surrogate pair and a letter": ("ST_NAME", b'{"\\ud800\\u0041":' + ENTRY + b"}"),
    "digits that are none": ("ST_JSON", b'{"\\u00g1":' + ENTRY + b"}"),
    "a comma behind a size": ("ST_JSON", b'{"a":{"dtype":"U8","shape":[4,],"data_offsets":[0,4]}}'),
    "an unknown escape": ("ST_JSON", b'{"\\x":' + ENTRY + b"}"),
    "a short escape": ("ST_JSON", b'{"\\u12":' + ENTRY + b"}"),
    "a line break in a name": ("ST_JSON", b'{"a\nb":' + ENTRY + b"}"),
    "the same name twice": ("ST_DUP", b'{"a":' + ENTRY + b',"a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}'),
    "the same name, once escaped": (
        "ST_DUP",
        b'{"a":' + ENTRY + b',"\\u0061":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}',
    ),
    "the same field twice": ("ST_DUP", b'{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}'),
    "metadata twice": ("ST_DUP", b'{"__metadata__":{},"__metadata__":{},"a":' + ENTRY + b"}"),
    "the same metadata twice": ("ST_DUP", b'{"__metadata__":{"x":"1","x":"1"},"a":' + ENTRY + b"}"),
}
BAD_TEXT |= {name: (code, json.dumps(header).encode()) for name, (code, header) in BAD.items()}


@pytest.mark.parametrize(("code", "header"), BAD_TEXT.values(), ids=list(BAD_TEXT))
def test_bad_headers(tmp_path: Path, code: str, header: bytes) -> None:
    with pytest.raises(LoadError) as caught:
        open_safetensors(made(tmp_path / "m.safetensors", header, bytes(4)))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("ST_SHORT", b""),
        ("ST_SHORT", bytes(7)),
        ("ST_HLEN", struct.pack("<Q", 3) + b"{}"),
        ("ST_HLEN", struct.pack("<Q", U64 - 8) + b"{}"),
        ("MAGIC", b"\x80\x02}q\x00X\x01\x00\x00\x00" + bytes(40)),
        ("MAGIC", b"PK\x03\x04" + bytes(40)),
        ("MAGIC", b"GGUF\x03\0\0\0" + bytes(40)),
    ],
)
def test_bad_beginnings(tmp_path: Path, code: str, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(LoadError) as caught:
        open_safetensors(path)
    assert caught.value.code == code


def test_a_header_over_the_limit_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001) + b"{}")
        file.truncate(8 + 100_000_001)  # sparse
    with pytest.raises(LoadError) as caught:
        open_safetensors(path)
    assert caught.value.code == "ST_HLEN"


def test_truth_values_are_0_or_1(tmp_path: Path) -> None:
    path = made(tmp_path / "m.safetensors", json.dumps({"a": described("BOOL")}).encode(), b"\0\1\2\0")
    with open_safetensors(path) as container, pytest.raises(LoadError) as caught:
        container.read("a")
    assert caught.value.code == "BOOL"
