"""The tensors of a GGUF file that hold a parameter of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from torch_foundry import quant
from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.blocks import head_dim, head_sizes, state_sizes
from torch_foundry.io.gguf.layouts import LAYOUTS, take_apart
from torch_foundry.io.gguf.slots import EMBEDDING, Slot
from torch_foundry.io.weights import side_by_side
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import matrices_of, names_of

EXPERTS = ("gate_proj", "up_proj", "down_proj")
BOTH = "gate_up_proj"


class Tensor:
    """A tensor to write. shape: rows first. format: of `quant.FORMATS`, one that GGUF has. read: the stored tensor."""

    def __init__(self, shape: Sequence[int], fmt: str, read: Callable[[], torch.Tensor]) -> None:
        known = quant.get_format(fmt)
        if known.gguf_type is None:
            raise ValueError(f"format: GGUF has no {fmt}")
        self.shape, self.format, self.read, self.type = tuple(shape), fmt, read, known.gguf_type
        self.nbytes = known.row_size(self.shape[-1]) * known.dtype.itemsize
        for size in self.shape[:-1]:
            self.nbytes *= size


def find(model: Any, parameter: str) -> tuple[torch.Tensor, str, int] | None:
    """The stored tensor of a parameter or of a part of experts, its format, and its columns; None: there is none."""
    path, _, leaf = parameter.rpartition(".")
    try:
        module: Any = model.get_submodule(path)
    except AttributeError:  # a layer without experts among others
        return None
    if isinstance(module, FoundryExperts) and not leaf.endswith("bias"):
        part = EXPERTS[0] if leaf == BOTH else leaf
        fmt = module.formats[names_of(module).index(part)]
        tensor = getattr(module, part)
        return tensor, fmt, quant.get_format(fmt).columns(tensor.shape[-1])
    if isinstance(module, FoundryLinear | FoundryEmbedding) and leaf == "weight":
        columns = module.in_features if isinstance(module, FoundryLinear) else module.embedding_dim
        return module.weight, module.format, columns
    if leaf in EXPERTS and "gate_up_proj" in module._parameters:
        tensor = matrices_of(module)[EXPERTS.index(leaf)]
    else:
        found = getattr(module, leaf, None)
        if isinstance(found, nn.Module) or found is None:
            return None
        tensor = found
    if tensor.dtype not in quant.DENSE_NAMES:
        raise ValueError(f"{parameter}: expected a weight of {', '.join(quant.DENSE)}, got {tensor.dtype}")
    return tensor, quant.DENSE_NAMES[tensor.dtype], tensor.shape[-1]


def tensors_of(model: Any, slot: Slot, architecture: Architecture) -> dict[str, Tensor]:
    """The tensor of the file that holds a parameter, and the factors of its blocks, if they have any; or several.

    ValueError: the model has no such parameter, or one that GGUF can't hold.
    """
    found = find(model, slot.parameter)
    if found is None:
        raise ValueError(f"model: expected {slot.parameter}, which files of this kind have")
    tensor, fmt, columns = found
    if not slot.layout and _order(model, slot.parameter) is not None:
        raise ValueError(f"{slot.parameter}: its columns are in an order of their own, which GGUF can't say")
    factors = None
    if fmt == "nvfp4_f32" and slot is not EMBEDDING and not slot.layout:
        factors, fmt = _factors(slot.parameter, tensor), "nvfp4"
    if quant.get_format(fmt).gguf_type is None:
        hint = "unpatch(model, dequantize=True) makes weights dense"
        raise ValueError(f"{slot.parameter}: GGUF has no {fmt}; {hint}")
    if slot.layout:
        return _laid_out(model, slot, tensor, fmt, architecture)
    experts: Any = model.get_submodule(slot.parameter.rpartition(".")[0])
    if isinstance(experts, FoundryExperts) and slot.parameter.endswith(BOTH):
        if experts.formats[1] != fmt:
            raise ValueError(f"{slot.parameter}: GGUF has one tensor for gate and up, which are of two formats")
        both = experts.gate_proj, experts.up_proj
        return {slot.tensor: Tensor((len(tensor), 2 * tensor.shape[1], columns), fmt, lambda: torch.cat(both, 1))}
    shape = _shape((*tensor.shape[:-1], columns), slot, model.config, architecture)
    vector = len(slot.shape.split()) == 1 or len(shape) == 1 or slot.single
    offset = architecture.norm_offset if slot.offset else 0.0
    head = head_dim(model.config) if slot.heads and architecture.interleaved else 0

    def read() -> torch.Tensor:
        stored = tensor.detach()
        if factors is not None:
            stored = stored.unflatten(-1, (-1, 40))[..., 4:].flatten(-2)
        if vector:
            return stored.float().view(shape) + offset
        return side_by_side(stored, head) if head else stored

    if vector and head:
        return {slot.tensor: Tensor(shape, "f32", lambda: side_by_side(tensor.detach().float(), head))}
    tensors = {slot.tensor: Tensor(shape, "f32" if vector else fmt, read)}
    if factors is not None:
        tensors[f"{slot.tensor.removesuffix('weight')}scale"] = Tensor(tuple(factors.shape), "f32", lambda: factors)
    return tensors


def _shape(dims: tuple[int, ...], slot: Slot, config: Any, architecture: Architecture) -> tuple[int, ...]:
    """The shape in the file, without dimensions that are 1 in all models but where that is usual."""
    if slot.stored == slot.shape:
        return dims
    if slot.stored:
        sizes = {"1": 1, **sizes_of(config, architecture)}
        return tuple(sizes[letter] for letter in slot.stored.split())
    return tuple(size for size, letter in zip(dims, slot.shape.split(), strict=True) if letter != "1") or (1,)


def _order(model: Any, parameter: str) -> torch.Tensor | None:
    """The order in which the columns of a packed matrix lie, if it is one of their own."""
    order: torch.Tensor | None = getattr(model.get_submodule(parameter.rpartition(".")[0]), "order", None)
    return order


def _laid_out(model: Any, slot: Slot, tensor: torch.Tensor, fmt: str, architecture: Architecture) -> dict[str, Tensor]:
    """The tensors of the file that hold a parameter which none of them is as it lies there."""
    layout, known, sizes = LAYOUTS[slot.layout], quant.get_format(fmt), sizes_of(model.config, architecture)
    sizes["X"] = tensor.shape[-1] // 2
    parts = slot.shape.split()[layout.axis].split("+") if len(slot.tensors) > 1 else []
    if len(set(parts)) == 1:
        sizes[parts[0]] = tensor.shape[layout.axis] // len(parts)
    lengths = [sizes[letter] for letter in parts] or [tensor.shape[layout.axis]]
    order, whole = _order(model, slot.parameter), tensor.detach()
    if order is not None:
        if layout.order is None or not torch.equal(order.cpu().long().argsort(), layout.order(sizes)):
            raise ValueError(f"{slot.parameter}: its columns are in an order of their own, which GGUF can't say")
        layout = replace(layout, order=None)  # it is that of files

    def pieces(of: torch.Tensor) -> list[torch.Tensor]:
        return take_apart(layout, of, lengths, known.block_size, sizes)

    def read(index: int) -> torch.Tensor:
        return pieces(whole)[index].float() if slot.single else pieces(whole)[index]

    try:
        shapes = [piece.shape for piece in pieces(whole.to("meta"))]
    except ValueError as error:
        raise ValueError(f"{slot.parameter}: {error}") from None
    found = {}
    for index, (name, stored) in enumerate(zip(slot.tensors, shapes, strict=True)):
        shape = tuple(stored)
        if not layout.split:
            shape = _shape((*stored[:-1], known.columns(stored[-1])), slot, model.config, architecture)
        found[name] = Tensor(shape, "f32" if slot.single else fmt, partial(read, index))
    return found


def sizes_of(config: Any, architecture: Architecture) -> dict[str, int]:
    """What layouts and stored shapes need of the sizes that `GgufModel` has, of a config."""
    heads, fields = config.num_attention_heads, {key.name: key.field for key in architecture.keys}
    sizes = head_sizes(heads, config.to_dict().get("num_key_value_heads") or heads, head_dim(config))
    if architecture.blocks == "latent":
        sizes |= {"N": config.qk_nope_head_dim, "U": config.v_head_dim}
    if "kda.head_dim" in fields:
        return sizes | {"B": config.linear_num_heads}
    if "ssm.inner_size" not in fields:
        return sizes
    names = ("ssm.group_count", "ssm.state_size", "ssm.time_step_rank")
    keys, key, values = (getattr(config, fields[name]) for name in names)
    return sizes | state_sizes(keys, key, values, getattr(config, architecture.value_size))


def _factors(parameter: str, tensor: torch.Tensor) -> torch.Tensor:
    """Those of the matrix, or of each expert, float32; ValueError if they aren't the same in all of its blocks."""
    each = tensor.detach().cpu().view(1 if tensor.ndim == 2 else len(tensor), -1, 40)[..., :4].contiguous()
    factors = each.view(torch.float32).flatten(1)
    if not bool((factors == factors[:, :1]).all()):
        raise ValueError(f"{parameter}: GGUF has one factor for the NVFP4 blocks of a matrix, and this one has several")
    return factors[:, 0].clone(memory_format=torch.contiguous_format)
