"""What `tune` times and checks kernels with: inputs of an op, and the results that it must have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.core import devices, tuning
from torch_foundry.testing import reference
from torch_foundry.testing import tolerance as truth
from torch_foundry.testing import weights as blocks

EXPERTS, CHOSEN = 8, 4  # of a workload
CACHE_BYTES = 128 << 20  # weights are used in turn, so that they come from memory as in a model
EPS = 1e-5  # of norms
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Workload:
    """Calls of an op on inputs of their own, and the result that the first of them must have."""

    calls: list[partial[Tensor]]
    truth: Tensor
    stock: Tensor

    def check(self) -> None:
        """Raise `Mismatch` unless the first call's result is right, and the same when it is called again."""
        got = self.calls[0]()
        truth.assert_norm(got.cpu(), self.truth, self.stock)
        if not torch.equal(got, self.calls[0]()):
            raise truth.Mismatch("two calls gave different results")


def workload(key: tuning.Key, device: torch.device) -> Workload:
    """What `key` is timed and checked with."""
    if key.op == "attention":
        return _attention(key, device)
    return _experts(key, device) if key.op.startswith("moe") else _linear(key, device)


def _linear(key: tuning.Key, device: torch.device) -> Workload:
    g, name = truth.generator(key), key.format if quant.get_format(key.format).packed else None
    x, weight, dense = drawn(g, key, device, key.rows)
    gain = truth.normal(g, key.k, dtype=x.dtype)
    if normed := key.op.startswith("norm"):
        rows, rounded = (reference.rms_norm(t, gain.to(t.dtype), EPS) for t in (x.double(), x))
    else:
        rows, rounded = x.double(), x
    exact, stock = reference.linear(rows, dense.double()), reference.linear(rounded, dense.to(x.dtype))
    x, gain = x.to(device), gain.to(device)
    calls: list[partial[Tensor]] = [
        partial(ops.norm_linear, x, gain, EPS, [w], formats=[name])
        if normed
        else partial(ops.linear, x, w, format=name)
        for w in copies(weight, key.n, device)
    ]
    return Workload(calls, outputs(exact, key.n), outputs(stock, key.n))


def drawn(g: torch.Generator, key: tuning.Key, device: torch.device, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [rows, K], and the rows of W that are random, stored and dense: the others repeat them."""
    fmt = quant.get_format(key.format)
    dtype = DTYPES.get(key.format, torch.float16 if devices.of(device).half else torch.float32)
    x = truth.normal(g, rows, key.k, dtype=dtype)
    few = truth.normal(g, min(key.n, 4096), key.k, dtype=torch.float32, scale=key.k**-0.5)
    weight = blocks.packed(few, key.format) if fmt.packed else few.to(dtype)
    return x, weight, quant.dequantize(weight, key.format) if fmt.packed else weight


def copies(few: Tensor, n: int, device: torch.device) -> list[Tensor]:
    """Weights of n rows, which repeat those of `few`: more than stay in a cache."""
    whole = few.repeat(-(-n // len(few)), 1)[:n].to(device)
    return [whole] + [whole.clone() for _ in range(min(64, CACHE_BYTES // whole.nbytes))]


def outputs(few: Tensor, n: int) -> Tensor:
    """The n columns of a result, of which those of the random rows of W are given."""
    return few.repeat(1, -(-n // few.shape[1]))[:, :n]


def _experts(key: tuning.Key, device: torch.device) -> Workload:
    """A token and its experts, whose rows are a few in random order: the right products are taken from those."""
    g, fmt = truth.generator(key), quant.get_format(key.format)
    dtype = DTYPES.get(key.format, torch.float16 if devices.of(device).half else torch.float32)
    drawn = truth.normal(g, min(key.n, 1024), key.k, dtype=torch.float32, scale=key.k**-0.5)
    few = blocks.packed(drawn, key.format) if fmt.packed else drawn.to(dtype)
    dense = quant.dequantize(few, key.format) if fmt.packed else few
    rows = torch.randint(0, few.shape[0], (EXPERTS, key.n), generator=g)
    ids = torch.randperm(EXPERTS, generator=g)[None, :CHOSEN].int()
    weights = torch.rand(1, CHOSEN, generator=g)
    whole, name = few.to(device)[rows.to(device)], key.format if fmt.packed else None
    copies = [whole] + [whole.clone() for _ in range(min(64, CACHE_BYTES // whole.nbytes))]
    glu, half = key.op == "moe_glu", key.n // 2
    x = truth.normal(g, 1, *(() if glu else (CHOSEN,)), key.k, dtype=dtype)

    def plain(of: torch.dtype) -> Tensor:
        products = reference.linear(x.to(of), dense.to(of)).expand(1, CHOSEN, -1).gather(2, rows[ids.long()])
        if glu:
            return reference.glu(products[..., :half], products[..., half:], "silu")
        return (products * weights.to(of)[..., None]).sum(1)

    exact, stock, x, ids, weights = plain(torch.float64), plain(dtype), *(t.to(device) for t in (x, ids, weights))
    calls: list[partial[Tensor]] = [
        partial(ops.moe_glu, x, ids, w[:, :half], w[:, half:], format=name)
        if glu
        else partial(ops.moe_down, x, ids, weights, w, format=name)
        for w in copies
    ]
    return Workload(calls, exact, stock)


def _attention(key: tuning.Key, device: torch.device) -> Workload:
    """Decode with grouped-query heads over a long cache, which is what the choice matters for."""
    g, dtype, d = truth.generator(key), DTYPES[key.format], key.n
    heads, kv_heads, length = 8, 2, 1024 if devices.of(device).emulated else 16384
    q = truth.normal(g, 1, heads, 1, d, dtype=dtype)
    k, v = (truth.normal(g, 1, kv_heads, length, d, dtype=dtype) for _ in "kv")
    scale = d**-0.5
    exact = reference.attention(q.double(), k.double(), v.double(), length, scale=scale)
    stock = reference.attention(q, k, v, length, scale=scale)
    q, k, v = q.to(device), k.to(device), v.to(device)
    copies = [(k, v)] + [(k.clone(), v.clone()) for _ in range(min(16, CACHE_BYTES // (2 * k.nbytes)))]
    calls: list[partial[Tensor]] = [
        partial(ops.attention, q, keys, values, length, scale=scale) for keys, values in copies
    ]
    return Workload(calls, exact, stock)
