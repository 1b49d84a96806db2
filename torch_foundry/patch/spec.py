"""A decoder layer as the generic fused layer sees it, read off the live module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import nn

from torch_foundry.nn.linear import FoundryLinear
from torch_foundry.patch.families import ACTIVATIONS, FAMILIES, NORMS, PRE, Family, class_key
from torch_foundry.patch.swap import base_class

HEAD_DIMS = range(32, 257, 16)  # that ops.attention is built for


class Unsupported(Exception):
    """A module that is not (fully) understood; the text says why. Nothing has been changed."""


@dataclass(frozen=True)
class LayerSpec:
    """Facts about one decoder layer. Weights are not here: they are read from the modules at each call."""

    family: Family
    layer_idx: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float  # of q·k
    activation: str
    rope: bool
    window: int  # 0: none
    softcap: float  # 0: none
    residual_scale: float


def require(condition: object, why: str) -> None:
    """Raise Unsupported with `why` unless `condition` holds."""
    if not condition:
        raise Unsupported(why)


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether `module` computes x W^T + b from a dense or packed weight, and nothing else."""
    return base_class(type(module)) in (nn.Linear, FoundryLinear)


def norm_kind(module: nn.Module) -> str | None:
    """How an RMS norm rounds (as in ops.rms_norm); None if it is not a norm that is known."""
    return NORMS.get(class_key(base_class(type(module))))


def _check_plain(layer: nn.Module) -> None:
    for name, module in layer.named_modules():
        require("forward" not in module.__dict__, f"forward of {name or 'the layer'} was replaced on the instance")


def _check_children(name: str, module: nn.Module, expected: set[str]) -> None:
    found = set(module._modules)
    require(found == expected, f"{name} has {sorted(found)}, expected {sorted(expected)}")


def _check_norm(name: str, module: nn.Module, family: Family, size: int) -> None:
    require(norm_kind(module) == family.norm_kind, f"{name} is a {type(module).__name__}")
    weight = module._parameters.get("weight")
    require(weight is not None and tuple(weight.shape) == (size,), f"{name} has no weight of {size} elements")


def _check_linear(name: str, module: nn.Module, in_features: int, out_features: int) -> None:
    require(is_linear(module), f"{name} is a {type(module).__name__}")
    found = (module.in_features, module.out_features)
    require(found == (in_features, out_features), f"{name} maps {found}, expected {(in_features, out_features)}")
    require(getattr(module, "order", None) is None, f"the columns of {name} are stored in an order of their own")


def build_spec(layer: Any) -> LayerSpec:
    """The spec of `layer`. Raises Unsupported; never changes anything."""
    cls = base_class(type(layer))
    family = FAMILIES.get(class_key(cls))
    if family is None:
        raise Unsupported(f"{cls.__name__} of {cls.__module__} is not a known decoder layer")
    _check_plain(layer)
    _check_children(cls.__name__, layer, {"self_attn", "mlp", *family.norms.names(), *family.inert})
    attn, mlp, config = layer.self_attn, layer.mlp, layer.self_attn.config

    head_dim, hidden = int(attn.head_dim), int(config.hidden_size)
    n_heads, n_kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
    require(head_dim in HEAD_DIMS, f"head_dim {head_dim} is not a multiple of 16 from 32 to 256")
    require(n_heads == n_kv_heads * attn.num_key_value_groups, "heads are not grouped evenly")
    require(attn.is_causal is True, "attention is not causal")

    fused_qkv = "qkv_proj" in attn._modules
    projections = {"qkv_proj"} if fused_qkv else {"q_proj", "k_proj", "v_proj"}
    qk_norms = set() if family.qk_norm == "none" else {"q_norm", "k_norm"}
    _check_children("self_attn", attn, projections | qk_norms | {"o_proj"})
    widths = {"qkv_proj": n_heads + 2 * n_kv_heads, "q_proj": n_heads, "k_proj": n_kv_heads, "v_proj": n_kv_heads}
    for name in projections:
        _check_linear(name, getattr(attn, name), hidden, widths[name] * head_dim)
    _check_linear("o_proj", attn.o_proj, n_heads * head_dim, hidden)
    for name in qk_norms:
        heads = 1 if family.qk_norm == "head" else n_heads if name == "q_norm" else n_kv_heads
        _check_norm(name, getattr(attn, name), family, heads * head_dim)
    for name in family.norms.names():
        _check_norm(name, getattr(layer, name), family, hidden)

    fused_gate_up = "gate_up_proj" in mlp._modules
    act_name = "activation_fn" if "activation_fn" in mlp._modules else "act_fn"
    gates = {"gate_up_proj"} if fused_gate_up else {"gate_proj", "up_proj"}
    _check_children("mlp", mlp, gates | {"down_proj", act_name})
    inner = int(config.intermediate_size)
    for name in gates:
        _check_linear(name, getattr(mlp, name), hidden, 2 * inner if fused_gate_up else inner)
    _check_linear("down_proj", mlp.down_proj, inner, hidden)
    activation = ACTIVATIONS.get(class_key(type(getattr(mlp, act_name))))
    if activation is None:
        raise Unsupported(f"activation {type(getattr(mlp, act_name)).__name__}")

    window = {"none": None, "config": getattr(config, "sliding_window", None)}.get(
        family.window, getattr(attn, "sliding_window", None)
    )
    residual_scale = float(layer.residual_multiplier) if family.residual_multiplier else 1.0
    require(residual_scale == 1.0 or family.norms == PRE, "a residual multiplier and norms behind the blocks")
    return LayerSpec(
        family=family,
        layer_idx=int(attn.layer_idx),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        scale=float(attn.scaling),
        activation=activation,
        rope=bool(getattr(attn, "use_rope", True)),
        window=int(window or 0),
        softcap=float(attn.attn_logit_softcapping or 0.0) if family.softcap else 0.0,
        residual_scale=residual_scale,
    )
