"""Ten thousand requests through one small pool: none changes another's answer, and nothing is left of them."""

from __future__ import annotations

import gc
import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

import torch_foundry
from tests.engine.test_engine import alone, drain
from tests.hf.tiny_models import build, ids
from torch_foundry.engine import Engine, QueueFull, SamplingParams
from torch_foundry.engine import steps as steps_module

pytestmark = [pytest.mark.tier("models"), pytest.mark.usefixtures("quiet")]
REQUESTS = 10_000
LENGTHS = (1, 2, 5, 16, 17, 33, 60)


def test_ten_thousand_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random lengths, a full queue, cancels, preemptions, shared prefixes and drafts, by a clock by which every step
    takes as long: measured times decide how many tokens are drafted, and so what is preempted."""
    monkeypatch.setattr(steps_module, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    model, chance = torch_foundry.patch(build("llama", layers=1)), random.Random(0)
    pool = [ids(1, n, seed=n)[0].tolist() for n in LENGTHS]
    expected = [alone(model, prompt, 60) for prompt in pool]
    engine = Engine(model, requests=24, budget=96, blocks=24, queue=64, prompt_lookup_num_tokens=3)
    live: list[tuple[int, int, Any]] = []
    submitted, seen, objects = 0, {"full": 0, "cancelled": 0, "length": 0, "preempted": 0, "reused": 0}, []
    while submitted < REQUESTS or live:
        while submitted < REQUESTS:
            which, tokens = chance.randrange(len(pool)), chance.choice([1, 1, 1, 2, 2, 3, 5, 60])
            try:
                stream = engine.submit(pool[which], SamplingParams(max_tokens=tokens, temperature=0))
            except QueueFull:
                seen["full"] += 1
                break
            live.append((which, tokens, stream))
            submitted += 1
            if submitted % (REQUESTS // 4) == 0:
                gc.collect()
                objects.append(len(gc.get_objects()))
        if chance.random() < 0.3:
            chance.choice(live)[2].cancel()
        engine.step()
        for which, tokens, stream in live:
            if stream.finish_reason:
                seen[stream.finish_reason] += 1
                seen["preempted"] += stream.sequence.preempted
                seen["reused"] += stream.sequence.reused > 0
                whole = expected[which][: tokens if stream.finish_reason == "length" else len(stream.tokens)]
                assert stream.tokens == whole
        live = [each for each in live if not each[2].finish_reason]
        if submitted % 50 == 0:
            engine.cache.manager.check()
    drain(engine)
    assert seen["cancelled"] + seen["length"] == REQUESTS and min(seen.values()) > 20, seen
    assert engine.speculation.accepted
    assert max(objects) < objects[0] + 2000, objects
