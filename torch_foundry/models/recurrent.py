"""What mixers have in common whose state has a fixed size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.recurrent import CONV, RECURRENT, RecurrentLayer
from torch_foundry.kvcache.view import StateView
from torch_foundry.models.checks import require
from torch_foundry.models.layer import Mixer
from torch_foundry.models.weights import Norm, Residual


def check_state(rows: int, columns: int, longest: int, largest: int) -> None:
    """Raise Fallback unless kernels have room for a head's state, a matrix: so many numbers a side, and in all."""
    require(max(rows, columns) <= longest, f"heads of {max(rows, columns)} numbers, expected at most {longest}")
    require(rows * columns <= largest, f"a head's state of {rows * columns} numbers, expected at most {largest}")


def check_taps(taps: int, most: int) -> None:
    """Raise Fallback unless kernels have a convolution of so many tokens."""
    require(taps <= most, f"a convolution of {taps} tokens, expected at most {most}")


def states(channels: int, taps: int, *matrices: int) -> RecurrentSpec:
    """The last inputs of a convolution, and of each head a matrix: [heads, rows, columns]."""
    return RecurrentSpec(((CONV, (channels, taps), None), (RECURRENT, matrices, torch.float32)))


class RecurrentMixer(Mixer):
    """A mixer with a state of a fixed size, of which padding is no part."""

    residual: Residual
    state: RecurrentSpec

    def without_cache(self, x: Tensor) -> StateView:
        """See `Mixer`."""
        return RecurrentLayer().reserve(x.shape[0], self.state, x.shape[1], x.dtype, x.device)

    def mask_reason(self, mask: Any, x: Tensor, layer: Any) -> str | None:
        """See `Mixer`."""
        known = type(mask) is Tensor and mask.shape == x.shape[:2]
        return None if known else "mask is not one of [batch, tokens]"

    def without_padding(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Norm | None]:
        """What is projected, x [B, L, hidden] where nothing is padding, and the norm that is still to be applied.

        Padding becomes zeros behind the norm, as in stock code.
        """
        norm = self.residual.pre
        if mask is None:
            return x, norm
        return (x if norm is None else norm(x)) * mask[..., None].to(x.dtype), None
