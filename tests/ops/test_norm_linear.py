"""norm_linear, norm_glu and norm_qkv against float64: projections, and an RMSNorm before them, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.core import runtime
from torch_foundry.testing import reference as plain
from torch_foundry.testing import weights
from torch_foundry.testing.tolerance import assert_norm, double

EPS = 1e-5
Given = dict[str, Any]


@dataclass(frozen=True)
class Case(kit.Case):
    m: int = 1
    k: int = 256
    n: tuple[int, ...] = (24,)
    formats: tuple[str | None, ...] = (None,)
    bias: tuple[int, ...] = ()  # which matrices have one
    kind: str | None = "llama"  # None: no norm


def matrix(g: torch.Generator, n: int, k: int, format: str | None, dtype: torch.dtype) -> Tensor:
    packed = format is not None and quant.FORMATS[format].packed
    weight = kit.normal(g, n, k, dtype=F32 if packed else dtype, scale=k**-0.5)
    return weights.packed(weight, format) if format and packed else weight


def inputs(case: Case, dtype: torch.dtype) -> Given:
    g = kit.generator(case)
    return {
        "x": kit.normal(g, case.m, case.k, dtype=dtype, scale=3.0),
        "norm_weight": kit.normal(g, case.k, dtype=dtype) if case.kind else None,
        "eps": EPS,
        "weights": [matrix(g, n, case.k, f, dtype) for n, f in zip(case.n, case.formats, strict=True)],
        "kind": case.kind or "llama",
        "formats": list(case.formats),
        "biases": [kit.normal(g, n, dtype=dtype) if i in case.bias else None for i, n in enumerate(case.n)],
    }


def apart(given: Given, projection: int) -> Tensor:
    """One projection by plain torch, in the precision of what is given."""
    x, gain = given["x"], given["norm_weight"]
    h = x if gain is None else plain.rms_norm(x, gain, given["eps"], kind=given["kind"])
    weight, format, bias = (given[name][projection] for name in ("weights", "formats", "biases"))
    return plain.linear(h, weight, format=format, bias=bias)


def reference(**given: Any) -> Tensor:
    return torch.cat([apart(given, i) for i in range(len(given["weights"]))], -1)


MIXED = ("q8_0", "q8_0", "q4_0")
FOUR = [
    (Case(m=2, k=264, n=(9, 4, 5, 3), formats=(None,) * 4, bias=(1, 3)), F32),
    (Case(k=320, n=(24, 9, 2, 2), formats=("q8_0",) * 4), F16),
    (Case(m=5, k=512, n=(9, 7, 2, 3), formats=("q4_k", "q4_k", None, None), bias=(2,)), BF16),
]
CASES = [
    *((Case(m=m), F32) for m in (1, 2, 3, 5, 8, 16)),
    *((Case(m=m, formats=("q8_0",), bias=(0,)), F16) for m in (1, 4, 9)),
    (Case(k=257, n=(9,)), F32),
    (Case(m=3, k=7, n=(5, 3), formats=(None, None)), F32),
    (Case(k=264, n=(9, 4, 4), formats=(None, None, None), bias=(0, 2)), BF16),
    (Case(m=2, k=896, n=(14, 6, 6), formats=MIXED, bias=(0, 1, 2)), F32),
    (Case(m=8, k=896, n=(14, 6, 6), formats=MIXED, bias=(1,)), BF16),
    (Case(k=320, n=(8, 7, 9), formats=("q4_0", "q8_0", "q4_0")), F16),
    (Case(m=2, k=512, n=(9, 4), formats=("q4_k", "q6_k")), F32),
    *FOUR,
    (Case(kind="gemma", k=512), F32),
    (Case(kind="olmo", m=4), F16),
    (Case(m=3, k=320, n=(8, 7, 9), formats=("q4_0", "q8_0", None), bias=(1,), kind=None), F16),
    (Case(m=8, n=(9, 8), formats=(None, None), kind=None), F32),
]


def check(given: Given) -> None:
    assert_norm(ops.norm_linear(**given), reference(**double(given)), reference(**given))


@kit.cases(*CASES)
def test_linear(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


# ------------------------------------------------------------------------------------------------------------------ glu


def glu_inputs(case: Case, dtype: torch.dtype, activation: str = "silu") -> Given:
    given = inputs(case, dtype)
    (gate, up), (format, _) = given.pop("weights"), given.pop("formats")
    return {**given, "gate": gate, "up": up, "format": format, "activation": activation}


def glu_reference(given: Given) -> Tensor:
    pair = {**given, "weights": [given["gate"], given["up"]], "formats": [given["format"]] * 2}
    return plain.glu(apart(pair, 0), apart(pair, 1), given["activation"], gate_scale=given.get("gate_scale", 1.0))


def check_glu(given: Given) -> None:
    assert_norm(ops.norm_glu(**given), glu_reference(double(given)), glu_reference(given))


GLU_CASES = [
    *((Case(m=m, n=(24, 24), formats=(None, None)), F32) for m in (1, 2, 4, 8, 11)),
    (Case(k=257, n=(9, 9), formats=(None, None), bias=(1,)), F32),
    (Case(m=3, k=896, n=(31, 31), formats=("q8_0", "q8_0"), bias=(0, 1)), F16),
    (Case(k=896, n=(33, 33), formats=("q4_0", "q4_0")), BF16),
    (Case(n=(1, 1), formats=("f16", "f16"), kind="gemma"), F16),
    (Case(m=2, k=257, n=(9, 9), formats=(None, None), bias=(0,), kind=None), F32),
]


@kit.cases(*GLU_CASES)
def test_glu(case: Case, dtype: torch.dtype) -> None:
    check_glu(glu_inputs(case, dtype))


def test_glu_of_scaled_gates() -> None:
    check_glu({**glu_inputs(GLU_CASES[7][0], F16), "gate_scale": 0.6})


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_glu_activations(activation: str) -> None:
    check_glu(glu_inputs(GLU_CASES[1][0], F32, activation))


# ------------------------------------------------------------------------------------------------------------------ qkv


@dataclass(frozen=True)
class Heads(kit.Case):
    batch: int = 1
    tokens: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: int = 64
    k: int = 256
    formats: tuple[str | None, ...] = (None, None, None)
    bias: tuple[int, ...] = ()
    kind: str | None = "llama"
    start: int = 5
    table: torch.dtype | None = None
    interleaved: bool = False


def qkv_inputs(c: Heads, dtype: torch.dtype) -> Given:
    widths = tuple(c.head_dim * h for h in (c.heads, c.kv_heads, c.kv_heads))
    given = inputs(Case(c.batch * c.tokens, c.k, widths, c.formats, c.bias, c.kind), dtype)
    given["x"] = given["x"].view(c.batch, c.tokens, c.k)
    g = kit.generator(c)
    angles = torch.rand(40, c.rotary, generator=g, dtype=torch.float64) * 6
    caches = {n: kit.normal(g, c.batch, c.kv_heads, 16, c.head_dim, dtype=dtype) for n in ("k_cache", "v_cache")}
    return {
        **given,
        "cos": torch.cos(angles).to(c.table or dtype) if c.rotary else None,
        "sin": torch.sin(angles).to(c.table or dtype) if c.rotary else None,
        **caches,
        "start": 0,
        "head_dim": c.head_dim,
        "interleaved": c.interleaved,
        "positions": torch.randperm(40, generator=g)[: c.batch * c.tokens].view(c.batch, c.tokens).int(),
        "step": torch.tensor([c.start, 0], dtype=torch.int32),
    }


def own(given: Given) -> Given:
    return {**given, "k_cache": given["k_cache"].clone(), "v_cache": given["v_cache"].clone()}


def qkv_reference(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    own_given = own(given)
    names = ("cos", "sin", "k_cache", "v_cache", "start", "head_dim", "positions", "step", "interleaved")
    q = plain.rope_kv(*(apart(given, i) for i in range(3)), **{n: own_given[n] for n in names})
    return q, own_given["k_cache"], own_given["v_cache"]


def check_qkv(given: Given) -> None:
    mine = own(given)
    got = ops.norm_qkv(**mine), mine["k_cache"], mine["v_cache"]
    truth, stock = qkv_reference(double(given)), qkv_reference(given)
    for mine_of, expected, by_stock in zip(got, truth, stock, strict=True):
        assert_norm(mine_of, expected, by_stock)
    start, tokens = int(given["step"][0]), given["x"].shape[1]
    for name, after in zip(("k_cache", "v_cache"), got[1:], strict=True):
        old = [i for i in range(16) if not start <= i < start + tokens]
        kit.assert_equal(after[:, :, old], given[name][:, :, old])


QKV_CASES = [
    (Heads(), F32),
    (Heads(), F16),
    (Heads(batch=2, tokens=4, bias=(0, 1, 2)), F32),
    (Heads(tokens=3, rotary=0), F32),
    (Heads(rotary=32, head_dim=96, heads=3, kv_heads=1), F16),
    (Heads(tokens=8, table=F32, formats=MIXED, bias=(2,)), BF16),
    (Heads(batch=3, formats=("q4_0", "q8_0", "q8_0")), F16),
    (Heads(heads=7, kv_heads=1, formats=("q8_0",) * 3, k=896), F16),
    (Heads(k=257, head_dim=32, rotary=32), F32),
    (Heads(batch=9, k=64), F32),
    (Heads(tokens=2, rotary=32, kind=None), F16),
    (Heads(tokens=2, rotary=32, interleaved=True), F32),
]


def cost(m: int, k: int, n: int, formats: tuple[str | None, ...], dtype: torch.dtype) -> tuple[int, int]:
    """Of products with matrices of `n` rows together, in one format."""
    return 2 * m * n * k, n * kit.row_bytes(formats[0], k, dtype) + (m * (n + k) + k) * dtype.itemsize


def _bench(name: str, n: tuple[int, ...], make: Any, run: Any, by_torch: Any, checked: Any) -> kit.Bench:
    """A few rows of each format, of the sizes of Qwen2.5 0.5B but for k, which all formats divide."""
    formats = [(format,) * len(n) for format in (None, *kit.CODES)]
    return kit.Bench(
        name, [Case(m, 1024, n, each) for m in (1, 8) for each in formats], make, run, by_torch, checked,
        lambda c, dtype: cost(c.m, c.k, sum(n), c.formats, dtype),
    )  # fmt: skip


def _bench_qkv(case: Case, dtype: torch.dtype) -> Given:
    return qkv_inputs(Heads(1, case.m, 14, 2, k=case.k, formats=case.formats), dtype)


BENCHES = [
    _bench("norm_linear", (896, 128, 128), inputs, ops.norm_linear, reference, check),
    _bench("norm_glu", (4864, 4864), glu_inputs, ops.norm_glu, lambda **given: glu_reference(given), check_glu),
    _bench("norm_qkv", (896, 128, 128), _bench_qkv, ops.norm_qkv, lambda **given: qkv_reference(given), check_qkv),
]


@kit.cases(*QKV_CASES)
def test_qkv(case: Heads, dtype: torch.dtype) -> None:
    check_qkv(qkv_inputs(case, dtype))


def test_qkv_with_tables_by_token_and_a_start_of_the_host() -> None:
    given = qkv_inputs(Heads(batch=2, tokens=3), F32)
    by_token = {n: given[n][given["positions"].long()] for n in ("cos", "sin")}
    other = own({**given, **by_token, "positions": None, "step": None, "start": 5})
    mine = own(given)
    kit.assert_equal(ops.norm_qkv(**other), ops.norm_qkv(**mine))
    kit.assert_equal(other["k_cache"], mine["k_cache"])


# ---------------------------------------------------------------------------------------------------------- all of them


@pytest.mark.cpu_only
@pytest.mark.tier("kernels")
@pytest.mark.parametrize("chains, formats", [(4, (None, None, None)), (4, MIXED), (1, MIXED)], ids=str)
@pytest.mark.parametrize("split", [1, 4])
def test_a_row_does_not_depend_on_its_company(chains: int, formats: tuple[str | None, ...], split: int) -> None:
    case = Case(19, 1184, (9, 7, 3), formats)
    given, pair = inputs(case, F16), glu_inputs(Case(19, 1184, (9, 9), formats[:2]), F16)
    with kit.choice("norm_linear", split=split, simdgroups=2 * split, chains=chains):
        together, glu_together = ops.norm_linear(**given), ops.norm_glu(**pair)
        for m in (1, 2, 3, 4, 7, 8):
            rows = slice(19 - m, 19)
            kit.assert_equal(ops.norm_linear(**{**given, "x": given["x"][rows]}), together[rows])
            kit.assert_equal(ops.norm_glu(**{**pair, "x": pair["x"][rows]}), glu_together[rows])


def test_tokens_do_not_depend_on_each_other() -> None:
    given = qkv_inputs(Heads(tokens=5, start=3), F16)
    together = own(given)
    q = ops.norm_qkv(**together)
    alone = own(given)
    for t in range(5):
        step = torch.tensor([3 + t, 0], dtype=torch.int32)
        one = {"x": given["x"][:, t : t + 1].contiguous(), "positions": given["positions"][:, t : t + 1].contiguous()}
        kit.assert_equal(ops.norm_qkv(**{**alone, **one, "step": step}), q[:, :, t : t + 1])
    kit.assert_equal(alone["k_cache"], together["k_cache"])
    kit.assert_equal(alone["v_cache"], together["v_cache"])


@pytest.mark.cpu_only
@pytest.mark.parametrize("outputs, chains", kit.some_nightly([(1, 4), (2, 1), (4, 4)], [(1, 1), (2, 4), (4, 1)]))
def test_variants(outputs: int, chains: int) -> None:
    """As they are chosen for other devices; 8 rows and 4 outputs gather the squares apart from the products."""
    with kit.choice("norm_linear", outputs=outputs, chains=chains, split=2, simdgroups=4):
        for m in (1, 8):
            for format in (None, "q8_0", "q4_0"):
                check(inputs(Case(m, 800, (9,), (format,)), F16))
                check_glu(glu_inputs(Case(m, 800, (9, 9), (format, format)), F32))
                check_qkv(qkv_inputs(Heads(tokens=m, k=800, formats=(format,) * 3), F16))


def launches(compute: Any) -> int:
    before = runtime.counters().launches
    compute()
    return runtime.counters().launches - before


def test_a_launch_for_each_run_of_formats() -> None:
    for formats, expected in ((MIXED, 2), (("q4_0",) * 3, 1), (("q4_0", "q8_0", "q4_0"), 3)):
        given = inputs(Case(n=(8, 8, 8), formats=formats), F32)
        assert launches(lambda given=given: ops.norm_linear(**given)) == expected
        heads = qkv_inputs(Heads(formats=formats), F32)
        assert launches(lambda heads=heads: ops.norm_qkv(**heads)) == expected
    assert launches(lambda: ops.norm_glu(**glu_inputs(GLU_CASES[0][0], F32))) == 1


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    with kit.choice("norm_linear", split=4, simdgroups=8):
        kit.in_every_lane_order(lambda: ops.norm_linear(**inputs(Case(3, 1024), F32)))
        kit.in_every_lane_order(lambda: ops.norm_qkv(**own(qkv_inputs(Heads(tokens=2, k=1024), F32))))


def test_large_and_tiny_rows() -> None:
    """The sum of squares is float32, and eps keeps a row of zeros from becoming NaN."""
    given = inputs(Case(3), F32)
    given["x"][0] *= 1e15
    given["x"][1] = 0
    given["x"][2] *= 1e-15
    check(given)
    assert not ops.norm_linear(**given)[1].any()


def test_strided_weights() -> None:
    given = inputs(Case(2, 256, (12, 8), (None, None)), F32)
    for pad in (4, 3):
        check({**given, "weights": [kit.spread(w, pad) for w in given["weights"]], "x": kit.shifted(given["x"], pad)})


def test_empty() -> None:
    given = inputs(Case(), F32)
    assert ops.norm_linear(**{**given, "x": given["x"][:0]}).shape == (0, 24)
    heads = qkv_inputs(Heads(), F32)
    none = {"x": heads["x"][:, :0], "positions": heads["positions"][:, :0]}
    assert ops.norm_qkv(**{**heads, **none}).shape == (1, 4, 0, 64)


def raw(given: Given) -> list[Any]:
    names = ("x", "norm_weight", "eps", "kind", "weights", "formats", "biases")
    return [given[n] if n != "formats" else [f or "" for f in given[n]] for n in names]


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("norm_linear", *raw(inputs(Case(n=(8, 8), formats=(None, None), bias=(1,)), F32)))
    kit.opcheck("norm_glu", *raw(inputs(Case(n=(8, 8), formats=(None, None)), F32)), "silu")
    heads = qkv_inputs(Heads(), F32)
    rest = ("cos", "sin", "k_cache", "v_cache", "start", "head_dim", "positions", "step", "interleaved")
    kit.opcheck("norm_qkv", *raw(heads), *(heads[n] for n in rest))


def test_bad_inputs() -> None:
    given, heads, pair = inputs(Case(), F32), qkv_inputs(Heads(), F32), glu_inputs(GLU_CASES[0][0], F32)

    def refuse(message: str, op: Any, base: Given, **changed: Any) -> None:
        with kit.refuses(message):
            op(**{**base, **changed})

    refuse(r"x: expected .*contiguous", ops.norm_linear, given, x=torch.zeros(256, 2).t())
    refuse(r"norm_weight: expected \[in_features=256\]", ops.norm_linear, given, norm_weight=torch.ones(8))
    refuse(r"norm_weight: expected dtype Float", ops.norm_linear, given, norm_weight=torch.ones(256).half())
    refuse(r"weights: expected in_features=256, got 8", ops.norm_linear, given, weights=[torch.zeros(4, 8)])
    refuse(r"weights: expected 1 to 4 matrices", ops.norm_linear, given, weights=[], formats=[], biases=[])
    refuse(r"formats: expected a format and a bias", ops.norm_linear, given, formats=[None, None])
    refuse(r"biases: expected \[out_features=24\]", ops.norm_linear, given, biases=[torch.zeros(3)])
    refuse(r"kind: expected one of", ops.norm_linear, given, kind="t5")
    refuse(r"eps: expected a finite", ops.norm_linear, given, eps=-1.0)
    refuse(r"format: expected one of", ops.norm_linear, given, formats=["q9"])
    refuse(r"gate and up of the same shape", ops.norm_glu, pair, up=torch.zeros(8, 256))
    refuse(r"activation: expected one of", ops.norm_glu, pair, activation="elu")
    refuse(r"weights: expected heads \* 48", ops.norm_qkv, heads, head_dim=48)
    refuse(r"start: expected start \+ 1", ops.norm_qkv, heads, start=16)
    refuse(r"k_cache: expected \[batch=1, kv_heads=2", ops.norm_qkv, heads, k_cache=heads["k_cache"][:, :1])
    refuse(r"positions: expected dtype Int", ops.norm_qkv, heads, positions=heads["positions"].long())
    refuse(r"x: expected 3 dimensions", ops.norm_qkv, heads, x=heads["x"][0])


def _fault(name: str, old: str, new: str, run: Any, file: str = "") -> Fault:
    return Fault(f"decode-{name}", "norm_linear.metal", old, new, run, file)


COSINE = """pair.column + (is_first ? 0 : h.rotary_dim / 2);
      const float c = float(cosines[angles.cosines + column])"""
FAULTS = [
    _fault("gains-of-gemma", "norm_weight, offset, normed}", "norm_weight, 0.0f * offset, normed}",
           lambda: test_linear(Case(kind="gemma"), F32), "products.h"),
    _fault("norm-where-there-is-none", "if (normed) { const int m", "if (true) { const int m",
           lambda: test_linear(*CASES[-1]), "products.h"),
    _fault("eps-ignored", "of_row / float(k) + eps", "of_row / float(k) + 0.0f * eps", test_large_and_tiny_rows,
           "products.h"),
    _fault("squares-of-row-0", "min(int(lane) / N, M - 1)", "min(0, M - 1)", lambda: test_linear(Case(m=3), F32),
           "products.h"),
    _fault("squares-with-the-gain", "g); squares += dot<P>(v, v);", "g); squares += dot<P>(v, g);",
           lambda: test_linear(Case(), F32), "gemv.h"),
    _fault("row-of-the-second-matrix", "ulong(n - first) * blocks", "ulong(n - first) / 2 * blocks",
           lambda: test_linear(*CASES[11])),
    _fault("bias-of-the-first", "args.has_bias & 4", "args.has_bias & 2", lambda: test_linear(*CASES[11])),
    _fault("third-matrix-for-the-last", "n < fourth ? w2 : w3", "n < fourth ? w2 : w2",
           lambda: test_linear(*FOUR[0])),
    _fault("bias-of-the-third", "args.has_bias & 8", "args.has_bias & 4", lambda: test_linear(*FOUR[0])),
    _fault("last-output-not-stored", "m < a.rows && n < args.end)", "m < a.rows && n + 1 < args.end)",
           lambda: test_linear(Case(n=(9,)), F32)),
    _fault("gate-and-up-exchanged", "gated(args.activation, value * args.gate_scale, up)",
           "gated(args.activation, up, value)", lambda: test_glu(*GLU_CASES[0])),
    _fault("gate-not-scaled", "value * args.gate_scale", "value", test_glu_of_scaled_gates),
    _fault("up-without-bias", "n + (mine < pairs ? 0 : width), b0", "n, b0", lambda: test_glu(*GLU_CASES[5])),
    _fault("sign-of-sin", "is_first ? -other : other", "is_first ? other : -other", lambda: test_qkv(*QKV_CASES[0])),
    _fault("cos-of-the-first-half", COSINE, COSINE.replace("cosines + column", "cosines + pair.column"),
           lambda: test_qkv(*QKV_CASES[0])),
    _fault("columns-of-halves", "pair.column + (is_first", "pair.first + (is_first", lambda: test_qkv(*QKV_CASES[-1])),
    _fault("batch-of-the-first", "batch = m / h.q_len", "batch = m / h.q_len * 0", lambda: test_qkv(*QKV_CASES[2])),
    _fault("second-launch-from-the-front", "args.first_pair + group.x * in_group", "group.x * in_group",
           lambda: test_qkv(*QKV_CASES[5])),
]  # fmt: skip
