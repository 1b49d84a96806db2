"""Writes values.safetensors beside it: what mlx packs weights as, and what its packed weights stand for.

Needs mlx, which the tests do without: `pip install "mlx[cpu]" safetensors`, then `python tests/quant/mlx/record.py`.
Scales have the type of the weights; the values are those that mlx computes in float32.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx  # type: ignore[import-not-found]

BITS, GROUPS = (2, 3, 4, 5, 6, 8), {32: mx.float16, 64: mx.bfloat16, 128: mx.float32}
MODES = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}


def main() -> None:
    mx.random.seed(0)
    arrays = {}

    def record(name: str, weight: mx.array, parts: tuple[mx.array, ...], **options: object) -> None:
        as_f32 = [parts[0], *(p if p.dtype == mx.uint8 else p.astype(mx.float32) for p in parts[1:])]
        values = mx.dequantize(*as_f32, **options).astype(mx.float32)  # bfloat16 holds those of the modes exactly
        arrays.update({f"{name}.weight": weight, f"{name}.values": values})
        for part, array in zip(("codes", "scales", "biases"), parts, strict=False):  # the modes have no biases
            arrays[f"{name}.{part}"] = array

    for bits in BITS:
        for group, dtype in GROUPS.items():
            weight = mx.random.normal((2, 128)).astype(dtype)
            options = {"group_size": group, "bits": bits}
            record(f"affine{bits}_g{group}", weight, mx.quantize(weight, **options), **options)
    for mode, (bits, group) in MODES.items():
        weight = mx.random.normal((2, 128)).astype(mx.float32)
        options = {"group_size": group, "bits": bits, "mode": mode}
        record(mode, weight, mx.quantize(weight, **options), **options)
    mx.save_safetensors(str(Path(__file__).with_name("values.safetensors")), arrays)


if __name__ == "__main__":
    main()
