"""Ops on CPU tensors as a GPU of Apple's would run them: kernels and launches are its own, run as machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.agx.launch import BASE, Grid, Program, launch
from tools.agx.memory import Memory
from torch_foundry import ops
from torch_foundry.aot.prebuild import Launched

# As a graph has it: the kernel's name in lines, buffers by index, which it writes, the grid.
Launch = tuple[str, list[Tensor | None], list[int], list[int]]


def captured(family: str, call: Callable[[], object]) -> tuple[object, list[Launch]]:
    """What a call gives, and the launches that a GPU of `family` would be given; none has run."""
    graph = torch.classes.torch_foundry.LaunchGraph()
    torch.ops.torch_foundry._list_kernels(family)
    graph.start()
    try:
        result = call()
    finally:
        graph.stop()
        torch.ops.torch_foundry._stop_listing()
    return result, [graph.launch(i) for i in range(graph.size())]


class Emulator:
    """Of a GPU of `family`; `program` gives a kernel's machine code. One at a time: the CPU has one executor."""

    def __init__(self, family: str, program: Callable[[Launched], Program]) -> None:
        self.family, self._program = family, program
        self.ran: list[tuple[Launched, Program]] = []  # in order

    @contextmanager
    def running(self, names: Sequence[str]) -> Iterator[None]:
        """In this block those of `torch_foundry.ops` are emulated, and others run on the host as ever."""
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(mock.patch.object(ops, name, self._emulated(getattr(ops, name))))
            yield

    def _emulated(self, op: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            result, launches = captured(self.family, lambda: op(*args, **kwargs))
            for each in launches:
                self._run(*each)
            return result

        return call

    def _run(self, name: str, buffers: list[Tensor | None], written: list[int], grid: list[int]) -> None:
        file, entry, constants, _ = name.split("\n")
        values = {int(i): value for i, value in (c.split("=") for c in constants.split())}
        x, y, z, *group, threads = grid[:7]
        kernel = Launched(file, entry, values, int(np.prod(group)))
        program = self._program(kernel)
        memory, places = Memory("device", BASE), {}
        addresses = []
        for tensor in buffers:
            if tensor is None:
                addresses.append(0)
                continue
            at = tensor.untyped_storage().data_ptr()
            if at not in places:  # tensors may share memory
                shared = [other is not None and other.untyped_storage().data_ptr() == at for other in buffers]
                writable = any(both and write for both, write in zip(shared, written, strict=True))
                places[at] = memory.add(storage_bytes(tensor), writable), writable, tensor
            addresses.append(places[at][0] + int(tensor.storage_offset()) * tensor.element_size())
        self.ran.append((kernel, program))
        launch(program, memory, addresses, Grid((x, y, z), (group[0], group[1], group[2]), bool(threads)))
        for address, writable, tensor in places.values():
            if writable:
                content = storage_bytes(tensor)
                content[:] = memory.content(address, len(content))


def storage_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The memory that a tensor is a part of."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
