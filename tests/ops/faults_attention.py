"""Mistakes in attention_decode.metal that its tests must notice."""

from __future__ import annotations

from typing import Any

import kit
import test_attention as t
import test_attention_features as f
from kit import F16, F32, Fault

KERNEL, PREFILL, MATRIX = "attention_decode.metal", "attention_prefill.metal", "attention_decode_matrix.metal"
SCORES, STORE = "attention_scores.h", "kv_store.h"


def _together(name: str, old: str, new: str) -> Fault:
    """A mistake in what happens when eight lanes read a key together."""

    def check() -> None:
        with kit.choice("attention", lanes=8):
            t.test_accuracy(t.Case(), F32)

    return Fault(f"attention-lanes-{name}", KERNEL, old, new, check, SCORES)


FAULTS = [
    _together("exchange", "simd_shuffle_xor(upper ? low : high, Lanes / 2)", "simd_shuffle_xor(low, Lanes / 2)"),
    _together("sums-of-the-neighbour", "Lanes / 2>::reduce(sums, lane);", "Lanes / 2>::reduce(sums, lane + 1);"),
    _together("key-of-another-lane", "key + of % KEYS]", "key + (of + 1) % KEYS]"),
    _together("query-of-another-lane", "(i & 1) * 8 + (i & 15) / 2", "(i & 1) * 8 + (i & 15)"),
    _together("last-elements-left-out", "d < D; d += 8 * LOAD", "d < D - 8 * LOAD; d += 8 * LOAD"),
    Fault(
        "attention-keys-that-nobody-sees",
        KERNEL,
        "all.end = all.begin < min(all.end, mine.end) ? min(all.end, mine.end) : 0;",
        "all.end = min(all.end, mine.end);",
        lambda: t.test_padding_that_leaves_no_keys(8),
    ),
    Fault(
        "attention-mask-off-by-one",
        KERNEL,
        "range.end = min(position + 1, keys.length);",
        "range.end = min(position + 2, keys.length);",
        lambda: t.test_exact_means(6, 0),
        SCORES,
    ),
    Fault(
        "attention-causal-offset-upper-left",
        PREFILL,
        "position = keys.first + query;",
        "position = query;",
        lambda: t.test_exact_means(40, 0),
        SCORES,
    ),
    Fault(
        "attention-window-off-by-one",
        KERNEL,
        "position - int(args.window) + 1",
        "position - int(args.window)",
        lambda: t.test_exact_means(6, 5),
        SCORES,
    ),
    Fault(
        "attention-kv-start-ignored",
        KERNEL,
        "max(kv_start - keys.shift, 0);",
        "max(0 * kv_start - keys.shift, 0);",
        lambda: t.test_accuracy(t.Case(batch=3, queries=2, start=(0, 40, 99)), F32),
        SCORES,
    ),
    Fault(
        "attention-step-one-short",
        KERNEL,
        "step[0] + int(args.q_len)",
        "step[0] + int(args.q_len) - 1",
        lambda: t.test_a_length_in_memory_is_as_good(t.Case(), F32),
        SCORES,
    ),
    Fault(
        "attention-shift-ignored",
        KERNEL,
        "keys.shift = step[1];",
        "keys.shift = 0;",
        lambda: t.test_masks_know_what_went_before(3, {"start": (90, 97)}),
        SCORES,
    ),
    Fault(
        "attention-last-split-unused",
        KERNEL,
        "return min(used, args.splits);",
        "return min(max(used, 2u) - 1, args.splits);",
        lambda: t.test_accuracy(t.Case(kv_len=700, capacity=700), F16),
        SCORES,
    ),
    Fault(
        "attention-decode-no-rescale",
        KERNEL,
        "acc[r][c] *= rescale;",
        "acc[r][c] *= 1.0f;",
        lambda: f.test_scores_that_grow_along_the_keys(1, F32),
    ),
    Fault(
        "attention-prefill-no-rescale",
        PREFILL,
        "sum = fma(sum, rescale, tile_sum);",
        "sum += tile_sum;",
        lambda: t.test_accuracy(t.Case(queries=40), F32),
    ),
    Fault(
        "attention-prefill-values-no-rescale",
        PREFILL,
        "fma(acc[d].thread_elements()[e], rescale,",
        "fma(acc[d].thread_elements()[e], 1.0f,",
        lambda: t.test_accuracy(t.Case(queries=40), F32),
    ),
    Fault(
        "attention-second-rows-are-the-first",
        KERNEL,
        "acc[first + r][c];",
        "acc[r][c];",
        lambda: t.test_accuracy(t.Case(heads=16, kv_heads=1, head_dim=128), F16),
    ),
    Fault(
        "attention-decode-wrong-kv-head",
        KERNEL,
        "place.kv_head * args.v_head, args.v_token);",
        "(args.n_kv_heads - 1 - place.kv_head) * args.v_head, args.v_token);",
        lambda: t.test_exact_retrieval(1, F32),
    ),
    Fault(
        "attention-merge-drops-a-split",
        KERNEL,
        "first + u * S < splits ? of",
        "first + u * S + 1 < splits ? of",
        lambda: t.test_accuracy(t.Case(kv_len=4700, capacity=4700), F16),
    ),
    Fault(
        "attention-merge-forgets-the-weights",
        KERNEL,
        "weight_of(of[u].largest, m)",
        "1.0f",
        lambda: t.test_accuracy(t.Case(kv_len=4700, capacity=4700), F16),
    ),
    Fault(
        "attention-merge-of-few-drops-a-split",
        KERNEL,
        "for (uint s = 0; s < splits; ++s) {",
        "for (uint s = 0; s + 1 < splits; ++s) {",
        lambda: t.test_accuracy(t.Case(kv_len=513, capacity=800), F16),
    ),
    Fault(
        "attention-merge-of-few-forgets-the-weights",
        KERNEL,
        "weight = weight_of(own.largest, m)",
        "weight = 1.0f",
        lambda: t.test_accuracy(t.Case(kv_len=513, capacity=800), F16),
    ),
    Fault(
        "attention-splits-of-the-middle-as-short",
        KERNEL,
        "near || middle ? 2 * args.keys",
        "near ? 2 * args.keys",
        t.test_splits_grow,
        SCORES,
    ),
    Fault(
        "attention-second-split-begins-in-the-first",
        KERNEL,
        "(split + (split > 0)) * args.keys",
        "split * args.keys",
        lambda: t.test_accuracy(t.Case(kv_len=769, capacity=800), F16),
        SCORES,
    ),
    Fault(
        "attention-merge-takes-the-first-columns",
        KERNEL,
        "column = min(group.y * 32 + lane",
        "column = min(group.y / 2 * 32 + lane",
        lambda: t.test_accuracy(t.Case(kv_len=4700, capacity=4700), F16),
    ),
    Fault(
        "attention-last-column-dropped",
        KERNEL,
        "i < min(first + step, D / 4);",
        "i < min(first + step, D / 4 - 1);",
        lambda: t.test_accuracy(t.Case(), F32),
        SCORES,
    ),
    Fault(
        "attention-softcap-argument-shifted",
        KERNEL,
        "score = args.softcap * precise::tanh(score / args.softcap);",
        "score = args.softcap * precise::tanh(score / args.softcap + 1.0e-3f);",
        lambda: t.test_accuracy(t.Case(softcap=30.0, gain=8.0), F32),
        SCORES,
    ),
    Fault(
        "attention-mask-of-the-first-head",
        KERNEL,
        "+ query(args, r) * args.mask_token;",
        "+ 0 * args.mask_token;",
        lambda: t.test_accuracy(t.Case(mask="float+heads+row", queries=2, batch=2), F16),
        SCORES,
    ),
    Fault(
        "attention-prefill-unwritten-keys-staged",
        PREFILL,
        "if (key >= all.begin && key < all.end)",
        "if (key >= 0)",
        lambda: t.test_accuracy(t.Case(queries=40, kv_len=100), F32),
    ),
    Fault(
        "attention-prefill-scores-of-half-the-columns",
        PREFILL,
        "parts + (simdgroup ^ 1) *",
        "parts + simdgroup *",
        lambda: t.test_accuracy(t.Case(queries=17, head_dim=272, window=30), F16),
    ),
    Fault(
        "attention-values-of-the-first-columns",
        KERNEL,
        "column + uint(c), aligned, v",
        "column, aligned, v",
        lambda: t.test_accuracy(t.Case(head_dim=272, queries=3), F16),
        SCORES,
    ),
    Fault(
        "attention-unwritten-values-read",
        KERNEL,
        "min(max(i, first), last)",
        "max(i, first)",
        lambda: t.test_accuracy(t.Case(), F32),
        SCORES,
    ),
    Fault(
        "attention-padding-read",
        KERNEL,
        "min(max(i, first), last)",
        "min(i, last)",
        lambda: t.test_accuracy(t.Case(batch=3, start=(0, 41, 99)), F32),
        SCORES,
    ),
    Fault(
        "attention-row-sums-half-reduced",
        PREFILL,
        "sum += simd_shuffle_xor(sum, 8);",
        "sum += 0.0f;",
        lambda: t.test_exact_means(40, 0),
    ),
]

