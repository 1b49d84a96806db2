"""pytest plugin (`-p tests.on_device`): the suites of the ops test another device's executor as they are.

With --on-device DEVICE, calls of torch_foundry's ops on CPU tensors run on copies there, with the same strides and
offsets, and what they write is copied back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-device", metavar="DEVICE", help="run ops that are given CPU tensors on this device")


@pytest.fixture(autouse=True)
def _on_device(request: pytest.FixtureRequest) -> Iterator[None]:
    device = request.config.getoption("--on-device")
    if device is None:
        yield
    else:
        with OnDevice(device):
            yield


HOST_ONLY = ("pack_weight", "unpack_weight")


class OnDevice(TorchDispatchMode):
    """Moves calls of torch_foundry's ops from the CPU to another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "torch_foundry":
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("torch_foundry::")
        if name == "_shader_pipeline":
            return func(args[0].replace("cpu", self.device), *args[1:], **kwargs)
        if name in HOST_ONLY:
            return func(*args, **kwargs)
        call = _Call(self.device)
        if name == "_shader_launch":
            buffers = [b if i else call.move(b) for b, i in zip(args[1], args[2], strict=True)]
            result = func(args[0], buffers, *args[2:], **kwargs)
            written = [b for b, i in zip(args[1], args[2], strict=True) if b is not None and not i]
        elif not any(_is_plain(a) for a in torch.utils._pytree.tree_leaves([args, kwargs])):
            return func(*args, **kwargs)
        else:
            result = func(*[call.move(a) for a in args], **{k: call.move(v) for k, v in kwargs.items()})
            written = [
                value
                for argument, value in _bound(func, args, kwargs)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]
        call.copy_back(written)
        return torch.utils._pytree.tree_map_only(Tensor, call.back, result)


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, torch.nn.Parameter) and value.device.type == "cpu"


def _bound(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            yield argument, args[position]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


class _Call:
    """The storages of one call on both devices."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.storages: dict[int, tuple[Tensor, Tensor]] = {}  # by address: the bytes on the CPU and there
        self.tensors: dict[int, Tensor] = {}  # by id of the tensor there: the CPU tensor

    def move(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self.move(v) for v in value)
        if not _is_plain(value):
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.storages[storage.data_ptr()] = whole, whole.to(self.device)
        bytes_ = self.storages[storage.data_ptr()][1]
        moved = torch.empty(0, dtype=value.dtype, device=self.device)
        moved.set_(bytes_.untyped_storage(), value.storage_offset(), value.shape, value.stride())
        self.tensors[id(moved)] = value
        self._keep = [*getattr(self, "_keep", []), moved]
        return moved

    def copy_back(self, written: list[Any]) -> None:
        for address in {tensor.untyped_storage().data_ptr() for tensor in written if _is_plain(tensor)}:
            host, device = self.storages[address]
            host.copy_(device)

    def back(self, result: Tensor) -> Tensor:
        return self.tensors.get(id(result), result.cpu())
