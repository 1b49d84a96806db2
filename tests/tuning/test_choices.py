"""Every choice that may be made keeps Apple's limits and gives right results, and rows keep their bits in company."""

from __future__ import annotations

import itertools

import kit
import pytest
import test_attention
import test_linear
import torch
from kit import F32, every_key

from tools.agx.emulate import captured
from torch_foundry import ops
from torch_foundry.core import environment, limits, tuning
from torch_foundry.core.environment import Choice

pytestmark = pytest.mark.tier("kernels")

FAMILIES = ["host", "apple7", "apple8", "apple9", "apple10", "sm_80", "sm_90", "sm_90-h200", "sm_100"]
PACKED = kit.CODES

MATRICES = tuning.BY_MATRICES

# Apple GPUs
THREADS, THREADGROUP_BYTES, SUMS = 1024, 32768, 32


def within_limits(key: tuning.Key, choice: dict[str, int]) -> None:
    assert set(choice) == set(tuning.parameters(key.op))
    if key.op == "linear_routes":
        assert choice["rows"] >= limits.ROWS_TOGETHER  # which an engine takes to be row by row
        return
    assert 32 * choice["simdgroups"] <= THREADS
    if key.op in MATRICES:  # their memory: tests/ops/test_matrix_rows.py, test_linear_matrix.py
        assert choice["simdgroups"] % choice["split"] == 0
        return
    if key.op != "attention":
        assert choice["simdgroups"] % choice["split"] == 0
        assert choice["simdgroups"] * choice["outputs"] * key.rows * 4 <= THREADGROUP_BYTES
        assert choice["outputs"] * key.rows <= SUMS
    else:
        assert choice["keys"] % (32 * choice["simdgroups"]) == choice["far_keys"] % (32 * choice["simdgroups"]) == 0
        rows = min(8, min(1024, 4096 // choice["simdgroups"]) // key.n)  # as csrc/ops/attention.cpp
        simdgroups = choice["simdgroups"]
        staged = (rows * key.n + simdgroups * 2 * rows * 32) * 4
        assert max(staged, simdgroups * rows * key.n * 4) + simdgroups * rows * 8 <= THREADGROUP_BYTES


@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_keeps_the_limits(family: str) -> None:
    for key in itertools.chain(*map(every_key, tuning.OPS)):
        within_limits(key, tuning.choice(family, key))


@pytest.mark.parametrize("op", ["moe_glu", "moe_down"])
def test_experts_have_a_row_each(op: str) -> None:
    """So eight outputs keep the limits, which eight rows of them would not."""
    with pytest.raises(RuntimeError, match=f"{op}: expected 1 row"):
        tuning.choice("host", tuning.Key(op, "q4_0", 8, 1536, 2048))


BY_MATRICES = {
    (151936, 896): {"q4_0": 32, "q8_0": 0, "f16": 0},
    (128256, 2048): {"q4_0": 32, "q8_0": 16, "q4_k": 32, "q6_k": 0},
    (65536, 2048): {"q4_0": 0},
    (128256, 4096): {"q4_0": 32, "q4_k": 32, "q8_0": 16},
    (1024, 4096): {"q4_0": 0},
    (2048, 2048): {"q4_0": 0},
    (2048, 4096): {"q4_0": 16, "q8_0": 0, "q4_k": 0},
    (2048, 8192): {"q4_0": 16},
    (4096, 4096): {"q4_0": 16, "q8_0": 0},
}


ON_AN_H200 = BY_MATRICES | {
    (128256, 4096): {"q4_0": 32, "q4_k": 32, "q8_0": 32},
    (4096, 14336): {"q4_0": 32, "q4_k": 32, "q8_0": 32},
    (2560, 9216): {"q4_0": 32, "q4_k": 0, "q8_0": 0},
}


@pytest.mark.parametrize("family, shapes", [("sm_90", BY_MATRICES), ("sm_90-h200", ON_AN_H200)], ids=str)
def test_what_goes_by_matrices_on_hopper(family: str, shapes: dict[tuple[int, int], dict[str, int]]) -> None:
    """Decisions 049, 061 and 068: outputs of a product, 0: by lanes."""
    for shape, outputs in shapes.items():
        for name, wanted in outputs.items():
            assert tuning.choice(family, tuning.Key("matrices", name, 1, *shape))["outputs"] == wanted, (shape, name)


def test_a_model_has_its_own_lines_or_those_of_its_architecture() -> None:
    """An H200's are for one row and the formats that were measured; an H100 has none of its own, nor has an H20."""
    theirs, differ = "sm_90", {}
    for key in itertools.chain(*map(every_key, tuning.OPS)):
        choice = tuning.choice(theirs, key)
        assert choice == tuning.choice("sm_90-h100-80gb-hbm3", key) == tuning.choice("sm_90-h20", key)
        own = tuning.choice("sm_90-h200-nvl", key)
        assert own == tuning.choice("sm_90-h200", key)
        if key.rows > 1 and key.op in ("linear", "norm_linear"):
            assert own["steps"] == choice["steps"]
            if key.format != "q4_k":
                assert own["outputs"] == choice["outputs"]
        differ[key.op, key.format] = own != choice or differ.get((key.op, key.format), False)
    assert differ["linear", "q8_0"] and differ["norm_linear", "f16"] and differ["moe_glu", "mxfp4"]
    assert not differ["linear", "f32"] and not differ["attention", "f16"] and not differ["norm_linear", "q5_k"]


def test_inputs_have_two_buckets_for_each_power_of_two() -> None:
    """Up to 512, 768, 1024, .. 16384, and more: 2560 and 4096 may have different choices, 9216 and 14336 too."""

    def of(k: int) -> tuple[int, int]:
        return tuning.bucket(tuning.Key("norm_linear", "q8_0", 1, 4096, k))

    assert len(set(map(of, kit.INPUTS))) == len(kit.INPUTS) == 12
    for last, more in itertools.pairwise(kit.INPUTS):
        assert of(last) != of(last + 1) == of(more)
    assert of(1) == of(kit.INPUTS[0]) and of(1 << 20) == of(kit.INPUTS[-1])
    assert of(2560) != of(4096) and of(9216) != of(14336)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_share_the_order_of_sums(family: str) -> None:
    for key in every_key("linear"):
        one = tuning.choice(family, tuning.Key("linear", key.format, 1, key.n, key.k))
        here = tuning.choice(family, key)
        assert (here["split"], here["chains"]) == (one["split"], one["chains"])


# Inputs that a simdgroup of Apple's takes in a step: 32 lanes, each a unit of the format's codes.
STEP = {"q4_0": 1024, "q8_0": 512, "mxfp4": 512, "q2_k": 1024, "q3_k": 1024, "q4_k": 1024, "q5_k": 1024, "q6_k": 1024}


def test_no_simdgroup_of_apples_is_idle() -> None:
    """Those that share K have a step of it each; and rows that share a reading have registers for it."""
    for name, step in STEP.items():
        for key in every_key("linear"):
            if key.format == name:
                choice = tuning.choice("apple8", key)
                assert choice["split"] == 1 or choice["split"] * step <= key.k, key
                assert choice["outputs"] <= (4 if key.rows == 1 or (name == "q8_0" and key.rows < 8) else 2), key


@pytest.mark.parametrize("op", tuning.OPS)
def test_what_is_accepted_keeps_the_limits(op: str) -> None:
    space = tuning.parameters(op)
    keys = [k for k in every_key(op) if k.format == "f16" and k.n in (32, 128, 256) and k.k in (1, 512)]
    accepted = 0
    for key in keys:
        for values in itertools.product(*space.values()):
            choice = dict(zip(space, values, strict=True))
            try:
                tuning.use("apple7", key, choice)
            except RuntimeError:
                continue
            accepted += 1
            within_limits(key, choice)
    assert accepted > len(keys) * 5


ROUTES = {environment.LINEAR_ROWS: "rows", environment.MATRIX_ROWS: "matrix", environment.TILE_ROWS: "tiles"}


@pytest.mark.parametrize("variable", tuning.OVERRIDES.values(), ids=lambda variable: variable.name)
@pytest.mark.parametrize("family", ["host", "apple7", "sm_90"])
def test_every_override_keeps_the_limits(family: str, variable: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    name = ROUTES.get(variable)
    for value in map(int, variable.allowed[1:]):
        monkeypatch.setenv(variable.name, str(value))
        tuning.load_environment()
        for key in itertools.chain(
            *(every_key(op) for op in tuning.OPS if op not in MATRICES and (name is None) == (op != "linear_routes"))
        ):
            choice = tuning.choice(family, key)
            within_limits(key, choice)
            if name is not None:
                assert choice[name] == value
                continue
            if key.op != "attention" and "COLS" in variable.name:
                assert choice["outputs"] * choice["simdgroups"] // choice["split"] == value
            if key.op != "attention" and "SPLIT" in variable.name:
                assert choice["split"] == value
    monkeypatch.delenv(variable.name)
    tuning.load_environment()


def test_overrides_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in tuning.OVERRIDES.values():
        monkeypatch.setenv(variable.name, "3")
        with pytest.raises(ValueError, match=f"{variable.name}='3': expected one of '', '{variable.allowed[1]}', '"):
            tuning.load_environment()
        monkeypatch.delenv(variable.name)
    tuning.load_environment()


@pytest.mark.parametrize(
    "wanted, message",
    [
        ({"outputs": 3}, r"outputs: expected one of 1, 2, 4, 8, got 3"),
        ({"split": 4, "simdgroups": 2}, r"simdgroups must be a multiple of split"),
        ({"outputs": 8, "steps": 4}, r"outputs \* steps must be at most 8"),
    ],
)
def test_impossible_choices_are_refused(wanted: dict[str, int], message: str) -> None:
    key = tuning.Key("linear", "f16", 1, 4864, 896)
    with pytest.raises(RuntimeError, match=message):
        tuning.use("sm_90", key, {**tuning.choice("sm_90", key), **wanted})


# ------------------------------------------------------------------------------------------------------------ results

VARIANTS = [
    {"outputs": 1, "steps": 4, "split": 2, "simdgroups": 8, "chains": 1},
    {"outputs": 2, "steps": 2, "split": 4, "simdgroups": 4, "chains": 1},
    {"outputs": 4, "steps": 1, "split": 8, "simdgroups": 16, "chains": 4},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", [None, *PACKED])
def test_linear_is_right(name: str | None, variant: dict[str, int]) -> None:
    with kit.choice("linear", **variant):
        for m, n, k in ((1, 9, 2336), (4, 13, 1056), (8, 5, 416)):
            test_linear.check(test_linear.inputs(test_linear.Case(m, n, k, name, **test_linear.FULL), F32))  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", [None, *PACKED])
def test_rows_keep_their_bits(name: str | None, variant: dict[str, int]) -> None:
    with kit.choice("linear", **variant):
        test_linear.test_a_row_does_not_depend_on_its_company(name, F32)


@pytest.mark.parametrize("name", [None, *PACKED])
def test_only_split_and_chains_change_bits(name: str | None) -> None:
    """Rows in different files of a table agree because nothing but the order of sums decides."""
    given = test_linear.inputs(test_linear.Case(2, 9, 1056, name, **test_linear.FULL), F32)  # type: ignore[arg-type]
    results = []
    for outputs, steps, simdgroups in ((1, 1, 4), (2, 4, 8), (4, 0, 16)):
        with kit.choice("linear", outputs=outputs, steps=steps, split=4, simdgroups=simdgroups, chains=1):
            results.append(ops.linear(**given))
    for other in results[1:]:
        kit.assert_equal(other, results[0])


def test_split_has_no_race() -> None:
    with kit.choice("linear", split=4, simdgroups=8):
        test_linear.test_lane_orders(3, PACKED[0])


@pytest.mark.parametrize("simdgroups, lanes, keys", [(4, 8, 128), (8, 8, 256), (8, 1, 512)])
def test_attention_is_right(simdgroups: int, lanes: int, keys: int) -> None:
    t = test_attention
    with kit.choice("attention", keys=keys, simdgroups=simdgroups, lanes=lanes):
        for case, dtype in t.CASES:
            if case.queries <= 16 and case.kv_len <= 600 and case.head_dim in (32, 64, 96, 128):
                t.check(t.inputs(case, dtype))


def test_attention_with_lanes_has_no_race() -> None:
    case = test_attention.Case(queries=2, kv_len=300, capacity=300)
    given = test_attention.inputs(case, F32)
    with kit.choice("attention", lanes=8):
        kit.in_every_lane_order(lambda: ops.attention(**given))


def test_rows_that_share_the_keys_change_no_bit() -> None:
    given = test_attention.inputs(test_attention.Case(heads=14, queries=2, kv_len=300, capacity=300), F32)
    found = []
    for groups in (1, 64, 1024):
        with kit.choice("attention", groups=groups):
            found.append(ops.attention(**given))
    for rows in (4, 16):
        with kit.choice("attention", groups=1, rows=rows):
            found.append(ops.attention(**given))
    for other in found[1:]:
        kit.assert_equal(other, found[0])


@pytest.mark.parametrize("family, wanted", [("apple7", {64: 4, 256: 4, 512: 2}), ("sm_80", {64: 8, 256: 8, 512: 4})])
def test_registers_limit_the_rows_that_share_the_keys(family: str, wanted: dict[int, int]) -> None:
    """Decision 069."""
    found = {}
    for head_dim in wanted:
        q, k = (torch.zeros(1, n, rows, head_dim, dtype=torch.float16) for n, rows in ((64, 1), (8, 4096)))
        launch = captured(family, lambda q=q, k=k: ops.attention(q, k, k, 4096, scale=1.0))[1][0]
        entry = launch[0].split("\n")[1]
        found[head_dim] = int(entry.split(f"{head_dim}, {head_dim}, ")[1].split(",")[0])
    assert found == wanted


def test_a_key_nobody_sees_changes_no_bit() -> None:
    """More splits, some of them unseen, give the same bits: what a decode at 5000 of 5000 and of 9000 keys gives."""
    g = kit.generator("unseen")
    q, k, v = (kit.normal(g, 1, 2, n, 64, dtype=F32) for n in (1, 3000, 3000))
    start = torch.zeros(1, dtype=torch.int32)
    with kit.choice("attention", keys=128, lanes=8, far_keys=256):
        few = ops.attention(q, k[:, :, :700], v[:, :, :700], 700, scale=0.1, kv_start=start)
        mask = (torch.arange(3000) < 700).view(1, 1, 1, -1)
        many = ops.attention(q, k, v, 3000, scale=0.1, mask=mask, causal=False)
    kit.assert_equal(many, few)
