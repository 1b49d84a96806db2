"""What the packed leaf modules share."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

KERNEL_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})  # of activations
Module = TypeVar("Module", bound=nn.Module)


def lay_out(weight: nn.Parameter) -> None:
    """Store matrices [.., inputs, outputs] so that an output's weights lie side by side, as kernels read them. Shape
    and values stay."""
    if weight.stride(-2) != 1:
        with torch.inference_mode(False), torch.no_grad():
            weight.data = weight.data.mT.contiguous().mT


def take_over(packed: Module, dense: nn.Module) -> Module:
    """Let `packed` replace `dense`, which loses its weight, keeps all else and is stored, unregistered, in `_dense`."""
    dense._parameters["weight"] = None
    packed.__dict__["_dense"] = dense
    packed.train(dense.training)
    return packed


def give_back(packed: nn.Module, weight: torch.Tensor) -> nn.Module:
    """The dense module that `take_over` stored, with `weight` and with whatever has happened to `packed` since.

    If `packed` was not made from a dense module, a new one is made (`packed.stock()`).
    """
    dense: Any = packed.__dict__.get("_dense")
    if dense is None:
        dense = packed.stock()  # type: ignore[operator]
    dense._parameters["weight"] = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
    for name in dense._parameters.keys() & packed._parameters.keys():
        dense._parameters[name] = packed._parameters[name]
    for name in dense._buffers.keys() & packed._buffers.keys():
        dense._buffers[name] = packed._buffers[name]
    dense.train(packed.training)
    result: nn.Module = dense
    return result
