"""Formats that aren't ggml's: groups of codes with their own scale, whose blocks are made of several tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.ops.kit import assert_equal
from torch_foundry import ops, quant
from torch_foundry.testing import weights

HERE = Path(__file__).parent
RECORDED = load_file(HERE / "mlx" / "values.safetensors")
BITSANDBYTES = load_file(HERE / "bitsandbytes" / "values.safetensors")
OTHERS = [f for f in quant.FORMATS.values() if f.packable and f.packed and f.gguf_type is None]
AFFINE = [f"affine{bits}_g{group}" for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
SUFFIX = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}


# Of the largest magnitude in a group: half the widest gap between values.
LARGEST_ERROR = {"nf4": 0.1520, "fp4": 0.1667, "mxfp8": 0.0626} | {f"fp8_g{group}": 0.0358 for group in (32, 64, 128)}


def bit_stream(raw: np.ndarray, bits: int) -> np.ndarray:
    """Codes of `bits` bits, the first in the lowest of the bytes [..., n]."""
    ones = np.unpackbits(raw, axis=-1, bitorder="little")
    return ones.reshape(*raw.shape[:-1], -1, bits) @ (1 << np.arange(bits))


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("dtype", SUFFIX, ids=str)
def test_affine_groups_are_code_times_scale_plus_bias(name: str, dtype: torch.dtype) -> None:
    """On arbitrary codes; in float32 the product with a scale of 16 bits is exact."""
    f = quant.FORMATS[f"{name}_{SUFFIX[dtype]}"]
    g = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (33, 3, f.block_bytes), generator=g, dtype=torch.uint8)
    parts = torch.randn(33, 3, 2, generator=g).to(dtype)
    raw[..., : 2 * dtype.itemsize] = parts.view(torch.uint8)
    codes = bit_stream(raw[..., 2 * dtype.itemsize :].numpy(), int(name[6]))
    scale, bias = parts.float().split(1, dim=-1)
    expected = torch.from_numpy(codes).float() * scale + bias
    assert codes.max() == 2 ** int(name[6]) - 1
    assert torch.equal(quant.dequantize(raw.view(33, -1), f.name), expected.view(33, -1))


@pytest.mark.parametrize("name", AFFINE)
def test_affine_groups_as_mlx_has_them(name: str) -> None:
    """Bytes as mlx packs them, and the values that it says they have."""
    weight, values, codes, scales, biases = (
        RECORDED[f"{name}.{part}"] for part in ("weight", "values", "codes", "scales", "biases")
    )
    parts = torch.stack((scales, biases), -1).view(torch.uint8)  # [rows, groups, bytes]
    expected = torch.cat((parts, codes.view(torch.uint8).view(*scales.shape, -1)), -1).view(weight.shape[0], -1)
    fmt = f"{name}_{SUFFIX[scales.dtype]}"
    assert torch.equal(quant.quantize(weight, fmt), expected)
    assert torch.equal(quant.dequantize(expected, fmt), values)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_whole_numbers_are_code_minus_zero_times_scale(bits: int, group: int) -> None:
    """Exactly, in float32; as float16, what the kernels of GPTQ and AWQ compute in float16."""
    f = quant.FORMATS[f"int{bits}_g{group}"]
    g = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (33, 3, f.block_bytes), generator=g, dtype=torch.uint8)
    scale = torch.randn(33, 3, 1, generator=g).half()
    zero = torch.randint(0, 2**bits + 1, (33, 3, 1), generator=g, dtype=torch.int16)
    raw[..., :4] = torch.cat((scale.view(torch.uint8), zero.view(torch.uint8)), -1)
    difference = torch.from_numpy(bit_stream(raw[..., 4:].numpy(), bits)) - zero
    packed = raw.view(33, -1)
    assert torch.equal(quant.dequantize(packed, f.name), (difference.float() * scale.float()).view(33, -1))
    in_half = (difference.half() * scale).view(33, -1)
    assert torch.equal(quant.dequantize(packed, f.name, dtype=torch.float16), in_half)


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_four_bit_values(name: str) -> None:
    """Bytes and values as bitsandbytes has them, which puts the first code of two in the higher bits."""
    weight, values, codes, largest = (
        BITSANDBYTES[f"{name}.{part}"] for part in ("weight", "values", "codes", "absmax")
    )
    codes = (codes >> 4 | codes << 4).view(-1, 32)
    expected = torch.cat((largest.view(-1, 1).view(torch.uint8), codes), 1).view(weight.shape[0], -1)
    assert torch.equal(quant.dequantize(expected, name), values)
    packed = quant.quantize(weight, name)
    assert torch.equal(quant.dequantize(packed, name), values)  # zero has two codes in fp4


@pytest.mark.parametrize("name, order", [("mxfp4", "halves"), ("mxfp8", "")])
def test_modes_of_mlx(name: str, order: str) -> None:
    weight, values, codes, scales = (RECORDED[f"{name}.{part}"] for part in ("weight", "values", "codes", "scales"))
    codes = codes.view(torch.uint8).view(*scales.shape, -1)
    if order == "halves":  # a byte of ours: weights j and j + 16
        nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
        codes = nibbles[..., :16] | nibbles[..., 16:] << 4
    expected = torch.cat((scales.unsqueeze(-1), codes), -1).view(weight.shape[0], -1)
    assert torch.equal(quant.dequantize(expected, name), values)


def test_eight_bit_floats() -> None:
    """All codes, at scales from the least to the largest."""
    raw = torch.zeros(255, 8, 33, dtype=torch.uint8)
    raw[..., 0] = torch.arange(255, dtype=torch.uint8).view(-1, 1)
    raw[..., 1:] = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(8, 32)
    codes = raw[..., 1:]
    meant = codes.view(torch.float8_e4m3fn).double()
    meant = torch.where(meant.isnan(), torch.where(codes > 127, -480.0, 480.0), meant)
    expected = (meant * 2.0 ** (raw[..., :1].double() - 127)).float()
    got = quant.dequantize(raw.view(255, -1), "mxfp8").view(expected.shape)
    assert_equal(got, expected)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_eight_bit_floats_with_a_scale_in_float32(group: int) -> None:
    """Every code at many scales, with the values of torch's own type: NaN, too."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(-1, group).repeat(33, 1, 1)
    scale = torch.randn(33, 256 // group, 1, generator=torch.Generator().manual_seed(0))
    raw = torch.cat((scale.view(torch.uint8), codes), -1).view(33, -1)
    expected = codes.view(torch.float8_e4m3fn).float() * scale
    got = quant.dequantize(raw, f"fp8_g{group}").view(expected.shape)
    assert torch.equal(got.nan_to_num(7e7), expected.nan_to_num(7e7)) and int(got.isnan().sum()) == 66


@pytest.mark.parametrize("name", [name for name in weights.samples() if quant.FORMATS[name] in OTHERS])
def test_the_kernel_unpacks_like_the_host(name: str) -> None:
    """On arbitrary bytes, at the only alignment that blocks promise."""
    f = quant.FORMATS[name]
    raw = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (65, 3 * f.block_bytes), dtype=np.uint8))
    got = ops.embedding(torch.arange(65), raw, format=name, dtype=torch.float32)
    assert_equal(got, quant.dequantize(raw, name))


