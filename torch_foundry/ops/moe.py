"""Mixtures of experts: which experts a token goes to, and those experts' products.

Few tokens: `moe_route`, two launches, `moe_glu` and `moe_down`, one each. Many: `moe_choose`, `moe_group`, `moe_linear`
and `moe_combine`, which read an expert's weights once for some 32 tokens. Nothing waits for the device.

ids: int32 [T, k], which experts a token goes to; what is no expert's number adds nothing. A pair is a token and one of
its experts: pair t * k + j.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension, tuning  # noqa: F401  (they load the extension and the choices of kernels)
from torch_foundry.core.limits import EXPERT_TILE_ROWS
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def moe_route(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    k: int,
    *,
    kind: str = "llama",
    normalize: bool = True,
    shared: Tensor | None = None,
    bias: Tensor | None = None,
    score: str = "softmax",
    correction: Tensor | None = None,
    correct_logits: bool = False,
    groups: int = 1,
    top_groups: int = 1,
    group_best: int = 2,
    scale: float = 1.0,
    least_sum: float = 1e-20,
    near: float = 0.0,
    shared_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`moe_choose` of the logits `linear(rms_norm(x), weight, bias)`, with nothing rounded between, in two launches.

    x: [..., H], T rows, contiguous. norm_weight, eps, kind: as in `norm_linear`. weight: the router's, dense [E, H];
    bias: [E]; shared: [1, H] of the weight's dtype; all else as in `moe_choose`. Meant for few rows: the router's
    weights are read for each.
    """
    rule = score, correction, correct_logits, groups, top_groups, group_best, scale, least_sum, near, shared_weight
    ids, weights = _ops.moe_route.default(x, norm_weight, eps, kind, weight, shared, k, normalize, bias, *rule)
    return ids, weights


