"""Our cache layers against transformers' own: the same calls give the same keys, values, lengths and masks."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from torch_foundry.core.errors import Fallback
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.buffer import GrowingBuffer
from torch_foundry.kvcache.formats import PLAIN, Formats, decoded, encoded
from torch_foundry.kvcache.hf_cache import kv_layer
from torch_foundry.kvcache.layer import FoundryLayer, FoundrySlidingLayer
from torch_foundry.kvcache.room import CAPACITY_STEP

HEADS, DIM = 2, 32
WINDOWS = [None, 2, 5, 130]


def states(generator: torch.Generator, batch: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = torch.randn(2, batch, HEADS, tokens, DIM, generator=generator)
    return k, v


def layers(window: int | None, formats: Formats = PLAIN) -> tuple[DynamicLayer, FoundryLayer | FoundrySlidingLayer]:
    if window is None:
        return DynamicLayer(), FoundryLayer(formats=formats)
    ours = FoundrySlidingLayer(sliding_window=window, formats=formats)
    return DynamicSlidingWindowLayer(sliding_window=window), ours


def through(x: torch.Tensor, name: str | None) -> torch.Tensor:
    """What is left of `x` once it was stored."""
    return x if name is None else decoded(encoded(x, name), name, x.dtype)


def enumerate_formats() -> list[tuple[Formats, int]]:
    return [(("q8_0", "q8_0"), 0), (("q8_0", "q4_0"), 1), (("q4_0", None), 2), (("f16", "bf16"), 3)]


SEQUENCES = [
    pytest.param(formats, seed, marks=[pytest.mark.cpu_only] if seed in range(1, 5) else [])
    for formats, seed in [*((PLAIN, seed) for seed in range(6)), *enumerate_formats()]
]


def write(layer: Any, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the fused layer does in place of `update`."""
    batch, heads, tokens, dim = k.shape
    assert layer.fits(batch, KVSpec(heads, dim), k.dtype, k.device)
    expected = layer.visible(tokens)
    view = layer.reserve(batch, KVSpec(heads, dim), tokens, k.dtype, k.device)
    for cache, new, buffer in ((view.k, k, layer._keys), (view.v, v, layer._values)):
        cache[:, :, view.start(tokens) :] = new if buffer.format is None else encoded(new, buffer.format)
    assert view.kv_len == expected == view.k.shape[2] == view.v.shape[2]
    layer.commit(tokens)
    return layer._keys.outside(view.k), layer._values.outside(view.v)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    assert ours.get_max_length() == theirs.get_max_length()
    if theirs.get_seq_length():
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
    for tokens in (1, 3):
        assert ours.get_mask_sizes(tokens) == theirs.get_mask_sizes(tokens)


