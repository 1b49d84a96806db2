"""What a correct result is: reproducible inputs, and criteria of accuracy. For doctor and the tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (F32, F16, BF16)

UNIT = {F32: 2.0**-24, F16: 2.0**-11, BF16: 2.0**-8}  # largest relative error of one rounding
TINY = {F32: 2.0**-149, F16: 2.0**-24, BF16: 2.0**-133}  # smallest positive number: rounding there is absolute
FLOOR = {F32: 2e-7, F16: 2e-4, BF16: 2e-3}  # relative L2 error that is never held against a kernel
U32 = UNIT[F32]


class Mismatch(AssertionError):
    """A result that no correct kernel gives; the text says where and by how much."""


# --------------------------------------------------------------------------------------------------------------- inputs


def generator(*key: object) -> torch.Generator:
    """Random numbers that depend on `key` alone, in every process."""
    seed = 0
    for character in repr(key):
        seed = (seed * 131 + ord(character)) % (1 << 48)
    return torch.Generator().manual_seed(seed)


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers on the CPU, rounded once to dtype."""
    return (torch.randn(shape, generator=g, dtype=torch.float64) * scale).to(dtype)


def integers(g: torch.Generator, *shape: int, dtype: torch.dtype, low: int = -4, high: int = 4) -> Tensor:
    """Small whole numbers: sums and products of them are exact, so every order of summation gives the same bits."""
    return torch.randint(low, high + 1, shape, generator=g).to(dtype)


def double(value: Any) -> Any:
    """Floating tensors of a structure in float64; the rest as it is."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: double(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(double(v) for v in value)
    return value


# ------------------------------------------------------------------------------------------------------------- criteria


def relative_error(got: Tensor, truth: Tensor) -> float:
    """Relative L2 error."""
    norm = torch.linalg.vector_norm(truth.double())
    return float(torch.linalg.vector_norm(got.double() - truth) / norm.clamp_min(1e-300))


def assert_norm(got: Tensor, truth: Tensor, stock: Tensor) -> None:
    """Relative L2 error at most twice that of plain torch at the same dtype (where that overflows: of one rounding)."""
    if got.dtype != stock.dtype or got.shape != truth.shape:
        raise Mismatch(f"got {got.dtype} {list(got.shape)}, expected {stock.dtype} {list(truth.shape)}")
    baseline = relative_error(stock, truth) if bool(stock.isfinite().all()) else UNIT[got.dtype]
    error, allowed = relative_error(got, truth), 2 * baseline + FLOOR[got.dtype]
    if not error <= allowed:
        raise Mismatch(f"relative L2 error {error:.3e}, allowed {allowed:.3e}")


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
        raise Mismatch(
            f"at {where}: got {value}, expected {expected} within {allowed:.3e}; "
            f"{int((excess > 1).sum())} of {excess.numel()} elements are out of bounds"
        )


def assert_equal(got: Tensor, expected: Tensor) -> None:
    """Same dtype, shape and values; NaN equals NaN, and -0 equals 0."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise Mismatch(f"got {got.dtype} {list(got.shape)}, expected {expected.dtype} {list(expected.shape)}")
    same = (got == expected) | (got.isnan() & expected.isnan())
    if not bool(same.all()):
        where = [int(i) for i in (~same).nonzero()[0]]
        raise Mismatch(
            f"at {where}: got {got[tuple(where)].item()}, expected {expected[tuple(where)].item()}; "
            f"{int((~same).sum())} of {same.numel()} elements differ"
        )


@contextlib.contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Memory that ops allocate inside is full of NaN (of the largest integer), so what a kernel leaves out shows."""
    before = torch.are_deterministic_algorithms_enabled()
    switches: Any = torch.utils.deterministic
    fill = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    switches.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        switches.fill_uninitialized_memory = fill
