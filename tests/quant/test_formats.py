"""The weight formats against the `gguf` package: sizes, bytes of the encoder, values of the decoder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.quant import FORMATS, packing
from torch_foundry.testing import weights as blocks
from torch_foundry.testing.tolerance import assert_equal

GGUF = [f for f in FORMATS.values() if f.gguf_type is not None]  # the others: test_packs.py
PACKED = [f for f in GGUF if f.packed]
HEADERS = Path(__file__).parents[2] / "shaders" / "quant"
packed_formats = pytest.mark.parametrize("f", PACKED, ids=lambda f: f.name)
packable_formats = pytest.mark.parametrize("f", [f for f in PACKED if f.packable], ids=lambda f: f.name)


@pytest.fixture
def gguf() -> Any:
    """The oracle; what needs it is skipped on a machine without."""
    return pytest.importorskip("gguf")


def oracle(f: quant.Format) -> Any:
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType(f.gguf_type)


def gguf_packs(f: quant.Format) -> bool:
    try:
        from gguf import quantize

        quantize(np.zeros((1, f.block_size), np.float32), oracle(f))
    except ModuleNotFoundError:
        return True  # the test says that it is missing
    except NotImplementedError:
        return False
    return True


# Q1_0 is a size in gguf and no more; its oracle is below.
known_to_gguf = pytest.mark.parametrize("f", [f for f in PACKED if f.name != "q1_0"], ids=lambda f: f.name)
packed_by_gguf = pytest.mark.parametrize("f", [f for f in PACKED if f.packable and gguf_packs(f)], ids=lambda f: f.name)


@pytest.mark.parametrize("f", GGUF, ids=lambda f: f.name)
def test_table_agrees_with_gguf(f: quant.Format, gguf: Any) -> None:
    assert oracle(f).name.lower() == f.name
    assert gguf.GGML_QUANT_SIZES[oracle(f)] == (f.block_size, f.block_bytes)
    assert f.columns(f.row_size(4 * f.block_size)) == 4 * f.block_size


def test_every_header_is_registered() -> None:
    """Adding a format is its header and its line in formats.h; a header without a line would be dead text."""
    lines = (HEADERS / "formats.h").read_text()
    headers = {path.name for path in HEADERS.glob("*.h")} - {"format.h", "formats.h", "search.h"}
    assert all(f'#include "{name}"' in lines for name in headers)
    assert all("FOUNDRY_FORMAT(" in (HEADERS / name).read_text() for name in headers)


def weights(kind: str, rows: int, columns: int) -> Tensor:
    g = torch.Generator().manual_seed(len(kind) + rows)
    normal = torch.randn(rows, columns, generator=g)
    return {
        "normal": normal,
        "small": normal * 1e-6,  # scales that f16 holds as subnormals
        "vanishing": normal * 1e-30,  # scales that f16 rounds to zero
        "large": normal * 1e5,
        "constant": torch.full((rows, columns), -0.7),
        "one per row": torch.eye(rows, columns) * -3.0,
        "zero": torch.zeros(rows, columns),
        "ties": (normal * 40).round() / 2,  # with a largest value of 127 or 8, codes end in .5
        "ties between the largest": torch.where(normal > 0, 8.0, -8.0),
        "below a power of two": normal.clamp(-1, 1) * 7.9999995,  # where a logarithm rounds up
    }[kind]


KINDS = ["normal", "small", "vanishing", "large", "constant", "one per row", "zero"]
KINDS += ["ties", "ties between the largest", "below a power of two"]


@packed_by_gguf
@pytest.mark.parametrize("kind", KINDS)
def test_quantize_gives_the_bytes_of_gguf(f: quant.Format, kind: str, gguf: Any) -> None:
    """Or an error, where gguf gives scales or offsets that are infinite."""
    weight = weights(kind, 17, 6 * f.block_size)
    if kind == "ties":
        weight[:, :: f.block_size] = 127.0
        weight[8:, :: f.block_size] = -8.0
    with np.errstate(over="ignore", invalid="ignore"):
        expected = gguf.quantize(weight.numpy(), oracle(f))
        finite = bool(np.isfinite(gguf.dequantize(expected, oracle(f))).all())
    if finite:
        assert torch.equal(quant.quantize(weight, f.name), torch.from_numpy(expected))
    else:
        with pytest.raises(RuntimeError, match="weight: values too large"):
            quant.quantize(weight, f.name)
    assert finite or kind == "large"


@known_to_gguf
def test_dequantize_gives_the_values_of_gguf(f: quant.Format, gguf: Any) -> None:
    """On arbitrary bytes, so that every code and every scale occurs, infinite and NaN ones too."""
    raw = np.random.default_rng(0).integers(0, 256, (257, 6 * f.block_bytes), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = torch.from_numpy(gguf.dequantize(raw, oracle(f)))
    got = quant.dequantize(torch.from_numpy(raw), f.name, 6 * f.block_size)
    assert bool(((got == expected) | (got.isnan() & expected.isnan())).all())


def test_q1_0() -> None:
    """Against the format's formula: f16 scale, bits in the order of the weights."""
    weight = weights("normal", 17, 6 * 128)
    packed = quant.quantize(weight, "q1_0")
    blocks_ = packed.view(17, 6, 18).numpy()
    scales = blocks_[..., :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks_[..., 2:], axis=-1, bitorder="little")
    assert np.array_equal(bits.reshape(17, -1), (weight >= 0).numpy())
    assert np.array_equal(scales[..., 0], weight.abs().double().view(17, 6, 128).mean(-1).half().float().numpy())
    expected = np.where(bits == 1, scales, -scales).reshape(17, -1)
    assert torch.equal(quant.dequantize(packed, "q1_0"), torch.from_numpy(expected))


