"""Which kernel, or torch, multiplies how many rows: by device, as the environment says, and as `tune` finds it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import kit
import pytest
import torch
from kit import F16, F32

from torch_foundry import ops, quant
from torch_foundry.aot import prebuild
from torch_foundry.core import environment, limits, runtime, tuning
from torch_foundry.core.graph import capture
from torch_foundry.diagnostics import tune_routes
from torch_foundry.models.weights import ROW_BY_ROW, Linear
from torch_foundry.nn.linear import FoundryLinear, dense_linear, linear_routes
from torch_foundry.testing import timing, tolerance

CPU = torch.device("cpu")
N, K = 24, 64


def key(name: str) -> tuning.Key:
    return tuning.Key("linear_routes", name, 1, N, K)


def routes(family: str, name: str) -> tuning.LinearRoutes:
    return tuning.LinearRoutes(**tuning.choice(family, key(name)))


@pytest.mark.parametrize(
    "families, packed, dense",
    [
        (("apple7", "apple8", "apple9"), (32, 0, 128, 0), (16, 0, 128, 0)),
        (("apple10",), (32, 0, 128, 512), (16, 0, 128, 128)),  # tensor operations (decision 054)
        (("sm_80", "sm_100"), (16, 64, 0, 0), (8, 0, 0, 0)),
        (("sm_90", "sm_90-h200"), (16, 128, 0, 0), (8, 0, 0, 0)),  # of formats with fragments (decision 052)
        (("sm_70", "sm_75", "host", "a GPU of tomorrow"), (16, 0, 0, 0), (8, 0, 0, 0)),
    ],
)
def test_by_family(families: tuple[str, ...], packed: tuple[int, ...], dense: tuple[int, ...]) -> None:
    for family in families:
        for name, (rows, matrix, tiles, tensors) in (
            ("q4_k", packed),
            ("q8_0", packed),
            ("f16", dense),
            ("f32", dense),
        ):
            by_matrices = family.startswith("sm_90") and name in ("q4_k", "q8_0")  # decision 059
            experts = 256 if by_matrices else 128 if "apple" in family else 64
            assert routes(family, name) == tuning.LinearRoutes(rows, matrix, tiles, limits.FEW_ROWS, experts, tensors)
            assert family.startswith("sm_90") or max(rows, matrix) < prebuild.TILED  # what is shipped has tiles


def test_the_last_rows_that_kernels_take() -> None:
    found = tuning.LinearRoutes(16, 64, 0, 16, 64, 0)
    assert found.most(True, F16) == 64 and found.most(True, F32) == found.most(False, F16) == 16
    found = tuning.LinearRoutes(32, 0, 128, 16, 64, 512)
    assert found.most(True, F32) == 128 and found.most(True, F16) == found.most(False, F16) == 512


# ------------------------------------------------------------------------------------------------------- what launches


def launched(rows: int, name: str | None, batch_invariant: bool = False, dtype: torch.dtype = F32) -> str:
    x, weight = torch.randn(rows, K).to(dtype), torch.randn(N, K)
    stored = weight.to(dtype) if name is None else quant.quantize(weight, name)
    with capture() as graph:
        ops.linear(x, stored, format=name, batch_invariant=batch_invariant)
    (launch,) = graph.launches()
    return launch.kernel.split("<")[0]


@pytest.fixture
def as_on_apple() -> Iterator[None]:
    """The host goes the ways of Apple's GPUs."""
    for name in ("q8_0", "f32", "f16"):
        tuning.use("host", key(name), tuning.choice("apple8", key(name)))
    yield
    tuning.forget()


@pytest.mark.cpu_only
def test_kernels_by_rows(as_on_apple: None) -> None:
    for name, last in (("q8_0", 32), (None, 16)):
        assert launched(last, name) == launched(1, name) == "linear_rows"
        assert launched(last + 1, name) == launched(128, name) == "linear_tiles"
        assert launched(129, name, True) == "linear_rows"  # a promise of bits
    tuning.forget()
    assert launched(17, "q8_0") == "linear_tiles"


@pytest.mark.cpu_only
def test_sixteen_rows_are_row_by_row_whatever_the_table_says() -> None:
    """Steps of `generate()` and their drafts rest on it: they call the op itself."""
    for name in ("q8_0", "f32"):
        tuning.use(
            "host", key(name), {"rows": 8, "matrix": 128, "tiles": 512, "backward": 8, "experts": 16, "tensors": 0}
        )
    for name in ("q8_0", None):
        assert launched(limits.FEW_ROWS, name, dtype=F32) == "linear_rows"
        assert launched(limits.FEW_ROWS + 1, name, dtype=F32) == "linear_tiles"


