"""safetensors files, one alone or a folder of shards, as a container."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torch_foundry.loaders.container import FileContainer
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import MOST_OPEN, File, is_folder, names_in
from torch_foundry.loaders.safetensors import read_header
from torch_foundry.loaders.tensors import TensorInfo

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PART = re.compile(r"-\d+-of-(?!0*1\.)\d+\.safetensors$")  # of a model in several files
_LONGEST_INDEX = 1 << 26  # bytes; 10^5 tensors take some 10^7


def open_safetensors(path: str | os.PathLike[str], *, check_finite: bool = True) -> FileContainer:
    """The safetensors file `path`, or the safetensors files of the folder `path`, as a container; LoadError if anything
    is wrong.

    A folder has `model.safetensors`, or the shards that `model.safetensors.index.json` names, or a single file of any
    name; pickles are never read. metadata: texts; of all shards together, the first one's where they differ.
    check_finite: see `FileContainer`.
    """
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
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        raise LoadError("PICKLE", path, expected=expected, found=f"{pickles[0]}, a pickle, which could run code")
    raise LoadError("NOT_MODEL", path, expected=expected, found="no weights")


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
        if name.endswith(_PICKLES):
            fail("PICKLE", "a safetensors file", f"{name}, a pickle, which could run code", tensor)
        if not name.endswith(".safetensors"):
            fail("IDX_PATH", "a name that ends in .safetensors", name, tensor)
        shards[tensor] = name
    return shards


def _open(paths: Sequence[Path], path: Path, index: dict[str, str] | None, check_finite: bool) -> FileContainer:
    files: list[File] = []
    metadata: dict[str, str] = {}
    parts: list[Mapping[str, TensorInfo]] = []
    try:
        for each in paths:
            try:
                files.append(File(each))
            except LoadError as problem:
                if index is None or problem.code != "ABSENT":
                    raise
                raise LoadError(
                    "IDX_FILE", path / INDEX, expected=f"the shard {each.name}", found="no such file"
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
    return FileContainer(path, metadata, tensors, files, check_finite=check_finite)


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
