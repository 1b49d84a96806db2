"""torch_foundry: fused Metal kernels for Hugging Face models, as a PyTorch extension.

    model = torch_foundry.patch(AutoModelForCausalLM.from_pretrained(path).to("mps"))
    model.generate(**inputs)

Names are loaded when first used, so that `python -m torch_foundry.msl` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_foundry.hf import registration

if TYPE_CHECKING:
    from torch_foundry.core.graph import capture
    from torch_foundry.core.runtime import counters, executor, host_options, reset_counters, scope
    from torch_foundry.core.shader import compile_shader
    from torch_foundry.diagnostics.compare import compare
    from torch_foundry.diagnostics.importance import importance
    from torch_foundry.diagnostics.profiling import profile
    from torch_foundry.engine import Engine
    from torch_foundry.hf.api import dequantize, merge_adapters, patch, patched, quantize, report, unpatch
    from torch_foundry.hf.quantizer import FoundryConfig
    from torch_foundry.io import LoadError
    from torch_foundry.io.gguf.writer import save_gguf
    from torch_foundry.io.load import load
    from torch_foundry.io.mtp import load_mtp
    from torch_foundry.io.session import Session

__version__ = "0.1.0"

_HOMES = {
    "Engine": "engine",
    "FoundryConfig": "hf.quantizer",
    "LoadError": "io",
    "Session": "io.session",
    "compare": "diagnostics.compare",
    "compile_shader": "core.shader",
    "counters": "core.runtime",
    "dequantize": "hf.api",
    "executor": "core.runtime",
    "host_options": "core.runtime",
    "importance": "diagnostics.importance",
    "load": "io.load",
    "load_mtp": "io.mtp",
    "merge_adapters": "hf.api",
    "patch": "hf.api",
    "patched": "hf.api",
    "profile": "diagnostics.profiling",
    "quantize": "hf.api",
    "capture": "core.graph",
    "report": "hf.api",
    "reset_counters": "core.runtime",
    "save_gguf": "io.gguf.writer",
    "scope": "core.runtime",
    "unpatch": "hf.api",
}

__all__ = [*_HOMES, "__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torch_foundry' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"torch_foundry.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


registration.install(
    quantizer=lambda: __getattr__("FoundryConfig"), mtp_loader=lambda *given: __getattr__("load_mtp")(*given)
)
