"""Seeded faults of the gated delta rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import test_gated_delta as tests
from kit import F32, Fault, within
from test_gated_delta import Case

PROMPT, SOLVE = "gated_delta_prompt.metal", "gated_delta_solve.metal"


def _fault(name: str, old: str, new: str, case: Case | None = None, run: Any = None) -> Fault:
    given = case or Case(lengths=(3, 2), counts=(2, 0))
    return Fault(f"gated_delta-{name}", "gated_delta.metal", old, new, run or (lambda: tests.test_accuracy(given, F32)))


def _input(name: str, old: str, new: str, file: str = "gated_delta_inputs.h", case: Case | None = None) -> Fault:
    return dataclasses.replace(_fault(name, old, new, case), file=file)


def _prompt(name: str, old: str, new: str, run: Any = None, file: str = "", kernel: str = PROMPT) -> Fault:
    check = run or (lambda: tests.test_prompts(Case(prompts=True, lengths=(9, 33, 40), counts=(0, 2, 8)), F32))
    return Fault(f"gated_delta-prompt-{name}", kernel, old, new, check, file)


def _solve(name: str, old: str, new: str, of_rows: bool = False, file: str = "") -> Fault:
    lengths = Case(prompts=True, lengths=(9, 33, 40), counts=(0, 2, 8), per_key=1, of_rows=of_rows)
    return _prompt(name, old, new, lambda: tests.test_prompts(lengths, F32), file, SOLVE)


def _barrier(
    name: str, then: str, flags: str = "mem_flags::mem_threadgroup", case: Case = tests.LANES[1], kernel: str = PROMPT
) -> Fault:
    old = f"threadgroup_barrier({flags}); {then}"
    return _prompt(f"barrier-{name}", old, then, lambda: tests.test_lane_orders(case), kernel=kernel)


ROWS = Case(lengths=(3, 2), counts=(2, 0), per_key=1, of_rows=True)  # of the state, which decay by themselves


NARROW = Case(prompts=True, lengths=(40,), key_dim=96, value_dim=32)  # of whose keys a simdgroup has none
PROMPT_FAULTS = [
    _prompt("sequences-overlap", "/ recurrent_chunk * recurrent_chunk;", "/ recurrent_chunk * 8;", file="chunks.h"),
    _solve("decay-of-the-token-itself", "log += to > lane ? logs[to]", "log += to >= lane ? logs[to]"),
    _solve("decays-between-tiles", "for (uint t = from + 1;", "for (uint t = from + 2;", file="chunks.h"),
    _prompt(
        "rest-of-the-chunk",
        "simd_prefix_exclusive_sum(metal::simd_shuffle(",
        "simd_prefix_inclusive_sum(metal::simd_shuffle(",
        file="chunks.h",
    ),
    _prompt("window-not-stored", "if (t + 1 == tokens)", "if (t + 1 == 0)"),
    _prompt("queries-not-scaled", "unit * rsqrt(float(DK))", "unit"),
    _prompt("decay-behind-the-end", "args) : 0.0f", "args) : -1.0f"),
    _solve("own-token-not-seen", "lane <= to ? exp(log)", "lane < to ? exp(log)"),
    _solve("no-substitution", "for (int j = 0; j < t; ++j) sum =", "for (int j = 0; j + 1 < t; ++j) sum ="),
    _solve(
        "rows-decay-with-the-token-itself",
        *within(
            """exp(log[c]) * k[at] : 0.0f;
          with_key = fma(key[c], other, with_key);
          with_query = fma(query[c], other, with_query);
          log[c] += d < DK ? g[at]""",
            "exp(log[c])",
            "exp(log[c] + g[at])",
        ),
        of_rows=True,
    ),
    _solve(
        "rows-decay-behind-with-their-own",
        "g[at] = k[at] * exp(behind); behind += logs[t];",
        "behind += logs[t]; g[at] = k[at] * exp(behind);",
        of_rows=True,
    ),
    _solve(
        "rows-decay-before-the-token",
        "until += logs[t]; q[at] *= exp(until);",
        "q[at] *= exp(until); until += logs[t];",
        of_rows=True,
    ),
    _solve("rows-of-the-first-32", "parts = (DK + 31) / 32", "parts = 1", of_rows=True),
    _prompt(
        "one-decay-of-rows",
        "decays[(2 * p + i) * 8]",
        "decays[0]",
        lambda: tests.test_prompts(dataclasses.replace(ROWS, prompts=True, lengths=(33, 40)), F32),
    ),
    _prompt(
        "keys-without-what-decays-behind",
        "D == 1 ? k : row",
        "D > 0 ? k : row",
        lambda: tests.test_prompts(dataclasses.replace(ROWS, prompts=True, lengths=(33, 40)), F32),
    ),
    _prompt("window-not-moved-on", "last[c][w - 1] = last[c][w];", "last[c][w - 1] = last[c][w - 1];"),
    _prompt("window-of-the-first-of-four", "int(from) - 1, before", "int(from), before"),
    _prompt(
        "quarter-left-out", "(sums[2][tile][c][of][lane] + sums[3][tile][c][of][lane])", "sums[2][tile][c][of][lane]"
    ),
    _prompt(
        "part-of-eight-left-out",
        "== 0 || number < DK / 8",
        "== 0 || number + 1 < DK / 8",
        lambda: tests.test_prompts(NARROW, F32),
    ),
    _prompt("no-decay-up-to-a-token", "fma(-decay, product[e]", "fma(-1.0f, product[e]"),
    _prompt("product-of-a-tile-too-few", "j < 2 * p + 2;", "j < 2 * p + 1;"),
    _prompt("pairs-in-the-wrong-order", "p = tiles / 2 - 1; p >= 0; --p", "p = 0; p < tiles / 2; ++p"),
    _prompt("own-tile-not-seen", "j <= int(own_tile)", "j < int(own_tile)"),
    _prompt(
        "state-not-decayed",
        "state[p][c][i].thread_elements()[e] *= decay;",
        "state[p][c][i].thread_elements()[e] *= 1.0f;",
    ),
    _prompt("state-zero-is-read", "if (begin != 0 && has_eight", "if (begin + 1 != 0 && has_eight"),
    _prompt(
        "square-of-the-first-32",
        "for (int c = 0; c < DV / 32; ++c) {\n      o[c] =",
        "for (int c = 0; c < 1; ++c) {\n      o[c] =",
    ),
    _barrier("before-the-next-chunk", "if (simdgroup == 0) { logs[lane] =", case=tests.LANES[2], kernel=SOLVE),
    _barrier("of-products", "float log = logs_between(", kernel=SOLVE),
    _barrier("of-weights", "if (simdgroup == 0) substitute(keys, queries", kernel=SOLVE),
    _barrier("before-the-next-chunk-of-rows", "for (int i = int(simdgroup)", case=tests.LANES[5], kernel=SOLVE),
    _barrier(
        "before-keys-are-replaced",
        "for (uint d = tid;",
        "mem_flags::mem_threadgroup | mem_flags::mem_device",
        case=tests.LANES[4],
        kernel=SOLVE,
    ),
    _barrier("before-sums-are-written", "for (int i = 0; i < tiles; ++i) for (int c = 0; c < 2; ++c) for (int n"),
    _barrier(
        "before-sums-are-read",
        "for (int i = 0; i < tiles; ++i) { const float decay",
        "mem_flags::mem_threadgroup | mem_flags::mem_device",
    ),
]
FAULTS = [
    _input("convolution-one-token-late", "t - (W - 1) + w", "t - W + w"),
    _input("window-of-one-input", "before + W + at", "before + W - 1"),
    _input("no-silu", "return Silu::apply(sum);", "return sum;"),
    _input("softplus-of-large", "metal::max(x, 0.0f) + 2.0f", "2.0f", "activation.h"),
    _input("softplus-of-small", "n = 13; n > 0", "n = 13; n > 2", "activation.h"),
    _fault("queries-not-scaled", "rsqrt(float(DK))", "1.0f"),
    _fault("keys-less-than-unit", "k_scale = rsqrt(simd_sum(kk) + 1e-6f);", "k_scale = rsqrt(simd_sum(kk) + 1.0f);"),
    _fault("beta-scale-left-out", "args.beta_scale * sigmoid", "sigmoid", Case(beta_scale=2.0)),
    _fault("decay-left-out", "state[r][c] *= decay;", "state[r][c] *= 1.0f;"),
    _fault("one-decay-of-rows", "if (D > 1) decay = whole", "if (D > 1024) decay = whole", ROWS),
    _fault("one-bias-of-rows", "float(dt_bias[head * D + d]); decays", "float(dt_bias[head]); decays", ROWS),
    _input("bound-left-out", "args.log_bound == 0.0f ?", "args.log_bound <= 0.0f ?", case=Case(log_bound=-5.0)),
    _input("rate-left-out", "sigmoid(rate * step)", "sigmoid(step)", case=Case(log_bound=-5.0)),
    _input("sigmoid-gate-left-out", "args.sigmoid_gate != 0", "args.sigmoid_gate > 1", case=Case(sigmoid_gate=True)),
    _fault("state-zero-is-read", "begin != 0 && there ?", "there ?"),
    _fault("own-change-not-seen",
           *within("changes[tid] = change;\n        o = fma(qk, change, o);", "fma(qk", "fma(0.0f")),
    _fault("last-simdgroup-left-out", "g < groups; ++g) {\n          remembered += sums[0][g]",
           "g + 1 < groups; ++g) {\n          remembered += sums[0][g]"),
    _fault("square-of-the-first-32", "for (int c = 0; c < columns; ++c)\n        square +=",
           "for (int c = 0; c < 1; ++c)\n        square +="),
    _fault("gate-of-the-first-head", "offset(args.z, token, key_head, sub_head)", "offset(args.z, token, key_head, 0)"),
    _fault("state-of-the-step-s-start", "number = begin + 1 +", "number = begin +"),
    _fault("only-the-last-state", "stored = tokens < args.slots ||", "stored = tokens < 2 ||"),
    _fault("long-runs-leave-many", "(tokens < args.slots ? t : 0)", "t", Case(lengths=(11,))),
    _fault("keys-window-not-stored", "(is_value || sub_head == 0)", "is_value"),
    _fault("barrier-before-the-sums", "sums[1][simdgroup][column] = with_q[c];\n      }\n    }\n"
           "    threadgroup_barrier(mem_flags::mem_threadgroup);",
           "sums[1][simdgroup][column] = with_q[c];\n      }\n    }\n",
           run=lambda: tests.test_lane_orders(tests.LANES[0])),
    *PROMPT_FAULTS,
]  # fmt: skip
