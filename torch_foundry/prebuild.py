"""Compiles, side by side, the kernels that common models use, so that a first token waits for none. Run by setup.py.

The list is what the demo model and the Llama and Qwen families launch: each op is called once per variant on tensors
of a few elements, which compiles exactly the kernels that a model would ask for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from torch_foundry import _ext, ops

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIMS = (64, 128)
PACKED = ("q8_0", "q4_0")


def _attention(dtype: torch.dtype, head_dim: int, length: int) -> None:
    cache = torch.zeros(1, 1, 64, head_dim, dtype=dtype)
    ops.attention(torch.zeros(1, 2, length, head_dim, dtype=dtype), cache, cache.clone(), 48, scale=1.0)


def _rope(dtype: torch.dtype, angle: torch.dtype) -> None:
    q, k = torch.zeros(1, 1, 128, dtype=dtype), torch.zeros(1, 1, 64, dtype=dtype)
    cos = torch.ones(1, 1, 64, dtype=angle)
    k_cache = torch.zeros(1, 1, 8, 64, dtype=dtype)
    ops.rope_and_cache(q, k, k.clone(), cos, cos.clone(), k_cache, k_cache.clone(), 0, head_dim=64)


def _packed(rows: int, name: str) -> torch.Tensor:
    from torch_foundry import quant

    return quant.quantize(torch.zeros(rows, 256), name)


def _linear(dtype: torch.dtype, rows: int, name: str | None) -> None:
    weight = _packed(32, name) if name else torch.zeros(32, 256, dtype=dtype)
    ops.linear(torch.zeros(rows, 256, dtype=dtype), weight, format=name)


def _embedding(dtype: torch.dtype, name: str | None) -> None:
    weight = _packed(32, name) if name else torch.zeros(32, 256, dtype=dtype)
    ops.embedding(torch.zeros(1, dtype=torch.int64), weight, format=name, dtype=dtype)


def _calls() -> Iterator[Callable[[], object]]:
    for dtype in DTYPES:
        x, w = torch.zeros(1, 64, dtype=dtype), torch.ones(64, dtype=dtype)
        yield partial(ops.rms_norm, x, w, 1e-6)
        yield partial(ops.rms_norm, x, w, 1e-6, kind="gemma")
        yield partial(ops.add_rms_norm, x, x.clone(), w, 1e-6)
        yield partial(ops.glu, x, x.clone(), "silu")
        yield partial(ops.argmax, x)
        yield partial(_rope, dtype, dtype)
        for head_dim in HEAD_DIMS:
            for length in (1, 16):
                yield partial(_attention, dtype, head_dim, length)
        for name in (None, *PACKED):
            for rows in (1, 2, 4, 8, 32):
                yield partial(_linear, dtype, rows, name)
            yield partial(_embedding, dtype, name)


def main() -> None:
    """Fill the package's own kernel cache."""
    _ext.setup_host(cache=_ext.BUILT / "kernels")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job in [pool.submit(call) for call in _calls()]:
            job.result()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
