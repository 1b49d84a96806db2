"""Switches and counters of the kernel runtime, the same on every executor."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_foundry.core import devices, extension
from torch_foundry.core.ahead import recording_for
from torch_foundry.core.devices.host import LANE_ORDERS as LANE_ORDERS
from torch_foundry.core.devices.host import host_options as host_options
from torch_foundry.core.devices.metal import commit as commit
from torch_foundry.core.devices.metal import commit_every as commit_every


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


def has_executor(kind: str) -> bool:
    """Whether this build has an executor for devices of type `kind`: for "meta" while kernels are only listed."""
    return recording_for() is not None if kind == "meta" else _has_executor(kind)


@functools.cache
def _has_executor(kind: str) -> bool:
    try:
        executor(kind)
    except RuntimeError:
        return False
    return True


def subnormal_codes(device: torch.device | str) -> bool:
    """Whether packed codes are subnormal halves on `device` where the tuning table says so: as
    $TORCH_FOUNDRY_SUBNORMAL_CODES says, else if the device keeps such halves. The first time this asks it, and waits:
    `patch` does, so that no captured step has to.
    """
    return bool(torch.ops.torch_foundry._tuning_subnormals(str(device)))


@dataclass(frozen=True)
class TensorOperations:
    """What is known of a device's tensor operations: the norm of their error, relative to that of the products of
    absolute values (infinite if they are wrong or don't compile), the most that is allowed, and whether they are used
    where the tuning table says so: as $TORCH_FOUNDRY_TENSORS says, else by the error.
    """

    error: float
    most: float
    used: bool


def tensor_operations(device: torch.device | str) -> TensorOperations | None:
    """The tensor operations of `device`; None if it has none. The first time this asks it, and waits, as
    `subnormal_codes` does.
    """
    error, most = torch.ops.torch_foundry._tensor_error(str(device))
    if math.isnan(error):
        return None
    return TensorOperations(error, most, bool(torch.ops.torch_foundry._tuning_tensors(str(device))))


def default_device() -> torch.device:
    """The device of whoever names none: MPS, else CUDA, else the CPU, as far as kernels can run there."""
    for kind, device in devices.DEVICES.items():
        known = device.facts()
        if known.available and device.problem(has_executor(kind), known) is None:
            return torch.device(kind)
    return torch.device("cpu")


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
