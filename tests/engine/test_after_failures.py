"""What an engine is after something went wrong in a step, or its model has changed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from tests.engine.test_engine import GREEDY, KINDS, drain, patched, prompts
from torch_foundry.engine import Engine, Params
from torch_foundry.engine.guessing import Guessing

pytestmark = pytest.mark.usefixtures("quiet")


def submitted(engine: Engine) -> list[Any]:
    """One-token prompts among them, which generate from their first step on."""
    return [engine.submit(p, KINDS[i % len(KINDS)]) for i, p in enumerate([[5], [6], *prompts(4)])]


def expected(model: Any) -> list[list[int]]:
    engine = Engine(model)
    streams = submitted(engine)
    engine.run()
    return [stream.tokens for stream in streams]


@pytest.mark.parametrize("n", range(6))
def test_a_slot_that_could_not_be_filled(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have none yet get theirs later, and the one that is half filled is filled again."""
    model = patched()
    engine, calls = Engine(model), [0]
    fill = engine._seats.slots.fill

    def fails(*args: Any, **kwargs: Any) -> None:
        calls[0] += 1
        if calls[0] == n + 1:
            raise torch.OutOfMemoryError("no memory")
        fill(*args, **kwargs)

    monkeypatch.setattr(engine._seats.slots, "fill", fails)
    streams = submitted(engine)
    with pytest.raises(torch.OutOfMemoryError):
        engine.step()
    drain(engine)
    assert [stream.tokens for stream in streams] == expected(model)


@pytest.mark.parametrize("ahead", [1, 4])
def test_an_interrupt_while_tokens_are_handed_out(ahead: int) -> None:
    """Requests behind the one that it met go on where they were."""
    model = patched()
    for n in range(1, 9):
        engine, calls = Engine(model, ahead=ahead), [0]
        streams = submitted(engine)
        take = streams[2].take

        def interrupted(at: int, calls: list[int] = calls, n: int = n, take: Any = take) -> str:
            calls[0] += 1
            if calls[0] == n:
                raise KeyboardInterrupt
            return str(take(at))

        streams[2].take = interrupted
        with pytest.raises(KeyboardInterrupt):
            engine.run()
        assert all(stream.job.pending for stream in streams), "a request that no step would go on with"
        drain(engine)
        assert [stream.tokens for stream in streams] == expected(model)


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("n", [2, 4])
def test_a_step_that_fails_behind_the_choice_of_its_tokens(ahead: int, n: int) -> None:
    """The device has counted tokens that nobody got: the rows are filled again."""
    model = patched()
    engine, calls = Engine(model, ahead=ahead), [0]

    class Failing:
        def __init__(self, chooser: Any) -> None:
            self._chooser = chooser

        def __getattr__(self, name: str) -> Any:
            return getattr(self._chooser, name)

        def __call__(self, *args: Any) -> Any:
            return self._then_fail(self._chooser(*args))

        def several(self, *args: Any) -> Any:
            return self._then_fail(self._chooser.several(*args))

        def _then_fail(self, found: Any) -> Any:
            calls[0] += 1
            if calls[0] == n:
                raise torch.OutOfMemoryError("seeded")
            return found

    engine._chooser = Failing(engine._chooser)
    streams = submitted(engine)
    with pytest.raises(torch.OutOfMemoryError, match="seeded"):
        engine.run()
    drain(engine)
    assert [stream.tokens for stream in streams] == expected(model)


def test_another_dtype_than_the_caches() -> None:
    model = patched()
    engine = Engine(model)
    stream = engine.submit([1, 2, 3], GREEDY)
    engine.step()
    model.to(torch.bfloat16)
    with pytest.raises(RuntimeError, match="another shape, dtype or device than its cache"):
        engine.step()
    model.to(torch.float32)
    assert len(stream.result()) == GREEDY.max_tokens
    drain(engine)


def test_weights_that_were_replaced_are_let_go() -> None:
    """By tapes of any number of requests, also of those that no step has any more."""
    model = patched()
    engine = Engine(model)
    submitted(engine)
    engine.run()
    engine.submit([3], GREEDY).result()
    old = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
    engine.submit([3], GREEDY).result()
    gc.collect()
    assert old() is None


def test_prompts_read_by_other_weights_are_forgotten_when_asked() -> None:
    model, prompt = patched(), prompts()[1]
    engine = Engine(model)
    engine.submit(prompt, GREEDY).result()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.neg_()
            layer.mlp.up_proj.weight.neg_()
    engine.cache.manager.forget()
    stream = engine.submit(prompt, GREEDY)
    assert stream.result() == Engine(model).submit(prompt, GREEDY).result() and not stream.job.reused


def test_a_draft_model_that_can_be_run_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Guessing.timed  # what is guessed doesn't depend on this machine
    monkeypatch.setattr(Guessing, "timed", lambda self, n, length, tokens, _: timed(self, n, length, tokens, 1.0))
    model, draft, params = patched(), patched(), Params(max_tokens=60, temperature=0)
    engine = Engine(model, assistant_model=draft)
    stream = engine.submit([5], params)
    while not engine.guesses.guessed:
        engine.step()
    draft.train()
    assert stream.result() == Engine(model).submit([5], params).result()
    assert engine.guesses.stopped == "switched off: training"
    drain(engine)
