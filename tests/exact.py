"""Whole models held against float64, beside stock: how far off both are depends on the CPU's product of matrices; that
ours are no farther off than stock does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, float32, float64
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache
from transformers.cache_utils import Cache

from torch_foundry.testing.tolerance import UNIT, assert_norm, double, relative_error

MOST = 200  # roundings: a larger error of stock is none of rounding, and would excuse any of ours


class InFloat64(TorchFunctionMode):
    """What asks for float32 gets float64: stock's norms, softmax and tables of angles do so in every dtype."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        args = [float64 if a is float32 else a for a in args]
        return func(*args, **{name: float64 if a is float32 else a for name, a in (kwargs or {}).items()})


def doubled(value: Any) -> Any:
    """A copy of a model, a cache, or tensors of a structure, in float64, with the same (rounded) numbers."""
    if isinstance(value, Cache):
        cache, layers = DynamicCache(), cast(list[Any], value.layers)
        for index, layer in enumerate(layers):
            cache.update(layer.keys.double(), layer.values.double(), index)
        return cache
    if not hasattr(value, "named_modules"):
        return double(copy.deepcopy(value))
    model = copy.deepcopy(value).double()
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._experts_implementation = "eager"  # torch's grouped product has no float64
    return model


def assert_as_exact(compute: Callable[..., Any], ours: Any, stock: Any, *given: Any) -> None:
    """compute(ours, *given) is as close to float64 as compute(stock, *given) is, by the criterion of the ops
    (truth.assert_norm: twice stock's relative L2 error, plus a few roundings).

    compute: -> tensor or tensors, each held by itself; called on copies of what is given.
    """
    assert_found_as_exact(compute(ours, *copy.deepcopy(given)), compute, stock, *given)


def assert_found_as_exact(found: Any, compute: Callable[..., Any], stock: Any, *given: Any) -> None:
    """As `assert_as_exact`, of what ours has computed already."""
    exact = doubled(stock)  # before compute() changes it
    theirs = tensors(compute(stock, *copy.deepcopy(given)))
    with InFloat64():
        truth = tensors(compute(exact, *map(doubled, given)))
    assert len(tensors(found)) == len(theirs) == len(truth) > 0
    for mine, one, true in zip(tensors(found), theirs, truth, strict=True):
        error = relative_error(one, true)
        assert error <= MOST * UNIT[one.dtype], f"stock's own error is {error:.1e}: not the same computation"
        assert_norm(mine, true, one)


def tensors(found: Any) -> list[Tensor]:
    return [each.detach() for each in ([found] if isinstance(found, Tensor) else found)]
