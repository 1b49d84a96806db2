"""`torch_foundry.patch(model)`: run a Hugging Face model on fused kernels.

The package is imported without transformers and without the kernels; both are loaded by the first call.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from torch_foundry.patch.packing import Formats
    from torch_foundry.patch.summary import Report

Model = TypeVar("Model", bound="nn.Module")


def patch(
    model: Model,
    *,
    quantize: Formats | None = None,
    sync_every: int | None = None,
    kv_cache: str | Mapping[str, str | None] | None = None,
) -> Model:
    """Run `model` on fused kernels; returns it. See `torch_foundry.patch.api.patch`."""
    from torch_foundry.patch import api

    return api.patch(model, quantize=quantize, sync_every=sync_every, kv_cache=kv_cache)


def unpatch(model: Model, *, dequantize: bool = False) -> Model:
    """Undo `patch`; returns the model. See `torch_foundry.patch.api.unpatch`."""
    from torch_foundry.patch import api

    return api.unpatch(model, dequantize=dequantize)


def patched(
    model: Model,
    *,
    quantize: Formats | None = None,
    sync_every: int | None = None,
    kv_cache: str | Mapping[str, str | None] | None = None,
) -> contextlib.AbstractContextManager[Model]:
    """`patch` for the length of a `with` block. See `torch_foundry.patch.api.patched`."""
    from torch_foundry.patch import api

    return api.patched(model, quantize=quantize, sync_every=sync_every, kv_cache=kv_cache)


def quantize(model: Model, formats: Formats) -> Model:
    """Pack weights in place; returns the model. See `torch_foundry.patch.api.quantize`."""
    from torch_foundry.patch import api

    return api.quantize(model, formats)


def dequantize(model: Model) -> Model:
    """Make packed weights dense in place; returns the model. See `torch_foundry.patch.api.dequantize`."""
    from torch_foundry.patch import api

    return api.dequantize(model)


def merge_adapters(model: Any, formats: str | None = "same") -> Any:
    """Merge adapters into packed layers; returns the model inside. See `torch_foundry.patch.api.merge_adapters`."""
    from torch_foundry.patch import api

    return api.merge_adapters(model, formats)


def report(model: nn.Module) -> Report:
    """What was swapped, left alone and run. See `torch_foundry.patch.api.report`."""
    from torch_foundry.patch import api

    return api.report(model)


class _Callable(types.ModuleType):
    """`torch_foundry.patch` is a function to users; importing this package binds the name to the package."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return patch(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
