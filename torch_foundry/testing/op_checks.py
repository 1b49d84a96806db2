"""Checks of one op on given inputs against float64: by norm and per element, or bit for bit where a correct op is
exact.

`given` are the op's arguments as CPU tensors. The op runs on `device`, everything else on the CPU. Each function raises
`tolerance.Mismatch`. Bounds follow from the number of roundings in a correct kernel, not from its results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.core import devices, limits
from torch_foundry.testing import reference as plain
from torch_foundry.testing import reference_backward as backward
from torch_foundry.testing.tolerance import (
    BF16,
    F16,
    U32,
    UNIT,
    assert_bound,
    assert_equal,
    assert_norm,
    double,
)

Given = dict[str, Any]
Device = torch.device | str


def on(given: Given, device: Device) -> Given:
    """The arguments with their tensors on `device`."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in given.items()}


# ---------------------------------------------------------------------------------------------------------------- norms


def norm_bound(truth: Tensor, dtype: torch.dtype, hidden: int, kind: str, residual: Tensor | None = None) -> Tensor:
    """Sum of squares and its root: about sqrt(n) roundings of f32; then one or two roundings to dtype."""
    normed = (truth if residual is None else truth - residual).abs()
    cast = UNIT[dtype] if kind == "llama" else 0.0
    return 1.01 * (UNIT[dtype] * truth.abs() + (cast + (8 + 2 * hidden**0.5) * U32) * normed)


def rms_norm(given: Given, device: Device = "cpu") -> None:
    """ops.rms_norm."""
    wide = double(given)
    truth = plain.rms_norm(**wide)
    stock = plain.rms_norm(**given)
    got = ops.rms_norm(**on(given, device)).cpu()
    assert_norm(got, truth, stock)
    unscaled = plain.rms_norm(**{**wide, "scale": None})
    bound = norm_bound(unscaled, got.dtype, got.shape[-1], given["kind"], wide["residual"])
    if (scale := wide.get("scale")) is not None:
        bound = bound * scale.abs() + UNIT[got.dtype] * truth.abs()
    assert_bound(got, truth, bound)


def rms_norm_backward(given: Given, device: Device = "cpu") -> None:
    """ops.rms_norm_backward, and the weight's gradient of what it returns: about sqrt(n) roundings of f32 in a sum."""
    wide = double(given)
    (truth, root), (stock, _) = backward.rms_norm_backward(**wide), backward.rms_norm_backward(**given)
    grad, x = wide["grad"], wide["x"]
    mine = on(given, device)
    got, inverse = ops.rms_norm_backward(**mine)
    assert_norm(got.cpu(), truth, stock)
    rounded = (8 + 2 * x.shape[-1] ** 0.5) * U32
    weighed = (grad * (wide["weight"] + (given["kind"] == "gemma"))).abs()
    size = root[..., None] * (weighed + x.abs() * root[..., None].square() * (weighed * x.abs()).mean(-1, keepdim=True))
    assert_bound(got.cpu(), truth, UNIT[got.dtype] * truth.abs() + 1.01 * rounded * size)
    assert_bound(inverse.cpu(), root, rounded * root)

    truth, stock = (
        backward.rms_norm_backward_weight(grad, x, root),
        backward.rms_norm_backward_weight(given["grad"], given["x"], root.float()),
    )
    got = ops.rms_norm_backward_weight(mine["grad"], mine["x"], inverse).cpu()
    assert_norm(got, truth, stock)
    terms = (grad * x * root[..., None]).abs().flatten(0, -2)
    assert_bound(
        got, truth, UNIT[got.dtype] * truth.abs() + ((4 + 2 * len(terms) ** 0.5) * U32 + rounded) * terms.sum(0)
    )


def layer_norm(given: Given, device: Device = "cpu") -> None:
    """ops.layer_norm: the mean and the variance are sums of f32; a difference from the mean has the error of both."""
    wide = double(given)
    truth, got = plain.layer_norm(**wide), ops.layer_norm(**on(given, device)).cpu()
    assert_norm(got, truth, plain.layer_norm(**given))
    x, hidden = wide["x"], got.shape[-1]
    spread = (x.var(-1, correction=0, keepdim=True) + wide["eps"]).sqrt()
    gain = 1.0 if wide["weight"] is None else (wide["weight"] + wide["offset"]).abs()
    bias = 0.0 if wide["bias"] is None else wide["bias"].abs()
    scaled = (truth - (0.0 if wide["bias"] is None else wide["bias"])).abs()
    mean = x.abs().mean(-1, keepdim=True) / spread * gain
    error = (8 + 2 * hidden**0.5) * U32 * (scaled + mean)
    assert_bound(got, truth, 1.01 * (UNIT[got.dtype] * truth.abs() + error + 2 * U32 * bias))


# --------------------------------------------------------------------------------------------------- linear, embedding


def dense_of(given: Given) -> Tensor:
    """The weights that `given` stands for, in float64."""
    weight, name = given["weight"], given["format"]
    return (weight if name is None else quant.dequantize(weight, name)).double()


