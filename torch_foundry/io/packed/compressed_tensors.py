"""compressed-tensors, by the tensors of a matrix: `NAME.weight_packed` of words or of 4-bit floats, or `NAME.weight` of
bytes or of FP8, with `NAME.weight_scale` beside it, and zeros or a scale of all scales.

Activations are not quantised, whatever the settings say of them: their factors are left out.
"""

from __future__ import annotations

import torch

from torch_foundry.io.container import TensorInfo
from torch_foundry.io.packed import fp8
from torch_foundry.io.packed.blocks import DENSE, Parts, Settings, as_bytes, blocks_weight, halves, small_floats
from torch_foundry.io.packed.gptq_awq import codes_of
from torch_foundry.io.weights import Weight

_BITS = (2, 3, 4, 5, 6, 8)
_WITH_ZEROS = (2, 3, 4, 8)
Number = tuple[str, int]  # float or int, and its bits
# The kind of our format -> the numbers, and the formats that settings may name for it.
_SAID: dict[str, tuple[Number, tuple[str, ...]]] = {
    **{
        f"{kind}{bits}": (("int", bits), ("pack-quantized", "int-quantized"))
        for kind in ("affine", "int")
        for bits in _BITS
    },
    "fp8": (("float", 8), ("float-quantized", "mxfp8-quantized")),
    "nvfp4": (("float", 4), ("nvfp4-pack-quantized",)),
    "mxfp4": (("float", 4), ("mxfp4-pack-quantized",)),
}
_BESIDE = ("weight_scale", "weight_shape", "weight_zero_point", "weight_global_scale", "input_global_scale")


