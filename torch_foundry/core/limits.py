"""What the kernels are made for, and how their arguments lie, as the extension states it (csrc/ops/limits.cpp)."""

from __future__ import annotations

import torch

from torch_foundry.core import extension  # noqa: F401  (loads the extension)

_limits: dict[str, int] = torch.ops.torch_foundry.limits()

HEAD_DIMS = range(_limits["least_head_dim"], _limits["most_head_dim"] + 1, _limits["head_dim_step"])  # of attention
ROWS_TOGETHER = _limits["rows_together"]  # rows of x that share one reading of a weight, at most
FEW_ROWS = _limits["few_rows"]  # rows that ops.linear and its like are made for
NORM_LINEAR_MATRICES = _limits["norm_linear_matrices"]  # that ops.norm_linear multiplies by side by side
EXPERT_TILE_ROWS = _limits["expert_tile_rows"]  # pairs of token and expert in a tile of ops.moe_linear
# of ops.moe_choose: experts in all, of a token, and groups of them
MAX_EXPERTS, MAX_CHOSEN, MAX_GROUPS = _limits["max_experts"], _limits["max_chosen"], _limits["max_groups"]
MAX_STREAMS = _limits["max_streams"]  # of ops.altup_predict
LEAST_PAGE = _limits["least_page"]  # tokens of a page; any power of two from there
# of ops.gated_delta: numbers of a head, of its state, and tokens that its convolution sees
DELTA_DIM, DELTA_STATE, DELTA_TAPS = _limits["delta_dim"], _limits["delta_state"], _limits["delta_taps"]
SHORT_CONV_TAPS = _limits["short_conv_taps"]  # tokens that ops.short_conv sees
# of ops.mamba2: the same
MAMBA2_DIM, MAMBA2_STATE, MAMBA2_TAPS = _limits["mamba2_dim"], _limits["mamba2_state"], _limits["mamba2_taps"]
KV_BLOCK = _limits["kv_block"]  # columns of a scale in a packed KV cache

# SampleParams, what ops.sample takes as `params`: names in order, with the struct module's types.
SAMPLE_PARAMS: dict[str, str] = {
    name: code for code, name in (field.split() for field in torch.ops.torch_foundry.sample_params())
}
SAMPLE_BITS: dict[str, int] = torch.ops.torch_foundry.sample_bits()  # of rules, of SampleParams.stages, of errors


def power_of_two(number: int) -> int:
    """Round up to a power of two, from 1 on, as sizes of steps and tables are."""
    return 1 << (number - 1).bit_length()
