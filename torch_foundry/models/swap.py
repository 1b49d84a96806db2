"""Exchanging a module's class for a subclass of the same name, and back.

A module keeps its identity, parameters, buffers, children and hooks; only its methods change. transformers finds
classes by name in several places (output recording, device maps, saved configs), hence the same name.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from torch_foundry.models.state import Plan

_swapped: dict[tuple[type, type], type] = {}


class FoundryModule:
    """Mixed into the class of each swapped module. `_foundry` holds its plan, outside of parameters and children."""

    _foundry_base: type
    _foundry_mixin: type
    _foundry: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """What `type(model)(config)` and `type(model).from_pretrained(path)` make: a stock module."""
        if args or kwargs:
            return cls._foundry_base(*args, **kwargs)
        return super().__new__(cls)  # of a copy

    def _get_name(self) -> str:  # shown by print(model)
        return "Foundry" + self._foundry_base.__name__

    def __reduce_ex__(self, protocol: Any) -> Any:
        # the swapped class has no importable name of its own; deepcopy and pickle go by the base class
        reduced: Any = super().__reduce_ex__(protocol)
        rebuild, args, *rest = reduced
        assert args[0] is type(self), rebuild
        return (_rebuild, (self._foundry_base, self._foundry_mixin), *rest)


def _rebuild(base: type, mixin: type) -> Any:
    cls: Any = swapped_class(base, mixin)
    return cls.__new__(cls)


def base_class(cls: type) -> type:
    """The class that a swapped class stands for; any other class itself."""
    return cls.__dict__.get("_foundry_base", cls)


def is_swapped(module: nn.Module) -> bool:
    """Whether the class of `module` was exchanged."""
    return "_foundry_base" in type(module).__dict__


def has_own_forward(module: nn.Module) -> bool:
    """Whether `module` runs the forward that its class was written with: not one that somebody has put on the object or
    on the class since, or has wrapped around it."""
    owner = next((cls for cls in base_class(type(module)).__mro__ if "forward" in cls.__dict__), None)
    if "forward" in module.__dict__ or owner is None:
        return False
    if owner is nn.Module:  # of lists and the like, which have none
        return True
    forward: Any = owner.__dict__["forward"]
    written, run = (
        name.partition(".")[0]
        for name in (getattr(forward, "__module__", ""), getattr(forward, "__globals__", {}).get("__name__", ""))
    )  # a wrapper runs in its own module, whatever it says of what it is around
    own = getattr(forward, "__qualname__", "") == f"{owner.__qualname__}.forward"
    return own and run in (written, "torch")  # torch.no_grad wraps, too


def swapped_class(base: type, mixin: type) -> type:
    """The subclass of `base` with the methods of `mixin`."""
    key = (base, mixin)
    if key not in _swapped:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        own = {"_foundry_base": base, "_foundry_mixin": mixin}
        _swapped[key] = type(base.__name__, (mixin, base), {**names, **own})
    return _swapped[key]


def swap(module: nn.Module, mixin: type, plan: Plan) -> None:
    """Give `module` the methods of `mixin`."""
    module.__dict__["_foundry"] = plan
    module.__class__ = swapped_class(type(module), mixin)


def restore(module: nn.Module) -> None:
    """Undo `swap`."""
    module.__class__ = base_class(type(module))
    module.__dict__.pop("_foundry", None)
