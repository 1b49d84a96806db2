"""Tiers: each test has one, and `make test` has some of all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers

ROOT = Path(__file__).parents[1]


def cases(file: str, name: str, count: int, tier: str | None = None) -> list[Any]:
    """As pytest has them."""
    marker = SimpleNamespace(args=(tier,)) if tier else None
    return [
        SimpleNamespace(nodeid=f"{file}::{name}[{i}]", path=ROOT / file, get_closest_marker=lambda _: marker, number=i)
        for i in range(count)
    ]


def chosen(items: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for item, tier in tiers.tiers_of([_Hashed(item) for item in items]).items():
        found.setdefault(tier, []).append(item.number)
    return found


class _Hashed(SimpleNamespace):
    def __init__(self, item: Any) -> None:
        super().__init__(**vars(item))

    __hash__ = object.__hash__


def test_of_many_cases_some_are_quick() -> None:
    assert chosen(cases("tests/ops/test_x.py", "test_y", 9)) == {"quick": [0, 4, 8], "kernels": [1, 2, 3, 5, 6, 7]}
    assert chosen(cases("tests/ops/test_x.py", "test_y", 1)) == {"quick": [0]}
    assert chosen(cases("tests/decode/test_x.py", "test_y", 4)) == {"quick": [0, 2, 3], "models": [1]}
    assert chosen(cases("tests/msl/test_x.py", "test_y", 50)) == {"quick": list(range(50))}


def test_what_names_its_tier_is_of_it() -> None:
    assert chosen(cases("tests/ops/test_x.py", "test_y", 2, "nightly")) == {"nightly": [0, 1]}
    assert chosen(cases("tests/metal/test_x.py", "test_y", 2)) == {"metal": [0, 1]}


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
