"""Products with weights packed in groups (2 to 8 bits), and packing them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import MSL, SHORT, Buffer, Case, normal

SOURCE = "steel/gemm/gemm quantized_utils "
NAME = re.compile(
    r"(affine|nvfp4|mxfp4|mxfp8)_(qmv_fast|qmv_quad|qmv_wide|qmv|qvm_split_k|qvm|qmm_t_splitk|qmm_t|qmm_n|quantize|dequantize)"
    r"_(float16_t|bfloat16_t|float)_gs_(\d+)_b_(\d)"
    r"(?:_alN_(true|false))?(?:_d_(\d+))?(?:_nv_(\d)_kl_(\d+))?(?:_spk_(\d+))?(?:_batch_([01]))?"
)
TURNED = ("qvm", "qvm_split_k", "qmm_n")  # whose weight is [K, N]
# rows of x, K, N
SHAPES = {
    "qmv_fast": (2, 1024, 16), "qmv_quad": (2, 64, 72), "qmv_wide": (4, 512, 24), "qmv": (2, 640, 20),
    "qvm": (2, 80, 128), "qvm_split_k": (1, 512, 128), "qmm_t": (20, 128, 64), "qmm_n": (20, 64, 128),
    "qmm_t_splitk": (20, 256, 64),
}  # fmt: skip
GROUPS = {"qmv_quad": (32, 1, 1), "qmm_t": (32, 2, 2), "qmm_n": (32, 2, 2), "qmm_t_splitk": (32, 2, 2)}
GLOBAL = ("qmv_fast", "qmv", "qvm")  # of fp kernels
PACKED = 2048  # weights that are packed or unpacked


def case(name: str) -> Case | None:
    if not (found := NAME.fullmatch(name)):
        return None
    mode, what, typed, group, bits, aligned, width, vectors, lanes, split, batched = found.groups()
    kind, size, depth = SHORT[typed], int(group), int(bits)
    affine = mode == "affine"
    if what in ("quantize", "dequantize"):
        return _packing(name, what, kind, size, depth)
    if affine and what == "qmv_quad" and (depth == 6 or (depth in (3, 5) and width == "128")):
        return None  # MLX's qdot reads beyond its private array: nothing is defined
    batch = int(batched or 0)
    more = [aligned, width, vectors, lanes, split, batched]
    instance = f"{'affine' if affine else 'fp'}_{what}<{', '.join([MSL[kind], group, bits, *[m for m in more if m]])}>"
    m, k, n = SHAPES[what]
    k = int(width) if width else k
    n = n + 8 if aligned == "false" else n
    columns = {"qmv_quad": 64, "qvm": 64, "qvm_split_k": 64}.get(what, 8)
    if what == "qmv_wide":
        grid = (-(-m // int(vectors)), -(-n // (32 // int(lanes) * 2)), 1 + batch)
    elif what.startswith("qmm"):
        grid = (-(-n // 32), -(-m // 32), 2 if what.endswith("splitk") else 1 + batch)
    else:
        grid = (m, -(-n // columns), int(split) if split else 1 + batch)
    buffers = partial(_buffers, affine, what, kind, size, depth, (m, k, n), int(split or 2), batch)
    source = SOURCE + ("quantized" if affine else "fp_quantized")
    return Case(name, source, instance, buffers, grid, GROUPS.get(what, (32, 2, 1)), threads=False)


def _packing(name: str, what: str, kind: str, group: int, bits: int) -> Case:
    instance = f"affine_{what}<{MSL[kind]}, {group}, {bits}>"
    per_thread = {3: 8, 5: 8, 6: 4}.get(bits, 8 // bits) if what == "dequantize" else max(group // 32, 1)

    def buffers() -> Mapping[int, Buffer]:
        scales = PACKED // group
        if what == "quantize":
            return {0: normal(kind, PACKED), 1: Buffer.poisoned("uint8", PACKED * bits // 8),
                    2: Buffer.poisoned(kind, scales), 3: Buffer.poisoned(kind, scales)}  # fmt: skip
        return {0: _codes(PACKED * bits // 8, "uint8"), 1: normal(kind, scales, 1, 0.1), 2: normal(kind, scales, 2),
                3: Buffer.poisoned(kind, PACKED)}  # fmt: skip

    return Case(
        name, f"{SOURCE}quantized", instance, buffers, (PACKED // per_thread,), (min(256, PACKED // per_thread),)
    )


def _codes(count: int, kind: str) -> Buffer:
    data = np.random.default_rng(count).integers(0, 256, count * np.dtype(kind).itemsize, np.uint8)
    return Buffer(data.view(kind), kind)


def _buffers(
    affine: bool, what: str, kind: str, group: int, bits: int, shape: tuple[int, int, int], split: int, batch: int
) -> Mapping[int, Buffer]:
    m, k, n = shape
    many = 1 + batch
    words, scales = n * k * bits // 32, n * k // group
    scale = [normal(kind, many * scales, 1, 0.1), normal(kind, many * scales, 2)]
    if not affine:  # exponents around 1, or bytes of E4M3; no offsets; a scale for all is a buffer of some kernels
        scale = [Buffer(np.random.default_rng(1).integers(120, 126, many * scales, np.uint8), "uint8")]
        scale = [Buffer(scale[0].array - (70 if group == 16 else 0), "uint8")]
        scale += [Buffer.of(1.0, "float32")] if what in GLOBAL else []
    parts = [
        _codes(many * words, "uint32"),
        *scale,
        normal(kind, many * m * k, 3),
        Buffer.poisoned(kind, m * n * (split if "split" in what else many)),
    ]
    share = k // split
    sizes = [share if what == "qvm_split_k" else k, n, *([m] if what.startswith("qmm") or what == "qmv_wide" else [])]
    parts += [Buffer.of(size, "int32") for size in sizes]
    if what == "qmm_t_splitk":
        return dict(enumerate([*parts, Buffer.of(share, "int32"), Buffer.of(m * n, "int32")]))

    def array(values: list[int], kind: str) -> Buffer:
        return Buffer(np.array(values, kind), kind)

    number, outer, lead = many, words, m * k
    if what == "qvm_split_k":
        number, outer, lead, scales = split, share * n * bits // 32, share, share * n // group
    parts += [Buffer.of(1, "int32"), array([number, m, share if number == split else k], "int32")]
    parts += [array([lead, k, 1], "int64"), Buffer.of(1, "int32"), array([number, n, k], "int32")]
    parts += [array([outer, 0, 0], "int64"), *[array([scales, 0, 0], "int64")] * (2 if affine else 1)]
    if what == "qvm_split_k":
        parts.append(Buffer.of(k - (split - 1) * share, "int32"))
    return dict(enumerate(parts))
