"""Recurrent states: which number lies where, what can be taken back, stock code, and the slots of many sequences."""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from torch_foundry.core.errors import Fallback, OutOfBlocks
from torch_foundry.kvcache.base import CapturedStep, KVSpec, RecurrentSpec
from torch_foundry.kvcache.block_manager import BlockManager
from torch_foundry.kvcache.hf_cache import kv_layer
from torch_foundry.kvcache.recurrent import SLOTS, RecurrentLayer
from torch_foundry.kvcache.state_tables import StateTables
from torch_foundry.kvcache.view import StateView

SPEC = RecurrentSpec((("conv", (4, 3), None), ("recurrent", (5,), torch.float32)))
WHERE = torch.float16, torch.device("cpu")
BATCH = 2


def step(view: StateView, values: list[list[float]]) -> list[float]:
    """What a mixer does, whose state is the sum of `values` so far, of each sequence. Returns the sums read."""
    slots, sums = view.table.shape[1], []
    for (first, tokens), table, count, new in zip(
        view.runs.tolist(), view.table, view.count.tolist(), values, strict=True
    ):
        assert tokens == len(new), first
        total = float(view.pools["recurrent"][table[count % slots]][0]) if count else 0.0
        sums.append(total)
        for t, value in enumerate(new):
            total += value
            if tokens < slots or t + 1 == tokens:
                slot = table[(count + 1 + (t if tokens < slots else 0)) % slots]
                view.pools["recurrent"][slot] = total
                view.pools["conv"][slot] = total
    return sums


def take(layer: RecurrentLayer, tokens: int, value: float = 1.0, commit: int | None = None) -> list[float]:
    view = layer.reserve(BATCH, SPEC, tokens, *WHERE)
    sums = step(view, [[value] * tokens, [10 * value] * tokens])
    layer.commit(tokens if commit is None else commit)
    return sums


def total(layer: RecurrentLayer) -> list[float]:
    """The newest state of each row."""
    return step(layer.reserve(BATCH, SPEC, 1, *WHERE), [[0.0], [0.0]])


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 40])
def test_committed_tokens_are_in_the_state(tokens: int) -> None:
    layer = RecurrentLayer()
    for count in range(1, 6):
        take(layer, tokens)
        assert total(layer) == [count * tokens, 10 * count * tokens]


@pytest.mark.parametrize("accepted", range(SLOTS))
def test_any_number_of_captured_tokens_may_count(accepted: int) -> None:
    layer = RecurrentLayer()
    take(layer, 3)
    done = 3
    for _ in range(7):
        start = torch.tensor(layer.place(SLOTS - 1), dtype=torch.int32)
        memory = layer.memory
        view = layer.captured_view(BATCH, SLOTS - 1, CapturedStep(start, start))
        assert step(view, [[1.0] * (SLOTS - 1), [10.0] * (SLOTS - 1)]) == [done, 10 * done]
        before = layer.position
        layer.commit(accepted)
        done += accepted
        assert layer.position == before + accepted and total(layer) == [done, 10 * done]
        assert all(a is b for a, b in zip(memory, layer.memory, strict=True))


@pytest.mark.parametrize("tokens", [1, 5, 8, 30])
def test_rollback(tokens: int) -> None:
    layer = RecurrentLayer()
    empty = layer.checkpoint()
    take(layer, tokens)
    layer.rollback(empty)
    assert not layer.memory and not layer.is_initialized
    layer.place(8)  # room for more states
    take(layer, 4)
    mark = layer.checkpoint()
    take(layer, tokens)
    layer.rollback(mark)
    assert total(layer) == [4, 40]
    take(layer, tokens, commit=0)  # a step that failed
    assert total(layer) == [4, 40]


def test_crop_goes_as_far_back_as_there_are_states() -> None:
    layer = RecurrentLayer()
    layer.place(8)
    take(layer, 20)
    for tokens in (1, 3, 2):
        take(layer, tokens)
    layer.crop(-4)
    assert total(layer) == [22, 220]
    with pytest.raises(RuntimeError, match="the last 2 are kept"):
        layer.crop(-3)
    layer.crop(-2)
    assert total(layer) == [20, 200]
    take(layer, 8)
    with pytest.raises(RuntimeError, match="as a number from 0 down"):
        layer.crop(1)


