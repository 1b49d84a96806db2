"""Decoder layers whose weights transformers' tensor parallelism has split over processes, as one of these has them.

Stock code keeps split weights as DTensors and gives their modules a forward of its own, which cuts or reduces. A fused
layer is made from a view instead: copies of those modules with this process's shards as plain tensors, so whatever
reads a layer finds one with fewer heads and columns. The model stays as it is, for stock code and for saving.

All that a fused layer has to know beyond is in two attributes of such copies: `processes`, and the `group` of a linear
layer, or of experts, whose result is this process's part of a sum. What each process has whole and would add to that
sum (a bias, a shared expert) is added by the first alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from torch_foundry.core.errors import Fallback
from torch_foundry.models.attention_spec import PACKED, AttentionSpec
from torch_foundry.models.checks import is_linear, require
from torch_foundry.models.moe import ExpertsSpec
from torch_foundry.models.spec import LayerSpec, build_spec

INSTALLED = "transformers.distributed.tensor_parallel"  # the module of the forwards that stock code puts in place

# where a tensor of a view is from: a module's parameters, its name there, the parameter, and its memory here
Origin = tuple[dict[str, Any], str, Any, Any]


@dataclass(frozen=True, slots=True)
class Shards:
    """What a view of a layer was made from. reason: that weights are split, in words; None: they are not. view: the
    layer as this process has it; None: as all have it."""

    reason: str | None = None
    origins: tuple[Origin, ...] = ()
    view: nn.Module | None = None

    def changed(self) -> bool:
        """Whether the layer has other tensors by now."""
        return any(
            owner.get(name) is not known or _memory(known) is not own for owner, name, known, own in self.origins
        )


def local_layer(layer: nn.Module) -> tuple[nn.Module, LayerSpec, Shards]:
    """`layer` as this process has it: itself, if nothing of it is split. Raises Fallback for a layer, or for a way of
    splitting it, that is not understood."""
    if not _is_split(layer):
        return layer, build_spec(layer), Shards()
    reason, origins = sharding_of(layer), list[Origin]()
    try:
        view = _view("", layer, origins)
        spec = build_spec(view)
        _check(view, spec)
    except Fallback as fallback:
        raise Fallback(f"{reason or 'it has forwards for tensor parallelism'}: {fallback}") from None
    return view, spec, Shards(reason, tuple(origins), view)


def sharding_of(module: Any) -> str | None:
    """That parameters of `module` are split over processes, in words; None: they are not."""
    counts = [parameter.device_mesh.size() for parameter in module.parameters() if _is_dtensor(parameter)]
    return f"weights are sharded over {max(counts)} processes" if counts else None


class ShardedRows:
    """Those of an embedding, of which this process has some. Each is one process's: the sum over all has its bits."""

    def __init__(self, module: Any) -> None:
        from torch.distributed.tensor import Shard

        weight = module.weight
        require(_is_dtensor(weight) and weight.placements == (Shard(0),), "the embedding is split in another way")
        require(module.max_norm is None, "the embedding has a largest norm")
        self.module, self.weight, self.rows = module, weight, weight.to_local().detach()
        self.group, each = weight.device_mesh.get_group(), -(-len(weight) // weight.device_mesh.size())
        self.first = each * weight.device_mesh.get_local_rank()

    def changed(self) -> bool:
        """Whether it has another weight by now."""
        return self.module.weight is not self.weight or _memory(self.weight).data_ptr() != self.rows.data_ptr()

    def __call__(self, ids: torch.Tensor, out: torch.Tensor, scale: float) -> None:
        """Embeddings of ids [B, L], times `scale`, in out [B, L, hidden]."""
        own = ids - self.first
        others = (own < 0) | (own >= len(self.rows))
        x = self.rows[own.masked_fill_(others, 0)] if len(self.rows) else torch.zeros_like(out)
        out.copy_(x.masked_fill_(others[..., None], 0))
        torch.distributed.all_reduce(out, group=self.group)
        if scale != 1.0:
            out.mul_(scale)


def share_random_numbers(model: Any) -> None:
    """Let torch's default generators go on, in all processes that share `model`, as they would in the first: processes
    that drew other tokens would add up parts of different texts. Does nothing if nothing is split."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    mesh: Any = next((parameter.device_mesh for parameter in model.parameters() if _is_dtensor(parameter)), None)
    if mesh is None:
        return
    for generator in (torch.random, torch.get_device_module(mesh.device_type)):
        if hasattr(generator, "get_rng_state"):  # that of the CPU is the first
            state = generator.get_rng_state().to(mesh.device_type)
            torch.distributed.broadcast(state, group=mesh.get_group(), group_src=0)
            generator.set_rng_state(state.cpu())


def _is_dtensor(parameter: Any) -> bool:
    return hasattr(parameter, "device_mesh")


def _memory(parameter: Any) -> Any:
    return parameter._local_tensor if _is_dtensor(parameter) else None


def _is_split(module: nn.Module) -> bool:
    installed = any(_is_installed(m.__dict__.get("forward")) for m in module.modules())
    return installed or any(map(_is_dtensor, module.parameters()))


def _is_installed(forward: Any) -> bool:
    return getattr(forward, "__module__", None) == INSTALLED


def _view(name: str, module: Any, origins: list[Origin]) -> nn.Module:
    """A copy of `module`, called `name`, and of what is split inside, with plain tensors."""
    own: nn.Module = object.__new__(type(module))
    own.__dict__.update(module.__dict__)
    if _is_installed(own.__dict__.get("forward")):
        del own.__dict__["forward"]
    children = {
        child: inner if inner is None or not _is_split(inner) else _view(f"{name}.{child}".strip("."), inner, origins)
        for child, inner in module._modules.items()
    }
    local = {parameter: _local(value) for parameter, value in module._parameters.items()}
    own.__dict__.update({"_parameters": local, "_modules": children, "whole": module})
    origins += [(module._parameters, key, value, _memory(value)) for key, value in module._parameters.items()]
    meshes = [parameter.device_mesh for parameter in module.parameters() if _is_dtensor(parameter)]
    if meshes:
        require(all(mesh.ndim == 1 and mesh == meshes[0] for mesh in meshes), "in several dimensions")
        own.__dict__["processes"] = meshes[0].size()
        _fit(name, own, module._parameters, meshes[0])
    return own


def _local(parameter: Any) -> Any:
    memory = _memory(parameter)
    return parameter if memory is None else nn.Parameter(memory.detach(), requires_grad=False)


def _fit(name: str, own: Any, parameters: dict[str, Any], mesh: Any) -> None:
    """Give a copy the sizes of its shards. Raises Fallback for parameters that are split in another way."""
    from torch.distributed.tensor import Replicate, Shard  # a torch may be built without it
    from torch.distributed.tensor.placement_types import _StridedShard

    found = {key: value.placements[0] for key, value in parameters.items() if _is_dtensor(value)}
    by_columns, by_rows = {"weight": Shard(0), "bias": Shard(0)}, {"weight": Shard(1), "bias": Replicate()}
    of_experts = {"gate_up_proj": _StridedShard(1, split_factor=2), "down_proj": Shard(2)}

    def is_split(ways: dict[str, Any]) -> bool:
        return all(ways.get(key) == way for key, way in found.items())

    if is_linear(own) and found:
        turned = isinstance(own, Conv1D)
        require(not turned and (is_split(by_columns) or is_split(by_rows)), f"{name} is {found}")
        own.out_features, own.in_features = own.weight.shape
        if is_split(by_rows):
            own.group = mesh.get_group()
            if mesh.get_local_rank():
                own._parameters["bias"] = None
    elif "gate_up_proj" in found:
        require(found == of_experts, f"{name} is {found}")
        own.group = mesh.get_group()
    else:  # one sink a head
        require(is_split({"sinks": Shard(0)}), f"{name} is {found}")


def _check(view: Any, spec: LayerSpec) -> None:
    """Raise Fallback if shards of a weight are not weights of fewer heads or columns, or are added up elsewhere."""
    split = [name for name, module in view.named_modules() if hasattr(module, "processes")]
    mixer, ffn = spec.mixer, spec.ffn
    if mixer is not None and mixer.name in split:
        require(isinstance(mixer.facts, AttentionSpec), f"{mixer.name} is not attention")
        fused = next((name for name in PACKED if name in view.get_submodule(mixer.name)._modules), None)
        require(fused is None or spec.family.grouped_rows, f"{fused} holds several matrices")  # of a head each
    for mlp in (ffn.outer if isinstance(ffn, ExpertsSpec) else ffn,):
        if mlp is not None and mlp.name in split:
            require(not mlp.layers.joined, f"{mlp.layers.first[0]} holds several matrices")
    require(not spec.beside or "experts" not in split, "experts beside an MLP")
    if isinstance(ffn, ExpertsSpec) and not hasattr(view._modules[ffn.name].experts, "group"):
        require(ffn.name not in split, "the shared expert is split, and the experts are not")
