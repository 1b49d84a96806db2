"""What the package hands in when it is imported: our quantizer, for transformers, and the loader of MTP heads, for us.

Both are imported when they are needed. Standard library only: importing torch_foundry imports neither torch nor
transformers.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

# What a config.json calls our packing. transformers knows it once this package is imported, and else shows the name to
# whoever loads such a folder, before it fails: so the name says what to do. Folders of before have the second.
METHODS = ("torch_foundry (import torch_foundry before the model is loaded)", "foundry")
_AUTO = "transformers.quantizers.auto"  # where transformers looks up what a model was quantised with

Import = Callable[[], object]
load_mtp: Callable[..., None]  # `io.mtp.load_mtp`: reading files stands above this package, which asks for a head


class _Loader(importlib.abc.Loader):
    """Loads the module, then the one that registers our quantizer."""

    def __init__(self, loader: Any, quantizer: Import) -> None:
        self._loader, self._quantizer = loader, quantizer

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        _register(self._quantizer)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the first import of _AUTO."""

    def __init__(self, quantizer: Import) -> None:
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


def _register(quantizer: Import) -> None:
    """Import our quantizer. Its errors must not keep transformers from being imported; its first use reports them."""
    with contextlib.suppress(Exception):
        quantizer()


def install(quantizer: Import, mtp_loader: Callable[..., None]) -> None:
    """Call `quantizer`, which imports the module that registers itself, as soon as transformers' own are there.

    mtp_loader: becomes `load_mtp`. Both may import what they need, and only then.
    """
    global load_mtp
    load_mtp = mtp_loader
    if _AUTO in sys.modules:
        _register(quantizer)
    else:
        sys.meta_path.insert(0, _Finder(quantizer))
