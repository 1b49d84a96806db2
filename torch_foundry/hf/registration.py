"""Lets transformers read models that were saved packed, whichever of the two packages is imported first.

Standard library only: importing torch_foundry imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

# What a config.json calls our packing. transformers knows it once this package is imported, and else shows the name to
# whoever loads such a folder, before it fails: so the name says what to do. Folders of before have the second.
METHODS = ("torch_foundry (import torch_foundry before the model is loaded)", "foundry")
MTP_LOADER = ""  # the module that loads MTP heads, which stands above this package
_AUTO = "transformers.quantizers.auto"  # where transformers looks up what a model was quantised with


class _Loader(importlib.abc.Loader):
    """Loads the module, then the one that registers our quantizer."""

    def __init__(self, loader: Any, quantizer: str) -> None:
        self._loader, self._quantizer = loader, quantizer

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        _register(self._quantizer)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the first import of _AUTO."""

    def __init__(self, quantizer: str) -> None:
        self._quantizer = quantizer

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _AUTO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._quantizer)
        return spec


def _register(quantizer: str) -> None:
    """Import our quantizer. Its errors must not keep transformers from being imported; its first use reports them."""
    with contextlib.suppress(Exception):
        importlib.import_module(quantizer)


def install(quantizer: str) -> None:
    """Import the module `quantizer`, which registers itself, as soon as transformers' own are there."""
    if _AUTO in sys.modules:
        _register(quantizer)
    else:
        sys.meta_path.insert(0, _Finder(quantizer))
