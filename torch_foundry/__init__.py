"""torch_foundry: fused Metal kernels for Hugging Face models, as a PyTorch extension.

    model = torch_foundry.patch(AutoModelForCausalLM.from_pretrained(path).to("mps"))
    model.generate(**inputs)

Names are loaded when first used, so that `python -m torch_foundry.msl` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_foundry import registration

if TYPE_CHECKING:
    from torch_foundry.compare import compare
    from torch_foundry.engine import Engine
    from torch_foundry.loaders import LoadError
    from torch_foundry.loading import load
    from torch_foundry.patch.api import dequantize, merge_adapters, patch, patched, quantize, report, unpatch
    from torch_foundry.patch.quantizer import FoundryConfig
    from torch_foundry.profiling import profile
    from torch_foundry.runtime import counters, executor, host_options, reset_counters, scope
    from torch_foundry.save import save_gguf
    from torch_foundry.session import Session
    from torch_foundry.shader import compile_shader
    from torch_foundry.tape import record

__version__ = "0.1.0"

_HOMES = {
    "Engine": "engine",
    "FoundryConfig": "patch.quantizer",
    "LoadError": "loaders",
    "Session": "session",
    "compare": "compare",
    "compile_shader": "shader",
    "counters": "runtime",
    "dequantize": "patch.api",
    "executor": "runtime",
    "host_options": "runtime",
    "load": "loading",
    "merge_adapters": "patch.api",
    "patch": "patch.api",
    "patched": "patch.api",
    "profile": "profiling",
    "quantize": "patch.api",
    "record": "tape",
    "report": "patch.api",
    "reset_counters": "runtime",
    "save_gguf": "save",
    "scope": "runtime",
    "unpatch": "patch.api",
}

__all__ = [
    "Engine",
    "FoundryConfig",
    "LoadError",
    "Session",
    "__version__",
    "compare",
    "compile_shader",
    "counters",
    "dequantize",
    "executor",
    "host_options",
    "load",
    "merge_adapters",
    "patch",
    "patched",
    "profile",
    "quantize",
    "record",
    "report",
    "reset_counters",
    "save_gguf",
    "scope",
    "unpatch",
]


registration.install()


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torch_foundry' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"torch_foundry.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