def test_growing_keeps_what_can_be_returned_to() -> None:
    layer = RecurrentLayer()
    take(layer, 1)
    mark = layer.checkpoint()
    take(layer, 1)
    layer.place(8)
    assert layer.memory[0].shape[0] == SLOTS and total(layer) == [2, 20]
    layer.rollback(mark)
    assert total(layer) == [1, 10]


def test_rows() -> None:
    layer = RecurrentLayer()
    take(layer, 3)
    address = layer.memory[0].data_ptr()
    layer.reorder_cache(torch.tensor([1, 0]))
    assert total(layer) == [30, 3] and layer.memory[0].data_ptr() == address
    other = copy.copy(layer)
    layer.batch_repeat_interleave(2)
    assert layer._newest("recurrent")[:, 0].tolist() == [30, 30, 3, 3] and layer.stored == (4, 0)
    layer.batch_select_indices(torch.tensor([2, 1]))
    assert total(layer) == [3, 30]
    take(other, 1)
    assert total(layer) == [3, 30] and total(other) == [31, 13]
    layer.reset()
    assert take(layer, 1) == [0, 0]


def test_what_fits() -> None:
    layer = RecurrentLayer()
    assert layer.fits(BATCH, SPEC, *WHERE) and not layer.fits(BATCH, KVSpec(2, 32), *WHERE)
    take(layer, 1)
    assert layer.fits(BATCH, SPEC, *WHERE)
    assert not layer.fits(3, SPEC, *WHERE) and not layer.fits(BATCH, SPEC, torch.float32, WHERE[1])
    layer.activate_past_recording()
    assert not layer.fits(BATCH, SPEC, *WHERE), "stock code records"


def test_lent_memory_is_used() -> None:
    old, new, other = RecurrentLayer(), RecurrentLayer(), RecurrentLayer()
    take(old, 3)
    old.place(8)
    memory = old.memory
    old.reset()
    new.use_buffer(memory)
    assert take(new, 2) == [0, 0] and all(a is b for a, b in zip(new.memory, memory, strict=True))
    other.use_buffer(memory)
    other.reserve(3, SPEC, 1, *WHERE)  # another batch
    assert other.memory[0] is not memory[0]