@_fake("moe_route")
def _(x: Tensor, weight: Tensor, shared: Tensor | None, k: int, shared_weight: float = 0.0) -> tuple[Tensor, Tensor]:
    return _chosen(x, x.numel() // weight.shape[1], k + (shared is not None or shared_weight != 0))


def moe_choose(
    logits: Tensor,
    k: int,
    *,
    normalize: bool = True,
    shared: Tensor | None = None,
    score: str = "softmax",
    correction: Tensor | None = None,
    correct_logits: bool = False,
    groups: int = 1,
    top_groups: int = 1,
    group_best: int = 2,
    scale: float = 1.0,
    least_sum: float = 1e-20,
    near: float = 0.0,
    shared_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The k experts of the largest scores, and their scores as weights, in float32.

    logits: [T, E], E up to 1024, k up to 32. score: "softmax", over all of a token's logits, "sigmoid", of each, or
    "in_turn": when an expert is chosen, a softmax over those left whose logits are near, which is less than its own by
    at most `near` times the larger of their own size and it (PhiMoE). The largest comes first; among equals the lowest
    number does (torch.topk leaves that open). correction: [E] of any
    floating dtype, added to the scores, or to the logits (correct_logits), for the choice alone. groups: the experts
    are of so many, side by side, and a token's are of those `top_groups` whose `group_best` best, one or two, add up
    to most. normalize: weights are divided by their sum, plus least_sum. scale: of all weights, at last. shared:
    [T, 1], the logit of an expert that all tokens go to: one more column, with the id 0 and the weight sigmoid(shared);
    or, if that is the same for all, `shared_weight`, which isn't 0.
    Returns ids int32 and weights float32, both [T, k], or [T, k + 1] with a shared expert.
    """
    rule = score, correction, correct_logits, groups, top_groups, group_best, scale, least_sum, near, shared_weight
    ids, weights = _ops.moe_choose.default(logits, shared, k, normalize, *rule)
    return ids, weights


@_fake("moe_choose")
def _(logits: Tensor, shared: Tensor | None, k: int, shared_weight: float = 0.0) -> tuple[Tensor, Tensor]:
    return _chosen(logits, logits.shape[0], k + (shared is not None or shared_weight != 0))


def _chosen(x: Tensor, tokens: int, columns: int) -> tuple[Tensor, Tensor]:
    shape = (tokens, columns)
    return x.new_empty(shape, dtype=torch.int32), x.new_empty(shape, dtype=torch.float32)


def moe_glu(
    x: Tensor,
    ids: Tensor,
    gate: Tensor | None,
    up: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    kind: str = "llama",
    format: str | None = None,
    activation: str = "silu",
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    shared: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """`glu(h gate^T, h up^T, activation)` with the matrices of each token's experts, in one launch; without a gate,
    `activation(h up^T)`.

    x: [T, H], contiguous. h is x, or rms_norm(x) with norm_weight, as in `norm_glu`. gate, up: [E, I, H], dense of any
    dtype or packed rows of `format`; experts and rows may be strided. biases: of gate and of up, [E, I] in the dtype
    of x, of any strides. shared: gate and up, [I, H] each, of the last of every token's experts, whatever its id is;
    not with biases. A token's result is the same bits whatever tokens come with it. Returns [T, k, I].
    """
    return _ops.moe_glu.default(x, norm_weight, eps, kind, ids, gate, up, format, activation, *biases, *shared)


@_fake("moe_glu")
def _(x: Tensor, ids: Tensor, up: Tensor) -> Tensor:
    return x.new_empty((*ids.shape, up.shape[1]))


def moe_down(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    weight: Tensor,
    *,
    format: str | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    bias: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """`residual + scale * sum over j of weights[:, j] * (x[:, j] W^T + b)`, W and b of expert ids[:, j], in one launch.

    x: [T, k, K]. weights: float32 [T, k]; ids and weights may be strided rows. weight: [E, N, K], bias: [E, N], as in
    `moe_glu`. shared: [N, K], of the last of every token's experts, whatever its id is; not with a bias. residual:
    [T, N]. Sums in float32, rounded once. A token's result is the same bits whatever tokens come with it. Returns
    [T, N].
    """
    return _ops.moe_down.default(x, ids, weights, weight, format, residual, scale, bias, shared)


@_fake("moe_down")
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]))


def moe_group(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """The pairs sorted by expert, in their order, and the tiles that each expert's are cut into.

    Returns int32 order [pairs] (as many are written as there are pairs of an expert) and tiles [n, 3]: expert, first
    place in order, number of pairs; rows of zeros follow the last tile.
    """
    order, tiles = _ops.moe_group.default(ids, experts)
    return order, tiles


@_fake("moe_group")
def _(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    pairs = ids.numel()
    return ids.new_empty((pairs,)), ids.new_empty((pairs // EXPERT_TILE_ROWS + torch.sym_min(pairs, experts), 3))


def moe_linear(
    x: Tensor,
    order: Tensor,
    tiles: Tensor,
    weight: Tensor,
    *,
    format: str | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """`activation(x[pair // (pairs / R)] W^T + b)`: W and b of the pair's expert, pairs as `moe_group` gives them.

    x: [R, K]: a row for each token, or for each pair. weight: [E, N, K], bias: [E, N], as in `moe_glu`. Returns
    [pairs, N], in the order of ids; what no expert was asked for isn't written.
    """
    return _ops.moe_linear.default(x, order, tiles, weight, format, bias, activation)


@_fake("moe_linear")
def _(x: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((order.shape[0], weight.shape[1]))


def moe_combine(
    x: Tensor, ids: Tensor, weights: Tensor, experts: int, *, residual: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """`residual + scale * sum over j of weights[:, j] * x[pair of j]`: x [pairs, N], all else as in `moe_down`."""
    return _ops.moe_combine.default(x, ids, weights, experts, residual, scale)


@_fake("moe_combine")
def _(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_empty((ids.shape[0], x.shape[1]))
