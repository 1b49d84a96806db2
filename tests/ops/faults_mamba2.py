"""Seeded faults of Mamba2's state space."""

from __future__ import annotations

from collections.abc import Callable

import test_mamba2 as tests
from kit import F32, Fault, within
from test_mamba2 import Case

BOUNDED = Case(lengths=(3, 10), counts=(0, 2), bounds=(0.5, 1.0))
GROUPED = Case(lengths=(3, 10), counts=(2, 0), groups=2, per_group=2, padding=True)


PROMPT = Case(lengths=(33, 9, 70), counts=(0, 2, 8), head_dim=24, groups=2, per_group=2, padding=True, prompts=True)


def _fault(name: str, old: str, new: str, check: Callable[[], None] | None = None, file: str = "") -> Fault:
    run = check or (lambda: tests.test_accuracy(GROUPED, F32))
    return Fault(f"mamba2-{name}", "mamba2.metal", old, new, run, file)


def _prompt(name: str, old: str, new: str, check: Callable[[], None] | None = None, file: str = "") -> Fault:
    run = check or (lambda: tests.test_prompts(PROMPT, F32))
    return Fault(f"mamba2-prompt-{name}", "mamba2_prompt.metal", old, new, run, file)


GATED = """from[i] : from[i] * Silu::apply(float(gate[i]) * factor);
      square = fma(normed, normed, square);"""
SCALED = Case(lengths=(3, 10), groups=2, per_group=2, norm="first", factors=tests.FACTORS)


def _scaled(name: str, old: str, new: str, file: str = "") -> Fault:
    return _fault(name, old, new, lambda: tests.test_accuracy(SCALED, F32), file)