def linear_bound(given: Given, truth: Tensor, rounded: bool = False) -> Tensor:
    """One rounding to dtype; about sqrt(k) of f32 in the sum; a few in the epilogue, whose slope is below 1.13, but for
    relu². rounded: weights are, to x's dtype."""
    x, weight, scale = given["x"].double(), dense_of(given), abs(given["scale"])
    terms = x.abs() @ weight.abs().T
    sums = x @ weight.T + (0.0 if given["bias"] is None else given["bias"].double())
    residual = 0.0 if given["residual"] is None else given["residual"].double().abs()
    accumulated = (4 * x.shape[-1] ** 0.5 * terms + 12 * sums.abs()) * U32
    accumulated = accumulated + (UNIT[given["x"].dtype] * terms if rounded else 0.0)
    slope = 2 * sums.abs() if given["activation"] == "relu2" else 1.13
    return 1.01 * (UNIT[given["x"].dtype] * truth.abs() + slope * scale * accumulated + 2 * U32 * residual)


def linear(given: Given, device: Device = "cpu", rounded: bool | None = None) -> None:
    """ops.linear. rounded: whether it may round packed weights to x's dtype, as those of a dense model are; None:
    beyond few rows, on the host for float16 alone."""
    dtype, rows = given["x"].dtype, given["x"].numel() // max(1, given["x"].shape[-1])
    if rounded is None:
        some = dtype == F16 or (dtype == BF16 and not devices.of(torch.device(device)).host_memory)
        rounded = given["format"] is not None and rows > limits.FEW_ROWS and some
    assert_linear(ops.linear(**on(given, device)).cpu(), given, rounded)


def assert_linear(got: Tensor, given: Given, rounded: bool) -> None:
    """Raises Mismatch unless `got` is what `given` asks ops.linear for."""
    truth = plain.linear(**double(given))
    assert_norm(got, truth, plain.linear(**given))
    assert_bound(got, truth, linear_bound(given, truth, rounded))


def linear_backward_input(given: Given, device: Device = "cpu") -> None:
    """ops.linear_backward_input: one rounding to dtype; about sqrt(n) of f32 in the sum."""
    truth = plain.linear_backward_input(**double(given))
    got = ops.linear_backward_input(**on(given, device)).cpu()
    assert_norm(got, truth, plain.linear_backward_input(**given))
    terms = given["grad"].double().abs() @ dense_of(given).abs()
    accumulated = 4 * given["grad"].shape[-1] ** 0.5 * terms * U32
    assert_bound(got, truth, 1.01 * (UNIT[got.dtype] * truth.abs() + accumulated))


def embedding(given: Given, device: Device = "cpu") -> None:
    """ops.embedding: it rounds where torch does, so every bit is torch's."""
    assert_equal(ops.embedding(**on(given, device)).cpu(), plain.embedding(**given))


# -------------------------------------------------------------------------------------------------------- gated product


def glu(given: Given, device: Device = "cpu") -> None:
    """ops.glu."""
    wide = double(given)
    truth, got = plain.glu(**wide), ops.glu(**on(given, device)).cpu()
    assert_norm(got, truth, plain.glu(**given))
    gate = wide["gate"] * given.get("gate_scale", 1.0)
    # exp's argument carries relative roundings, which it multiplies by the argument; Phi's fit adds 3e-7
    argument = torch.maximum(gate.abs() * (1 + 0.0447 * gate.square()) * 1.6, gate.square())
    bound = (UNIT[got.dtype] + U32 * (16 + 3 * argument)) * truth.abs() + 1e-15 * gate.abs()
    assert_bound(got, truth, bound)


def xielu(given: Given, device: Device = "cpu") -> None:
    """ops.xielu: what is summed, each with a few roundings of f32."""
    wide = double(given)
    truth, got = plain.xielu(**wide), ops.xielu(**on(given, device)).cpu()
    assert_norm(got, truth, plain.xielu(**given))
    line = (wide["beta"] * wide["x"]).abs()
    assert_bound(got, truth, UNIT[got.dtype] * truth.abs() + 16 * U32 * ((truth.abs() + 2 * line) + 1e-6))


def glu_backward(given: Given, device: Device = "cpu") -> None:
    """ops.glu_backward: of slopes, sums and products of a few numbers, as of `glu`."""
    wide = double(given)
    truth, stock = backward.glu_backward(**wide), backward.glu_backward(**given)
    found = [each.cpu() for each in ops.glu_backward(**on(given, device))]
    gate, up = wide["gate"] * given.get("gate_scale", 1.0), wide["up"]
    argument = torch.maximum(gate.abs() * (1 + 0.0447 * gate.square()) * 1.6, gate.square())
    sizes = (1 + gate.abs()) * (1 + up.abs()), gate.abs() + 1
    for got, exact, theirs, size in zip(found, truth, stock, sizes, strict=True):
        assert_norm(got, exact, theirs)
        rounded = U32 * (24 + 3 * argument) * size * wide["grad"].abs()
        assert_bound(got, exact, UNIT[got.dtype] * exact.abs() + rounded)


