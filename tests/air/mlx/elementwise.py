"""Unary, copying, binary and ternary kernels, on special and random values; general ones on turned axes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import MSL, TYPE, TYPES, Buffer, Case, edges

COUNT = 512
SHAPE = (3, 5, 12)  # of general kernels, x last
# name of the template by the kind in a kernel's name; how many axes a general kernel has
VECTOR = {"v": "v", "vn": "v", "v2": "v2", "s": "s", "sn": "s", "s2": "s2"}
BINARY = {f"{kind}{end}": f"{kind}{end.strip('n')}" for kind in ("vv", "sv", "vs") for end in ("", "n", "2")}
GENERAL = re.compile(r"g(\d|n\d)(large)?")
COMPARES = re.compile("Equal|NaNEqual|Not|Less|Greater|Logical")
ARANGE = re.compile(rf"arange({TYPE})")
BFLOAT = {0: Buffer(np.array([0x4040], np.uint16), "bfloat16"), 1: Buffer(np.array([0x4000], np.uint16), "bfloat16")}
UNARY = re.compile(rf"([vg]\w*?)_([A-Z]\w*?)({TYPE})({TYPE})")
COPY = re.compile(rf"([vsg]\w*?)_copy({TYPE})({TYPE})")
TWO = re.compile(rf"([vsg]\w*?)_([A-Z]\w*?)({TYPE})")


def case(name: str) -> Case | None:
    if found := ARANGE.fullmatch(name):
        kind = found[1]
        first = {0: Buffer.of(3, kind), 1: Buffer.of(2, kind)} if kind != "bfloat16" else BFLOAT
        return Case(name, "arange", f"arange<{MSL[kind]}>", lambda: first | {2: Buffer.poisoned(kind, 40)}, (40,), (8,))
    if found := COPY.fullmatch(name):
        kind, given, made = found.groups()
        if "gg" in kind or "dynamic" in kind:
            return None
        return _case(name, "copy", "copy", kind, [given], made, "")
    if found := UNARY.fullmatch(name):
        kind, op, given, made = found.groups()
        return _case(name, "unary_ops unary", "unary", kind, [given], made, op)
    if found := TWO.fullmatch(name):
        kind, op, given = found.groups()
        if op == "Select":
            return _ternary(name, kind, given)
        if op == "DivMod":  # which has two results
            return None
        made = "bool_" if COMPARES.match(op) else given
        return _case(name, "binary_ops binary", "binary", kind, [given, given], made, op)
    return None


def _case(name: str, source: str, base: str, kind: str, given: list[str], made: str, op: str) -> Case | None:
    types = [MSL[given[0]], MSL[made], *([op] if op else [])]
    if general := GENERAL.fullmatch(kind):
        axes, large = general.groups()
        index = [] if large else ["int"]
        if axes.startswith("n"):
            instance = f"{base}_g<{', '.join([*types, axes[1:], *index])}>"
        else:
            instance = f"{base}_g_nd{axes}<{', '.join([*types, *index])}>"
        per_thread = int(axes[1:]) if axes.startswith("n") else 1
        buffers = partial(_general, base, axes, given, made, op)
        x, y, z = _grid(axes, per_thread)
        return Case(name, source, instance, buffers, (x, y, z), (min(x, 8), 1, 1))
    table = BINARY if base == "binary" else VECTOR
    if base == "binary" and kind == "ss":
        return Case(name, source, f"binary_ss<{', '.join(types)}>", partial(_vector, given, made, "", op), (8,), (8,))
    if kind not in table or (base == "unary" and kind.startswith("s")):
        return None
    plain = not kind.endswith(("n", "2"))
    instance = f"{base}_{table[kind]}<{', '.join([*types, *(['1'] if plain else [])])}>"
    buffers = partial(_vector, given, made, "int64" if kind.endswith("2") else "uint32", op)
    grid = (COUNT // 2, 2, 1) if kind.endswith("2") else (COUNT, 1, 1)
    if not plain:  # several elements a thread; the last thread has fewer
        grid = (grid[0] // _per_thread(given[0]), grid[1], 1)
    return Case(name, source, instance, buffers, grid, (32,))


def _per_thread(kind: str) -> int:
    """WorkPerThread of MLX's headers: 8 bytes, or one element."""
    return max(1, 8 // np.dtype(TYPES[kind]).itemsize)


def _inputs(given: list[str], op: str, count: int) -> list[Buffer]:
    found = [edges(kind, count, seed) for seed, kind in enumerate(given)]
    if given[-1] == "bool_" and op in ("Divide", "Remainder"):  # by false, nothing is defined
        found[-1] = Buffer(np.ones(count, np.uint8), "bool_")
    return found


def _vector(given: list[str], made: str, size: str, op: str = "") -> Mapping[int, Buffer]:
    buffers = _inputs(given, op, COUNT)
    buffers.append(Buffer.poisoned(made, COUNT))
    return dict(enumerate([*buffers, *([Buffer.of(COUNT, size)] if size else [])]))


def _grid(axes: str, per_thread: int) -> tuple[int, int, int]:
    z, y, x = SHAPE
    if axes.startswith("n"):
        return -(-x // per_thread), y, z
    count = int(axes)
    return x, y if count > 1 else 1, z if count > 2 else 1


def _strides(axes: int) -> Buffer:
    """Of an array whose axes are turned around."""
    shape = SHAPE[-axes:]
    steps = [int(np.prod(shape[:axis])) for axis in range(axes)]
    return Buffer(np.array(steps, np.int64), "int64")


def _general(base: str, axes: str, given: list[str], made: str, op: str = "") -> Mapping[int, Buffer]:
    count = 3 if axes.startswith("n") else int(axes)
    elements = int(np.prod(SHAPE[-count:]))
    inputs = _inputs(given, op, elements)
    out, strides = Buffer.poisoned(made, elements), _strides(count)
    shape, number = Buffer(np.array(SHAPE, np.int32), "int32"), Buffer.of(3, "int32")
    if base == "copy":
        found = {0: inputs[0], 1: out, 3: strides}
        return found | ({2: shape, 5: number} if axes.startswith("n") else {})
    parts = [*inputs, out]
    if axes.startswith("n"):
        parts += [shape, *[strides] * len(given), number]
    else:
        parts += [strides] * len(given)
    return dict(enumerate(parts))


def _ternary(name: str, kind: str, given: str) -> Case | None:
    typed = MSL[given]
    source = "ternary_ops ternary"
    if general := GENERAL.fullmatch(kind):
        axes, large = general.groups()
        index = [] if large else ["int"]
        per_thread = int(axes[1:]) if axes.startswith("n") else 1
        many = axes.startswith("n")
        template = f"ternary_g<{', '.join([typed, 'Select', axes[1:], *index])}>" if many else ""
        template = template or f"ternary_g_nd{axes}<{', '.join([typed, 'Select', *index])}>"
        x, y, z = _grid(axes, per_thread)
        buffers = partial(_general, "ternary", axes, ["bool_", given, given], given)
        return Case(name, source, template, buffers, (x, y, z), (min(x, 8), 1, 1))
    if kind not in ("v", "vn", "v2", "vs", "vsn", "vs2", "sv", "svn", "sv2"):
        return None
    two, plain = kind.endswith("2"), not kind.endswith(("n", "2"))
    scalars = [str(kind.startswith("sv")).lower(), str(kind.startswith("vs")).lower()]
    instance = f"ternary_v{'2' if two else ''}<{', '.join([typed, 'Select', *scalars, *(['1'] if plain else [])])}>"
    per_thread = 1 if plain else _per_thread(given)
    grid = (COUNT // 2 // per_thread, 2, 1) if two else (COUNT // per_thread, 1, 1)
    buffers = partial(_vector, ["bool_", given, given], given, "int64" if two else "uint32")
    return Case(name, source, instance, buffers, grid, (32,))
