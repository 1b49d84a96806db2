"""The ops that bench_ops measures: inputs, cost, the shapes that models give them, and stock torch doing the same."""

from __future__ import annotations

import dataclasses

from benchmarks.cases import Case, Op, Sizes
from benchmarks.models import Model
from benchmarks.ops.attention import ATTENTION, ROPE_ATTENTION, ROPE_KV
from benchmarks.ops.fused import NORM_GLU, NORM_LINEAR, NORM_QKV
from benchmarks.ops.matrices import EMBEDDING, LINEAR
from benchmarks.ops.moe import MOE_DOWN, MOE_GLU
from benchmarks.ops.rows import GLU, RMS_NORM
from torch_foundry import quant
from torch_foundry.quant.kv import FORMATS as KV_FORMATS

OPS: dict[str, Op] = {
    "linear": LINEAR,
    "norm_linear": NORM_LINEAR,
    "norm_qkv": NORM_QKV,
    "norm_glu": NORM_GLU,
    "moe_glu": MOE_GLU,
    "moe_down": MOE_DOWN,
    "rms_norm": RMS_NORM,
    "glu": GLU,
    "rope_kv": ROPE_KV,
    "attention": ATTENTION,
    "rope_attention": ROPE_ATTENTION,
    "embedding": EMBEDDING,
}


def cases(
    models: dict[str, Model], names: list[str], formats: list[str], layouts: list[str], sizes: Sizes
) -> list[Case]:
    """Every op in every format on every shape of the models, each shape once; packed formats where an op takes them."""
    found: dict[Case, Case] = {}
    for name in names:
        op = OPS[name]
        for label, model in models.items():
            for shape in op.shapes(model, sizes):
                for fmt in formats:
                    f, sized = quant.get_format(fmt), shape
                    if f.packed and op.caches and fmt in KV_FORMATS:
                        sized = {**shape, "k": shape["heads"][2]}
                    elif f.packed and not (op.packs and shape["k"] % f.block_size == 0):
                        continue
                    for layout in (text for text in layouts if text in op.layouts):
                        case = Case(name, format=fmt, layout=layout, **sized)
                        named = dataclasses.replace(case, where=f"{label} {case.where}")
                        found.setdefault(dataclasses.replace(case, where=""), named)
    return list(found.values())
