"""bitsandbytes in 4 bits: `NAME.weight` of bytes, and the tensors of a quant state beside it."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import torch

from torch_foundry import quant
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.config_json import parse
from torch_foundry.io.packed.blocks import Parts, Settings, as_bytes, blocks_weight
from torch_foundry.io.weights import Weight

_KINDS = ("nf4", "fp4")
_BLOCK = 64  # of ours; a file's longer block is several
_SIZES = tuple(_BLOCK << i for i in range(7))
_MOST = 1 << 12  # bytes of a state's JSON
_STATE = ".quant_state.bitsandbytes__"


def weights(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of the container, by name. LoadError QUANT_METHOD for its 8-bit method, whose products are others."""
    if not settings.flag("load_in_4bit", settings.flag("_load_in_4bit", False)):
        other = "bitsandbytes with load_in_8bit" if settings.values.get("load_in_8bit") else "bitsandbytes"
        raise LoadError("QUANT_METHOD", settings.file, settings.where, expected="load_in_4bit", found=other)
    if settings.flag("load_in_8bit", False):
        raise settings.error("load_in_8bit", "false, as weights have 4 bits", True)
    said = settings.text("bnb_4bit_quant_type", _KINDS, "fp4") if "bnb_4bit_quant_type" in settings.values else None
    tensors, found, used = parts.container.tensors, dict[str, Weight](), set[str]()
    for name in tensors:
        base, marked, kind = name.rpartition(_STATE)
        if marked:
            if said not in (None, kind):
                raise settings.error("bnb_4bit_quant_type", f"{kind}, as in {name}", said)
            parts.put(found, base, _weight(parts, base, kind, used))
    for name, info in tensors.items():
        if name in found or name in used:
            continue
        if info.format in ("u8", "i8"):
            parts.part(f"{name}{_STATE}{said or _KINDS[0]}", ("u8",))
        parts.put(found, name, parts.dense(name))
    return found


def _weight(parts: Parts, base: str, kind: str, used: set[str]) -> Weight:
    """used: gets the names of the tensors that belong to it."""
    info, state = parts.part(base, ("u8",)), f"{base}{_STATE}{kind}"
    described = _describe(parts, state)
    shape = described["shape"]
    size = described["blocksize"]
    nested = "nested_blocksize" in described
    count = math.prod(shape)
    if kind not in _KINDS or described.get("quant_type") != kind:
        raise parts.error("PACK_STATE", state, " or ".join(_KINDS), reprlib.repr(described.get("quant_type")))
    if math.prod(info.shape) * 2 != count:
        raise parts.error("PACK_SHAPE", base, f"two weights of {shape} in a byte", list(info.shape))
    parts.group_of(base, shape[-1], _BLOCK)
    blocks = -(-count // size)
    values = parts.part(f"{base}.quant_map", ("f32",), (16,))
    if not torch.equal(parts.read(values.name), _table(kind)):
        raise parts.error("PACK_TABLE", values.name, f"the values of {kind}", "others")
    largest = parts.part(f"{base}.absmax", ("u8",) if nested else ("f32",), (blocks,))
    used |= {state, values.name, largest.name}
    if nested:
        scales = parts.part(f"{base}.nested_absmax", ("f32",), (-(-blocks // described["nested_blocksize"]),))
        table = parts.part(f"{base}.nested_quant_map", ("f32",), (256,))
        used |= {scales.name, table.name}
        steps = parts.read(table.name).diff()
        if not bool((steps >= 0).all()):
            raise parts.error("PACK_TABLE", table.name, "ascending values", "others")
    columns = shape[-1]

    def make(start: int, stop: int) -> torch.Tensor:
        weights = torch.arange(start * columns, stop * columns, _BLOCK)
        first, last = start * columns // size, (stop * columns - 1) // size + 1
        largest = _largest(parts, base, described, first, last)[weights // size - first]
        codes = _bytes(parts, base, start * columns // 2, stop * columns // 2)
        return torch.cat((as_bytes(largest), (codes >> 4 | codes << 4).view(-1, _BLOCK // 2)), -1)

    return blocks_weight((shape[0], columns), kind, base, make)


def _bytes(parts: Parts, name: str, start: int, stop: int) -> torch.Tensor:
    """A run of the bytes of a tensor [n, 1], as its codes lie one after the other, or of one with other rows."""
    row = math.prod(parts.container.tensors[name].shape[1:])
    return parts.read(name, start // row, -(-stop // row)).flatten()[start % row :][: stop - start]


def _largest(parts: Parts, base: str, described: dict[str, Any], start: int, stop: int) -> torch.Tensor:
    """The largest magnitudes of some blocks, f32. If they are packed themselves, then around their mean."""
    stored = parts.read(f"{base}.absmax", start, stop)
    if "nested_blocksize" not in described:
        return stored
    scales = parts.read(f"{base}.nested_absmax")[torch.arange(start, stop) // described["nested_blocksize"]]
    largest = parts.read(f"{base}.nested_quant_map")[stored.long()] * scales + described["nested_offset"]
    if parts.finite(f"{base}.absmax") and not bool(largest.isfinite().all()):
        raise parts.error("NONFINITE", f"{base}.absmax", "finite values", "NaN or infinity")
    return largest


def _table(kind: str) -> torch.Tensor:
    """The values of the sixteen codes."""
    block = torch.cat((torch.ones(1).view(torch.uint8), torch.arange(16, dtype=torch.uint8) * 0x11))
    padded = torch.nn.functional.pad(block, (0, quant.get_format(kind).block_bytes - block.numel()))
    return quant.dequantize(padded.view(1, -1), kind)[0, :32:2]


def _describe(parts: Parts, state: str) -> dict[str, Any]:
    """The JSON of a quant state, checked."""
    info = parts.part(state, ("u8",))
    if math.prod(info.shape) > _MOST or len(info.shape) != 1:
        raise parts.error("PACK_STATE", state, f"at most {_MOST} bytes", str(list(info.shape)))
    try:
        described = parse(parts.read(state).numpy().tobytes())
    except (ValueError, RecursionError) as problem:
        raise parts.error("PACK_STATE", state, "JSON", f"{problem}"[:80]) from None
    if not isinstance(described, dict):
        raise parts.error("PACK_STATE", state, "a JSON object", type(described).__name__)
    shape = described.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise parts.error("PACK_STATE", state, "the shape of a matrix", reprlib.repr(shape))
    size = described.get("blocksize")
    if type(size) is not int or size not in _SIZES:
        raise parts.error("PACK_STATE", state, f"a blocksize of {', '.join(map(str, _SIZES))}", reprlib.repr(size))
    if "nested_blocksize" in described or "nested_offset" in described:
        size, offset = described.get("nested_blocksize"), described.get("nested_offset")
        if type(size) is not int or not 0 < size < 1 << 30 or type(offset) is not float or not math.isfinite(offset):
            raise parts.error(
                "PACK_STATE", state, "a nested_blocksize and a nested_offset", reprlib.repr((size, offset))
            )
    return described
