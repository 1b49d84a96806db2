"""What GGUF files of Granite's models contain."""

from __future__ import annotations

from dataclasses import replace

from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.keys import EPSILON, LOCAL_EXPERTS, REQUIRED, ROTATED_WINDOWS, SHARED, STATE_KEYS, Key
from torch_foundry.io.gguf.recurrent_slots import STATE_SPACE
from torch_foundry.io.gguf.slots import (
    BIASES,
    GPT_OSS_MOE,
    GRANITE_MLP,
    GRANITE_MOE,
    GRANITE_SHARED,
    MLP,
    PRE_NORMS,
    QKVO,
    QKVO_BIAS,
)

GRANITE = Architecture(
    "GraniteConfig",
    (*PRE_NORMS, *QKVO, *MLP),
    (
        Key("attention.scale", "attention_multiplier", float, EPSILON, 1e6),
        Key("residual_scale", "residual_multiplier", float, EPSILON, 1e6, 1.0),
        Key("embedding_scale", "embedding_multiplier", float, EPSILON, 1e6, 1.0),
        Key("logit_scale", "logits_scaling", float, EPSILON, 1e6, 1.0),
    ),
    options=BIASES,
    interleaved=True,
)
GRANITE_MIXTURE = replace(
    GRANITE,
    config="GraniteMoeConfig",
    layer=(*PRE_NORMS, *QKVO, *GRANITE_MOE),
    own_keys=(*GRANITE.own_keys, *LOCAL_EXPERTS),
    options={"attention_bias": QKVO_BIAS},
    expert_size="intermediate_size",
)
GRANITE_MIXTURE_SHARED = replace(
    GRANITE_MIXTURE,
    config="GraniteMoeSharedConfig",
    layer=(*GRANITE_MIXTURE.layer, *GRANITE_SHARED),
    own_keys=(*GRANITE_MIXTURE.own_keys, replace(SHARED, default=REQUIRED)),
    shared_size="shared_intermediate_size",
)
# of which layers without a window may not rotate their heads
GRANITE_SWA = replace(
    GRANITE,
    config="GraniteSWAConfig",
    layer=(*GRANITE.layer, GPT_OSS_MOE[-1]),
    own_keys=(*GRANITE.own_keys, *ROTATED_WINDOWS),
    pattern=4,
)
GRANITE_SWA_MIXTURE = replace(
    GRANITE_SWA,
    config="GraniteMoeSWAConfig",
    layer=(*GRANITE_MIXTURE.layer, GPT_OSS_MOE[-1]),
    own_keys=(*GRANITE_SWA.own_keys, *LOCAL_EXPERTS),
    options=GRANITE_MIXTURE.options,
    expert_size="intermediate_size",
)
GRANITE_HYBRID = replace(
    GRANITE,
    config="GraniteMoeHybridConfig",
    layer=(*PRE_NORMS, *QKVO, *GRANITE_MLP),
    own_keys=(
        *(*GRANITE.own_keys, *STATE_KEYS),
        Key("feed_forward_length", "shared_intermediate_size", int, 1, 1 << 24, REQUIRED),
    ),
    options={},
    constants={"num_local_experts": 0},
    recurrent=STATE_SPACE,
    value_size="mamba_d_head",
    unused=frozenset({"mamba_chunk_size", "position_embedding_type", "intermediate_size", "num_experts_per_tok"}),
)
GRANITE_HYBRID_MOE = replace(
    GRANITE_HYBRID,
    layer=(*PRE_NORMS, *QKVO, *GRANITE_MOE, *GRANITE_SHARED),
    own_keys=(*GRANITE.own_keys, *STATE_KEYS, *LOCAL_EXPERTS, replace(SHARED, default=REQUIRED)),
    constants={},
    expert_size="intermediate_size",
    shared_size="shared_intermediate_size",
    unused=frozenset({"mamba_chunk_size", "position_embedding_type"}),
)

GRANITES: dict[str, Architecture] = {
    "granite": GRANITE,
    "granite_swa": replace(GRANITE_SWA, variants={"expert_count": GRANITE_SWA_MIXTURE}),
    "granitemoe": replace(GRANITE_MIXTURE, variants={"expert_shared_feed_forward_length": GRANITE_MIXTURE_SHARED}),
    "granitehybrid": replace(GRANITE_HYBRID, variants={"expert_count": GRANITE_HYBRID_MOE}),
}
