"""The thread that steps an engine: it tells each request what came, and nobody else's trouble is a request's own."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_engine import GREEDY, KINDS, alone, patched, prompts
from torch_foundry.engine import Engine, QueueFull, SamplingParams
from torch_foundry.serving.engine_thread import Closing, EngineThread, Request, Update

ROOT = Path(__file__).parents[2]
LONG = SamplingParams(max_tokens=500, temperature=0, ignore_eos=True)


class Asked:
    """A request, and what it was told."""

    def __init__(self, thread: EngineThread, prompt: list[int], params: SamplingParams = GREEDY) -> None:
        self.news: queue.Queue[Update] = queue.Queue()
        self.request = Request(prompt, params, self.news.put)
        thread.submit(self.request)

    def rest(self) -> tuple[list[int], Update]:
        """All tokens that are not taken yet, and the last update."""
        tokens: list[int] = []
        while True:
            update = self.news.get(timeout=60)
            tokens += update.tokens
            if update.finish_reason:
                return tokens, update


@pytest.fixture(scope="module")
def model() -> Any:
    return patched()


@pytest.fixture
def thread(model: Any) -> Iterator[EngineThread]:
    found = EngineThread(Engine(model, requests=4, budget=20, blocks=40, queue=12))
    yield found
    found.close(now=True)
    found.join(60)
    assert not found.is_alive and found.engine.idle


def test_answers_from_many_threads_are_those_of_each_alone(model: Any, thread: EngineThread) -> None:
    found: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        for _ in range(3):
            tokens, last = Asked(thread, prompts(6)[i], KINDS[i % len(KINDS)]).rest()
            assert last.finish_reason == "length" and found.setdefault(i, tokens) == tokens

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    expected = [Engine(model, requests=1).submit(p, KINDS[i % len(KINDS)]).result() for i, p in enumerate(prompts(6))]
    assert [found[i] for i in range(6)] == expected


def test_a_cancelled_request_ends_and_others_go_on(model: Any, thread: EngineThread) -> None:
    victim, other = Asked(thread, [5, 6], LONG), Asked(thread, prompts(1)[0])
    victim.news.get(timeout=60)
    thread.cancel(victim.request)
    tokens, last = victim.rest()
    assert last.finish_reason == "cancelled" and len(tokens) < 499
    assert other.rest()[0] == alone(model, prompts(1)[0])


def test_who_cannot_be_told_is_cancelled(thread: EngineThread) -> None:
    def gone(update: Update) -> None:
        raise RuntimeError("Event loop is closed")

    thread.submit(Request([5, 6], LONG, gone))
    for _ in range(12 + 4):  # its place is free again
        assert Asked(thread, [7]).rest()[1].finish_reason == "length"


def test_what_is_wrong_with_a_request_is_told(thread: EngineThread) -> None:
    tokens, last = Asked(thread, [10**9]).rest()
    assert not tokens and isinstance(last.error, ValueError) and "vocabulary" in str(last.error)


def test_as_many_wait_as_the_engine_takes(thread: EngineThread) -> None:
    asked = [Asked(thread, [5, i], LONG) for i in range(16)]
    with pytest.raises(QueueFull, match="12 requests are waiting"):
        Asked(thread, [5])
    thread.cancel(asked[3].request)
    assert asked[3].rest()[1].finish_reason == "cancelled"
    Asked(thread, [5])


def test_those_that_come_together_are_taken_as_places_become_free(thread: EngineThread) -> None:
    with thread._changed:  # no step between them
        asked = [Asked(thread, [5, i], SamplingParams(max_tokens=1)) for i in range(4 + 12)]
        thread.cancel(asked[-1].request)
    reasons = [each.rest()[1].finish_reason for each in asked]
    assert reasons == ["length"] * 15 + ["cancelled"]


def test_a_step_that_fails_ends_what_ran(thread: EngineThread, monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    asked = [Asked(thread, [5, i], LONG) for i in range(4)]
    for each in asked:
        each.news.get(timeout=60)
    waiting, step = Asked(thread, prompts(1)[0]), thread.engine.step

    def failing() -> int:
        monkeypatch.setattr(thread.engine, "step", step)
        raise MemoryError("seeded")

    monkeypatch.setattr(thread.engine, "step", failing)
    for each in asked:
        last = each.rest()[1]
        assert last.finish_reason == "error" and "a step failed: MemoryError" in str(last.error)
    assert waiting.rest()[0] == alone(model, prompts(1)[0])


@pytest.mark.parametrize("now", [False, True])
def test_closing(model: Any, now: bool) -> None:
    thread = EngineThread(Engine(model, requests=2, blocks=80))
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    asked = [Asked(thread, [5, i], params) for i in range(4)]
    asked[0].news.get(timeout=60)
    thread.close(now=now)
    with pytest.raises(Closing):
        Asked(thread, [5])
    found = {each.rest()[1].finish_reason for each in asked}
    assert found == ({"cancelled"} if now else {"length"})
    thread.join(60)
    assert not thread.is_alive and thread.engine.idle


def test_python_ends_while_a_step_runs() -> None:
    """A thread that came back from C++ when the interpreter is gone would abort the process."""
    script = """
import time
from tests.engine.test_engine import patched, prompts
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.serving.engine_thread import EngineThread, Request
thread, told = EngineThread(Engine(patched(), requests=4, blocks=400)), []
for prompt in prompts(4):
    thread.submit(Request(prompt, SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True), told.append))
while len(told) < 20:
    time.sleep(0.01)
print("leaving")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (0, "leaving\n", "")
