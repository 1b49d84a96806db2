"""Weights of models: still in their files, and on their way to where they stay."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_foundry import quant
from torch_foundry.core import devices
from torch_foundry.io.container import Container, TensorInfo

CHUNK = 8 << 20  # bytes that are read at a time where they can't be read to where they stay


@dataclass(frozen=True)
class Weight:
    """A parameter that a model is to get, still in its file.

    shape: of the dense parameter ([out_features, in_features] of a matrix). format: in `quant.FORMATS`. source: name of
    the tensor in its file (the first, if there are several), for messages. load: reads it to a device: uint8
    [out_features, row bytes] if packed, else of the format's dtype. order: for a matrix whose columns are stored in
    another order (GPTQ's g_idx), integers [in_features] on the CPU: column j of the packed matrix multiplies input
    element order[j]. load_as: `load` of a dense one in another dtype, converted in row chunks; without it, as a whole.
    """

    shape: tuple[int, ...]
    format: str
    source: str
    load: Callable[[torch.device], torch.Tensor]
    order: torch.Tensor | None = None
    load_as: Callable[[torch.device, torch.dtype], torch.Tensor] | None = None

    @property
    def count(self) -> int:
        """How many numbers it is."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes as it is stored."""
        known = quant.get_format(self.format)
        return known.nbytes(math.prod(self.shape[:-1]), self.shape[-1]) if self.shape else known.dtype.itemsize

    def laid_out(self, shape: tuple[int, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> Weight:
        """A dense one whose numbers `change` puts into this shape once they are loaded."""

        def load(device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
            read = self.load_as
            return change(self.load(device) if dtype is None or read is None else read(device, dtype))

        return replace(self, shape=shape, load=load, load_as=load)

    def bytes_as(self, dtype: torch.dtype) -> int:
        """Bytes that it takes once it is loaded: those that are not packed in `dtype`."""
        return self.nbytes if quant.get_format(self.format).packed else self.count * dtype.itemsize


@dataclass(frozen=True)
class ModelSource:
    """A model that can be assembled.

    config: of transformers. weights: by the names of its parameters. file: whom errors name. tokenizer: makes it.
    close: closes the files, when all weights are read. absent: parameters without a weight, which the caller has
    allowed. model_class: if it isn't that of the config's type. tower: those of `weights` that don't say what
    activations are in. processor: makes that of a model that is shown images, of its tokenizer.
    """

    config: Any
    weights: Mapping[str, Weight]
    file: Path
    tokenizer: Callable[[], Any]
    close: Callable[[], None]
    generation_config: Any = None
    attn_implementation: str | None = None
    absent: tuple[str, ...] = ()
    model_class: Any = None
    tower: frozenset[str] = frozenset()
    processor: Callable[[Any], Any] | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        """That most of the dense matrices are stored in; None if there are none."""
        said = (weight for name, weight in self.weights.items() if name not in self.tower)
        counts = Counter(w.format for w in said if len(w.shape) > 1 and w.format in quant.DENSE)
        return quant.DENSE[counts.most_common(1)[0][0]] if counts else None

    def dtype_on(self, device: torch.device) -> torch.dtype:
        """What activations, and weights that are not packed, are in by default on `device`."""
        small = torch.float16 if self.dtype == torch.float16 else torch.bfloat16
        return small if devices.of(device).half else torch.float32


class WeightReader:
    """Makes weights of the tensors of a container.

    mmap: weights that need no conversion stay in the page cache, on the CPU and on Metal. check_finite: by a tensor's
    name.
    """

    def __init__(self, container: Container, mmap: bool, check_finite: Callable[[str], bool]) -> None:
        self.container, self.mmap = container, mmap
        container.checks_finite = check_finite
        self._piece = torch.empty(0, dtype=torch.uint8)  # one for all: new ones would leave holes in the heap

    def weight(
        self,
        infos: TensorInfo | Sequence[TensorInfo],
        shape: tuple[int, ...],
        head: int = 0,
        offset: float = 0.0,
        factors: TensorInfo | None = None,
    ) -> Weight:
        """The weight of this shape (that of the tensor but for dimensions of 1).

        infos: several, of one shape and format, are the experts of one weight. head: rows in a head whose rotary pairs
        lie side by side and are put half a head apart; 0: as they are. offset: what is taken off its values. factors:
        of NVFP4 blocks, float32, one for the tensor or one for each expert.
        """
        infos = (infos,) if isinstance(infos, TensorInfo) else tuple(infos)
        fmt = infos[0].format if factors is None else f"{infos[0].format}_f32"
        load = functools.partial(self._load, infos, fmt, shape, head, offset, factors)
        return Weight(shape, fmt, infos[0].name, load, load_as=None if quant.get_format(fmt).packed else load)

    def _load(
        self,
        infos: tuple[TensorInfo, ...],
        fmt: str,
        shape: tuple[int, ...],
        head: int,
        offset: float,
        factors: TensorInfo | None,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        known = quant.get_format(fmt)
        dtype = known.dtype if known.packed or dtype is None else dtype
        converted = bool(head) or bool(offset) or factors is not None or dtype != known.dtype
        if not shape:  # a number
            return self.container.read(infos[0].name).to(device, dtype).view(())
        stored = (*shape[:-1], known.row_size(shape[-1]))
        its_device = devices.of(device)
        if its_device.maps_files and self.mmap and not converted and len(infos) == 1:
            return self.container.mapped(infos[0].name, device).view(stored)
        out = torch.empty(stored, dtype=dtype, device=device)
        memory = its_device.host_view(out)
        of_each = (*infos[0].shape[:-1], known.row_size(infos[0].shape[-1]))
        scales = None if factors is None else self.container.read(factors.name)
        parts = (whole.view(len(infos), *of_each) for whole in (memory, out))
        for info, target, place in zip(infos, *parts, strict=True):
            if target.is_cpu and not converted:
                self.container.read_into(info.name, target, on_device=place if its_device.reads_files() else None)
            else:
                self._convert(info, target, head, offset, scales)
        return out

    def _convert(
        self, info: TensorInfo, out: torch.Tensor, head: int, offset: float, factors: torch.Tensor | None
    ) -> None:
        known = quant.get_format(info.format)
        for start, part in self._parts(info, known.dtype.itemsize, head):
            target = out[start : start + part.shape[0]]
            if factors is not None:
                part = _with_factors(part, factors if len(factors) == 1 else factors[start : start + part.shape[0]])
            if head:
                whole = target if target.dtype == part.dtype and target.device == part.device else None
                part = _half_a_head_apart(part, head, whole)
                if whole is not None:
                    continue
            target.copy_(part - offset if offset else part)

    def _stored(self, info: TensorInfo) -> tuple[int, ...]:
        return (*info.shape[:-1], quant.get_format(info.format).row_size(info.shape[-1]))

    def _parts(self, info: TensorInfo, itemsize: int, head: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensor in pieces of whole heads, each with its first row; a piece is gone when the next one comes."""
        if self.mmap:
            yield 0, self.container.mapped(info.name)
            return
        count, *others = self._stored(info)
        row = itemsize
        for size in others:
            row *= size
        step = max(1, CHUNK // max(1, row * (head or 1))) * (head or 1)
        dtype = quant.get_format(info.format).dtype
        if self._piece.numel() < (size := min(step, count) * row):
            self._piece = torch.empty(size, dtype=torch.uint8)
        for start in range(0, count, step):
            part = self._piece[: min(step, count - start) * row].view(dtype).view(-1, *others)
            self.container.read_into(info.name, part, start)
            yield start, part


def _half_a_head_apart(rows: torch.Tensor, head: int, out: torch.Tensor | None) -> torch.Tensor:
    """Rows of heads, from pairs (0, 1), (2, 3) ... to pairs (0, head / 2), (1, head / 2 + 1) ...; into `out`, if given.

    By numpy, which copies rows as a whole: torch is ten times as slow.
    """
    order = np.arange(rows.shape[0]).reshape(-1, head // 2, 2).swapaxes(1, 2).reshape(-1)
    out = torch.empty_like(rows) if out is None else out
    source, target = (t.view(t.shape[0], -1).view(torch.uint8).numpy() for t in (rows, out))
    np.take(source, order, axis=0, out=target, mode="clip")
    return out


def _with_factors(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Rows of NVFP4 blocks with a factor before each: one for all blocks, or one for each of the first dimension."""
    blocks = rows.view(torch.int32).unflatten(-1, (-1, 9))
    out = blocks.new_empty(*blocks.shape[:-1], 10)
    out[..., 0] = factors.view(torch.int32).view(-1, *(1,) * (blocks.ndim - 2))
    out[..., 1:] = blocks
    return out.flatten(-2).view(torch.uint8)


def side_by_side(rows: torch.Tensor, head: int) -> torch.Tensor:
    """The inverse: rows of heads as files have them whose rotary pairs lie side by side."""
    order = torch.arange(rows.shape[0]).view(-1, 2, head // 2).transpose(1, 2).reshape(-1)
    return rows[order.to(rows.device)]