# ------------------------------------------------------------------------------------------------------- rope and cache


def own(given: Given) -> Given:
    """With caches of its own."""
    return {**given, "k_cache": given["k_cache"].clone(), "v_cache": given["v_cache"].clone()}


def _magnitude(given: Given, x: Tensor) -> Tensor:
    """|x cos| + |y sin| for x[B, L, H*D], as [B, H, L, D]."""
    sizes = {**double(given), "q": x.double().abs()}
    if sizes["cos"] is not None:
        sizes["cos"], sizes["sin"] = sizes["cos"].abs(), sizes["sin"].abs()
        half = sizes["sin"].shape[-1] // 2  # the reference subtracts in the first half
        sizes["sin"][..., :half] *= -1
    return plain.rope_kv(**own(sizes))


def rope_kv(given: Given, device: Device = "cpu") -> None:
    """ops.rope_kv: the rotation, what is written to the caches, and that nothing else in them changes."""
    dtype, start = given["q"].dtype, given["start"]
    mine, stock, truth = on(own(given), device), own(given), own(double(given))
    got = ops.rope_kv(**mine).cpu()
    got_stock, expected = plain.rope_kv(**stock), plain.rope_kv(**truth)
    k_cache, v_cache = mine["k_cache"].cpu(), mine["v_cache"].cpu()
    assert_norm(got, expected, got_stock)
    assert_bound(got, expected, UNIT[dtype] * expected.abs() + 3 * U32 * _magnitude(given, given["q"]))
    new = slice(start, start + given["q"].shape[1])
    written, written_truth = k_cache[:, :, new], truth["k_cache"][:, :, new]
    bound = UNIT[dtype] * written_truth.abs() + 3 * U32 * _magnitude(given, given["k"])
    assert_bound(written.contiguous(), written_truth, bound)
    assert_equal(v_cache, stock["v_cache"])
    for old in (slice(0, new.start), slice(new.stop, None)):
        assert_equal(k_cache[:, :, old], given["k_cache"][:, :, old])


def rope(given: Given, device: Device = "cpu") -> None:
    """ops.rope: one rounding of a sum of two products."""
    truth, got = backward.rope(**double(given)), ops.rope(**on(given, device)).cpu()
    assert_norm(got, truth, backward.rope(**given))
    pair = 2 * given["x"].double().abs().amax(-1, keepdim=True) * max(1.0, float(given["cos"].abs().max()))
    assert_bound(got, truth, UNIT[got.dtype] * truth.abs() + 3 * U32 * pair)


# ------------------------------------------------------------------------------------------------------------ attention


def finite(given: Given) -> Given:
    """With zeros for what no query may read: plain torch multiplies it by zero, and NaN would remain."""
    return {**given, "k_cache": given["k_cache"].nan_to_num(0.0), "v_cache": given["v_cache"].nan_to_num(0.0)}


def attention_bound(given: Given, truth: Tensor, dtype: torch.dtype) -> Tensor:
    """A score's rounding errors shift its weight by as much, relatively; then K sums of weight times value. Subnormal
    numbers may be taken for zeros, as GPUs do."""
    if (more := given.get("value_queries")) is not None:  # keys of more columns
        keys = torch.cat((given["k_cache"], given["v_cache"]), -1)
        given = {**given, "q": torch.cat((given["q"], more), -1), "k_cache": keys, "value_queries": None}
    sizes = {**given, "q": given["q"].abs(), "k_cache": given["k_cache"].abs(), "v_cache": given["v_cache"].abs()}
    group = sizes["q"].shape[1] // sizes["k_cache"].shape[1]
    k = sizes["k_cache"][:, :, : given["kv_len"]].repeat_interleave(group, 1)
    products = (sizes["q"] @ k.transpose(2, 3)).amax(-1).transpose(1, 2) * given["scale"]  # [B, L, H]
    columns = sizes["v_cache"].shape[-1]
    score_error = U32 * (4 * sizes["q"].shape[-1] ** 0.5 + 8) * products.repeat_interleave(columns, -1)
    values = plain.attention(**{**given, "v_cache": sizes["v_cache"]})  # sum of p |v|
    sums = U32 * (16 + 4 * given["kv_len"] ** 0.5)
    return UNIT[dtype] * truth.abs() + (2 * score_error + sums) * values + torch.finfo(torch.float32).tiny


def attention(given: Given, device: Device = "cpu") -> None:
    """ops.attention. What no query may read may hold NaN."""
    wide = double(finite(given))
    truth, got = plain.attention(**wide), ops.attention(**on(given, device)).cpu()
    assert_norm(got, truth, plain.attention(**finite(given)))
    assert_bound(got, truth, attention_bound(wide, truth, got.dtype))
