"""What the tests of all ops share: cases, inputs laid out awkwardly, criteria of accuracy, seeded faults.

Each `test_<op>.py` has at module level `CASES` (and `BENCH`, larger ones for the benchmark), `inputs(case, dtype)`,
`run`, `reference`, `check(inputs)` and `cost(case, dtype) -> (flops, bytes)`; the benchmark imports them. A module of
several ops has a `Bench` for each of the others in `BENCHES`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import shader_text
import torch
from torch import Tensor

from torch_foundry import quant
from torch_foundry.core import environment, runtime, tuning
from torch_foundry.testing.tolerance import (  # noqa: F401  (for the test modules)
    BF16,
    DTYPES,
    F16,
    F32,
    U32,
    UNIT,
    assert_bound,
    assert_equal,
    assert_norm,
    double,
    generator,
    integers,
    normal,
    poisoned_outputs,
    relative_error,
)

# Formats that GPUs multiply by codes: two that go through every kernel, and the others.
CODES = ["q8_0", "q4_0"]
MORE_CODES = ["q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"]
MORE_CODES += ["affine2_g32_f16", "affine3_g64_bf16", "affine4_g128_f32", "affine5_g64_f16", "affine6_g128_bf16"]
MORE_CODES += ["affine8_g64_f16", "int2_g32", "int3_g64", "int4_g128", "int8_g32"]
MORE_CODES += ["mxfp4", "nvfp4", "nvfp4_f32", "mxfp8", "fp8_g32", "fp8_g128"]
LANE_ORDERS = ("forward", "reverse", "random")


def dtype_id(value: object) -> str | None:
    """Test id of a dtype; leaves other parameters to pytest."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


@dataclass(frozen=True)
class Case:
    """Base of an op's cases: the id of a case is the list of its fields that are not at their defaults."""

    def __str__(self) -> str:
        changed = [f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return "-".join(f"{f.name}{getattr(self, f.name)}" for f in changed) or "default"


@dataclass(frozen=True)
class Bench:
    """What the benchmark wants of an op, where its module has it for another: the same names."""

    name: str
    BENCH: list[Any]  # cases, for every dtype, or (case, dtype)
    inputs: Callable[[Any, torch.dtype], dict[str, Any]]
    run: Callable[..., Any]
    reference: Callable[..., Any]
    check: Callable[[dict[str, Any]], None]
    cost: Callable[[Any, torch.dtype], tuple[int, int]]


def row_bytes(format: str | None, columns: int, dtype: torch.dtype) -> int:
    """Of a matrix; without a format it is dense, of `dtype`."""
    f = quant.FORMATS[format] if format else None
    return columns // f.block_size * f.block_bytes if f else columns * dtype.itemsize


def cases(*params: Any) -> Any:
    """`@cases((case, dtype), ...)`: combinations are chosen, not crossed: each kernel variant costs a compilation."""
    return pytest.mark.parametrize("case, dtype", params, ids=lambda v: dtype_id(v) or str(v))


def some_nightly(kernels: list[Any], nightly: list[Any]) -> list[Any]:
    """Cases of a test whose tier is `kernels`, and those that compile as much again to say little more."""
    return [
        pytest.param(*case, marks=pytest.mark.tier(tier))
        for tier, listed in (("kernels", kernels), ("nightly", nightly))
        for case in listed
    ]


def dtypes(*which: torch.dtype) -> Any:
    return pytest.mark.parametrize("dtype", which or DTYPES, ids=dtype_id)


# --------------------------------------------------------------------------------------------------------------- inputs


def shifted(x: Tensor, elements: int = 1) -> Tensor:
    """A copy at a storage offset, so that it is aligned to an element and no more, with NaN before and after it."""
    buffer = _poison(x.numel() + 2 * elements, x)
    view = buffer[elements : elements + x.numel()].view(x.shape)
    return view.copy_(x)


def spread(x: Tensor, pad: int = 4) -> Tensor:
    """A copy whose rows lie apart (the last dimension stays contiguous), with NaN between them."""
    *lead, n = x.shape
    buffer = _poison(x.numel() // max(n, 1) * (n + pad), x).view(*lead, n + pad)
    return buffer[..., :n].copy_(x)


def _poison(n: int, like: Tensor) -> Tensor:
    return torch.full((n,), float("nan") if like.is_floating_point() else -7, dtype=like.dtype)


@contextlib.contextmanager
def guarded_outputs() -> Iterator[None]:
    """What a kernel leaves out of its outputs shows, and what it writes outside them."""
    sees_more = environment.SANITIZE.value() == "address"  # reads too, but not past guard bytes
    with poisoned_outputs(), runtime.host_options(guard_memory=not sees_more):
        yield


# ------------------------------------------------------------------------------------------------------------- criteria


def in_every_lane_order(compute: Callable[[], Tensor]) -> None:
    """The result has the same bits in every order of lanes, or there is a race."""
    results = []
    for order in LANE_ORDERS:
        with runtime.host_options(lane_order=order, seed=1):
            results.append(compute())
    assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])


