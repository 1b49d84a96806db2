"""mlx: `NAME.weight` of uint32 words, `NAME.scales` and, for affine groups, `NAME.biases`."""

from __future__ import annotations

from typing import Any

import torch

from torch_foundry.io.container import TensorInfo
from torch_foundry.io.packed.blocks import Parts, Settings, as_bytes, blocks_weight, check_exponents, two_halves
from torch_foundry.io.weights import Weight

_SCALES = ("f16", "bf16", "f32")
_MODES = {"affine": None, "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # bits and weights of a group


def weights(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of the container, by name. `settings`: bits, group_size and mode, and others for layers by name."""
    tensors = parts.container.tensors
    packed = dict.fromkeys(name.removesuffix(".scales") for name in tensors if name.endswith(".scales"))
    for base in packed:
        parts.part(f"{base}.weight", ("u32",))
    for base, own in settings.values.items():
        if isinstance(own, dict) and f"{base}.weight" not in tensors:
            raise settings.error(base, "a layer of the file", own)
    found: dict[str, Weight] = {}
    for name, info in tensors.items():
        base, _, leaf = name.rpartition(".")
        if leaf == "weight" and (base in packed or info.format == "u32"):
            parts.put(found, _renamed(name), _weight(parts, base, _of_layer(settings, base)))
        elif not (base in packed and leaf in ("scales", "biases")):
            parts.put(found, _renamed(name), parts.dense(name))
    return found


def _renamed(name: str) -> str:
    """Experts, which mlx stacks in a module of its own, by the name that they have here; and Mixtral's blocks."""
    name = name.replace(".block_sparse_moe.", ".mlp.")
    return name.replace(".switch_mlp.", ".experts.").removesuffix(".weight") if ".switch_mlp." in name else name


def _of_layer(settings: Settings, base: str) -> Settings:
    own: Any = settings.values.get(base)
    if own is None or own is True:
        return settings
    if not isinstance(own, dict):
        raise settings.error(base, "settings, as it is packed", own)
    return Settings(settings.file, {**settings.values, **own}, f"{settings.where}.{base}")


def _weight(parts: Parts, base: str, settings: Settings) -> Weight:
    name = f"{base}.weight"
    mode = settings.text("mode", tuple(_MODES), "affine")
    fixed = _MODES[mode]
    bits = settings.integer("bits", (fixed[0],) if fixed else (2, 3, 4, 5, 6, 8))
    group = settings.integer("group_size", (fixed[1],) if fixed else (32, 64, 128))
    words = parts.part(name, ("u32",))
    if len(words.shape) < 2 or 0 in words.shape or words.shape[-1] * 32 % (bits * group):
        expected = f"rows of whole groups of {group} weights of {bits} bits"
        raise parts.error("PACK_GROUP", name, expected, list(words.shape))
    shape = (*words.shape[:-1], words.shape[-1] * 32 // bits)
    groups = (*shape[:-1], shape[-1] // group)
    scales = parts.part(f"{base}.scales", _SCALES if mode == "affine" else ("u8",), groups)
    if mode == "affine":
        parts.part(f"{base}.biases", (scales.format,), groups)
        return _affine(parts, base, shape, f"affine{bits}_g{group}_{scales.format}")
    if f"{base}.biases" in parts.container.tensors:
        raise parts.error("TENSOR_EXTRA", f"{base}.biases", f"none: {mode} has scales alone", "one")
    return _floats(parts, base, shape, mode, scales)


def _affine(parts: Parts, base: str, shape: tuple[int, ...], fmt: str) -> Weight:
    def blocks(start: int, stop: int) -> torch.Tensor:
        scales, biases, words = (parts.read(f"{base}.{part}", start, stop) for part in ("scales", "biases", "weight"))
        codes = words.view(torch.uint8).view(*scales.shape, -1)
        return torch.cat((as_bytes(scales), as_bytes(biases), codes), -1)

    return blocks_weight(shape, fmt, f"{base}.weight", blocks)


def _floats(parts: Parts, base: str, shape: tuple[int, ...], mode: str, scales: TensorInfo) -> Weight:
    block = 64 if mode == "nvfp4" else 32
    parts.group_of(f"{base}.weight", shape[-1], block)

    def blocks(start: int, stop: int) -> torch.Tensor:
        exponents = parts.read(scales.name, start, stop)
        check_exponents(parts, scales.name, mode, exponents)
        codes = parts.read(f"{base}.weight", start, stop).view(torch.uint8)
        if mode != "mxfp8":
            codes = two_halves(codes, 16 if mode == "mxfp4" else 8)
        rows = codes.view(*exponents.shape[:-1], shape[-1] // block, -1)
        return torch.cat((exponents.view(*rows.shape[:-1], -1), rows), -1)

    return blocks_weight(shape, mode, f"{base}.weight", blocks)