@pytest.mark.parametrize("name", ["q8_0", None])
def test_more_rows_keep_the_bits_of_one(name: str | None, as_on_apple: None) -> None:
    tuning.use(
        "host", key(name or "f32"), {"rows": 48, "matrix": 0, "tiles": 0, "backward": 16, "experts": 64, "tensors": 0}
    )
    x, weight = torch.randn(48, K), torch.randn(N, K)
    weight = weight if name is None else quant.quantize(weight, name)
    y = ops.linear(x, weight, format=name)
    for row in (0, 7, 8, 30, 47):
        kit.assert_equal(ops.linear(x[row : row + 1], weight, format=name), y[row : row + 1])


@pytest.mark.cpu_only
@pytest.mark.parametrize("packed", [True, False])
def test_modules_ask_torch_for_more(packed: bool, as_on_apple: None) -> None:
    module = torch.nn.Linear(K, N)
    if packed:
        module = FoundryLinear.from_linear(module, "q8_0")
    linear, first = Linear(module), 32 if packed else 16
    assert linear.few == first
    assert linear.by_kernel(torch.zeros(1, 128, K)) and not linear.by_kernel(torch.zeros(1, 129, K))
    x = torch.randn(128, K)
    with torch.no_grad(), capture() as graph:
        linear.gemm(x)
    assert [launch.kernel.split("<")[0] for launch in graph.launches()] == ["linear_tiles"]
    tuning.forget()
    assert linear.few == (16 if packed else 8) and not linear.by_kernel(torch.zeros(1, 17, K))
    assert linear_routes(linear.weight, linear.format).backward == 16


