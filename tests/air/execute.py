"""Runs one case from its metallib and from its source, on the same runtime, and says how they differ."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.air import module
from tests.air.case import Array, Buffer, Case, from_bfloat
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
    """How many elements differ in bits, and of these how many are NaN in both; the first one, for people."""
    found: dict[str, Any] = {"differ": 0, "nan": 0, "of": 0, "first": "", "error": 0.0}
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
            scale = np.abs(from_bfloat(b) if buffer.kind == "bfloat16" else b)
            scale = float(np.max(scale[np.isfinite(scale)], initial=0)) or 1.0
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.abs(x.astype(np.complex128) - y.astype(np.complex128)) / scale
            found["error"] = max(found["error"], float(np.nanmax(np.where(both, 0, error))))
            at, x, y = at[~both], x[~both], y[~both]
        if at.size and not found["first"]:
            found["first"] = f"buffer {index}[{at[0]}]: AIR {x[0]!r}, source {y[0]!r}"
    return found