@pytest.mark.parametrize("record", [False, True])
def test_stock_code_sees_what_it_would_in_its_own_layer(record: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    stock, cache = LinearAttentionLayer(), DynamicCache()
    cache.layers, cache.layer_class_to_replicate = [LinearAttentionLayer()], None
    ours: Any = kv_layer(cache, 0)
    for tokens, crop in ((4 if record else 2, 0), (1, 0), (5, 3), (1, 1), (4, 4)):
        if record:
            stock.activate_past_recording()
            ours.activate_past_recording()
        assert ours.has_previous_state == stock.has_previous_state
        new = torch.randn(BATCH, 4, tokens, generator=generator)
        results = [layer.update_conv_state(new, conv_kernel_size=3) for layer in (ours, stock)]
        if not record:
            state = torch.randn(BATCH, 5, generator=generator)
            for layer in (ours, stock):
                layer.update_recurrent_state(state)
            assert torch.equal(ours.recurrent_states[0], stock.recurrent_states[0])
        assert torch.equal(*results)
        if record and ours.is_croppable and stock.conv_states[0].shape[-1] - crop >= 3:
            for layer in (ours, stock):
                layer.crop(-crop)
            assert torch.equal(ours.conv_states[0], stock.conv_states[0])
        elif not record:
            assert torch.equal(ours.conv_states[0], stock.conv_states[0])
            for layer in (ours, stock):
                layer.conv_states[0].mul_(2)  # as a kernel for one token does, in place
        else:
            ours.crop(0), stock.crop(0)
    stock.record_past = False
    again: Any = RecurrentLayer.replace_layers(stock)
    assert torch.equal(again.conv_states[0], stock.conv_states[0])


def test_stock_code_does_not_write_to_a_state_that_is_returned_to() -> None:
    layer = RecurrentLayer()
    take(layer, 3)
    mark = layer.checkpoint()
    layer.recurrent_states[0].fill_(7)
    layer.conv_states[0].fill_(7)
    layer.rollback(mark)
    assert total(layer) == [3, 30]


def test_layers_that_record_or_have_several_states_stay_stock_ones() -> None:
    several, recording = LinearAttentionLayer(number_of_states=2), LinearAttentionLayer()
    recording.activate_past_recording()
    for layer in (several, recording):
        cache = DynamicCache()
        cache.layers, cache.layer_class_to_replicate = [layer], None
        with pytest.raises(Fallback, match="cache is LinearAttentionLayer"):
            kv_layer(cache, 0)


# ------------------------------------------------------------------------------------------------------ many sequences


def test_a_prefix_is_found_as_far_as_it_has_a_state() -> None:
    manager = BlockManager(16, 4, states=StateTables(2, 3, 4, every=8))
    text = list(range(30))
    assert manager.add("a", text) == 0
    for tokens in (8, 4, 2, 1, 1):  # 14 and 15 tokens are no block's end
        assert manager.step("a", tokens) == tokens
        manager.reserve("a", tokens)
        manager.commit("a", text[manager.length("a") :][:tokens])
    assert manager.add("b", text[:15]) == 8 and manager.add("d", text[:17]) == 16, "12 tokens are near to 16"
    assert manager.add("c", text[:12]) == 8
    manager.free("b")
    assert manager.step("c", 9) == 8 and manager.step("c", 3) == 3 and manager.step("c", 1) == 1
    manager.check()


@pytest.mark.cpu_only  # the mock is a dispatch mode, under which nothing is kept
def test_layers_share_what_their_views_have_in_common() -> None:
    """Each copy to a GPU makes it wait, so a prompt has as many as a layer, not as many as all of them."""
    first, second = (RecurrentLayer().reserve(BATCH, SPEC, 100, *WHERE) for _ in range(2))
    for name in ("runs", "table", "count"):
        ours, other = getattr(first, name), getattr(second, name)
        assert ours.data_ptr() == other.data_ptr() and ours.shape == other.shape, name
    longer = RecurrentLayer().reserve(BATCH, SPEC, 101, *WHERE)
    assert longer.runs.tolist() == [[0, 101], [101, 101]] and first.runs.tolist() == [[0, 100], [100, 100]]


def test_random_sequences() -> None:
    """Against a model of it: a state is the list of the tokens before it."""
    random.seed(0)
    tables = StateTables(3, 4, 3, every=8)
    manager = BlockManager(24, 4, states=tables)
    slots: list[tuple[int, ...]] = [()] * tables.slots
    texts: dict[int, list[int]] = {}
    reused = preempted = 0
    for name in range(400):
        if len(texts) == 3 or (texts and random.random() < 0.2):
            manager.free(texts and random.choice(list(texts)))
            texts = {n: t for n, t in texts.items() if n in manager}
        text = [random.randrange(2) for _ in range(random.randrange(1, 24))]
        length = manager.add(name, text)
        reused += length
        texts[name] = text[:length]
        queue = deque(text[length:])
        for _ in range(6):
            n, own = random.choice(list(texts.items()))
            wanted = random.choice([1, 1, 2, 3, 9])
            new = [queue.popleft() if n == name and queue else random.randrange(2) for _ in range(wanted)]
            tokens = manager.step(n, len(new))
            try:
                manager.reserve(n, tokens)
            except OutOfBlocks:
                manager.free(n)
                del texts[n]
                preempted += 1
                break
            count, *ring = tables.row(n)
            state = slots[ring[count % 4]] if count else ()
            assert state == tuple(own), "another state than the sequence's"
            for t in range(tokens):
                state = (*state, new[t])
                if tokens < 4 or t + 1 == tokens:
                    slots[ring[(count + 1 + (t if tokens < 4 else 0)) % 4]] = state
            accepted = random.randrange(1, tokens + 1) if tokens < 4 else tokens
            manager.commit(n, new[:accepted])
            own += new[:accepted]
            if random.random() < 0.1 and own:
                left = manager.crop(n, max(0, len(own) - random.randrange(3)))
                del own[left:]
            manager.check()
            tables.check()
            if n not in texts:
                break
    assert reused > 100 and preempted
    for name in texts:
        manager.free(name)
    manager.forget()
    assert len(tables._free) == tables.slots


def test_more_sequences_than_there_are_slots() -> None:
    tables = StateTables(1, 2, 0)
    for name in "ab":
        tables.add(name, ())
        tables.reserve(name, 1) if name == "a" else None
        tables.commit(name, 1) if name == "a" else None
    tables.reserve("a", 1)
    with pytest.raises(OutOfBlocks, match="recurrent states"):
        tables.reserve("b", 1)
