"""Several residual streams (Gemma 3n): alternating updates around layers, a learned residual beside attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core import limits
from torch_foundry.models.checks import check_children, check_linear, check_norm, require
from torch_foundry.models.families import is_dense_linear
from torch_foundry.models.family import Family
from torch_foundry.models.per_layer import PerLayerBlock
from torch_foundry.models.swap import base_class
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm

LEAST = 1e-5  # mean square of a stream that is made as long as the first


class StreamBlock:
    """What a layer does besides its mixer and its feed-forward block, which see one stream alone.

    Streams are predicted from each other (`predict`); attention's result is added to that of `learned`, and both are
    divided by sqrt(2); all streams are corrected by what the feed-forward block made of theirs, and all but the first
    get the layer's own embedding (`correct`).
    """

    __slots__ = ("active", "altup", "down", "norm", "pre", "rank", "router_norm", "scalars", "scale", "up")
    children = frozenset({"altup", "laurel"})

    def __init__(self, layer: Any, family: Family) -> None:
        altup, laurel, config = layer.altup, layer.laurel, layer.altup.config
        count, hidden, self.active = int(config.altup_num_inputs), int(config.hidden_size), int(config.altup_active_idx)
        require(1 < count <= limits.MAX_STREAMS, f"{count} streams")
        require(0 <= self.active < count, f"stream {self.active} of {count}")
        check_children("altup", altup, {"correction_coefs", "modality_router", "prediction_coefs", "router_norm"})
        sizes = {"modality_router": (hidden, count), "correction_coefs": (count, count)}
        for name, (columns, rows) in {**sizes, "prediction_coefs": (count, count * count)}.items():
            linear = getattr(altup, name)
            require(is_dense_linear(base_class(type(linear))) and linear.bias is None, f"{name} is packed or biased")
            check_linear(name, linear, columns, rows)
        check_norm("router_norm", altup.router_norm, family, hidden)
        require(tuple(altup.correct_output_scale.shape) == (hidden,), "a scale of another size")
        check_children("laurel", laurel, {"linear_left", "linear_right", "post_laurel_norm"})
        down, up = laurel._modules["linear_left"], laurel._modules["linear_right"]
        rank = int(down.out_features)
        check_linear("linear_left", down, hidden, rank)
        check_linear("linear_right", up, rank, hidden)
        check_norm("post_laurel_norm", laurel.post_laurel_norm, family, hidden)
        self.altup, self.rank, self.scale = altup, rank, 1.0 / hidden
        self.router_norm, self.norm = Norm(altup.router_norm), Norm(laurel.post_laurel_norm)
        self.pre = Norm(getattr(layer, str(family.norms.pre_attn)))
        self.down, self.up = LinearGroup.of(laurel, "linear_left"), Linear(up)
        self.scalars: dict[str, Tensor] = {}  # what attention's result and the learned one are multiplied by

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Make what a call reads besides weights. Not while a step is captured."""
        made = self.scalars.get("layer_scalar")
        if made is None or (made.dtype, made.device) != (dtype, device):
            with torch.inference_mode(False):
                self.scalars["layer_scalar"] = torch.full((1,), 0.5**0.5, dtype=dtype, device=device)

    def predict(self, x: Tensor) -> Tensor:
        """x [N, B, L, hidden]."""
        norm, altup = self.router_norm, self.altup
        return ops.altup_predict(
            x.flatten(1, 2), norm.weight, altup.modality_router.weight, altup.prediction_coefs.weight, norm.eps,
            scale=self.scale, active=self.active,
        ).view(x.shape)  # fmt: skip

    def learned(self, x: Tensor, gemm: Gemm) -> Tensor:
        """x + h + norm(up(down(h))), h = pre(x), for the active stream x [B, L, hidden]."""
        self.prepare(x.dtype, x.device)
        (low,) = self.down.behind(self.pre, x, [self.rank], gemm)
        return self.norm(gemm.product(self.up, low), self.pre(x, x))

    def correct(self, x: Tensor, activated: Tensor, own: PerLayerBlock, given: Tensor, gemm: Gemm) -> Tensor:
        """x [N, B, L, hidden], as predicted. activated: the active stream behind the layer's blocks. given: as
        `PerLayerBlock` takes it."""
        norm, altup = self.router_norm, self.altup
        corrected, first = ops.altup_correct(
            x.flatten(1, 2), activated.flatten(0, 1), norm.weight, altup.modality_router.weight,
            altup.correction_coefs.weight, norm.eps, scale=self.scale, active=self.active,
            own_scale=altup.correct_output_scale if altup.config.altup_correct_scale else None,
        )  # fmt: skip
        added = gemm.product(own.projection, own.gated(first.view(activated.shape), given, gemm))
        post = own.residual.post
        assert post is not None
        return ops.altup_add(corrected, added.flatten(0, 1), post.weight, post.eps).view(x.shape)


class Streams:
    """A model's streams: the first is what its embedding gives; others are projections, as long as that is."""

    __slots__ = ("collapsing", "expanding", "modules")

    def __init__(self, model: Any) -> None:
        self.modules = [*model.altup_projections, *model.altup_unembed_projections]
        self.expanding = [Linear(module) for module in model.altup_projections]
        self.collapsing = [Linear(module) for module in model.altup_unembed_projections]

    def expand(self, x: Tensor, gemm: Gemm) -> Tensor:
        """x [B, L, hidden] to [N, B, L, hidden]."""
        others = [gemm.product(linear, x).flatten(0, 1) for linear in self.expanding]
        return ops.altup_expand(x.flatten(0, 1), others, LEAST).view(-1, *x.shape)

    def collapse(self, x: Tensor, gemm: Gemm) -> Tensor:
        """The reverse: what the last norm gets."""
        first, *rest = x.unbind()
        others = [gemm.product(linear, y).flatten(0, 1) for linear, y in zip(self.collapsing, rest, strict=True)]
        return ops.altup_collapse(first.flatten(0, 1), others, LEAST).view(first.shape)
