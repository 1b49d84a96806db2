"""Philox4x32-10 against the known answers that its authors publish (Random123, kat_vectors)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import torch_foundry
from torch_foundry.testing import sampler_reference

SHADERS = Path(__file__).parents[2] / "shaders"
# counter, key, result
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
KERNEL = """
#include <metal_stdlib>
#include "sampling/philox.h"
kernel void words(device const uint4* counter [[buffer(0)]], device const uint2* key [[buffer(1)]],
                  device uint4* result [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  result[i] = foundry::philox4x32_10(counter[i], key[i]);
}
"""


def signed(values: object) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.uint32).view(np.int32))


@pytest.mark.cpu_only
def test_the_oracles() -> None:
    for counter, key, result in KNOWN:
        assert tuple(sampler_reference.philox(np.array(counter, np.uint32), np.array(key, np.uint32))) == result


def test_the_shaders() -> None:
    library = torch_foundry.compile_shader(KERNEL, include_dirs=[SHADERS])
    counters, keys, expected = (signed([case[i] for case in KNOWN]) for i in range(3))
    result = torch.zeros_like(counters)
    library.words(counters, keys, result, threads=len(KNOWN))
    assert torch.equal(result, expected)


def test_random_counters_agree() -> None:
    library = torch_foundry.compile_shader(KERNEL, include_dirs=[SHADERS])
    random = np.random.default_rng(1).integers(0, 2**32, (10_000, 6), dtype=np.uint32)
    result = torch.zeros(len(random), 4, dtype=torch.int32)
    library.words(signed(random[:, :4]), signed(random[:, 4:]), result, threads=len(random))
    assert torch.equal(result, signed(sampler_reference.philox(random[:, :4], random[:, 4:])))
