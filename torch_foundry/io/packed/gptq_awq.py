"""GPTQ and AWQ: int32 words of codes, whose columns are outputs, with scales and zeros for groups of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_foundry.io.packed.blocks import DENSE, Parts, Settings, chunks, halves
from torch_foundry.io.weights import Weight

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # which column each nibble of a word holds, from the lowest on
_GROUPS = (-1, *range(8, 1 << 20, 8))
_PARTS = {"gptq": ("qweight", "qzeros", "scales", "g_idx"), "awq": ("qweight", "qzeros", "scales")}
_LARGEST = 1 << 18  # outputs, or words of inputs: those of the largest models


def gptq(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of a container that GPTQ wrote, also in the order of activations (`desc_act`)."""
    bits = settings.integer("bits", (2, 3, 4, 8))
    group = _group(settings)
    version = settings.text("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    if settings.values.get("dynamic"):
        raise settings.error("dynamic", "one setting for all layers", settings.values["dynamic"])
    ordered = settings.flag("desc_act", False)
    offset = 1 if version == "gptq" else 0
    return _weights(parts, "gptq", lambda base: _gptq(parts, base, bits, group, offset, ordered))


def awq(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of a container that AutoAWQ wrote for its GEMM kernels."""
    settings.integer("bits", (4,), settings.values.get("w_bit"))
    group = _group(settings)
    settings.text("version", ("gemm",), "gemm")
    return _weights(parts, "awq", lambda base: _awq(parts, base, group))


def _group(settings: Settings) -> int:
    group = settings.values.get("group_size", settings.values.get("q_group_size"))
    if type(group) is not int or group not in _GROUPS:
        raise settings.error("group_size", "-1 or a multiple of 8", group)
    return group


def _weights(parts: Parts, method: str, packed: Callable[[str], Weight]) -> dict[str, Weight]:
    names = parts.container.tensors
    bases = dict.fromkeys(name.removesuffix(".qweight") for name in names if name.endswith(".qweight"))
    found = {f"{base}.weight": packed(base) for base in bases}
    for name in names:
        base, _, leaf = name.rpartition(".")
        if not (base in bases and leaf in _PARTS[method]):
            parts.put(found, name, parts.dense(name))
    return found


def _gptq(parts: Parts, base: str, bits: int, group: int, offset: int, ordered: bool) -> Weight:
    name = f"{base}.qweight"
    words = parts.part(name, ("i32",))
    rows, outputs = _two(parts, name)
    inputs = rows * 32 // bits
    if rows % bits or outputs * bits % 32:
        raise parts.error("PACK_SHAPE", name, f"whole runs of 32 codes of {bits} bits", list(words.shape))
    layer = _Layer(parts, base, outputs, inputs, bits, inputs if group == -1 else group)
    parts.part(f"{base}.qzeros", ("i32",), (layer.groups, outputs * bits // 32))
    order = _order(parts, base, inputs, layer.group, ordered)

    def fill(out: torch.Tensor) -> None:
        stored = parts.read(name)
        for start, stop in chunks(outputs, inputs * 8):
            stream = stored[:, start:stop].t()
            if order is not None:
                codes = codes_of(stream, bits)  # of all ways to pick columns of bytes, torch.gather is the fastest
                stream = _words(codes.gather(1, order.expand(len(codes), -1)), bits)
            out[start:stop, :, 1:] = stream.reshape(stop - start, out.shape[1], -1)

    def zeros() -> torch.Tensor:
        return codes_of(parts.read(f"{base}.qzeros"), bits).to(torch.int16) + offset & (1 << bits) - 1

    return layer.weight(fill, zeros, order)


def _awq(parts: Parts, base: str, group: int) -> Weight:
    name = f"{base}.qweight"
    parts.part(name, ("i32",))
    inputs, words = _two(parts, name)
    layer = _Layer(parts, base, words * 8, inputs, 4, inputs if group == -1 else group)
    parts.part(f"{base}.qzeros", ("i32",), (layer.groups, words))
    order = torch.tensor(_AWQ_COLUMNS).argsort()

    def columns(tensor: torch.Tensor) -> torch.Tensor:  # codes [rows, outputs]
        return codes_of(tensor, 4).view(tensor.shape[0], -1, 8)[..., order].flatten(1)

    def fill(out: torch.Tensor) -> None:
        for start, stop in chunks(inputs // layer.block, words * 8 * layer.block):
            codes = columns(parts.read(name, start * layer.block, stop * layer.block))
            out[:, start:stop, 1:] = _words(codes.t(), 4).view(words * 8, stop - start, -1)

    return layer.weight(fill, lambda: columns(parts.read(f"{base}.qzeros")).to(torch.int16), None)


@dataclass(frozen=True)
class _Layer:
    """A matrix in groups of `group` inputs with a scale, which become blocks of `block`."""

    parts: Parts
    base: str
    outputs: int
    inputs: int
    bits: int
    group: int

    def __post_init__(self) -> None:
        if self.inputs % self.group or self.group % self.block:
            expected = f"rows of whole groups of {self.group} weights, a multiple of 32"
            raise self.parts.error("PACK_GROUP", f"{self.base}.qweight", expected, self.inputs)
        self.parts.part(f"{self.base}.scales", DENSE, (self.groups, self.outputs))

    @property
    def block(self) -> int:
        return next((size for size in (128, 64) if self.group % size == 0), 32)

    @property
    def groups(self) -> int:
        return self.inputs // self.group

    def weight(
        self, fill: Callable[[torch.Tensor], None], zeros: Callable[[], torch.Tensor], order: torch.Tensor | None
    ) -> Weight:
        """fill: puts the codes into int32 [outputs, blocks, 1 + words]. zeros: int16 [groups, outputs].

        Beside the weight, its tensor in the file is held and little more: rows here are columns there.
        """

        def load(device: torch.device) -> torch.Tensor:
            # before the codes, which are more work: what is wrong with a layer is mostly wrong with these
            heads = torch.stack((halves(self.parts, f"{self.base}.scales").view(torch.int16), zeros()), -1).view(
                torch.int32
            )
            shape = (self.outputs, self.inputs // self.block, 1 + self.bits * self.block // 32)
            out = torch.empty(shape, dtype=torch.int32)
            fill(out)
            out[..., :1] = heads.transpose(0, 1).repeat_interleave(self.group // self.block, 1)
            return out.view(torch.uint8).view(self.outputs, -1).to(device)

        fmt = f"int{self.bits}_g{self.block}"
        return Weight((self.outputs, self.inputs), fmt, f"{self.base}.qweight", load, order=order)


def _two(parts: Parts, name: str) -> tuple[int, int]:
    info = parts.container.tensors[name]
    if len(info.shape) != 2 or 0 in info.shape or max(info.shape) > _LARGEST:
        raise parts.error("PACK_SHAPE", name, f"two dimensions from 1 to {_LARGEST}", list(info.shape))
    return info.shape[0], info.shape[1]


def _order(parts: Parts, base: str, inputs: int, group: int, ordered: bool) -> torch.Tensor | None:
    """The order of columns in which groups lie together; None if they do so anyway. ordered: it must be there."""
    name = f"{base}.g_idx"
    if not ordered and name not in parts.container.tensors:
        return None
    parts.part(name, ("i32", "i64"), (inputs,))
    index = parts.read(name).long()
    groups = inputs // group
    if bool(((index < 0) | (index >= groups)).any()):
        found = f"{int(index.min())} to {int(index.max())}"
        raise parts.error("PACK_ORDER", name, f"groups 0 to {groups - 1}", found)
    if torch.equal(index, torch.arange(inputs) // group):
        return None
    counts = torch.bincount(index, minlength=groups)
    if bool((counts != group).any()):
        found = f"{int(counts.min())} to {int(counts.max())}"
        raise parts.error("PACK_ORDER", name, f"{group} columns in each group", found)
    return torch.argsort(index, stable=True)


def codes_of(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes [..., n * 32 / bits] of a stream of bits in int32 words [..., n], the first in the lowest: uint8."""
    stream = words.contiguous().view(torch.uint8)
    if bits == 8:
        return stream
    if bits == 3:
        ones = (stream.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
        three = ones.view(*words.shape[:-1], -1, 3)
        return three[..., 0] | three[..., 1] << 1 | three[..., 2] << 2
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((stream.unsqueeze(-1) >> shifts) & (1 << bits) - 1).flatten(-2)


def _words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of `codes_of`."""
    codes = codes.contiguous()
    if bits == 3:
        codes, bits = codes.unsqueeze(-1) >> torch.arange(3, dtype=torch.uint8) & 1, 1
    pieces = codes.view(*codes.shape[:1], -1, 8 // bits)
    stream = pieces[..., 0].clone()
    for at in range(1, 8 // bits):
        stream |= pieces[..., at] << at * bits
    return stream.view(torch.int32)
