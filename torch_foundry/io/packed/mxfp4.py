"""MXFP4 as gpt-oss is published: `NAME_blocks` [experts, outputs, groups, 16] and `NAME_scales` [experts, outputs,
groups], bytes; a group is 32 weights, and gate and up take turns among the outputs of `gate_up_proj`."""

from __future__ import annotations

import torch

from torch_foundry.io.packed.blocks import Parts, Settings, blocks_weight, check_exponents, two_halves
from torch_foundry.io.weights import Weight

_HALF = 16  # bytes of a group, each with two neighbours


def weights(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of the container, by name. `settings` say nothing that the tensors don't."""
    found: dict[str, Weight] = {}
    tensors = parts.container.tensors
    packed = {name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")}
    for name in tensors:
        base, suffix = name[:-7], name[-7:]
        if suffix not in ("_blocks", "_scales") or base not in packed:
            parts.put(found, name, parts.dense(name))
        elif suffix == "_blocks":
            path, _, leaf = base.rpartition(".")
            if leaf == "gate_up_proj":
                for index, part in enumerate(("gate_proj", "up_proj")):
                    parts.put(found, f"{path}.{part}", _weight(parts, base, index, 2))
            else:
                parts.put(found, base, _weight(parts, base, 0, 1))
    return found


def _weight(parts: Parts, base: str, first: int, step: int) -> Weight:
    """Every `step`-th output from `first` on."""
    blocks = parts.part(f"{base}_blocks", ("u8",))
    if len(blocks.shape) != 4 or 0 in blocks.shape or blocks.shape[-1] != _HALF or blocks.shape[1] % step:
        expected = f"[experts, outputs, groups, {_HALF}], a multiple of {step} outputs"
        raise parts.error("PACK_SHAPE", blocks.name, expected, list(blocks.shape))
    scales = parts.part(f"{base}_scales", ("u8",), blocks.shape[:-1])
    experts, outputs, groups, _ = blocks.shape

    def of_experts(start: int, stop: int) -> torch.Tensor:
        exponents = parts.read(scales.name, start, stop)
        check_exponents(parts, scales.name, "mxfp4", exponents)
        codes = parts.read(blocks.name, start, stop)[:, first::step]
        return torch.cat((exponents[:, first::step, :, None], two_halves(codes, _HALF)[..., 0, :]), -1)

    return blocks_weight((experts, outputs // step, groups * 2 * _HALF), "mxfp4", blocks.name, of_experts)