@pytest.mark.parametrize("name", ["iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"])
def test_every_entry_of_the_grids_is_ggufs(name: str, gguf: Any) -> None:
    """The header's text against gguf's table of the values."""
    text = (HEADERS / f"{name}.h").read_text()
    (table,) = re.findall(r"uint16_t iq\w+_grid\[\d+\] = \{([^}]*)\}", text)
    traits = gguf.quants._type_traits[oracle(FORMATS[name])]
    traits.init_grid()
    bits = 16 // traits.grid_shape[1]
    entries = np.array([int(entry, 16) for entry in table.split(",")])
    codes = entries[:, None] >> np.arange(0, 16, bits) & ((1 << bits) - 1)
    assert np.array_equal(np.array(traits.grid_map, np.float32)[codes], traits.grid[0, 0])


@packed_formats
def test_the_kernel_unpacks_like_the_host(f: quant.Format) -> None:
    """Both run the policy's text, the kernel's as translated Metal; on arbitrary bytes."""
    raw = np.random.default_rng(1).integers(0, 256, (65, 3 * f.block_bytes), dtype=np.uint8)
    got = ops.embedding(torch.arange(65), torch.from_numpy(raw), format=f.name, dtype=torch.float32)
    assert_equal(got, quant.dequantize(torch.from_numpy(raw), f.name))


@packed_formats
def test_blocks_for_checks(f: quant.Format) -> None:
    """What kernels are checked with: finite weights of the size of those given."""
    dense = weights("normal", 9, 4 * f.block_size) * 0.02
    meant = quant.dequantize(blocks.packed(dense, f.name), f.name)
    assert bool(meant.isfinite().all()) and 0.5 < float(meant.std() / dense.std()) < 2


