"""Which kernel is wrong: the ops that run, each held against plain torch on what it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from torch_foundry.diagnostics.compare.result import LIMIT, error
from torch_foundry.testing import reference, reference_attention, reference_backward, reference_moe

Given = dict[str, Any]


def wrong_kernels(run: Callable[[], object]) -> list[str]:
    """Names of the ops in `run()` whose results are further from float64 than plain torch's and rounding explain."""
    with _Watched() as seen:
        run()
    return list(dict.fromkeys(seen.wrong))


class _Watched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        plain = _plain(name) if func.namespace == "torch_foundry" else None
        if plain is None:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        given = {a.name: a.default_value for a in func._schema.arguments} | dict(zip(names, args, strict=False))
        given |= kwargs or {}
        before: Given = tree_map_only(Tensor, lambda t: t.detach().cpu().clone(), given)
        got = func(*args, **(kwargs or {}))
        caches = [given[a.name] for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        mine = [*_list(got), *(c for c in caches if c.is_floating_point())]
        truth, stock = _results(plain, _double(before)), _results(plain, before)
        for ours, right, torchs in zip(mine, truth, stock, strict=False):
            if not ours.is_floating_point():
                continue  # codes of packed rows, ids
            ours, right, torchs = (t.cpu().nan_to_num(nan=1e30) for t in (ours, right, torchs))
            allowed = 2 * error(torchs, right) + LIMIT.get(ours.dtype, LIMIT[torch.float32]) / 10
            if not error(ours, right) <= allowed:
                self.wrong.append(name)
        return got


def _results(plain: Callable[[Given], Any], given: Given) -> list[Tensor]:
    own = dict(given)
    own |= {name: given[name].clone() for name in ("k_cache", "v_cache") if name in given}
    written = [own[name] for name in ("k_cache", "v_cache") if name in own]
    return [*_list(plain(own)), *(c for c in written if c.is_floating_point())]


def _list(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _double(given: Given) -> Given:
    found: Given = tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, given)
    return found


def _plain(name: str) -> Callable[[Given], Any] | None:
    """The op `name` in plain torch, on arguments named as in its schema; None if there is none to compare with."""
    if name in _FUSED:
        return _FUSED[name]
    homes = (reference, reference_attention, reference_moe, reference_backward)
    function = next((found for home in homes if (found := getattr(home, name, None)) is not None), None)
    if function is None:
        return None
    code = function.__code__
    if code.co_flags & inspect.CO_VARKEYWORDS:  # which go on to another one
        return lambda given: function(**given)
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return lambda given: function(**{key: value for key, value in given.items() if key in known})


def _projections(given: Given) -> list[Tensor]:
    h = reference.rms_norm(given["x"], given["norm_weight"], given["eps"], kind=given["kind"])
    parts = zip(given["weights"], given["formats"], given["biases"], strict=True)
    return [reference.linear(h, weight, format=name or None, bias=bias) for weight, name, bias in parts]


def _norm_linear(given: Given) -> Tensor:
    return torch.cat(_projections(given), -1)


def _norm_glu(given: Given) -> Tensor:
    gate, up = _projections(given)
    return reference.glu(gate, up, given["activation"])


def _norm_qkv(given: Given) -> Tensor:
    names = ("cos", "sin", "k_cache", "v_cache", "start", "head_dim", "positions", "step")
    q, k, v = _projections(given)
    return reference.rope_kv(q, k, v, **{name: given[name] for name in names})


def _moe_glu(given: Given) -> Tensor:
    own = dict(given)
    biases, shared = ((own.pop(a), own.pop(b)) for a, b in (("gate_bias", "up_bias"), ("shared_gate", "shared_up")))
    return reference_moe.moe_glu(**own, biases=biases, shared=shared)


def _attention(given: Given) -> Tensor:
    given, step = dict(given), given["step"]
    del given["step"]
    if step is not None:  # the reference takes numbers
        first, gone = step.tolist()
        given["kv_len"] = first + given["q"].shape[2]
        given["mask"] = None if given["mask"] is None else given["mask"][..., gone:]
        given["kv_start"] = None if given["kv_start"] is None else given["kv_start"] - gone
    return reference.attention(**given)


_FUSED = {
    "norm_linear": _norm_linear,
    "norm_glu": _norm_glu,
    "norm_qkv": _norm_qkv,
    "moe_glu": _moe_glu,
    "attention": _attention,
}
