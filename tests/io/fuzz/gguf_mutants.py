"""What is done to sound GGUF files: by field, by entry, by place."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tests.io.corpus.gguf_bytes import _PACK, ARR

from .gguf_fields import Entry, Field, Mutant, text_fields
from .integers import OPERATIONS

Strategy = Callable[[random.Random, Mutant], None]
STRATEGIES: dict[str, Strategy] = {}
INTEGERS = (
    "version", "n_tensors", "n_keys", "key length", "key type", "alignment", "string length", "array type",
    "array length", "truth", "scalar", "name length", "dimensions", "dim", "tensor type", "offset",
)  # fmt: skip
BAD_TEXTS = (
    *(b"\0", b"", b"\xff", b"\xed\xa0\x80", b"\x1b[0m", b"\xc3", b"x" * 65, b"\n", b"\x7f"),
    *("é".encode(), b"x" * 70000),
)


def _integer(kind: str, operation: Callable[[random.Random, int], int]) -> Strategy:
    def strategy(rng: random.Random, file: Mutant) -> None:
        if fields := file.fields(kind):
            field = rng.choice(fields)
            field.put(operation(rng, field.value))

    return strategy


def _words(kind: str, fit: bool) -> Strategy:
    def strategy(rng: random.Random, file: Mutant) -> None:
        places = [
            (entry, at) for entry in (*file.keys, *file.tensors) for at, f in enumerate(entry) if f.kind == kind and at
        ]
        if not places:
            return
        entry, at = rng.choice(places)
        place = rng.randrange(len(entry[at].data) + 1)
        bad = rng.choice(BAD_TEXTS)
        entry[at].data = entry[at].data[:place] + bad + entry[at].data[place:] if bad and rng.random() < 0.7 else bad
        if fit:
            entry[at - 1].put(len(entry[at].data))

    return strategy


for _kind in INTEGERS:
    for _name, _operation in OPERATIONS.items():
        STRATEGIES[f"{_kind}: {_name}"] = _integer(_kind, _operation)
for _kind in ("key", "name", "string"):
    STRATEGIES[f"{_kind}: bad text"] = _words(_kind, True)
    STRATEGIES[f"{_kind}: bad text, old length"] = _words(_kind, False)


def strategy(function: Strategy) -> Strategy:
    STRATEGIES[function.__name__.strip("_").replace("_", " ")] = function
    return function


def _some(rng: random.Random, file: Mutant) -> list[Entry]:
    return file.keys if file.keys and (rng.random() < 0.5 or not file.tensors) else file.tensors


def _recount(rng: random.Random, file: Mutant) -> None:
    """Mostly, counts that fit: else nothing behind them is ever read."""
    if rng.random() < 0.8:
        file.head[2].put(len(file.tensors))
        file.head[3].put(len(file.keys))


def _copy(entry: Entry) -> Entry:
    return [Field(field.kind, field.data) for field in entry]


@strategy
def _repeat_entry(rng: random.Random, file: Mutant) -> None:
    if entries := _some(rng, file):
        entries.insert(rng.randrange(len(entries) + 1), _copy(rng.choice(entries)))
        _recount(rng, file)


@strategy
def _delete_entry(rng: random.Random, file: Mutant) -> None:
    if entries := _some(rng, file):
        entries.pop(rng.randrange(len(entries)))
        _recount(rng, file)


@strategy
def _swap_entries(rng: random.Random, file: Mutant) -> None:
    if entries := _some(rng, file):
        a, b = rng.randrange(len(entries)), rng.randrange(len(entries))
        entries[a], entries[b] = entries[b], entries[a]


@strategy
def _key_among_tensors(rng: random.Random, file: Mutant) -> None:
    if file.keys:
        file.tensors.insert(rng.randrange(len(file.tensors) + 1), _copy(rng.choice(file.keys)))
        _recount(rng, file)


@strategy
def _tensor_among_keys(rng: random.Random, file: Mutant) -> None:
    if file.tensors:
        file.keys.insert(rng.randrange(len(file.keys) + 1), _copy(rng.choice(file.tensors)))
        _recount(rng, file)


@strategy
def _delete_field(rng: random.Random, file: Mutant) -> None:
    entries = [entry for entry in (*file.keys, *file.tensors) if entry]
    if entries:
        entry = rng.choice(entries)
        entry.pop(rng.randrange(len(entry)))


@strategy
def _repeat_field(rng: random.Random, file: Mutant) -> None:
    entries = [entry for entry in (*file.keys, *file.tensors) if entry]
    if entries:
        entry = rng.choice(entries)
        at = rng.randrange(len(entry))
        entry.insert(at, Field(entry[at].kind, entry[at].data))


@strategy
def _swap_fields(rng: random.Random, file: Mutant) -> None:
    fields = [field for entry in (file.head, *file.keys, *file.tensors) for field in entry]
    a, b = rng.choice(fields), rng.choice(fields)
    a.data, b.data = b.data, a.data


@strategy
def _same_value(rng: random.Random, file: Mutant) -> None:
    """A field gets the value of another of its kind: offsets that overlap, types that do not fit."""
    kind = rng.choice(("name", "key", "offset", "offset", "dim", "tensor type", "key type", "array type"))
    if len(fields := file.fields(kind)) > 1:
        a, b = rng.sample(fields, 2)
        a.data = b.data


@strategy
def _same_name(rng: random.Random, file: Mutant) -> None:
    entries = file.tensors if rng.random() < 0.5 else file.keys
    if len(entries) > 1:
        a, b = rng.sample(entries, 2)
        a[:2] = _copy(b[:2])


@strategy
def _nest_arrays(rng: random.Random, file: Mutant) -> None:
    depth = rng.choice((1, 2, 50, 5000))
    value = struct.pack("<I", ARR) + struct.pack("<IQ", ARR, 1) * depth + struct.pack("<IQ", 0, 0)
    file.keys.append([*text_fields("key", b"nested"), Field("raw", value)])
    _recount(rng, file)


@strategy
def _alignment_key(rng: random.Random, file: Mutant) -> None:
    kind = rng.choice((4, 4, 4, 5, 10, 0))
    width = struct.calcsize(_PACK[kind])
    value = rng.choice((0, 1, 2, 4, 8, 13, 16, 24, 32, 128, 4096, 1 << 30, 1 << 31)) % (1 << (8 * width - 1))
    entry = [Field("key type", struct.pack("<I", kind)), Field("alignment", value.to_bytes(width, "little"))]
    file.keys.append(text_fields("key", b"general.alignment") + entry)
    _recount(rng, file)


@strategy
def _magic(rng: random.Random, file: Mutant) -> None:
    file.head[0].data = rng.choice((b"FUGG", b"tjgg", b"gguf", b"GGU", b"\0" * 4, b"PK\3\4"))


@strategy
def _shift_offsets(rng: random.Random, file: Mutant) -> None:
    step = rng.choice((-32, -1, 1, 8, 32, 64, 1 << 40))
    for field in file.fields("offset"):
        field.put(field.value + step)


@strategy
def _nonfinite_data(rng: random.Random, file: Mutant) -> None:
    if len(file.data) > 4:
        at = rng.randrange(len(file.data) - 3)
        bad = rng.choice((b"\0\x7c", b"\0\x7e", b"\0\0\xc0\x7f", b"\xff\xff", b"\x80\x7f", b"\xff"))
        file.data = (file.data[:at] + bad + file.data[at + len(bad) :])[: len(file.data)]


@strategy
def _data_cut(rng: random.Random, file: Mutant) -> None:
    file.data = file.data[: rng.randrange(len(file.data) + 1)]


@strategy
def _data_longer(rng: random.Random, file: Mutant) -> None:
    file.data += bytes(rng.choice((1, 8, 31, 32, 33, 4096)))
