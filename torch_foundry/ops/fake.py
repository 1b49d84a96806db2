"""Registration of fake implementations: shapes of results, for torch.compile and torch.export."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from torch_foundry.core.ahead import recording_for


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator for the function that allocates an op's results without computing them. It takes those of the op's
    arguments that it needs, by their names in the schema, which has the order and the defaults.

    ImportError if the extension has no such op, because it was built from older sources.
    """
    if not hasattr(torch.ops.torch_foundry, name):
        raise ImportError(f"torch_foundry was built from other sources ({name} is missing): run `make build`")
    op = getattr(torch.ops.torch_foundry, name).default
    arguments = op._schema.arguments

    def register(allocate: Callable[..., Any]) -> Callable[..., Any]:
        needed = inspect.signature(allocate).parameters
        places = [(i, a.name, a.default_value) for i, a in enumerate(arguments) if a.name in needed]

        def of_all(*args: Any, **kwargs: Any) -> Any:
            if recording_for():  # the op itself, of tensors without data, says which kernels it would launch
                return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
            return allocate(**{n: args[i] if i < len(args) else kwargs.get(n, default) for i, n, default in places})

        torch.library.register_fake(f"torch_foundry::{name}", of_all)
        return allocate

    return register
