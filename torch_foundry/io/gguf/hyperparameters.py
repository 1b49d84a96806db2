"""Hyperparameters from GGUF metadata, each of its type and within its range."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.architectures import ARCHITECTURES
from torch_foundry.io.gguf.keys import NEUTRAL, REQUIRED, Key

_KINDS = {
    int: "an integer",
    float: "a floating-point number",
    bool: "a truth value",
    str: "a string",
    object: "numbers",
}


def find_architecture(metadata: Mapping[str, Any], file: str | os.PathLike[str]) -> tuple[str, Architecture]:
    """Name of the file's architecture, and what such a file holds. LoadError ARCH_MISSING, ARCH_UNKNOWN."""
    key = "general.architecture"
    name = metadata.get(key)
    if not isinstance(name, str):
        raise LoadError("ARCH_MISSING", file, key, expected="a name", found=_shown(name))
    found = ARCHITECTURES.get(name)
    if found is None:
        raise LoadError("ARCH_UNKNOWN", file, key, expected="one of " + ", ".join(ARCHITECTURES), found=_shown(name))
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise LoadError("NOT_MODEL", file, "general.type", expected="'model'", found=_shown(kind))
    for variant, other in found.variants.items():
        key, _, wanted = variant.partition("=")
        value = _single(metadata.get(f"{name}.{key}"))
        if isinstance(value, int | float) and (value == int(wanted) if wanted else value > 0):
            return name, other
    return name, found


def read_hyperparameters(
    metadata: Mapping[str, Any], name: str, keys: Iterable[Key], file: str | os.PathLike[str]
) -> dict[str, Any]:
    """All hyperparameters `keys`, by key without the architecture's `name`; None: not there.

    LoadError HP_MISSING, HP_TYPE, HP_RANGE; HP_RANGE too for a key that means another kind of model.
    """
    values: dict[str, Any] = {}
    for key in keys:
        there = [said for said in (key.name, key.also) if said and f"{name}.{said}" in metadata]
        values[key.name] = _read(metadata, f"{name}.{(there or [key.name])[0]}", key, file)
    for unused, neutral in NEUTRAL.items():
        full = f"{name}.{unused}"
        if unused not in values and full in metadata and _single(metadata[full]) not in neutral:
            expected = f"{_shown(neutral[0])}: anything else makes a model that is not known here"
            raise LoadError("HP_RANGE", file, full, expected=expected, found=_shown(metadata[full]))
    return values


def _read(metadata: Mapping[str, Any], full: str, key: Key, file: str | os.PathLike[str]) -> Any:
    if full not in metadata:
        if key.default is REQUIRED:
            raise LoadError("HP_MISSING", file, full, expected=_KINDS[key.kind], found="none")
        return key.default
    found: Any = metadata[full]
    if key.kind is object:
        return found
    value: Any = _single(found)
    if value is None:
        raise LoadError("HP_RANGE", file, full, expected="the same value for all layers", found=_shown(found))
    if key.kind.__name__ != type(value).__name__:  # True is no integer
        raise LoadError("HP_TYPE", file, full, expected=_KINDS[key.kind], found=_shown(value))
    if key.kind is str:
        return value
    if key.default is None and not value and key.low <= 1e-9:
        return None  # 0 says "none" where there may be none
    value = shortest(value) if key.kind is float else value
    if not key.low <= value <= key.high:  # NaN is not
        expected = f"{'more than 0' if 0 < key.low < 1e-9 else f'at least {key.low:g}'}, at most {key.high:g}"
        raise LoadError("HP_RANGE", file, full, expected=expected, found=_shown(value))
    return value


def shortest(value: float) -> float:
    """The shortest number that float32 rounds to `value`: 1e-6 is what the config had that a file was made from."""
    single = np.float32(value)
    return float(str(single)) if single == value else value


def _single(value: Any) -> Any:
    """The value that an array has for all layers alike; None if it hasn't."""
    if not hasattr(value, "tolist"):
        return value
    if len(value) > 1 << 12:  # as many layers as there may be
        return None
    distinct = set(value.tolist())
    return distinct.pop() if len(distinct) == 1 else None


def _shown(value: Any) -> str:
    """A value of a file, short enough for a message."""
    if hasattr(value, "tolist"):
        return f"an array of {len(value)}"
    if value is None:
        return "none"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
