"""Sound safetensors files, and what is done to them: to the length, to the JSON as a tree, to the data."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .integers import EDGES, OPERATIONS

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F64": 8}
DTYPES = (*SIZES, "F33", "f32", "", "F4", "F6_E2M3", "C64", "U64", "F8_E5M2FNUZ", 11, None, ["F32"], "F32\0")
HUGE = 10**4000
ODD = (None, True, False, 1.5, "8", [], {}, [8], -1, float("nan"), float("inf"), 1e400, *EDGES[-12:], HUGE)
NAMES = (
    "",
    "a\0b",
    "\ud800",
    "../../x",
    "/etc/passwd",
    "a\x1b[0m",
    "größe",
    "x" * 3000,
    "__metadata__",
    "..",
    "\x7f",
    "a/../b",
)


@dataclass
class Mutant:
    """pairs: name and description of each tensor, in which names may come twice."""

    pairs: list[tuple[str, Any]]
    data: bytes
    metadata: Any = None
    extra: int = 0  # that the header's length is wrong by
    length: int | None = None

    def text(self) -> str:
        pairs = self.pairs if self.metadata is None else [("__metadata__", self.metadata), *self.pairs]
        return "{" + ",".join(f"{json.dumps(name)}:{_dumps(value)}" for name, value in pairs) + "}"

    def bytes(self, text: str | None = None) -> bytes:
        raw = (self.text() if text is None else text).encode(errors="surrogatepass")
        length = len(raw) + self.extra if self.length is None else self.length
        return struct.pack("<Q", length % (1 << 64)) + raw + self.data


def _dumps(value: Any) -> str:
    if (
        isinstance(value, list) and value and all(isinstance(item, tuple) for item in value)
    ):  # an object whose names may come twice
        return "{" + ",".join(f"{json.dumps(k)}:{_dumps(v)}" for k, v in value) + "}"
    return json.dumps(value)


def sound(rng: random.Random) -> Mutant:
    """A file that every reader takes."""
    pairs: list[tuple[str, Any]] = []
    data = b""
    for index in range(rng.randrange(5)):
        dtype = rng.choice(list(SIZES))
        shape = [rng.randrange(0 if rng.random() < 0.1 else 1, 4) for _ in range(rng.randrange(4))]
        count = SIZES[dtype]
        for dim in shape:
            count *= dim
        value = [("dtype", dtype), ("shape", shape), ("data_offsets", [len(data), len(data) + count])]
        pairs.append((f"layers.{index}.weight", value))
        data += bytes(count)
    rng.shuffle(pairs)
    return Mutant(pairs, data, rng.choice((None, {"format": "pt"}, {}, {"a": "ß"})))


Strategy = Callable[[random.Random, Mutant], None]
STRATEGIES: dict[str, Strategy] = {}


def _put(rng: random.Random, file: Mutant, name: str, change: Callable[[Any], Any]) -> None:
    """Change a field of some tensor."""
    if file.pairs:
        value = rng.choice(file.pairs)[1]
        if isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, tuple) and item[0] == name:
                    value[at] = (name, change(item[1]))


def _number(name: str, operation: Callable[[random.Random, int], int]) -> Strategy:
    def strategy(rng: random.Random, file: Mutant) -> None:
        def change(values: Any) -> Any:
            if not isinstance(values, list) or not values:
                return values
            at = rng.randrange(len(values))
            old = values[at] if type(values[at]) is int else 0
            return [*values[:at], operation(rng, old), *values[at + 1 :]]

        _put(rng, file, name, change)

    return strategy


def _length(operation: Callable[[random.Random, int], int]) -> Strategy:
    def strategy(rng: random.Random, file: Mutant) -> None:
        file.length = operation(rng, len(file.text()))

    return strategy


def _field(name: str, change: Callable[[random.Random, Any], Any]) -> Strategy:
    return lambda rng, file: _put(rng, file, name, lambda value: change(rng, value))


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list) else [values]


for _name, _operation in OPERATIONS.items():
    STRATEGIES[f"header length: {_name}"] = _length(_operation)
    STRATEGIES[f"shape: {_name}"] = _number("shape", _operation)
    STRATEGIES[f"data_offsets: {_name}"] = _number("data_offsets", _operation)
for _name in ("shape", "data_offsets"):
    STRATEGIES[f"{_name}: odd element"] = _number(_name, lambda rng, _: copy.deepcopy(rng.choice(ODD)))
    STRATEGIES[f"{_name}: odd value"] = _field(_name, lambda rng, _: copy.deepcopy(rng.choice(ODD)))
    STRATEGIES[f"{_name}: one more"] = _field(_name, lambda rng, v: [*_listed(v), rng.choice((0, 1, 2, 1 << 32))])
    STRATEGIES[f"{_name}: one fewer"] = _field(_name, lambda rng, v: _listed(v)[:-1])
    STRATEGIES[f"{_name}: reversed"] = _field(_name, lambda rng, v: _listed(v)[::-1])
    STRATEGIES[f"{_name}: many"] = _field(_name, lambda rng, v: _listed(v) * rng.choice((2, 40, 70, 3000)))
STRATEGIES["dtype: another"] = _field("dtype", lambda rng, _: rng.choice(DTYPES))
STRATEGIES["data_offsets: huge"] = _field("data_offsets", lambda rng, _: [0, rng.choice(EDGES[-20:])])
STRATEGIES["shape: product wraps"] = _field("shape", lambda rng, _: [1 << 32] * rng.choice((2, 3, 4)))


def strategy(function: Strategy) -> Strategy:
    STRATEGIES[function.__name__.strip("_").replace("_", " ")] = function
    return function


@strategy
def _shift_offsets(rng: random.Random, file: Mutant) -> None:
    step = rng.choice((-8, -1, 1, 4, 8, 1 << 40))
    for _, value in file.pairs:
        for at, item in enumerate(value if isinstance(value, list) else []):
            if isinstance(item, tuple) and item[0] == "data_offsets" and isinstance(item[1], list):
                value[at] = (item[0], [x + step if type(x) is int else x for x in item[1]])


@strategy
def _repeat_tensor(rng: random.Random, file: Mutant) -> None:
    if file.pairs:
        file.pairs.insert(rng.randrange(len(file.pairs) + 1), rng.choice(file.pairs))


@strategy
def _tensor_over_another(rng: random.Random, file: Mutant) -> None:
    if file.pairs:
        file.pairs.append(("over", rng.choice(file.pairs)[1]))


@strategy
def _delete_tensor(rng: random.Random, file: Mutant) -> None:
    if file.pairs:
        file.pairs.pop(rng.randrange(len(file.pairs)))


@strategy
def _rename(rng: random.Random, file: Mutant) -> None:
    if file.pairs:
        at = rng.randrange(len(file.pairs))
        file.pairs[at] = (rng.choice(NAMES), file.pairs[at][1])


@strategy
def _odd_tensor(rng: random.Random, file: Mutant) -> None:
    if file.pairs:
        at = rng.randrange(len(file.pairs))
        file.pairs[at] = (file.pairs[at][0], copy.deepcopy(rng.choice(ODD)))


@strategy
def _field_missing(rng: random.Random, file: Mutant) -> None:
    if file.pairs and isinstance(value := rng.choice(file.pairs)[1], list) and value:
        value.pop(rng.randrange(len(value)))


@strategy
def _field_twice(rng: random.Random, file: Mutant) -> None:
    if file.pairs and isinstance(value := rng.choice(file.pairs)[1], list) and value:
        value.append(rng.choice(value))


@strategy
def _field_extra(rng: random.Random, file: Mutant) -> None:
    if file.pairs and isinstance(value := rng.choice(file.pairs)[1], list) and value:
        value.append(("extra", copy.deepcopy(rng.choice(ODD[:9]))))


@strategy
def _metadata(rng: random.Random, file: Mutant) -> None:
    file.metadata = rng.choice(
        ([], 1, "x", {"a": 1}, {"a": None}, {"a": {"b": "c"}}, [("a", "b"), ("a", "c")], {"": ""})
    )


@strategy
def _data_cut(rng: random.Random, file: Mutant) -> None:
    file.data = file.data[: rng.randrange(len(file.data) + 1)]


@strategy
def _data_longer(rng: random.Random, file: Mutant) -> None:
    file.data += bytes(rng.choice((1, 4, 8, 4096)))


@strategy
def _data_noise(rng: random.Random, file: Mutant) -> None:
    file.data = rng.randbytes(len(file.data))
