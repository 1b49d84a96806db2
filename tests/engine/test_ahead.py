"""Steps that are handed to the device before the tokens of earlier ones are read change no answer."""

from __future__ import annotations

import functools
import signal
from typing import Any

import pytest

from tests.engine.test_engine import KINDS, alone, drain, patched, prompts
from torch_foundry.engine import Engine, SamplingParams, next_tokens
from torch_foundry.engine import engine as engine_module

pytestmark = pytest.mark.usefixtures("quiet")


def answers(engine: Engine) -> tuple[list[list[int]], list[str]]:
    """Greedy and drawn ones, with penalties, ends of text and lengths of their own."""
    streams = [engine.submit(p, KINDS[i % len(KINDS)]) for i, p in enumerate(prompts(9))]
    streams += [
        engine.submit(p, SamplingParams(max_tokens=3 * i + 1, seed=i, temperature=2.0))
        for i, p in enumerate(prompts(6))
    ]
    ends = SamplingParams(max_tokens=30, seed=1, temperature=1.5, stop_token_ids=tuple(range(40, 52)))
    streams += [engine.submit(p, ends) for p in prompts(4)]
    drain(engine)
    return [s.tokens for s in streams], [s.finish_reason for s in streams]


@pytest.mark.parametrize("options", [{}, {"blocks": 16}, {"batch_invariant": True}], ids=str)
def test_answers_are_the_same(options: dict[str, Any]) -> None:
    model = patched()
    expected = answers(Engine(model, requests=5, budget=30, ahead=1, **options))
    assert {"stop", "length"} == set(expected[1])
    for ahead in (2, 4, 9):
        assert answers(Engine(model, requests=5, budget=30, ahead=ahead, **options)) == expected


def test_how_often_is_waited() -> None:
    """Once for `ahead` tokens, as far as the longest answer needs them, and for each while prompts are taken in."""
    model = patched()
    for ahead, waits in ((1, 21), (4, 6), (100, 2)):
        engine = Engine(model, requests=2, ahead=ahead)
        streams = [
            engine.submit(prompts()[i], SamplingParams(max_tokens=n, temperature=0)) for i, n in enumerate((21, 9))
        ]
        steps = [engine.step()]
        while not engine.idle:
            steps.append(engine.step())
        assert len(steps) == waits and [len(s.tokens) for s in streams] == [21, 9]
        assert sum(steps) == sum(len(prompts()[i]) for i in range(2)) + 20 + 8
    with pytest.raises(ValueError, match="ahead"):
        Engine(model, ahead=0)


def test_no_step_ahead_without_room() -> None:
    """Nobody is preempted for tokens that are not due."""
    model = patched()
    engine = Engine(model, requests=2, blocks=3, ahead=16)
    told = SamplingParams(max_tokens=10, temperature=0)
    streams = [engine.submit(prompts()[0][:5], told), engine.submit(prompts()[0][:6], told)]
    drain(engine)
    assert [s.tokens for s in streams] == [alone(model, prompts()[0][:n], 10) for n in (5, 6)]
    assert not any(s.sequence.preempted for s in streams)


@pytest.mark.parametrize("ahead", [1, 4])
def test_an_interrupt_when_tokens_are_read(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step comes to its end first: requests get the tokens that they would have had."""
    model = patched()
    expected = answers(Engine(model, requests=5, budget=30))
    for n in range(0, 24, 3):
        engine, calls = Engine(model, requests=5, budget=30, ahead=ahead), [0]

        def interrupted(sample: Any, *args: Any, calls: list[int] = calls, n: int = n) -> None:
            sample(*args)
            calls[0] += 1
            if calls[0] == n + 1:
                signal.raise_signal(signal.SIGINT)

        for name in ("sample", "sample_ahead"):
            monkeypatch.setattr(engine_module, name, functools.partial(interrupted, getattr(next_tokens, name)))
        step = engine.step

        def go_on(step: Any = step) -> int:
            try:
                return int(step())
            except KeyboardInterrupt:
                return int(step())

        monkeypatch.setattr(engine, "step", go_on)
        assert answers(engine) == expected
        assert calls[0] > n