FAULTS = [
    _scaled("gate-not-scaled", "const float factor = args.factors[0];", "const float factor = 1.0f;"),
    _scaled("norm-behind-the-gate", "norm_first ? from[i] : from[i] *", "!norm_first ? from[i] : from[i] *"),
    _scaled("factor-of-the-next-part", "channel < values ? 1 :", "channel < values ? 2 :", "mamba2_inputs.h"),
    _scaled("step-not-scaled", "fma(dt, args.factors[4], bias)", "fma(dt, 1.0f, bias)", "mamba2_inputs.h"),
    _scaled("inputs-not-scaled", "own ? factor : 1.0f", "1.0f", "gated_delta_inputs.h"),
    _scaled("window-scaled", "own ? factor : 1.0f", "factor", "gated_delta_inputs.h"),
    _prompt("inputs-not-scaled", "T(float(own[t * args.x_stride]) * factor)", "own[t * args.x_stride]",
            lambda: tests.test_prompts(Case(lengths=(36, 10), factors=tests.FACTORS, prompts=True), F32)),
    _fault("state-zero-is-read", "state[r][c] = begin != 0 && there", "state[r][c] = begin + 1 != 0 && there"),
    _fault("keys-of-the-first-group", "+ shared * N + i - P", "+ 0 * N + i - P"),
    _fault("queries-are-keys", "(i < P + N ? 0 : keys - N)", "(i < P + N ? 0 : 0 * keys - N)"),
    _fault("no-bias-of-the-convolution", "has_conv_bias ? float(conv_bias[channel])", "has_conv_bias ? 0.0f"),
    _fault("padding-goes-in", "has_keep ? mixed * float(keep[token])", "has_keep ? mixed"),
    _fault("window-of-the-group-not-stored", "(is_x || head % args.per_group == 0)", "is_x"),
    _fault("state-not-decayed", "state[r][c] * decay)", "state[r][c])"),
    _fault("decay-without-the-step", "exp(rate * step)", "exp(rate)"),
    _fault("step-not-in-the-input", "fma(step * value, b[c]", "fma(value, b[c]"),
    _fault("nothing-passes-by", "fma(skip, value, sum)", "sum"),
    _fault("state-not-stored", "if (stored && (whole || (row < P", "if (stored && row + 1 < P && (whole || (row < P"),
    _fault("last-token-of-a-prompt", "t + 1 == tokens;", "t + 2 == tokens;"),
    _fault("norm-of-all-groups", "begin = row % groups * size;", "begin = 0 * size;"),
    _fault("square-without-the-gate", *within(GATED, "fma(normed,", "fma(from[i],")),
    _fault("bounds-for-all-tokens", "step_size(raw, bias, t < bounded, args)", "step_size(raw, bias, has_prompt, args)",
           lambda: tests.test_accuracy(BOUNDED, F32)),
    _fault("no-upper-bound", "metal::min(metal::max(free, args.least), args.most)", "metal::max(free, args.least)",
           lambda: tests.test_accuracy(BOUNDED, F32), "mamba2_inputs.h"),
    _fault("no-lower-bound", "metal::max(free, args.least)", "free", lambda: tests.test_accuracy(BOUNDED, F32),
           "mamba2_inputs.h"),
    _fault("no-bias-of-the-step", "fma(dt, args.factors[4], bias)", "fma(dt, args.factors[4], 0.0f)",
           file="mamba2_inputs.h"),
    _fault("prompt-of-the-first-sequence", "prompt[group.y * args.prompt_stride]", "prompt[0]",
           lambda: tests.test_accuracy(BOUNDED, F32)),
    _fault("one-buffer-for-all-tokens", "inputs[t % 2]", "inputs[0]", lambda: tests.test_lane_orders(tests.LANES[0])),
    _fault("no-barrier", "threadgroup_barrier(mem_flags::mem_threadgroup);\n\n    const float step", "const float step",
           lambda: tests.test_lane_orders(tests.LANES[0])),
    _prompt("decay-behind-the-end", "to[0] = t < tokens ? rate * step : 0.0f;", "to[0] = rate * step;"),
    _prompt("padding-goes-in", "has_keep ? mixed * float(keep[first + t])", "has_keep ? mixed"),
    _prompt("bounds-for-all-tokens", "step_size(float(dt[token * args.dt_stride + head]), bias, t < bounded, args)",
            "step_size(float(dt[token * args.dt_stride + head]), bias, has_prompt, args)",
            lambda: tests.test_prompts(Case(lengths=(33, 40), bounds=(0.5, 1.0), prompts=True), F32)),
    _prompt("window-of-the-chunk-before", "int(from) - 1, before", "int(from), before"),
    _prompt("window-not-stored", "if (t + 1 == tokens)", "if (t + 2 == tokens)"),
    _prompt("state-zero-is-read", "if (begin != 0 && !idle) simdgroup_load", "if (!idle) simdgroup_load"),
    _prompt("a-scores-tile-is-left-out", "tile < tiles * (tiles + 1) / 2", "tile + 1 < tiles * (tiles + 1) / 2"),
    _prompt("decay-of-the-token-itself", "log += to > lane ? logs[to]", "log += to >= lane ? logs[to]"),
    _prompt("own-token-not-seen", "lane <= to ? exp(log)", "lane < to ? exp(log)"),
    _prompt("step-of-the-later-token", "exp(log) * steps[lane] * scores[to][lane]",
            "exp(log) * steps[to] * scores[to][lane]"),
    _prompt("nothing-passes-by", "lane == to ? score + skip", "lane == to ? score"),
    _prompt("keys-of-the-first-group", "head / args.per_group * N;", "0 * N;"),
    _prompt("outputs-of-the-state-not-decayed", "sum.thread_elements()[e] *= until[i * 8 + own.row];",
            "sum.thread_elements()[e] *= 1.0f;"),
    _prompt("tokens-before-the-own-tile", "j <= i; ++j) {\n        simdgroup_load(left, &scores",
            "j == i; ++j) {\n        simdgroup_load(left, &scores"),
    _prompt("step-not-in-the-state", "exp(logs_behind(log, lane)) * step", "exp(logs_behind(log, lane))"),
    _prompt("rest-of-the-chunk", "simd_prefix_exclusive_sum(metal::simd_shuffle(",
            "simd_prefix_inclusive_sum(metal::simd_shuffle(", file="chunks.h"),
    _prompt("decays-between-rows", "for (uint t = from + 1;", "for (uint t = from + 2;", file="chunks.h"),
    _prompt("state-not-decayed", "state[r].thread_elements()[e] *= decay;", "state[r].thread_elements()[e] *= 1.0f;"),
    _prompt("first-chunk-left-out-of-the-state", "const float decay = until[chunk - 1];", "const float decay = 0.0f;"),
    _prompt("no-barrier-before-the-decays", "&scores[i * 8][j * 8], chunk);\n    }\n    threadgroup_barrier("
            "mem_flags::mem_threadgroup);", "&scores[i * 8][j * 8], chunk);\n    }",
            lambda: tests.test_lane_orders(tests.LANES[1])),
    _prompt("no-barrier-before-the-scores", "score + skip : score;\n      }\n    }\n    threadgroup_barrier("
            "mem_flags::mem_threadgroup);", "score + skip : score;\n      }\n    }",
            lambda: tests.test_lane_orders(tests.LANES[1])),
    _prompt("no-barrier-between-chunks", "threadgroup_barrier(mem_flags::mem_threadgroup); // the chunk before\n\n"
            "    if (simdgroup == 0) {", "if (simdgroup == 0) {",
            lambda: tests.test_lane_orders(tests.LANES[1])),
]  # fmt: skip
