"""safetensors files, one alone or a folder of shards, as a container. Headers are read by C++ (csrc/loaders): they may
have a million entries.

Beyond what the format forbids, this is not taken: a header that begins with white space; fields of a tensor that the
format doesn't name; the same name twice; names that look like paths, or with control characters in them; rows of
elements smaller than a byte that aren't whole bytes, even where the whole tensor is; an entry over 8 MiB.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch

from torch_foundry.core import extension  # noqa: F401  (loads the class)
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import Container, TensorInfo
from torch_foundry.io.files import LOOK, MOST_OPEN, File, foreign, is_folder, names_in
from torch_foundry.io.storage import SAFETENSORS

_LONGEST = 100_000_000  # bytes of a header, by the format
_WINDOW = 1 << 18  # bytes of it that are read at a time
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SUFFIXES = (".safetensors", ".safetensors.index.json")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PART = re.compile(r"-\d+-of-(?!0*1\.)\d+\.safetensors$")  # of a model in several files
_LONGEST_INDEX = 1 << 26  # bytes; 10^5 tensors take some 10^7
_DTYPES = [(name, storage.block, storage.nbytes) for name, storage in SAFETENSORS.items()]


class Tensors(Mapping[str, TensorInfo]):
    """The tensors of a file, in the order of its header; a TensorInfo is made when it is asked for."""

    def __init__(self, header: Any, file: File, begin: int) -> None:
        self._header, self._path, self._begin = header, file.path, begin

    def __len__(self) -> int:
        return self._header.size()

    def __iter__(self) -> Iterator[str]:
        return map(self._header.name, range(len(self)))

    def __getitem__(self, name: str) -> TensorInfo:
        index = self._header.find(name)
        if index < 0:
            raise KeyError(name)
        dtype, shape, offset, nbytes = self._header.tensor(index)
        return TensorInfo(name, tuple(shape), SAFETENSORS[dtype].name, self._path, self._begin + offset, nbytes)


def read_header(file: File) -> tuple[dict[str, str], Tensors]:
    """Metadata and tensors of `file`, all of it checked; LoadError otherwise."""
    begin = bytes(file.read(min(LOOK, file.size), 0, "header"))
    if file.size < 8:
        raise LoadError("ST_SHORT", file.path, "header", expected="at least 8 bytes", found=f"{file.size}", offset=0)
    length, most = int.from_bytes(begin[:8], "little"), min(_LONGEST, file.size - 8)
    if length > most:
        if (what := foreign(begin)) is not None:
            raise LoadError("MAGIC", file.path, expected="a safetensors file", found=what, offset=0)
        expected = f"a header of at most {most} bytes"
        raise LoadError("ST_HLEN", file.path, "header", expected=expected, found=f"{length}", offset=0)
    header = torch.classes.torch_foundry.SafetensorsHeader(_DTYPES, length)
    window = torch.empty(min(_WINDOW, length), dtype=torch.uint8)
    for at in range(0, max(length, 1), _WINDOW):
        piece = window[: min(_WINDOW, length - at)]
        file.read_into(piece.numpy().data, 8 + at, "header")
        _raise(header.feed(piece, at + _WINDOW >= length), file)
    _raise(header.finish(file.size - 8 - length), file)
    return header.metadata(), Tensors(header, file, 8 + length)


def _raise(fault: tuple[str, str, str, str, int] | None, file: File) -> None:
    if fault:
        code, field, expected, found, offset = fault
        raise LoadError(code, file.path, field, expected=expected, found=found, offset=None if offset < 0 else offset)


def write_tensors(file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, tensor by tensor, into a file that the caller has opened (and locked)."""
    names = {storage.dtype: name for name, storage in reversed(SAFETENSORS.items()) if storage.block == 1}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    ordered = sorted(tensors.items(), key=lambda each: -each[1].itemsize)  # so that all of them are aligned
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def open_safetensors(path: str | os.PathLike[str] | File, *, check_finite: bool = True) -> Container:
    """The safetensors file `path`, or the safetensors files of the folder `path`, as a container; LoadError if anything
    is wrong.

    path: or a File that is open already. A folder has `model.safetensors`, or the shards that
    `model.safetensors.index.json` names, or a single file of any name; pickles are never read. metadata: texts; of all
    shards together, the first one's where they differ.
    check_finite: see `Container`.
    """
    if isinstance(path, File):
        return _open([path], path.path, None, check_finite)
    path = Path(path)
    if not is_folder(path):
        return _open([path], path, None, check_finite)
    if os.path.lexists(path / SINGLE):
        return _open([path / SINGLE], path, None, check_finite)
    if os.path.lexists(path / INDEX):
        index = read_index(path / INDEX)
        return _open([path / name for name in sorted(set(index.values()))], path, index, check_finite)
    names = names_in(path)
    found = [name for name in names if name.endswith(".safetensors")]
    if len(found) == 1 and not _PART.search(found[0]):
        return _open([path / found[0]], path, None, check_finite)
    expected = f"{SINGLE} or {INDEX}"
    if found:
        raise LoadError("IDX_FILE", path, expected=expected, found=", ".join(found[:3]))
    raise no_weights(path, names)


