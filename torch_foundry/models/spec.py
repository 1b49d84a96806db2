"""What the fused layer has to know of a decoder layer, read from the live module. Weights are not here: they are looked
up at each call."""

from __future__ import annotations

import contextlib
from dataclasses import astuple, dataclass, replace
from typing import Any

from torch import nn

from torch_foundry.core.errors import Fallback
from torch_foundry.models.altup import StreamBlock
from torch_foundry.models.checks import check_children, check_norm, inert_in, named, require
from torch_foundry.models.families import FAMILIES, MIXERS
from torch_foundry.models.family import Family, NormRoles, class_key
from torch_foundry.models.mlp import MLPSpec, read_mlp
from torch_foundry.models.moe import ExpertsSpec, read_experts
from torch_foundry.models.parallel_experts import ParallelExperts
from torch_foundry.models.per_layer import PerLayerBlock
from torch_foundry.models.swap import base_class, has_own_forward


@dataclass(frozen=True)
class MixerSpec:
    """The child of a layer in which tokens see each other."""

    name: str
    kind: Any  # the class that runs it: a `Mixer`
    facts: Any  # what that class read of it


@dataclass(frozen=True)
class LayerSpec:
    """Facts about one decoder layer."""

    family: Family
    layer_idx: int
    config: Any  # of the mixer, or of the feed-forward block where there is none; None: it has none
    norms: NormRoles  # those that it has
    mixer: MixerSpec | None
    ffn: MLPSpec | ExpertsSpec | None
    parallel: bool  # whether the feed-forward block sees what attention sees, and not its result
    beside: bool  # whether there are experts beside the MLP
    per_layer: bool  # whether it takes an embedding of its own
    streams: bool  # whether it is around one of several residual streams (`altup.py`)
    residual_scale: float

    @property
    def inner(self) -> int:
        """As of `ffn`; 0: there is none."""
        return 0 if self.ffn is None else self.ffn.inner


def _mixer_of(layer: nn.Module, family: Family) -> tuple[str, Any]:
    """The child in which tokens see each other, and the class that runs it; by default attention, or none."""
    if family.mixer and class_key(type(layer._modules.get("self_attn"))) == family.key("Attention"):
        return "self_attn", MIXERS[family.mixer]
    for name, child in layer.named_children():
        for suffix, mixer in MIXERS.items():
            if class_key(type(child)) == family.key(suffix):
                return name if "attention" not in child._modules else f"{name}.attention", mixer
    return ("", None) if family.alone else ("self_attn", MIXERS["Attention"])


def _ffn_of(layer: nn.Module, family: Family, mixer: str) -> tuple[str, str]:
    """The child that is the feed-forward block, and that of an MLP whose result is added to that of experts; "": there
    is none, or its layers are the layer's own."""
    ffn = "" if family.alone and mixer else family.ffn
    outer = family.experts.outer if family.experts is not None else ""
    if outer not in layer._modules:
        return ffn, ""
    return (ffn, outer) if ffn in layer._modules else (outer, "")


def _read_ffn(layer: nn.Module, name: str, outer: str, hidden: int, family: Family) -> MLPSpec | ExpertsSpec:
    block: Any = layer._modules[name]
    if family.experts is None or class_key(type(block)) != family.key(family.experts.block):
        return read_mlp(name, block, hidden, family)
    added = read_mlp(outer, layer._modules[outer], hidden, family) if outer else None
    return read_experts(name, block, hidden, family, added)


def _read_norms(layer: nn.Module, roles: NormRoles, hidden: int, family: Family) -> NormRoles:
    """Those of `roles` that the layer has: one that is switched off is an Identity."""
    names = (name if name and type(layer._modules[name]) is not nn.Identity else None for name in astuple(roles))
    norms = NormRoles(*names)
    for name in norms.names():
        check_norm(name, getattr(layer, name), family, hidden)
    return norms


def build_spec(layer: Any) -> LayerSpec:
    """The spec of `layer`. Raises Fallback; never changes anything."""
    cls = base_class(type(layer))
    family = FAMILIES.get(class_key(cls))
    if family is None:
        raise Fallback(f"{cls.__name__} of {cls.__module__} is not a known decoder layer")
    for name, module in layer.named_modules():
        require(has_own_forward(module), f"forward of {name or 'the layer'} was replaced")
    child, kind = _mixer_of(layer, family)
    outermost = child.partition(".")[0]  # GPT-Neo's is around one of several classes
    require(not child or outermost in layer._modules, f"{cls.__name__} has no attention that is known")
    ffn, outer = _ffn_of(layer, family, child)
    first = layer.get_submodule(child or ffn)  # the one that tells its sizes
    config = getattr(first, "config", None)
    parallel = bool(getattr(config, family.parallel) if isinstance(family.parallel, str) else family.parallel)
    roles = family.norms
    if parallel and roles.pre_ffn not in layer._modules:
        roles = replace(roles, pre_ffn=roles.pre_attn)
    beside = family.experts is not None and family.experts.beside and bool(layer.enable_moe_block)
    per_layer, streams = bool(getattr(layer, "hidden_size_per_layer_input", 0)), "altup" in layer._modules
    require(per_layer or not streams, "streams without embeddings of layers")
    children = {outermost, ffn, outer, *roles.names(), *inert_in(layer, family)} - {""}
    more = ((child, kind), (beside, ParallelExperts), (per_layer, PerLayerBlock), (streams, StreamBlock))
    children.update(*(part.children for has_it, part in more if has_it))
    if family.ffn:
        check_children(cls.__name__, layer, children)
    hidden = int((first if config is None else config).hidden_size)
    mixer = MixerSpec(child, kind, kind.read(layer if kind.children else first, family)) if child else None
    norms = _read_norms(layer, roles, hidden, family)
    for name in family.unset:
        require(not getattr(config, name, None), f"config.{name} is set")
    for name in family.needed:
        require(getattr(config, name), f"config.{name} is not set")
    residual_scale = float(getattr(layer, "residual_multiplier", 1.0))
    require(residual_scale == 1.0 or norms.post_ffn is None, "a residual multiplier and norms behind the blocks")
    own = read_mlp(cls.__name__, layer, hidden, family, children) if not family.ffn else None
    return LayerSpec(
        family=family,
        layer_idx=int(named(first if child else layer, "layer_idx", "layer_id")),
        config=config,
        norms=norms,
        mixer=mixer,
        ffn=_read_ffn(layer, ffn, outer, hidden, family) if ffn else own,
        parallel=parallel,
        beside=beside,
        per_layer=per_layer,
        streams=streams,
        residual_scale=residual_scale,
    )


def known_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of `model` that are understood."""
    layers = []
    for module in model.modules():
        with contextlib.suppress(Fallback, AttributeError):
            build_spec(module)
            layers.append(module)
    return layers
