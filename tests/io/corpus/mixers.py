"""GGUF files of models whose blocks are a mixer or a feed-forward block alone, or have latent attention."""

from __future__ import annotations

import struct
from collections.abc import Callable

from .gguf_bytes import F32, I32, U32, numbers, scalar, string
from .model_bytes import HIDDEN, INNER, Model, changed, model
from .variants import A, state_space


def alone(architecture: str = "nemotron_h") -> Model:
    """Nemotron-H's: a state space, an MLP, attention."""
    file, attention = state_space(architecture), ("q", "k", "v", "output")
    file.put(f"{architecture}.block_count", scalar(U32, 3)).without(
        *(f"blk.0.{name}.weight" for name in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"))
    )
    for index in (1, 2):
        file.tensor(f"blk.{index}.attn_norm.weight", [HIDDEN])
    file.tensor("blk.1.ffn_up.weight", [HIDDEN, INNER]).tensor("blk.1.ffn_down.weight", [INNER, HIDDEN])
    for name, rows in zip(attention, (HIDDEN, 32, 32, HIDDEN), strict=True):
        file.tensor(f"blk.2.attn_{name}.weight", [HIDDEN, rows])
    return lengths(file, 0, INNER, 0).put(f"{architecture}.attention.head_count_kv", numbers(I32, [0, 0, 2]))


def lengths(file: Model, *each: int) -> Model:
    architecture = "nemotron_h_moe" if "nemotron_h_moe.block_count" in file.keys else "nemotron_h"
    return file.put(f"{architecture}.feed_forward_length", numbers(I32, list(each)))


def experts() -> Model:
    """The same with four experts in place of the MLP, one of them chosen."""
    file = lengths(alone("nemotron_h_moe"), 0, 32, 0).without("blk.1.ffn_up.weight", "blk.1.ffn_down.weight")
    sizes = {"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 32, "expert_shared_count": 1}
    for name, size in {**sizes, "expert_shared_feed_forward_length": 48}.items():
        file.put(f"nemotron_h_moe.{name}", scalar(U32, size))
    shapes = {
        "ffn_gate_inp.weight": [HIDDEN, 4], "exp_probs_b.bias": [4], "ffn_up_exps.weight": [HIDDEN, 32, 4],
        "ffn_down_exps.weight": [32, HIDDEN, 4], "ffn_up_shexp.weight": [HIDDEN, 48],
        "ffn_down_shexp.weight": [48, HIDDEN],
    }  # fmt: skip
    for name, shape in shapes.items():
        file.tensor(f"blk.1.{name}", shape)
    return file


def projected(rows: int = 16) -> Model:
    """The same with a projection to 16 numbers, which the experts see. rows: that the file's has."""
    file = experts().without("blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight")
    shapes = {
        "ffn_latent_down.weight": [HIDDEN, rows], "ffn_latent_up.weight": [16, HIDDEN],
        "ffn_up_exps.weight": [16, 32, 4], "ffn_down_exps.weight": [32, 16, 4],
    }  # fmt: skip
    for name, shape in shapes.items():
        file.tensor(f"blk.1.{name}", shape)
    return file.put("nemotron_h_moe.moe_latent_size", scalar(U32, 16))


def latent() -> Model:
    """DeepSeek V2's kind without experts: two heads of 24, of which 8 are rotated; latents of 32."""
    file, names = model("deepseek2"), ("q", "k", "v", "output")
    file.without(*(f"blk.0.attn_{name}.weight" for name in names))
    sizes = {"head_count": 2, "head_count_kv": 1, "kv_lora_rank": 32, "key_length": 40, "value_length": 32}
    for name, size in {**sizes, "key_length_mla": 24, "value_length_mla": 16}.items():
        file.put(f"deepseek2.attention.{name}", scalar(U32, size))
    sizes = {"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 32, "expert_shared_count": 1}
    for name, size in {**sizes, "leading_dense_block_count": 1, "rope.dimension_count": 8}.items():
        file.put(f"deepseek2.{name}", scalar(U32, size))
    shapes = {
        "q.weight": [HIDDEN, 48], "kv_a_mqa.weight": [HIDDEN, 40], "kv_a_norm.weight": [32],
        "k_b.weight": [16, 32, 2], "v_b.weight": [32, 16, 2], "output.weight": [32, HIDDEN],
    }  # fmt: skip
    for name, shape in shapes.items():
        file.tensor(f"blk.0.attn_{name}", shape)
    return file


def joined() -> Model:
    """As files were before: keys and values of all heads are made by one tensor."""
    file = latent().without(*(f"deepseek2.attention.{name}_length_mla" for name in ("key", "value")))
    for name, size in {"key_length": 24, "value_length": 16, "head_count_kv": 2}.items():
        file.put(f"deepseek2.attention.{name}", scalar(U32, size))
    return file.without("blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight").tensor("blk.0.attn_kv_b.weight", [32, 64])


def kimi() -> Model:
    """Kimi Linear's: a block with a delta rule of two heads of 16, and an MLP; the other with latents, and experts."""
    file, attention = model("kimi-linear"), ("q", "k", "v", "output")
    sizes = {"kv_lora_rank": 32, "key_length": 40, "key_length_mla": 24, "value_length_mla": 16, "head_count": 2}
    for name, size in sizes.items():
        file.put(f"kimi-linear.attention.{name}", scalar(U32, size))
    sizes = {"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 32, "expert_shared_count": 1}
    sizes |= {"leading_dense_block_count": 1, "rope.dimension_count": 8, "block_count": 2}
    for name, size in {**sizes, "kda.head_dim": 16, "ssm.conv_kernel": 4}.items():
        file.put(f"kimi-linear.{name}", scalar(U32, size))
    file.put("kimi-linear.attention.head_count_kv", numbers(I32, [0, 1]))
    own: dict[str, list[int]] = {f"attn_{name}.weight": [HIDDEN, 32] for name in attention[:3]}
    own |= {f"ssm_conv1d_{name}.weight": [4, 1, 32] for name in attention[:3]}
    for name in ("f", "g"):
        own |= {f"ssm_{name}_a.weight": [HIDDEN, 16], f"ssm_{name}_b.weight": [16, 32]}
    own |= {
        "ssm_dt.bias": [32],
        "ssm_beta.weight": [HIDDEN, 2],
        "ssm_norm.weight": [16],
        "attn_output.weight": [32, HIDDEN],
    }
    for name, shape in own.items():
        file.tensor(f"blk.0.{name}", shape)
    file.tensor("blk.0.ssm_a", [1, 2], data=struct.pack("<2f", -1.0, -2.0))
    shapes = {
        "attn_q.weight": [HIDDEN, 48], "attn_kv_a_mqa.weight": [HIDDEN, 40], "attn_kv_a_norm.weight": [32],
        "attn_k_b.weight": [16, 32, 2], "attn_v_b.weight": [32, 16, 2], "attn_output.weight": [32, HIDDEN],
        "attn_norm.weight": [HIDDEN], "ffn_norm.weight": [HIDDEN], "ffn_gate_inp.weight": [HIDDEN, 4],
        "exp_probs_b.bias": [4], "ffn_gate_exps.weight": [HIDDEN, 32, 4], "ffn_up_exps.weight": [HIDDEN, 32, 4],
        "ffn_down_exps.weight": [32, HIDDEN, 4], "ffn_gate_shexp.weight": [HIDDEN, 32],
        "ffn_up_shexp.weight": [HIDDEN, 32], "ffn_down_shexp.weight": [32, HIDDEN],
    }  # fmt: skip
    for name, shape in shapes.items():
        file.tensor(f"blk.1.{name}", shape)
    return file


def growing(file: Model) -> Model:
    """The same with queries that grow with their positions, as of Mistral 4."""
    for name, value in {"attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 0.1}.items():
        file.put(f"deepseek2.{name}", scalar(F32, value))
    file.put("deepseek2.rope.scaling.original_context_length", scalar(U32, 16))
    file.put("deepseek2.rope.scaling.factor", scalar(F32, 4.0))
    return file.put("deepseek2.rope.scaling.type", string("yarn"))


def latents(name: str, value: int) -> Callable[[], bytes]:
    return changed(lambda m: m.put(f"deepseek2.{name}", scalar(U32, value)), latent)


def changed_alone(change: Callable[[Model], object]) -> Callable[[], bytes]:
    return changed(change, alone)


A.accept("A420", "blocks of one thing each", lambda: alone().bytes())
A.accept("A421", "experts alone", lambda: experts().bytes())
A.reject("A422", "attention and an MLP", "HP_RANGE", changed_alone(lambda m: lengths(m, 0, 96, 96)), "feed_forward")
A.reject("A423", "MLPs of two sizes", "HP_RANGE", changed_alone(lambda m: lengths(m, 64, 96, 0)), "feed_forward")
A.reject("A424", "MLPs of two blocks", "HP_RANGE", changed_alone(lambda m: lengths(m, 0, 96)), "feed_forward")
A.reject("A425", "MLPs by name", "HP_RANGE", changed_alone(
    lambda m: m.put("nemotron_h.feed_forward_length", string("wide"))), "feed_forward")  # fmt: skip
A.reject("A426", "a state space where there is an MLP", "TENSOR_MISSING", changed_alone(
    lambda m: lengths(m, 0, 0, 0)), "blk.1.ssm_in")  # fmt: skip
A.reject("A427", "attention in a block that is an MLP", "TENSOR_EXTRA", changed_alone(
    lambda m: m.tensor("blk.1.attn_k.weight", [HIDDEN, 32])), "blk.1.attn_k")  # fmt: skip
A.reject("A428", "experts behind a projection that isn't there", "TENSOR_MISSING", changed(
    lambda m: m.put("nemotron_h_moe.moe_latent_size", scalar(U32, 16)), experts), "ffn_latent_down")  # fmt: skip
A.reject("A429", "experts without a correction", "TENSOR_MISSING", changed(
    lambda m: m.without("blk.1.exp_probs_b.bias"), experts), "exp_probs_b")  # fmt: skip
A.reject("A430", "no size of the shared expert", "HP_MISSING", changed(
    lambda m: m.without("nemotron_h_moe.expert_shared_feed_forward_length"), experts), "shared_feed")  # fmt: skip
A.reject("A431", "a fraction of an MLP", "HP_RANGE", changed_alone(
    lambda m: m.put("nemotron_h.feed_forward_length", numbers(F32, [0.0, 96.0, 0.0]))), "feed_forward")  # fmt: skip
A.accept("A432", "experts behind a projection", lambda: projected().bytes())
A.reject("A433", "a projection to another size", "SHAPE", lambda: projected(8).bytes(), "ffn_latent_down")
A.reject("A434", "a projection that nothing says", "TENSOR_EXTRA", changed(
    lambda m: m.put("nemotron_h_moe.moe_latent_size", scalar(U32, 0)), projected), "ffn_latent")  # fmt: skip
A.accept("A440", "latents", lambda: latent().bytes())
A.accept("A441", "latents whose keys and values are made by one tensor", lambda: joined().bytes())
A.reject("A442", "keys that are no latents", "HP_RANGE", latents("attention.key_length", 41), "key_length")
A.reject("A443", "values that are no latents", "HP_RANGE", latents("attention.value_length", 16), "value_length")
A.reject("A444", "no size of values", "HP_MISSING", changed(
    lambda m: m.without("deepseek2.attention.value_length_mla"), latent), "value_length_mla")  # fmt: skip
A.reject("A445", "keys that are rotated whole", "HP_RANGE", latents("attention.key_length_mla", 8), "dimension_count")
A.reject("A446", "YaRN without its factor on scores", "HP_MISSING", changed(
    lambda m: m.put("deepseek2.rope.scaling.type", string("yarn")), latent), "yarn_log_multiplier")  # fmt: skip
A.reject("A447", "keys that aren't turned", "SHAPE", changed(
    lambda m: m.tensor("blk.0.attn_k_b.weight", [32, 16, 2]), latent), "attn_k_b")  # fmt: skip
A.reject("A448", "values of another head", "SHAPE", changed(
    lambda m: m.tensor("blk.0.attn_v_b.weight", [32, 16, 3]), latent), "attn_v_b")  # fmt: skip
A.reject("A449", "keys and values twice", "TENSOR_EXTRA", changed(
    lambda m: m.tensor("blk.0.attn_kv_b.weight", [32, 64]), latent), "_b.weight")  # fmt: skip
A.reject("A450", "queries of a latent that there is none of", "TENSOR_MISSING",
         latents("attention.q_lora_rank", 16), "attn_q_a")  # fmt: skip
A.reject("A451", "an odd number of rotated elements", "HP_RANGE", latents("rope.dimension_count", 7), "length")
A.reject("A452", "an unknown choice of experts", "HP_RANGE", latents("expert_gating_func", 3), "gating_func")
A.reject("A453", "latents of no size", "HP_RANGE", latents("attention.kv_lora_rank", 0), "kv_lora_rank")
A.reject("A455", "growing queries without YaRN", "HP_RANGE", changed(
    lambda m: m.put("deepseek2.attention.temperature_scale", scalar(F32, 0.1)), latent), "scaling.type")  # fmt: skip
A.reject("A456", "queries that grow later", "HP_RANGE", changed(
    lambda m: growing(m).put("deepseek2.attention.temperature_length", scalar(U32, 8)), latent),
    "temperature_length")  # fmt: skip
A.accept("A457", "growing queries", lambda: growing(latent()).bytes())
A.reject("A454", "keys that are NaN", "NONFINITE", changed(lambda m: m.tensor(
    "blk.0.attn_k_b.weight", [16, 32, 2], data=struct.pack("<1024f", *[0.0] * 1023, float("nan"))), latent),
    "attn_k_b")  # fmt: skip
A.accept("A460", "a delta rule whose rows decay by themselves", lambda: kimi().bytes())
A.reject("A461", "a state that grows", "NONFINITE", changed(lambda m: m.tensor(
    "blk.0.ssm_a", [1, 2], data=struct.pack("<2f", -1.0, 2.0)), kimi), "ssm_a")  # fmt: skip
A.reject("A462", "a convolution of other heads", "SHAPE", changed(
    lambda m: m.tensor("blk.0.ssm_conv1d_k.weight", [4, 1, 48]), kimi), "ssm_conv1d_k")  # fmt: skip
A.reject("A463", "a decay for each head", "SHAPE", changed(
    lambda m: m.tensor("blk.0.ssm_dt.bias", [2]), kimi), "ssm_dt")  # fmt: skip
A.reject("A464", "heads of no size", "HP_MISSING", changed(
    lambda m: m.without("kimi-linear.kda.head_dim"), kimi), "kda.head_dim")  # fmt: skip
A.reject("A465", "latents in all blocks", "TENSOR_MISSING", changed(
    lambda m: m.put("kimi-linear.attention.head_count_kv", scalar(U32, 1)), kimi), "blk.0")  # fmt: skip
A.reject("A466", "kinds of three blocks", "HP_RANGE", changed(
    lambda m: m.put("kimi-linear.attention.head_count_kv", numbers(I32, [0, 1, 0])), kimi), "count_kv")  # fmt: skip