def no_weights(path: Path, names: Sequence[str]) -> LoadError:
    """Why nothing of `names` in (or at) `path` is read: pickles run code, and of the rest nothing is known."""
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        expected = "safetensors or GGUF: pickles can run code when they are read"
        return LoadError("PICKLE", path, expected=expected, found=", ".join(pickles[:3]))
    return LoadError("NOT_MODEL", path, expected="safetensors with a config.json, or a GGUF file", found="neither")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all of its names, including repeated ones."""


def read_index(path: Path) -> dict[str, str]:
    """The shard (a name without a folder) of each tensor, from an index; LoadError if it isn't one."""

    def fail(code: str, expected: str, found: object, field: str = "weight_map") -> NoReturn:
        raise LoadError(code, path, field, expected=expected, found=ascii(found)[:200])

    file = File(path)
    try:
        if file.size > _LONGEST_INDEX:
            fail("IDX_JSON", f"at most {_LONGEST_INDEX} bytes", file.size, "")
        raw = file.read(file.size, 0, "")
        file.check()
    finally:
        file.close()
    try:
        index = json.loads(raw.decode(), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as problem:
        fail("IDX_JSON", "JSON", str(problem), "")
    maps = [value for name, value in index if name == "weight_map"] if isinstance(index, _Pairs) else []
    if len(maps) != 1 or not isinstance(maps[0], _Pairs) or not maps[0]:
        fail("IDX_JSON", "one object, of names of tensors and of files", f"{len(maps)} of them, or another thing")
    shards: dict[str, str] = {}
    for tensor, name in maps[0]:
        if not isinstance(name, str):
            fail("IDX_JSON", "a file's name", name, tensor)
        if tensor in shards:
            fail("IDX_DUP", "each tensor once", tensor)
        if not name.isprintable() or {"/", "\\", ":"} & set(name) or name in ("", ".", ".."):
            fail("IDX_PATH", "a name in the index's own folder", name, tensor)
        if name.endswith(PICKLES):
            fail("PICKLE", "a safetensors file", f"{name}, a pickle, which could run code", tensor)
        if not name.endswith(".safetensors"):
            fail("IDX_PATH", "a name that ends in .safetensors", name, tensor)
        shards[tensor] = name
    return shards


def _open(paths: Sequence[Path | File], path: Path, index: dict[str, str] | None, check_finite: bool) -> Container:
    files: list[File] = []
    metadata: dict[str, str] = {}
    parts: list[Mapping[str, TensorInfo]] = []
    try:
        for each in paths:
            try:
                files.append(each if isinstance(each, File) else File(each))
            except LoadError as problem:
                if index is None or problem.code != "ABSENT":
                    raise
                raise LoadError(
                    "IDX_FILE", path / INDEX, expected=f"the shard {Path(problem.file).name}", found="no such file"
                ) from None
            texts, part = read_header(files[-1])
            files[-1].check()
            if len(paths) > MOST_OPEN:
                files[-1].rest()
            metadata = texts | metadata
            parts.append(part)
        tensors = parts[0] if index is None else _join(parts, index, path / INDEX)
    except BaseException:
        for file in files:
            file.close()
        raise
    return Container(path, metadata, tensors, files, check_finite=check_finite)


def _join(parts: list[Mapping[str, TensorInfo]], index: dict[str, str], path: Path) -> dict[str, TensorInfo]:
    """The tensors of all shards, which must be those of the index, each in the shard that it names."""
    joined: dict[str, TensorInfo] = {}
    for part in parts:
        for name in part:
            info = part[name]
            if name in joined:
                found = f"{joined[name].path.name} and {info.path.name}"
                raise LoadError("IDX_DUP", path, name, expected="a tensor of one shard", found=found)
            if name not in index:
                raise LoadError("IDX_EXTRA", info.path, name, expected="a tensor that the index names", found="another")
            joined[name] = info
    for name, shard in index.items():
        if name not in joined or joined[name].path.name != shard:
            found = joined[name].path.name if name in joined else "nowhere"
            raise LoadError("IDX_MISSING", path, name, expected=f"a tensor in {shard}", found=found)
    return joined
