"""The checks that doctor runs on a device: each op against stock torch on the CPU (bit for bit where possible), and the
demo model patched against stock.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torch_foundry import ops, quant
from torch_foundry.aot import prebuild
from torch_foundry.testing import op_checks, tolerance, weights
from torch_foundry.testing import reference as plain
from torch_foundry.testing.step_checks import steps
from torch_foundry.testing.tolerance import BF16, DTYPES, F16, F32, assert_equal, generator, normal

Given = dict[str, Any]
Device = torch.device | str
OTHERS = [name for name in weights.samples() if name not in prebuild.PACKED]


@dataclass(frozen=True)
class Check:
    """One thing that must hold; `run` raises (`Mismatch`, if the result is wrong) when it does not."""

    name: str
    run: Callable[[Device], object]


def suite(quick: bool) -> list[Check]:
    """All checks; with `quick` those that find most, of few kernels: on a Mac each has to be compiled."""
    sized = [part(quick) for part in (_norms, _linear, _embedding, _glu, _rope, _attention)]
    named = (Check(*each) for each in steps(quick))
    return [check for part in (*sized, named, _model()) for check in part]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtypes(quick: bool) -> tuple[torch.dtype, ...]:
    return (F16,) if quick else DTYPES


def _on(check: Callable[[Given, Device], None], given: Callable[[], Given]) -> Callable[[Device], None]:
    """Inputs are made when a check runs: all of them together would be large."""
    return lambda device: check(given(), device)


# ---------------------------------------------------------------------------------------------------------------- norms


def _norm_inputs(dtype: torch.dtype, rows: int, hidden: int, kind: str, residual: bool) -> dict[str, Any]:
    g = generator(rows, hidden, kind)
    x, weight = normal(g, rows, hidden, dtype=dtype), normal(g, hidden, dtype=dtype)
    other = normal(g, rows, hidden, dtype=dtype) if residual else None
    return {"x": x, "weight": weight, "eps": 1e-6, "kind": kind, "residual": other}


def _norms(quick: bool) -> Iterator[Check]:
    cases = [(3, 896, "llama", False), (1, 4099, "llama", True), (5, 260, "gemma", True), (2, 33, "olmo", False)]
    for dtype in _dtypes(quick):
        for case in cases[:2] if quick else cases:
            rows, hidden, kind, _ = case
            given = partial(_norm_inputs, dtype, *case)
            yield Check(f"rms_norm {kind} [{rows}, {hidden}] {_short(dtype)}", _on(op_checks.rms_norm, given))
    yield Check("rms_norm: rows that lie apart, bit for bit", partial(_strided_norm, F16 if quick else F32))
    for hidden in (896,) if quick else (896, 33):
        given = partial(_layer_norm_inputs, F16, hidden)
        yield Check(f"layer_norm [3, {hidden}] {_short(F16)}", _on(op_checks.layer_norm, given))


def _layer_norm_inputs(dtype: torch.dtype, hidden: int) -> Given:
    x, weight, bias = (normal(generator(hidden, i), *((3, hidden)[i > 0 :]), dtype=dtype) for i in range(3))
    return {"x": x, "weight": weight, "bias": bias, "eps": 1e-5, "offset": 1.0}


def _strided_norm(dtype: torch.dtype, device: Device) -> None:
    given = op_checks.on(_norm_inputs(dtype, 6, 260, "llama", True), device)
    expected = ops.rms_norm(**given).cpu()
    for name in ("x", "residual"):
        apart = torch.cat((given[name], given[name][:, :4] * 0 + 9), -1)[:, :260]
        assert_equal(ops.rms_norm(**{**given, name: apart}).cpu(), expected)


# --------------------------------------------------------------------------------------------------- linear, embedding


def _linear_inputs(dtype: torch.dtype, m: int, n: int, k: int, name: str | None, **options: Any) -> Given:
    g = generator(m, n, k, name)
    dense = normal(g, n, k, dtype=F32, scale=k**-0.5)
    return {
        "x": normal(g, m, k, dtype=dtype),
        "weight": dense.to(dtype) if name is None else weights.packed(dense, name),
        "format": name,
        **{"bias": None, "residual": None, "scale": 1.0, "activation": None},
        **options,
    }


def _full_linear_inputs(dtype: torch.dtype, m: int, activation: str) -> Given:
    g = generator(m, activation)
    bias, residual = normal(g, 24, dtype=dtype), normal(g, m, 24, dtype=dtype)
    options = {"bias": bias, "residual": residual, "scale": 0.22, "activation": activation}
    return _linear_inputs(dtype, m, 24, 256, None, **options)


def _linear(quick: bool) -> Iterator[Check]:
    for other in () if quick else OTHERS:  # they share all but the unpacking
        yield Check(f"linear {other}: one-hot inputs read every weight back", partial(_one_hot, other))
    for name in (None, "q4_0") if quick else (None, *prebuild.PACKED):
        k = 9 * quant.FORMATS[name].block_size if name else 264
        label = name or "dense"
        for dtype in _dtypes(quick):
            for m in (1, 8, 33) if quick else (1, 2, 4, 8, 16, 33):
                given = partial(_linear_inputs, dtype, m, 65, k, name)
                yield Check(f"linear {label} [{m}, {k}] x [65, {k}] {_short(dtype)}", _on(op_checks.linear, given))
        yield Check(f"linear {label}: one-hot inputs read every weight back", partial(_one_hot, name))
        if not quick:
            yield Check(f"linear {label}: a row does not depend on its company", partial(_company, name, k))
    for activation in ("silu", "gelu_tanh", "gelu"):
        for m in (33,) if quick else (3, 33):
            given = partial(_full_linear_inputs, F16, m, activation)
            yield Check(f"linear [{m}, 256], bias, {activation}, scale, residual", _on(op_checks.linear, given))
    if not quick:
        scaled = partial(_linear_inputs, F16, 3, 24, 256, None, scale=-3.0)
        yield Check("linear [3, 256], scale", _on(op_checks.linear, scaled))
        for dtype in (F32, BF16):  # element by element: addresses that no vector fits
            given = partial(_linear_inputs, dtype, 1, 9, 257, None)
            yield Check(f"linear dense [1, 257] x [9, 257] {_short(dtype)}", _on(op_checks.linear, given))


def _one_hot(name: str | None, device: Device) -> None:
    given = _linear_inputs(F16, 1, 9, 2 * quant.FORMATS[name].block_size if name else 64, name)
    weight, k = given["weight"].to(device), given["x"].shape[1]
    eye = torch.eye(k, dtype=F16).to(device)
    for rows in (1, 8, k):
        got = torch.cat([ops.linear(eye[i : i + rows], weight, format=name) for i in range(0, k, rows)])
        assert_equal(got.cpu(), op_checks.dense_of(given).T.to(F16))


def _company(name: str | None, k: int, device: Device) -> None:
    given = op_checks.on(_linear_inputs(F32, 16, 9, k, name), device)
    alone = torch.cat([ops.linear(given["x"][i : i + 1], given["weight"], format=name) for i in range(16)])
    for m in (2, 5, 16):
        assert_equal(ops.linear(given["x"][:m], given["weight"], format=name).cpu(), alone[:m].cpu())


def _embedding(quick: bool) -> Iterator[Check]:
    def inputs(name: str | None) -> dict[str, Any]:
        weight = _linear_inputs(F16, 1, 50, 96 if name is None else 3 * quant.FORMATS[name].block_size, name)["weight"]
        return {
            "ids": torch.tensor([49, 0, 1, 7, 7]),
            "weight": weight,
            "format": name,
            "dtype": F16,
            "scale": 5.656854,
        }

    for name in (None,) if quick else (None, *prebuild.PACKED, *OTHERS):
        yield Check(f"embedding {name or 'dense'}, bit for bit", _on(op_checks.embedding, partial(inputs, name)))


# -------------------------------------------------------------------------------------------------------- gated product


def _glu(quick: bool) -> Iterator[Check]:
    def inputs(dtype: torch.dtype, n: int, activation: str) -> dict[str, Any]:
        g = generator(n, activation)
        gate = normal(g, 3, n, dtype=dtype, scale=3).clamp(-8, 8)
        return {"gate": gate, "up": normal(g, 3, n, dtype=dtype), "activation": activation}

    names = ("silu", "gelu_tanh") if quick else ("silu", "gelu_tanh", "gelu", "sigmoid", "softplus", "relu", "relu2")
    for dtype in _dtypes(quick):
        odd = () if quick else ((33, "silu"),)
        for n, activation in (*odd, *((768, name) for name in names)):
            check = _on(op_checks.glu, partial(inputs, dtype, n, activation))
            yield Check(f"glu {activation} [3, {n}] {_short(dtype)}", check)
    if not quick:
        yield Check(f"xielu [3, 768] {_short(F16)}", _on(op_checks.xielu, _xielu_inputs))


def _xielu_inputs() -> Given:
    settings = {"alpha_p": 0.2, "alpha_n": -1.1, "beta": 0.5, "eps": -1e-6}
    x = normal(generator("xielu"), 3, 768, dtype=F16, scale=3)
    return {"x": x, **{name: torch.tensor(value, dtype=F16) for name, value in settings.items()}}


# ------------------------------------------------------------------------------------------------------- rope and cache


def _rope(quick: bool) -> Iterator[Check]:
    def inputs(dtype: torch.dtype, tokens: int, rotary: int, start: int) -> dict[str, Any]:
        g = generator(tokens, rotary)
        angles = torch.rand(2, tokens, rotary, generator=g, dtype=torch.float64) * 6
        states = {n: normal(g, 2, tokens, heads * 64, dtype=dtype) for n, heads in (("q", 4), ("k", 2), ("v", 2))}
        caches = {n: normal(g, 2, 2, 16, 64, dtype=dtype) for n in ("k_cache", "v_cache")}
        table = {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)} if rotary else {"cos": None, "sin": None}
        return {**states, **table, **caches, "start": start, "head_dim": 64}

    cases = [(3, 64, 5), (1, 64, 15), (16, 32, 0), (2, 0, 3)]
    for dtype in _dtypes(quick):
        for case in cases[:2] if quick else cases:
            tokens, rotary, start = case
            name = f"rope_kv {tokens} tokens at {start}, {rotary} of 64 rotate, {_short(dtype)}"
            yield Check(name, _on(op_checks.rope_kv, partial(inputs, dtype, *case)))


# ------------------------------------------------------------------------------------------------------------ attention


def _attention_inputs(
    dtype: torch.dtype, queries: int, kv_len: int, head_dim: int, start: tuple[int, ...] = (), **options: Any
) -> dict[str, Any]:
    g, batch = generator(queries, kv_len, head_dim), max(1, len(start))
    caches = {n: normal(g, batch, 2, kv_len + 28, head_dim, dtype=dtype) for n in ("k_cache", "v_cache")}
    for cache in caches.values():
        cache[:, :, kv_len:] = float("nan")  # not yet written
        for b, first in enumerate(start):
            cache[b, :, :first] = float("nan")  # padding
    mask = None
    if options.pop("masked", False):
        mask = torch.rand(batch, 6, queries, kv_len, generator=g) < 0.7
        mask[..., kv_len // 2] = True
    return {
        "q": normal(g, batch, 6, queries, head_dim, dtype=dtype),
        **caches,
        "kv_len": kv_len,
        "scale": head_dim**-0.5,
        "mask": mask,
        "kv_start": torch.tensor(start, dtype=torch.int32) if start else None,
        **options,
    }


def _attention(quick: bool) -> Iterator[Check]:
    cases: list[tuple[str, tuple[int, int, int], dict[str, Any]]] = [
        ("decode", (1, 100, 64), {}),
        ("decode over several splits", (1, 700, 64), {}),
        ("8 queries", (8, 90, 128), {}),
        ("prefill", (40, 100, 64), {}),
        ("prefill", (33, 33, 128), {}),
        ("window", (3, 120, 64), {"window": 40}),
        ("padding", (2, 100, 64), {"start": (0, 40, 97)}),
        ("mask and softcap", (18, 100, 64), {"masked": True, "softcap": 30.0}),
        ("mask", (2, 100, 64), {"masked": True}),
    ]
    for dtype in _dtypes(quick):
        for name, sizes, options in cases[:4] if quick else cases:
            queries, kv_len, head_dim = sizes
            given = partial(_attention_inputs, dtype, *sizes, **options)
            title = f"attention {name}, {queries} queries, {kv_len} keys of {head_dim}, {_short(dtype)}"
            yield Check(title, _on(op_checks.attention, given))
    yield Check("attention: equal scores give exact means", _exact_means)


def _exact_means(device: Device) -> None:
    for queries, window in ((1, 0), (6, 5), (40, 0)):
        given = _attention_inputs(F32, queries, 70, 64, (0, 33), window=window)
        given["q"] = torch.zeros_like(given["q"])
        given["k_cache"] = torch.where(given["k_cache"].isnan(), torch.nan, 1.0)
        whole = tolerance.integers(generator(queries), *given["v_cache"].shape, dtype=F32, low=-99, high=99)
        given["v_cache"] = torch.where(given["v_cache"].isnan(), torch.nan, whole)
        seen = plain.visible(queries, 70, True, window, given["kv_start"], torch.device("cpu")).float()
        v = given["v_cache"][:, :, :70].nan_to_num(0.0).repeat_interleave(3, 1)
        mean = ((seen @ v) / seen.sum(-1, keepdim=True)).nan_to_num(0.0)
        assert_equal(ops.attention(**op_checks.on(given, device)).cpu(), mean.transpose(1, 2).reshape(2, queries, -1))


# ---------------------------------------------------------------------------------------------------------- whole model


def _model() -> Iterator[Check]:
    yield Check("demo model: patched on the device, greedy float32 tokens equal stock's on the CPU", _same_tokens)


def _same_tokens(device: Device, new_tokens: int = 24) -> None:
    import transformers

    from torch_foundry.demo_model import demo_model_path
    from torch_foundry.hf.api import patch, report

    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=F32, local_files_only=True)
    ids = torch.arange(40, 53)[None]
    options = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.eval().generate(ids, attention_mask=torch.ones_like(ids), **options)
    patched = patch(copy.deepcopy(model).to(device))
    placed = ids.to(device)
    got = patched.generate(placed, attention_mask=torch.ones_like(placed), **options)
    assert_equal(got.cpu(), expected)
    seen = report(patched)
    if seen.fallbacks or not seen.fused:
        raise tolerance.Mismatch(f"stock code ran: {dict(seen.fallbacks)}")
