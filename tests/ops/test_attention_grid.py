"""A part of the grid of `attention_grid.py`; `make test-attention` runs all of it."""

from __future__ import annotations

import itertools

import attention_grid as grid
import pytest

pytestmark = pytest.mark.tier("kernels")

KERNELS = grid.kernels()
MATRICES = grid.by_matrices()
IN_CI, CALLS = 8, 20


@pytest.mark.parametrize("index", range(IN_CI))
def test_a_part_of_the_grid(index: int) -> None:
    """Calls that one kernel takes: eight rows or more together, of which the op makes one variant."""
    kernel = KERNELS[index]
    fitting = (c for c in grid.calls(kernel, 1000) if c["group"] * c["queries"] >= 8)
    for call in itertools.islice(fitting, CALLS):
        grid.check(kernel, call)


@pytest.mark.parametrize("index", range(len(MATRICES)))
def test_products_of_matrices(index: int) -> None:
    for call in grid.calls(MATRICES[index], CALLS):
        grid.check(MATRICES[index], call)


def test_the_grid_meets_every_pair() -> None:
    names = list(grid.FEATURES)
    for a, b in itertools.combinations(names, 2):
        for x, y in itertools.product(grid.FEATURES[a], grid.FEATURES[b]):
            assert any(k[a] == x and k[b] == y for k in KERNELS), (a, x, b, y)
    assert len(KERNELS) * 50 >= 2000
