"""Models (A) that not every maker of files writes so: a tensor for each expert, factors of NVFP4 blocks."""

from __future__ import annotations

import struct
from collections.abc import Callable

from .gguf_bytes import BOOL, F32, I32, TF16, TQ8_0, U32, numbers, scalar, string
from .model_bytes import HIDDEN, INNER, VOCABULARY, Model, changed, layer, model
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
    for index in range(2):
        file.without(f"blk.{index}.ffn_norm.weight").tensor(f"blk.{index}.post_attention_norm.weight", [HIDDEN])
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


def state_space(architecture: str = "granitehybrid") -> Model:
    """Granite 4's: a block with a state space of two groups and four heads of 16, and an MLP."""
    file = model(architecture).without(*(f"blk.0.attn_{name}.weight" for name in ("q", "k", "v", "output")))
    file.put(f"{architecture}.attention.head_count_kv", numbers(U32, [0]))
    sizes = {"conv_kernel": 4, "state_size": 8, "group_count": 2, "time_step_rank": 4, "inner_size": 64}
    for name, size in sizes.items():
        file.put(f"{architecture}.ssm.{name}", scalar(U32, size))
    shapes = {
        "in.weight": [HIDDEN, 164], "conv1d.weight": [4, 96], "conv1d.bias": [96], "dt.bias": [4], "d": [1, 4],
        "norm.weight": [32, 2], "out.weight": [64, HIDDEN],
    }  # fmt: skip
    for name, shape in shapes.items():
        file.tensor(f"blk.0.ssm_{name}", shape)
    return file.tensor("blk.0.ssm_a", [1, 4], data=struct.pack("<4f", -1.0, -2.0, -3.0, -4.0))


def spaced(change: Callable[[Model], object]) -> Callable[[], bytes]:
    return changed(change, state_space)


def mixed(name: str, value: int) -> Callable[[], bytes]:
    return changed(lambda m: m.put(f"glm4moe.{name}", scalar(U32, value)), mixture)


def two_kinds() -> Model:
    """Gemma 4's kind: a layer with a window, and one without, whose four heads of 32 share one of keys and values."""
    file = model("gemma4").without("output.weight", "gemma4.rope.dimension_count")
    file.tensors |= layer(1)
    file.without("blk.1.attn_v.weight").tensor("blk.1.attn_q.weight", [HIDDEN, 128])
    file.tensor("blk.1.attn_k.weight", [HIDDEN, 32]).tensor("blk.1.attn_output.weight", [128, HIDDEN])
    for index, head in enumerate((16, 32)):
        for name in ("post_attention_norm", "post_ffw_norm"):
            file.tensor(f"blk.{index}.{name}.weight", [HIDDEN])
        for name in "qk":
            file.tensor(f"blk.{index}.attn_{name}_norm.weight", [head])
        file.tensor(f"blk.{index}.layer_output_scale.weight", [1])
    sizes = {"block_count": 2, "attention.sliding_window": 16, "attention.key_length": 32, "rope.dimension_count": 32}
    sizes |= {"attention.key_length_swa": 16, "attention.value_length": 32}
    for key, size in sizes.items():
        file.put(f"gemma4.{key}", scalar(U32, size))
    file.put("gemma4.attention.head_count_kv", numbers(I32, [2, 1]))
    return windows(turns(file, 1, 1, *[1e30] * 14), 1, 0)


def heads_of_layers(*keys: int) -> Callable[[], bytes]:
    """LFM2's kind, without a convolution."""
    file = model("lfm2").put("lfm2.block_count", scalar(U32, 2)).put("lfm2.shortconv.l_cache", scalar(U32, 3))
    file.tensors |= layer(1)
    file.without("output_norm.weight").tensor("token_embd_norm.weight", [HIDDEN])
    for index in range(2):
        for name in "qk":
            file.tensor(f"blk.{index}.attn_{name}_norm.weight", [16])
    return file.put("lfm2.attention.head_count_kv", numbers(I32, list(keys))).bytes


