"""Packed recurrent states: how far off they are, in float64, and how many bytes they take."""

from __future__ import annotations

import math

import pytest
import torch

from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.snapshots import Snapshots
from torch_foundry.quant.kv import LARGEST
from torch_foundry.testing.tolerance import BF16, DTYPES, F16, F32, TINY, UNIT, assert_equal, generator, normal

SHAPES = [(4, 32, 32), (1, 128, 128), (96, 3), (7,), (2, 3, 5), (16, 16), (257,)]


def bounds(state: torch.Tensor) -> torch.Tensor:
    """Half a step of the codes for each element of [B, n]: of a block's largest value there are 127 on each side. The
    scale is rounded to float16 (UNIT), and a subnormal one to a multiple of TINY."""
    filled = torch.nn.functional.pad(state.double(), (0, -state.shape[1] % 32)).unflatten(1, (-1, 32))
    scale = filled.abs().amax(2, keepdim=True) / 127
    most = (0.5 + 127 * UNIT[F16]) * scale + 127 * TINY[F16]
    return most.expand_as(filled).flatten(1)[:, : state.shape[1]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_each_element_is_within_half_a_step(shape: tuple[int, ...], dtype: torch.dtype, scale: float) -> None:
    state = normal(generator(shape), 3, *shape, dtype=dtype, scale=scale)
    state[0, ..., 0] *= 50  # blocks of one large value among small ones
    state[1] = 0
    data = packed_states.packed(state, "q8_0")
    width, kind = packed_states.kept_as(shape, dtype, "q8_0")
    assert (data.shape, data.dtype) == ((3, *width), kind) and kind == torch.uint8
    found = packed_states.unpacked(data, "q8_0", state.shape)
    assert found.shape == state.shape and found.dtype == F32
    error = (found.double() - state.double()).abs().flatten(1)
    assert bool((error <= bounds(state.flatten(1))).all()), float((error / bounds(state.flatten(1))).max())
    assert not found[1].any()
    assert_equal(packed_states.packed(state[2:], "q8_0"), data[2:])  # which depends on no other row


def test_what_is_not_finite_stays_so_and_what_is_too_large_is_cut() -> None:
    state = torch.full((1, 3, 64), 127.0)
    state[0, 1, 3], state[0, 2, 40] = math.nan, 2 * 127 * LARGEST
    found = packed_states.unpacked(packed_states.packed(state, "q8_0"), "q8_0", state.shape)
    assert bool(found[0, 1, :32].isnan().all()) and float(found[0, 2, 40]) == 127 * LARGEST
    assert_equal(found[0, 0], state[0, 0])


def test_bytes() -> None:
    """34 for each 32 elements, as in GGUF's q8_0; of a whole row of 256."""
    spec = RecurrentSpec((("conv", (96, 4), None), ("recurrent", (4, 32, 32), F32)))
    assert packed_states.nbytes(spec, BF16, None) == spec.nbytes(BF16) == 96 * 4 * 2 + 4096 * 4
    assert packed_states.nbytes(spec, BF16, "q8_0") == (512 + 4096) * 34 // 32
    with pytest.raises(ValueError, match="snapshot_format='q4_K': expected None or 'q8_0'"):
        Snapshots(format="q4_K")
