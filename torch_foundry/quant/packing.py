"""Packing weights into a block format and back, in row chunks: a large matrix is never held in f32 as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torch_foundry.core import memory
from torch_foundry.quant.formats import PACKABLE, get_format, listing

for _mutating in ("pack_weight", "unpack_weight"):  # they only write into their last argument

    @torch.library.register_fake(f"torch_foundry::{_mutating}")
    def _(source: torch.Tensor, format: str, target: torch.Tensor, *options: torch.Tensor | None) -> None:
        pass


CHUNK_WEIGHTS = 1 << 22  # 16 MiB of f32


def _row_chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, CHUNK_WEIGHTS // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


@torch.no_grad()
def quantize(weight: torch.Tensor, format: str, importance: torch.Tensor | None = None) -> torch.Tensor:
    """Pack `weight` [N, K] (f32, f16 or bf16) into uint8 [N, K / block * bytes], on the weight's device.

    Bytes equal those of the `gguf` package where it packs the format; K and IQ4 formats have at most the squared error
    of ggml's reference encoder without an importance matrix. A dense `format` gives `weight` in its dtype.

    importance: [K], of each input: the mean of its squares (`torch_foundry.importance`). The sum of squared
        errors that K and IQ4 formats make least counts each column by it, so it is the error of the outputs for inputs
        that don't correlate; other formats don't use it. Inputs that are (nearly) never there count a millionth of the
        mean.

    ValueError if K is not whole blocks, `format` is none of PACKABLE, or importance has another shape, is negative or
    not finite. RuntimeError if a weight isn't finite or too large for the scale.
    """
    target = get_format(format)
    if weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(f"weight: expected a floating-point [N, K], got {weight.dtype} {list(weight.shape)}")
    if target.packed and not target.packable:
        raise ValueError(f"format: expected one of {listing(PACKABLE)} to pack as, got {format!r}")
    rows, columns = weight.shape
    memory.check(weight.device, target.nbytes(rows, columns), f"a matrix [{rows}, {columns}] as {format}")
    factors = None if importance is None else _factors(importance, columns)
    packed = torch.empty(rows, target.row_size(columns), dtype=target.dtype, device=weight.device)
    if not target.packed:
        return packed.copy_(weight)
    for chunk in _row_chunks(rows, columns):
        dense = weight[chunk].to("cpu", torch.float32).contiguous()
        blocks = torch.empty(dense.shape[0], packed.shape[1], dtype=torch.uint8)
        torch.ops.torch_foundry.pack_weight(dense, target.name, blocks, factors)
        packed[chunk] = blocks
    return packed


def _factors(importance: torch.Tensor, columns: int) -> torch.Tensor:
    if importance.shape != (columns,) or not importance.is_floating_point():
        given = f"{importance.dtype} {list(importance.shape)}"
        raise ValueError(f"importance: expected a floating-point [{columns}], got {given}")
    found = importance.detach().to("cpu", torch.float32)
    if not (found.isfinite().all() and (found >= 0).all()):
        raise ValueError("importance: expected finite values from 0 on")
    mean = found.mean()
    return torch.ones_like(found) if mean == 0 else (found / mean).clamp_min(1e-6)


@torch.no_grad()
def dequantize(
    packed: torch.Tensor, format: str, columns: int | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The weights [N, K] that `packed` stands for, rounded once to `dtype`, on its device; the inverse of `quantize`.

    `columns`, when given, must be K: it checks that `packed` is what the caller believes. ValueError otherwise.
    """
    source = get_format(format)
    if packed.dim() != 2 or packed.dtype != source.dtype:
        raise ValueError(
            f"packed: expected {source.dtype} [N, bytes] for {format}, got {packed.dtype} {packed.dim()}-d"
        )
    rows, width = packed.shape[0], source.columns(packed.shape[1])
    if columns is not None and columns != width:
        raise ValueError(f"packed: expected rows of {columns} weights, got {width}")
    if not source.packed:
        return packed.to(dtype)
    memory.check(packed.device, rows * width * dtype.itemsize, f"a dense matrix [{rows}, {width}]")
    weight = torch.empty(rows, width, dtype=dtype, device=packed.device)
    for chunk in _row_chunks(rows, width):
        blocks = packed[chunk].cpu().contiguous()
        dense = torch.empty(blocks.shape[0], width)
        torch.ops.torch_foundry.unpack_weight(blocks, source.name, dense)
        weight[chunk] = dense
    return weight
