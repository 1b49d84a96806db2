"""Seeded mistakes in linear, embedding and the formats. None reads outside its buffers, so they can run anywhere."""

from __future__ import annotations

from collections.abc import Callable

import kit
from kit import BF16, F16, F32, Fault, within
from test_embedding import Case as EmbeddingCase
from test_embedding import test_equals_the_table
from test_linear import (
    Case,
    test_a_row_does_not_depend_on_its_company,
    test_accuracy,
    test_codes_that_are_nan,
    test_integers_are_exact,
    test_lane_orders,
    test_one_hot_reads_every_weight_back,
)


def _rows(name: str, old: str, new: str, case: Case | None = None, file: str = "") -> Fault:
    return Fault(f"linear-{name}", "linear.metal", old, new, lambda: test_accuracy(case or Case(), F32), file)


STAGED = "struct Staged { using type = metal::conditional_t<metal::is_same_v<T, half>, half, float>"


def _tiles(name: str, old: str, new: str, case: Case | None = None, file: str = "tiles.h") -> Fault:
    return _rows(f"tiles-{name}", old, new, case or Case(33, 65, 96, "q8_0"), file)


def _epilogue(name: str, old: str, new: str, case: Case) -> Fault:
    return _rows(f"epilogue-{name}", old, new, case, "epilogue.h")


def _format(name: str, old: str, new: str, file: str) -> Fault:
    kind = file.removeprefix("").removesuffix(".h")
    check = lambda: test_one_hot_reads_every_weight_back(kind, F32, 1)  # noqa: E731
    return Fault(f"{kind}-{name}", "linear.metal", old, new, check, file)


def _embedding(name: str, old: str, new: str, case: EmbeddingCase) -> Fault:
    return Fault(f"embedding-{name}", "embedding.metal", old, new, lambda: test_equals_the_table(case, F16))


STORED = "m < args.rows && n < args.n)"
END_OF_SLAB = "b[j], run[i][j]);\n      }\n      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);"


def _split(name: str, old: str, new: str, check: Callable[[], None], file: str = "gemv.h", **choice: int) -> Fault:
    def with_choice() -> None:
        with kit.choice("linear", **choice):
            check()

    return Fault(f"linear-split-{name}", "linear.metal", old, new, with_choice, file)


def _codes(
    name: str, old: str, new: str, kind: str = "q8_0", file: str = "gemv.h", m: int = 1, steps: int = 1
) -> Fault:
    def check() -> None:
        with kit.choice("linear", chains=1, steps=steps, outputs=2):
            test_accuracy(Case(m, 9, 2560, kind), F16)

    return Fault(f"linear-codes-{name}", "linear.metal", old, new, check, file)


PLAIN = """rows = {x}; const uint part = part_of(simdgroup, split);
    accumulate_k<Q, ROWS, VEC, OUTS, UNROLL, CHAINS>(w_row, rows, x_row, part * simd_width + lane"""
SHARED = {"split": 4, "simdgroups": 8}
BARRIER = "] = total;\n    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);"

