"""Reading safetensors files, one alone or a folder of them.

Beyond what the format forbids, this is not taken: a header that begins with white space; fields of a tensor that the
format doesn't name; the same name twice; names that look like paths, or with control characters in them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from torch_foundry.loaders.container import FileContainer
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File
from torch_foundry.loaders.tensors import TensorInfo
from torch_foundry.loaders.types import LIMIT, SAFETENSORS

_LONGEST = 100_000_000  # bytes of a header, by the format
_MOST_DIMS = 64  # what torch takes
_FOREIGN = {b"GGUF": "a GGUF file", b"PK\x03\x04": "a ZIP archive, as torch.save makes"}


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all of its names, also those that it has twice."""


def read_header(file: File) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """Metadata and tensors of `file`, all of it checked; LoadError otherwise."""

    def fail(code: str, expected: str, found: object, field: str = "header") -> NoReturn:
        raise LoadError(code, file.path, field, expected=expected, found=str(found))

    if file.size < 8:
        fail("ST_SHORT", "at least 8 bytes", file.size)
    first = bytes(file.read(8, 0, "header"))
    length = int.from_bytes(first, "little")
    if length > min(_LONGEST, file.size - 8):
        for magic, what in _FOREIGN.items():
            if first.startswith(magic):
                fail("MAGIC", "a safetensors file", what)
        if first[0] == 0x80 and first[1] in range(2, 6):
            fail("MAGIC", "a safetensors file", "a pickle")
        fail("ST_HLEN", f"a header of at most {min(_LONGEST, file.size - 8)} bytes", length)
    raw = file.read(length, 8, "header")
    if raw[:1] != b"{":
        fail("ST_BRACE" if raw.lstrip()[:1] == b"{" else "ST_JSON", "'{'", repr(bytes(raw[:1])))
    try:
        text = raw.decode()
    except UnicodeDecodeError as problem:
        fail("ST_UTF8", "UTF-8", f"byte {problem.object[problem.start]:#x}")
    try:
        header = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as problem:
        fail("ST_JSON", "JSON", str(problem))
    metadata: dict[str, str] = {}
    begin, spans = 8 + length, []
    tensors: dict[str, TensorInfo] = {}
    for name, value in header:
        if name == "__metadata__":
            metadata = _metadata(value, fail)
            continue
        if name in tensors:
            fail("ST_DUP", "each name once", repr(name))
        tensors[name] = info = _tensor(name, value, file.path, begin, fail)
        spans.append((info.offset - begin, info.nbytes, name))
    _check_layout(spans, file.size - begin, fail)
    return metadata, tensors


def _metadata(value: Any, fail: Callable[..., NoReturn]) -> dict[str, str]:
    if not isinstance(value, _Pairs) or not all(isinstance(text, str) for _, text in value):
        fail("ST_JSON", "names and texts", "something else", "__metadata__")
    found = dict(value)
    if len(found) != len(value):
        fail("ST_DUP", "each name once", "one twice", "__metadata__")
    return found


def _tensor(name: str, value: Any, path: Path, begin: int, fail: Callable[..., NoReturn]) -> TensorInfo:
    if not name.isprintable() or name.startswith("/") or ".." in name.split("/"):
        fail("ST_NAME", "a plain name", ascii(name))
    if not isinstance(value, _Pairs):
        fail("ST_JSON", "dtype, shape and data_offsets", "something else", name)
    fields = dict(value)
    if len(fields) != len(value):
        fail("ST_DUP", "each field once", "one twice", name)
    if extra := fields.keys() - {"dtype", "shape", "data_offsets"}:
        fail("ST_EXTRA", "dtype, shape and data_offsets", ascii(sorted(extra)), name)
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not isinstance(dtype, str) or not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        fail("ST_JSON", "a dtype, a list of sizes and two offsets", "something else", name)
    if dtype not in SAFETENSORS:
        fail("ST_DTYPE", "a known dtype", ascii(dtype), name)
    storage, elements = SAFETENSORS[dtype], math.prod(shape)
    if len(shape) > _MOST_DIMS:
        fail("ST_NDIMS", f"at most {_MOST_DIMS} dimensions", len(shape), name)
    if min(shape, default=0) < 0:
        fail("ST_JSON", "sizes of at least 0", shape, name)
    if elements > LIMIT or max(shape, default=0) > LIMIT or elements // storage.block * storage.nbytes > LIMIT:
        fail("ST_OVF", f"at most {LIMIT} bytes", shape, name)
    if storage.block > 1 and (not shape or shape[-1] % storage.block):
        fail("ST_SUBBYTE", f"rows of a multiple of {storage.block} elements", shape, name)
    first, last = offsets
    if not 0 <= first <= last <= LIMIT:
        fail("ST_OFFS", "two offsets, the smaller first", offsets, name)
    nbytes = elements // storage.block * storage.nbytes
    if last - first != nbytes:
        fail("ST_SIZE", f"{nbytes} bytes, as shape and dtype say", last - first, name)
    return TensorInfo(name, tuple(shape), storage.name, path, begin + first, nbytes)


def _whole(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, _Pairs) and all(type(item) is int for item in value)


def _check_layout(spans: list[tuple[int, int, str]], room: int, fail: Callable[..., NoReturn]) -> None:
    end = 0
    for first, nbytes, name in sorted(spans):
        if first < end:
            fail("ST_OVERLAP", f"an offset from {end} on", first, name)
        if first > end:
            fail("ST_HOLE", f"offset {end}", first, name)
        end = first + nbytes
    if end > room:
        fail("ST_TRUNC", f"{end} bytes of data", room, "data")
    if end < room:
        fail("ST_TRAILING", f"{end} bytes of data", room, "data")


def open_safetensors(path: str | os.PathLike[str], *, check_finite: bool = True) -> FileContainer:
    """The safetensors file `path`, or the folder's shards, as a container; LoadError if anything is wrong with them.

    metadata: texts, of a folder those of its first file. check_finite: see `FileContainer`.
    """
    if os.path.isdir(path):
        return open_folder(Path(path), check_finite=check_finite)
    return _open([Path(path)], Path(path), check_finite)


def _open(paths: Iterable[Path], path: Path, check_finite: bool) -> FileContainer:
    files: list[File] = []
    metadata: dict[str, str] = {}
    tensors: dict[str, TensorInfo] = {}
    try:
        for each in paths:
            files.append(File(each))
            texts, found = read_header(files[-1])
            files[-1].check()
            metadata |= texts
            if twice := tensors.keys() & found.keys():
                name = min(twice)
                raise LoadError(
                    "IDX_DUP", each, name, expected="each tensor in one shard", found=f"{tensors[name].path}"
                )
            tensors |= found
    except BaseException:
        for file in files:
            file.close()
        raise
    return FileContainer(path, metadata, tensors, files, check_finite=check_finite)


def open_folder(path: Path, *, check_finite: bool = True) -> FileContainer:
    """The folder's `model.safetensors`, or the shards that `model.safetensors.index.json` names."""
    single = path / "model.safetensors"
    if single.exists():
        return _open([single], path, check_finite)
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return _open([path / name for name in names], path, check_finite)
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return _open(found, path, check_finite)
    raise LoadError("ABSENT", path, expected="model.safetensors or its index", found="neither")
