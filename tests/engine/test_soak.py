"""Engines under load while steps fail at random places: answers are those of requests that are alone, nothing is left.

A case is named by its seed, so `-k` runs it again. Nothing waits without a bound: a step too many is a failure, and so
is an answer that takes a minute.
"""

from __future__ import annotations

import gc
import os
import queue
import random
import signal
import threading
import weakref
from collections import Counter
from typing import Any

import pytest
import torch

from tests.engine.test_drafting import ended, steps_of_a_second
from tests.engine.test_engine import KINDS, patched, prompts
from tests.generation.test_mtp import folder, loaded
from torch_foundry.engine import Engine, QueueFull, SamplingParams
from torch_foundry.engine import steps as steps_module
from torch_foundry.generation.draft_length import DraftLengthController
from torch_foundry.serving.engine_thread import EngineThread, Request, Update

pytestmark = pytest.mark.usefixtures("quiet")
STEPS = 400  # a request needs no more, whatever fails
SHORT, LONG = 60, 1500  # requests
WAYS = ("dense", "lookup", "draft", "hybrid", "mtp")
KEPT = 40  # tensors that a model keeps once an engine has run it
WAIT = 60.0  # seconds, for an answer
Known = tuple[list[int], SamplingParams, list[int]]  # a request, and its answer alone
FAULTS = (torch.OutOfMemoryError, RuntimeError, None)  # None: an interrupt


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(folder(tmp_path_factory.mktemp("hybrid"), "qwen3_5"))


@pytest.fixture(autouse=True)
def always_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of_a_second(monkeypatch)
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: True)


class Faults:
    """Raises one in `every` calls of the parts of `engine`, before or behind the call."""

    def __init__(self, engine: Engine, chance: random.Random, every: int, patch: pytest.MonkeyPatch) -> None:
        self.chance, self.every, self.seen, self.interrupts = chance, every, Counter[str](), True
        for owner, name in (
            (engine._steps.sampler, "fill"),
            (engine._steps.sampler, "step"),
            (engine.cache, "copy"),
            (engine._steps, "forward"),
            (steps_module, "sample"),
            (steps_module, "sample_ahead"),
        ):
            patch.setattr(owner, name, self.part(name, getattr(owner, name)))

    def part(self, name: str, call: Any) -> Any:
        faults = self

        class Part:
            def __call__(self, *args: Any, **named: Any) -> Any:
                faults.maybe(f"before {name}")
                found = call(*args, **named)
                faults.maybe(f"behind {name}")
                return found

            def __getattr__(self, attribute: str) -> Any:
                return getattr(call, attribute)

        return Part()

    def maybe(self, where: str) -> None:
        if self.every and self.chance.randrange(self.every) == 0:
            fault = self.chance.choice(FAULTS if self.interrupts else FAULTS[:2])
            self.seen[where if fault else "interrupt"] += 1
            if fault is None:
                signal.raise_signal(signal.SIGINT)
            else:
                raise fault("seeded")  # a new one: a traceback holds tensors


def options_of(way: str, hybrid: Any) -> tuple[Any, dict[str, Any]]:
    model = hybrid if way in ("hybrid", "mtp") else patched()
    more = {
        "lookup": {"prompt_lookup_num_tokens": 4},
        "draft": {"assistant_model": patched()},
        "mtp": {"use_mtp": True},
    }
    return model, more.get(way, {})


def work(model: Any) -> list[Known]:
    """Requests, and the answers to each of them alone."""
    given = [(prompt, KINDS[i % len(KINDS)]) for i, prompt in enumerate(prompts(10))]
    return [(*each, Engine(model, requests=1).submit(*each).result()) for each in given]


def check(tokens: list[int], reason: str, expected: list[int]) -> None:
    assert tokens == (expected if reason == "length" else expected[: len(tokens)])


def tensors() -> int:
    """How many there are, of any owner."""
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def left_empty(engine: Engine) -> None:
    ended(engine)
    manager = engine.cache.manager
    if engine.snapshots:
        manager.states.check()
        assert not manager.states._rings
    manager.forget()
    assert len(manager._free) == manager.blocks


