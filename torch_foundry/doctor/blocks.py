"""Weights of any packed format to check kernels with, also of formats that nothing can be packed as."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from torch_foundry import quant
from torch_foundry.doctor.truth import generator

# Where the f16 scales lie in a block. Every other byte may have any value.
_SCALES = {
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
}


def samples() -> list[str]:
    """The packed formats to check kernels with. Of those that share one text but for numbers (groups with a scale of
    their own), only as many as are needed for every number of bits, every size of a group and every type of a scale."""
    families: dict[str, list[str]] = {}
    for name, known in quant.FORMATS.items():
        if known.packed:
            families.setdefault(re.sub(r"_g\d+(_.*)?$", "", name), []).append(name)
    return [members[4 * i % len(members)] for i, members in enumerate(families.values())]


def packed(dense: Tensor, name: str) -> Tensor:
    """`dense` [N, K] as `quantize` packs it; for a format that it can't pack, random codes of the same magnitude.

    N and K must not be 0. On the device of `dense`. ValueError if K is not whole blocks.
    """
    f = quant.get_format(name)
    if f.packable or not f.packed:
        return quant.quantize(dense, name)
    rows, columns = dense.shape
    g = generator(name, rows, columns)
    blocks = whole_numbers(g, rows, columns, name)
    ratio = dense[:64].cpu().float().square().mean().sqrt() / quant.dequantize(blocks[:64], name).square().mean().sqrt()
    each = blocks.view(rows, -1, f.block_bytes)
    for at in _SCALES[name]:
        scales = ratio * (0.5 + torch.rand(each.shape[:2], generator=g))
        each[..., at : at + 2] = scales.half().unsqueeze(-1).view(torch.uint8)
    return blocks.to(dense.device)


def whole_numbers(g: torch.Generator, rows: int, columns: int, name: str) -> Tensor:
    """Random codes with f16 scales of 1, for a format that nothing can be packed as: uint8 [rows, bytes]."""
    f = quant.FORMATS[name]
    blocks = torch.randint(0, 256, (rows, f.row_size(columns)), generator=g, dtype=torch.uint8)
    each = blocks.view(rows, -1, f.block_bytes)
    for at in _SCALES[name]:
        each[..., at : at + 2] = torch.ones(1, dtype=torch.float16).view(torch.uint8)
    return blocks
