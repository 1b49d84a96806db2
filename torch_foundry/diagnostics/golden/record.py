"""What every op of a golden model gives, in the order of execution, in few numbers: for reports of two devices."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_foundry.diagnostics.golden.numbers import numbers

SKETCH = 4  # products with random vectors: how far two are apart estimates the distance of what they were made of


class Recorded(TorchDispatchMode):
    """While it is active, steps are not captured: every op is called, and noted."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[dict[str, Any]] = []
        self.part = ""  # what the next ops belong to

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        got = func(*args, **(kwargs or {}))
        if func.namespace == "torch_foundry" and (found := list(_tensors(got))):
            given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | (kwargs or {})
            shown = (_shown(name, value) for name, value in given.items())
            self.note(func._schema.name.split("::")[1], " ".join(text for text in shown if text), found)
        return got

    def note(self, op: str, given: str, outputs: list[Tensor]) -> None:
        """Keep what `op` made of `given`, a text."""
        floats = [t.detach().cpu().double().flatten() for t in outputs if t.is_floating_point()]
        if floats:
            bits = hashlib.sha256(b"".join(t.detach().cpu().contiguous().numpy().tobytes() for t in outputs))
            about = {"part": self.part, "op": op, "given": given, "bits": bits.hexdigest()[:16]}
            self.ops.append(about | sketch(torch.cat(floats)))


def sketch(values: Tensor) -> dict[str, Any]:
    """Of float64 [n]: its norm, and SKETCH products with vectors that are the same everywhere; null if not finite."""
    norm = float(values.norm())
    if not math.isfinite(norm):
        return {"norm": None, "sketch": []}
    found = [math.sqrt(3) * float(values @ numbers(f"sketch {i}", values.shape).double()) for i in range(SKETCH)]
    return {"norm": float(f"{norm:.8e}"), "sketch": [float(f"{each:.8e}") for each in found]}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [each for each in value if isinstance(each, Tensor)] if isinstance(value, (list, tuple)) else []


def _shown(name: str, value: Any) -> str:
    """Shapes of tensors, and words such as formats; "" for what is neither."""
    if tensors := _tensors(value):
        return f"{name}={'+'.join('x'.join(map(str, t.shape)) + _dtype(t) for t in tensors)}"
    words = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    told = [word for word in words if isinstance(word, str) and word]
    return f"{name}={'+'.join(told)}" if told else ""


def _dtype(tensor: Tensor) -> str:
    return "" if tensor.dtype == torch.float32 else f":{str(tensor.dtype).removeprefix('torch.')}"
