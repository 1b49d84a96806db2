"""What the parts of a decoder layer have to be, for those who read them: Fallback for what is not understood."""

from __future__ import annotations

from typing import Any, TypeGuard

from torch import nn

from torch_foundry.core import limits
from torch_foundry.core.errors import Fallback
from torch_foundry.models.families import NORMS, is_dense_linear, norm_kind
from torch_foundry.models.family import Family, class_key
from torch_foundry.models.swap import base_class
from torch_foundry.nn import FoundryLinear
from torch_foundry.nn.linear import linear_sizes


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


def check_children(name: str, module: nn.Module, expected: set[str]) -> None:
    """Raise Fallback unless `module`, called `name`, has children of just these names."""
    found = set(module._modules)
    require(found == expected, f"{name} has {sorted(found)}, expected {sorted(expected)}")


def check_norm(name: str, module: nn.Module, family: Family, size: int) -> None:
    """Raise Fallback unless `module` is a norm of the family, of `size` elements; 0: without a weight."""
    kind = norm_kind(module) if size else NORMS.get(class_key(type(module)))
    others = {*dict(family.other_norms).values(), "plain"} if family.other_norms else set()
    require(kind in {family.norm_kind, *others}, f"{name} is a {type(module).__name__}")
    shapes = {tuple(parameter.shape) for parameter in module.parameters()}
    shapes |= {tuple(getattr(module, "normalized_shape", (size,)))}
    require(shapes == {(size,)}, f"{name} has no weight of {size} elements")


def check_heads(**sizes: int) -> None:
    """Raise Fallback unless kernels have heads of these sizes."""
    known = limits.HEAD_DIMS
    for name, size in sizes.items():
        require(size in known, f"{name} {size} is not a multiple of {known.step} from {known[0]} to {known[-1]}")


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
