"""Models (A) that not every maker of files writes so: a tensor for each expert, factors of NVFP4 blocks."""

from __future__ import annotations

import struct
from collections.abc import Callable

from .gguf_bytes import F32, I32, TF16, TQ8_0, U32, numbers, scalar
from .model_bytes import HIDDEN, INNER, VOCABULARY, Model, changed, model
from .models import A

TNVFP4 = 40
UP, OUT = "blk.0.ffn_up.{}.weight", "blk.0.attn_output"


def experts() -> Model:
    """Two, one of them used, each with its own tensors, as in files from before these were stacked."""
    file = model().put("llama.expert_count", scalar(U32, 2)).put("llama.expert_used_count", scalar(U32, 1))
    for part in ("gate", "up", "down"):
        dims = file.tensors[f"blk.0.ffn_{part}.weight"][0]
        file.without(f"blk.0.ffn_{part}.weight")
        for expert in range(2):
            file.tensor(f"blk.0.ffn_{part}.{expert}.weight", dims)
    return file.tensor("blk.0.ffn_gate_inp.weight", [HIDDEN, 2])


def factors(file: Model | None = None, value: float = 0.5, name: str = f"{OUT}.scale") -> Model:
    """A matrix of NVFP4 and its factor."""
    file = file or model()
    file.tensor(f"{OUT}.weight", [HIDDEN, HIDDEN], TNVFP4, bytes([0x38] * 4 + [0x21] * 32) * HIDDEN)
    return file.tensor(name, [1], data=struct.pack("<f", value))


def embedding() -> Model:
    """An embedding of NVFP4, which no maker gives a factor."""
    blocks = bytes([0x38] * 4 + [0x21] * 32) * VOCABULARY
    return factors().tensor("token_embd.weight", [HIDDEN, VOCABULARY], TNVFP4, blocks)


def hybrid() -> Model:
    """A layer with a gated delta rule: a key head of 16, two value heads of 16."""
    file = model("qwen35").without(*(f"blk.0.attn_{name}.weight" for name in ("q", "k", "v", "output")))
    file.without("blk.0.ffn_norm.weight").tensor("blk.0.post_attention_norm.weight", [HIDDEN])
    sizes = {"conv_kernel": 4, "state_size": 16, "group_count": 1, "time_step_rank": 2, "inner_size": 32}
    for name, size in sizes.items():
        file.put(f"qwen35.ssm.{name}", scalar(U32, size))
    shapes = {
        "attn_qkv.weight": [HIDDEN, 64], "attn_gate.weight": [HIDDEN, 32], "ssm_beta.weight": [HIDDEN, 2],
        "ssm_alpha.weight": [HIDDEN, 2], "ssm_conv1d.weight": [4, 64], "ssm_out.weight": [32, HIDDEN],
        "ssm_dt.bias": [2], "ssm_norm.weight": [16],
    }  # fmt: skip
    for name, shape in shapes.items():
        file.tensor(f"blk.0.{name}", shape)
    return decays(file, -1.0)


def mixture() -> Model:
    """GLM-4.5's kind, whose first layer has no experts: four, two of them chosen, and one for all tokens."""
    file = model("glm4moe").put("glm4moe.block_count", scalar(U32, 2))
    for name, (dims, *_) in list(file.tensors.items()):
        if name.startswith("blk.0."):
            file.tensor(name.replace("blk.0.", "blk.1."), dims)
    for layer in range(2):
        file.without(f"blk.{layer}.ffn_norm.weight").tensor(f"blk.{layer}.post_attention_norm.weight", [HIDDEN])
    sizes = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_shared_count": 1}
    sizes |= {"leading_dense_block_count": 1, "expert_gating_func": 2}
    for key, size in sizes.items():
        file.put(f"glm4moe.{key}", scalar(U32, size))
    file.tensor("blk.1.ffn_gate_inp.weight", [HIDDEN, 4]).tensor("blk.1.exp_probs_b.bias", [4])
    for part in ("gate", "up", "down"):
        dims = [HIDDEN, 32] if part != "down" else [32, HIDDEN]
        file.without(f"blk.1.ffn_{part}.weight").tensor(f"blk.1.ffn_{part}_exps.weight", [*dims, 4])
        file.tensor(f"blk.1.ffn_{part}_shexp.weight", dims)
    return file


def mixed(name: str, value: int) -> Callable[[], bytes]:
    return changed(lambda m: m.put(f"glm4moe.{name}", scalar(U32, value)), mixture)


def decays(file: Model, value: float) -> Model:
    return file.tensor("blk.0.ssm_a", [2], data=struct.pack("<2f", -1.0, value))


def sections(kind: int, *values: float) -> Callable[[], bytes]:
    return changed(lambda m: m.put("qwen35.rope.dimension_sections", numbers(kind, list(values))), hybrid)


def setting(name: str, value: int) -> Callable[[], bytes]:
    return changed(lambda m: m.put(f"qwen35.{name}", scalar(U32, value)), hybrid)


A.accept("A300", "each expert a tensor of its own", lambda: experts().bytes())
A.reject("A301", "an expert absent", "TENSOR_MISSING", changed(lambda m: m.without(UP.format(1)), experts), "ffn_up.1")
A.reject("A302", "an expert too many", "TENSOR_EXTRA",
         changed(lambda m: m.tensor(UP.format(2), [HIDDEN, INNER]), experts), "ffn_up.2")  # fmt: skip
