"""Unary and binary kernels. Their templates and functions are torch's headers'; functors that only call them are here.

A kernel is dense, strided, has a scalar, a shorter operand, operands of other types (cast) or such a result (castout).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.aten.types import KINDS, NAMES, SCALAR_TYPES, encoded, numbers
from tests.air.case import TYPES, Array, Buffer, Case, edges, to_bfloat

SOURCE = "c10/metal/special_math.h c10/metal/igamma.h c10/metal/indexing.h"
COUNT, SHORTER, PER_THREAD = 515, 20, 4  # the last of them are threads' own; a shorter operand; ILP_PER_THREAD
SHAPE = (12, 5, 3)  # of strided kernels, innermost first
UNARY = re.compile(rf"(\w+?)_(dense|dense_scalar|strided|dense_castout|dense_castout_ilp|strided_castout)"
                   rf"(?:_({NAMES}))?_({NAMES})")  # fmt: skip
BINARY = re.compile(rf"(\w+?)_(dense|dense_ilp4|dense_(?:broadcast|scalar)(?:_rhs|_lhs)?|strided)(_cast|_castout)?"
                    rf"_({NAMES})_({NAMES})(?:_({NAMES}))?")  # fmt: skip

# Functions of special_math.h, by a macro of indexing.h.
SPECIAL = ["erf", "erfc", "erfcx", "erfinv", "i0", "i0e", "i1", "i1e", "sinc", "entr", "spherical_bessel_j0"]
SPECIAL += [f"bessel_{kind}_forward" for kind in ("j0", "j1", "y0", "y1")]
SPECIAL += [f"modified_bessel_{kind}_forward" for kind in ("i0", "i1", "k0", "k1")]
SPECIAL += [f"scaled_modified_bessel_{kind}_forward" for kind in ("k0", "k1")]
OF_FLOAT = "digamma", "trigamma"
PRECISE = ["exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"]
PRECISE += ["sqrt", "rsqrt"]
SAME = {"copy_identity": "x", "neg": "-x", "sqr": "x * x", "bitwise_not": "is_same_v<T, bool> ? !x : ~x"}
FORWARD = [f"{shifted}chebyshev_polynomial_{letter}" for shifted in ("", "shifted_") for letter in "tuvw"]
FORWARD += ["hermite_polynomial_h", "hermite_polynomial_he"]
# of numbers as they are, and of integers as float
FLOATING = {**{name: f"::c10::metal::{name}_forward" for name in FORWARD},
            **{name: f"::c10::metal::{name}" for name in ["zeta", "xlogy", "xlog1py", "logaddexp", "logaddexp2"]},
            "copysign": "::metal::copysign", "atan2": "::metal::precise::atan2",
            "div_true": "::c10::metal::div"}  # fmt: skip
OPERATORS = {"add": "+", "sub": "-", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
             "bitwise_left_shift": "<<", "bitwise_right_shift": ">>"}  # fmt: skip
CALLS = {"mul": "c10::metal::mul", "maximum": "c10::metal::max", "minimum": "c10::metal::min", "fmax": "metal::fmax",
         "fmin": "metal::fmin", "fmod": "c10::metal::fmod", "remainder": "c10::metal::remainder",
         "igamma": "c10::metal::igamma", "igammac": "c10::metal::igammac", "nextafter": "metal::nextafter"}  # fmt: skip
ALPHA = {"add_alpha": "a + ::c10::metal::mul(alpha, b)", "sub_alpha": "a - ::c10::metal::mul(alpha, b)",
         "lerp_alpha": "a + ::c10::metal::mul(alpha, b - a)"}  # fmt: skip
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPUTED_WIDE = {"mul", "div_true", "fmod", "remainder", "igamma", "igammac"}  # half and bfloat as float
SMALL = {*FORWARD, "zeta", "igamma", "igammac"}  # loops as long as an operand is large
SHIFTS = {"bitwise_left_shift", "bitwise_right_shift"}


def _floating(name: str, types: str, arguments: str, call: str, wide: str) -> str:
    return (
        f"struct {name}_functor {{ template <typename T> enable_if_t<is_floating_point_v<T>, T> operator()({types}) "
        f"{{ return T({call}({arguments})); }} template <typename T> enable_if_t<is_integral_v<T>, float> "
        f"operator()({types}) {{ return {call}({wide}); }} }};"
    )


def _same(name: str, types: str, value: str) -> str:
    return f"struct {name}_functor {{ template <typename T> T operator()({types}) {{ return T({value}); }} }};"


ONE, TWO = "const T x", "const T a, const T b"
FUNCTORS = {
    **{name: f"DEFINE_UNARY_FLOATING_FUNCTOR({name});" for name in SPECIAL},
    **{name: _floating(name, ONE, "float(x)", f"::c10::metal::{name}", "float(x)") for name in OF_FLOAT},
    **{name: _floating(name, ONE, "x", f"::metal::precise::{name}", "float(x)") for name in PRECISE},
    **{name: _same(name, ONE, value) for name, value in SAME.items()},
    **{name: _floating(name, TWO, "a, b", call, "float(a), float(b)") for name, call in FLOATING.items()},
    **{name: _same(name, TWO, f"a {operator} b") for name, operator in OPERATORS.items()},
    **{name: _same(name, TWO, f"::{call}(a, b)") for name, call in CALLS.items()},
    **{name: _same(name, f"{TWO}, const T alpha", value) for name, value in ALPHA.items()},
    **{name: f"DEFINE_BINARY_COMPARISON_FUNCTOR({name}, {operator});" for name, operator in COMPARISONS.items()},
}
UNARY_OPS = {*SPECIAL, *OF_FLOAT, *PRECISE, *SAME}
COMPLEX = {"copy_identity"}  # what is here for complex numbers, too


def case(name: str) -> Case | None:
    if name.startswith("xlog1py") and "bfloat" in name:
        return None  # log1p(bfloat) of overloads for float and float2: C++ ranks neither, if bfloat isn't built in
    for pattern, ops, made in ((UNARY, UNARY_OPS, _unary), (BINARY, {*FUNCTORS}, _binary)):
        found = pattern.fullmatch(name)
        if found and found[1] in ops and ("float2" not in name or found[1] in COMPLEX):
            return made(name, *found.groups())
    return None


def _case(name: str, op: str, instance: str, buffers: partial[Mapping[int, Buffer]], grid: tuple[int, ...]) -> Case:
    return Case(name, SOURCE, instance, buffers, grid, (32, 1, 1), needs=FUNCTORS[op], project="torch")


def _result(op: str, given: str) -> str:
    """The type that an op makes of one."""
    if op in COMPARISONS:
        return "bool"
    return "float" if op in (*SPECIAL, *OF_FLOAT, *PRECISE, *FLOATING) and "float" not in KINDS[given] else given


def _unary(name: str, op: str, form: str, made: str | None, given: str) -> Case | None:
    if (made is None) != ("castout" in form) or (made or "") not in ("", _result(op, given)):
        return None
    kind = KINDS[given]
    result = KINDS[made] if made else ("int16" if kind == "float32" else "float16")
    instance = f"REGISTER_UNARY_OP({op}, {given}, {made or _result(op, given)});"
    if form.startswith("strided"):
        return _case(name, op, instance, partial(_unary_strided, kind, result, not made), (SHAPE[0], 15, 1))
    grid = -(-COUNT // PER_THREAD) if form in ("dense", "dense_castout_ilp") else COUNT
    return _case(name, op, instance, partial(_unary_dense, form, kind, result), (grid, 1, 1))


def _unary_dense(form: str, kind: str, made: str) -> Mapping[int, Buffer]:
    found = {0: Buffer.poisoned(made, COUNT), 1: edges(kind, COUNT)}
    size = np.dtype(TYPES[made]).itemsize
    if form == "dense":
        found[2] = Buffer.of(COUNT, "uint32")
    elif form == "dense_castout":
        found[2] = numbers("uint32", size, SCALAR_TYPES[made])
    elif form == "dense_castout_ilp":
        found[2] = numbers("uint32", size, SCALAR_TYPES[made], COUNT, 0)
    return found


def _steps(kind: str, turned: bool) -> Buffer:
    """Strides in bytes of an array of SHAPE, or of one whose axes are turned around."""
    shape = SHAPE[::-1] if turned else SHAPE
    steps = [int(np.prod(shape[:axis])) for axis in range(len(shape))]
    return numbers("int64", *[step * np.dtype(TYPES[kind]).itemsize for step in (steps[::-1] if turned else steps)])


def _unary_strided(kind: str, made: str, castout: bool) -> Mapping[int, Buffer]:
    count = int(np.prod(SHAPE))
    last = numbers("uint32", 3, SCALAR_TYPES[made]) if castout else Buffer.of(3, "uint32")
    return {0: Buffer.poisoned(made, count), 1: edges(kind, count), 2: numbers("int64", *SHAPE),
            3: _steps(kind, True), 4: _steps(made, False), 5: last}  # fmt: skip


def _binary(name: str, op: str, form: str, cast: str | None, made: str, given: str, alpha: str | None) -> Case | None:
    if made != _result(op, given) or op in UNARY_OPS or (op in ALPHA) != bool(alpha):
        return None
    wide = "OPMATH_" if op in COMPUTED_WIDE and "float" in KINDS[given] else ""
    instance = f"REGISTER_{wide}BINARY_OP({op}, {given}, {made});"
    if alpha:
        instance = f"REGISTER_BINARY_ALPHA_OP({op}, {given}, {alpha}, {made});"
    if cast == "_castout":
        instance += f" REGISTER_BINARY_CASTOUT_OP({op}, {given}, {made});"
    kinds = KINDS[given], KINDS[given]
    if cast:  # to what a kernel computes in
        kinds = ("int16", "float16") if "float" in KINDS[given] else ("int16", "uint8")
    buffers = partial(_binary_buffers, op, form, kinds, KINDS[made], cast or "", KINDS[alpha] if alpha else "")
    count = {"dense_ilp4": -(-COUNT // PER_THREAD), "strided": int(np.prod(SHAPE))}.get(form, COUNT)
    return _case(name, op, instance, buffers, (count, 1, 1))


def _operands(op: str, kinds: tuple[str, str], counts: tuple[int, int], cast: bool) -> list[Buffer]:
    first, second = edges(kinds[0], counts[0]), edges(kinds[1], counts[1], 1)
    if op in SMALL:
        first = _small(kinds[0], counts[0], 0)
    if op in SHIFTS or op in SMALL or (cast and "int" in kinds[1]):
        second = _small(kinds[1], counts[1], 0 if op in SHIFTS else 1)
    elif kinds[1] == "bool_" and op in ("fmod", "remainder"):  # by false, nothing is defined
        second = Buffer(np.ones(counts[1], np.uint8), "bool_")
    return [first, second]


def _small(kind: str, count: int, least: int) -> Buffer:
    """From `least` to 7, of floating point with fractions, too."""
    random = np.random.default_rng([count, least])
    if kind == "bool_":
        return Buffer(random.integers(0, 2, count).astype(np.uint8), kind)
    values: Array = random.integers(least, 8, count)
    if "float" in kind:
        values = values + random.integers(0, 2, count) * random.random(count)
        return Buffer(to_bfloat(values) if kind == "bfloat16" else values.astype(TYPES[kind]), kind)
    return Buffer(values.astype(TYPES[kind]), kind)


def _binary_buffers(
    op: str, form: str, kinds: tuple[str, str], made: str, cast: str, alpha: str
) -> Mapping[int, Buffer]:
    if cast == "_castout":
        made = "float16"
    count = int(np.prod(SHAPE)) if form == "strided" else COUNT
    other = SHORTER if "broadcast" in form else 1 if "scalar" in form else count
    first = "rhs" in form or "lhs" in form  # which operand is shorter
    operands = _operands(op, kinds, (other, count) if first else (count, other), bool(cast))
    parts = [Buffer.poisoned(made, count), *operands]
    if "broadcast" in form:
        parts.append(Buffer.of(other, "int64"))
    if alpha:
        parts.append(encoded(np.array([2.5]), alpha))
    types = [SCALAR_TYPES[kind] for kind in kinds]
    sizes = [np.dtype(TYPES[kind]).itemsize for kind in kinds]
    if form == "strided":
        steps = [_steps(made, False), _steps(kinds[0], True), _steps(kinds[1], False)]
        last = numbers("uint32", 3, *types, SCALAR_TYPES[made]) if cast else numbers("uint32", 3, 0, 0, 0)
        return dict(enumerate([*parts, numbers("int64", *SHAPE), *steps, last]))
    if form == "dense_ilp4":
        parts.append(Buffer.of(COUNT, "uint32"))
    if cast:
        parts.append(numbers("uint32", *sizes, *types))
    return dict(enumerate(parts))