@packable_formats
def test_row_chunks_do_not_show(f: quant.Format, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights("normal", 13, 4 * f.block_size)
    whole = quant.quantize(weight, f.name)
    monkeypatch.setattr(packing, "CHUNK_WEIGHTS", 3 * weight.shape[1])
    assert torch.equal(quant.quantize(weight, f.name), whole)
    assert torch.equal(quant.quantize(weight.t().contiguous().t(), f.name), whole)
    monkeypatch.setattr(packing, "CHUNK_WEIGHTS", 1)
    dense = quant.dequantize(whole, f.name, dtype=torch.bfloat16)
    assert torch.equal(dense, quant.dequantize(whole, f.name).bfloat16())


@packable_formats
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_are_read_as_f32(f: quant.Format, dtype: torch.dtype) -> None:
    weight = weights("normal", 3, 2 * f.block_size).to(dtype)
    assert torch.equal(quant.quantize(weight, f.name), quant.quantize(weight.float(), f.name))


@pytest.mark.parametrize("name, dtype", [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_dense_formats_are_casts(name: str, dtype: torch.dtype) -> None:
    weight = weights("normal", 3, 5)
    packed = quant.quantize(weight, name)
    assert torch.equal(packed, weight.to(dtype))
    assert torch.equal(quant.dequantize(packed, name, 5, torch.float64), packed.double())


def test_gradients_do_not_follow() -> None:
    assert not quant.quantize(torch.randn(2, 32, requires_grad=True), PACKED[0].name).requires_grad


def test_empty() -> None:
    f = PACKED[0]
    assert quant.quantize(torch.zeros(0, 2 * f.block_size), f.name).shape == (0, 2 * f.block_bytes)
    assert quant.dequantize(torch.zeros(0, f.block_bytes, dtype=torch.uint8), f.name).shape == (0, f.block_size)


@pytest.mark.cpu_only
@packed_formats
def test_opcheck(f: quant.Format) -> None:
    dense, packed = torch.zeros(2, f.block_size), torch.zeros(2, f.block_bytes, dtype=torch.uint8)
    if f.packable:
        torch.library.opcheck(torch.ops.torch_foundry.pack_weight.default, (dense, f.name, packed))
    torch.library.opcheck(torch.ops.torch_foundry.unpack_weight.default, (packed, f.name, dense))


@packable_formats
def test_refusals(f: quant.Format) -> None:
    weight = weights("normal", 2, 2 * f.block_size)
    for wrong in (float("nan"), float("inf")):
        broken = weight.clone()
        broken[1, -1] = wrong
        with pytest.raises(RuntimeError, match="weight: expected finite values"):
            quant.quantize(broken, f.name)
    if f.name != "mxfp4":  # whose scale has the range of f32
        with pytest.raises(RuntimeError, match="weight: values too large"):
            quant.quantize(weight * 1e10, f.name)
    with pytest.raises(ValueError, match=f"{f.name}: expected a multiple of {f.block_size} columns, got"):
        quant.quantize(weight[:, 1:], f.name)
    with pytest.raises(ValueError, match="weight: expected a floating-point"):
        quant.quantize(weight.int(), f.name)
    with pytest.raises(ValueError, match=r"format: expected one of f32, .*, got 'q0'"):
        quant.quantize(weight, "q0")
    packed = quant.quantize(weight, f.name)
    with pytest.raises(ValueError, match="packed: expected rows of 7 weights"):
        quant.dequantize(packed, f.name, 7)
    with pytest.raises(ValueError, match="blocks"):
        quant.dequantize(packed[:, 1:], f.name)
    with pytest.raises(ValueError, match=r"packed: expected torch\.uint8"):
        quant.dequantize(weight, f.name)


@pytest.mark.parametrize("f", [f for f in PACKED if not f.packable], ids=lambda f: f.name)
def test_what_cannot_be_packed(f: quant.Format) -> None:
    weight, packed = torch.zeros(2, f.block_size), torch.zeros(2, f.block_bytes, dtype=torch.uint8)
    with pytest.raises(ValueError, match=rf"format: expected one of q8_0, q4_0, .* to pack as, got '{f.name}'"):
        quant.quantize(weight, f.name)
    with pytest.raises(RuntimeError, match=f"format: expected one that weights can be packed as, got '{f.name}'"):
        torch.ops.torch_foundry.pack_weight(weight, f.name, packed)
    with pytest.raises(ValueError, match=f"{f.name}: expected a multiple of {f.block_size} columns, got 33"):
        f.row_size(33)


def test_packing_and_unpacking_take_several_threads() -> None:
    """As CPU time that others than this thread spend, whenever the system lets them, over some seconds at most."""
    weight = torch.randn(1024, 4096, generator=torch.Generator().manual_seed(1))
    packed = quant.quantize(weight, "q4_k")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for times, call in (
            (2, lambda: quant.quantize(weight, "q4_k")),
            (20, lambda: quant.dequantize(packed, "q4_k")),
        ):
            own, whole = time.thread_time(), time.process_time()
            for _ in range(times):
                call()
            own, whole = time.thread_time() - own, time.process_time() - whole
            assert whole - own > 0.1 * whole, (own, whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("row", [0, 700, 1023])
def test_what_a_thread_finds_wrong_is_said(row: int) -> None:
    weight = torch.zeros(1024, 4096)
    weight[row, 9] = torch.inf
    with pytest.raises(RuntimeError, match="weight: expected finite values, got NaN or infinity"):
        quant.quantize(weight, "q8_0")


WITHOUT_THREADS = """
import resource, torch
from torch_foundry import quant
weight, factors = torch.randn(512, 4096), torch.ones(4096)
expected = quant.quantize(weight, "q8_0")
blocks = torch.empty_like(expected)
torch.set_num_threads(4)
most = resource.getrlimit(resource.RLIMIT_AS)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (2 << 20), most[1]))  # less than a thread's stack
torch.ops.torch_foundry.pack_weight(weight, "q8_0", blocks, factors)
resource.setrlimit(resource.RLIMIT_AS, most)
assert torch.equal(blocks, expected)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_packing_where_the_system_gives_no_threads() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # so that no thread leaves a stack to the next
    subprocess.run([sys.executable, "-c", WITHOUT_THREADS], check=True, env=environment)