def windows(file: Model, *which: int) -> Model:
    return file.put("gemma4.attention.sliding_window_pattern", numbers(BOOL, list(which)))


def turns(file: Model, *factors: float) -> Model:
    data = struct.pack(f"<{len(factors)}f", *factors)
    return file.tensor("rope_freqs.weight", [len(factors)], data=data)


def kinds(name: str, *value: int) -> Callable[[], bytes]:
    """Another number, or one for each layer."""
    written = numbers(I32, list(value)) if len(value) > 1 else scalar(U32, value[0])
    return changed(lambda m: m.put(f"gemma4.{name}", written), two_kinds)


def inputs() -> Model:
    """With an embedding of 16 numbers for each layer."""
    file = two_kinds().put("gemma4.embedding_length_per_layer_input", scalar(U32, 16))
    for index in range(2):
        file.tensor(f"blk.{index}.inp_gate.weight", [HIDDEN, 16]).tensor(f"blk.{index}.proj.weight", [16, HIDDEN])
        file.tensor(f"blk.{index}.post_norm.weight", [HIDDEN])
    file.tensor("per_layer_token_embd.weight", [32, 100]).tensor("per_layer_model_proj.weight", [HIDDEN, 32])
    return file.tensor("per_layer_proj_norm.weight", [16])


def beside() -> Model:
    """With two experts beside the MLP, one of them chosen."""
    file = two_kinds()
    for key, size in {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 32}.items():
        file.put(f"gemma4.{key}", scalar(U32, size))
    for index in range(2):
        shapes = {
            "ffn_gate_inp.weight": [HIDDEN, 2], "ffn_gate_inp.scale": [HIDDEN], "ffn_down_exps.scale": [2],
            "ffn_gate_up_exps.weight": [HIDDEN, 64, 2], "ffn_down_exps.weight": [32, HIDDEN, 2],
            "pre_ffw_norm_2.weight": [HIDDEN], "post_ffw_norm_1.weight": [HIDDEN], "post_ffw_norm_2.weight": [HIDDEN],
        }  # fmt: skip
        for name, shape in shapes.items():
            file.tensor(f"blk.{index}.{name}", shape)
    return file


def four_layers() -> Model:
    """The last two of them use the keys of others, and have MLPs of twice the size."""
    file = windows(two_kinds(), 1, 0, 1, 0).put("gemma4.block_count", scalar(U32, 4))
    for name, value in (("shared_kv_layers", scalar(U32, 2)), ("head_count_kv", numbers(I32, [2, 1, 2, 1]))):
        file.put(f"gemma4.attention.{name}", value)
    for name, (dims, *_) in list(file.tensors.items()):
        if name.startswith("blk.") and "attn_k" not in name and "attn_v" not in name:
            wide = [2 * size if size == INNER else size for size in dims]
            file.tensor(f"blk.{int(name[4]) + 2}{name[5:]}", wide)
    return file.put("gemma4.feed_forward_length", numbers(I32, [INNER, INNER, 2 * INNER, 2 * INNER]))


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
A.accept("A350", "heads of two sizes", lambda: two_kinds().bytes())
A.accept("A351", "embeddings of layers", lambda: inputs().bytes())
A.accept("A352", "experts beside the MLP", lambda: beside().bytes())
A.accept("A353", "layers that use the keys of others", lambda: four_layers().bytes())
A.accept("A354", "the same, with keys that nothing reads", changed(
    lambda m: m.tensor("blk.3.attn_k.weight", [HIDDEN, 32]), four_layers))  # fmt: skip
A.accept("A355", "no factors of rotation", changed(lambda m: m.without("rope_freqs.weight"), two_kinds))
A.accept("A356", "heads of keys of each layer", lambda: heads_of_layers(2, 2)())
A.reject("A357", "heads of keys that differ", "HP_RANGE", lambda: heads_of_layers(2, 1)(), "head_count_kv")
A.reject("A360", "a window everywhere", "HP_RANGE", changed(lambda m: windows(m, 1, 1), two_kinds), "pattern")
A.reject("A361", "a window nowhere", "HP_RANGE", changed(lambda m: windows(m, 0, 0), two_kinds), "pattern")
A.reject("A362", "no list of windows", "HP_TYPE", changed(
    lambda m: m.without("gemma4.attention.sliding_window_pattern"), two_kinds), "pattern")  # fmt: skip
