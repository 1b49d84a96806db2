"""`torch_foundry.patch(model)`: run a Hugging Face model on fused kernels.

The functions are in `api`, which is imported with transformers and the kernels when one of them is first used.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_foundry.patch.api import dequantize, merge_adapters, patch, patched, quantize, report, unpatch

__all__ = ["dequantize", "merge_adapters", "patch", "patched", "quantize", "report", "unpatch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("torch_foundry.patch.api"), name)


class _Callable(types.ModuleType):
    """`torch_foundry.patch` is a function to users; importing this package binds the name to the package."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return __getattr__("patch")(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
