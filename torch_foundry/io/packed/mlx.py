"""mlx: `NAME.weight` of uint32 words, `NAME.scales` and, for affine groups, `NAME.biases`.

Its models are not transformers': experts have modules of their own, a convolution's window lies before its channels,
Qwen's norms from 3-Next on are stored with 1 added, latent attention's keys and values lie apart, and most of
Falcon-H1's multipliers are part of its weights. Other names than transformers' are in `io/parameters.py`.
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import torch

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.gguf.layouts import LAYOUTS, put_together
from torch_foundry.io.packed.blocks import DENSE, Parts, Settings, as_bytes, blocks_weight, small_floats
from torch_foundry.io.weights import Weight

_RAISED = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
_BOTH = ".self_attn.kv_b_proj.weight"  # of latent attention
_KEYS, _VALUES = ".self_attn.embed_q.weight", ".self_attn.unembed_out.weight"  # the same by heads, keys turned
_NORMS = ("input_layernorm.weight", "attention_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
_SCALARS = (".act_fn.alpha_p", ".act_fn.alpha_n")  # of Apertus
_FOLDED = ("embedding", "lm_head", "attention_in", "ssm_in", "ssm_out")  # multipliers of Falcon-H1
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
        if name.endswith((_KEYS, _VALUES)):
            if name.endswith(_KEYS):
                path = name.removesuffix(_KEYS)
                parts.put(found, _renamed(parts, f"{path}{_BOTH}"), _keys_and_values(parts, path, packed, settings))
        elif leaf == "weight" and (base in packed or info.format == "u32"):
            parts.put(found, _renamed(parts, name), _weight(parts, base, _of_layer(settings, base)))
        elif leaf == "bias" and base.endswith(".experts.gate_proj"):
            path = base.removesuffix("gate_proj")
            parts.put(found, _renamed(parts, f"{path}gate_up_proj_bias"), _in_turn(parts, path))
        elif not ((base in packed and leaf in ("scales", "biases")) or name.endswith(".experts.up_proj.bias")):
            parts.put(found, _renamed(parts, name), _dense(parts, name))
    return found


def adapted(settings: dict[str, Any], file: Path) -> dict[str, Any]:
    """A config.json of a folder by mlx, as its weights are: it has the file's that it made them of.

    mlx multiplies weights of Falcon-H1's queries and keys by the factor for what attention is given, but not those of
    values, and none by the keys' own. LoadError CONFIG: there would be biases, which it leaves as they are.
    """
    if settings.get("model_type") != "falcon_h1":
        return settings
    for name in ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"):
        if settings.get(name):
            raise LoadError("CONFIG", file, name, expected="no biases, as mlx scales weights alone", found="true")
    ones: dict[str, Any] = {f"{name}_multiplier": 1.0 for name in _FOLDED}
    ones |= {"mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}
    if settings.get("tie_word_embeddings"):  # the output layer has the embeddings' factor
        of_logits, of_embeddings = (settings.get(f"{name}_multiplier", 1.0) for name in ("lm_head", "embedding"))
        for name, value in (("lm_head_multiplier", of_logits), ("embedding_multiplier", of_embeddings)):
            if type(value) not in (int, float) or not 1e-6 < value < 1e6:
                raise LoadError("CONFIG", file, name, expected="a number from 1e-6 to 1e6", found=reprlib.repr(value))
        ones["lm_head_multiplier"] = of_logits / of_embeddings
    of_values = settings.get("attention_in_multiplier", 1.0)
    return {**settings, **ones, "attention_out_multiplier": of_values}


def _keys_and_values(parts: Parts, path: str, packed: dict[str, None], settings: Settings) -> Weight:
    """[heads * (keys + values), latent] of [heads, latent, keys] and [heads, values, latent]; dense, as both may be
    packed along other columns."""
    both = []
    for name in (f"{path}{_KEYS}", f"{path}{_VALUES}"):
        base = name.removesuffix(".weight")
        info = parts.part(name, ("u32",) if base in packed else DENSE)
        if len(info.shape) != 3:
            raise parts.error("PACK_SHAPE", name, "[heads, rows, columns]", list(info.shape))
        both.append(_weight(parts, base, _of_layer(settings, base)) if base in packed else parts.dense(name))
    keys, values = both
    if (keys.shape[0], keys.shape[1]) != (values.shape[0], values.shape[2]):
        expected = f"[{keys.shape[0]}, values, {keys.shape[1]}]"
        raise parts.error("PACK_SHAPE", values.source, expected, list(values.shape))
    shape = (keys.shape[0] * (keys.shape[2] + values.shape[1]), keys.shape[1])
    return put_together(LAYOUTS["keys and values"], both, shape, {})


def _renamed(parts: Parts, name: str) -> str:
    """By the name that it has here."""
    name = parts.names.of_mlx(name).replace(".switch_mlp.", ".experts.").replace(".experts.switch_glu.", ".experts.")
    if ".experts." in name:
        return name.removesuffix(".weight").replace("down_proj.bias", "down_proj_bias")
    return name


def _dense(parts: Parts, name: str) -> Weight:
    stored, info = parts.dense(name), parts.container.tensors[name]
    if name.endswith(_NORMS) and parts.names.decoder in _RAISED:
        return parts.source.weight(info, info.shape, offset=1.0)
    if name.endswith(("conv1d.weight", "conv.conv.weight")) and len(info.shape) == 3 and info.shape[-1] == 1:
        shape: tuple[int, ...] = (info.shape[0], 1, info.shape[1])
    elif name.endswith(_SCALARS) and not info.shape:
        shape = (1,)
    elif len(info.shape) in (4, 5) and not name.endswith(".A_log"):  # of a tower's convolution
        shape = (info.shape[0], info.shape[-1], *info.shape[1:-1])
        return stored.laid_out(shape, lambda read: read.movedim(-1, 1).contiguous())
    else:
        return stored
    return stored.laid_out(shape, lambda read: read.view(shape))


def _in_turn(parts: Parts, path: str) -> Weight:
    """Biases of experts, [experts, 2 * outputs], of gate and up in turn."""
    gate = parts.part(f"{path}gate_proj.bias", DENSE)
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
    mode = own.get("mode", "affine")  # whatever that of the others is
    bits, group = _MODES.get(mode if isinstance(mode, str) else "") or (4, 64)
    values = {"mode": mode, "bits": bits, "group_size": group, **own}
    return Settings(settings.file, values, f"{settings.where}.{base}")


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
    scales = parts.part(f"{base}.scales", DENSE if mode == "affine" else ("u8",), groups)
    if mode == "affine":
        parts.part(f"{base}.biases", (scales.format,), groups)
        return _affine(parts, base, shape, f"affine{bits}_g{group}_{scales.format}")
    if f"{base}.biases" in parts.container.tensors:
        raise parts.error("TENSOR_EXTRA", f"{base}.biases", f"none: {mode} has scales alone", "one")
    return small_floats(parts, name, shape, mode, scales)


def _affine(parts: Parts, base: str, shape: tuple[int, ...], fmt: str) -> Weight:
    def blocks(start: int, stop: int) -> torch.Tensor:
        scales, biases, words = (parts.read(f"{base}.{part}", start, stop) for part in ("scales", "biases", "weight"))
        codes = words.view(torch.uint8).view(*scales.shape, -1)
        return torch.cat((as_bytes(scales), as_bytes(biases), codes), -1)

    return blocks_weight(shape, fmt, f"{base}.weight", blocks)
