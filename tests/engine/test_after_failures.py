"""What an engine is after something went wrong in a step, or its model has changed."""

from __future__ import annotations

import contextlib
import functools
import gc
import signal
import weakref
from typing import Any

import pytest
import torch

from tests.engine.test_drafting import steps_of_a_second
from tests.engine.test_engine import GREEDY, KINDS, drain, patched, prompts
from torch_foundry.engine import Engine, SamplingParams, next_tokens
from torch_foundry.engine import steps as steps_module

pytestmark = pytest.mark.usefixtures("quiet")


def submitted(engine: Engine) -> list[Any]:
    """One-token prompts among them, which generate from their first step on."""
    return [engine.submit(p, KINDS[i % len(KINDS)]) for i, p in enumerate([[5], [6], *prompts(4)])]


def expected(model: Any) -> list[list[int]]:
    engine = Engine(model)
    streams = submitted(engine)
    engine.run()
    return [stream.tokens for stream in streams]


@pytest.mark.tier("models")
@pytest.mark.parametrize("n", range(6))
def test_a_slot_that_could_not_be_filled(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have none yet get theirs later, and the one that is half filled is filled again."""
    model = patched()
    engine, calls = Engine(model), [0]
    fill = engine._steps.sampler.fill

    def fails(*args: Any, **kwargs: Any) -> None:
        calls[0] += 1
        if calls[0] == n + 1:
            raise torch.OutOfMemoryError("no memory")
        fill(*args, **kwargs)

    monkeypatch.setattr(engine._steps.sampler, "fill", fails)
    streams = submitted(engine)
    with pytest.raises(torch.OutOfMemoryError):
        engine.step()
    drain(engine)
    assert [stream.tokens for stream in streams] == expected(model)


@pytest.mark.parametrize("ahead", [1, 4])
def test_an_interrupt_while_tokens_are_handed_out(ahead: int) -> None:
    """It waits until all have theirs."""
    model = patched()
    for n in range(1, 9):
        engine, calls = Engine(model, ahead=ahead), [0]
        streams = submitted(engine)
        append = streams[2].sequence.append

        def interrupted(token: int, calls: list[int] = calls, n: int = n, append: Any = append) -> str:
            calls[0] += 1
            if calls[0] == n:
                signal.raise_signal(signal.SIGINT)
            return str(append(token))

        streams[2].sequence.append = interrupted
        with pytest.raises(KeyboardInterrupt):
            engine.run()
        assert all(stream.sequence.pending for stream in streams), "a request that no step would go on with"
        drain(engine)
        assert [stream.tokens for stream in streams] == expected(model)


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("n", [2, 4])
def test_a_step_that_fails_behind_the_choice_of_its_tokens(ahead: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has counted tokens that nobody got: the rows are filled again."""
    model = patched()
    engine, calls = Engine(model, ahead=ahead), [0]

    def failing(sample: Any, *args: Any) -> Any:
        found = sample(*args)
        calls[0] += 1
        if calls[0] == n:
            raise torch.OutOfMemoryError("seeded")
        return found

    for name in ("sample", "sample_ahead"):
        monkeypatch.setattr(steps_module, name, functools.partial(failing, getattr(next_tokens, name)))
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
    """By graphs of any number of requests, also of those that no step has any more."""
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


def test_an_engine_that_is_dropped_frees_its_pages_and_its_model() -> None:
    """At once, without Python's collector of circles."""
    engine = Engine(patched(), assistant_model=patched())
    streams = submitted(engine)
    engine.run()
    del streams
    left = [weakref.ref(part) for part in (engine.model, engine.cache, *engine.model.parameters())]
    gc.collect()
    gc.disable()
    try:
        del engine
        assert [part() for part in left if part() is not None] == []
    finally:
        gc.enable()


def test_prompts_read_by_other_weights_are_forgotten_when_asked() -> None:
    model, prompt = patched(), prompts()[1]
    engine = Engine(model)
    engine.submit(prompt, GREEDY).result()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.neg_()
            layer.mlp.up_proj.weight.neg_()
    engine.forget()
    stream = engine.submit(prompt, GREEDY)
    assert stream.result() == Engine(model).submit(prompt, GREEDY).result() and not stream.sequence.reused


def test_a_draft_model_that_can_be_run_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of_a_second(monkeypatch)
    model, draft, params = patched(), patched(), SamplingParams(max_tokens=60, temperature=0)
    engine = Engine(model, assistant_model=draft)
    stream = engine.submit([5], params)
    while not engine.speculation.drafted:
        engine.step()
    draft.train()
    assert stream.result() == Engine(model).submit([5], params).result()
    assert engine.speculation.stopped == "switched off: training"
    drain(engine)


def test_a_step_that_fails_behind_drafts_of_a_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests have no row of the sampler until the next step fills it, so nothing is drafted for them before."""
    steps_of_a_second(monkeypatch)
    model, params = patched(), SamplingParams(max_tokens=40, temperature=0)
    expected = Engine(model).submit([5], params).result()
    engine, calls = Engine(model, assistant_model=patched()), [0]

    def failing(*args: Any) -> None:
        next_tokens.sample(*args)
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise torch.OutOfMemoryError("seeded")

    monkeypatch.setattr(steps_module, "sample", failing)
    stream = engine.submit([5], params)
    for _ in range(60):
        with contextlib.suppress(torch.OutOfMemoryError):
            engine.step()
    assert calls[0] > 4 and engine.speculation.drafted
    assert stream.finish_reason == "length" and stream.tokens == expected
