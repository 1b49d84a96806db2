"""How parameters lie in files: in which tensors, and those in another order how put together and taken apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from torch_foundry import quant
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import TensorInfo
from torch_foundry.io.gguf.slots import Sizes, Slot
from torch_foundry.io.weights import Weight

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Layout:
    """order: where each element of `axis` of the parameter lies in the file, whose tensors come one after the other.

    negated: the file has -exp(parameter). join, split: what makes the parameter of the file's dense tensors, and these
    of it.
    """

    order: Callable[[Sizes], Tensor] | None
    axis: int = 0
    negated: bool = False
    join: Callable[[Sequence[Tensor]], Tensor] | None = None
    split: Callable[[Tensor, Sizes], list[Tensor]] | None = None


def _tiled(sizes: Sizes, width: int) -> Tensor:
    """Value heads of the first key head, of the second ...: in files, the first of each key head, then the second."""
    heads = torch.arange(sizes["B"] * width).view(-1, sizes["G"], width)
    return heads.transpose(0, 1).reshape(-1)


def _tiled_channels(sizes: Sizes) -> Tensor:
    keys = sizes["C"] - sizes["Z"]
    return torch.cat((torch.arange(keys), keys + _tiled(sizes, sizes["U"])))


def _by_key_head(sizes: Sizes) -> Tensor:
    """q, k, v and z of the first key head, then of the second; in files all heads of q, then of k ..."""
    keys, values = sizes["G"] * sizes["N"], sizes["Z"]
    letters = torch.arange(2 * keys + 2 * values).split((keys, keys, values, values))
    return torch.cat([letter.view(sizes["G"], -1) for letter in letters], 1).reshape(-1)


def _keys_and_values(parts: Sequence[Tensor]) -> Tensor:
    """Rows of each head's keys, then of its values; in files heads of keys are turned, and values lie behind them."""
    keys, values = parts
    return torch.cat((keys.transpose(1, 2), values), 1).flatten(0, 1)


def _apart(rows: Tensor, sizes: Sizes) -> list[Tensor]:
    keys, values = rows.unflatten(0, (sizes["A"], -1)).split((sizes["N"], sizes["U"]), 1)
    return [keys.transpose(1, 2), values]


def _by_head(sizes: Sizes) -> Tensor:
    """Queries, keys and values of the first head, of the second ...; in files all queries, then all keys ..."""
    return torch.arange(3 * sizes["Q"]).view(3, sizes["A"], -1).transpose(0, 1).reshape(-1)


def _matrix(index: int, parts: Sequence[Tensor]) -> Tensor:
    """One of several that lie in one tensor."""
    return parts[0][index]


def _frames(parts: Sequence[Tensor]) -> Tensor:
    """A convolution over time, width and height, of one over width and height for each time."""
    return torch.stack(list(parts), 2)


