"""What the tests of all ops share: cases, inputs laid out awkwardly, criteria of accuracy, seeded faults.

Each `test_<op>.py` has at module level `CASES` (and `BENCH`, larger ones for the benchmark), `inputs(case, dtype)`,
`run`, `reference`, `check(inputs)` and `cost(case, dtype) -> (flops, bytes)`; the benchmark imports them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_foundry import runtime

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (F32, F16, BF16)
LANE_ORDERS = ("forward", "reverse", "random")

UNIT = {F32: 2.0**-24, F16: 2.0**-11, BF16: 2.0**-8}  # largest relative error of one rounding
TINY = {F32: 2.0**-149, F16: 2.0**-24, BF16: 2.0**-133}  # smallest positive number: rounding there is absolute
FLOOR = {F32: 2e-7, F16: 2e-4, BF16: 2e-3}  # relative L2 error that is never held against a kernel
U32 = UNIT[F32]


def dtype_id(value: object) -> str | None:
    """Test id of a dtype; leaves other parameters to pytest."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


@dataclass(frozen=True)
class Case:
    """Base of an op's cases: the id of a case is the list of its fields that are not at their defaults."""

    def __str__(self) -> str:
        changed = [f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return "-".join(f"{f.name}{getattr(self, f.name)}" for f in changed) or "default"


def cases(*params: Any) -> Any:
    """`@cases((case, dtype), ...)`: combinations are chosen, not crossed: each kernel variant costs a compilation."""
    return pytest.mark.parametrize("case, dtype", params, ids=lambda v: dtype_id(v) or str(v))


def dtypes(*which: torch.dtype) -> Any:
    return pytest.mark.parametrize("dtype", which or DTYPES, ids=dtype_id)


# --------------------------------------------------------------------------------------------------------------- inputs


def generator(*key: object) -> torch.Generator:
    """Random numbers that depend on `key` alone, in every process."""
    seed = 0
    for character in repr(key):
        seed = (seed * 131 + ord(character)) % (1 << 48)
    return torch.Generator().manual_seed(seed)


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=g, dtype=torch.float64) * scale).to(dtype)


def integers(g: torch.Generator, *shape: int, dtype: torch.dtype, low: int = -4, high: int = 4) -> Tensor:
    """Small whole numbers: sums and products of them are exact, so every order of summation gives the same bits."""
    return torch.randint(low, high + 1, shape, generator=g).to(dtype)


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


# ------------------------------------------------------------------------------------------------------------- criteria


def double(value: Any) -> Any:
    """Floating tensors of a structure in float64; the rest as it is."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: double(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(double(v) for v in value)
    return value


def relative_error(got: Tensor, truth: Tensor) -> float:
    norm = torch.linalg.vector_norm(truth.double())
    return float(torch.linalg.vector_norm(got.double() - truth) / norm.clamp_min(1e-300))


def assert_norm(got: Tensor, truth: Tensor, stock: Tensor) -> None:
    """Relative L2 error at most twice that of plain torch at the same dtype (where that overflows: of one rounding)."""
    assert got.dtype == stock.dtype and got.shape == truth.shape
    baseline = relative_error(stock, truth) if bool(stock.isfinite().all()) else UNIT[got.dtype]
    error, allowed = relative_error(got, truth), 2 * baseline + FLOOR[got.dtype]
    assert error <= allowed, f"relative L2 error {error:.3e}, allowed {allowed:.3e}"


def assert_bound(got: Tensor, truth: Tensor, bound: Tensor) -> None:
    """Every element within `bound`, an a-priori bound on the rounding errors of a correct kernel."""
    bound = bound + TINY[got.dtype]
    excess = (got.double() - truth).abs() / bound
    excess = torch.where(excess.isnan(), torch.inf, excess)  # a NaN is never close
    worst = int(excess.argmax()) if excess.numel() else 0
    if excess.numel() and excess.flatten()[worst] > 1:
        where = [int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape)]
        value, expected = got.flatten()[worst].item(), truth.flatten()[worst].item()
        allowed = bound.expand_as(truth).flatten()[worst].item()
        raise AssertionError(
            f"at {where}: got {value}, expected {expected} within {allowed:.3e}; "
            f"{int((excess > 1).sum())} of {excess.numel()} elements are out of bounds"
        )


def assert_agrees(module: Any, given: dict[str, Any]) -> None:
    """The op of a test module meets all criteria of its test on `given`."""
    with poisoned_outputs():
        module.check(given)


def assert_equal(got: Tensor, expected: Tensor) -> None:
    """Same dtype, shape and values; NaN equals NaN, and -0 equals 0."""
    assert got.dtype == expected.dtype and got.shape == expected.shape, (got.dtype, got.shape, expected.shape)
    same = (got == expected) | (got.isnan() & expected.isnan())
    if not bool(same.all()):
        where = [int(i) for i in (~same).nonzero()[0]]
        raise AssertionError(
            f"at {where}: got {got[tuple(where)].item()}, expected {expected[tuple(where)].item()}; "
            f"{int((~same).sum())} of {same.numel()} elements differ"
        )


@contextlib.contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Memory that ops allocate inside is full of NaN (of the largest integer), so what a kernel leaves out shows."""
    before = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill


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
    """A mistake in a shader that the op's checks must notice."""

    name: str
    kernel: str  # the .metal file whose kernels are run
    old: str  # occurs exactly once in `file`
    new: str
    check: Callable[[], None]  # passes on the shaders as they are, raises AssertionError on the faulty ones
    file: str = ""  # where `old` is, if it is in a header

    def __str__(self) -> str:
        return self.name

    @property
    def edited(self) -> str:
        return self.file or self.kernel
