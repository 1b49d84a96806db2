"""Noticing cheaply that a model has changed since a graph was captured from it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from operator import attrgetter, contains, is_, itemgetter
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from torch_foundry.models.guards import Numbers, is_recorder

_VALUES: Any = dict.values
_TRAINING = itemgetter("training")
_DTYPE = attrgetter("dtype")
_REQUIRES_GRAD = attrgetter("requires_grad")


class ModuleGuard:
    """Some modules as they are: their classes, children, tensors, numbers, hooks and methods.

    Changing a tensor's values in place (as merging an adapter does) is no change, because a graph reads them at each
    replay. The check runs before every replay, in C as far as possible: about 3 µs per decoder layer.

    root: one more module, which is not kept alive: it keeps the guard.
    """

    def __init__(self, modules: Iterable[nn.Module], root: nn.Module | None = None) -> None:
        found = tuple(modules)
        self.modules = found
        self._root: Callable[[], nn.Module | None] = _nothing if root is None else weakref.ref(root)
        self._classes = tuple(map(type, found))
        self._attributes = tuple(m.__dict__ for m in found)
        # a leaf that has parameters (a linear layer, a norm, an embedding) does the same in training
        self._modes = tuple(m.__dict__ for m in found if m._modules or not m._parameters)
        watched = self._watched()
        self._hooks = tuple(h for m in watched for h in (m._forward_hooks, m._forward_pre_hooks))
        self._owners = tuple(d for m in watched for d in (m._modules, m._parameters, m._buffers) if d)
        owned = self._now()
        self.tensors = tuple(t for t in owned if isinstance(t, torch.Tensor))
        self._seen = owned, self._addresses()
        self._numbers = Numbers(found)

    def _now(self) -> tuple[Any, ...]:
        return tuple(chain.from_iterable(map(_VALUES, self._owners)))

    def _addresses(self) -> list[Any]:
        return [*map(torch.Tensor.data_ptr, self.tensors), *map(_DTYPE, self.tensors)]

    def _watched(self) -> tuple[nn.Module, ...]:
        root = self._root()
        return self.modules if root is None else (root, *self.modules)

    def is_valid(self) -> bool:
        """Whether everything is as it was, and nothing has to run besides what the modules compute."""
        now, root, (owned, memory) = self._now(), self._root(), self._seen
        return (
            len(now) == len(owned)
            and all(map(is_, now, owned))
            and all(map(is_, map(type, self.modules), self._classes))
            and self._addresses() == memory
            and not self._numbers.changed()
            and not any(map(_TRAINING, self._modes))
            and not (root is not None and root.training)
            and self.reason() is None
        )

    def reason(self) -> str | None:
        """What besides the modules' own code would run, or what they have instead of it; None if nothing."""
        if nn_module._global_forward_hooks or nn_module._global_forward_pre_hooks:
            return "global module hooks"
        if any(self._hooks) and (found := self._hooked()):
            return f"forward hook on {found}"
        root = self._root()
        if any(map(contains, self._attributes, repeat("forward"))) or (root is not None and "forward" in root.__dict__):
            replaced = next(module for module in self._watched() if "forward" in module.__dict__)
            return f"forward of {type(replaced).__name__} was replaced"
        return None

    def _hooked(self) -> str | None:
        for module in self._watched():
            if module._forward_pre_hooks or not all(map(is_recorder, module._forward_hooks.values())):
                return type(module).__name__
        return None

    def requires_grad(self) -> bool:
        """Whether some tensor takes part in autograd."""
        return any(map(_REQUIRES_GRAD, self.tensors))


def version_of(tensor: torch.Tensor) -> int:
    """A number that rises when values are changed in place; 0 of a tensor of inference mode, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def _nothing() -> None:
    return None
