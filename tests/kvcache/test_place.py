"""Room for code that writes to a layer's memory by itself: what is stored stays, addresses too where they can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from torch_foundry.kvcache.layer import FoundryLayer, FoundrySlidingLayer

HEADS, DIM, WINDOW = 2, 4, 40


def tokens(first: int, count: int, batch: int = 2) -> torch.Tensor:
    """Token t holds t, plus a tenth of its row."""
    values = torch.arange(first, first + count).float()[None, :] + 0.1 * torch.arange(batch)[:, None]
    return values[:, None, :, None].expand(batch, HEADS, count, DIM).contiguous()


def layer(kind: str, stored: int) -> FoundryLayer | FoundrySlidingLayer:
    made = FoundryLayer() if kind == "full" else FoundrySlidingLayer(sliding_window=WINDOW)
    made.update(tokens(0, stored), -tokens(0, stored))
    return made


def write(made: FoundryLayer | FoundrySlidingLayer, count: int) -> tuple[int, int]:
    """What a graph does: write behind the end, then count."""
    seen = made.get_seq_length()
    start, shift = made.place(count)
    assert start + shift == seen
    keys, values = made.memory
    assert keys is not None and values is not None and keys.shape[2] >= start + count
    keys[:, :, start : start + count] = tokens(seen, count)
    values[:, :, start : start + count] = -tokens(seen, count)
    made.commit(count)
    return start, shift


@pytest.mark.parametrize("kind", ["full", "sliding"])
@pytest.mark.parametrize("step", [1, 7, 64])
def test_what_is_written_is_stored(kind: str, step: int) -> None:
    made = layer(kind, 30)
    stock = DynamicLayer() if kind == "full" else DynamicSlidingWindowLayer(sliding_window=WINDOW)
    stock.update(tokens(0, 30), -tokens(0, 30))
    addresses = set()
    for start in range(30, 600, step):
        write(made, step)
        stock.update(tokens(start, step), -tokens(start, step))
        assert made.get_seq_length() == stock.get_seq_length()
        ours = [b.last(b.length) for b in (made._keys, made._values)]  # what is looked at by `keys` never changes
        assert torch.equal(ours[0], stock.keys) and torch.equal(ours[1], stock.values)
        addresses.add(made.memory[0].data_ptr())
    # doubling from 128 tokens; a window moves to the front of its buffer instead
    assert len(addresses) <= (4 if kind == "full" else 2)


def test_what_is_not_counted_is_not_there() -> None:
    for kind in ("full", "sliding"):
        made = layer(kind, 60)
        before = made.keys.clone()
        start, _ = made.place(20)
        made.memory[0][:, :, start : start + 20] = 7
        assert torch.equal(made.keys, before) and made.get_seq_length() == 60
        made.commit(3)
        assert made.get_seq_length() == 63


def test_nothing_older_is_seen_after_a_crop() -> None:
    """A layer that holds fewer tokens than its window starts at the front: kernels see all that lies before."""
    made = layer("sliding", 10)
    made.keys, made.values = made.keys[:, :, 4:], made.values[:, :, 4:]
    made.cumulative_length = 6
    start, shift = made.place(1)
    assert (start, shift) == (6, 0)
    assert torch.equal(made.memory[0][:, :, :6], tokens(4, 6))
    full = layer("full", 10)
    full.keys, full.values = full.keys[:, :, 4:], full.values[:, :, 4:]
    assert full.place(1) == (6, 0)
    assert torch.equal(full.memory[0][:, :, :6], tokens(4, 6))


class NoOverlap(TorchDispatchMode):
    """A copy may not read memory that it writes to elsewhere: on a GPU nobody knows which comes first."""

    copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.copies += 1
            to, source = args[:2]
            if to.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
                written = {x for row in addresses(to) for x in row}
                assert not written & {x for row in addresses(source) for x in row}
        return func(*args, **(kwargs or {}))


def addresses(x: torch.Tensor) -> list[list[int]]:
    """Where each element lies, in elements."""
    index = torch.arange(x.untyped_storage().nbytes() // x.itemsize)
    return index.as_strided(x.shape, x.stride(), x.storage_offset()).flatten(1).tolist()


@pytest.mark.parametrize("gap", [1, 3, 6])
def test_moving_to_the_front_copies_nothing_onto_itself(gap: int) -> None:
    for kind in ("sliding", "full"):
        made = layer(kind, 10)
        for buffer in (made._keys, made._values):
            buffer.first, buffer.length = gap, 10 - gap  # as a crop leaves it, and nobody has looked
        made.cumulative_length = 10 - gap
        with NoOverlap() as seen:
            for buffer in (made._keys, made._values):
                buffer.shown = 0
                buffer.to_front()
        assert seen.copies >= 2
        assert made._keys.first == 0 and torch.equal(made._keys.last(10 - gap), tokens(gap, 10 - gap))


def test_assigned_tensors_are_never_written_to() -> None:
    for change in ("write", "reorder"):
        theirs = tokens(0, 12)
        before = theirs.clone()
        made = FoundryLayer()
        made.update(tokens(0, 1), tokens(0, 1))
        made.keys, made.values = theirs, theirs.clone()
        made.keys, made.values = made.keys[:, :, :9], made.values[:, :, :9]  # there would be room for three
        if change == "write":
            write(made, 2)
        else:
            made.reorder_cache(torch.tensor([1, 0]))
        assert torch.equal(theirs, before)
        assert made.get_seq_length() == (11 if change == "write" else 9)


def test_rows_are_reordered_in_place() -> None:
    for kind in ("full", "sliding"):
        made = layer(kind, 60)
        stored = made.keys.clone()
        made.reorder_cache(torch.tensor([0, 1]))  # somewhere else: it was just looked at
        address = made.memory[0].data_ptr()
        made.reorder_cache(torch.tensor([1, 1]))
        assert made.memory[0].data_ptr() == address
        assert torch.equal(made.keys, stored[[1, 1]])
        made.batch_select_indices(torch.tensor([0]))
        assert made.keys.shape[0] == 1
        made.batch_repeat_interleave(3)
        assert made.keys.shape[0] == 3


def test_keys_and_values_that_were_assigned_apart() -> None:
    made = layer("full", 10)
    made.keys = made.keys[:, :, 3:]
    made.values = made.values[:, :, 3:].clone()
    assert made.place(5) == (7, 0)
    made.keys = made.keys[:, :, 1:]
    with pytest.raises(RuntimeError, match="6 keys but 7 values"):
        made.place(1)


def test_inference_tensors_are_copied_before_they_are_written_to() -> None:
    with torch.inference_mode():
        made = layer("full", 10)
        made.place(1)
        inside = made.memory[0].data_ptr()
    made.place(1)
    assert made.memory[0].data_ptr() != inside and not made.memory[0].is_inference()
    assert torch.equal(made.keys, tokens(0, 10))
