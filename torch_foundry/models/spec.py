"""What the generic fused layer has to know of a decoder layer, read from the live module."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeGuard

from torch import nn

from torch_foundry.core.errors import Fallback
from torch_foundry.models.families import FAMILIES, MIXERS, is_dense_linear, norm_kind
from torch_foundry.models.family import (
    BESIDE,
    MLPS,
    PER_LAYER,
    STREAMS,
    UNGATED,
    Experts,
    Family,
    MLPNames,
    NormRoles,
    class_key,
)
from torch_foundry.models.swap import base_class, has_own_forward
from torch_foundry.nn import FoundryExperts, FoundryLinear
from torch_foundry.nn.activations import BY_TORCH, activation_of, activation_of_experts
from torch_foundry.nn.experts import NAMES, matrices_of, names_of
from torch_foundry.nn.linear import linear_sizes

LEAST_SUM = 1e-12  # of a token's weights: where theirs is less, experts were chosen that all scores say are wrong


@dataclass(frozen=True)
class LayerSpec:
    """Facts about one decoder layer. Weights are not here: they are read from the modules at each call."""

    family: Family
    layer_idx: int
    mixer: str  # the child in which tokens see each other; "": there is none
    kind: Any  # the class that runs it: a `Mixer`
    facts: Any  # what that class read of it
    activation: str
    config: Any  # of the mixer, or of the feed-forward block where there is none; None: it has none
    inner: int  # outputs of gate and of up, of all that a token goes through together
    ffn: str  # name of the feed-forward block; "": there is none, or its layers are the layer's own
    mlp: MLPNames | None  # None: it is a block of experts, or there is none
    outer: MLPNames | None  # of an MLP of the layer's whose result is added to that of experts
    per_layer: bool  # whether it takes an embedding of its own
    beside: bool  # whether there are experts beside the MLP
    residual_scale: float
    gate_scale: float  # of gates, before the activation
    down_scale: float  # of the feed-forward block's result
    norms: NormRoles
    parallel: bool  # whether the feed-forward block sees what attention sees, and not its result

    @property
    def experts(self) -> bool:
        """Whether the feed-forward block is one of experts."""
        return bool(self.ffn) and self.mlp is None


def require(condition: object, why: str) -> None:
    """Raise Fallback with `why` unless `condition` holds."""
    if not condition:
        raise Fallback(why)


def named(module: Any, *names: str) -> Any:
    """What `module` has under one of these names."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether `module` computes x W^T + b from a dense or packed weight, or its transpose, and nothing else."""
    cls = base_class(type(module))
    return cls is FoundryLinear or is_dense_linear(cls)


def _check_plain(layer: nn.Module) -> None:
    for name, module in layer.named_modules():
        require(has_own_forward(module), f"forward of {name or 'the layer'} was replaced")


def check_children(name: str, module: nn.Module, expected: set[str]) -> None:
    """Raise Fallback unless `module`, called `name`, has children of just these names."""
    found = set(module._modules)
    require(found == expected, f"{name} has {sorted(found)}, expected {sorted(expected)}")


def has_norm(layer: nn.Module, name: str | None) -> bool:
    """Whether `layer` has a norm of that role; one that is switched off is an Identity."""
    return name is not None and type(layer._modules[name]) is not nn.Identity


def check_norm(name: str, module: nn.Module, family: Family, size: int) -> None:
    """Raise Fallback unless `module` is a norm of the family, of `size` elements."""
    require(norm_kind(module) == family.norm_kind, f"{name} is a {type(module).__name__}")
    shapes = {tuple(parameter.shape) for parameter in module.parameters()}
    shapes |= {tuple(getattr(module, "normalized_shape", (size,)))}
    require(shapes == {(size,)}, f"{name} has no weight of {size} elements")


def inert_in(module: nn.Module, family: Family) -> list[str]:
    """Names of those children of `module` that do nothing outside of training. Raises Fallback if they might."""
    names = sorted(family.inert & module._modules.keys())
    for name in names:
        kind = type(module._modules[name])
        require(kind in (nn.Dropout, nn.Identity), f"{name} is a {kind.__name__}")
    return names


def check_linear(name: str, module: nn.Module, in_features: int, out_features: int) -> None:
    """Raise Fallback unless `module` is a linear layer of these sizes."""
    require(is_linear(module), f"{name} is a {type(module).__name__}")
    found = linear_sizes(module)
    require(found == (in_features, out_features), f"{name} maps {found}, expected {(in_features, out_features)}")