def weights(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of the container, by name. LoadError QUANT_CONFIG, PACK_*: sparse or rotated ones too."""
    if settings.values.get("transform_config"):
        raise settings.error("transform_config", "none", settings.values["transform_config"])
    numbers, square = _groups(settings)
    tensors, found, read = parts.container.tensors, dict[str, Weight](), set[str]()
    for name, info in tensors.items():
        base, _, leaf = name.rpartition(".")
        if leaf == "weight_packed" or (leaf == "weight" and info.format == "i8"):
            parts.put(found, f"{base}.weight", weight := _matrix(parts, base, info))
            read |= {name, *(f"{base}.{each}" for each in _BESIDE)}
            _agree(settings, numbers, weight)
    for name, weight in fp8.matrices(parts, square, read).items():
        parts.put(found, name, weight)
        _agree(settings, numbers, weight)
    return found


def _agree(settings: Settings, numbers: set[Number], weight: Weight) -> None:
    """Refuse settings of other numbers than a matrix is of."""
    kind = weight.format.partition("_")[0]
    if kind not in _SAID:
        return
    number, formats = _SAID[kind]
    if number not in numbers:
        raise settings.error("config_groups", f"a group of {number[0]}s of {number[1]} bits", sorted(numbers))
    settings.text("format", (*formats, "mixed-precision"))


def _groups(settings: Settings) -> tuple[set[Number], fp8.Square | None]:
    """The numbers of all groups of layers, and the squares of weights that share a scale in FP8."""
    groups = settings.values.get("config_groups")
    if not isinstance(groups, dict):
        raise settings.error("config_groups", "groups of layers", groups)
    squares, numbers = set(), set[Number]()
    for name, group in groups.items():
        said = group.get("weights") if isinstance(group, dict) else None
        where = f"{settings.where}.config_groups.{name}.weights"
        own = Settings(settings.file, said if isinstance(said, dict) else {}, where)
        kind = own.text("type", ("float", "int"))
        numbers.add((kind, bits := own.integer("num_bits", (4, 8) if kind == "float" else _BITS)))
        if kind == "float":
            if bits == 8:
                squares.add(fp8.square_of(own, "block_structure"))
            if not own.flag("symmetric", True):
                raise own.error("symmetric", "true", False)
    if len(squares) > 1:
        raise settings.error("config_groups", "the same block_structure in all", sorted(map(str, squares)))
    return numbers, squares.pop() if squares else None


def _matrix(parts: Parts, base: str, info: TensorInfo) -> Weight:
    if len(info.shape) != 2 or 0 in info.shape:
        raise parts.error("PACK_SHAPE", info.name, "a matrix", list(info.shape))
    if info.format == "u8":
        return _small_floats(parts, base, info)
    rows, words = info.shape
    columns, bits = words, 8
    if info.format != "i8":
        parts.part(info.name, ("i32",))
        parts.part(f"{base}.weight_shape", ("i64", "i32"), (2,))
        said, columns = parts.read(f"{base}.weight_shape").tolist()
        bits = next((n for n in _BITS if columns > 0 and words * 32 == columns * n), 0)
        if said != rows or not bits:
            expected = f"[{rows}, columns], whose codes have {', '.join(map(str, _BITS))} bits"
            raise parts.error("PACK_SHAPE", f"{base}.weight_shape", expected, [said, columns])
    return _integers(parts, base, info.name, (rows, columns), bits)


def _integers(parts: Parts, base: str, name: str, shape: tuple[int, int], bits: int) -> Weight:
    """Codes of `bits`, from 0 on in words and from -128 on in bytes, in groups of columns, or a group a row."""
    rows, columns = shape
    scales = parts.part(f"{base}.weight_scale", DENSE)
    groups = scales.shape[1] if len(scales.shape) == 2 else 0
    if scales.shape[:1] != (rows,) or not groups or columns % groups:
        raise parts.error("PACK_SHAPE", scales.name, f"[{rows}, groups of {columns}]", list(scales.shape))
    block = next((size for size in (128, 64, 32) if columns // groups % size == 0), 0)
    if not block:
        raise parts.error("PACK_GROUP", name, "rows of whole groups of a multiple of 32 weights", columns // groups)
    zeros, half = f"{base}.weight_zero_point", 1 << bits - 1
    zero_tensor = parts.container.tensors.get(zeros)
    if zero_tensor is not None:
        if bits not in _WITH_ZEROS:
            raise parts.error("PACK_TYPE", zeros, f"none beside codes of {bits} bits", "some")
        packed = zero_tensor.format == "i32"
        parts.part(zeros, ("i32", "i8"), (-(-rows * bits // 32) if packed else rows, groups))

    def codes(start: int, stop: int) -> torch.Tensor:
        read = parts.read(name, start, stop).view(torch.uint8)
        read = read ^ 128 if parts.container.tensors[name].format == "i8" else read
        return read.view(stop - start, columns // block, -1)

    def of_blocks(of_groups: torch.Tensor) -> torch.Tensor:
        return of_groups.repeat_interleave(columns // groups // block, 1)

    def centred(start: int, stop: int) -> torch.Tensor:
        factors = parts.read(scales.name, start, stop)
        least = factors * -half  # exact: a power of two
        most = factors.float() * (2 * half - 1)  # before the least is added
        if parts.finite(scales.name) and not bool((least.isfinite() & most.isfinite()).all()):
            raise parts.error("NONFINITE", scales.name, f"scales that hold for {2 * half - 1}", "a larger one")
        return torch.cat((as_bytes(of_blocks(factors)), as_bytes(of_blocks(least)), codes(start, stop)), -1)

    def around_zeros(start: int, stop: int) -> torch.Tensor:
        if packed:  # along rows
            offsets = codes_of(parts.read(zeros).t(), bits).t()[start:stop].to(torch.int16)
        else:
            offsets = parts.read(zeros, start, stop).to(torch.int16) + half
        heads = torch.stack((halves(parts, scales.name, start, stop).view(torch.int16), offsets), -1)
        return torch.cat((of_blocks(heads).view(torch.uint8), codes(start, stop)), -1)

    if zero_tensor is None:
        return blocks_weight(shape, f"affine{bits}_g{block}_{scales.format}", name, centred)
    return blocks_weight(shape, f"int{bits}_g{block}", name, around_zeros)


def _small_floats(parts: Parts, base: str, info: TensorInfo) -> Weight:
    """NVFP4, whose scales are FP8 and divided by one of all, or MXFP4, whose scales are exponents."""
    rows, columns = info.shape[0], info.shape[1] * 2
    scales = parts.part(f"{base}.weight_scale", ("f8_e4m3", "u8"))
    if scales.format == "u8":
        parts.part(scales.name, ("u8",), (rows, columns // 32))
        return small_floats(parts, info.name, (rows, columns), "mxfp4", scales)
    parts.part(scales.name, ("f8_e4m3",), (rows, columns // 16))
    whole = parts.part(f"{base}.weight_global_scale", ("f32",), (1,))
    factor = 1 / parts.read(whole.name)
    if not 0 < float(factor) < float("inf"):
        raise parts.error("NONFINITE", whole.name, "a scale above 0", float(parts.read(whole.name)))
    return small_floats(parts, info.name, (rows, columns), "nvfp4", scales, factor)
