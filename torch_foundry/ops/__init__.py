"""The fused ops: typed functions over `torch.ops.torch_foundry`, and fake implementations for torch.compile.

All take float32, float16 or bfloat16 activations, accumulate in float32 and round once at the end. The device of the
tensors decides which executor runs. `glu`, `linear`, `rms_norm` and `rope` have a backward: differentiating through
another op raises, and so does differentiating a gradient, but rope's. Wrong arguments raise RuntimeError with the
argument's name and what was expected. `torch_foundry.testing.reference` and its neighbours are the same in plain torch.
"""

from torch_foundry.ops.altup import altup_add, altup_collapse, altup_correct, altup_expand, altup_predict
from torch_foundry.ops.attention import attention, rope_attention, rope_kv
from torch_foundry.ops.backward import glu_backward, rms_norm_backward, rms_norm_backward_weight, rope
from torch_foundry.ops.gated_delta import gated_delta
from torch_foundry.ops.head_linear import head_linear
from torch_foundry.ops.mamba2 import mamba2
from torch_foundry.ops.modules import (
    embedding,
    glu,
    layer_norm,
    linear,
    linear_backward_input,
    rms_norm,
    sparse_glu,
    xielu,
)
from torch_foundry.ops.moe import moe_choose, moe_combine, moe_down, moe_glu, moe_group, moe_linear, moe_route
from torch_foundry.ops.norm_linear import norm_glu, norm_linear, norm_qkv
from torch_foundry.ops.permute import permute_columns, permute_columns_and_norm
from torch_foundry.ops.sampling import sample, sample_count_prompt
from torch_foundry.ops.short_conv import short_conv

__all__ = [
    "altup_add",
    "altup_collapse",
    "altup_correct",
    "altup_expand",
    "altup_predict",
    "attention",
    "embedding",
    "gated_delta",
    "glu",
    "glu_backward",
    "head_linear",
    "layer_norm",
    "linear",
    "linear_backward_input",
    "mamba2",
    "moe_choose",
    "moe_combine",
    "moe_down",
    "moe_glu",
    "moe_group",
    "moe_linear",
    "moe_route",
    "norm_glu",
    "norm_linear",
    "norm_qkv",
    "permute_columns",
    "permute_columns_and_norm",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_backward_weight",
    "rope",
    "rope_attention",
    "rope_kv",
    "sample",
    "sample_count_prompt",
    "short_conv",
    "sparse_glu",
    "xielu",
]
