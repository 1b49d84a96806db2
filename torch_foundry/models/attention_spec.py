"""What attention has to know of its module, read from the live one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_foundry.models.checks import check_children, check_heads, check_linear, check_norm, inert_in, named, require
from torch_foundry.models.family import Family
from torch_foundry.models.guards import epsilon

PACKED = ("qkv_proj", "query_key_value", "c_attn")  # names of one projection to queries, keys and values


@dataclass(frozen=True)
class AttentionSpec:
    """Facts about one layer's attention."""

    family: Family
    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int  # of a head's values
    value_scale: float  # of values, before they are stored
    scale: float  # of q·k
    rope: bool
    window: int  # 0: none
    softcap: float  # 0: none
    sinks: bool  # whether each head has one
    gates: int  # that a projection of their own gives, in all: one for each head, or for each of its elements; 0: none
    out: str  # name of its last layer
    source: int | None  # the layer whose keys and values it attends to; None: its own
    hands_on: bool  # whether later layers attend to its own

    @property
    def alike(self) -> bool:
        """Whether values are as wide as keys, and are stored as they were projected."""
        return self.value_dim == self.head_dim and self.value_scale == 1


def _window(attn: Any, family: Family) -> int:
    """How many tokens are seen; 0: all."""
    config = attn.config
    everywhere = getattr(config, "sliding_window", None)
    if family.window == "types":
        everywhere = everywhere if config.layer_types[attn.layer_idx] == "sliding_attention" else None
    if family.window == "local":
        everywhere = config.window_size if attn.attention_type == "local" else None
    own = getattr(attn, "sliding_window", None)
    return int({"none": None, "attention": own}.get(family.window, everywhere) or 0)


def _rotates(attn: Any, family: Family, window: int) -> bool:
    """Whether heads are rotated: not in layers without positions, nor in models without any (some hybrids)."""
    rope = getattr(attn.config, "rope_parameters", {})
    thetas = getattr(attn.config, "layer_rope_theta", None)  # 0: such a layer doesn't rotate
    nowhere = rope is None or rope.get("rope_theta", 0) is None or (thetas and not thetas[attn.layer_idx])
    nowhere = nowhere or getattr(attn.config, "position_embedding_type", "rope") != "rope"
    nowhere = nowhere or not family.decoder.rotary
    here = family.full_rotate or window > 0 or (family.window == "types" and not attn.config.sliding_window)
    here = here or bool(getattr(attn, "force_rope", False))
    return bool(getattr(attn, "use_rope", True)) and here and not nowhere


def read_attention(attn: Any, family: Family) -> AttentionSpec:
    """The facts of `attn`. Raises Fallback."""
    config = attn.config
    head_dim, hidden = int(named(attn, "head_dim", "head_size")), int(config.hidden_size)
    per_layer = getattr(config, "num_attention_heads_per_layer", None)
    heads = int(per_layer[attn.layer_idx] if per_layer else config.num_attention_heads)
    processes = getattr(attn, "processes", 1)  # which share them
    groups = int(getattr(attn, "num_key_value_groups", heads // int(getattr(attn, "num_kv_heads", heads))))
    require(heads % processes == 0, f"{heads} heads")
    n_heads = heads // processes
    n_kv_heads = n_heads // groups
    value_dim, value_scale = int(getattr(attn, "v_head_dim", head_dim)), float(getattr(attn, "v_scale", 1.0))
    check_heads(head_dim=head_dim, v_head_dim=value_dim)
    require(value_scale > 0, f"values are multiplied by {value_scale}")
    require(n_heads == n_kv_heads * groups, "heads are not grouped evenly")
    require(attn.is_causal is True, "attention is not causal")

    fused = next((name for name in PACKED if name in attn._modules), "")
    require(family.grouped_rows == (fused == "query_key_value"), f"rows of {fused or 'q_proj'} are in another order")
    source = _source(attn)
    kept = set() if source is not None else {"k"} if family.v_norm and attn.v_proj is None else {"k", "v"}
    projections = {fused} if fused else {"q_proj", *(f"{name}_proj" for name in kept)}
    normed = family.qk_norm != "none" and getattr(attn, "use_qk_norm", True)
    qk_norms = set() if not normed else set(family.head_norms[: 1 + ("k" in kept)])
    v_norms = {"v_norm"} if family.v_norm and kept else set()
    out = next((name for name in ("c_proj", "dense", "out_proj") if name in attn._modules), "o_proj")
    gate = attn._modules.get(family.gate)
    rest = {out, *inert_in(attn, family)} | ({family.gate} if gate is not None else set())
    check_children("self_attn", attn, projections | qk_norms | v_norms | rest)
    sinks = attn._parameters.get("sinks")
    require(sinks is None or tuple(sinks.shape) == (n_heads,), f"sinks are not one for each of {n_heads} heads")
    require(not family.output_gate or family.qk_norm != "full", "an output gate and norms of all heads at once")
    queries = (1 + family.output_gate) * n_heads
    usual = not (fused or gate is not None or family.output_gate or family.v_norm)
    require(usual or value_dim == head_dim, f"values of {value_dim} elements")
    widths = {fused: (queries + 2 * n_kv_heads) * head_dim, "q_proj": queries * head_dim}
    widths |= {"k_proj": n_kv_heads * head_dim, "v_proj": n_kv_heads * value_dim}
    for name in projections:
        check_linear(name, getattr(attn, name), hidden, widths[name])
    check_linear(out, attn._modules[out], n_heads * value_dim, hidden)
    gates = 0
    if gate is not None:
        require(not fused, "a gate beside one projection of queries, keys and values")
        gates = n_heads if getattr(gate, "out_features", 0) == n_heads else n_heads * head_dim
        check_linear(family.gate, gate, hidden, gates)
    for name in qk_norms:
        normed_heads = 1 if family.qk_norm == "head" else n_heads if name == family.head_norms[0] else n_kv_heads
        check_norm(name, getattr(attn, name), family, normed_heads * head_dim)
    require(len({epsilon(getattr(attn, name)) for name in qk_norms}) < 2, "norms of queries and keys differ")
    if v_norms:
        check_norm("v_norm", attn.v_norm, family, 0)
        require(attn.v_norm.eps == attn.q_norm.eps, "norms of queries and values differ")
    factor = float(getattr(attn, "qk_scale_factor", 1.0))  # of queries behind their norm
    window = _window(attn, family)
    return AttentionSpec(
        family=family,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        value_scale=value_scale,
        scale=factor * (family.scale or float(named(attn, "scaling", "inv_norm_factor"))),
        rope=_rotates(attn, family, window),
        window=window,
        softcap=float(attn.attn_logit_softcapping or 0.0) if family.softcap else 0.0,
        sinks=sinks is not None,
        gates=gates,
        out=out,
        source=source,
        hands_on=bool(getattr(attn, "store_full_length_kv", False)),
    )


def _source(attn: Any) -> int | None:
    """The layer whose keys and values `attn` attends to."""
    if not getattr(attn, "is_kv_shared_layer", False):
        return None
    config, kin = attn.config, [i for i, kind in enumerate(attn.config.layer_types) if kind == attn.layer_type]
    if hasattr(config, "kv_sharing_modes"):
        found = [i for i in kin if config.kv_sharing_modes[i] == "store"]
    else:  # transformers before 5.23
        found = [i for i in kin if i < config.num_hidden_layers - config.num_kv_shared_layers][-1:]
    require(len(found) == 1, "keys and values of no single layer")
    return found[0]
