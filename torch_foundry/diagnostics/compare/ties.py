"""Tokens whose experts rounding may choose: what follows them says nothing of kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.diagnostics.compare.kernels import wrong_kernels
from torch_foundry.diagnostics.compare.result import error
from torch_foundry.testing.reference_moe import moe_choose

DRAWS = 8
ROUNDINGS = 2  # of a logit as large as a token's are in the mean: a few times what attention's result is off by


def undecided(layers: dict[str, Any], run: Callable[[], object]) -> dict[str, Tensor]:
    """By the names of those of `layers` that have experts, which tokens ([tokens], bool) are a near-tie to their stock
    routers in `run()`."""
    blocks = {name: block for name, layer in layers.items() if (block := _experts_of(layer)) is not None}
    found: dict[str, Tensor] = {}
    with contextlib.ExitStack() as hooks:
        for name, block in blocks.items():
            hooks.callback(block.choosing()[0].register_forward_pre_hook(_noting(name, block, found)).remove)
        if blocks:
            run()
    return found


def _experts_of(layer: Any) -> Any:
    try:
        return layer.layer_plan().layer.experts
    except Fallback:  # stock code runs it
        return None


def _noting(name: str, experts: Any, found: dict[str, Tensor]) -> Callable[..., None]:
    def note(module: Any, args: tuple[Any, ...]) -> None:
        x = args[0].reshape(-1, args[0].shape[-1])
        matrix, all_options = experts.choosing()
        rule = {k: v for k, v in all_options.items() if k not in ("scale", "normalize")}
        correction, bias = rule.get("correction"), matrix._parameters.get("bias")
        logits = x.double().cpu() @ matrix.weight.double().cpu().T
        logits = logits if bias is None else logits + bias.double().cpu()
        rule["correction"] = None if correction is None else correction.double().cpu()
        size = logits.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)  # a router of zeros ties all
        step = ROUNDINGS * torch.finfo(x.dtype).eps * size
        drawn = torch.Generator().manual_seed(0)
        chosen = _chosen(logits, rule)
        found[name] = torch.zeros(len(logits), dtype=torch.bool)
        for _ in range(DRAWS):
            other = _chosen(logits + step * torch.randn(logits.shape, generator=drawn, dtype=logits.dtype), rule)
            found[name] |= (chosen != other).any(-1)

    return note


def _chosen(logits: Tensor, rule: dict[str, Any]) -> Tensor:
    """Of each token, the numbers of its experts in order of size."""
    return moe_choose(logits, **rule)[0].sort(-1).values


def error_alone(run: Callable[[], Tensor], right: Tensor, ties: Tensor | None) -> float:
    """The error of `run()` beside stock's result `right`, both [..., hidden], over tokens that are no tie.

    Where all are ties the results say nothing, and the kernels that run are held against plain torch instead: 0 if none
    of them is wrong.
    """
    got = run()
    if ties is None or not ties.all() or len(ties) != right[..., 0].numel():
        return error(*(decided(rows, ties) for rows in (got, right)))
    return error(got, right) if wrong_kernels(run) else 0.0


def decided(rows: Tensor, ties: Tensor | None) -> Tensor:
    """Of `rows` [..., hidden], those of tokens that are no tie; all, if there are no others."""
    rows = rows.reshape(-1, rows.shape[-1])
    return rows if ties is None or bool(ties.all()) or len(ties) != len(rows) else rows[~ties.to(rows.device)]
