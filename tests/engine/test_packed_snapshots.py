"""An engine whose snapshots are packed: which states it keeps and goes on from, and what they take of a budget."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import torch_foundry
from tests.hf.tiny_models import ids, shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.engine.memory import memory_of, snapshot_bytes
from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.packed_state_tables import PackedStateTables
from torch_foundry.kvcache.pooled_states import PooledStates
from torch_foundry.testing.tolerance import assert_equal

NEW = 12
GREEDY = SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True)
TEXT = ids(1, 70, seed=1)[0].tolist()


def build(**options: Any) -> Engine:
    model = torch_foundry.patch(copy.deepcopy(shared("qwen3_5")))
    return Engine(model, **{"requests": 2, "budget": 32, "blocks": 40, "snapshot_every": 32, **options})


def states_of(engine: Engine, tokens: int) -> dict[str, torch.Tensor]:
    """Of the first layer, in the snapshot behind so many tokens, as it is stored."""
    tables, pooled = engine.cache.manager.states, engine.cache.layers[0]
    assert isinstance(pooled, PooledStates)
    (entry,) = [entry for entry in tables._snapshots.values() if entry.tokens == tokens]
    return {name: data[entry.kept] for name, data in (pooled._packed or pooled._data).items()}


@torch.no_grad()
def behind(prompt: list[int], read: int, states: dict[str, torch.Tensor]) -> list[int]:
    """What stock code answers to a prompt of whose first `read` tokens the first layer has these states."""
    stock = shared("qwen3_5")
    cache = DynamicCache(config=stock.config)
    if read:
        stock(torch.tensor([prompt[:read]]), past_key_values=cache)
    for name, state in states.items():
        getattr(cache.layers[0], f"{name}_states")[0].copy_(state)
    text, new = torch.tensor([prompt]), list[int]()
    while len(new) < NEW:
        new.append(int(stock(text[:, read:], past_key_values=cache).logits[0, -1].argmax()))
        read = text.shape[1]
        text = torch.cat([text, torch.tensor([new[-1:]])], 1)
    return new


def test_what_is_kept_are_the_codes_of_the_states_and_what_they_stand_for_is_gone_on_from() -> None:
    exact, packed = build(), build(snapshot_format="q8_0")
    for engine in (exact, packed):
        first = engine.submit(TEXT, GREEDY)
        engine.run()
        assert first.tokens == behind(TEXT, 0, {}), "an answer that began with nothing"
        second = engine.submit([*TEXT[:50], *TEXT[:9]], GREEDY)
        engine.step()  # packs what the first one left, and begins
        kept = states_of(engine, 32)
        engine.run()
        assert second.sequence.reused == 32
        if engine is exact:
            expected = {name: packed_states.packed(state[None], "q8_0")[0] for name, state in kept.items()}
            continue
        found = dict[str, torch.Tensor]()
        for name, data in kept.items():
            assert_equal(data, expected[name])
            shape = (1, *engine.cache.layers[0]._data[name].shape[1:])  # type: ignore[union-attr]
            found[name] = packed_states.unpacked(data[None], "q8_0", shape)
        assert second.tokens == behind([*TEXT[:50], *TEXT[:9]], 32, found)
    manager = packed.cache.manager
    manager.check()
    manager.states.check()


def test_a_request_that_waits_unpacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins and ends at each step, until there is room."""
    engine, begun = build(snapshot_format="q8_0", blocks=14), list[int]()
    begin = PackedStateTables._begin
    monkeypatch.setattr(PackedStateTables, "_begin", lambda self, kept: begun.append(kept) or begin(self, kept))
    engine.submit(TEXT, GREEDY).result()
    long = engine.submit([*TEXT[::-1], *TEXT[:20]], SamplingParams(max_tokens=30, temperature=0, ignore_eos=True))
    engine.step()
    engine.submit([*TEXT, *TEXT[:60]], GREEDY)
    for _ in range(3):
        engine.step()
        assert engine.scheduler.waiting and all(move[0] for move in engine.cache.manager.states.moves)  # type: ignore[attr-defined]
    assert len(begun) > 1
    engine.run()
    assert len(long.tokens) == 30


@pytest.mark.parametrize("snapshots", [0, 1, 3])
def test_few_snapshots(snapshots: int) -> None:
    engine = build(snapshot_format="q8_0", snapshots=snapshots)
    for _ in range(2):
        streams = [engine.submit(TEXT[: 40 + i], GREEDY) for i in range(4)]
        engine.run()
        assert all(len(stream.tokens) == NEW for stream in streams)
        engine.cache.manager.check()
        engine.cache.manager.states.check()
    assert engine.cache.manager.states.snapshots == snapshots


def test_a_budget_counts_the_codes() -> None:
    plan = build().model.model.decoder_plan()
    specs = [mixer.state for mixer in plan.owners.values()]
    exact, packed = (snapshot_bytes(specs, plan.dtype, format) for format in (None, "q8_0"))
    assert packed == sum(-(-n // 256) * 272 for n in (exact_elements(specs)))
    assert packed < 0.3 * exact
    sizes = []
    for format, one in ((None, exact), ("q8_0", packed)):
        engine = build(snapshot_format=format, blocks=20, cache_bytes=2 << 20)
        pages, states = memory_of(engine.cache)
        running = engine.cache.manager.states.slots - (engine.snapshots if format is None else 0)
        assert states == running * exact + engine.snapshots * one and pages + engine.snapshots * one <= 2 << 20
        sizes.append(engine.snapshots)
    assert sizes[1] > 3 * sizes[0] > 0
    with pytest.raises(ValueError, match=f"a snapshot of recurrent states {packed}$"):
        build(snapshot_format="q8_0", blocks=20, cache_bytes=pages + packed - 1)
    assert build(snapshot_format="q8_0", blocks=20, cache_bytes=pages + packed).snapshots == 1


def exact_elements(specs: list[Any]) -> list[int]:
    return [torch.Size(shape).numel() for spec in specs for _, shape, _ in getattr(spec, "tensors", ())]


def test_what_can_not_be() -> None:
    with pytest.raises(ValueError, match="snapshot_format='q4_0': expected None or 'q8_0'"):
        build(snapshot_format="q4_0")
    with pytest.raises(ValueError, match="packed snapshots are not batch_invariant"):
        build(snapshot_format="q8_0", batch_invariant=True)
    plain = Engine(torch_foundry.patch(copy.deepcopy(shared("llama"))), snapshot_format="q8_0", requests=1, blocks=8)
    assert len(plain.submit(TEXT, GREEDY).result()) == NEW, "a model without recurrent states has no use for it"
