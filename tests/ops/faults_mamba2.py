"""Seeded faults of Mamba2's state space."""

from __future__ import annotations

from collections.abc import Callable

import test_mamba2 as tests
from kit import F32, Fault
from test_mamba2 import Case

BOUNDED = Case(lengths=(3, 10), counts=(0, 2), bounds=(0.5, 1.0))
GROUPED = Case(lengths=(3, 10), counts=(2, 0), groups=2, per_group=2, padding=True)


def _fault(name: str, old: str, new: str, check: Callable[[], None] | None = None) -> Fault:
    return Fault(f"mamba2-{name}", "mamba2.metal", old, new, check or (lambda: tests.test_accuracy(GROUPED, F32)))


GATED = """from[i] * Silu::apply(float(gate[i]));
    square = fma(gated, gated, square);"""
FAULTS = [
    _fault("state-zero-is-read", "state[r][c] = begin != 0 && row < P", "state[r][c] = begin + 1 != 0 && row < P"),
    _fault("keys-of-the-first-group", "+ shared * N + i - P", "+ 0 * N + i - P"),
    _fault("queries-are-keys", "(i < P + N ? 0 : keys - N)", "(i < P + N ? 0 : 0 * keys - N)"),
    _fault("no-bias-of-the-convolution", "has_conv_bias ? float(conv_bias[channel])", "has_conv_bias ? 0.0f"),
    _fault("padding-goes-in", "has_keep ? mixed * float(keep[token])", "has_keep ? mixed"),
    _fault("window-of-the-group-not-stored", "(is_x || head % args.per_group == 0)", "is_x"),
    _fault("no-bias-of-the-step", "softplus(float(dt[token * args.dt_stride + head]) + bias)",
           "softplus(float(dt[token * args.dt_stride + head]))"),
    _fault("state-not-decayed", "state[r][c] * decay)", "state[r][c])"),
    _fault("decay-without-the-step", "exp(rate * step)", "exp(rate)"),
    _fault("step-not-in-the-input", "fma(step * value, b[c]", "fma(value, b[c]"),
    _fault("nothing-passes-by", "fma(skip, value, sum)", "sum"),
    _fault("state-not-stored", "if (stored && row < P && column < N) after", "if (stored && row + 1 < P) after"),
    _fault("last-token-of-a-prompt", "t + 1 == tokens;", "t + 2 == tokens;"),
    _fault("norm-of-all-groups", "begin = row % groups * size;", "begin = 0 * size;"),
    _fault("square-without-the-gate", GATED, GATED.replace("fma(gated,", "fma(from[i],")),
    _fault("bounds-for-all-tokens", "t < bounded ? min(max(free", "has_prompt ? min(max(free",
           lambda: tests.test_accuracy(BOUNDED, F32)),
    _fault("no-upper-bound", "min(max(free, args.least), args.most)", "max(free, args.least)",
           lambda: tests.test_accuracy(BOUNDED, F32)),
    _fault("no-lower-bound", "max(free, args.least)", "free", lambda: tests.test_accuracy(BOUNDED, F32)),
    _fault("prompt-of-the-first-sequence", "prompt[group.y * args.prompt_stride]", "prompt[0]",
           lambda: tests.test_accuracy(BOUNDED, F32)),
    _fault("one-buffer-for-all-tokens", "inputs[t % 2]", "inputs[0]", tests.test_lane_orders),
    _fault("no-barrier", "threadgroup_barrier(mem_flags::mem_threadgroup);\n\n    const float free", "const float free",
           tests.test_lane_orders),
]  # fmt: skip
