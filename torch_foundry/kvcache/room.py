"""What the memory of a cache grows to, and whether the device has room: asked of all layers before one grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_foundry.core import devices, memory
from torch_foundry.kvcache.base import CacheLayer, RecurrentSpec

LARGEST = 2**31 - 1  # elements of a buffer (bytes, if it is packed): kernels index with 32 bits
MOST_STATES = 2**24  # recurrent states of an engine, of which Python has lists
CAPACITY_STEP = 128  # tokens; kernels that walk the cache in tiles never see a smaller allocation
ADVICE = 'a shorter prompt, fewer rows or patch(model, kv_cache="q8_0") needs less'


def round_up(tokens: int) -> int:
    """To what is allocated at a time."""
    return -(-tokens // CAPACITY_STEP) * CAPACITY_STEP


def capacity(needed: int, wanted: int, row: int, limit: int | None) -> int:
    """Tokens to allocate, of `row` elements each: those that are wanted, as far as a buffer may have so many."""
    most = LARGEST // row
    if limit is not None and needed > limit:
        raise RuntimeError(f"KV cache: no room for {needed} tokens: it was made for at most {limit}")
    if needed > most:
        raise RuntimeError(
            f"KV cache: no room for {needed} tokens: a layer's keys or values have at most 2^31-1 elements, of which a "
            f"token of this batch takes {row}, so {most} tokens fit"
        )
    return min(round_up(wanted), most, most if limit is None else limit)


def check_growth(
    layers: Sequence[tuple[CacheLayer, Any]],
    batch: int,
    tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    workspace: Callable[[int], int] = lambda tokens: 0,
) -> None:
    """DoesNotFit unless `device` has room for `tokens` more of each of `batch` rows in all `layers`, each with what its
    mixer keeps. Where there is no room to grow as layers would like to, they are told to grow by what is needed.

    workspace: bytes that computing so many tokens takes besides.
    """
    if devices.of(device).host_memory or (left := memory.free(device)) is None:
        return
    for tight in (False, True):
        for layer, _ in layers:
            layer.tight = tight
        needed = _growth(layers, batch, tokens, dtype)
        extra = workspace(tokens)
        if needed + extra <= left:
            return
    least, most = 0, tokens - 1
    while least < most:  # the most tokens that fit
        middle = (least + most + 1) // 2
        fits = _growth(layers, batch, middle, dtype) + workspace(middle) <= left
        least, most = (middle, most) if fits else (least, middle - 1)
    seen = max((layer.seen or 0 for layer, _ in layers), default=0)
    what = f"{tokens} token{'s'[: tokens > 1]}{f' behind {seen}' if seen else ''}"
    more = f" and {memory.size(extra)} to compute with" if extra else ""
    what = f"{what} of {batch} row{'s'[: batch > 1]} (KV cache: {memory.size(needed)}{more})"
    memory.refuse(device, needed + extra, left, what, f"{seen + least} tokens a row would fit; {ADVICE}.")


def _growth(layers: Sequence[tuple[CacheLayer, Any]], batch: int, tokens: int, dtype: torch.dtype) -> int:
    return sum(layer.growth(batch, spec, tokens, dtype) for layer, spec in layers) if tokens else 0


def check_blocks(blocks: int, size: int, row: int = 1) -> None:
    """DoesNotFit if a layer's keys or values in so many blocks of `size` tokens, of `row` elements each, are too large
    for kernels. row: at least that many, where nobody knows yet."""
    if blocks > (most := LARGEST // (size * row)):
        raise memory.DoesNotFit(
            f"KV cache: no room for {blocks} blocks of {size} tokens: a layer's keys or values have at most 2^31-1 "
            f"elements, of which a token takes {row}, so {most} blocks fit"
        )


def check_states(sequences: int, ring: int, snapshots: int) -> None:
    """DoesNotFit if `ring` recurrent states of each of `sequences` sequences, and snapshots, are too many."""
    if sequences * ring + snapshots > MOST_STATES:
        raise memory.DoesNotFit(
            f"recurrent states: no room for {sequences} requests with {ring} each (ahead + 1 at least) and {snapshots} "
            f"snapshots: an engine has at most {MOST_STATES} states"
        )


def check_pools(
    layers: Sequence[tuple[CacheLayer, Any]], blocks: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    """DoesNotFit unless `device` has room for the pools of `layers`, which have `blocks` blocks of `size` tokens."""
    fixed = _growth([each for each in layers if isinstance(each[1], RecurrentSpec)], 0, 1, dtype)
    pages = _growth([each for each in layers if not isinstance(each[1], RecurrentSpec)], 0, 1, dtype)

    def fits(left: int) -> str:
        fitting = max(left - fixed, 0) * blocks // max(pages, 1)
        if not fitting:
            return "Not one block would fit; fewer requests or snapshots need less."
        return f'blocks={fitting} would fit, which are {fitting * size} tokens; kv_cache="q8_0" needs about half.'

    memory.check(device, fixed + pages, f"the cache of an engine, {blocks} blocks of {size} tokens", fits)
