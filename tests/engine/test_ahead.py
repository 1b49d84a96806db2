"""Steps that are handed to the device before the tokens of earlier ones are read change no answer."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engine.test_engine import KINDS, alone, drain, patched, prompts
from torch_foundry.engine import Engine, SamplingParams, next_tokens
from torch_foundry.engine import steps as steps_module
from torch_foundry.engine.batch import Batch

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
    """Once for half of `ahead` tokens, as far as the longest answer needs them, and once while prompts are read."""
    model = patched()
    for ahead, waits in ((1, 21), (2, 21), (4, 11), (100, 2), (2**60, 2)):
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


def hands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes to the device, and what is read, in its order."""
    seen: list[str] = []

    def noting(real: Callable[..., Any], told: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            seen.append(told)
            return real(*args)

        return call

    monkeypatch.setattr(steps_module, "sample", noting(next_tokens.sample, "alone"))
    monkeypatch.setattr(steps_module, "sample_ahead", noting(next_tokens.sample_ahead, "group"))
    monkeypatch.setattr(next_tokens.TokensAhead, "read", noting(next_tokens.TokensAhead.read, "read"))
    return seen


def test_a_group_is_under_way_while_the_one_before_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, engine = hands(monkeypatch), Engine(patched(), requests=2)
    engine.submit(prompts()[0], SamplingParams(max_tokens=9, temperature=0))
    engine.run()
    assert seen == ["alone", "group", *["group", "read"] * 3, "read"]


def test_what_is_under_way_is_read_before_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come find a place at once; those that find none change nothing until one ends."""
    seen, engine = hands(monkeypatch), Engine(patched(), requests=2)
    told = SamplingParams(max_tokens=40, temperature=0)
    first = engine.submit(prompts()[0], told)
    for _ in range(3):
        engine.step()
    del seen[:]
    engine.submit(prompts()[1], told)
    engine.step()
    engine.step()
    assert seen == ["read", "alone"], "the group under way, then the prompt"
    engine.submit(prompts()[2], told)  # there is no place
    engine.step()
    assert seen[2:] == ["group", "group", "read"][: len(seen) - 2], "queued requests stop nobody"
    engine.step()
    assert seen[-2:] == ["group", "read"]
    engine.run()
    assert first.finish_reason == "length"


def test_ends_that_nobody_foresaw() -> None:
    """What a group under way computes for a request that has ended is dropped, with its row and its blocks."""
    model = patched()
    engine = Engine(model, requests=2, blocks=12)
    told = [SamplingParams(max_tokens=30, temperature=0) for _ in range(2)]
    streams = [engine.submit(p, t) for p, t in zip(prompts(), told, strict=False)]
    for _ in range(3):
        engine.step()
    streams[0].cancel()
    had, late = streams[0].tokens, engine.submit(prompts()[2], told[0])
    drain(engine)
    assert streams[0].tokens == had
    assert [s.tokens for s in (streams[1], late)] == [alone(model, prompts()[i], 30) for i in (1, 2)]
    streams = [engine.submit(p, t) for p, t in zip(prompts(), told, strict=False)]
    for _ in range(3):
        engine.step()
    for stream in streams:
        stream.cancel()
    assert engine.idle
    assert engine.submit(prompts()[0], told[0]).result() == alone(model, prompts()[0], 30)
    drain(engine)


def test_a_change_of_the_model_is_answered_behind_what_was_under_way() -> None:
    model = patched()
    engine = Engine(model, requests=1)
    stream = engine.submit(prompts()[0], SamplingParams(max_tokens=30, temperature=0))
    for _ in range(3):
        engine.step()
    before = len(stream.tokens)
    model.to(torch.bfloat16)
    engine.step()
    assert stream.tokens == alone(model.to(torch.float32), prompts()[0], 30)[: before + 2]
    model.to(torch.bfloat16)
    with pytest.raises(RuntimeError, match="another shape, dtype or device than its cache"):
        engine.step()
    model.to(torch.float32)
    assert stream.result() == alone(model, prompts()[0], 30)


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_what_is_copied_for_a_group(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, but for a new block, a slot for a new state, and what a number of requests is moved on by."""
    copied = []
    real = Batch._copy

    def noted(self: Batch, to: torch.Tensor, values: torch.Tensor) -> None:
        copied.append(len(values))
        real(self, to, values)

    monkeypatch.setattr(Batch, "_copy", noted)
    engine = Engine(patched(family), requests=1, block_size=16)
    stream = engine.submit([1, 2, 3], SamplingParams(max_tokens=61, temperature=0))
    engine.step()
    del copied[:]
    engine.run()
    assert len(stream.tokens) == 61
    first, blocks = 2, 3
    states = 1 + blocks if family == "qwen3_5" else 0  # when there are all slots; a snapshot keeps one
    assert first + blocks <= len(copied) <= first + blocks + states


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

        def interrupted(sample: Any, *args: Any, calls: list[int] = calls, n: int = n) -> Any:
            found = sample(*args)
            calls[0] += 1
            if calls[0] == n + 1:
                signal.raise_signal(signal.SIGINT)
            return found

        for name in ("sample", "sample_ahead"):
            monkeypatch.setattr(steps_module, name, functools.partial(interrupted, getattr(next_tokens, name)))
        step = engine.step

        def go_on(step: Any = step) -> int:
            try:
                return int(step())
            except KeyboardInterrupt:
                return int(step())

        monkeypatch.setattr(engine, "step", go_on)
        assert answers(engine) == expected
        assert calls[0] > n
