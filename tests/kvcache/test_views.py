"""What others may do with our layers: look at keys, copy layers, take rows by anything that fits in brackets, crop."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

from tests.hf.tiny_models import config
from tests.kvcache.test_layer import WINDOWS, assert_same, layers, states, write
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.hf_cache import new_cache
from torch_foundry.kvcache.paged import PagedCache


def test_a_crop_that_the_window_would_miss_is_refused() -> None:
    """Transformers' own layer would go on with fewer tokens than the next one sees."""
    generator = torch.Generator().manual_seed(0)
    _, ours = layers(5)
    ours.update(*states(generator, 1, 20))
    ours.activate_past_recording()
    ours.update(*states(generator, 1, 3))
    with pytest.raises(RuntimeError, match="of 23 tokens the last 7 are stored; 4 less would leave fewer than the 4"):
        ours.crop(-4)
    assert ours.get_seq_length() == 23 and ours.keys.shape[2] == 7
    ours.crop(-3)
    assert ours.get_seq_length() == 20 and ours.keys.shape[2] == 4


def test_crops_by_positive_numbers() -> None:
    """An error of transformers', and in its words."""
    generator = torch.Generator().manual_seed(0)
    k, v = states(generator, 1, 8)
    for window in (None, 20):
        results, paged = [], PagedCache(config("LlamaConfig"), 4)
        for layer in (*layers(window), paged.layers[0]):
            layer.update(k, v)
            with pytest.raises(ValueError) as refused:
                layer.crop(3)
            results.append(str(refused.value))
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("then", ["update", "reserve", "place", "reorder", "select", "move"])
def test_what_was_read_never_changes(window: int | None, then: str) -> None:
    """Transformers' layers make new tensors; ours leave memory that somebody has a view of."""
    generator = torch.Generator().manual_seed(0)
    _, ours = layers(window)
    if window is not None:
        ours.activate_past_recording()
    shown = [*ours.update(*states(generator, 2, 9)), ours.keys, ours.values]
    before = [x.clone() for x in shown]
    assert all(x is not None for x in shown)
    if then == "reorder":
        ours.reorder_cache(torch.tensor([1, 0]))
    elif then == "select":
        ours.batch_select_indices(torch.tensor([1, 1]))
    elif then == "move":
        ours.keys, ours.values = ours.keys[:, :, 5:], ours.values[:, :, 5:]
        ours._keys.to_front(), ours._values.to_front()
    else:
        ours.crop(-2)
        k, v = states(generator, 2, 2)
        if then == "update":
            ours.update(k, v)
        elif then == "reserve":
            write(ours, k, v)
        else:
            start, _ = ours.place(2)
            for buffer, new in zip(ours.memory, (k, v), strict=True):
                buffer[:, :, start : start + 2] = new
            ours.commit(2)
        assert torch.equal(ours.keys[:, :, -2:], k) and torch.equal(ours.values[:, :, -2:], v)
    for x, kept in zip(shown, before, strict=True):
        assert torch.equal(x, kept)


def test_appending_stays_in_place_after_a_look() -> None:
    generator = torch.Generator().manual_seed(0)
    _, ours = layers(None)
    write(ours, *states(generator, 2, 9))
    address = ours.memory[0].data_ptr()
    for _ in range(20):
        assert ours.keys.shape[2] == ours.get_seq_length()
        write(ours, *states(generator, 2, 1))
    assert ours.memory[0].data_ptr() == address


@pytest.mark.parametrize("window", WINDOWS)
def test_copies_go_their_own_ways(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    both = layers(window)
    first, second, third = (states(generator, 2, n) for n in (6, 3, 4))
    for layer in both:
        layer.update(*first)
    copies = [copy.copy(layer) for layer in both]
    for layer in both:
        layer.update(*second)
    for layer in copies:
        layer.update(*third)
        layer.reorder_cache(torch.tensor([1, 0]))
    assert_same(both[1], both[0])
    assert_same(copies[1], copies[0])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("first", ["copy", "original"])
def test_copies_whose_memory_nobody_has_seen(window: int | None, first: str) -> None:
    """Whichever changes first, the other has what was stored."""
    generator = torch.Generator().manual_seed(0)
    _, original = layers(window)
    k, v = states(generator, 2, 6)
    view = original.reserve(2, KVSpec(*k.shape[1::2]), 6, k.dtype, k.device)
    view.k[:], view.v[:] = k, v
    original.commit(6)
    other = copy.copy(original)
    before = [original._keys.last(6).clone(), original._values.last(6).clone()]
    changed, kept = (other, original) if first == "copy" else (original, other)
    changed.reorder_cache(torch.tensor([1, 0]))
    assert torch.equal(kept.keys, before[0]) and torch.equal(kept.values, before[1])
    assert torch.equal(changed.keys, before[0].flip(0))


def test_a_crop_to_less_than_a_window() -> None:
    """Where all tokens are still stored."""
    generator = torch.Generator().manual_seed(0)
    both = layers(5)
    k, v = states(generator, 2, 8)
    for layer in both:
        layer.update(k[:, :, :3], v[:, :, :3])
        layer.activate_past_recording()
        layer.update(k[:, :, 3:], v[:, :, 3:])
        layer.crop(-6)
    assert_same(both[1], both[0])
    assert both[1].get_seq_length() == 2


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(
    "rows", [torch.tensor([False, True, False, False]), torch.tensor([True, False, True, True]), [2, 0], slice(1, 3)]
)
def test_rows_by_mask_list_and_slice(paged: bool, rows: Any) -> None:
    """What may stand in brackets."""
    generator = torch.Generator().manual_seed(0)
    k, v = states(generator, 4, 3)
    for cache in (DynamicCache(), PagedCache(config("LlamaConfig"), 8) if paged else new_cache(config("LlamaConfig"))):
        cache.update(k, v, 0)
        cache.batch_select_indices(rows)
        assert torch.equal(cache.layers[0].keys, k[rows]) and torch.equal(cache.layers[0].values, v[rows])
