"""Imported first, lets modules of the package that need no torch be imported in a process that has none."""

import sys
import types
from pathlib import Path

for name in ("torch_foundry", "torch_foundry.core"):
    package = types.ModuleType(name)
    package.__path__ = [str(Path(__file__).parents[2].joinpath(*name.split(".")))]
    sys.modules.setdefault(name, package)
