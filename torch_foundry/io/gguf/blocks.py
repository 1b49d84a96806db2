"""Blocks with sizes of their own: which of them see a window alone, Gemma 4's, whose heads have two sizes,
Nemotron-H's, which are a mixer or a feed-forward block, and those with multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_foundry.io.gguf.keys import elements

PATTERN, ROTATED, SHARED_KV = "attention.sliding_window_pattern", "attention.rope_pattern", "attention.shared_kv_layers"
GROWTH, GROWTH_FROM = "attention.temperature_scale", "attention.temperature_length"
RANK, KEY, YARN = "attention.kv_lora_rank", "attention.key_length", "rope.scaling.yarn_log_multiplier"
_MOST = 1 << 24  # of such numbers
_FULL, _WINDOW = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Blocks:
    """What a file says of its blocks. Sizes are by the letters of slots' shapes."""

    sizes: list[dict[str, int]]  # of each, where they aren't the model's
    fields: dict[str, Any] = field(default_factory=dict)  # of the config
    common: dict[str, int] = field(default_factory=dict)  # sizes of the model


def alike(model: Any) -> Blocks:
    """Nothing besides what keys say of all."""
    return Blocks([{}] * model.layers)


def head_sizes(heads: int, kv_heads: int, head: int) -> dict[str, int]:
    """Of attention, by the letters of slots' shapes."""
    return {"A": heads, "Q": heads * head, "G": kv_heads, "K": kv_heads * head, "D": head}


