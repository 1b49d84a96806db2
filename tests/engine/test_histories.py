"""Texts that go on from edited ones, in an engine with little room: the tokens are those without any cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_foundry
from tests.hf import ripple
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.engine.stream import Stream

ERROR = 1e-4  # of float32 logits: two tokens nearer to each other than that may both be the first
TOGETHER = 4  # texts that are edited before one engine makes room for the next


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with ripple.known():
        yield


@torch.no_grad()
def check(stock: Any, streams: list[Stream]) -> None:
    """Each new token is the first after those before it, by stock code that reads all in one go."""
    texts = [stream.sequence.tokens for stream in streams]
    rows = torch.tensor([[*text, *[0] * (max(map(len, texts)) - len(text))] for text in texts])
    for stream, text, logits in zip(streams, texts, stock(rows, use_cache=False).logits, strict=True):
        behind = logits[stream.sequence.prompt - 1 : len(text) - 1]
        chosen = behind.gather(1, torch.tensor(text[stream.sequence.prompt :]).view(-1, 1))[:, 0]
        assert bool((behind.amax(1) - chosen <= ERROR).all()), "not the tokens without a cache"


def histories(stock: Any, count: int, seed: int) -> tuple[int, int]:
    """Answers `count` texts; returns how many were preempted, and how many tokens were not read again."""
    chance = random.Random(seed)
    options = {"requests": 3, "budget": chance.choice([8, 24, 60]), "blocks": (7, 14)[seed % 2], "queue": 1000}
    options |= {"snapshots": chance.choice([1, 4, 20]), "snapshot_every": 16 * chance.randrange(1, 4)}
    engine = Engine(torch_foundry.patch(ripple.build(layers=2)), **options)
    texts, lost, reused = [[chance.randrange(4, 100) for _ in range(40)]], 0, 0
    for _ in range(0, count, TOGETHER):
        streams, cancelled = [], []
        for _ in range(TOGETHER):
            text = chance.choice(texts)
            new = [chance.randrange(4, 100) for _ in range(chance.randrange(1, 9))]
            prompt = [*text[: chance.randrange(len(text) + 1)][:60], *new]
            params = SamplingParams(max_tokens=chance.randrange(1, 50), temperature=0, ignore_eos=True)
            streams.append(engine.submit(prompt, params))
            for _ in range(chance.randrange(4)):
                engine.step()
            if chance.random() < 0.15:
                cancelled.append(chance.choice(streams))
                engine.cancel(cancelled[-1])
        engine.run()
        check(stock, streams)
        assert all(stream in cancelled or stream.finish_reason == "length" for stream in streams)
        lost += sum(stream.sequence.preempted for stream in streams)
        reused += sum(stream.sequence.reused for stream in streams)
        texts = [stream.sequence.tokens for stream in streams]
        manager, tables = engine.cache.manager, engine.cache.manager.states
        manager.check()
        tables.check()
        assert not len(manager) and not tables._rings, "an answered request has something"
    manager.forget()
    assert len(manager._free) == manager.blocks and len(tables._free) == tables.slots
    return lost, reused


def test_some_histories() -> None:
    lost, reused = histories(ripple.build(layers=2), 40, seed=0)
    assert lost and reused > 200


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("seed", range(50))
def test_many_histories(seed: int) -> None:
    histories(ripple.build(layers=2), 200, seed)