def _check_mlp(
    name: str, mlp: Any, hidden: int, family: Family, beside: Collection[str] = ()
) -> tuple[str, MLPNames, int]:
    """The name of its activation, those of its layers, and how many outputs gate and up have. beside: more children."""
    rest = {*beside, *inert_in(mlp, family)}
    names = next((known for known in MLPS if known.children() == mlp._modules.keys() - rest), MLPS[0])
    check_children(name, mlp, names.children() | rest)
    down = mlp._modules[names.down]
    require(is_linear(down), f"{names.down} is a {type(down).__name__}")
    inner, _ = linear_sizes(down)
    outputs = 2 * inner if names.gated and len(names.first) == 1 else inner
    for first in names.first:
        check_linear(first, mlp._modules[first], hidden, outputs)
    check_linear(names.down, down, inner, hidden)
    if not names.activation:
        return "silu", names, inner
    module = mlp._modules[names.activation]
    activation = _known_activation(module)
    if activation == "xielu":
        require(not names.gated, "xIELU of a gate")
        require(module.beta.dtype == module.eps.dtype == module.alpha_p.dtype, "xIELU has numbers of several dtypes")
    return activation, names, inner


def _known_activation(module: nn.Module) -> str:
    name = activation_of(module)
    if name is None:
        raise Fallback(f"activation {type(module).__name__}")
    return name


def _check_experts(block: Any, family: Family, kind: Experts, hidden: int) -> tuple[str, int]:
    """The name of the activation, and how wide a token's experts are together."""
    shared = block._modules.get(kind.shared)
    beside = {kind.shared, kind.shared_gate} if shared else set()
    check_children("mlp", block, {"experts", kind.router, *beside, *kind.latent} - {""})
    experts, correction, rule = block.experts, kind.correction_of(block), kind.rule(block)
    seen = hidden
    if latent := kind.latent_of(block):
        into, back = kind.latent
        seen = getattr(latent[0], "out_features", 0)
        for name, module, sizes in ((into, latent[0], (hidden, seen)), (back, latent[-1], (seen, hidden))):
            check_linear(name, module, *sizes)
        require(getattr(experts, "group", None) is None, "experts that see a projection are shared between processes")
    count, chosen = int(experts.num_experts), rule["k"]
    require(tuple(kind.matrix_of(block).weight.shape) == (count, hidden), f"the router is not one of {count} experts")
    require(kind.fits(rule, count), f"{chosen} of {count} experts in {rule.get('groups', 1)} groups")
    method = getattr(getattr(block, kind.router), "topk_method", None)  # of DeepSeek V2
    require(method in (None, "greedy", "group_limited_greedy"), f"routing by {method}")
    least = attrgetter(kind.least)(block) if kind.least else 0.0
    require(least <= LEAST_SUM, f"weights whose sum is less than {least} are divided by that")
    require(correction is None or tuple(correction.shape) == (count,), f"corrections are not of {count} experts")
    if not isinstance(experts, FoundryExperts):
        require(class_key(type(experts)) == family.key("Experts"), f"experts is a {type(experts).__name__}")
        shapes = [tuple(matrix.shape) for matrix in matrices_of(experts)]
        inner = shapes[0][1]
        expected = [(count, inner, seen)] * (len(shapes) - 1) + [(count, seen, inner)]
        require(shapes == expected, f"experts have the shapes {shapes}")
        spread = getattr(experts, "_is_expert_parallel", False)
        require(not spread, "experts are spread over several processes")
    activation = activation_of_experts(experts)
    if activation is None:
        raise Fallback(f"activation of {type(experts).__name__}")
    inner, gated = matrices_of(experts)[0].shape[1], names_of(experts) == NAMES
    require(gated or activation in BY_TORCH, f"experts with {activation} and without a gate")
    width = chosen * inner
    if shared is not None:
        *found, wide = _check_mlp(kind.shared, shared, hidden, family)
        require(found == [activation, MLPS[0] if gated else UNGATED], f"the shared expert is one of {found}")
        if kind.shared_gate:
            check_linear(kind.shared_gate, getattr(block, kind.shared_gate), hidden, 1)
        parts = (shared, block._modules.get(kind.shared_gate))
        for linear in (m for part in parts if part is not None for m in part.modules() if is_linear(m)):
            require(linear.bias is None, "the shared expert has biases")
            require(getattr(linear, "order", None) is None, "columns of the shared expert are in an order of their own")
        width += wide
    return activation, width


