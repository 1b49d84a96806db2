"""Which variants of kernels run: the built-in table, what `torch-foundry tune` found here, and the environment.

The table proper is in C++ (csrc/core/tuning.cpp). This module fills it when the ops are first used: from the files in
the user's cache that were measured with these shaders and this torch, and from the TORCH_FOUNDRY_.. variables.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from torch_foundry.core import environment, extension, sources
from torch_foundry.core.ahead import recording_for

VERSION = 2
BY_MATRICES = ("matrices", "norm_matrices", "linear_matrix", "moe_matrix")
OPS = ("linear", "norm_linear", "moe_glu", "moe_down", "attention", "linear_routes", *BY_MATRICES)
OVERRIDES = {  # by their names in C++
    "gemv_cols_per_tg": environment.GEMV_COLS_PER_TG,
    "gemv_split_k": environment.GEMV_SPLIT_K,
    "gemv_steps": environment.GEMV_STEPS,
    "subnormals": environment.SUBNORMAL_CODES,
    "tensors": environment.TENSORS,
    "linear_rows": environment.LINEAR_ROWS,
    "matrix_rows": environment.MATRIX_ROWS,
    "tile_rows": environment.TILE_ROWS,
    "attention_keys": environment.ATTENTION_KEYS,
}


class TuningError(ValueError):
    """A table that cannot be used; the text names the file and what is wrong with it."""


@dataclass(frozen=True)
class Key:
    """What a choice is for. linear, norm_linear: `format` of the weight, 1, 2, 4 or 8 `rows`, `n` outputs, `k` inputs.
    moe_glu, moe_down, moe_matrix: of one expert, 1 row; gate and up are 2 I outputs of moe_glu.
    linear_routes, matrices, norm_matrices: 1 row, for any number; linear_matrix: `rows` are eights of rows.
    attention: `format` is the dtype (f32, f16, bf16), `n` the head_dim, `rows` and `k` are 1."""

    op: str
    format: str
    rows: int
    n: int
    k: int


@dataclass(frozen=True)
class Entry:
    """The best choice found for a key, and its time in microseconds beside that of the default choice."""

    key: Key
    choice: dict[str, int]
    us: float
    default_us: float


@dataclass(frozen=True)
class Table:
    """What was found on one kind of device, with what it was found for."""

    family: str
    shaders: str
    torch: str
    device: str = ""
    entries: tuple[Entry, ...] = field(default=())

    def with_entry(self, entry: Entry) -> Table:
        """The table with `entry` in the place of what it had for that key."""
        return replace(self, entries=(*(e for e in self.entries if e.key != entry.key), entry))


@cache
def shaders_digest() -> str:
    """Identity of the kernels in use: a table for others says nothing about them."""
    return sources.tree_digest(extension.shader_dir())[:16]


def torch_version() -> str:
    """Of torch, without the build: "2.13"."""
    return ".".join(torch.__version__.split(".")[:2])


def family(device: torch.device | str) -> str:
    """Kind of `device`: "host", "sm_90-h200", "apple8"."""
    return str(torch.ops.torch_foundry._family(str(device)))


@dataclass(frozen=True, slots=True)
class LinearRoutes:
    """Rows of x up to which each way serves a product, where none before it does: `ops.linear` by its vector kernel
    (which `ops` themselves take for `limits.FEW_ROWS` at least), as matrices without unpacking (packed weights alone)
    and by tensor operations (both with x of 16 bits alone), by tiles; torch's product beyond. Up to how many
    `ops.linear_backward_input` serves, and tiles of an expert (`ops.moe_linear`), for packed weights."""

    rows: int
    matrix: int
    tiles: int
    backward: int
    experts: int
    tensors: int

    def most(self, packed: bool, dtype: torch.dtype) -> int:
        """Rows of x of `dtype` up to which `ops.linear` is faster than torch."""
        halves = max(self.matrix if packed else 0, self.tensors) if dtype.itemsize == 2 else 0
        return max(self.rows, halves, self.tiles)


def linear_routes(device: torch.device, format: str, n: int, k: int) -> LinearRoutes:
    """What is in use on `device` ("meta": on the one that kernels are listed for) for a weight [n, k]."""
    return _linear_routes((recording_for() if device.type == "meta" else device) or device, format, n, k)


@lru_cache(maxsize=4096)  # emptied by whatever changes a choice
def _linear_routes(device: torch.device, format: str, n: int, k: int) -> LinearRoutes:
    of = "" if device.type == "meta" else family(device)
    found = LinearRoutes(**choice(of, Key("linear_routes", format, 1, n, k)))
    used = found.tensors and torch.ops.torch_foundry._tuning_tensors(str(device))
    return found if used else replace(found, tensors=0)


def new_table(of: str, device: str = "") -> Table:
    """An empty table for this build's kernels."""
    return Table(of, shaders_digest(), torch_version(), device)


def directory() -> Path:
    """Where tables are kept: below the user's cache directory."""
    return extension.cache_dir() / "tuning"


def path_of(table: Table) -> Path:
    """The file of a table; its name holds all that the table depends on."""
    return directory() / f"{table.family}-{table.shaders}-torch{table.torch}.json"


@cache
def parameters(op: str) -> Mapping[str, tuple[int, ...]]:
    """What a choice for `op` consists of, in order, and the values that each part may have."""
    return {name: tuple(values) for name, values in torch.ops.torch_foundry._tuning_parameters(op).items()}


