"""Which tests `make test` runs, and which of the other targets runs the rest: each test belongs to one tier.

`quick` has every test that another tier doesn't claim, and of a test with many cases in a folder below the first: most
of their time goes into compiling kernels and making models for each case. A module or test that is of another tier says
so, and how many of its cases, evenly spread, `quick` has all the same, if any: `pytest.mark.tier("models", quick=2)`.
So do dear ones whose branches other tests of `quick` go through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

QUICK = "quick"
FOLDERS = {
    "kernels": ("ops", "quant", "sampling", "tuning", "cuda"),
    "models": ("hf", "generation", "engine", "kvcache", "session", "diagnostics", "serving"),
    "files": ("io", "text"),
    "metal": ("metal",),  # all of it: the mock of Metal has to be built
}
TIERS = {
    QUICK: "`make test`",
    "kernels": "all shapes, dtypes and formats of the ops; NVRTC; sanitizers",
    "models": "all families, caches and ways to generate",
    "files": "hostile files",
    "metal": "the Metal executor on the mock, and for macOS",
    "nightly": "seeded faults, removed checks: what the tests themselves are worth; cases much like others",
}


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--tier", metavar="NAMES", help=f"run the tests of these tiers alone: {', '.join(TIERS)}")
    parser.addoption("--cases", type=int, metavar="N", help="of tests with more cases, run N, evenly spread")


def configure(config: pytest.Config) -> None:
    names = ", ".join(TIERS)
    config.addinivalue_line("markers", f"tier(name, quick=0): the tier of all cases but `quick` of them: {names}")
    # opcheck, which knows no device; ids that only the CPU checks; which numbers kernels give in every variant, order
    # of lanes or combination; buffers larger than the mock's; drafts by graphs, as calls that are watched capture none
    config.addinivalue_line("markers", "cpu_only: not run on the mock of Metal")
    for name in _wanted(config):
        if name not in TIERS:
            raise pytest.UsageError(f"--tier: expected {', '.join(TIERS)}, got {name!r}")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop from `items` what is of no tier that --tier names, and of tests with many cases what --cases leaves out."""
    kept = items[:]
    if wanted := _wanted(config):
        tiers = tiers_of(items)
        kept = [item for item in kept if tiers[item] in wanted]
    if most := config.getoption("--cases"):
        few = {cases[number] for cases in _functions(kept) for number in _spread(len(cases), most)}
        kept = [item for item in kept if item in few]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept


def _functions(items: list[pytest.Item]) -> Iterable[list[pytest.Item]]:
    """The cases of each test."""
    functions = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    return functions.values()


def _spread(count: int, few: int) -> set[int]:
    """`few` numbers below `count`, evenly spread; all if there are no more."""
    few = min(few, count)
    return {round(i * (count - 1) / max(few - 1, 1)) for i in range(few)}


def _wanted(config: pytest.Config) -> list[str]:
    return (config.getoption("--tier") or "").replace(",", " ").split()


def tiers_of(items: list[pytest.Item]) -> dict[pytest.Item, str]:
    """The tier of each test; `items` has all cases of every function that it has one of."""
    tiers = {}
    for cases in _functions(items):
        folder = next((name for name, folders in FOLDERS.items() if cases[0].path.parent.name in folders), QUICK)
        for number, item in enumerate(cases):
            marker = item.get_closest_marker("tier")
            few = marker.kwargs.get("quick", 0) if marker else int(folder != "metal")
            quick = number in _spread(len(cases), few)
            tiers[item] = QUICK if quick else marker.args[0] if marker else folder
    return tiers