A.reject("A303", "an expert of another shape", "SHAPE",
         changed(lambda m: m.tensor(UP.format(1), [HIDDEN, INNER - 1]), experts), "ffn_up.1")  # fmt: skip
A.reject("A304", "an expert of another type", "TENSOR_TYPE",
         changed(lambda m: m.tensor(UP.format(1), [HIDDEN, INNER], TQ8_0, bytes(68 * INNER)), experts),
         "as the first expert has")  # fmt: skip
A.reject("A305", "experts stacked and alone", "TENSOR_EXTRA",
         changed(lambda m: m.tensor("blk.0.ffn_up_exps.weight", [HIDDEN, INNER, 2]), experts), "ffn_up.0")  # fmt: skip
A.accept("A310", "NVFP4 with a factor", lambda: factors().bytes())
A.accept("A311", "NVFP4 with a factor for what it multiplies",
         lambda: factors(factors(), name=f"{OUT}.input_scale").bytes(), policy=True)  # fmt: skip
A.reject("A312", "two factors of a matrix", "SHAPE",
         changed(lambda m: m.tensor(f"{OUT}.scale", [2]), factors), f"{OUT}.scale")  # fmt: skip
A.reject("A313", "a factor of F16", "TENSOR_TYPE",
         changed(lambda m: m.tensor(f"{OUT}.scale", [1], TF16, bytes(2)), factors), f"{OUT}.scale")  # fmt: skip
A.reject("A314", "a factor NaN", "NONFINITE", lambda: factors(value=float("nan")).bytes(), f"{OUT}.scale")
A.reject("A315", "a factor of F32 weights", "TENSOR_EXTRA",
         changed(lambda m: m.tensor("blk.0.attn_q.scale", [1])), "attn_q.scale")  # fmt: skip
A.reject("A316", "a factor of the embedding", "TENSOR_EXTRA",
         changed(lambda m: m.tensor("token_embd.scale", [1]), embedding), "token_embd.scale")  # fmt: skip
A.reject("A317", "a factor alone", "TENSOR_EXTRA", changed(lambda m: m.tensor("blk.0.ffn_gate_inp.scale", [1])), "inp")
A.accept("A320", "a layer with a gated delta rule", lambda: hybrid().bytes())
A.reject("A321", "value heads that key heads can't share", "HP_RANGE",
         changed(lambda m: m.put("qwen35.ssm.group_count", scalar(U32, 3)), hybrid), "time_step_rank")  # fmt: skip
A.reject("A322", "value heads of 16.5 numbers", "HP_RANGE", setting("ssm.inner_size", 33), "inner_size")
A.reject("A323", "all blocks predict further tokens", "HP_RANGE", setting("nextn_predict_layers", 1), "nextn")
for _number, _value in enumerate((0.0, 0.5, float("inf"), float("nan")), 4):
    A.reject(f"A32{_number}", f"a decay of {_value}", "NONFINITE",
             changed(lambda m, value=_value: decays(m, value), hybrid), "ssm_a")  # fmt: skip
A.reject("A328", "a decay too few", "SHAPE", changed(lambda m: m.tensor("blk.0.ssm_a", [1]), hybrid), "ssm_a")
A.reject("A329", "a convolution of two tokens", "SHAPE",
         changed(lambda m: m.tensor("blk.0.ssm_conv1d.weight", [2, 64]), hybrid), "ssm_conv1d")  # fmt: skip
A.reject("A330", "a convolution of Q8_0", "TENSOR_TYPE",
         changed(lambda m: m.put("qwen35.ssm.conv_kernel", scalar(U32, 32)).tensor(
             "blk.0.ssm_conv1d.weight", [32, 64], TQ8_0, bytes(34 * 64)), hybrid), "ssm_conv1d")  # fmt: skip
A.reject("A331", "two sections", "HP_RANGE", sections(I32, 4, 4), "dimension_sections")
A.reject("A332", "sections of fractions", "HP_RANGE", sections(F32, 4, 4, 4), "dimension_sections")
A.reject("A333", "a negative section", "HP_RANGE", sections(I32, -1, 9, 9), "dimension_sections")
A.reject("A334", "sections of fewer pairs than are rotated", "HP_RANGE", sections(I32, 1, 1, 1), "dimension_sections")
A.accept("A335", "four sections", lambda: sections(I32, 3, 3, 2, 0)())
A.accept("A340", "experts behind a layer without any", lambda: mixture().bytes())
A.reject(
    "A341", "two layers without experts", "TENSOR_MISSING", mixed("leading_dense_block_count", 2), "blk.1.ffn_gate"
)
A.reject("A342", "groups that experts don't fill", "HP_RANGE", mixed("expert_group_count", 3), "expert_group_count")
A.reject("A343", "more groups chosen than there are", "HP_RANGE", mixed("expert_group_used_count", 2), "group_count")
A.reject("A344", "experts chosen by a softmax", "HP_RANGE", mixed("expert_gating_func", 1), "expert_gating_func")
A.reject("A345", "two experts for all tokens", "SHAPE", mixed("expert_shared_count", 2), "shexp")
A.reject("A346", "a correction too few", "SHAPE",
         changed(lambda m: m.tensor("blk.1.exp_probs_b.bias", [3]), mixture), "exp_probs_b")  # fmt: skip
A.reject("A347", "a correction NaN", "NONFINITE",
         changed(lambda m: m.tensor("blk.1.exp_probs_b.bias", [4], data=struct.pack("<4f", 0, 0, 0, float("nan"))),
                 mixture), "exp_probs_b")  # fmt: skip
