"""Tensors of GGUF files, and the parameters of transformers' models that they are, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

Sizes = Mapping[str, int]  # by the letters of slots' shapes
MODEL_LAYER = "model.layers.{}."
BLOCK = "blk.{}."


@dataclass(frozen=True)
class Slot:
    """A tensor of the file, the parameter that it is, and its shape in letters.

    H: hidden size, V: vocabulary, F: feed-forward, A: query heads, Q: all of them, G: key heads, K: all of them, D: a
    head, R: what is rotated of it.
    Experts: E: their number, X: feed-forward of one, S: of the shared one; if they see a projection L: that, I: the
    same, or 0.
    Recurrent states: G: key heads, N: one, B: value heads, U: one, Z: all of them, M: those of a group, C: all that go
    through the convolution, T: tokens that it sees.
    Embeddings of blocks: P: one, J: of all blocks, Y: how many; beside these W: all heads of values that aren't keys.
    Latent attention: L: the latent, I: that of queries, J: the hidden size if there is none, N: what is not rotated of
    a key head, U: a value head, O: all of them, W: N and U of all heads, B: the same if they lie in two tensors.
    "A+B": one after the other. A dimension of 1 may be left out.

    tensor: "a+b" if the parameter lies in several. heads: rows are those of heads, which some architectures store in
    another order. layout: in `LAYOUTS`, of parameters that no file has as they are. stored: the shape in the file, if
    it is another one of the same numbers. needs: the letter of what must be there, or else the tensor is not.
    """

    tensor: str
    parameter: str
    shape: str
    heads: bool = False
    layout: str = ""
    stored: str = ""
    needs: str = ""

    @property
    def tensors(self) -> list[str]:
        """Names of all tensors."""
        return self.tensor.split("+")

    @property
    def single(self) -> bool:
        """Whether files have it in float32: whatever is no matrix that tokens are multiplied by."""
        known = ("shortconv.conv.weight", "norm.weight")
        return "ssm_conv1d" in self.tensor or self.tensor.endswith(known) or not self.tensor.endswith(".weight")

    @property
    def offset(self) -> bool:
        """Whether it is a norm of those that some architectures store with 1 added."""
        return self.tensor.endswith("norm.weight") and not self.tensor.endswith("ssm_norm.weight")


def renamed(slots: Iterable[Slot], old: str, new: str, needs: str = "") -> tuple[Slot, ...]:
    """The same of a model in which `old` of parameters' names is `new`, and which `needs` something, if given."""
    return tuple(replace(slot, parameter=slot.parameter.replace(old, new), needs=needs or slot.needs) for slot in slots)


EMBEDDING = Slot("token_embd.weight", "model.embed_tokens.weight", "V H")
NORM = Slot("output_norm.weight", "model.norm.weight", "H")
OUTPUT = Slot("output.weight", "lm_head.weight", "V H")
ROPE_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}  # no parameters

QKVO = (
    Slot("attn_q.weight", "self_attn.q_proj.weight", "Q H", heads=True),
    Slot("attn_k.weight", "self_attn.k_proj.weight", "K H", heads=True),
    Slot("attn_v.weight", "self_attn.v_proj.weight", "K H"),
    Slot("attn_output.weight", "self_attn.o_proj.weight", "H Q"),
)
QKV_BIAS = (
    Slot("attn_q.bias", "self_attn.q_proj.bias", "Q", heads=True),
    Slot("attn_k.bias", "self_attn.k_proj.bias", "K", heads=True),
    Slot("attn_v.bias", "self_attn.v_proj.bias", "K"),
)
QKVO_BIAS = (*QKV_BIAS, Slot("attn_output.bias", "self_attn.o_proj.bias", "H"))
HEAD_NORMS = (
    Slot("attn_q_norm.weight", "self_attn.q_norm.weight", "D"),
    Slot("attn_k_norm.weight", "self_attn.k_norm.weight", "D"),
)
NORMS_OF_ROTATED_HEADS = (
    Slot("attn_q_norm.weight", "self_attn.query_layernorm.weight", "D"),
    Slot("attn_k_norm.weight", "self_attn.key_layernorm.weight", "D"),
)
PRE_NORMS = (
    Slot("attn_norm.weight", "input_layernorm.weight", "H"),
    Slot("ffn_norm.weight", "post_attention_layernorm.weight", "H"),
)
POST_NORMS = (
    Slot("post_attention_norm.weight", "post_attention_layernorm.weight", "H"),
    Slot("post_ffw_norm.weight", "post_feedforward_layernorm.weight", "H"),
)
SANDWICH = (
    PRE_NORMS[0],
    Slot("ffn_norm.weight", "pre_feedforward_layernorm.weight", "H"),
    *POST_NORMS,
)
MLP = (
    Slot("ffn_gate.weight", "mlp.gate_proj.weight", "F H"),
    Slot("ffn_up.weight", "mlp.up_proj.weight", "F H"),
    Slot("ffn_down.weight", "mlp.down_proj.weight", "H F"),
)
MLP_BIAS = (
    Slot("ffn_gate.bias", "mlp.gate_proj.bias", "F"),
    Slot("ffn_up.bias", "mlp.up_proj.bias", "F"),
    Slot("ffn_down.bias", "mlp.down_proj.bias", "H"),
)
BIASES = {"attention_bias": QKVO_BIAS, "mlp_bias": MLP_BIAS}
MOE = (
    Slot("ffn_gate_inp.weight", "mlp.gate.weight", "E H"),
    Slot("ffn_gate_exps.weight", "mlp.experts.gate_proj", "E X H"),
    Slot("ffn_up_exps.weight", "mlp.experts.up_proj", "E X H"),
    Slot("ffn_down_exps.weight", "mlp.experts.down_proj", "E H X"),
)
SHARED_EXPERT = (
    Slot("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", "1 H"),
    Slot("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", "S H"),
    Slot("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", "S H"),
    Slot("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", "H S"),
)

