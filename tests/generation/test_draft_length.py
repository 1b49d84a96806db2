"""How many draft tokens a step has, by what steps took and how many drafts were right."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from torch_foundry.generation.draft_history import PLAIN_EVERY, TRIES, TRYING, DraftHistory
from torch_foundry.generation.draft_length import TIMED, DraftLengthController
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


def drafted(
    most: int = 7, model: bool = False, history: DraftHistory | None = None
) -> tuple[DraftLengthController, SequenceDrafts]:
    sure: Any = Sure()
    history = history or DraftHistory()
    own = SequenceDrafts(Text([0], 10**6), most, None if model else sure, history.rates)
    return DraftLengthController(SpeculationStats(), sure, history), own


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
    wrong[0].history.tries = 0.0  # which they may be taken for all the same
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
    """Twice at first: the first time after a capture isn't believed."""
    controller, own = drafted(3)
    chosen = run(controller, own, 3, lambda k: 1.0, 3 * PLAIN_EVERY)
    assert chosen[:2] == [0, 0] and chosen.count(0) == 4 and set(chosen[6:]) == {0, 3}
    assert 0 in chosen[2 + PLAIN_EVERY : 10 + PLAIN_EVERY]


def test_the_first_times_after_a_capture_do_not_count() -> None:
    """Of each kind: a graph's first replays are slow. So are single steps, now and then."""
    controller, _ = drafted()
    for rows in (1, 2, 4, 8):
        for seconds in (None, 50.0, 1.0 + rows):
            controller.timed(1, rows, rows, seconds)
    assert controller.totals.times == {(1, rows): 1.0 + rows for rows in (1, 2, 4, 8)}
    controller.timed(1, 8, 8, 50.0)
    slow = controller.totals.times[1, 8]
    controller.timed(1, 8, 8, 9.0)
    assert 9.0 < slow < 14.0 and controller.totals.times[1, 8] == 9.0, "faster ones are believed at once"
    controller.timed(1, 8, 8, None)
    controller.timed(1, 8, 8, 50.0)
    assert controller.totals.times[1, 8] == 9.0


def test_a_lasting_rise_is_followed() -> None:
    """As of a text that grows."""
    controller, own = drafted()
    run(controller, own, 7, lambda k: 1.0, 20)
    run(controller, own, 7, lambda k: 2.0, 40)
    assert controller.totals.times[1, 8] > 1.95


def test_one_slow_step_is_not_the_last_one() -> None:
    """What a step took is forgotten if none of its kind comes again, so that it is tried again."""
    controller, own = drafted()
    run(controller, own, 7, lambda k: 1.0, 20)
    controller.history.times[1, 8] = 50.0
    assert set(run(controller, own, 7, lambda k: 1.0, 4)) == {3}
    assert run(controller, own, 7, lambda k: 1.0, 2 * PLAIN_EVERY + 20)[-20:].count(7) >= 19


def test_times_of_other_batches_stay() -> None:
    """Steps of as many sequences as there were none of are timed first; nothing is forgotten for that."""
    controller, own = drafted()
    run(controller, own, 7, lambda k: 1.0, 12)
    known = dict(controller.totals.times)
    for batch in (4, 2, 16, 4):
        controller.draft([own], batch)
        assert not own.drafts and own.paused == TIMED
        own.sequence.tokens += [0] * TIMED
    assert controller.totals.times == known and run(controller, own, 7, lambda k: 1.0, 1) == [7]


def test_what_does_not_pay_is_tried_again_for_a_small_share_of_the_time() -> None:
    controller, own = drafted(model=True)
    run(controller, own, 0, lambda k: 1 + 0.4 * k, 2000, together=8)
    seconds, tokens = controller.totals.seconds, len(own.sequence.tokens)
    assert controller.totals.drafted > 20 and seconds < tokens * (1 + TRYING) + TRIES, (seconds, tokens)
    before = len(own.sequence.tokens)
    while run(controller, own, 7, lambda k: 1 + 0.4 * k, 1)[0] != 7:
        assert len(own.sequence.tokens) < before + 300, "it is noticed if it begins to"


def test_what_was_learned_is_kept() -> None:
    """A source that is never right costs nothing any more, a good one begins with as many drafts as are best."""
    history, chosen = DraftHistory(), list[list[int]]()
    for right in (0, 0, 7, 7, 7):
        controller, own = drafted(model=True, history=history)
        chosen.append(run(controller, own, right, lambda k: 1 + 0.4 * k, 150 if right else 40, together=4))
    assert sum(chosen[0]) <= 6 and sum(chosen[1]) <= 2
    assert 7 in chosen[2], "that it is right now has been found out"
    assert chosen[4][:20] == [7] * 20


def test_a_slow_reading_is_a_part_of_a_tries_price() -> None:
    """A draft model that has to read what came meanwhile before it drafts: it is tried more rarely."""
    tries = list[int]()
    for read in (0.0, 1.0):
        controller, own = drafted(model=True)
        model: Any = controller.model
        run(controller, own, 0, lambda k: 1 + 0.4 * k, 40)
        before = controller.totals.drafted
        for _ in range(600):
            model.usual = not read
            run(controller, own, 0, lambda k, read=read: 1 + 0.4 * k + read * (k > 0), 1)
        tries.append(controller.totals.drafted - before)
    assert 0 < 2 * tries[1] < tries[0]


def test_totals() -> None:
    controller, own = drafted(1)
    run(controller, own, 1, lambda k: 0.5, 10)
    totals = controller.totals
    assert (totals.steps, totals.drafted, totals.accepted, totals.tokens) == (16, 8, 8, 24)
    assert str(totals) == "8 of 8 accepted (100%), 1.50 tokens a step, 1.67 times as fast as without"


def test_steps_are_timed_by_sequences_and_rows() -> None:
    controller, _ = drafted()
    for rows, seconds in ((1, 1.0), (8, 3.0), (4, 1.2)):
        for taken in (None, seconds, seconds):
            controller.timed(3, rows, 9, taken)
    assert controller.totals.times == {(4, 1): 1.0, (4, 8): 3.0, (4, 4): 1.2}
    assert (controller.totals.seconds, controller.totals.without) == (pytest.approx(9.4), 15.0)


@pytest.mark.parametrize("fault", ["unusual", "failing"])
def test_a_step_in_which_the_draft_did_something_else_is_not_timed(fault: str) -> None:
    controller, own = drafted(model=True)
    model: Any = controller.model
    run(controller, own, 7, lambda k: 1.0, 2)
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
