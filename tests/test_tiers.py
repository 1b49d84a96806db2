"""Tiers: each test has one, and `make test` has some of all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest, tiers

ROOT = Path(__file__).parents[1]


@dataclass(eq=False)
class Case:
    """What tiers read of a test, as pytest has it."""

    nodeid: str
    path: Path
    number: int
    tier: str | None
    quick: int | None

    def get_closest_marker(self, name: str) -> Any:
        kwargs = {} if self.quick is None else {"quick": self.quick}
        return SimpleNamespace(args=(self.tier,), kwargs=kwargs) if self.tier else None


def cases(file: str, count: int, tier: str | None = None, quick: int | None = None) -> dict[str, list[int]]:
    """The cases of a test, by their tiers."""
    items: list[Any] = [Case(f"{file}::test_y[{i}]", ROOT / file, i, tier, quick) for i in range(count)]
    found: dict[str, list[int]] = {}
    for item, name in tiers.tiers_of(items).items():
        found.setdefault(name, []).append(item.number)
    return found


def test_of_many_cases_the_first_is_quick() -> None:
    assert cases("tests/ops/test_x.py", 1) == {"quick": [0]}
    assert cases("tests/generation/test_x.py", 4) == {"quick": [0], "models": [1, 2, 3]}
    assert cases("tests/msl/test_x.py", 50) == {"quick": list(range(50))}


def test_cases_may_be_few() -> None:
    """Those of each test that are evenly spread; the others are said to be deselected."""
    items: list[Any] = [
        Case(f"t.py::test_{n}[{i}]", ROOT / "tests/ops/t.py", i, None, None) for n in "ab" for i in range(9)
    ]
    items.append(Case("t.py::test_c", ROOT / "tests/ops/t.py", 0, None, None))
    dropped: list[Any] = []
    config: Any = SimpleNamespace(
        getoption={"--tier": None, "--cases": 3}.get,
        hook=SimpleNamespace(pytest_deselected=lambda items: dropped.extend(items)),
    )
    tiers.select(config, items)
    assert [item.number for item in items] == [0, 4, 8, 0, 4, 8, 0] and len(dropped) == 12


def test_what_names_its_tier_is_of_it() -> None:
    assert cases("tests/ops/test_x.py", 2, "nightly") == {"nightly": [0, 1]}
    assert cases("tests/metal/test_x.py", 2) == {"metal": [0, 1]}
    assert cases("tests/ops/test_x.py", 3, "kernels", quick=1) == {"quick": [0], "kernels": [1, 2]}
    assert cases("tests/core/test_x.py", 4, "kernels", quick=2) == {"quick": [0, 3], "kernels": [1, 2]}


def test_every_folder_and_tier_is_one() -> None:
    assert all((ROOT / "tests" / folder).is_dir() for folders in tiers.FOLDERS.values() for folder in folders)
    assert tiers.FOLDERS.keys() < tiers.TIERS.keys()
    makefile = (ROOT / "Makefile").read_text()
    run = {word for line in makefile.splitlines() if "TIER = " in line for word in line.partition("= ")[2].split()}
    assert run == tiers.TIERS.keys()


def test_a_name_that_is_none_is_an_error() -> None:
    config: Any = SimpleNamespace(getoption=lambda _: "quick quik", addinivalue_line=lambda *_: None)
    with pytest.raises(pytest.UsageError, match=r"expected quick, kernels, .*, got 'quik'"):
        tiers.configure(config)


def test_long_files_are_shared_by_processes() -> None:
    assert all((ROOT / file).is_file() for file in (*conftest.FUNCTIONS, *conftest.CASES))
    cases = [
        f"{file}::test_y[{i}-a[b]]" for file in ("tests/x.py", conftest.FUNCTIONS[0], conftest.CASES[0]) for i in (1, 2)
    ]
    units = [conftest.unit_of_work(nodeid) for nodeid in cases]
    assert units[:4] == ["tests/x.py"] * 2 + [f"{conftest.FUNCTIONS[0]}::test_y"] * 2 and units[4:] == cases[4:]