def test_samples_have_every_number() -> None:
    """Kernels are tested with some of the formats; nothing that the texts distinguish may be left out."""
    names = weights.samples()
    assert {name[:7] for name in names if name.startswith("affine")} == {f"affine{bits}" for bits in (2, 3, 4, 5, 6, 8)}
    for part in ("_g32", "_g64", "_g128", "_f16", "_bf16", "_f32"):
        assert any(name.startswith("affine") and part in f"{name}_" for name in names), part
    assert {name[:4] for name in names if name.startswith("int")} == {f"int{bits}" for bits in (2, 3, 4, 8)}
    assert {f.name for f in quant.FORMATS.values() if f.packed and f.gguf_type is not None} <= set(names)


@pytest.mark.parametrize("f", OTHERS, ids=lambda f: f.name)
def test_quantize_is_near(f: quant.Format) -> None:
    """Every weight within half a step of its group, or what rounding scale and offset moves it by."""
    g = torch.Generator().manual_seed(1)
    weight = torch.randn(5, 4 * f.block_size, generator=g)
    error = (quant.dequantize(quant.quantize(weight, f.name), f.name) - weight).abs()
    groups = weight.view(5, 4, -1)
    if f.name in LARGEST_ERROR:
        assert bool((error.view(5, 4, -1).amax(-1) <= LARGEST_ERROR[f.name] * groups.abs().amax(-1)).all())
        return
    if f.name.startswith("int"):  # zero is among the values
        groups = torch.cat((groups, torch.zeros(5, 4, 1)), -1)
    step = ((groups.amax(-1) - groups.amin(-1)) / (2 ** int(f.name[f.name.index("_") - 1]) - 1)).repeat_interleave(
        f.block_size, 1
    )
    rounding = 2.0**-9 if "bf16" in f.name else 2.0**-12 if "f16" in f.name else 2.0**-22
    # the offset is a whole number of scales, which moves the scale by up to half a step over the whole range
    assert bool((error <= step + 4 * rounding * groups.abs().amax(-1).repeat_interleave(f.block_size, 1)).all())
    assert float(error.mean()) < 0.35 * float(step.mean()) + rounding


@pytest.mark.parametrize("f", [f for f in OTHERS if not f.name.startswith("affine")], ids=lambda f: f.name)
def test_zero_stays_zero(f: quant.Format) -> None:
    """Among other weights, and alone. (An offset is rounded apart from the scale.)"""
    weight = torch.zeros(2, f.block_size)
    weight[1, ::5] = -2.0
    back = quant.dequantize(quant.quantize(weight, f.name), f.name)
    assert_equal(back == 0, weight == 0)


def test_special_groups() -> None:
    """All zero, all equal, one outlier; what isn't finite is refused."""
    weight = torch.zeros(3, 64)
    weight[1], weight[2, 5] = -0.7, 3.0
    back = quant.dequantize(quant.quantize(weight, "affine4_g64_f32"), "affine4_g64_f32")
    assert_equal(back, weight)
    for wrong in (float("nan"), float("inf")):
        broken = weight.clone()
        broken[1, -1] = wrong
        with pytest.raises(RuntimeError, match="weight: expected finite values"):
            quant.quantize(broken, "affine4_g64_f32")
    with pytest.raises(RuntimeError, match="weight: values too large"):
        quant.quantize(weight * 1e10, "affine4_g64_f16")
    with pytest.raises(ValueError, match="affine4_g64_f16: expected a multiple of 64 columns, got 96"):
        quant.quantize(torch.zeros(2, 96), "affine4_g64_f16")


@pytest.mark.parametrize("rows", [1, 3, 33])
def test_unaligned_blocks_are_refused(rows: int) -> None:
    """Kernels read words: a view that begins between them is an error of the op, not of the device."""
    weight: Tensor = quant.quantize(torch.randn(9, 128), "affine4_g64_f16")
    shifted = torch.empty(weight.numel() + 4, dtype=torch.uint8)[2:-2].view(weight.shape).copy_(weight)
    with pytest.raises(RuntimeError, match="weight: expected an address that is a multiple of 4 bytes"):
        ops.linear(torch.randn(rows, 128), shifted, format="affine4_g64_f16")
