"""Runs one case from its metallib and from its source, on the same runtime, and says how they differ."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.air import module
from tests.air.case import EPS, TINY, Array, Buffer, Case, Wanted, from_bfloat
from tests.msl.host_kit import HostModule, KernelEntry, Launch

BAND = 256  # bytes around each buffer that no kernel may touch
GUARD = 0xA5


class LaunchFailed(Exception):
    """What the runtime says of a launch."""


class WrittenOutside(Exception):
    """A kernel wrote beyond a buffer."""


class Runtime:
    """The fiber runtime with one OS thread, as a module's threadgroup variables are there once."""

    def __init__(self, path: Path, lane_order: int = 0) -> None:
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._order = lane_order

    def flush_subnormals(self, flush: bool) -> None:
        self._library.msl_rt_flush_subnormals(int(flush))

    def launch(self, entry: Any, case: Case, buffers: Mapping[int, Buffer]) -> dict[int, Array]:
        """The buffers afterwards. LaunchFailed, WrittenOutside."""
        count = 1 + max(buffers)
        pointers, sizes, memory = (ctypes.c_void_p * count)(), (ctypes.c_uint64 * count)(), {}
        for index, buffer in buffers.items():
            data = buffer.array.tobytes()
            room = -len(data) % 16  # vectors of bytes are read whole
            padded = np.full(2 * BAND + len(data) + room + 64, GUARD, np.uint8)
            start = -padded.ctypes.data % 64 + BAND // 64 * 64
            padded[start : start + len(data)] = np.frombuffer(data, np.uint8)
            memory[index] = padded, start, len(data)
            pointers[index], sizes[index] = padded.ctypes.data + start, len(data)
        triple = ctypes.c_uint32 * 3
        grid, group = ((*size, 1, 1)[:3] for size in (case.grid, case.group))
        extra = (ctypes.c_uint32 * max(1, len(case.threadgroup)))(*case.threadgroup)
        request = Launch(
            entry,
            pointers,
            sizes,
            count,
            triple(*grid),
            triple(*group),
            int(case.threads),
            extra,
            len(case.threadgroup),
        )
        error = ctypes.create_string_buffer(1024)
        self._library.msl_rt_configure(self._order, ctypes.c_uint64(0), 1, int(not case.divergent))
        if self._library.msl_rt_launch(ctypes.byref(request), error, ctypes.c_uint64(1024)):
            raise LaunchFailed(error.value.decode())
        after = {}
        for index, (padded, start, size) in memory.items():
            outside = np.concatenate([padded[:start], padded[start + size :]])
            if (outside != GUARD).any():
                raise WrittenOutside(f"buffer {index}")
            before = buffers[index].array
            after[index] = padded[start : start + size].copy().view(before.dtype).reshape(before.shape)
        return after


def from_source(library: ctypes.CDLL, name: str) -> Any:
    """A kernel of a library that toolchain.kernels made."""
    library.msl_get_module.restype = ctypes.POINTER(HostModule)
    there = library.msl_get_module().contents
    for number in range(there.nkernels):
        if there.kernels[number].name == name.encode():
            return ctypes.pointer(there.kernels[number])
    raise KeyError(name)


def from_air(
    case: Case, text: str, glue: ctypes.CDLL, contract: bool = False, mutate: Callable[[str], str] = lambda text: text
) -> tuple[Any, Any]:
    """The kernel's entry for the runtime, and what has to live as long."""
    constants = {index: value for index, value in case.constants.items() if f"MTL_FC_INIT_{index}_" in text}
    made = module.prepared(case.name, text, constants, contract, mutate)
    compiled = module.Compiled(made, glue)
    glue.air_kernel.restype = ctypes.POINTER(KernelEntry)
    name = case.name.encode()  # which the runtime reads when a launch fails
    entry = glue.air_kernel(name, ctypes.c_void_p(compiled.entry), ctypes.c_void_p(compiled.poison))
    return entry, (compiled, name)


def differences(got: Mapping[int, Array], wanted: Mapping[int, Array], buffers: Mapping[int, Buffer]) -> dict[str, Any]:
    """How many elements differ in bits; of these, how many are NaN or subnormal (or 0) in both; the first one."""
    found: dict[str, Any] = {"differ": 0, "nan": 0, "tiny": 0, "of": 0, "first": ""}
    for index, buffer in buffers.items():
        a, b = got[index].ravel(), wanted[index].ravel()
        size = a.dtype.itemsize
        unequal = (a.view(np.uint8) != b.view(np.uint8)).reshape(-1, size).any(1)
        found["of"] += a.size
        if not unequal.any():
            continue
        at = np.flatnonzero(unequal)
        x, y = (from_bfloat(v[at]) if buffer.kind == "bfloat16" else v[at] for v in (a, b))
        found["differ"] += at.size
        if x.dtype.kind in "fc":
            parts = [(x.real, y.real), (x.imag, y.imag)] if x.dtype.kind == "c" else [(x, y)]
            same = [(np.isnan(p) & np.isnan(q)) | (p.view(f"u{p.itemsize}") == q.view(f"u{q.itemsize}"))
                    for p, q in ((np.ascontiguousarray(p), np.ascontiguousarray(q)) for p, q in parts)]  # fmt: skip
            both = np.logical_and.reduce(same)
            found["nan"] += int(both.sum())
            found["tiny"] += int(((np.abs(x) < TINY["float32"]) & (np.abs(y) < TINY["float32"])).sum())
            at, x, y = at[~both], x[~both], y[~both]
        if at.size and not found["first"]:
            found["first"] = f"buffer {index}[{at[0]}]: AIR {x[0]!r}, source {y[0]!r}"
    return found


def against(got: Mapping[int, Array], wanted: Mapping[int, Wanted], buffers: Mapping[int, Buffer]) -> dict[str, Any]:
    """As `differences`, from what a reference gives; buffers that it leaves out stay as they were."""
    exact = {index: buffer.array for index, buffer in buffers.items()}
    exact |= {index: want.values for index, want in wanted.items() if want.values.dtype == buffers[index].array.dtype}
    rounded = {index: want for index, want in wanted.items() if want.values.dtype != buffers[index].array.dtype}
    found = differences(got, exact | {index: got[index] for index in rounded}, buffers)
    for index, want in rounded.items():
        kind = buffers[index].kind
        made = (from_bfloat(got[index]) if kind == "bfloat16" else got[index]).astype(np.float64).ravel()
        size = np.abs(want.values) + want.bound
        far = ~(np.abs(made - want.values) <= want.bound + EPS[kind] * size + TINY[kind])
        found["differ"] += int(far.sum())
        if far.any() and not found["first"]:
            at = int(np.flatnonzero(far)[0])
            found["first"] = f"buffer {index}[{at}]: AIR {float(made[at])}, float64 {float(want.values[at])}"
    return found