@pytest.mark.parametrize("fused", [False, True], ids=["update", "reserve"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("formats, seed", SEQUENCES, ids=str)
def test_any_sequence_of_calls(window: int | None, fused: bool, formats: Formats, seed: int) -> None:
    """Packed layers are like stock ones that were given what packing leaves."""
    generator = torch.Generator().manual_seed(seed)
    theirs, ours = layers(window, formats)
    batch, recording = 2, False

    def pick(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    def step(tokens: int) -> None:
        k, v = states(generator, batch, tokens)
        expected = theirs.update(through(k, formats[0]), through(v, formats[1]))
        for found, want in zip(write(ours, k, v) if fused else ours.update(k, v), expected, strict=True):
            assert torch.equal(found, want)

    step(1 + pick(20))
    for _ in range(150):
        action = pick(12)
        if action < 6:
            step(1 + pick(4) + (70 if action == 0 else 0))
            if recording:  # as in generation: each step ends with a crop
                back = -pick(2)
                theirs.crop(back), ours.crop(torch.tensor(back))
        elif action == 6 and window is None:
            back = -pick(3)
            if theirs.get_seq_length() > 3:
                theirs.crop(back), ours.crop(back)
        elif action == 7 and window is not None and not recording:
            theirs.activate_past_recording(), ours.activate_past_recording()
            recording = True
        elif action == 8:
            order = torch.randint(batch, (batch,), generator=generator)
            theirs.reorder_cache(order), ours.reorder_cache(order)
        elif action == 9:
            chosen = torch.tensor([0, batch - 1])
            theirs.batch_select_indices(chosen), ours.batch_select_indices(chosen)
            batch = 2
        elif action == 10 and batch < 4:
            theirs.batch_repeat_interleave(2), ours.batch_repeat_interleave(2)
            batch *= 2
        elif action == 11:
            theirs.offload(), ours.offload(), theirs.prefetch(), ours.prefetch()
            if pick(3) == 0:
                ours = copy.deepcopy(ours) if pick(2) else pickle.loads(pickle.dumps(ours))
        assert_same(ours, theirs)


@pytest.mark.parametrize("window", WINDOWS)
def test_reset(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    _, ours = layers(window)
    write(ours, *states(generator, 2, 9))
    ours.reset()
    assert ours.get_seq_length() == 0 and not ours.is_initialized and ours.keys is None
    k, v = states(generator, 3, 4)
    assert torch.equal(write(ours, k, v)[0], k), "another batch size is fine now"


def test_crop_behind_the_window_is_refused_as_by_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    for layer in layers(5):
        layer.update(*states(generator, 1, 8))
        with pytest.raises(RuntimeError, match="does not track past states"):
            layer.crop(-1)


def test_growth_is_geometric() -> None:
    buffer, allocations, seen = GrowingBuffer(), 0, None
    for _ in range(2000):
        buffer.append(torch.zeros(1, 1, 1, 4))
        allocations += buffer.data is not seen
        seen = buffer.data
    assert buffer.capacity % CAPACITY_STEP == 0
    assert allocations <= 6


def test_window_does_not_grow() -> None:
    generator = torch.Generator().manual_seed(0)
    _, ours = layers(130)
    for _ in range(40):
        write(ours, *states(generator, 1, 37))
    assert ours._keys.capacity <= 3 * CAPACITY_STEP


@pytest.mark.parametrize("way", ["update", "reserve", "place"])
def test_a_window_gives_up_the_memory_of_a_prompt(way: str) -> None:
    """Also when room was made for many tokens to come, as generate() does."""
    generator = torch.Generator().manual_seed(0)
    theirs, ours = layers(130)
    ours._keys.spare = ours._values.spare = 5000
    k, v = states(generator, 2, 3000)
    write(ours, k, v), theirs.update(k, v)
    assert ours._keys.capacity >= 3000
    for tokens in (1, 7, 200, 1, *[60] * 10):
        k, v = states(generator, 2, tokens)
        if way == "update":
            ours.update(k, v)
        elif way == "reserve":
            write(ours, k, v)
        else:
            start, _ = ours.place(tokens)
            for buffer, new in zip(ours.memory, (k, v), strict=True):
                buffer[:, :, start : start + tokens] = new
            ours.commit(tokens)
        theirs.update(k, v)
        assert_same(ours, theirs)
        assert ours._keys.capacity <= 5 * 130 + CAPACITY_STEP


def test_assignments_from_outside() -> None:
    """In any order; and what was assigned is never written to."""
    generator = torch.Generator().manual_seed(0)
    theirs, ours = layers(None)
    given = states(generator, 2, 7)
    kept = [t.clone() for t in given]
    for layer in (theirs, ours):
        layer.update(*states(generator.manual_seed(1), 2, 12))
        layer.keys, layer.values = given
        layer.update(*states(generator.manual_seed(2), 2, 3))
    assert_same(ours, theirs)
    assert all(torch.equal(a, b) for a, b in zip(given, kept, strict=True))
    for layer in (theirs, ours):
        layer.keys = layer.keys[:, :, 1:]
        layer.values = layer.values[:, :, 1:]
    k, v = states(generator.manual_seed(3), 2, 2)
    assert torch.equal(write(ours, k, v)[0], theirs.update(k, v)[0])
    ours.keys = ours.keys[:, :, :-1]
    with pytest.raises(RuntimeError, match="10 keys but 11 values"):
        ours.reserve(2, KVSpec(HEADS, DIM), 1, torch.float32, torch.device("cpu"))


def test_update_differentiates_promotes_and_raises_like_cat() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = states(generator, 1, 3), states(generator, 1, 2)
    for layer in layers(None):
        layer.update(*first)
        keys = second[0].clone().requires_grad_()
        layer.update(keys, second[1])[0].sum().backward()
        assert torch.equal(keys.grad, torch.ones_like(keys))
        assert layer.update(second[0].double(), second[1].double())[0].dtype == torch.float64
        with pytest.raises(RuntimeError, match="must match"):
            layer.update(*states(generator, 2, 1))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("tokens", [0, 4, 140])
def test_adoption_keeps_the_contents(window: int | None, tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    theirs, _ = layers(window)
    if tokens:
        theirs.update(*states(generator, 2, tokens))
    cache = DynamicCache()
    cache.layers = [copy.deepcopy(theirs)]
    ours = kv_layer(cache, 0)
    assert cache.layers[0] is ours and kv_layer(cache, 0) is ours
    assert_same(ours, theirs)
    k, v = states(generator, 2, 3)
    assert torch.equal(write(ours, k, v)[0], theirs.update(k, v)[0])


@pytest.mark.parametrize("window", [None, 5, 130])
@pytest.mark.parametrize("then", ["reorder", "select", "crop", "append"])
def test_adopted_tensors_stay_the_callers(window: int | None, then: str) -> None:
    """Whoever made a cache may hold on to its tensors, as transformers' own layers never write to them."""
    generator = torch.Generator().manual_seed(0)
    stock, _ = layers(window)
    stock.update(*states(generator, 2, 3))
    held = [stock.keys, stock.values]
    before = [x.clone() for x in held]
    cache = DynamicCache()
    cache.layers.append(stock)
    ours: Any = kv_layer(cache, 0)
    if then == "reorder":
        ours.reorder_cache(torch.tensor([1, 0]))
    elif then == "select":
        ours.batch_select_indices(torch.tensor([1, 1]))
    elif then == "crop":
        ours.crop(-1)
        write(ours, *states(generator, 2, 1))
    else:
        start, _ = ours.place(1)
        for buffer, new in zip(ours.memory, states(generator, 2, 1), strict=True):
            buffer[:, :, start : start + 1] = new
        ours.commit(1)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    assert all(x.data_ptr() not in [b.data_ptr() for b in held] for x in ours.memory)


def test_what_is_not_adopted() -> None:
    class Custom(DynamicCache):
        """Anything may be different in it."""

    with pytest.raises(Fallback, match="Custom"):
        kv_layer(Custom(), 0)
    with pytest.raises(Fallback, match="list"):
        kv_layer([], 0)
    cache = DynamicCache()
    cache.layers = [DynamicSlidingWindowLayer(sliding_window=1)]
    with pytest.raises(Fallback, match="DynamicSlidingWindowLayer"):
        kv_layer(cache, 0)
    offloaded = DynamicCache()
    offloaded.offloading = True  # its layers come and go
    with pytest.raises(Fallback, match="offloaded DynamicCache"):
        kv_layer(offloaded, 0)
    prefix = DynamicCache()
    k, v = states(torch.Generator().manual_seed(0), 1, 3)
    prefix.update(k.requires_grad_(), v, 0)
    with pytest.raises(Fallback, match="DynamicLayer"):
        kv_layer(prefix, 0)
    window = DynamicCache()
    window.layers = [DynamicSlidingWindowLayer(sliding_window=9)]
    window.update(k, v, 0)
    with pytest.raises(Fallback, match="DynamicSlidingWindowLayer"):
        kv_layer(window, 0)
    with torch.no_grad():  # nobody will differentiate
        write(kv_layer(prefix, 0), k, v)
        write(kv_layer(window, 0), k, v)
    assert not prefix.layers[0].keys.requires_grad
    assert kv_layer(DynamicCache(), 3).get_seq_length() == 0, "layers are made as they are asked for"
