"""How many draft tokens a step has, by what steps took and how many drafts were right."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from torch_foundry.generation.draft_length import PLAIN_EVERY, TIMED, DraftLengthController
from torch_foundry.generation.drafting import PromptLookup, SequenceDrafts, SpeculationStats, Text


class Sure:
    """Looks up, or models, a draft for any text."""

    usual = True

    def propose(self, text: Any, most: int) -> Any:
        if isinstance(text[0], int):
            return 1, [1] * most
        for own in text:
            own.drafts = [1] * most
        return None

    def look_back(self, *_: Any) -> tuple[()]:
        return ()


def drafted(most: int = 7, model: bool = False) -> tuple[DraftLengthController, SequenceDrafts]:
    sure: Any = Sure()
    own = SequenceDrafts(Text([0], 10**6), most, None if model else sure)
    return DraftLengthController(SpeculationStats(), sure), own


def run(
    controller: DraftLengthController, own: SequenceDrafts, right: int, seconds: Any, steps: int, together: int = 16
) -> list[int]:
    """Steps that accept up to `right` drafts each and take `seconds(drafts)`; the numbers of drafts, 0 for a stretch
    without."""
    chosen: list[int] = []
    for _ in range(steps):
        controller.draft([own], 1)
        drafts = len(own.drafts)
        stretch = 1 if drafts else min(max(own.paused, 1), together)
        tokens = 1 + min(right, drafts) if drafts else stretch
        own.sequence.tokens += [0] * tokens
        controller.note(own, drafts, min(right, drafts), tokens)
        controller.timed(1, 1 + drafts, tokens, stretch * seconds(drafts), steps=stretch)
        chosen.append(drafts)
    return chosen


def pays(controller: DraftLengthController, own: SequenceDrafts) -> bool:
    return any(controller.pays([own], 1, rows) for rows in (2, 4, 8))


def test_as_many_drafts_as_are_worth_it() -> None:
    free = drafted()
    assert run(*free, 7, lambda k: 1.0, 100)[-20:].count(7) >= 19 and pays(*free)
    dear = drafted()
    assert set(run(*dear, 1, lambda k: 1 + 0.3 * k, 100)[-20:]) <= {0, 1, 3} and pays(*dear)
    wrong = drafted()
    run(*wrong, 0, lambda k: 1 + 0.1 * k, 16)
    assert not pays(*wrong)
    wrong[1].kind = 2
    assert pays(*wrong), "another kind was not tried"
    wrong[1].kind = 1
    wrong[1].update(1, 7, 7)
    assert pays(*wrong), "as was seen, it would pay"


def test_numbers_of_drafts_fill_their_steps() -> None:
    """Steps have a power of two of rows: other numbers than those that fill one, and the largest, are never better."""
    controller, own = drafted(5)
    run(controller, own, 3, lambda k: 1 + 0.01 * k, 60)
    assert set(controller.totals.times) <= {(1, rows) for rows in (1, 2, 4, 8)}
    assert controller.totals.times.keys() >= {(1, 1), (1, 8)}
    assert set(run(*drafted(5), 2, lambda k: 1 + 0.2 * k, 60)) <= {0, 1, 3, 5}


def test_steps_without_drafts_are_timed_now_and_then() -> None:
    controller, own = drafted(3)
    chosen = run(controller, own, 3, lambda k: 1.0, 3 * PLAIN_EVERY)
    assert chosen[:3] == [0, 3, 3] and chosen.count(0) == 3 and chosen[1 + PLAIN_EVERY] == 0
    assert len(own.sequence.tokens) == 1 + 3 * TIMED + 4 * (3 * PLAIN_EVERY - 3)


def test_one_slow_step_is_not_the_last_one() -> None:
    """What a step took is forgotten if none of its kind comes again, so that it is tried again."""
    free = drafted()
    run(*free, 7, lambda k: 1.0, 10)
    assert run(*free, 7, lambda k: 50.0, 1) == [7] and run(*free, 7, lambda k: 1.0, 4) == [3] * 4
    assert run(*free, 7, lambda k: 1.0, 2 * PLAIN_EVERY + 20)[-20:].count(7) >= 19


def test_times_of_other_batches_stay() -> None:
    """Steps of as many sequences as there were none of are timed first; nothing is forgotten for that."""
    controller, own = drafted()
    run(controller, own, 7, lambda k: 1.0, 10)
    known = dict(controller.totals.times)
    for batch in (4, 2, 16, 4):
        controller.draft([own], batch)
        assert not own.drafts and own.paused == TIMED
        own.sequence.tokens += [0] * TIMED
    assert controller.totals.times == known and run(controller, own, 7, lambda k: 1.0, 1) == [7]


def test_a_draft_that_does_not_pay_is_tried_again_later_and_later() -> None:
    (controller, own), pauses = drafted(model=True), []
    while len(own.sequence.tokens) < 3000:
        pauses.append(own.paused)
        run(controller, own, 0, lambda k: 1 + 0.1 * k, 1, together=8)
    assert max(pauses) == 256 - 8, "longer and longer"
    assert controller.totals.drafted and controller.totals.seconds < 1.02 * 3000, controller.totals.seconds
    late = drafted(model=True)
    run(*late, 0, lambda k: 1 + 0.1 * k, 60)
    assert any(run(*late, 7, lambda k: 1 + 0.1 * k, 60)), "it is noticed if it begins to"


def test_totals() -> None:
    controller, own = drafted(1)
    run(controller, own, 1, lambda k: 0.5, 10)
    totals = controller.totals
    assert (totals.steps, totals.drafted, totals.accepted, totals.tokens) == (13, 9, 9, 22)
    assert str(totals) == "9 of 9 accepted (100%), 1.69 tokens a step, 2.00 times as fast as without"


def test_steps_are_timed_by_sequences_and_rows() -> None:
    controller, _ = drafted()
    for rows, seconds in ((1, 1.0), (8, 3.0), (4, 1.2)):
        controller.timed(3, rows, 9, None)
        controller.timed(3, rows, 9, seconds)
    assert controller.totals.times == {(4, 1): 1.0, (4, 8): 3.0, (4, 4): 1.2}
    assert (controller.totals.seconds, controller.totals.without) == (4.2, 6.0)


@pytest.mark.parametrize("fault", ["unusual", "failing"])
def test_a_step_in_which_the_draft_did_something_else_is_not_timed(fault: str) -> None:
    controller, own = drafted(model=True)
    model: Any = controller.model
    run(controller, own, 7, lambda k: 1.0, 1)
    if fault == "unusual":
        model.usual = False
    else:
        model.propose = None
    for _ in range(2):
        with contextlib.nullcontext() if fault == "unusual" else pytest.raises(TypeError):
            controller.draft([own], 1)
        controller.timed(1, 1 + len(own.drafts), 1, 100.0)
    assert controller.totals.times == {(1, 1): 1.0}


def test_sequences_pause_by_themselves() -> None:
    """One whose text has nothing to copy doesn't keep the others from being drafted for."""
    (controller, sure), never = drafted(), SequenceDrafts(Text([1], 1000), 7, PromptLookup())
    for step in range(40):
        controller.draft([sure, never], 2)
        drafts = len(sure.drafts)
        assert not never.drafts
        sure.sequence.tokens += [0] * (drafts + 1)
        never.sequence.tokens += [2 + step]
        controller.note(sure, drafts, drafts, drafts + 1)
        controller.note(never, 0, 0, 1)
        controller.timed(2, 1 + drafts, drafts + 2, 1.0)
    assert controller.totals.accepted == controller.totals.drafted > 100 and not sure.paused > 0 and never.paused > 0
