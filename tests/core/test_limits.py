"""What the extension says that its kernels are made for is what its ops take."""

from __future__ import annotations

import struct

import pytest
import torch

from torch_foundry.core import limits

foundry = torch.ops.torch_foundry


@pytest.mark.parametrize("head_dim", [limits.HEAD_DIMS[0] - 16, limits.HEAD_DIMS[-1] + 16, limits.HEAD_DIMS[1] + 8])
def test_attention_refuses_other_head_dims(head_dim: int) -> None:
    q = torch.zeros(1, 1, 1, head_dim)
    with pytest.raises(RuntimeError, match="q: expected a head_dim of 32 to 512 in steps of 16"):
        foundry.attention.default(q, q, q, 1, 1.0)


def test_experts_have_limits() -> None:
    most = torch.zeros(1, limits.MAX_EXPERTS)
    ids, _ = foundry.moe_choose.default(most, None, limits.MAX_CHOSEN, False)
    assert ids.tolist() == [list(range(limits.MAX_CHOSEN))]
    with pytest.raises(RuntimeError, match="k: expected 1 to 32 experts of a token"):
        foundry.moe_choose.default(most, None, limits.MAX_CHOSEN + 1, False)
    with pytest.raises(RuntimeError, match="experts: expected 1 to 1024"):
        foundry.moe_choose.default(torch.zeros(1, limits.MAX_EXPERTS + 1), None, 1, False)


def test_pages_have_a_least_size() -> None:
    cache, table = torch.zeros(2, 1, limits.LEAST_PAGE // 2, 32), torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="k_cache: expected pages of a power of two of at least 16 tokens, got 8"):
        foundry.attention.default(cache[:1, :, :1], cache, cache, 1, 1.0, block_table=table)


def test_parameters_of_the_sampler() -> None:
    codes = "".join(limits.SAMPLE_PARAMS.values())
    assert set(codes) == {"f", "i", "I"} and struct.calcsize(f"<{codes}") == 4 * len(codes)
    for group, count in (("rule_", 8), ("stage_", 5), ("error_", 3)):
        bits = [bit for name, bit in limits.SAMPLE_BITS.items() if name.startswith(group)]
        assert sorted(bits) == [1 << i for i in range(count)]