FAULTS = [
    _split(
        "seam",
        *within(PLAIN, "part * simd_width", "part + part * simd_width"),
        lambda: test_accuracy(Case(k=2048), F32),
        "products.h",
        **SHARED,
    ),
    _split(
        "last-part-dropped",
        "uint p = 1; p < split",
        "uint p = 1; p + 1 < split",
        lambda: test_accuracy(Case(k=2048), F32),
        **SHARED,
    ),
    _split(
        "teams-mixed-up",
        "+= partial[(simdgroup + p) * C",
        "+= partial[(simdgroup % 2 + p) * C",
        lambda: test_accuracy(Case(k=2048), F32),
        **SHARED,
    ),
    _split("barrier-missing", BARRIER, BARRIER.split("\n")[0], lambda: test_lane_orders(3, None), **SHARED),
    _split(
        "step-at-the-end-dropped",
        "U > 1 && k < end;",
        "U > 1 && k + chunk < end;",
        lambda: test_accuracy(Case(1, 9, 1280), F32),
        outputs=2,
        steps=4,
    ),
    _rows("last-chunk-dropped", "for (; k + (U - 1) * step <", "for (; k + (U - 1) * step + chunk <", file="gemv.h"),
    _rows("last-column-dropped", "k + j < end ?", "k + j + 1 < end ?", Case(1, 9, 257), "loader.h"),
    _rows("last-output-from-the-row-before", "min(first + i, end - 1)", "min(first + i, end - 2)", file="products.h"),
    _rows("last-output-not-stored", *within(f"sums.has(i) && {STORED}", " n <", " n + 1 <"), Case(1, 9, 256)),
    _rows("rows-of-x-in-pairs", *within("0 : row_offset(args.x, min(m0 + m,", "m,", "m / 2 * 2,"), Case(3)),
    _rows("second-group-of-rows-shifted", "m0 = group.y * M;", "m0 = group.y * (M - 1);", Case(16, 7, 40)),
    _rows("half-of-a-chunk-twice", "load(p + 4, hi)", "load(p, hi)", Case(1, 8, 256), "vec.h"),
    _rows("stale-block", "row[k / Q::block_size]", "row[k / Q::block_size & ~1u]", Case(1, 9, 256, "q8_0"), "loader.h"),
    _codes("zero-off-by-one", "1024.0h + zero", "1025.0h + zero", file="format.h"),
    _codes("upper-nibbles-not-scaled", "metal::fma(ratio, dot", "metal::fma(1.0f, dot", "q4_0"),
    _codes(
        "next-step-not-read",
        *within("offset[g] = raw[n].offset(first, g) * unit; if (more)", "more", "more && first > 7"),
        "q4_0",
    ),
    _codes("second-step-twice", "raw[u][n].read(block[n][u * blocks]", "raw[u][n].read(block[n][blocks]", steps=2),
    _codes("step-not-read-when-used", "n < OUTS && !ahead;", "n < OUTS - 1 && !ahead;", steps=0),
    _codes("odd-blocks-as-even", "odd ? 16 : After ? 0 : 32", "!odd ? 16 : After ? 0 : 32", file="format.h"),
    _codes("units-not-behind-each-other", "return at + x.y;", "return at;", file="format.h"),
    _codes("offset-forgotten", "fma(offset[g], total[m][g]", "fma(0.0f, total[m][g]", "q4_k"),
    _codes("offset-of-few-rows-forgotten", "fma(offset[n], total[m], sum", "fma(0.0f, total[m], sum", "q4_k", m=3),
    _codes("offset-of-a-chunk", "sum = first ? all : sum + all;", "sum = all;", "q4_k"),
    _codes("one-scale-for-all-groups", "d[g] = raw[n].scale(first, g)", "d[g] = raw[n].scale(first, 0)", "q6_k"),
    _codes(
        "pairs-exchanged", *within("w[1] = float(odd.x); w[2] = float(even.y)", "odd.x", "even.y"), "q4_0", "format.h"
    ),
    _codes("odd-bytes-as-even", "bytes = odd ? word", "bytes = !odd ? word", "mxfp4", "format.h"),
    _codes(
        "sign-of-two",
        "sign = bits << (upper ? 8 : 12) & 0x80008000u",
        "sign = bits << 12 & 0x8000u",
        "mxfp4",
        "format.h",
    ),
    _codes(
        "sub-blocks-exchanged", "scales[g] = b.scales[k % 64 / 16 + g]", "scales[g] = b.scales[g]", "nvfp4", "nvfp4.h"
    ),
    _codes("exponent-cut", "bits << 7 & 0x3f803f80u", "bits << 7 & 0x1f803f80u", "fp8_g32", "format.h"),
    Fault(
        "linear-codes-nan-is-a-number",
        "linear.metal",
        "carries & 0x80808080u ?",
        "carries & 0x80u ?",
        test_codes_that_are_nan,
        "fp8.h",
    ),
    Fault(
        "linear-sum-depends-on-the-number-of-rows",
        "linear.metal",
        "= metal::fma(d[u][n], products, sum[m * N + n]);",
        "= m > 0 ? sum[m * N + n] + float(d[u][n] * products) : metal::fma(d[u][n], products, sum[m * N + n]);",
        lambda: test_a_row_does_not_depend_on_its_company("q8_0", F32),
        "gemv.h",
    ),
    _tiles("slab-of-w-stale", "stage<Q, V>(w_row[i], k0 + c", "stage<Q, V>(w_row[i], (k0 & ~63u) + c"),
    _tiles("last-chunk-dropped", "if (k < end) d =", "if (k + chunk < end) d ="),
    _tiles("edge-guard-off-by-one", *within(f"if ({STORED}", " n <", " n + 1 <"), file=""),
    _tiles("quarters-mixed-up", "sn = simdgroup % 2", "sn = simdgroup / 2", Case(33, 64, 40)),
    *(
        Fault(
            f"linear-tiles-staging-rounds-{name}",
            "linear.metal",
            *within(STAGED, "float", staged),
            lambda dtype=dtype: test_accuracy(Case(33, 65, 96, "q8_0"), dtype),
            "tiles.h",
        )
        for name, staged, dtype in (("float", "half", F32), ("bfloat", "T", BF16))
    ),
    Fault(
        "linear-tiles-barrier-missing-after-a-slab",
        "linear.metal",
        END_OF_SLAB,
        END_OF_SLAB.split("\n      metal::threadgroup")[0],
        lambda: test_lane_orders(33, None),
        "tiles.h",
    ),
    _epilogue("bias-of-the-neighbour", "bias[n]", "bias[n ^ 1]", Case(3, bias=True)),
    _epilogue(
        "residual-of-row-0-ignored",
        *within("has_residual ? residual[row_offset(args.residual, m)", "has_residual", "has_residual && m"),
        Case(3, residual=True),
    ),
    _epilogue("scale-ignored", ": sum * args.scale", ": sum", Case(3, scale=-3.0)),
    _epilogue("gelus-exchanged", "return Gelu::apply(v)", "return GeluTanh::apply(v)", Case(3, activation="gelu")),
    Fault(
        "linear-epilogue-residual-scaled-too",
        "linear.metal",
        "metal::fma(args.scale, sum,",
        "args.scale * metal::fma(1.0f, sum,",
        lambda: test_integers_are_exact(None, F32, 8),
        "epilogue.h",
    ),
    _format(
        "scale-of-one-chunk",
        *within("q[j]); } return widen(b.d);", "n w", "n (q == b.qs + 12 ? 1.03f : 1.0f) * w"),
        "q8_0.h",
    ),
    _format("codes-exchanged", "w[2 * j + 1] = code<8, 0xff, 0x80, 128>(q[j])", "w[2 * j + 1] = w[2 * j]", "q8_0.h"),
    _format("nibbles-exchanged", "c == 0 ? code<0", "c == 1 ? code<0", "q4_0.h"),
    _format("zero-point", "code<0, 0xf, 0, 8>", "code<0, 0xf, 0, 7>", "q4_0.h"),
    _format("offset-subtracted", "m = widen(b.m)", "m = -widen(b.m)", "q4_1.h"),
    _format("zero-point", "two_codes<0x1f, 16>", "two_codes<0x1f, 15>", "q5_0.h"),
    _format("fifth-bit-of-odd-codes", "(two & 2) << 11", "(two & 2) << 10", "q5_1.h"),
    _format("offset-halved", "float(scale >> 4)", "float(scale >> 5)", "q2_k.h"),
    _format("upper-bits-of-scales", "s / 4 * 2 & 3", "s / 8 * 4 & 3", "q3_k.h"),
    _format("upper-bits-of-scales", "b.scales[s - 4] >> 6 << 4", "b.scales[s - 4] >> 6 << 3", "q4_k.h"),
    _format("fifth-bit-of-the-neighbour", "high[j]) >> i / 4", "high[j]) >> i / 8 * 2", "q5_k.h"),
    _format("nibbles-exchanged", "i / 8 % 2 * 4", "(1 - i / 8 % 2) * 4", "q6_k.h"),
    _format("a-value", "-127.0f", "-128.0f", "iq4_nl.h"),
    _format("upper-bits-of-scales", "s * 2 & 3", "s / 2 * 4 & 3", "iq4_xs.h"),
    _format("fifth-digit", "digit == 4 ? 81", "digit == 4 ? 27", "tq1_0.h"),
    _format("zero-point", "two_codes<3, 1>", "two_codes<3, 2>", "tq2_0.h"),
    _format("a-value", "-12.0f", "-11.0f", "mxfp4.h"),
    _format("exponent", "exponent + 119", "exponent + 118", "nvfp4.h"),
    _format("sign", "1.0f : -1.0f", "1.0f : 1.0f", "q1_0.h"),
    _format("never-down", "-0.125f : 0.125f", "0.125f : 0.125f", "iq1_s.h"),
    _format("down-by-an-entry-s-bit", "(high & 8) != 0", "(high & 4) != 0", "iq1_m.h"),
    _format("eighth-sign", "0x6996u", "0x6997u", "iq2_xxs.h"),
    _format("half-of-the-grid", "q & 0x1ff", "q & 0xff", "iq2_xs.h"),
    _format("upper-bits-of-entries", "high << 8", "high << 7", "iq2_s.h"),
    _format("largest-magnitude", ">> 2 & 0x02020202u", ">> 3 & 0x01010101u", "iq3_xxs.h"),
    _format("last-magnitude-of-three", "(codes >> 1 & 0x01010101u)", "(codes >> 1 & 0x00010101u)", "iq2_xxs.h"),
    _format("sign-of-the-fifth", "0x88011u", "0x88001u", "iq2_xxs.h"),
    _format("carry-of-a-negative", "0x80808080u - ones", "0x80808080u - 2 * ones", "iq2_xxs.h"),
    _format("ninth-bit-of-the-second", "(high & 2) << 7", "(high & 2) << 6", "iq3_s.h"),
    _embedding(
        "scale-before-rounding", "float(T(known ? d", "float((known ? d", EmbeddingCase(scale=33.941125, format="f32")
    ),
    _embedding(
        "last-column-dropped",
        *within("k + j < args.hidden; ++j)\n    out[j] = T(", "k + j", "k + j + 1"),
        EmbeddingCase(hidden=65),
    ),
    _embedding("row-of-id-0", "inside ? given :", "inside && given > 1 ? given :", EmbeddingCase(vocab=2)),
    _embedding(
        "factor-rounded", "args.scale * float(T(", "float(T(args.scale)) * float(T(", EmbeddingCase(scale=33.941125)
    ),
]