def soak(way: str, seed: int, requests: int, hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, more = options_of(way, hybrid)
    known, chance = work(model), random.Random(f"{way} {seed}")
    requested, tensors_before = list[Any](), tensors()
    ahead, budget = chance.choice([1, 4]), chance.choice([12, 30])
    engine = Engine(model, requests=4, budget=budget, blocks=5, queue=6, ahead=ahead, **more)
    faults = Faults(engine, chance, chance.choice([20, 60]), monkeypatch)
    live, submitted, reasons, steps, lost = [], 0, Counter[str](), 0, 0
    while submitted < requests or live:
        while submitted < requests and chance.random() < 0.7:
            which = chance.choice(known)
            try:
                live.append((which, engine.submit(which[0], which[1])))
            except QueueFull:
                break
            requested.append(weakref.ref(live[-1][1].sequence))
            submitted += 1
        if live and chance.random() < 0.02:
            chance.choice(live)[1].cancel()
        steps += 1
        assert steps < STEPS * requests, "requests that no step goes on with"
        try:
            engine.step()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            assert "seeded" in str(error), error
        except KeyboardInterrupt:
            pass
        engine.cache.manager.check()
        for which, stream in [each for each in live if each[1].finish_reason]:
            check(stream.tokens, stream.finish_reason, which[2])
            reasons[stream.finish_reason] += 1
            lost += stream.sequence.preempted
        live = [each for each in live if not each[1].finish_reason]
    faults.every = 0
    left_empty(engine)
    assert reasons.keys() == {"length", "cancelled"} and lost and len(faults.seen) > 4, (reasons, lost, faults.seen)
    del stream
    gc.collect()
    assert not [each for each in requested if each() is not None], "an engine keeps requests that have ended"
    monkeypatch.undo()
    del engine, faults
    assert tensors() <= tensors_before + KEPT


class Client:
    """Somebody who asks, may leave, and is told in a thread that is not theirs."""

    def __init__(self, thread: EngineThread, which: Known, patience: int) -> None:
        self.which, self.patience, self.tokens, self.ended = which, patience, list[int](), queue.Queue[str]()
        self.request = Request(which[0], which[1], self.tell)
        thread.submit(self.request)

    def tell(self, update: Update) -> None:
        self.tokens += update.tokens
        if update.finish_reason:
            self.ended.put(update.finish_reason)
        self.patience -= 1
        if self.patience == 0:
            raise ConnectionError("nobody is there any more")


def soak_thread(way: str, seed: int, requests: int, hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of the thread that servers step an engine by, for three threads of clients."""
    model, more = options_of(way, hybrid)
    known, chance = work(model), random.Random(f"{way} {seed}")
    before = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    engine = Engine(model, requests=4, budget=24, blocks=5, queue=20, **more)
    faults = Faults(engine, chance, 300, monkeypatch)
    faults.interrupts = False  # they would be the main thread's
    thread, reasons, errors = EngineThread(engine), Counter[str](), list[BaseException]()

    def clients(number: int) -> None:
        own = random.Random(f"{way} {seed} {number}")
        try:
            for _ in range(requests // 12):
                some = [Client(thread, own.choice(known), own.choice([0, 0, 0, 1, 3])) for _ in range(4)]
                if own.random() < 0.3:
                    thread.cancel(own.choice(some).request)
                for each in some:
                    reason = each.ended.get(timeout=WAIT)
                    check(each.tokens, reason, each.which[2])
                    reasons[reason] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=clients, args=(i,), daemon=True) for i in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(10 * WAIT)
        assert not each.is_alive()
    thread.close(now=True)
    thread.join(WAIT)
    assert not errors and not thread.is_alive and engine.idle, errors
    faults.every = 0
    left_empty(engine)
    assert {"length", "cancelled", "error"} == reasons.keys() and len(faults.seen) > 2, (reasons, faults.seen)
    assert (threading.active_count(), before[1] and len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_short_while(way: str, hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    soak(way, 0, SHORT, hybrid, monkeypatch)


@pytest.mark.parametrize("way", ["dense", "mtp"])
def test_a_server_for_a_short_while(way: str, hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    soak_thread(way, 0, 2 * SHORT, hybrid, monkeypatch)


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("way", WAYS)
def test_a_long_while(way: str, seed: int, hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    soak(way, seed, LONG, hybrid, monkeypatch)


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("way", WAYS)
def test_a_server_for_a_long_while(way: str, seed: int, hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    soak_thread(way, seed, LONG, hybrid, monkeypatch)
