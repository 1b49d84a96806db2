"""The host executor, which runs kernels on CPU tensors: its build, its compiler, and its switches for tests."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_foundry.core import environment, sources, support
from torch_foundry.core.devices.base import Device, Facts, Places

LANE_ORDERS = {"forward": 0, "reverse": 1, "random": 2}
SANITIZERS = {"": "", "address": "asan", "thread": "tsan"}
# What a sanitizer's runtime has, which must be in the process before Python is.
SWITCHES = {"asan": "__sanitizer_start_switch_fiber", "tsan": "__tsan_create_fiber"}


class Host(Device):
    """The CPU."""

    kind = "cpu"
    # runtime*.cpp and fiber* are compiled by the executor's own toolchain, as sanitizers need them in several builds
    built_from = ("host/executor.cpp", "host/guarded.cpp", "host/toolchain.cpp")
    host_memory = maps_files = emulated = True
    half = False

    def set_up(self, places: Places) -> None:
        tree = sources.HostTree(places.csrc / "host")
        recorded = json.loads((places.built / "toolchain.json").read_text())  # when the package was built
        kernel, runtime = tree.flags("kernel"), tree.flags("runtime")
        if sanitizer := SANITIZERS[environment.SANITIZE.value()]:
            _require_runtime(sanitizer)
            kernel, runtime = kernel + tree.flags(sanitizer), runtime + tree.flags(f"runtime-{sanitizer}")
        if environment.CHECKED.on():
            kernel = kernel + tree.flags("checked")
        torch.ops.torch_foundry._host_setup(
            sources.given_compiler() or recorded["compiler"],
            recorded["identity"],
            str(tree.root),
            tree.text_digest(),
            kernel,
            runtime,
            tree.runtime_sources(),
            list(map(str, places.ready)),
            str(places.kernels),
        )

    def problem(self, has_executor: bool, known: Facts | None = None) -> str | None:
        return None if has_executor else f"this build of torch_foundry has no executor for the CPU: {support.REBUILD}"

    def synchronize(self, device: torch.device) -> None:
        pass

    def read(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
        return tensor, lambda: None

    def ours(self, description: dict[str, Any]) -> str:
        return "kernels translated to C++, one fiber per GPU thread"

    def stock(self, torch_version: str) -> str:
        return "its CPU kernels"


def _require_runtime(sanitizer: str) -> None:
    if not hasattr(ctypes.CDLL(None), SWITCHES[sanitizer]):
        raise ImportError(
            f"TORCH_FOUNDRY_SANITIZE: the sanitizer has to be loaded before Python. Start it with LD_PRELOAD="
            f'"$(c++ -print-file-name=lib{sanitizer}.so) $(c++ -print-file-name=libstdc++.so)", as `make {sanitizer}` '
            "in the Makefile does"
        )


@dataclass(frozen=True)
class _Options:
    lane_order: str = "forward"
    seed: int = 0
    threads: int = 0  # 0: all cores
    strict: bool = True
    flush_subnormals: bool = False
    tensor_layout: int = 0
    guard_memory: bool = False


_options = _Options()


def _apply(options: _Options) -> None:
    global _options
    order = LANE_ORDERS[options.lane_order]
    torch.ops.torch_foundry._host_configure(order, options.seed, options.threads, options.strict)
    if options.flush_subnormals != _options.flush_subnormals:
        torch.ops.torch_foundry._host_flush_subnormals(options.flush_subnormals)
    if options.tensor_layout != _options.tensor_layout:
        torch.ops.torch_foundry._host_tensor_layout(options.tensor_layout)
    torch.ops.torch_foundry._host_guard_memory(options.guard_memory)
    _options = options


@contextlib.contextmanager
def host_options(
    *,
    lane_order: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    strict: bool | None = None,
    flush_subnormals: bool | None = None,
    tensor_layout: int | None = None,
    guard_memory: bool | None = None,
) -> Iterator[None]:
    """Configure the host executor inside the block; options that are not given stay as they are.

    lane_order: in which order lanes run between two synchronisations: "forward", "reverse" or "random" (with `seed`). A
        kernel whose results depend on it has a race.
    threads: OS threads that run threadgroups; 0: one per core.
    strict: whether a barrier that not all threads reach fails the launch (True) or only prints a message (False).
    flush_subnormals: whether arithmetic takes subnormal float32 and bfloat16 for zero, as Apple's GPUs do.
    tensor_layout: which thread has which element of a cooperative tensor: any number. A kernel whose results depend on
        it takes the layout of some GPU for granted.
    guard_memory: whether kernels get copies of their tensors, between guard bytes: a launch that changes a byte outside
        the tensors that its op lets it write, or touches one beyond the guards, raises RuntimeError. A sanitizer can't
        see past the guards.
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
        "tensor_layout": tensor_layout,
        "guard_memory": guard_memory,
    }
    _apply(replace(before, **{name: value for name, value in given.items() if value is not None}))
    try:
        yield
    finally:
        _apply(before)
