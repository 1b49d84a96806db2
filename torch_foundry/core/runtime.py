"""Switches and counters of the kernel runtime, the same on every executor."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torch_foundry.core import extension, support

LANE_ORDERS = {"forward": 0, "reverse": 1, "random": 2}


@dataclass(frozen=True)
class Counts:
    """Launches; bytes that the ops declared they must move; nanoseconds of the host in the launch path (on the host
    executor that includes running the kernel).
    """

    launches: int
    bytes: int
    host_ns: int


def counters() -> Counts:
    """Totals since the start or the last `reset_counters()`."""
    return Counts(*torch.ops.torch_foundry._counts())


def scope_counters() -> dict[str, Counts]:
    """Counts per scope, by its dotted name; a launch counts for every scope around it."""
    return {name: Counts(*values) for name, values in torch.ops.torch_foundry._scope_counts().items()}


def reset_counters() -> None:
    """Set all counts to zero."""
    torch.ops.torch_foundry._reset_counts()


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Count launches inside under `name`; scopes nest as `outer.inner`."""
    torch.ops.torch_foundry._push_scope(name)
    try:
        yield
    finally:
        torch.ops.torch_foundry._pop_scope()


def executor(device: torch.device | str) -> str:
    """Name of the executor for `device`: "host" or, in builds that have them, "metal" and "cuda".

    Raises RuntimeError if this build has none for it.
    """
    return str(torch.ops.torch_foundry._executor(str(device)))


@functools.cache
def has_executor(kind: str) -> bool:
    """Whether this build has an executor for devices of type `kind`."""
    try:
        executor(kind)
    except RuntimeError:
        return False
    return True


def default_device() -> torch.device:
    """The device of whoever names none: MPS, else CUDA, else the CPU, as far as kernels can run there."""
    known = support.facts()
    for kind, there in (("mps", known.mps_available), ("cuda", known.cuda_available)):
        if there and support.device_problem(kind, has_executor(kind), known) is None:
            return torch.device(kind)
    return torch.device("cpu")


def commit_every(launches: int) -> None:
    """Set after how many launches of a thread the Metal executor commits its work to the GPU, without waiting for it.

    A small number lets the GPU start early; a large one costs the CPU less (a commit takes some 20 us). 0: work is
    committed only when torch does it, that is when somebody waits, and by `commit()`, for example once per token.
    Default: $TORCH_FOUNDRY_COMMIT_EVERY, else 100. Takes effect at the next launch, in all threads.

    ValueError: not such a number. In a build without a Metal executor this warns and does nothing.
    """
    if not isinstance(launches, int) or not 0 <= launches < 2**31:
        raise ValueError(f"launches={launches!r}: expected 0 (when torch does) or a number of launches")
    if _has_metal("commit_every"):
        torch.ops.torch_foundry._metal_commit_interval(launches)


def commit() -> None:
    """Commit what this thread has launched on `mps` to the GPU now, without waiting for it.

    In a build without a Metal executor this warns and does nothing.
    """
    if _has_metal("commit"):
        torch.ops.torch_foundry._metal_commit()


def _has_metal(function: str) -> bool:
    there = has_executor("mps")
    if not there:
        text = f"runtime.{function} has no effect: this build of torch_foundry has no Metal executor"
        warnings.warn(f"{text}, and the others hand over each launch at once", stacklevel=3)
    return there


@dataclass(frozen=True)
class _HostOptions:
    lane_order: str = "forward"
    seed: int = 0
    threads: int = 0  # 0: all cores
    strict: bool = True
    flush_subnormals: bool = False


_options = _HostOptions()


def _apply(options: _HostOptions) -> None:
    global _options
    order = LANE_ORDERS[options.lane_order]
    torch.ops.torch_foundry._host_configure(order, options.seed, options.threads, options.strict)
    if options.flush_subnormals != _options.flush_subnormals:
        torch.ops.torch_foundry._host_flush_subnormals(options.flush_subnormals)
    _options = options


@contextlib.contextmanager
def host_options(
    *,
    lane_order: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    strict: bool | None = None,
    flush_subnormals: bool | None = None,
) -> Iterator[None]:
    """Configure the host executor inside the block; options that are not given stay as they are.

    lane_order: in which order lanes run between two synchronisations: "forward", "reverse" or "random" (with `seed`). A
        kernel whose results depend on it has a race.
    threads: OS threads that run threadgroups; 0: one per core.
    strict: whether a barrier that not all threads reach fails the launch (True) or only prints a message (False).
    flush_subnormals: whether arithmetic takes subnormal float32 and bfloat16 for zero, as Apple's GPUs do.
    """
    if lane_order is not None and lane_order not in LANE_ORDERS:
        raise ValueError(f"lane_order={lane_order!r}: expected one of {', '.join(LANE_ORDERS)}")
    if threads is not None and not 0 <= threads <= 4 * (os.cpu_count() or 1) + 64:
        raise ValueError(f"threads={threads}: expected 0 (all cores) or a small positive number")
    before = _options
    given: dict[str, Any] = {
        "lane_order": lane_order,
        "seed": seed,
        "threads": threads,
        "strict": strict,
        "flush_subnormals": flush_subnormals,
    }
    _apply(replace(before, **{name: value for name, value in given.items() if value is not None}))
    try:
        yield
    finally:
        _apply(before)


@contextlib.contextmanager
def use_shaders(directory: str | Path) -> Iterator[None]:
    """Run the ops from the `.metal` files of `directory` (an edited copy of `shaders/`) inside the block."""
    directory = Path(directory)
    if not any(directory.rglob("*.metal")):
        raise FileNotFoundError(f"{directory}: no .metal files")
    extension.add_shaders(directory)
    try:
        yield
    finally:
        extension.add_own_shaders()
