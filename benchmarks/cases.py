"""A case of an op, and what must be known of an op to measure it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models import DTYPES, Model

Given = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One op on one shape. `layout`: whether activations come as [rows, n] or as [batch, length, n]."""

    op: str
    where: str  # in the first model that has the shape
    format: str
    rows: int
    n: int
    k: int = 0
    heads: tuple[int, int, int] = (0, 0, 0)  # query heads, key heads, head_dim
    layout: str = "2d"

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        return DTYPES.get(self.format, torch.float16)

    def shape(self) -> dict[str, Any]:
        """What distinguishes it from other cases of the op."""
        fields = {"rows": self.rows, "n": self.n, "k": self.k, "heads": "/".join(map(str, self.heads))}
        shown = {name: value for name, value in fields.items() if value and value != "0/0/0"}
        return {"at": self.where, **shown, **({"in": self.layout} if self.layout != "2d" else {})}

    def lead(self, rows: int) -> tuple[int, ...]:
        """Leading dimensions of activations: few rows are a batch of one token each, many are one prompt."""
        if self.layout == "2d":
            return (rows,)
        return (rows, 1) if rows <= 16 else (1, rows)


@dataclass(frozen=True)
class Op:
    """How an op is measured. Results may be one tensor or several.

    `inputs` draws the arguments; where the weight may be packed, "dense" has what takes its place for
    `stock` and `truth`. `truth` is the definition, in the dtype of what it is given. `cost`: flops, and bytes that must
    be moved, for (case, bytes of a weight row). `shapes`: of a model. `packs`: takes packed weights.
    `caches`: takes packed KV caches, whose format is the case's then, and `k` the columns of a head.
    """

    run: Callable[..., Any]
    stock: Callable[..., Any]
    stock_is: str
    truth: Callable[..., Any]
    inputs: Callable[[Case, torch.Generator], Given]
    cost: Callable[[Case, int], tuple[int, int]]
    shapes: Callable[[Model, Any], Iterator[dict[str, Any]]]
    packs: bool = False
    caches: bool = False
    layouts: tuple[str, ...] = ("2d",)


@dataclass(frozen=True)
class Sizes:
    """How many rows, and keys, cases have."""

    rows: tuple[int, ...] = (1, 4, 8, 512)
    prompt: int = 2048
    keys: tuple[int, ...] = (1024, 32768)


QUICK = Sizes(rows=(1, 4), prompt=8, keys=(16,))


def normal(g: torch.Generator, dtype: torch.dtype, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers on the generator's device."""
    return (torch.randn(shape, generator=g, device=g.device) * scale).to(dtype)