A.reject("A363", "windows of three layers", "HP_TYPE", changed(lambda m: windows(m, 1, 1, 0), two_kinds), "pattern")
A.reject("A364", "no number of experts that are chosen", "HP_MISSING", changed(
    lambda m: m.without("gemma4.expert_used_count"), beside), "expert_used_count")  # fmt: skip
A.reject("A365", "no size of experts", "HP_MISSING", changed(
    lambda m: m.without("gemma4.expert_feed_forward_length"), beside), "expert_feed")  # fmt: skip
A.reject("A366", "keys of a layer that there is none of", "HP_RANGE", kinds("attention.shared_kv_layers", 1), "shared")
A.reject("A367", "keys shared by more layers than there are", "HP_RANGE", kinds("attention.shared_kv_layers", 9),
         "shared")  # fmt: skip
A.reject(
    "A368", "values of another size than keys", "HP_RANGE", kinds("attention.value_length_swa", 32), "value_length"
)
A.reject("A369", "a part of a head rotated", "HP_RANGE", kinds("rope.dimension_count_swa", 8), "dimension_count_swa")
A.reject("A370", "heads of an odd size", "HP_RANGE", changed(lambda m: [
    m.put(f"gemma4.{name}", scalar(U32, 33)) for name in ("attention.key_length", "attention.value_length",
                                                          "rope.dimension_count")], two_kinds), "33")  # fmt: skip
A.reject("A371", "no heads of keys in a layer", "HP_RANGE", kinds("attention.head_count_kv", 0, 1), "head_count_kv")
A.reject("A372", "heads of keys that queries can't share", "HP_RANGE", kinds("attention.head_count_kv", 2, 3), "kv")
A.reject("A373", "heads of keys that differ where windows don't", "HP_RANGE", changed(
    lambda m: m.put("gemma4.attention.head_count_kv", numbers(I32, [2, 1, 4, 1])), four_layers), "kv")  # fmt: skip
A.reject("A374", "heads of keys of three layers", "HP_RANGE", kinds("attention.head_count_kv", 2, 1, 1), "kv")
A.reject("A375", "heads of keys that are fractions", "HP_RANGE", changed(
    lambda m: m.put("gemma4.attention.head_count_kv", numbers(F32, [2, 1])), two_kinds), "kv")  # fmt: skip
A.reject("A376", "heads of keys by name", "HP_RANGE", changed(
    lambda m: m.put("gemma4.attention.head_count_kv", string("two")), two_kinds), "kv")  # fmt: skip
A.reject("A377", "a negative number of heads", "HP_RANGE", kinds("attention.head_count_kv", 2, -1), "kv")
A.reject("A378", "values of their own with fewer heads", "HP_RANGE", changed(
    lambda m: m.tensor("blk.1.attn_v.weight", [HIDDEN, 32]), two_kinds), "head_count_kv")  # fmt: skip
A.reject("A379", "MLPs of sizes that nothing says", "HP_RANGE", kinds("feed_forward_length", 96, 192), "feed_forward")
A.reject("A380", "MLPs of no size", "HP_RANGE", kinds("feed_forward_length", 0, 0), "feed_forward")
A.reject(
    "A381", "MLPs of a size beyond all", "HP_RANGE", kinds("feed_forward_length", 1 << 30, 1 << 30), "feed_forward"
)
A.reject("A382", "pairs that turn a little", "HP_RANGE", changed(
    lambda m: turns(m, 1, 1, *[2.0] * 14), two_kinds), "rope_freqs")  # fmt: skip
