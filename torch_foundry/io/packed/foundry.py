"""What `save_pretrained` writes of a packed model: blocks as they are, and the format of each packed
parameter in config.json. transformers gives tensors the names of published files, and some experts one tensor each."""

from __future__ import annotations

import dataclasses

import torch

from torch_foundry import quant
from torch_foundry.io.packed.blocks import Parts, Settings
from torch_foundry.io.storage import TYPES
from torch_foundry.io.weights import Weight


def weights(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of the container, by name. `formats` of the settings: those of packed parameters, by name."""
    formats = settings.values.get("formats")
    if not isinstance(formats, dict) or not all(isinstance(fmt, str) for fmt in formats.values()):
        raise settings.error("formats", "a format for each packed tensor, by name", formats)
    owners = {name: parts.names.find(name).parameter for name in parts.container.tensors}
    packed = {name: formats[owner] for name, owner in owners.items() if owner in formats}
    for name in packed:
        parts.part(name, ("u8",))
    known = set(owners.values())
    for owner in formats:
        if owner not in known:
            raise parts.error("PACK_PART", owner, "a tensor", "none")
    found = {name: _weight(parts, name, fmt, settings) for name, fmt in packed.items()}
    orders = {_order_of(name) for name, weight in found.items() if weight.order is not None}
    return found | {name: parts.dense(name) for name in owners if name not in packed and name not in orders}


def _order_of(name: str) -> str:
    """The tensor that says in which order the columns of a matrix lie."""
    return name.removesuffix("weight") + "order"


def _weight(parts: Parts, name: str, fmt: str, settings: Settings) -> Weight:
    known = quant.FORMATS.get(fmt)
    if known is None or not known.packed:
        raise settings.error(
            f"formats.{parts.names.find(name).parameter}",
            quant.listing(n for n, f in quant.FORMATS.items() if f.packed),
            fmt,
        )
    info = parts.container.tensors[name]
    if len(info.shape) < 2 or 0 in info.shape or info.shape[-1] % known.block_bytes:
        expected = f"rows of whole blocks of {known.block_bytes} bytes"
        raise parts.error("PACK_SHAPE", name, expected, list(info.shape))
    shape = (*info.shape[:-1], known.columns(info.shape[-1]))
    order = None
    order_name = _order_of(name)
    if len(shape) == 2 and order_name in parts.container.tensors:
        parts.part(order_name, ("i32", "i64"), shape[-1:])
        order = parts.read(order_name)
        if not torch.equal(order.long().sort().values, torch.arange(shape[-1])):
            raise parts.error("PACK_ORDER", order_name, "each column once", "others")
    parts.container.blocks[name] = TYPES[fmt]
    stored = dataclasses.replace(info, shape=shape, format=fmt)
    return dataclasses.replace(parts.source.weight(stored, shape), order=order)
