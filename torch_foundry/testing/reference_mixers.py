"""Mixers with a state in plain torch; see `reference` for what it is for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_weight: Tensor, a_log: Tensor,
    dt_bias: Tensor, norm_weight: Tensor, eps: float, conv_states: Tensor, states: Tensor, runs: Tensor, table: Tensor,
    count: Tensor, *, beta_scale: float = 1.0, log_bound: float = 0.0, sigmoid_gate: bool = False,
    prompts: bool = False,
) -> Tensor:  # fmt: skip
    dtype, wide = q.dtype, states.dtype  # float32, or float64
    tokens, key_heads, key_dim = q.shape
    per_key, value_dim = v.shape[2:]
    slots = table.shape[1]
    inputs = torch.cat([x.reshape(tokens, -1) for x in (q, k, v)], 1)
    beta = beta_scale * b.sigmoid().flatten(1).to(wide)
    heads = key_heads * per_key
    step = (a.flatten(1).to(wide) + dt_bias.to(wide)).view(tokens, heads, -1)  # [T, heads, rows or 1]
    rate = a_log.to(wide).exp()[:, None]
    decay = (log_bound * (rate * step).sigmoid() if log_bound else -rate * F.softplus(step)).exp()
    gate = torch.sigmoid if sigmoid_gate else F.silu
    y = torch.zeros(tokens, heads, value_dim, dtype=dtype)
    for (first, length), row, number in zip(runs.tolist(), table.long(), count.tolist(), strict=True):
        stored = length < slots
        slot = row[number % slots]
        window = conv_states[slot] if number else torch.zeros_like(conv_states[0])
        state = states[slot] if number else torch.zeros_like(states[0])
        for t in range(first, first + length):
            window = torch.cat([window[:, 1:], inputs[t, :, None]], 1)
            mixed = F.silu((window * conv_weight).sum(1)).to(wide)
            q_t, k_t, v_t = mixed.split([key_heads * key_dim] * 2 + [key_heads * per_key * value_dim])
            q_t, k_t = (_unit(x.view(key_heads, key_dim)).repeat_interleave(per_key, 0) for x in (q_t, k_t))
            state = state * decay[t, :, :, None]
            change = (v_t.view(-1, value_dim) - torch.einsum("hk,hkv->hv", k_t, state)) * beta[t, :, None]
            state = state + k_t[:, :, None] * change[:, None]
            o = torch.einsum("hk,hkv->hv", q_t, state).to(dtype).to(wide) * key_dim**-0.5
            normed = norm_weight * (o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + eps)).to(dtype)
            y[t] = (normed * gate(z[t].reshape(-1, value_dim).to(wide))).to(dtype)
            if stored or t == first + length - 1:
                slot = row[(number + 1 + (t - first if stored else 0)) % slots]
                conv_states[slot], states[slot] = window, state
    return y.flatten(1)


def _normed(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def short_conv(
    bcx: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, runs: Tensor, table: Tensor, count: Tensor
) -> Tensor:
    slots, (b, c, x) = table.shape[1], bcx.chunk(3, 1)
    inputs, y = b * x, torch.zeros_like(b)
    for (first, length), row, number in zip(runs.tolist(), table.long(), count.tolist(), strict=True):
        stored = length < slots
        window = states[row[number % slots]] if number else torch.zeros_like(states[0])
        for t in range(first, first + length):
            window = torch.cat([window[:, 1:], inputs[t, :, None]], 1)
            mixed = (window * weight).sum(1)
            y[t] = c[t] * (mixed if bias is None else mixed + bias)
            if stored or t == first + length - 1:
                states[row[(number + 1 + (t - first if stored else 0)) % slots]] = window
    return y


def mamba2(
    x: Tensor, dt: Tensor, z: Tensor, conv_weight: Tensor, conv_bias: Tensor | None, a_log: Tensor, dt_bias: Tensor,
    d: Tensor, norm_weight: Tensor | None, eps: float, conv_states: Tensor, states: Tensor, runs: Tensor, table: Tensor,
    count: Tensor, *, keep: Tensor | None = None, prompt: Tensor | None = None,
    bounds: tuple[float, float] = (0.0, math.inf), prompts: bool = False, norm_before_gate: bool = False,
    factors: Sequence[float] = (1.0,) * 5,
) -> Tensor:  # fmt: skip
    dtype, wide = x.dtype, states.dtype  # float32, or float64
    heads, head_dim, state_dim = states.shape[1:]
    inner, slots = heads * head_dim, table.shape[1]
    groups = (x.shape[1] - inner) // (2 * state_dim)
    z, dt = z * factors[0], dt * factors[4]
    widths = inner, groups * state_dim, groups * state_dim
    x = torch.cat([part * factor for part, factor in zip(x.split(widths, 1), factors[1:4], strict=True)], 1)
    step = F.softplus(dt.to(wide) + dt_bias.to(wide))
    for (first, _), length in zip(runs.tolist(), [0] * len(runs) if prompt is None else prompt.tolist(), strict=True):
        step[first : first + length].clamp_(*bounds)
    decay = (-a_log.to(wide).exp() * step).exp()
    y = torch.zeros(len(x), inner, dtype=dtype)
    for (first, length), row, number in zip(runs.tolist(), table.long(), count.tolist(), strict=True):
        stored = length < slots
        slot = row[number % slots]
        window = conv_states[slot] if number else torch.zeros_like(conv_states[0])
        state = states[slot] if number else torch.zeros_like(states[0])
        for t in range(first, first + length):
            window = torch.cat([window[:, 1:], x[t, :, None]], 1)
            mixed = (window * conv_weight).sum(1) + (0 if conv_bias is None else conv_bias)
            mixed = F.silu(mixed).to(wide) * (1 if keep is None else keep[t].to(wide))
            u, b, c = mixed.split(widths)
            u = u.view(heads, head_dim)
            b, c = (each.view(groups, state_dim).repeat_interleave(heads // groups, 0) for each in (b, c))
            state = state * decay[t, :, None, None] + (step[t, :, None] * u)[..., None] * b[:, None]
            o = torch.einsum("hpn,hn->hp", state, c).to(dtype).to(wide) + d.to(wide)[:, None] * u
            o, gate = o.view(groups, -1), F.silu(z[t].to(wide)).view(groups, -1)
            gated = o if norm_before_gate else o * gate
            if norm_weight is not None:
                gated = norm_weight.view(groups, -1) * _normed(gated, eps).to(dtype)
            y[t] = (gated * gate if norm_before_gate else gated).flatten().to(dtype)
            if stored or t == first + length - 1:
                slot = row[(number + 1 + (t - first if stored else 0)) % slots]
                conv_states[slot], states[slot] = window, state
    return y
