"""Slots of blocks with a recurrent state in place of attention, and of all else in models that have such."""

from __future__ import annotations

from dataclasses import replace

from torch_foundry.io.gguf.slots import EMBEDDING, MLP, MOE, NORM, PRE_NORMS, QKVO, Slot, renamed

# Linear layers of the gated delta rule, of which Qwen3.5's files have value heads in another order.
CONV = Slot("ssm_conv1d.weight", "linear_attn.conv1d.weight", "C 1 T")
OUT = Slot("ssm_out.weight", "linear_attn.out_proj.weight", "H Z")
DECAY = Slot("ssm_a", "linear_attn.A_log", "B", layout="decay")
STEP = Slot("ssm_dt.bias", "linear_attn.dt_bias", "B")
DELTA_NORM = Slot("ssm_norm.weight", "linear_attn.norm.weight", "U")
DELTA = (
    Slot("attn_qkv.weight+attn_gate.weight", "linear_attn.in_proj_qkvz.weight", "C+Z H", layout="key heads"),
    Slot("ssm_ba.weight", "linear_attn.in_proj_ba.weight", "B+B H"),
    *(CONV, OUT, DECAY, STEP, DELTA_NORM),
)
TILED_DELTA = (
    Slot("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", "C H", layout="tiled channels"),
    Slot("attn_gate.weight", "linear_attn.in_proj_z.weight", "Z H", layout="tiled values"),
    Slot("ssm_beta.weight", "linear_attn.in_proj_b.weight", "B H", layout="tiled heads"),
    Slot("ssm_alpha.weight", "linear_attn.in_proj_a.weight", "B H", layout="tiled heads"),
    replace(CONV, layout="tiled channels"),
    replace(OUT, layout="tiled columns"),
    replace(DECAY, layout="tiled decay"),
    replace(STEP, layout="tiled heads"),
    DELTA_NORM,
)
KIMI_DELTA = (  # whose rows of states decay by themselves
    *(Slot(f"attn_{x}.weight", f"self_attn.{x}_proj.weight", "Z H") for x in "qkv"),
    Slot(
        "ssm_conv1d_q.weight+ssm_conv1d_k.weight+ssm_conv1d_v.weight",
        "self_attn.conv1d.weight",
        "Z+Z+Z 1 T",
        layout="joined",
        stored="Z+Z+Z 1 T",
    ),
    Slot("ssm_f_a.weight", "self_attn.forget_gate.f_a_proj.weight", "N H"),
    Slot("ssm_f_b.weight", "self_attn.forget_gate.f_b_proj.weight", "Z N"),
    Slot("ssm_dt.bias", "self_attn.forget_gate.dt_bias", "Z"),
    Slot("ssm_a", "self_attn.forget_gate.A_log", "1 1 B 1", layout="decay", stored="B 1"),
    Slot("ssm_beta.weight", "self_attn.b_proj.weight", "B H"),
    Slot("ssm_g_a.weight", "self_attn.g_a_proj.weight", "N H"),
    Slot("ssm_g_b.weight", "self_attn.g_b_proj.weight", "Z N"),
    Slot("ssm_norm.weight", "self_attn.o_norm.weight", "N"),
    Slot("attn_output.weight", "self_attn.o_proj.weight", "H Z"),
)
STATE_SPACE = (  # Mamba2's
    Slot("ssm_in.weight", "mamba.in_proj.weight", "Z+C+B H"),
    Slot("ssm_conv1d.weight", "mamba.conv1d.weight", "C 1 T"),
    Slot("ssm_conv1d.bias", "mamba.conv1d.bias", "C"),
    Slot("ssm_dt.bias", "mamba.dt_bias", "B"),
    Slot("ssm_a", "mamba.A_log", "B", layout="decay", stored="B 1"),
    Slot("ssm_d", "mamba.D", "B", stored="B 1"),
    Slot("ssm_norm.weight", "mamba.norm.weight", "Z", stored="G M"),
    Slot("ssm_out.weight", "mamba.out_proj.weight", "H Z"),
)
FALCON_H1 = (  # attention and a state space beside it
    PRE_NORMS[0],
    Slot("ffn_norm", "pre_ff_layernorm.weight", "H"),
    *QKVO,
    *(slot for slot in STATE_SPACE if slot.tensor not in ("ssm_conv1d.bias", "ssm_norm.weight")),
    *renamed(MLP, "mlp.", "feed_forward."),
)
FALCON_H1_OPTIONS = {
    "mamba_conv_bias": tuple(slot for slot in STATE_SPACE if slot.tensor == "ssm_conv1d.bias"),
    "mamba_rms_norm": tuple(slot for slot in STATE_SPACE if slot.tensor == "ssm_norm.weight"),
}
FALCON_H1_NORM = replace(NORM, parameter="model.final_layernorm.weight")
NEMOTRON_H = (  # a block has one of these, behind a norm
    Slot("attn_norm.weight", "norm.weight", "H"),
    *renamed(QKVO, "self_attn", "mixer", needs="A"),
    *renamed(STATE_SPACE, "mamba", "mixer", needs="Z"),
)
NEMOTRON_H_MLP = renamed(MLP[1:], "mlp", "mixer", needs="F")
NEMOTRON_H_MOE = (
    Slot("ffn_gate_inp.weight", "mixer.gate.weight", "E H", needs="E"),
    Slot("exp_probs_b.bias", "mixer.gate.e_score_correction_bias", "E", needs="E"),
    Slot("ffn_latent_down.weight", "mixer.fc1_latent_proj.weight", "I H", needs="I"),
    Slot("ffn_latent_up.weight", "mixer.fc2_latent_proj.weight", "H I", needs="I"),
    Slot("ffn_up_exps.weight", "mixer.experts.up_proj", "E X L", needs="E"),
    Slot("ffn_down_exps.weight", "mixer.experts.down_proj", "E L X", needs="E"),
    Slot("ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight", "S H", needs="E"),
    Slot("ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight", "H S", needs="E"),
)
NEMOTRON_H_EMBEDDING = replace(EMBEDDING, parameter="model.embeddings.weight")
NEMOTRON_H_NORM = replace(NORM, parameter="model.norm_f.weight")
LFM2 = (
    Slot("attn_norm.weight", "operator_norm.weight", "H"),
    Slot("ffn_norm.weight", "ffn_norm.weight", "H"),
    *QKVO[:3],
    replace(QKVO[3], parameter="self_attn.out_proj.weight"),
    Slot("attn_q_norm.weight", "self_attn.q_layernorm.weight", "D"),
    Slot("attn_k_norm.weight", "self_attn.k_layernorm.weight", "D"),
    Slot("ffn_gate.weight", "feed_forward.w1.weight", "F H"),
    Slot("ffn_up.weight", "feed_forward.w3.weight", "F H"),
    Slot("ffn_down.weight", "feed_forward.w2.weight", "H F"),
)
LFM2_MOE = (
    *LFM2[:-3],
    *renamed(MOE, "mlp.", "feed_forward."),
    Slot("exp_probs_b.bias", "feed_forward.expert_bias", "E"),
)
SHORT_CONV = (
    Slot("shortconv.conv.weight", "conv.conv.weight", "H 1 T"),
    Slot("shortconv.in_proj.weight", "conv.in_proj.weight", "H+H+H H"),
    Slot("shortconv.out_proj.weight", "conv.out_proj.weight", "H H"),
)
LFM2_NORM = replace(NORM, tensor="token_embd_norm.weight", parameter="model.embedding_norm.weight")
