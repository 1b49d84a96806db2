"""Attention: of few queries (sdpa_vector), in one pass, two passes and what joins them; of many, in tiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.aten.types import KINDS, numbers
from tests.air.case import TYPE, Buffer, Case, normal

FEW = re.compile(r"sdpa_vector_(2pass_1_)?(float|half|bfloat)_(\d+)_(\d+)_mask(none|bool|\w+?)(_causal)?")
JOINED = re.compile(r"sdpa_vector_2pass_2_(float|half|bfloat)_(\d+)")
TILED = re.compile(
    rf"prefill_attention_({TYPE})_bq(\d+)_bk(\d+)_bd(\d+)_wm(\d+)_wn(\d+)_hm([01])_dc([01])_mask({TYPE})"
)
SOURCES = "ATen/native/mps/kernels/DecodeAttention.h", "ATen/native/mps/kernels/PrefillAttention.h"
BATCH, HEADS, KV_HEADS, BLOCKS = 2, 4, 2, 32
FEW_QUERIES, QUERIES, KEYS = 3, 45, 70


def case(name: str) -> Case | None:
    if found := JOINED.fullmatch(name):
        kind, width = found.groups()
        return _case(name, 0, partial(_partials, KINDS[kind], int(width)), (HEADS, FEW_QUERIES, 1), (1024, 1, 1))
    if found := FEW.fullmatch(name):
        passes, kind, width, values, mask, _ = found.groups()
        buffers = partial(_few, KINDS[kind], int(width), int(values), KINDS.get(mask, ""), bool(passes))
        grid = (BATCH * HEADS, FEW_QUERIES, BLOCKS if passes else 1)
        return _case(name, 0, buffers, grid, (256 if passes else 1024, 1, 1))
    if found := TILED.fullmatch(name):
        kind, bq, _, width, wm, wn, masked, _, mask = found.groups()
        buffers = partial(_tiles, kind, int(width), mask if masked == "1" else "")
        return _case(name, 1, buffers, (-(-QUERIES // int(bq)), HEADS, BATCH), (32 * int(wm) * int(wn), 1, 1))
    return None


def _case(name: str, source: int, buffers: partial[Mapping[int, Buffer]], grid: tuple[int, ...],
          group: tuple[int, ...]) -> Case:  # fmt: skip
    return Case(name, SOURCES[source], "", buffers, grid, group, threads=False, project="torch")


def _few(kind: str, width: int, values: int, mask: str, passes: bool) -> Mapping[int, Buffer]:
    rows = BATCH * HEADS * FEW_QUERIES
    parts = [
        normal(kind, rows * width, 1),
        normal(kind, BATCH * KV_HEADS * KEYS * width, 2),
        normal(kind, BATCH * KV_HEADS * KEYS * values, 3),
        Buffer.poisoned(kind, rows * values * (BLOCKS if passes else 1)),
    ]
    if passes:
        parts += [Buffer.poisoned("float32", rows * BLOCKS)] * 2
    parts += [
        Buffer.of(HEADS // KV_HEADS, "uint32"),
        Buffer.of(KEYS, "uint32"),
        numbers("uint32", FEW_QUERIES * width, KEYS * width, KEYS * values, 0),
        numbers("uint32", width, width, values, 0),
        Buffer.of(float(1 / np.sqrt(width)), "float32"),
        _mask(mask, FEW_QUERIES) if mask else Buffer.of(0, kind),
        numbers("uint32", 1, KEYS, FEW_QUERIES * KEYS, HEADS * FEW_QUERIES * KEYS),
        numbers("uint32", HEADS * FEW_QUERIES * width, KV_HEADS * KEYS * width, KV_HEADS * KEYS * values, HEADS),
    ]
    return dict(enumerate(parts))


def _mask(kind: str, queries: int) -> Buffer:
    """Of numbers, some are minus infinity; of truths, a row has none."""
    count = BATCH * HEADS * queries * KEYS
    hidden = np.random.default_rng(7).random((BATCH * HEADS * queries, KEYS)) < 0.3
    hidden[1] = True
    if kind == "bool_":
        return Buffer((~hidden).astype(np.uint8).ravel(), kind)
    minus = {"float32": np.float32(-np.inf), "float16": np.float16(-np.inf), "bfloat16": np.uint16(0xFF80)}[kind]
    return Buffer(np.where(hidden.ravel(), minus, normal(kind, count, 4).array), kind)


def _partials(kind: str, width: int) -> Mapping[int, Buffer]:
    rows = HEADS * FEW_QUERIES
    sums = np.abs(normal("float32", rows * BLOCKS, 2).array) + 1
    return {0: normal(kind, rows * BLOCKS * width, 1), 1: Buffer(sums, "float32"),
            2: normal("float32", rows * BLOCKS, 3), 3: Buffer.poisoned(kind, rows * width)}  # fmt: skip


def _tiles(kind: str, width: int, mask: str) -> Mapping[int, Buffer]:
    def strides(heads: int, length: int) -> list[int]:
        return [heads * length * width, length * width, width]

    sizes = np.array([BATCH, HEADS, width, QUERIES, KEYS, HEADS // KV_HEADS], np.int32).tobytes()
    scales = np.array([1 / np.sqrt(width), 1], np.float32).tobytes()
    steps = strides(HEADS, QUERIES) + 2 * strides(KV_HEADS, KEYS) + strides(HEADS, QUERIES)
    params = np.frombuffer(sizes + scales + np.array(steps, np.int32).tobytes(), np.uint8)
    return {
        0: normal(kind, BATCH * HEADS * QUERIES * width, 1),
        1: normal(kind, BATCH * KV_HEADS * KEYS * width, 2),
        2: normal(kind, BATCH * KV_HEADS * KEYS * width, 3),
        3: Buffer.poisoned(kind, BATCH * HEADS * QUERIES * width),
        4: Buffer(params, "uint8"),
        5: numbers("int32", HEADS * QUERIES * KEYS, QUERIES * KEYS, KEYS, 1),
        6: _mask(mask, QUERIES) if mask else Buffer.of(0, kind),
    }