def _channels_last(parts: Sequence[Tensor]) -> Tensor:
    """Over a patch's pixels one after the other, of a convolution [N, 3, P, P], or one that lies flat."""
    own = parts[0]
    if own.dim() != 4:
        side = math.isqrt(own.shape[-1] // 3)
        own = own.unflatten(-1, (3, side, side))
    return own.movedim(-3, -1).contiguous()


def _places_first(parts: Sequence[Tensor]) -> Tensor:
    """Tables [N, B, H] of places, of [B, N, H]."""
    return parts[0].transpose(0, 1).contiguous()


LAYOUTS = {
    **{f"matrix {index}": Layout(None, join=partial(_matrix, index)) for index in range(3)},
    "keys and values": Layout(None, join=_keys_and_values, split=_apart),
    "joined": Layout(None),
    "turns": Layout(lambda sizes: torch.arange(2 * sizes["X"]).view(2, -1).t().reshape(-1), axis=1),
    "key heads": Layout(_by_key_head),
    "by head": Layout(_by_head),
    "frames": Layout(None, join=_frames),
    "channels last": Layout(None, join=_channels_last),
    "places first": Layout(None, join=_places_first),
    "decay": Layout(None, negated=True),
    "tiled decay": Layout(lambda sizes: _tiled(sizes, 1), negated=True),
    "tiled heads": Layout(lambda sizes: _tiled(sizes, 1)),
    "tiled values": Layout(lambda sizes: _tiled(sizes, sizes["U"])),
    "tiled channels": Layout(_tiled_channels),
    "tiled columns": Layout(lambda sizes: _tiled(sizes, sizes["U"]), axis=1),
}


def shape_of(letters: str, sizes: Sizes) -> tuple[int, ...]:
    """What `Slot.shape` stands for."""
    return tuple(sum(sizes[letter] for letter in dim.split("+")) for dim in letters.split())


def stored_shapes(slot: Slot, sizes: Sizes) -> list[tuple[int, ...]]:
    """The shape of each of a slot's tensors in the file."""
    count = len(slot.tensors)
    dims = (slot.stored or slot.shape).split()
    each = ([d.split("+")[i] if d.count("+") + 1 == count else d for d in dims] for i in range(count))
    return [shape_of(" ".join(own), sizes) for own in each]


def check_tensor(file: Path, info: TensorInfo, stored: tuple[int, ...], matrix: bool) -> None:
    """Refuse a tensor of another shape or type than its parameter can have. matrix: it may be packed."""
    known = [fmt.name for fmt in quant.FORMATS.values() if fmt.gguf_type is not None]
    if info.shape != stored and [size for size in info.shape if size != 1] != [size for size in stored if size != 1]:
        raise LoadError("SHAPE", file, info.name, expected=str(list(stored)), found=str(list(info.shape)))
    if info.format not in (known if matrix else quant.DENSE):
        expected = "one of " + quant.listing(known if matrix else quant.DENSE)
        raise LoadError("TENSOR_TYPE", file, info.name, expected=expected, found=info.format)


def put_together(layout: Layout, parts: Sequence[Weight], shape: tuple[int, ...], sizes: Sizes) -> Weight:
    """The parameter of this shape, of the file's tensors. Tensors of two formats make a dense one.

    Columns in another order stay where they are if they are not whole blocks; the weight says which they are then.
    """
    order = layout.order(sizes) if layout.order else None
    first = parts[0]
    same = all(part.format == first.format for part in parts)
    known = quant.get_format(first.format if same else "bf16")
    if layout.join and known.packed:
        known = quant.get_format("bf16")
    if order is not None and layout.axis == 1 and known.packed:
        blocks = order_of_blocks(order, known.block_size)
        if blocks is None:
            return Weight(shape, first.format, first.source, first.load, order=order.argsort())
        order = blocks

    def load(device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        read = [_read(part, None if known.packed else dtype or known.dtype) for part in parts]
        whole = layout.join(read) if layout.join else torch.cat(read, layout.axis)
        if order is not None:
            units = whole.unflatten(layout.axis, (len(order), -1))
            whole = units.index_select(layout.axis, order).flatten(layout.axis, layout.axis + 1)
        if layout.negated:
            whole = (-whole).log()
        return whole.view(*shape[:-1], -1).to(device)

    return Weight(shape, known.name, first.source, load, load_as=None if known.packed else load)


def _read(part: Weight, dtype: torch.dtype | None) -> Tensor:
    """On the CPU, as it is stored, or dense."""
    if part.load_as is not None and dtype is not None:
        return part.load_as(CPU, dtype)
    stored = part.load(CPU)
    if dtype is None:
        return stored
    return quant.dequantize(stored.flatten(0, -2), part.format, part.shape[-1], dtype).view(part.shape)


def order_of_blocks(order: Tensor, size: int) -> Tensor | None:
    """The same order, of blocks of columns; None if blocks don't stay whole."""
    runs = order.view(-1, size) if len(order) % size == 0 else order[:0].view(0, size)
    starts = runs[:, :1]
    whole = bool(len(runs)) and torch.equal(runs, starts + torch.arange(size)) and not bool((starts % size).any())
    return starts.flatten() // size if whole else None


def take_apart(layout: Layout, tensor: Tensor, lengths: Sequence[int], block_size: int, sizes: Sizes) -> list[Tensor]:
    """The file's tensors of a parameter (stored, with `block_size` numbers in a block), `lengths` of its axis in each.

    ValueError: blocks would not stay whole.
    """
    if layout.split:
        return layout.split(tensor, sizes)
    order = layout.order(sizes) if layout.order else None
    if order is not None:
        if layout.axis == 1:
            order = order_of_blocks(order, block_size)
            if order is None:
                raise ValueError(f"its columns lie in another order in GGUF, which blocks of {block_size} don't have")
        units = tensor.unflatten(layout.axis, (len(order), -1))
        places = order.argsort().to(tensor.device)
        tensor = units.index_select(layout.axis, places).flatten(layout.axis, layout.axis + 1)
    if layout.negated:
        tensor = -tensor.float().exp()
    return list(tensor.split(list(lengths), layout.axis))
