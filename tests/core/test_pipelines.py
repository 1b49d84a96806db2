"""What ops remember of the kernels they found: no static tables, the same for any number of threads."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import torch_foundry

ROOT = Path(__file__).parent.parent.parent
ZEROED = 4 << 20  # bytes of the library's static data that the loader clears
NOBITS = 8  # type of a section that takes memory and no place in the file


def test_the_library_takes_little_static_memory() -> None:
    """The sections of _C without bytes in the file (.bss, .tbss) are at most 4 MB."""
    binary = next(Path(torch_foundry.__file__).parent.glob("_C*.so")).read_bytes()
    if binary[:5] != b"\x7fELF\x02":
        pytest.skip("not a library of 64-bit Linux")
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count = struct.unpack_from("<HH", binary, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", binary, start + i * size) for i in range(count)]
    assert 0 < sum(section[5] for section in sections if section[1] == NOBITS) <= ZEROED


CALLS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import torch
import torch_foundry
from torch_foundry import ops, quant
foundry = torch.ops.torch_foundry
foundry._list_kernels("host")

weights = {name: quant.quantize(torch.ones(8, 256), name) for name in ("q8_0", "q4_0", "q4_k", "q6_k")}

def call(kind, dtype, name, rows):
    x, w = torch.zeros(rows, 256, dtype=dtype), torch.zeros(256, dtype=dtype)
    ops.rms_norm(x, w, 1e-6, kind=kind)
    packed = weights[name]
    ops.linear(x, packed, format=name)
    ops.glu(x, x)

work = [(k, d, n, r) for k in ("llama", "olmo", "gemma") for d in (torch.float32, torch.float16, torch.bfloat16)
        for n in ("q8_0", "q4_0", "q4_k", "q6_k") for r in (1, 2, 4, 8)]
with ThreadPoolExecutor(int(sys.argv[1])) as pool:
    for _ in range(3):
        list(pool.map(lambda options: call(*options), work))
print("\\n".join(kernel.split("\\n")[1] for kernel in foundry._listed_kernels()))
"""


def kernels_of(threads: int) -> list[str]:
    """Kernels that calls of three ops ask for, from so many threads at once."""
    command = [sys.executable, "-c", CALLS, str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.split("\n")


def test_threads_find_the_kernels_that_one_finds() -> None:
    one = [line for line in kernels_of(1) if "<" in line]
    assert len(one) == len(set(one)) == 3 * 3 + 3 * 4 * 4 + 3
    assert [line for line in kernels_of(8) if "<" in line] == one
