"""What an engine's blocks, snapshots and steps take, and how many of each a budget in bytes has room for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from torch_foundry.core import devices, memory
from torch_foundry.generation.step_graph import prompt_bytes
from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.base import KVSpec, RecurrentSpec
from torch_foundry.kvcache.formats import parse, row_width
from torch_foundry.kvcache.paged import PagedCache, PagedLayer
from torch_foundry.kvcache.room import check_blocks

if TYPE_CHECKING:
    from torch_foundry.engine.request import EngineConfig
    from torch_foundry.models.decoder import DecoderModel

SNAPSHOTS = 32  # if nobody says how many, or how many bytes
LEAST_TOKENS = 256  # of a step by default, however little memory there is


def memory_of(cache: PagedCache) -> tuple[int, int]:
    """Bytes of blocks, and of recurrent states: those of running requests, and snapshots."""
    both = [0, 0]
    for layer in cache.parts:
        if isinstance(layer, PagedLayer):
            both[0] += sum(tensor.nbytes for tensor in layer.memory)
        else:
            both[1] += layer.nbytes
    return both[0], both[1]


def token_rows(
    specs: Iterable[KVSpec | RecurrentSpec], kv_cache: Any, dtype: torch.dtype
) -> list[tuple[int, torch.dtype]]:
    """What a token takes of each layer's keys, and of its values: elements, of which dtype."""
    rows = [
        (spec.heads, row_width(head_dim, name, dtype))
        for spec in specs
        if isinstance(spec, KVSpec)
        for head_dim, name in zip(spec.head_dims, parse(kv_cache), strict=True)
    ]
    return [(heads * width, kind) for heads, (width, kind) in rows]


def block_bytes(specs: Iterable[KVSpec | RecurrentSpec], block_size: int, kv_cache: Any, dtype: torch.dtype) -> int:
    """Of a block, in all layers."""
    return block_size * sum(elements * kind.itemsize for elements, kind in token_rows(specs, kv_cache, dtype))


def snapshot_bytes(specs: Iterable[KVSpec | RecurrentSpec], dtype: torch.dtype, format: str | None = None) -> int:
    """Of a snapshot, in all layers."""
    return sum(packed_states.nbytes(spec, dtype, format) for spec in specs if isinstance(spec, RecurrentSpec))


def divided(
    config: EngineConfig, specs: Iterable[KVSpec | RecurrentSpec], dtype: torch.dtype, longest: int
) -> tuple[int, int]:
    """Blocks and snapshots of an engine for texts of up to `longest` tokens.

    Of `cache_bytes`, as many blocks as there is room for beside a snapshot for each `snapshot_every` of their tokens;
    if one number is given, the other gets what is left. ValueError: there is no room for a block and a snapshot.
    DoesNotFit: so many blocks are too large for kernels.
    """
    specs = list(specs)
    blocks, snapshots = _divided(config, specs, dtype, longest)
    for row, _ in token_rows(specs, config.kv_cache, dtype):  # before Python has lists of them
        check_blocks(blocks, config.block_size, row)
    return blocks, snapshots


def _divided(
    config: EngineConfig, specs: list[KVSpec | RecurrentSpec], dtype: torch.dtype, longest: int
) -> tuple[int, int]:
    every = config.snapshot_every
    snapshot = snapshot_bytes(specs, dtype, config.snapshot_format)
    blocks, snapshots = config.blocks, config.snapshots if snapshot else 0
    if config.cache_bytes is None:
        return config.cache_blocks(longest), SNAPSHOTS if snapshots is None else snapshots
    room, block = config.cache_bytes, block_bytes(specs, config.block_size, config.kv_cache, dtype)
    if snapshots is None and blocks is not None:
        snapshots = (room - blocks * block) // snapshot
    elif snapshots is None:
        tokens = room / (block / config.block_size + snapshot / every)
        snapshots = max(math.floor(tokens / every), 1)
    if blocks is None:
        blocks = (room - snapshots * snapshot) // block if block else math.ceil(longest / config.block_size)
    if blocks < 1 or snapshots < bool(snapshot):
        needed = f"a block of {config.block_size} tokens takes {block}, a snapshot of recurrent states {snapshot}"
        raise ValueError(f"cache_bytes={room}: no room for one of each: {needed}")
    return blocks, snapshots


def step_tokens(budget: int | None, decoder: DecoderModel, shared: bool = False) -> int:
    """Tokens of an engine's step: `budget`, or the device's own number, halved until there is room for it.

    shared: with other processes, whose devices may have another room: nothing is halved, as all take the same steps.
    DoesNotFit: there is no room for `budget`, or for `LEAST_TOKENS`.
    """
    device, tokens = decoder.device, budget
    if tokens is None:
        tokens, free = devices.of(device).step_tokens, None if shared else memory.free(device)
        while free is not None and tokens > LEAST_TOKENS and prompt_bytes(decoder, tokens) > free:
            tokens //= 2
    what = f"an engine's steps of {tokens} tokens"
    memory.check(device, prompt_bytes(decoder, tokens), what, lambda left: "A smaller budget needs less.")
    return tokens