def bucket(key: Key) -> tuple[int, int]:
    """The bucket of shapes that a choice for `key` is used for."""
    n, k = torch.ops.torch_foundry._tuning_bucket(key.op, key.rows, key.n, key.k)
    return n, k


def choice(of: str, key: Key) -> dict[str, int]:
    """The choice in use for `key` on devices of the family `of`."""
    values = torch.ops.torch_foundry._tuning_choice(of, key.op, key.format, key.rows, key.n, key.k)
    return dict(zip(parameters(key.op), values, strict=True))


def use(of: str, key: Key, wanted: dict[str, int]) -> None:
    """Use `wanted` for `key`'s bucket of shapes from now on. RuntimeError if it breaks a limit of Apple GPUs."""
    values = [wanted[name] for name in parameters(key.op)]
    torch.ops.torch_foundry._tuning_add(of, key.op, key.format, key.rows, key.n, key.k, values)
    _linear_routes.cache_clear()


def forget() -> None:
    """Use the built-in entries alone (and the environment's)."""
    torch.ops.torch_foundry._tuning_clear()
    _linear_routes.cache_clear()


def apply(table: Table) -> None:
    """Use all entries of `table`."""
    for entry in table.entries:
        use(table.family, entry.key, entry.choice)


def dumps(table: Table) -> str:
    """JSON text of a table, one entry a line."""
    head = {"version": VERSION, "sum": _sum(table), **{k: v for k, v in asdict(table).items() if k != "entries"}}
    lines = ",\n  ".join(json.dumps(_as_dict(e)) for e in _sorted(table))
    return f'{json.dumps(head)[:-1]}, "entries": [\n  {lines}\n]}}\n'


def _as_dict(e: Entry) -> dict[str, Any]:
    return {**asdict(e.key), "choice": e.choice, "us": e.us, "default_us": e.default_us}


def _sum(table: Table) -> str:
    """Of all that a table says: a changed one isn't used."""
    parts = [table.family, table.shaders, table.torch, table.device, *(json.dumps(_as_dict(e)) for e in _sorted(table))]
    return sources.digest(*(part.encode() for part in parts))


def _sorted(table: Table) -> list[Entry]:
    return sorted(table.entries, key=lambda e: (e.key.op, e.key.format, e.key.rows, e.key.n, e.key.k))


def loads(text: str, name: str) -> Table:
    """A table from its text. TuningError, with `name`, unless every entry could be used."""
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            raise TuningError(f"{name}: written by another version ({data['version']}, expected {VERSION})")
        entries = tuple(_entry(e) for e in data["entries"])
        family, shaders, version, device = (_text(data[k]) for k in ("family", "shaders", "torch", "device"))
        table = Table(family, shaders, version, device, entries)
        kept = data["sum"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, TuningError):
            raise
        raise TuningError(f"{name}: not a tuning table ({type(error).__name__}: {error})") from None
    for e in table.entries:
        _check(e, name)
    if kept != _sum(table):
        raise TuningError(f"{name}: not as it was written")
    return table


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value


def _entry(e: dict[str, Any]) -> Entry:
    key = Key(_text(e["op"]), _text(e["format"]), *(int(e[name]) for name in ("rows", "n", "k")))
    return Entry(key, {str(k): int(v) for k, v in e["choice"].items()}, float(e["us"]), float(e["default_us"]))


def _check(entry: Entry, name: str) -> None:
    try:
        key, names = entry.key, parameters(entry.key.op)
        if set(names) != set(entry.choice):
            raise TuningError(f"{name}: {key}: expected {', '.join(names)}, got {', '.join(entry.choice)}")
        values = [entry.choice[n] for n in names]
        torch.ops.torch_foundry._tuning_check(key.op, key.format, key.rows, key.n, key.k, values)
    except RuntimeError as error:
        raise TuningError(f"{name}: {entry.key}: {str(error).splitlines()[0]}") from None


def read(path: Path) -> Table:
    """The table in a file; TuningError or OSError says why not."""
    try:
        return loads(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise TuningError(f"{path}: not a tuning table ({error})") from None


def write(table: Table) -> Path:
    """Save a table in its place in the user's cache."""
    path = path_of(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(dumps(table))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def check_fits(table: Table, name: str, of: str | None = None) -> None:
    """TuningError unless the table was made with these kernels and this torch (and, if given, for the family `of`)."""
    expected = {"shaders": shaders_digest(), "torch": torch_version(), **({"family": of} if of else {})}
    for what, value in expected.items():
        if getattr(table, what) != value:
            raise TuningError(f"{name}: made for {what} {getattr(table, what)}, but this is {what} {value}: tune again")


def load_environment() -> None:
    """Apply the environment's overrides (TORCH_FOUNDRY_...). ValueError names the variable and its allowed values."""
    for name, variable in OVERRIDES.items():
        torch.ops.torch_foundry._tuning_override(name, int(variable.value() or -1))
    _linear_routes.cache_clear()


def load_files() -> None:
    """Use the tables in the user's cache that were made with these kernels and this torch; warn about a damaged one."""
    try:
        paths = sorted(p for p in directory().glob("*.json") if f"-{shaders_digest()}-torch{torch_version()}" in p.stem)
    except OSError:
        paths = []  # a cache that can't be read
    for path in paths:
        try:
            table = read(path)
            check_fits(table, str(path))
            apply(table)
        except (TuningError, OSError) as error:
            say = f"{error}; the built-in choices are used (`torch-foundry tune` makes a new table)"
            warnings.warn(say, stacklevel=2)


load_environment()
load_files()
