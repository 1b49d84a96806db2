"""How keys and values may be stored: in the model's dtype (None), in another one, or as packed rows (`quant.kv`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torch_foundry.quant.formats import DENSE
from torch_foundry.quant.kv import FORMATS, cast_saturating, pack_rows, row_bytes, unpack_rows

NAMES = (*DENSE, *FORMATS)
Formats = tuple[str | None, str | None]  # of keys and of values
PLAIN: Formats = (None, None)


def parse(kv_cache: str | Mapping[str, str | None] | None) -> Formats:
    """The formats that `patch(kv_cache=...)` names: one for both, or {"k": ..., "v": ...}. Raises ValueError."""
    given = dict(kv_cache) if isinstance(kv_cache, Mapping) else {"k": kv_cache, "v": kv_cache}
    if not given.keys() <= {"k", "v"} or any(name is not None and name not in NAMES for name in given.values()):
        raise ValueError(f"kv_cache={kv_cache!r}: expected one of {', '.join(NAMES)}, or a dict of k and v of these")
    return given.get("k"), given.get("v")


def packed(name: str | None) -> str | None:
    """What ops call this format: None for dense ones, whose tensors say what they are."""
    return name if name in FORMATS else None


def row_width(head_dim: int, name: str | None, dtype: torch.dtype) -> tuple[int, torch.dtype]:
    """Last dimension and dtype of memory for heads of `dtype`."""
    if name is None:
        return head_dim, dtype
    return (head_dim, DENSE[name]) if name in DENSE else (row_bytes(head_dim, name), torch.uint8)


def encoded(x: torch.Tensor, name: str) -> torch.Tensor:
    """x [..., D] as it is stored."""
    return cast_saturating(x, DENSE[name]) if name in DENSE else pack_rows(x, name)


def decoded(data: torch.Tensor, name: str | None, dtype: torch.dtype) -> torch.Tensor:
    """What is stored as [..., D] of `dtype`."""
    return data.to(dtype) if name is None or name in DENSE else unpack_rows(data, name, dtype)
