"""A million draws, each repeated in float64: sees what no test of a distribution does. And a test of distributions."""

from __future__ import annotations

import pytest

from tests.sampling.draws import CASES, Replay, check


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_draw_is_the_oracles(case: Replay) -> None:
    check(case)


def test_there_are_enough() -> None:
    assert sum(case.draws for case in CASES) >= 1_000_000
    assert len({case.settings for case in CASES}) >= 24