def opcheck(name: str, *args: Any, **kwargs: Any) -> None:
    """torch.library.opcheck: schema, fakes, autograd registration, AOT dispatch with static and dynamic shapes."""
    torch.library.opcheck(getattr(torch.ops.torch_foundry, name).default, args, kwargs)


def refuses(message: str) -> Any:
    """The block raises RuntimeError whose text matches `message`: the argument's name, then what was expected."""
    return pytest.raises(RuntimeError, match=message)


# --------------------------------------------------------------------------------------------------------------- faults


@dataclass(frozen=True)
class Fault:
    """A mistake in a shader that the op's checks must notice. `old` may call locals what it likes (shader_text.py)."""

    name: str
    kernel: str  # the .metal file whose kernels are run
    old: str  # what occurs exactly once in `file`
    new: str
    check: Callable[[], None]  # passes on the shaders as they are, raises AssertionError on the faulty ones
    file: str = ""  # where `old` is, if it is in a header

    def __str__(self) -> str:
        return self.name

    def seed(self, directory: Path) -> Path:
        """A copy, below `directory`, of all headers and of the one kernel file, with the mistake in it."""
        edit = (self.file or self.kernel, self.old, self.new)
        return shader_text.edited_shaders(directory, edit, kernels=[self.kernel])


def within(context: str, old: str, new: str) -> tuple[str, str]:
    """`old` and `new` of a fault with `context` around them, which says where, or has locals that `new` needs."""
    assert context.count(old) == 1
    return context, context.replace(old, new)


# --------------------------------------------------------------------------------------------------------------- tuning


@contextlib.contextmanager
def choice(op: str, **changes: int) -> Iterator[None]:
    """The host executor's choices of kernel variants with `changes`, for all shapes and formats."""
    with tuned("host", op, **changes):
        yield


@contextlib.contextmanager
def tuned(family: str, op: str, **changes: int) -> Iterator[None]:
    """The choices of `family` with `changes`, for all shapes and formats."""
    try:
        for key in every_key(op):
            tuning.use(family, key, {**tuning.choice(family, key), **changes})
        yield
    finally:
        tuning.forget()


@contextlib.contextmanager
def choices_of(family: str) -> Iterator[None]:
    """The host executor runs the variants that devices of `family` run: its sums are then in their order."""
    try:
        for op in tuning.OPS:
            for key in every_key(op):
                tuning.use("host", key, tuning.choice(family, key))
        yield
    finally:
        tuning.forget()


INPUTS = (*(of << k for k in range(8, 13) for of in (2, 3)), 1 << 14, 1 << 15)  # the last of each bucket


def every_key(op: str) -> Iterator[tuning.Key]:
    """One key for each format and bucket of shapes."""
    for name, fmt in quant.FORMATS.items():
        if op != "attention":
            for rows in (1, 2, 4, 8) if op in ("linear", "norm_linear", "linear_matrix") else (1,):
                for n in range(8, 18):
                    for k in INPUTS:
                        yield tuning.Key(op, name, rows, 1 << n, k)
        elif not fmt.packed:
            for head_dim in range(32, 257, 32):
                yield tuning.Key(op, name, 1, head_dim, 1)
