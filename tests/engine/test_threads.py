"""Engines and threads; Ctrl-C, wherever it comes; cancelling from a signal handler."""

from __future__ import annotations

import copy
import pickle
import random
import signal
import sys
import threading
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer

from tests.engine.test_engine import GREEDY, KINDS, alone, drain, patched, prompts
from tests.interrupt import Interrupt
from torch_foundry.core import runtime
from torch_foundry.demo_model import demo_model_path
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import report

pytestmark = pytest.mark.usefixtures("quiet")
FILES = ("/engine/", "/kvcache/", "/text/", "/core/graph.py", "/generation/")


@pytest.mark.parametrize("drafts", ["none", "lookup", "draft"])
def test_an_interrupt_at_any_line(drafts: str) -> None:
    """Tokens and texts are those of requests that nobody interrupted, and nothing is left behind."""
    model, tokenizer, chance = patched(), AutoTokenizer.from_pretrained(demo_model_path()), random.Random(drafts)
    options = {"none": {}, "lookup": {"prompt_lookup_num_tokens": 7}, "draft": {"assistant_model": patched()}}[drafts]
    expected, interrupts = None, 0
    for times in (0, *[6] * 12):
        engine = Engine(model, tokenizer, requests=3, budget=30, blocks=10, **options)  # type: ignore[arg-type]
        streams = [engine.submit(p, KINDS[i % len(KINDS)]) for i, p in enumerate([[5], *prompts(4)])]
        for _ in range(times):
            before = sys.gettrace()
            sys.settrace(Interrupt(chance.randrange(1, 4000), FILES))
            try:
                engine.run()
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                sys.settrace(before)
        drain(engine)
        found = [(stream.tokens, stream.text, stream.finish_reason) for stream in streams]
        expected = expected or found
        assert found == expected
    assert interrupts > 30


def test_an_interrupt_between_a_token_and_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request would have had nothing to compute, and no step would ever have gone on with it."""
    engine = Engine(patched())
    stream, commit = engine.submit([5, 6, 7], GREEDY), engine.scheduler.commit

    def interrupted(*args: Any) -> None:
        monkeypatch.undo()
        commit(*args)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(engine.scheduler, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.step() and stream.result() == alone(engine.model, [5, 6, 7])
    drain(engine)


def test_cancelling_in_the_middle_of_a_step() -> None:
    """As a signal handler does, which runs between any two instructions of the thread that steps."""
    engine = Engine(patched(), requests=2)
    victim, other = (engine.submit(prompt, GREEDY) for prompt in prompts(2))
    append = other.sequence.append

    def cancels(token: int) -> str:
        victim.cancel()
        return append(token)

    other.sequence.append = cancels  # type: ignore[method-assign]
    engine.step()
    assert victim.finish_reason == ""
    drain(engine)
    assert victim.finish_reason == "cancelled" and other.result() == alone(engine.model, prompts()[1])


def test_another_engines_request() -> None:
    engine = Engine(patched())
    stream = engine.submit([3], GREEDY)
    with pytest.raises(ValueError, match="it is another engine's"):
        Engine(engine.model).cancel(stream)
    assert len(stream.result()) == GREEDY.max_tokens


def run(*work: Any) -> list[BaseException]:
    """Each in a thread of its own, which change as often as can be."""
    errors: list[BaseException] = []

    def caught(each: Any) -> None:
        try:
            each()
        except BaseException as error:
            errors.append(error)

    threads, interval = [threading.Thread(target=caught, args=[each], daemon=True) for each in work], 1e-5
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)
    return errors


def test_threads_share_an_engine() -> None:
    model = patched()
    expected = [alone(model, prompt) for prompt in prompts()]
    engine = Engine(model, requests=3, queue=4)
    found: dict[int, list[int]] = {}

    def work(thread: int) -> None:
        with runtime.host_options(threads=1):
            for i in range(thread, 8, 4):
                stream = engine.submit(prompts()[i], GREEDY)
                found[i] = list(stream)
                engine.submit(prompts()[i], GREEDY).cancel()

    assert run(*[lambda i=i: work(i) for i in range(4)]) == []
    assert [found[i] for i in range(8)] == expected
    drain(engine)


def test_another_threads_dispatch_mode_is_no_reason_to_stop() -> None:
    """Capturing is one: two engines, or two calls of generate(), would stop each other."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    model, inside, over = patched(), threading.Event(), threading.Event()

    def hold() -> None:
        with Mode():
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    inside.wait(60)
    try:
        assert Engine(model).submit([5, 6, 7], GREEDY).result() == alone(model, [5, 6, 7])
    finally:
        over.set()
        thread.join()
    assert not report(model).eager
    with Mode(), pytest.raises(RuntimeError, match="a dispatch mode is active"):
        Engine(model)


def test_made_in_inference_mode() -> None:
    """And used outside of it, and the other way round; penalties make tensors later than the rest."""
    model = patched()
    expected = [Engine(model).submit(prompts()[0], params).result() for params in KINDS]
    with torch.inference_mode():
        engine = Engine(model)
        inside = [engine.submit(prompts()[0], params).result() for params in KINDS]
    assert inside == [engine.submit(prompts()[0], params).result() for params in KINDS] == expected
    assert SamplingParams() == SamplingParams(stop=[], stop_token_ids=[])


def test_an_engine_is_not_copied() -> None:
    """As a process that is spawned would get it; its model is."""
    model = patched()
    engine = Engine(model, requests=2)
    expected = engine.submit([3, 4], GREEDY).result()
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="an engine can't be copied or pickled; its model can"):
            copied(engine)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert Engine(other, requests=2).submit([3, 4], GREEDY).result() == expected
