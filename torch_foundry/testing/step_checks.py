"""Checks of what decode steps are made of: a norm with the projections after it, experts, the choice of a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torch_foundry import ops, quant
from torch_foundry.quant import kv
from torch_foundry.sampling import Settings
from torch_foundry.sampling.sampler import Sampler
from torch_foundry.testing import reference as plain
from torch_foundry.testing import reference_attention, sampler_reference
from torch_foundry.testing.expert_checks import experts
from torch_foundry.testing.tolerance import (
    BF16,
    F16,
    F32,
    Mismatch,
    assert_equal,
    assert_norm,
    double,
    generator,
    normal,
)

Given = dict[str, Any]
Device = torch.device | str
Named = Iterator[tuple[str, Callable[[Device], None]]]


def steps(quick: bool) -> Named:
    """Name and check of each."""
    dtypes = (F16,) if quick else (F32, F16, BF16)
    packed = () if quick else ((("q8_0", "q8_0", "q4_0"), 1), (("q4_0", "q4_0", "q4_0"), 3))
    for formats, rows in (((None, None, None), 1), *packed):
        for dtype in dtypes:
            label = (
                f"{'dense' if formats[0] is None else ', '.join(dict.fromkeys(formats))} [{rows}, 320] {_short(dtype)}"
            )
            yield f"norm_linear {label}", partial(_norm_linear, dtype, rows, formats)
            yield f"norm_glu {label}", partial(_norm_glu, dtype, rows, formats[0])
            yield f"norm_qkv {label}", partial(_norm_qkv, dtype, rows, formats)
    for dtype, cache in product(dtypes, (None,) if quick else (None, "q8_0")):
        yield f"rope_attention {cache or 'dense'} {_short(dtype)}", partial(_rope_attention, dtype, cache)
    for dtype in () if quick else dtypes:
        yield f"permute_columns [3, 321] with a norm_weight, {_short(dtype)}", partial(_permute_columns, dtype)
    if not quick:
        yield "norm_linear: a row does not depend on its company", _company
    yield from experts(quick)
    for dtype in dtypes:
        yield f"sample: the largest of 9000 {_short(dtype)}, the lowest of equals", partial(_greedy, dtype)
    for name, settings in SETTINGS.items():
        yield f"sample: {name}, token for token", partial(_draws, settings, 100, 1500, 3)
    # a vocabulary of today's models, for which a draw has its largest threadgroup
    yield "sample: top-k, top-p of 151936, token for token", partial(_draws, TRUNCATED, 2, 151936, 1)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _on(given: Given, device: Device) -> Given:
    moved: Given = tree_map_only(Tensor, lambda tensor: tensor.to(device, copy=True), given)
    return moved


# ---------------------------------------------------------------------------------------------------- norm, projections


def _inputs(dtype: torch.dtype, rows: int, formats: tuple[str | None, ...], widths: tuple[int, ...]) -> Given:
    g, k = generator(rows, formats, widths), 320
    dense = [normal(g, n, k, dtype=dtype, scale=k**-0.5) for n in widths]
    weights = [w if f is None else quant.quantize(w.float(), f) for w, f in zip(dense, formats, strict=True)]
    return {
        "x": normal(g, rows, k, dtype=dtype, scale=0.01),  # so that eps counts
        "norm_weight": normal(g, k, dtype=dtype),
        "eps": 1e-5,
        "weights": weights,
        "formats": list(formats),
        "biases": [normal(g, n, dtype=dtype) if i == 1 else None for i, n in enumerate(widths)],
    }


def _projections(given: Given) -> list[Tensor]:
    h = plain.rms_norm(given["x"], given["norm_weight"], given["eps"])
    parts = zip(given["weights"], given["formats"], given["biases"], strict=True)
    return [plain.linear(h, weight, format=name, bias=bias) for weight, name, bias in parts]


def _norm_linear(dtype: torch.dtype, rows: int, formats: tuple[str | None, ...], device: Device) -> None:
    given = _inputs(dtype, rows, formats, (24, 9, 9))
    truth, stock = (torch.cat(_projections(g), -1) for g in (double(given), given))
    assert_norm(ops.norm_linear(**_on(given, device)).cpu(), truth, stock)


def _company(device: Device) -> None:
    given = _on(_inputs(F16, 8, ("q8_0", "q8_0", "q8_0"), (24, 9, 9)), device)
    together = ops.norm_linear(**given).cpu()
    for rows in (1, 2, 5):
        assert_equal(ops.norm_linear(**{**given, "x": given["x"][:rows]}).cpu(), together[:rows])


def _permute_columns(dtype: torch.dtype, device: Device) -> None:
    g = generator("permute_columns")
    given = {"x": normal(g, 3, 321, dtype=dtype), "norm_weight": normal(g, 321, dtype=dtype)}
    given["order"] = torch.randperm(321, generator=g).int()
    for got, expected in zip(
        ops.permute_columns_and_norm(**_on(given, device)), plain.permute_columns_and_norm(**given), strict=True
    ):
        assert_equal(got.cpu(), expected)


def _norm_glu(dtype: torch.dtype, rows: int, name: str | None, device: Device) -> None:
    given = _inputs(dtype, rows, (name, name), (33, 33))
    (gate_64, up_64), (gate_own, up_own) = _projections(double(given)), _projections(given)
    truth, stock = plain.glu(gate_64, up_64), plain.glu(gate_own, up_own)
    placed = _on(given, device)
    (gate, up), (format_, _) = placed.pop("weights"), placed.pop("formats")
    got = ops.norm_glu(gate=gate, up=up, format=format_, **placed)
    assert_norm(got.cpu(), truth, stock)


def _norm_qkv(dtype: torch.dtype, tokens: int, formats: tuple[str | None, ...], device: Device) -> None:
    given = _inputs(dtype, tokens, formats, (128, 64, 64))
    g = generator("heads", tokens)
    angles = torch.rand(40, 32, generator=g, dtype=torch.float64) * 6
    caches = {name: normal(g, 1, 2, 16, 32, dtype=dtype) for name in ("k_cache", "v_cache")}
    heads: Given = {
        "cos": angles.cos().to(dtype),
        "sin": angles.sin().to(dtype),
        **caches,
        "start": 0,
        "head_dim": 32,
        "positions": torch.randperm(40, generator=g)[None, :tokens].int(),
        "step": torch.tensor([5, 0], dtype=torch.int32),
    }

    def expected(of: Given) -> tuple[Tensor, Tensor, Tensor]:
        own = {**of, "k_cache": of["k_cache"].clone(), "v_cache": of["v_cache"].clone()}
        q, k, v = (projection[None] for projection in _projections(of))
        q = plain.rope_kv(q, k, v, **{name: own[name] for name in heads})
        return q, own["k_cache"], own["v_cache"]

    placed = _on({**given, **heads, "x": given["x"][None]}, device)
    got = ops.norm_qkv(**placed), placed["k_cache"], placed["v_cache"]
    for mine, truth, stock in zip(got, expected(double({**given, **heads})), expected({**given, **heads}), strict=True):
        assert_norm(mine.cpu(), truth, stock)
    written = slice(5, 5 + tokens)
    for name, before in caches.items():
        after = placed[name].cpu()
        after[:, :, written] = before[:, :, written] = 0
        assert_equal(after, before)


def _rope_attention(dtype: torch.dtype, cache: str | None, device: Device) -> None:
    """A token behind 200, whose heads pass norms, and its row of the caches."""
    g, past = generator("rope_attention", str(dtype)), 200
    angles = torch.rand(256, 64, generator=g, dtype=torch.float64) * 6
    given: Given = {
        **{name: normal(g, 2, 1, heads * 64, dtype=dtype) for name, heads in (("q", 4), ("k", 2), ("v", 2))},
        **{name: normal(g, 2, 2, 256, 64, dtype=dtype) for name in ("k_cache", "v_cache")},
        **{f"{name}_norm": normal(g, 64, dtype=dtype) for name in "qk"},
        "cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype), "kv_len": past + 1, "head_dim": 64,
        "scale": 0.125, "eps": 1e-5, "positions": torch.tensor([[200], [90]], dtype=torch.int32),
        "step": torch.tensor([past, 0], dtype=torch.int32), "k_format": cache, "v_format": cache,
    }  # fmt: skip
    if cache:
        given |= {name: kv.pack_rows(given[name], cache) for name in ("k_cache", "v_cache")}
    placed, stock, truth = _on(given, device), _on(given, "cpu"), _on(double(given), "cpu")
    got = ops.rope_attention(**placed)
    if cache:  # what is stored is rounded: all attend to the same
        stock |= {name: placed[name].cpu() for name in ("k_cache", "v_cache")}
        truth |= {name: placed[name].cpu() for name in ("k_cache", "v_cache")}
    expected, theirs = (reference_attention.rope_attention(**of) for of in (truth, stock))
    assert_norm(got.cpu(), expected, theirs)
    for name in ("k_cache", "v_cache"):
        if not cache:
            assert_norm(placed[name].cpu(), truth[name], stock[name])


# ---------------------------------------------------------------------------------------------------------- next tokens

SETTINGS = {
    "temperature": Settings(do_sample=True, temperature=0.8),
    "top-k, top-p, min-p": Settings(do_sample=True, temperature=0.9, top_k=40, top_p=0.9, min_p=0.02),
    "penalties": Settings(do_sample=True, repetition_penalty=1.3, presence_penalty=0.2, no_repeat_ngram=2),
}


TRUNCATED = Settings(do_sample=True, top_k=50, top_p=0.9)


def _sampler(settings: Settings, ids: Tensor, vocabulary: int, steps: int, device: Device) -> Sampler:
    capacity = ids.shape[1] + steps
    return Sampler(settings, ids.to(device), vocab_size=vocabulary, capacity=capacity, seed=11)


def _greedy(dtype: torch.dtype, device: Device) -> None:
    logits = normal(generator("greedy"), 3, 9000, dtype=dtype)
    logits[1, [17, 8999]] = 300.0
    logits[2] = -1.0
    got = _sampler(Settings(), torch.zeros(3, 1, dtype=torch.int64), 9000, 1, device).step(logits.to(device))
    assert_equal(got.cpu(), torch.tensor([[int((row == row.max()).nonzero()[0])] for row in logits]))


def _draws(settings: Settings, rows: int, vocabulary: int, steps: int, device: Device) -> None:
    """The oracle knows the random numbers, and so which token they choose."""
    g = generator("draws")
    logits = normal(g, rows, vocabulary, dtype=F32, scale=3.0)
    prompt = torch.randint(0, vocabulary, (rows, 4), generator=g)
    sampler = _sampler(settings, prompt, vocabulary, steps, device)
    for step in range(steps):
        ids = sampler.ids[:, : prompt.shape[1] + step].cpu().numpy()
        scores = sampler_reference.processed(logits.numpy(), ids, prompt.shape[1], settings)
        u = sampler_reference.uniforms(sampler.seed, sampler.streams.cpu().numpy(), step)
        tokens = sampler.step(logits.to(device))[:, 0].cpu().numpy()
        if len(wrong := sampler_reference.wrong_draws(tokens, scores, settings, u)):
            raise Mismatch(f"step {step}: {len(wrong)} of {rows} tokens differ, the first in row {wrong[0]}")
    sampler.check()
