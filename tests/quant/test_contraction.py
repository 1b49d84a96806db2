"""Packed bytes and unpacked values don't depend on whether the processor can fuse a product with a sum, as each of
Apple's can: the packers, compiled for one that can with setup.py's flags, against those of the package."""

from __future__ import annotations

import ast
import ctypes
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_foundry import quant

pytestmark = pytest.mark.tier("kernels")

ROOT = Path(__file__).parents[2]
LIBRARY = """
#define EXPORT extern "C" __attribute__((visibility("default")))
#include "core/quant_blocks.cpp"
static const foundry::QuantFormat& format(int i) { return foundry::quant_table()[i]; }
EXPORT int count() { return static_cast<int>(foundry::quant_table().size()); }
EXPORT const char* name(int i) { return format(i).name; }
EXPORT void pack(int i, const float* weights, char* blocks, int64_t n) {
  const foundry::QuantFormat& f = format(i);
  const std::vector<float> ones(f.block_size, 1.0f);
  for (; n--; weights += f.block_size, blocks += f.block_bytes) f.pack(weights, ones.data(), blocks);
}
EXPORT void unpack(int i, const void* blocks, float* weights, int64_t n) { format(i).unpack(blocks, weights, n); }
"""
PACKABLE = [f for f in quant.FORMATS.values() if f.packable]
COLUMNS = 4096


def setup_flags() -> list[str]:
    """The flags of setup.py."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "CXX_FLAGS":
            return list(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no CXX_FLAGS")


class Packers:
    """The packers as `compiler` compiles them for a processor that fuses."""

    def __init__(self, compiler: str, flags: list[str], place: Path) -> None:
        fusing = ["-mfma"] if platform.machine() == "x86_64" else []
        torch_root = Path(torch.__file__).parent
        source, target = place / "packers.cpp", place / "packers.so"
        source.write_text(LIBRARY)
        # -O1: at -O2 with AVX clang 19 packs other iq4_xs blocks, fused or not, once it has unrolled search::Block
        command = [compiler, *flags, "-O1", *fusing, "-shared", "-fPIC", "-fvisibility=hidden", str(source)]
        command += [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'shaders'}", f"-I{torch_root / 'include'}"]
        command += [f"-L{torch_root / 'lib'}", "-lc10", "-o", str(target)]
        subprocess.run(command, check=True)
        self._library = ctypes.CDLL(str(target))
        self._library.name.restype = ctypes.c_char_p
        self._index = {self._library.name(i).decode(): i for i in range(self._library.count())}

    def pack(self, weight: Tensor, f: quant.Format) -> Tensor:
        blocks = torch.empty(weight.numel() // f.block_size * f.block_bytes, dtype=torch.uint8)
        self._call("pack", f, weight, blocks, weight.numel())
        return blocks.view(weight.shape[0], -1)

    def unpack(self, packed: Tensor, f: quant.Format) -> Tensor:
        weight = torch.empty(packed.shape[0], f.columns(packed.shape[1]))
        self._call("unpack", f, packed, weight, weight.numel())
        return weight

    def _call(self, function: str, f: quant.Format, source: Tensor, target: Tensor, weights: int) -> None:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (source, target)]
        getattr(self._library, function)(self._index[f.name], *pointers, ctypes.c_int64(weights // f.block_size))


@pytest.fixture(scope="module")
def compiler() -> str:
    found = next((name for name in (f"clang++-{version}" for version in range(30, 14, -1)) if shutil.which(name)), None)
    if found is None:
        pytest.skip("needs a clang, 15 or later: apt-get install clang-19")
    if platform.machine() == "x86_64" and " fma " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs a processor that fuses a product with a sum")
    return found


@pytest.fixture(scope="module")
def packers(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packers]:
    yield Packers(compiler, setup_flags(), tmp_path_factory.mktemp("packers"))


def weights() -> Tensor:
    return torch.randn(64, COLUMNS, generator=torch.Generator().manual_seed(1))


def package(weight: Tensor, f: quant.Format) -> tuple[Tensor, Tensor]:
    """Packed and unpacked, by the package."""
    packed = torch.empty(weight.shape[0], f.row_size(COLUMNS), dtype=torch.uint8)
    torch.ops.torch_foundry.pack_weight(weight, f.name, packed)
    unpacked = torch.empty_like(weight)
    torch.ops.torch_foundry.unpack_weight(packed, f.name, unpacked)
    return packed, unpacked


@pytest.mark.parametrize("f", PACKABLE, ids=lambda f: f.name)
def test_packers(f: quant.Format, packers: Packers) -> None:
    packed, unpacked = package(weights(), f)
    assert torch.equal(packers.pack(weights(), f), packed)
    assert torch.equal(packers.unpack(packed, f), unpacked)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_bytes_and_values_are_those_of_gguf(name: str, packers: Packers) -> None:
    gguf = pytest.importorskip("gguf")
    f, kind = quant.get_format(name), gguf.GGMLQuantizationType[name.upper()]
    theirs = gguf.quantize(weights().numpy(), kind)
    assert np.array_equal(packers.pack(weights(), f).numpy(), theirs)
    assert np.array_equal(packers.unpack(torch.from_numpy(theirs), f).numpy(), gguf.dequantize(theirs, kind))


def test_the_flag_is_what_holds_them(compiler: str, tmp_path: Path) -> None:
    """Without it clang fuses, and both depend on the processor."""
    fused = Packers(compiler, [flag for flag in setup_flags() if flag != "-ffp-contract=off"], tmp_path)
    bytes_differ, values_differ = set(), set()
    for f in PACKABLE:
        packed, unpacked = package(weights(), f)
        bytes_differ |= set() if torch.equal(fused.pack(weights(), f), packed) else {f.name}
        values_differ |= set() if torch.equal(fused.unpack(packed, f), unpacked) else {f.name}
    assert bytes_differ & {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k"}
    assert "affine4_g64_f32" in values_differ
