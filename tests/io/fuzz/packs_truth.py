"""What packed tensors mean, by the formulas of the methods that wrote them, in numpy and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torch_foundry.io.weights import Weight

AWQ = [0, 4, 1, 5, 2, 6, 3, 7]  # the nibble that holds each output


def values(container: Any, weight: Weight, settings: dict[str, Any]) -> torch.Tensor | None:
    """float64 [outputs, inputs] of a matrix of mlx's affine groups, GPTQ, AWQ, FP8 or compressed-tensors' integers;
    None of others."""
    base, method = weight.source.rpartition(".")[0], settings.get("quant_method", "mlx")
    if len(weight.shape) == 2 and weight.format.startswith("fp8"):
        return _eight_bits(container, weight, settings.get("weight_block_size") if "fp8" in method else None)
    if len(weight.shape) == 2 and method == "compressed-tensors" and weight.format.startswith(("affine", "int")):
        return _compressed(container, weight)
    affine = method == "mlx" and weight.format.startswith("affine")
    if len(weight.shape) != 2 or not (affine or method in ("awq", "gptq")):
        return None

    def read(name: str) -> np.ndarray:
        return container.read(f"{base}.{name}").numpy()

    inputs = weight.shape[1]
    scales = container.read(f"{base}.scales").double().numpy()
    if affine:
        words = read("weight").view(np.uint8)
        biases = container.read(f"{base}.biases").double().numpy()
        codes, group = _unpacked(words, words.shape[1] * 8 // inputs), inputs // scales.shape[1]
        return torch.from_numpy(codes * np.repeat(scales, group, 1) + np.repeat(biases, group, 1))
    index = np.arange(inputs) // (inputs // scales.shape[0])
    if method == "awq":
        codes, zeros = _awq(read("qweight")), _awq(read("qzeros"))
    else:
        bits = read("qweight").shape[0] * 32 // inputs
        codes = _unpacked(np.ascontiguousarray(read("qweight").T).view(np.uint8), bits).T
        newer = str(settings.get("checkpoint_format")).lower() == "gptq_v2"
        zeros = (_unpacked(read("qzeros").view(np.uint8), bits) + (not newer)) % 2**bits
        if f"{base}.g_idx" in container.tensors:
            index = read("g_idx")
    return torch.from_numpy(((codes - zeros[index]) * scales[index]).T.copy())


def _compressed(container: Any, weight: Weight) -> torch.Tensor:
    """compressed-tensors' integers, of which the middle of the range is 0 unless there are zeros."""
    base, (rows, columns) = weight.source.rpartition(".")[0], weight.shape
    stored = container.read(weight.source).numpy()
    scales = container.read(f"{base}.weight_scale").double().numpy()
    name = f"{base}.weight_zero_point"
    zeros = container.read(name).numpy() if name in container.tensors else np.zeros((rows, 1), np.int8)
    if stored.dtype == np.int8:
        codes, bits = stored.astype(np.int64), 8
    else:
        bits = stored.shape[1] * 32 // columns
        codes = _unpacked(stored.view(np.uint8), bits) - (1 << bits - 1)
    if zeros.dtype == np.int32:
        zeros = _unpacked(np.ascontiguousarray(zeros.T).view(np.uint8), bits)[:, :rows].T - (1 << bits - 1)
    group = columns // scales.shape[1]
    zeros = np.broadcast_to(zeros.astype(np.int64), scales.shape)
    return torch.from_numpy((codes - np.repeat(zeros, group, 1)) * np.repeat(scales, group, 1))


def _eight_bits(container: Any, weight: Weight, square: list[int] | None) -> torch.Tensor:
    codes = container.read(weight.source).double()
    name = next(f"{weight.source}{s}" for s in ("_scale_inv", "_scale") if f"{weight.source}{s}" in container.tensors)
    stored = container.read(name)
    scales = 2.0 ** (stored.double() - 127) if stored.dtype == torch.uint8 else stored.double()
    scales = scales.view(-1, scales.shape[1] if scales.ndim > 1 else 1)
    rows, columns = square or (codes.shape[0] // scales.shape[0], codes.shape[1] // scales.shape[1])
    return codes * scales[torch.arange(codes.shape[0]) // rows][:, torch.arange(codes.shape[1]) // columns]


def _unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Codes of a stream of bits, the first in the lowest."""
    ones = np.unpackbits(data, axis=1, bitorder="little").reshape(data.shape[0], -1, bits).astype(np.int64)
    return (ones << np.arange(bits)).sum(-1)


def _awq(words: np.ndarray) -> np.ndarray:
    nibbles = (words.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    return nibbles[..., AWQ].reshape(words.shape[0], -1).astype(np.int64)