FAULTS += [
    Fault(
        "attention-q8-zero-off-by-one",
        KERNEL,
        "v[3] = code<8, 0xff, 0, 128>(high);",
        "v[3] = code<8, 0xff, 0, 127>(high);",
        lambda: f.agrees(k="q8_0"),
        STORE,
    ),
    Fault(
        "attention-q4-nibbles-swapped",
        KERNEL,
        "v[0] = code<0, 0xf, 0, 8>(q);\n    v[1] = code<4, 0xf, 0, 8>(q);",
        "v[1] = code<0, 0xf, 0, 8>(q);\n    v[0] = code<4, 0xf, 0, 8>(q);",
        lambda: f.agrees(v="q4_0"),
        STORE,
    ),
    Fault(
        "attention-scale-of-the-first-block",
        KERNEL,
        "[column / kv_block]);",
        "[column / (2 * kv_block)]);",
        lambda: f.agrees(k="q8_0"),
        STORE,
    ),
    Fault(
        "attention-page-of-the-first-sequence",
        KERNEL,
        "table + batch * args.table_row",
        "table + 0 * args.table_row",
        f.agrees,
        SCORES,
    ),
    Fault(
        "attention-row-of-a-page-off-by-one",
        KERNEL,
        "((1u << shift) - 1)",
        "((1u << shift) - 2)",
        f.agrees,
        STORE,
    ),
    Fault(
        "attention-rows-of-the-first-sequence",
        KERNEL,
        "keys.first = rows[2 * batch];",
        "keys.first = rows[0];",
        f.test_each_sequence_of_a_ragged_batch_is_alone,
        SCORES,
    ),
    Fault(
        "attention-queries-that-are-not-there-see-something",
        KERNEL,
        "if (query >= keys.queries) return",
        "if (query > keys.queries) return",
        f.test_each_sequence_of_a_ragged_batch_is_alone,
        SCORES,
    ),
    Fault(
        "attention-sink-of-the-neighbour",
        KERNEL,
        "add_sink(sinks, row % n_heads, m, value, sum);",
        "add_sink(sinks, (row + 1) % n_heads, m, value, sum);",
        lambda: f.agrees(sinks="own", kv_len=4700),
    ),
    Fault(
        "attention-sink-keeps-the-values",
        KERNEL,
        "value *= of_keys;",
        "value *= 1.0f;",
        lambda: f.agrees(sinks="float", gain=0.01, kv_len=300),
        SCORES,
    ),
    Fault(
        "attention-last-columns-of-80-left-out",
        KERNEL,
        "column < D) {",
        "column + 8 < D) {",
        lambda: f.test_columns_of_any_number((80, 112), 8),
        SCORES,
    ),
    Fault(
        "attention-columns-of-112-cut",
        KERNEL,
        "DV % 32 == 0 ? DV / 32 : DV <= 128 ? 4 : 8;",
        "DV % 32 == 0 ? DV / 32 : DV <= 128 ? 3 : 8;",
        lambda: f.test_columns_of_any_number((80, 112), 1),
        SCORES,
    ),
    Fault(
        "attention-prefill-sink-left-out",
        PREFILL,
        "add_sink(sinks, head, largest, of_keys, sum);",
        "add_sink(sinks, head, largest, of_keys, of_keys);",
        lambda: f.agrees(sinks="own", queries=20),
    ),
    Fault(
        "attention-prefill-values-staged-as-keys",
        PREFILL,
        "stage_keys<V, VE, DV, BK, V_LD>(v_rows, tile, all, v_tile, tid);",
        "stage_keys<V, VE, DV, BK, V_LD>(v_rows, max(tile - 1, 0), all, v_tile, tid);",
        lambda: f.agrees(v="q8_0", queries=20),
    ),
]