@pytest.mark.cpu_only
@pytest.mark.parametrize("rows, launches", [(8, 1), (9, 0)])
@pytest.mark.parametrize("dtype", [F16, F32])
def test_routers_ask_torch_for_more(rows: int, launches: int, dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(rows, K), torch.randn(N, K, dtype=dtype), torch.randn(N)
    runtime.reset_counters()
    y = dense_linear(x, weight, bias)
    assert runtime.counters().launches == launches
    if not launches:
        assert torch.equal(y, torch.nn.functional.linear(x, weight.float(), bias))


@pytest.mark.cpu_only
def test_row_by_row_is_what_an_engine_promises(as_on_apple: None) -> None:
    """However many rows, and as many as `few` on the way of a step that isn't promised."""
    packed = FoundryLinear.from_linear(torch.nn.Linear(K, N), "q8_0")
    linear, x = Linear(packed), torch.randn(1, 40, K)
    with torch.no_grad():
        y = ROW_BY_ROW.product(linear, x)
        for row in (0, 33, 39):
            kit.assert_equal(ROW_BY_ROW.product(linear, x[:, row : row + 1]), y[:, row : row + 1])
            kit.assert_equal(linear.gemm(x[:, row : row + 1]), y[:, row : row + 1])


@pytest.mark.cpu_only
def test_backward_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = FoundryLinear.from_linear(torch.nn.Linear(K, N, bias=False), "q8_0")
    called: list[int] = []
    right = ops.linear_backward_input
    monkeypatch.setattr(ops, "linear_backward_input", lambda g, *a, **k: (called.append(len(g)), right(g, *a, **k))[1])
    for limit in (16, 32):
        tuning.use(
            "host", key("q8_0"), {"rows": 16, "matrix": 0, "tiles": 0, "backward": limit, "experts": 64, "tensors": 0}
        )
        for rows in (limit, limit + 1):
            x = torch.randn(rows, K, requires_grad=True)
            packed(x).sum().backward()
    assert called == [16, 32]


# --------------------------------------------------------------------------------------------------------- environment


@pytest.mark.cpu_only
def test_the_environment_overrides_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_to(**values: str) -> tuning.LinearRoutes:
        for name, value in values.items():
            monkeypatch.setenv(getattr(environment, name).name, value)
        tuning.load_environment()
        return tuning.linear_routes(CPU, "q8_0", N, K)

    try:
        assert set_to() == tuning.LinearRoutes(16, 0, 0, 16, 64, 0)
        assert set_to(LINEAR_ROWS="48") == tuning.LinearRoutes(48, 0, 0, 16, 64, 0)
        assert set_to(TILE_ROWS="128", MATRIX_ROWS="64") == tuning.LinearRoutes(48, 64, 128, 16, 64, 0)
        assert launched(48, "q8_0", dtype=F16) == "linear_rows" and launched(49, "q8_0", dtype=F16) == "linear_matrix"
        assert launched(65, "q8_0", dtype=F16) == "linear_tiles"
        tuning.use(
            "host", key("q8_0"), {"rows": 32, "matrix": 32, "tiles": 32, "backward": 16, "experts": 64, "tensors": 0}
        )
        assert set_to(MATRIX_ROWS="0", TILE_ROWS="0") == tuning.LinearRoutes(48, 0, 0, 16, 64, 0)  # 0 is a number, too
    finally:
        monkeypatch.undo()
        tuning.load_environment()
    assert tuning.linear_routes(CPU, "q8_0", N, K) == tuning.LinearRoutes(32, 32, 32, 16, 64, 0)


def test_what_is_refused() -> None:
    known = {"rows": 16, "matrix": 0, "tiles": 0, "backward": 16, "experts": 64, "tensors": 0}
    with pytest.raises(RuntimeError, match="linear_routes: rows: expected one of 8, 16, 32, 48, 64, got 4"):
        tuning.use("host", key("q8_0"), {**known, "rows": 4})
    with pytest.raises(RuntimeError, match="linear_routes: expected 1 row, as all have its choice, got 8"):
        tuning.use("host", tuning.Key("linear_routes", "q8_0", 8, N, K), known)


# -------------------------------------------------------------------------------------------------------------- search

SPACE = {"rows": [8, 16, 32], "matrix": [0, 32, 64], "tiles": [0, 32, 64, 128]}
FIRST = {"rows": 16, "matrix": 0, "tiles": 0}
STEPS = (8, 16, 32, 64, 128)


def test_limits_are_where_times_cross() -> None:
    measured = {"rows": [7, 14, 32, math.inf, math.inf], "tiles": [8, 16, 20, 22, 50], "torch": [30, 30, 30, 30, 30]}
    found = tune_routes.least({n: dict(zip(STEPS, t, strict=True)) for n, t in measured.items()}, SPACE, FIRST)
    assert found == {"rows": 16, "tiles": 64}


def test_noise_changes_nothing_and_what_is_never_fastest_gets_no_rows() -> None:
    flat = {name: dict.fromkeys(STEPS, 10.0) for name in ("rows", "matrix", "tiles", "torch")}
    flat["tiles"][64] = 9.9
    assert tune_routes.least(flat, SPACE, FIRST) == FIRST
    slow = {name: {rows: cost * rows for rows in STEPS} for name, cost in (("rows", 1), ("matrix", 9), ("torch", 2))}
    assert tune_routes.least(slow, SPACE, FIRST) == {"rows": 32, "matrix": 0}


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Times are what the test says of the kernel that a graph launches, and "torch" of one without."""
    cost = {"linear_rows": 3.0, "linear_tiles": 1.0, "torch": 2.0, "linear_backward_input": 1.0, "moe_group": 2.5}
    measure = tune_routes._time

    def time(device: torch.device, calls: list, ours: bool) -> float:
        monkeypatch.setattr(timing, "seconds", lambda *_, **__: 1.0)
        assert measure(device, calls, ours) == 1e6 / len(calls)
        if not ours:
            return cost["torch"]
        with capture() as graph:
            calls[0]()
        return cost[graph.launches()[0].kernel.split("<")[0]]

    monkeypatch.setattr(tune_routes, "_time", time)
    return cost


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", ["q8_0", "f32"])
def test_the_fastest_is_used(name: str, by_kernel: dict[str, float]) -> None:
    entry = tune_routes.tune(key(name), CPU)
    assert entry.choice["tiles"] == 32 and entry.choice["rows"] == 8 and entry.us < entry.default_us
    assert tuning.choice("host", key(name)) == entry.choice
    assert entry.choice["backward"] == (32 if name == "q8_0" else 16)
    assert entry.choice["experts"] == (16 if name == "q8_0" else 64)
    assert tuning.loads(tuning.dumps(tuning.new_table("host").with_entry(entry)), "here").entries == (entry,)


@pytest.mark.cpu_only
def test_a_wrong_route_never_wins(by_kernel: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    right = tolerance.assert_norm

    def check(got: torch.Tensor, *given: torch.Tensor) -> None:
        if len(got) == 32 and tuning.choice("host", key("q8_0"))["tiles"]:
            raise tolerance.Mismatch("seeded")
        right(got, *given)

    monkeypatch.setattr(tolerance, "assert_norm", check)
    assert tune_routes.tune(key("q8_0"), CPU).choice["tiles"] == 0
