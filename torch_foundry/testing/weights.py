"""Weights in any packed format for checking kernels, also in formats that we can read but not pack."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from torch_foundry import quant
from torch_foundry.testing.tolerance import generator


def samples() -> list[str]:
    """The packed formats to check kernels with. Formats that share one text but for numbers (groups with a scale) are
    represented by a few of them, which cover every number of bits, size of a group and type of scale.
    """
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
    for at, kind in f.scales:
        _set_scale(each, f, at, kind, f.whole * ratio * (0.5 + torch.rand(each.shape[:2], generator=g)))
    return blocks.to(dense.device)


def whole_numbers(g: torch.Generator, rows: int, columns: int, name: str) -> Tensor:
    """Random codes with scales at which all weights are whole numbers: uint8 [rows, bytes]. Not of every format."""
    f = quant.FORMATS[name]
    blocks = torch.randint(0, 256, (rows, f.row_size(columns)), generator=g, dtype=torch.uint8)
    each = blocks.view(rows, -1, f.block_bytes)
    for at, kind in f.scales:
        _set_scale(each, f, at, kind, torch.full(each.shape[:2], f.whole))
    return blocks


def has_whole_numbers(name: str) -> bool:
    """Whether `whole_numbers` supports a format. The others can be packed, and hold whole numbers exactly."""
    return quant.FORMATS[name].whole > 0


def _set_scale(each: Tensor, f: quant.Format, at: int, kind: str, scale: Tensor) -> None:
    """Write `scale` [rows, blocks] to the blocks [rows, blocks, bytes], from byte `at` on."""
    if kind == "f32" and kind != f.scales[-1][1]:  # a factor over scales of another kind
        each[..., at : at + 4] = torch.tensor([1.0]).view(torch.uint8)
        return
    if kind == "ue4m3":  # codes are doubled
        each[..., at] = (2 * scale).to(torch.float8_e4m3fn).view(torch.uint8)
        return
    if kind not in ("f16", "nibbles"):
        raise ValueError(f"{f.name}: scales of the type {kind} can't be chosen")
    halves = scale.half().unsqueeze(-1).view(torch.uint8)
    if kind == "f16":
        each[..., at : at + 2] = halves
        return
    for nibble in range(4):  # each in the upper half of the upper byte of a word
        byte = at + 2 * nibble + 1
        value = halves[..., nibble // 2] >> nibble % 2 * 4 & 0xF
        each[..., byte] = each[..., byte] & 0xF | value << 4
