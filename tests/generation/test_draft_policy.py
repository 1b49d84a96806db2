"""What the draft-length controller makes of the times of a GPU: beside the best fixed number of draft tokens.

Step times are those of an NVIDIA H100 with an 8B model and its MTP head; acceptance is drawn, from fixed seeds.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from torch_foundry.generation.draft_history import DraftHistory
from torch_foundry.generation.draft_length import DraftLengthController
from torch_foundry.generation.drafting import SequenceDrafts, SpeculationStats, Text

# milliseconds of a step by its rows, those of drafting included
GENERATE = {1: 2.65, 2: 3.75, 4: 4.45, 8: 6.8}
ENGINE = {1: 3.2, 2: 5.3, 4: 7.0, 8: 11.0}
DEAR = {1: 2.65, 2: 5.3, 4: 7.0, 8: 11.0}
SEEDS, AHEAD = 60, 4  # texts; steps without drafts that are timed together


class Model:
    """Drafts what one asks for."""

    usual = True

    def propose(self, sequences: Any, count: int) -> None:
        for own in sequences:
            own.drafts = [1] * min(count, own.at_hand)


def generation(
    history: DraftHistory, rate: float, times: dict[int, float], tokens: int, chance: random.Random, noise: float = 0.0
) -> float:
    """Milliseconds of a text whose drafts are right at this rate. noise: how often a step seems to take three times as
    long, which the first of each kind does as well."""
    model: Any = Model()
    own = SequenceDrafts(Text([0], tokens + 1), 7, None, history.rates)
    controller, spent, met = DraftLengthController(SpeculationStats(), model, history), 0.0, set[int]()
    while left := own.sequence.limit - len(own.sequence.tokens):
        controller.draft([own], 1)
        drafts, accepted = len(own.drafts), 0
        while accepted < drafts and chance.random() < rate:
            accepted += 1
        steps = 1 if drafts else min(left, max(own.paused, 1), AHEAD)
        kept = min(left, accepted + steps)
        rows = 1 << drafts.bit_length()
        taken = steps * times[rows]
        slow = noise and (rows not in met or chance.random() < noise)
        met.add(rows)
        own.sequence.tokens += [1] * kept
        controller.note(own, drafts, min(accepted, kept), kept)
        controller.timed(1, 1 + drafts, kept, taken * (3 if slow else 1), steps=steps)
        spent += taken
    return spent


def best(rate: float, times: dict[int, float]) -> float:
    """Milliseconds a token of the best fixed number of draft tokens, or of none."""
    return min(taken * (1 - rate) / (1 - rate**rows) for rows, taken in times.items())


def shares(rate: float, times: dict[int, float], tokens: int, noise: float = 0.0) -> tuple[float, float]:
    """How fast the first generation is and the next three are, on average, beside the best fixed number."""
    spent = [0.0, 0.0]
    for seed in range(SEEDS):
        history, chance = DraftHistory(), random.Random(seed)
        for i in range(4):
            spent[i > 0] += generation(history, rate, times, tokens, chance, noise)
    least = SEEDS * tokens * best(rate, times)
    return least / spent[0], 3 * least / spent[1]


# the first generation of a model, which knows nothing, and those after it; what may be lost at first costs more where
# drafting gains more: eight steps without drafts, and some with few
TABLE = [
    (GENERATE, 0.0, 0.98, 0.99),
    (GENERATE, 0.5, 0.93, 0.92),
    (GENERATE, 0.7, 0.90, 0.97),
    (GENERATE, 0.9, 0.92, 0.95),
    (ENGINE, 0.0, 0.98, 0.99),
    (ENGINE, 0.5, 0.98, 0.99),
    (ENGINE, 0.7, 0.89, 0.89),
    (ENGINE, 0.9, 0.92, 0.95),
    (DEAR, 0.0, 0.98, 0.99),
    (DEAR, 0.5, 0.98, 0.99),
    (DEAR, 0.7, 0.98, 0.99),
    (DEAR, 0.9, 0.84, 0.85),
]


@pytest.mark.parametrize("times, rate, first, later", TABLE)
def test_beside_the_best_fixed_number(times: dict[int, float], rate: float, first: float, later: float) -> None:
    found = shares(rate, times, 256 if rate else 128)
    assert found[0] >= first and found[1] >= later, found


@pytest.mark.parametrize("rate, first, later", [(0.0, 0.95, 0.985), (0.7, 0.85, 0.9), (0.9, 0.9, 0.93)])
def test_where_steps_are_slow_now_and_then(rate: float, first: float, later: float) -> None:
    """The first step of each kind, and one of twenty, seems to take three times as long."""
    found = shares(rate, GENERATE, 256 if rate else 128, noise=0.05)
    assert found[0] >= first and found[1] >= later, found


def test_a_source_that_changes() -> None:
    """One that was never right, for long, is found out to be good within some hundred tokens, and the other way."""
    for before, after, least in ((0.0, 0.9, 0.5), (0.9, 0.0, 0.9)):
        spent = 0.0
        for seed in range(SEEDS):
            history, chance = DraftHistory(), random.Random(seed)
            for _ in range(4):
                generation(history, before, GENERATE, 256, chance)
            spent += generation(history, after, GENERATE, 512, chance)
        assert SEEDS * 512 * best(after, GENERATE) >= least * spent, (before, after)