def _matrix(name: str, old: str, new: str, header: str | None = None, **call: Any) -> Fault:
    """A mistake in attention by products of matrices."""

    def check() -> None:
        f.agrees(**{"dtype": F16, "lanes": 32, **call})

    return Fault(f"attention-matrix-{name}", MATRIX, old, new, check, *([header] if header else []))


def _growing() -> None:
    f.test_scores_that_grow_along_the_keys(32, F16)


FAULTS += [
    Fault(
        "attention-matrix-no-rescale",
        MATRIX,
        "thread_elements()[e] *= rescale;",
        "thread_elements()[e] *= 1.0f;",
        _growing,
    ),
    Fault("attention-matrix-sum-no-rescale", MATRIX, "sum[b][e] *= rescale;", "sum[b][e] *= 1.0f;", _growing),
    _matrix("query-columns-swapped", "own.row % 2 == 0 ? x[even", "own.row % 2 == 1 ? x[even"),
    _matrix("keys-of-the-first-half", "min(max(block + 8 * i + own.row", "min(max(block + own.row"),
    _matrix("values-of-one-key", "key + own.column + e,", "key + own.column,"),
    _matrix(
        "half-a-weight",
        "values, most);\n        multiply_accumulate_2x2(acc[j * (WIDTH / 2) + c], values, rest);",
        "values, most);\n        multiply_accumulate_2x2(acc[j * (WIDTH / 2) + c], values, most);",
        k="q8_0",
        v="q8_0",
    ),
    _matrix("scale-of-the-first-block", "? scale[i][j] : 1.0f", "? scale[i][0] : 1.0f", v="q4_0"),
    _matrix("columns-of-values-swapped", "V::paired(d % WIDTH / 2, d % 2)", "V::paired(d % WIDTH / 2, 1 - d % 2)"),
    _matrix("blocks-left-out", "block + 32 * S - 16", "block + 32 * S", kv_len=700),
    _matrix("upper-bit-of-bytes", "(~two & 0x00800080u)", "(two & 0x00800080u)", STORE, v="q8_0"),
    _matrix("nibbles-of-one-byte", "four | four << 12", "four | four << 16", STORE, k="q4_0"),
    _matrix(
        "second-product-left-out",
        "for (int k = 0; k < 2; ++k) metal::simdgroup_multiply_accumulate(d[i], a[i][k]",
        "for (int k = 0; k < 1; ++k) metal::simdgroup_multiply_accumulate(d[i], a[i][k]",
        "matrix_pairs.h",
    ),
]
