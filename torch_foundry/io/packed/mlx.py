"""mlx: `NAME.weight` of uint32 words, `NAME.scales` and, for affine groups, `NAME.biases`.

Its models are not transformers': experts have modules of their own, a convolution's window lies before its channels,
and Qwen's norms from 3-Next on are stored with 1 added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torch_foundry.io.container import TensorInfo
from torch_foundry.io.packed.blocks import Parts, Settings, as_bytes, blocks_weight, check_exponents, two_halves
from torch_foundry.io.weights import Weight

_RAISED = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
_NORMS = ("input_layernorm.weight", "attention_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
_DENSE = ("f32", "f16", "bf16")
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
            parts.put(found, _renamed(parts, name), _weight(parts, base, _of_layer(settings, base)))
        elif leaf == "bias" and base.endswith(".experts.gate_proj"):
            path = base.removesuffix("gate_proj")
            parts.put(found, _renamed(parts, f"{path}gate_up_proj_bias"), _in_turn(parts, path))
        elif not ((base in packed and leaf in ("scales", "biases")) or name.endswith(".experts.up_proj.bias")):
            parts.put(found, _renamed(parts, name), _dense(parts, name))
    return found


def _renamed(parts: Parts, name: str) -> str:
    """By the name that it has here: mlx puts the decoder of a folder with a vision tower beside that."""
    if parts.names.inside:
        name = name.removeprefix("language_model.")
        name = name.replace("vision_tower.", "model.visual.") if name.startswith("vision_tower.") else name
    name = name.replace(".switch_mlp.", ".experts.")
    if ".experts." in name:
        return name.removesuffix(".weight").replace("down_proj.bias", "down_proj_bias")
    return name


def _dense(parts: Parts, name: str) -> Weight:
    stored, info = parts.dense(name), parts.container.tensors[name]
    if name.endswith(_NORMS) and parts.names.decoder in _RAISED:
        return parts.source.weight(info, info.shape, offset=1.0)
    if not name.endswith((".conv1d.weight", ".conv.conv.weight")) or len(info.shape) != 3 or info.shape[-1] != 1:
        return stored
    channels, taps, _ = info.shape

    def load(device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
        read = stored.load_as
        loaded = stored.load(device) if dtype is None or read is None else read(device, dtype)
        return loaded.view(channels, 1, taps)

    return replace(stored, shape=(channels, 1, taps), load=load, load_as=load)


def _in_turn(parts: Parts, path: str) -> Weight:
    """Biases of experts, [experts, 2 * outputs], of gate and up in turn."""
    gate = parts.part(f"{path}gate_proj.bias", _DENSE)
    up = parts.part(f"{path}up_proj.bias", (gate.format,), gate.shape)
    shape = (*gate.shape[:-1], 2 * gate.shape[-1]) if gate.shape else gate.shape

    def load(device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
        both = torch.stack([parts.read(info.name) for info in (gate, up)], -1).view(shape)
        return both.to(device, dtype)

    return Weight(shape, gate.format, gate.name, load, load_as=load)


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
