"""When memory runs out: the error names the tensors, and the call leaves no trace in the cache."""

from __future__ import annotations

import math

import torch

Described = tuple[list[int], torch.dtype]  # a tensor's shape and dtype

# How torch's allocators say it, beside torch.OutOfMemoryError: MPS (in all, and for one buffer), CPU (Linux, others)
_WORDS = ("out of memory", "Invalid buffer size", "can't allocate memory", "not enough memory")
_ADVICE = "a shorter prompt or generate(..., prefill_chunk_size=256) needs less"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator raised `error` because there is no room."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def explain(error: BaseException, where: str, tensors: dict[str, Described]) -> None:
    """Add to an out-of-memory `error` in which module it arose and which tensors that uses, unless it says so already.

    The error stays the same object, with its traceback; a line is added to its text.
    """
    if not hasattr(error, "torch_foundry_tensors"):
        error.torch_foundry_tensors = dict(tensors)  # type: ignore[attr-defined]
        listed = ", ".join(f"{name} {_text(*tensor)}" for name, tensor in tensors.items())
        _append(error, f"torch_foundry: out of memory in {where}, with {listed}.")


def conclude(error: BaseException, tokens: int | None) -> None:
    """Add to the error, once, what became of the cache that was passed. tokens: in it; None: none, or not restored."""
    if not hasattr(error, "torch_foundry_concluded"):
        error.torch_foundry_concluded = True  # type: ignore[attr-defined]
        cache = f"The KV cache is back at its {tokens} tokens and the" if tokens else "The"
        _append(error, f"{cache} model can be used again; {_ADVICE}.")


def described(tensor: torch.Tensor) -> Described:
    """Shape and dtype of a tensor."""
    return list(tensor.shape), tensor.dtype


def _append(error: BaseException, text: str) -> None:
    message = str(error.args[0]) if error.args else ""
    error.args = (f"{message}\n{text}", *error.args[1:])


def _text(shape: list[int], dtype: torch.dtype) -> str:
    size = math.prod(shape) * dtype.itemsize
    return f"{shape} {str(dtype).removeprefix('torch.')} ({size / 2**20:,.2f} MiB)"