def _mixer_of(layer: nn.Module, family: Family) -> tuple[str, Any]:
    """The child in which tokens see each other, and the class that runs it; by default attention, or none."""
    if family.mixer and class_key(base_class(type(layer._modules.get("self_attn")))) == family.key("Attention"):
        return "self_attn", MIXERS[family.mixer]
    for name, child in layer.named_children():
        for suffix, mixer in MIXERS.items():
            if class_key(base_class(type(child))) == family.key(suffix):
                return name if "attention" not in child._modules else f"{name}.attention", mixer
    return ("", None) if family.alone else ("self_attn", MIXERS["Attention"])


def build_spec(layer: Any) -> LayerSpec:
    """The spec of `layer`. Raises Fallback; never changes anything."""
    cls = base_class(type(layer))
    family = FAMILIES.get(class_key(cls))
    if family is None:
        raise Fallback(f"{cls.__name__} of {cls.__module__} is not a known decoder layer")
    _check_plain(layer)
    child, mixer = _mixer_of(layer, family)
    outermost = child.partition(".")[0]  # GPT-Neo's is around one of several classes
    require(not child or outermost in layer._modules, f"{cls.__name__} has no attention that is known")
    kind, ffn = family.experts, "" if family.alone and child else family.ffn
    outer = kind.outer if kind is not None and kind.outer in layer._modules else ""
    if outer and ffn not in layer._modules:
        ffn, outer = outer, ""
    mlp, first = layer._modules.get(ffn), layer.get_submodule(child or ffn)  # the one that tells its sizes
    mlp = mlp if family.ffn else layer
    config = getattr(first, "config", None)
    norms, parallel = family.norms, family.parallel
    parallel = bool(getattr(config, parallel) if isinstance(parallel, str) else parallel)
    if parallel and norms.pre_ffn not in layer._modules:
        norms = replace(norms, pre_ffn=norms.pre_attn)
    beside = kind is not None and kind.beside and bool(layer.enable_moe_block)
    per_layer = family.per_layer_inputs and bool(layer.hidden_size_per_layer_input)
    parts = (PER_LAYER if per_layer else frozenset()) | (BESIDE if beside else frozenset())
    parts |= STREAMS if family.streams else frozenset()
    inert, others = inert_in(layer, family), mixer.children if child else ()
    children = {outermost, *others, ffn, outer, *norms.names(), *inert, *parts} - {""}
    if family.ffn:
        check_children(cls.__name__, layer, children)
    hidden = int((first if config is None else config).hidden_size)
    facts = mixer.read(layer if mixer.children else first, family) if child else None
    for name in norms.names():
        if has_norm(layer, name):
            check_norm(name, getattr(layer, name), family, hidden)
    for name in family.unset:
        require(not getattr(config, name, None), f"config.{name} is set")
    for name in family.needed:
        require(getattr(config, name), f"config.{name} is not set")

    routed = kind is not None and not kind.beside and class_key(type(mlp)) == family.key(kind.block)
    activation, inner = "", 0
    names: MLPNames | None = None
    beyond: MLPNames | None = None
    if kind is not None and routed:
        activation, inner = _check_experts(mlp, family, kind, hidden)
        if outer:
            other, beyond, wide = _check_mlp(outer, layer._modules[outer], hidden, family)
            require(beyond.gated and other == activation, f"{outer} is not an MLP as the experts are")
            inner += wide
    elif ffn or not family.ffn:
        beside_it, name = ((), "mlp") if family.ffn else (children, cls.__name__)
        activation, names, inner = _check_mlp(name, mlp, hidden, family, beside_it)

    residual_scale = float(layer.residual_multiplier) if family.residual_multiplier else 1.0
    scales = (float(mlp.gate_multiplier), float(mlp.down_multiplier)) if family.multipliers else (1.0, 1.0)
    require(not family.multipliers or (names is not None and names.gated), "multipliers of a block without a gate")
    behind = has_norm(layer, norms.post_ffn)
    require(residual_scale == 1.0 or not behind, "a residual multiplier and norms behind the blocks")
    return LayerSpec(
        family=family,
        layer_idx=int(named(first if child else layer, "layer_idx", "layer_id")),
        mixer=child,
        kind=mixer,
        facts=facts,
        activation=activation,
        config=config,
        inner=inner,
        ffn=ffn,
        mlp=names,
        outer=beyond,
        per_layer=per_layer,
        beside=beside,
        residual_scale=residual_scale,
        gate_scale=scales[0],
        down_scale=scales[1],
        norms=norms,
        parallel=parallel,
    )


def known_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of `model` that are understood."""
    layers = []
    for module in model.modules():
        with contextlib.suppress(Fallback, AttributeError):
            if class_key(base_class(type(module))) in FAMILIES:
                build_spec(module)
                layers.append(module)
    return layers