def state_sizes(keys: int, key: int, heads: int, value: int) -> dict[str, int]:
    """Of a recurrent state with so many key heads, and value heads, of these sizes."""
    inner = heads * value
    sizes = {"G": keys, "N": key, "B": heads, "U": value, "Z": inner}
    return sizes | {"M": inner // keys, "C": 2 * keys * key + inner}


def layer_types(model: Any) -> list[str]:
    """Which layers of a GgufModel see a window alone: as the file lists it, or all but every n-th."""
    count, found = model.layers, model.values.get(PATTERN)
    if not model.values["attention.sliding_window"]:
        return [_FULL] * count
    period: Any = model.architecture.pattern if found is None else found
    if type(period) is int and period > 0:
        local = [bool((index + 1) % period) for index in range(count)]
    else:
        local = _of_each(model, PATTERN, f"every which layer sees all, or {count} truth values")
    types = [_WINDOW if here else _FULL for here in local]
    shared = model.values.get(SHARED_KV) or 0
    if set(types[: max(0, count - shared)]) != set(types):
        raise model.fail("HP_RANGE", SHARED_KV, "as many as leave a block of each kind whose keys are shared", shared)
    return types


def rotated(model: Any) -> list[bool]:
    """Which layers rotate their heads, where a file may say so."""
    if model.values[ROTATED] is None:
        return [True] * model.layers
    return _of_each(model, ROTATED, f"{model.layers} truth values")


def _of_each(model: Any, name: str, expected: str) -> list[bool]:
    found = model.values[name]
    listed: list[bool] = elements(found, model.layers)
    if set(map(type, listed)) != {bool}:
        raise model.fail("HP_TYPE", name, expected, repr(found)[:80])
    return listed


def of_each_block(model: Any, name: str) -> list[int]:
    """A number for each block, of which a file may have one for all."""
    found, count = model.values[name], model.values["block_count"]
    listed = elements(found, count) or [found] * count
    if set(map(type, listed)) != {int} or min(listed) < 0 or max(listed) > _MOST:
        raise model.fail("HP_RANGE", name, f"a number, or one for each of {count} blocks", str(found)[:80])
    return listed


def two_kinds(model: Any) -> Blocks:
    """Those with a window have heads of another size than those without.

    In `model.values` remains what blocks with a window have. LoadError HP_RANGE, HP_TYPE.
    """
    values, count, types = model.values, model.layers, layer_types(model)
    if types[-1] != _FULL or _WINDOW not in types:
        raise model.fail("HP_RANGE", PATTERN, "blocks with a window, and a last one without", ", ".join(types)[:80])
    for name in ("expert_used_count", "expert_feed_forward_length"):
        if values["expert_count"] and values[name] is None:
            raise model.fail("HP_MISSING", name, "an integer", "none")
    heads, shared = values["attention.head_count"], values[SHARED_KV]
    sizes, keys = {}, of_each_block(model, "attention.head_count_kv")
    for kind, suffix in ((_WINDOW, "_swa"), (_FULL, "")):
        size = values[f"attention.key_length{suffix}"]
        for name in (f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"):
            if values[name] not in (None, size):
                raise model.fail("HP_RANGE", name, f"{size}, as keys have", values[name])
        own = {keys[index] for index in range(count) if types[index] == kind}
        if size % 2 or len(own) > 1 or not min(own) or heads % min(own):
            expected = f"an even size of heads, and a divisor of {heads}"
            raise model.fail("HP_RANGE", "attention.head_count_kv", expected, f"{size}, {sorted(own)}"[:80])
        sizes[kind] = size, own.pop()
    inner = of_each_block(model, "feed_forward_length")
    wide = shared > 0 and inner[-1] == 2 * inner[0]
    if not inner[0] or inner != [inner[0] * (1 + (wide and index >= count - shared)) for index in range(count)]:
        expected = "one number, or twice that where keys are shared"
        raise model.fail("HP_RANGE", "feed_forward_length", expected, str(inner)[:80])
    same = f"blk.{types.index(_FULL)}.attn_v.weight" not in model.tensors
    if not same and sizes[_FULL][1] != sizes[_WINDOW][1]:
        expected = f"{sizes[_WINDOW][1]}, as blocks with a window have, or values that are keys"
        raise model.fail("HP_RANGE", "attention.head_count_kv", expected, sizes[_FULL][1])
    blocks = []
    for index, kind in enumerate(types):
        size, own_heads = sizes[kind]
        rows = 0 if index >= count - shared else own_heads * size
        of_values = 0 if same and kind == _FULL else rows
        blocks.append({"D": size, "Q": heads * size, "K": rows, "W": of_values, "F": inner[index]})
    values |= {"attention.head_count_kv": sizes[_WINDOW][1], "feed_forward_length": inner[0]}
    values |= {"attention.key_length": sizes[_WINDOW][0], "attention.value_length": None, "rope.dimension_count": None}
    fields = {
        "layer_types": types,
        "intermediate_size": inner[0],
        "global_head_dim": sizes[_FULL][0],
        "attention_k_eq_v": same,
        "num_global_key_value_heads": sizes[_FULL][1] if sizes[_FULL][1] != sizes[_WINDOW][1] else None,
        "use_double_wide_mlp": wide,
        "enable_moe_block": bool(values["expert_count"]),
    }
    if rows := model.container.rows("per_layer_token_embd.weight"):
        fields["vocab_size_per_layer_input"] = rows
    return Blocks(blocks, fields, {"R": sizes[_FULL][0]})


def alone(model: Any) -> Blocks:
    """Each is one of the kinds of `Architecture.alone`: the letters of all others are 0.

    In `model.values` remains the feed-forward length of blocks that have one. LoadError HP_RANGE.
    """
    keys, inner = (of_each_block(model, name) for name in ("attention.head_count_kv", "feed_forward_length"))
    keys, inner = keys[: model.layers], inner[: model.layers]
    state, attention, feed_forward = model.architecture.alone
    if any(map(min, zip(keys, inner, strict=True))) or len(set(inner) - {0}) > 1:
        expected = "one number, and 0 in blocks with attention or a state space"
        raise model.fail("HP_RANGE", "feed_forward_length", expected, str(inner)[:80])
    none = {"A": 0, "Z": 0, "F": 0, "E": 0, "I": 0}
    types, blocks = [], []
    for heads, width in zip(keys, inner, strict=True):
        kind, letters = (attention, "A") if heads else (feed_forward, "FEI") if width else (state, "Z")
        types.append(kind)
        blocks.append({letter: size for letter, size in none.items() if letter not in letters})
    size = model.values["feed_forward_length"] = max(inner) or 1
    seen = model.values.get("moe_latent_size") or None
    return Blocks(blocks, {"layers_block_type": types, "intermediate_size": size, "moe_latent_size": seen})


def latent(model: Any) -> Blocks:
    """They have multi-head latent attention and are alike, but for those with a recurrent state.

    Files say the sizes of heads, or, since keys and values are made by two tensors, those of latents, and of heads by
    keys of their own. In `model.values` remains the size of what is rotated. LoadError HP_RANGE, HP_MISSING.
    """
    values = model.values
    rank, heads, rotated = (values[name] for name in (RANK, "attention.head_count", "rope.dimension_count"))
    key, value = values["attention.key_length"], values["attention.value_length"]
    hybrid = bool(model.architecture.recurrent)
    if hybrid:  # llama.cpp's converter says another number
        value = rank
    if values[f"{KEY}_mla"] is not None:
        for name, found, expected in (("key", key, rank + rotated), ("value", value, rank)):
            if found != expected:
                raise model.fail("HP_RANGE", f"attention.{name}_length", f"{expected}, the size of latents", found)
        key, value = values[f"{KEY}_mla"], values["attention.value_length_mla"]
        if value is None:
            raise model.fail("HP_MISSING", "attention.value_length_mla", "an integer", "none")
    if key <= rotated:
        raise model.fail("HP_RANGE", "rope.dimension_count", f"less than a key's {key}", rotated)
    if values["rope.scaling.type"] == "yarn" and values[YARN] is None:
        raise model.fail("HP_MISSING", YARN, "a floating-point number", "none")
    if GROWTH in values:
        original = values["rope.scaling.original_context_length"] or values["context_length"]
        if values["rope.scaling.type"] != "yarn":
            expected = "'yarn', where queries grow with their positions"
            raise model.fail("HP_RANGE", "rope.scaling.type", expected, repr(values["rope.scaling.type"])[:80])
        if values[GROWTH_FROM] not in (None, original):
            raise model.fail("HP_RANGE", GROWTH_FROM, f"{original}, the original context length", values[GROWTH_FROM])
    queries, hidden, rows = values["attention.q_lora_rank"], values["embedding_length"], heads * (key - rotated + value)
    joined = any(name.endswith(".attn_kv_b.weight") for name in model.tensors)
    letters = {"L": rank, "I": queries or 0, "J": 0 if queries else hidden, "Q": heads * key, "O": heads * value}
    letters |= {"N": key - rotated, "U": value, "B": 0 if joined else rows, "W": rows if joined else 0}
    values |= {KEY: rotated, "attention.value_length": None}
    fields = {"num_key_value_heads": heads, "qk_nope_head_dim": key - rotated, "v_head_dim": value}
    if GROWTH in values:
        fields["head_dim"] = key
    if model.architecture.config == "DeepseekV2Config":
        fields["topk_method"] = "group_limited_greedy" if values["expert_group_count"] > 1 else "greedy"
    if not hybrid:
        return Blocks([letters] * model.layers, fields)
    of_state = {"N": values["kda.head_dim"], "B": heads, "Z": heads * values["kda.head_dim"]}
    of_state |= {"T": values["ssm.conv_kernel"]}
    kinds = of_each_block(model, "attention.head_count_kv")[: model.layers]
    return Blocks([letters if keys else of_state for keys in kinds], fields | {"linear_num_heads": heads})


def said_of_blocks(config: Any, architecture: Any, joined: bool) -> dict[str, Any]:
    """The inverse: hyperparameters by their keys. joined: keys and values of latents are made by one tensor."""
    if architecture.blocks == "latent":
        return _said_of_latent(config, joined)
    if architecture.blocks == "alone":
        return _said_of_alone(config, architecture)
    return said_of_two_kinds(config) if architecture.blocks == "two_kinds" else {}


def _said_of_latent(config: Any, joined: bool) -> dict[str, Any]:
    rank, rotated, value = config.kv_lora_rank, config.qk_rope_head_dim, config.v_head_dim
    key = config.qk_nope_head_dim + rotated
    dense = {}
    if hasattr(config, "linear_num_heads"):
        dense = {"leading_dense_block_count": leading_dense(config)}
    elif not hasattr(config, "n_routed_experts"):  # which llama.cpp wants to be told of, all the same
        dense = {"leading_dense_block_count": config.num_hidden_layers, "expert_shared_count": 0}
        dense["expert_feed_forward_length"] = config.intermediate_size
    if joined:
        said = {"attention.head_count_kv": config.num_attention_heads, KEY: key, "attention.value_length": value}
        return said | dense
    said = {"attention.head_count_kv": 1, KEY: rank + rotated, "attention.value_length": rank} | dense
    return said | {f"{KEY}_mla": key, "attention.value_length_mla": value}


def leading_dense(config: Any, field: str = "first_k_dense_replace") -> int:
    """How many of the first blocks have no experts."""
    kinds = [*(getattr(config, "mlp_layer_types", None) or ()), "sparse"]
    return int(getattr(config, field, kinds.index("sparse")))


def _said_of_alone(config: Any, architecture: Any) -> dict[str, Any]:
    _, attention, feed_forward = architecture.alone
    width = getattr(config, architecture.expert_size if feed_forward == "moe" else "intermediate_size")
    return {
        "attention.head_count_kv": [config.num_key_value_heads * (kind == attention) for kind in config.layer_types],
        "feed_forward_length": [width * (kind == feed_forward) for kind in config.layer_types],
        "moe_latent_size": config.moe_latent_size,
    }


def head_dim(config: Any) -> int:
    """Of attention; of blocks with a window, if others have other heads."""
    return int(config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads)


def said_of_two_kinds(config: Any) -> dict[str, Any]:
    """Of `two_kinds`: hyperparameters by their keys."""
    layers = [config.per_layer_config[index] for index in range(config.num_hidden_layers)]
    full = layers[config.layer_types.index(_FULL)].head_dim
    first = config.num_hidden_layers - config.num_kv_shared_layers
    inner = config.intermediate_size
    wide = config.use_double_wide_mlp and first < config.num_hidden_layers
    return {
        "attention.head_count_kv": [layer.num_key_value_heads for layer in layers],
        "feed_forward_length": [inner * (1 + (index >= first)) for index in range(len(layers))] if wide else inner,
        **{f"attention.{name}_length": full for name in ("key", "value")},
        **{f"attention.{name}_length_swa": head_dim(config) for name in ("key", "value")},
        "rope.dimension_count_swa": head_dim(config),
    }
