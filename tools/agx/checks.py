"""Ops, run as machine code, against float64 within the bounds that doctor and the tests hold kernels to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tools.agx.compile import CompileError
from tools.agx.decode import DecodeError
from tools.agx.emulate import Emulator
from tools.agx.registers import Fault
from torch_foundry import ops
from torch_foundry.testing import expert_checks, op_checks, reference_mixers, step_checks, weights
from torch_foundry.testing.tolerance import (
    BF16,
    F16,
    F32,
    assert_equal,
    assert_norm,
    generator,
    normal,
    poisoned_outputs,
)

OPS = (  # those that are emulated
    "rms_norm", "linear", "norm_linear", "norm_glu", "norm_qkv", "attention", "rope_attention", "gated_delta",
    "moe_route", "moe_down", "sample", "sample_count_prompt",
)  # fmt: skip
FORMATS = (None, "q8_0", "q4_0", "q4_k", "mxfp4")


def checks() -> dict[str, Callable[[], None]]:
    """By name. Each raises `Mismatch`; shapes are small, as an instruction takes some 20 us."""
    return {
        "rms_norm": partial(_rms_norm, F16),
        "rms_norm of rows apart, with a residual, bfloat16": partial(_rms_norm, BF16, apart=True),
        **{f"linear {name or 'float16'}": partial(_linear, name) for name in FORMATS},
        "norm_linear q4_0": partial(step_checks._norm_linear, F16, 1, ("q4_0",) * 3, "cpu"),
        "norm_glu q4_0": partial(step_checks._norm_glu, F16, 1, "q4_0", "cpu"),
        "norm_qkv q4_0": partial(step_checks._norm_qkv, F16, 1, ("q4_0",) * 3, "cpu"),
        "moe_route": partial(expert_checks._route, "cpu"),
        "moe_down q8_0": partial(expert_checks._down, F16, "q8_0", 1, False, "cpu"),
        "attention of heads of 64, 4 queries a key": partial(_attention, 64, 4, 300),
        "attention of heads of 128": partial(_attention, 128, 1, 700),
        "rope_attention": partial(step_checks._rope_attention, F16, None, "cpu"),
        "rope_attention q8_0": partial(step_checks._rope_attention, F16, "q8_0", "cpu"),
        "gated_delta, a step": _gated_delta,
        "sample: the largest": partial(step_checks._greedy, F16, "cpu"),
        **{
            f"sample: {name}": partial(step_checks._draws, settings, 1, 200, 1, "cpu")
            for name, settings in step_checks.SETTINGS.items()
        },
    }


def run(emulator: Emulator, names: str) -> tuple[int, list[str]]:
    """Those whose names match a regular expression: how many, and what was wrong. Says of each what ran."""
    wrong = []
    found = {name: check for name, check in checks().items() if re.search(names, name)}
    for name, check in found.items():
        began, first = time.perf_counter(), len(emulator.ran)
        try:
            with emulator.running(OPS), poisoned_outputs():
                check()
        except (AssertionError, Fault, DecodeError, CompileError) as error:
            wrong.append(f"{name}: {error}")
        ran = ", ".join(kernel.entry for kernel, _ in emulator.ran[first:])
        print(f"{name}: {ran} ({time.perf_counter() - began:.1f} s)", flush=True)
    return len(found), wrong


def _rms_norm(dtype: torch.dtype, apart: bool = False) -> None:
    """apart: rows in another order than they lie in, with a residual."""
    g = generator("rms_norm", dtype)
    columns = 4104  # more than a threadgroup takes at once
    x, weight = normal(g, 2, columns, dtype=dtype), normal(g, columns, dtype=dtype)
    if apart:
        x = normal(g, 2, 2, columns + 8, dtype=dtype)[..., :columns].transpose(0, 1)
    added = normal(g, *x.shape, dtype=dtype) if apart else None
    op_checks.rms_norm({"x": x, "weight": weight, "eps": 1e-6, "kind": "llama", "residual": added})


def _linear(name: str | None) -> None:
    """Outputs and columns that end within what a threadgroup takes."""
    g = generator("linear", name)
    dense = normal(g, 36, 1280, dtype=F16, scale=0.1)
    weight = weights.packed(dense.float(), name) if name else dense
    x = normal(g, 1, 1280, dtype=F16)
    extra = {"format": name, "bias": None, "residual": normal(g, 1, 36, dtype=F16), "activation": None, "scale": 0.5}
    op_checks.linear({"x": x, "weight": weight, **extra})


def _attention(head_dim: int, group: int, keys: int) -> None:
    """One token; what lies past its keys is NaN."""
    g = generator("attention", head_dim, group)
    q = normal(g, 1, group, 1, head_dim, dtype=F16)
    k, v = (normal(g, 1, 1, keys + 20, head_dim, dtype=F16) for _ in range(2))
    k[:, :, keys:] = v[:, :, keys:] = torch.nan
    op_checks.attention({"q": q, "k_cache": k, "v_cache": v, "kv_len": keys, "scale": head_dim**-0.5})


def _gated_delta() -> None:
    """A token of two sequences, one of which begins."""
    heads, per_key, dim, width, slots = 1, 2, 64, 4, 3
    channels, states = (2 * heads + heads * per_key) * dim, 2 * slots

    def given(change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        g = generator("gated_delta")

        def numbers(*shape: int, dtype: torch.dtype = F16) -> Tensor:
            return change(normal(g, *shape, dtype=dtype))

        return {
            "q": numbers(2, heads, dim), "k": numbers(2, heads, dim), "v": numbers(2, heads, per_key, dim),
            "z": numbers(2, heads, per_key, dim), "b": numbers(2, heads, per_key), "a": numbers(2, heads, per_key),
            "conv_weight": numbers(channels, width), "a_log": numbers(heads * per_key),
            "dt_bias": numbers(heads * per_key), "norm_weight": numbers(dim),
            "conv_states": numbers(states, channels, width),
            "states": numbers(states, heads * per_key, dim, dim, dtype=F32),
            "runs": torch.tensor([[0, 1], [1, 1]], dtype=torch.int32),
            "table": torch.randperm(states, generator=g).to(torch.int32).view(2, slots),
            "count": torch.tensor([3, 0], dtype=torch.int32),
        }  # fmt: skip

    ours, stock, truth = given(lambda x: x), given(lambda x: x), given(lambda x: x.double())
    got = ops.gated_delta(**ours, eps=1e-6)
    expected, plain = (reference_mixers.gated_delta(**each, eps=1e-6) for each in (truth, stock))
    assert_norm(got, expected, plain)
    assert_norm(ours["states"], truth["states"], stock["states"])
    assert_equal(ours["conv_states"], stock["conv_states"])