LATENT = (
    *PRE_NORMS,
    Slot("attn_q.weight", "self_attn.q_proj.weight", "Q J", needs="J"),
    Slot("attn_q_a.weight", "self_attn.q_a_proj.weight", "I H", needs="I"),
    Slot("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", "I", needs="I"),
    Slot("attn_q_b.weight", "self_attn.q_b_proj.weight", "Q I", needs="I"),
    Slot("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", "L+R H"),
    Slot("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", "L"),
    Slot("attn_kv_b.weight", "self_attn.kv_b_proj.weight", "W L", needs="W"),
    Slot(
        "attn_k_b.weight+attn_v_b.weight",
        "self_attn.kv_b_proj.weight",
        "B L",
        layout="keys and values",
        stored="A+A L+U N+L",
        needs="B",
    ),
    Slot("attn_output.weight", "self_attn.o_proj.weight", "H O"),
)
GATED_QKVO = (Slot("attn_q.weight", "self_attn.q_proj.weight", "Q+Q H"), *QKVO[1:])
LATE_NORMS = (PRE_NORMS[0], POST_NORMS[0])
FULL_NORMS = (
    Slot("attn_q_norm.weight", "self_attn.q_norm.weight", "Q"),
    Slot("attn_k_norm.weight", "self_attn.k_norm.weight", "K"),
)
GLM4_NORMS = (
    PRE_NORMS[0],
    Slot("post_attention_norm.weight", "post_self_attn_layernorm.weight", "H"),
    PRE_NORMS[1],
    Slot("post_ffw_norm.weight", "post_mlp_layernorm.weight", "H"),
)
JOINED_MLP = (Slot("ffn_up.weight", "mlp.gate_up_proj.weight", "F+F H"), MLP[2])
DEEPSEEK_MOE = (
    *MOE,
    Slot("exp_probs_b.bias", "mlp.gate.e_score_correction_bias", "E"),
    *(
        Slot(slot.tensor.replace(".", "_shexp."), slot.parameter.replace("mlp.", "mlp.shared_experts."), shape)
        for slot, shape in zip(MLP, ("S H", "S H", "H S"), strict=True)
    ),
)
GRANITE_MOE = renamed(renamed(MOE, "mlp.gate", "mlp.router"), "mlp.", "block_sparse_moe.")
GRANITE_MLP = (
    Slot("ffn_gate.weight+ffn_up.weight", "shared_mlp.input_linear.weight", "F+F H", layout="joined"),
    Slot("ffn_down.weight", "shared_mlp.output_linear.weight", "H F"),
)
GRANITE_SHARED = (
    Slot("ffn_gate_shexp.weight+ffn_up_shexp.weight", "shared_mlp.input_linear.weight", "S+S H", layout="joined"),
    Slot("ffn_down_shexp.weight", "shared_mlp.output_linear.weight", "H S"),
)
GPT_OSS_MOE = (
    Slot("ffn_gate_inp.weight", "mlp.router.weight", "E H"),
    Slot("ffn_gate_inp.bias", "mlp.router.bias", "E"),
    *MOE[1:],
    Slot("ffn_gate_exps.bias+ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias", "E X+X", layout="turns"),
    Slot("ffn_down_exps.bias", "mlp.experts.down_proj_bias", "E H"),
    Slot("attn_sinks.weight", "self_attn.sinks", "A"),
)
PER_LAYER = (
    Slot("inp_gate.weight", "per_layer_input_gate.weight", "P H", needs="P"),
    Slot("proj.weight", "per_layer_projection.weight", "H P", needs="P"),
    Slot("post_norm.weight", "post_per_layer_input_norm.weight", "H", needs="P"),
)
GEMMA4 = (
    *SANDWICH,
    *(replace(QKVO[0], heads=False), HEAD_NORMS[0], QKVO[3], *MLP),
    *(replace(QKVO[1], needs="K"), replace(HEAD_NORMS[1], needs="K"), replace(QKVO[2], shape="W H", needs="W")),
    Slot("layer_output_scale.weight", "layer_scalar", "1"),
    *PER_LAYER,
    Slot("ffn_gate_inp.weight", "router.proj.weight", "E H", needs="E"),
    Slot("ffn_gate_inp.scale", "router.scale", "H", needs="E"),
    Slot("ffn_gate_up_exps.weight", "experts.gate_up_proj", "E X+X H", needs="E"),
    Slot("ffn_down_exps.weight", "experts.down_proj", "E H X", needs="E"),
    Slot("ffn_down_exps.scale", "router.per_expert_scale", "E", needs="E"),
    Slot("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", "H", needs="E"),
    Slot("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", "H", needs="E"),
    Slot("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", "H", needs="E"),
)
GEMMA4_OUTER = (
    Slot("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight", "Y J", needs="P"),
    Slot("per_layer_model_proj.weight", "model.per_layer_model_projection.weight", "J H", needs="P"),
    Slot("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", "P", needs="P"),
)


def experts_in_one(slots: Iterable[Slot]) -> Iterator[Slot]:
    """The same slots for a block whose file has gate and up of its experts in one tensor."""
    for slot in slots:
        if slot.tensor == MOE[1].tensor:
            parameter = slot.parameter.replace("gate_proj", "gate_up_proj")
            yield replace(slot, tensor="ffn_gate_up_exps.weight", parameter=parameter, shape="E X+X H")
        elif slot.tensor != MOE[2].tensor:
            yield slot