A.reject("A383", "no pair that turns", "HP_RANGE", changed(lambda m: turns(m, *[1e30] * 16), two_kinds), "rope_freqs")
A.reject("A384", "pairs that turn behind those that don't", "HP_RANGE", changed(
    lambda m: turns(m, *[1e30] * 14, 1, 1), two_kinds), "rope_freqs")  # fmt: skip
A.reject("A385", "factors of the smaller heads", "SHAPE", changed(lambda m: turns(m, *[1.0] * 8), two_kinds), "rope")
A.reject("A386", "rotation that is scaled", "HP_RANGE", changed(
    lambda m: m.put("gemma4.rope.scaling.type", string("yarn")), two_kinds), "scaling.type")  # fmt: skip
A.reject("A387", "keys of a size that is not said", "HP_MISSING", changed(
    lambda m: m.without("gemma4.attention.key_length_swa"), two_kinds), "key_length_swa")  # fmt: skip
A.reject("A388", "no size of MLPs", "HP_MISSING", changed(
    lambda m: m.without("gemma4.feed_forward_length"), two_kinds), "feed_forward_length")  # fmt: skip
A.reject("A389", "embeddings for one layer", "SHAPE", changed(
    lambda m: m.tensor("per_layer_token_embd.weight", [16, 100]), inputs), "per_layer_token_embd")  # fmt: skip
A.reject("A390", "no embeddings of layers", "TENSOR_MISSING", changed(
    lambda m: m.without("per_layer_token_embd.weight"), inputs), "per_layer_token_embd")  # fmt: skip
A.reject("A391", "embeddings of layers that nothing says", "TENSOR_EXTRA", changed(
    lambda m: m.tensor("per_layer_token_embd.weight", [32, 100]), two_kinds), "per_layer_token_embd")  # fmt: skip
A.reject("A392", "an expert's factor too few", "SHAPE", changed(
    lambda m: m.tensor("blk.0.ffn_down_exps.scale", [1]), beside), "ffn_down_exps.scale")  # fmt: skip
A.reject("A393", "gates without ups", "SHAPE", changed(
    lambda m: m.tensor("blk.0.ffn_gate_up_exps.weight", [HIDDEN, 32, 2]), beside), "gate_up_exps")  # fmt: skip
A.accept("A400", "a layer with a state space", lambda: state_space().bytes())
for _number, (_name, _dims) in enumerate(
    {
        "in.weight": [HIDDEN, 163], "conv1d.weight": [3, 96], "conv1d.bias": [95], "dt.bias": [3], "d": [1, 5],
        "norm.weight": [64, 1], "out.weight": [48, HIDDEN], "a": [4, 2],
    }.items(), 1,
):  # fmt: skip
    A.reject(f"A40{_number}", f"ssm_{_name} of another shape", "SHAPE",
             spaced(lambda m, name=_name, dims=_dims: m.tensor(f"blk.0.ssm_{name}", dims)), _name)  # fmt: skip
A.reject("A410", "a state space without its skip", "TENSOR_MISSING", spaced(lambda m: m.without("blk.0.ssm_d")), "d")
A.reject("A411", "attention as well", "TENSOR_EXTRA",
         spaced(lambda m: m.tensor("blk.0.attn_q.weight", [HIDDEN, HIDDEN])), "attn_q")  # fmt: skip
A.reject("A412", "a decay above 0", "NONFINITE",
         spaced(lambda m: m.tensor("blk.0.ssm_a", [1, 4], data=struct.pack("<4f", -1, -1, 0.5, 1))), "a")  # fmt: skip
A.reject("A413", "a norm of Q8_0", "TENSOR_TYPE",
         spaced(lambda m: m.tensor("blk.0.ssm_norm.weight", [32, 2], TQ8_0, bytes(68))), "ssm_norm")  # fmt: skip
A.reject("A414", "heads that groups can't share", "HP_RANGE",
         spaced(lambda m: m.put("granitehybrid.ssm.group_count", scalar(U32, 3))), "time_step_rank")  # fmt: skip
