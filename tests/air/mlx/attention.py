"""Attention: of one query (sdpa_vector), in one pass, two passes and what joins them; of many, in tiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import MSL, SHORT, TYPE, Buffer, Case, normal

NAME = re.compile(r"sdpa_vector_(?:(2pass_[12])_)?(float16_t|bfloat16_t|float)_(\d+)(?:_(\d+))?")
TILED = re.compile(rf"steel_attention_({TYPE})_bq(\d+)_bk(\d+)_bd(\d+)_wm(\d+)_wn(\d+)_mask({TYPE})")
QUERIES = 45
HEADS, KV_HEADS, KEYS, BLOCKS = 4, 2, 70, 32
# has_mask, query_transposed, do_causal, bool_mask, float_mask, has_sinks, blocks
CONSTANTS = {20: 0, 21: 0, 22: 0, 23: 0, 24: 0, 25: 0, 26: BLOCKS}


def case(name: str) -> Case | None:
    if found := TILED.fullmatch(name):
        kind, bq, bk, width, wm, wn, mask = found.groups()
        return _tiled(name, kind, (int(bq), int(bk), int(width), int(wm), int(wn)), mask)
    if not (found := NAME.fullmatch(name)):
        return None
    passes, typed, first, second = found.groups()
    kind, source = SHORT[typed], "sdpa_vector"
    if passes == "2pass_2":
        buffers = partial(_joined, kind, int(first))
        return Case(name, source, f"sdpa_vector_2pass_2<{MSL[kind]}, {first}>", buffers, (HEADS, 1, 1), (1024, 1, 1),
                    threads=False, constants=CONSTANTS, constant_types={26: "int"})  # fmt: skip
    function = "sdpa_vector_2pass_1" if passes else "sdpa_vector"
    instance = f"{function}<{MSL[kind]}, {first}, {second}>"
    buffers = partial(_buffers, kind, int(first), int(second or 0), bool(passes))
    grid = (KV_HEADS, 1, BLOCKS) if passes else (HEADS, 1, 1)
    group = (32, HEADS // KV_HEADS, 1) if passes else (1024, 1, 1)
    return Case(name, source, instance, buffers, grid, group, threads=False, constants=CONSTANTS,
                constant_types={26: "int"})  # fmt: skip


def _buffers(kind: str, width: int, values: int, passes: bool) -> Mapping[int, Buffer]:
    found = {
        0: normal(kind, HEADS * width, 1),
        1: normal(kind, KV_HEADS * KEYS * width, 2),
        2: normal(kind, KV_HEADS * KEYS * values, 3),
        3: Buffer.poisoned(kind, HEADS * values * (BLOCKS if passes else 1)),
    }
    numbers = [Buffer.of(KEYS, "int32")]
    numbers += [Buffer.of(step, "uint64") for step in (KEYS * width, width, KEYS * values, values)]
    numbers.append(Buffer.of(float(1 / np.sqrt(width)), "float32"))
    if passes:
        found |= {4: Buffer.poisoned("float32", HEADS * BLOCKS), 5: Buffer.poisoned("float32", HEADS * BLOCKS)}
        return found | dict(enumerate(numbers, 7))
    return found | {4: Buffer.of(HEADS // KV_HEADS, "int32")} | dict(enumerate(numbers, 5))


def _joined(kind: str, width: int) -> Mapping[int, Buffer]:
    sums = normal("float32", HEADS * BLOCKS, 2)
    return {
        0: normal(kind, HEADS * BLOCKS * width, 1),
        1: Buffer(np.abs(sums.array) + 1, "float32"),
        2: normal("float32", HEADS * BLOCKS, 3),
        3: Buffer.poisoned(kind, HEADS * width),
        4: Buffer.of(BLOCKS, "int32"),
    }


def _tiled(name: str, kind: str, tile: tuple[int, ...], mask: str) -> Case:
    bq, bk, width, wm, wn = tile
    instance = f"attention<{MSL[kind]}, {bq}, {bk}, {width}, {wm}, {wn}, {MSL[mask]}, float>"
    constants = {200: 0, 201: 0, 300: 0, 301: 1, 302: 0}  # ragged; no mask but a causal one; no sinks
    grid = (-(-QUERIES // bq), HEADS, 1)
    source = "steel/attn/attn steel/attn/kernels/steel_attention"
    return Case(name, source, instance, partial(_tiles, kind, bq, bk, width), grid, (32, wm, wn), threads=False,
                constants=constants)  # fmt: skip


def _tiles(kind: str, bq: int, bk: int, width: int) -> Mapping[int, Buffer]:
    def strides(heads: int, length: int) -> bytes:
        return np.array([heads * length * width, length * width, width], np.int64).tobytes()

    first = np.array([1, HEADS, width, QUERIES, KEYS, HEADS // KV_HEADS], np.int32).tobytes()
    scale = np.array([1 / np.sqrt(width)], np.float32).tobytes()
    blocks = [-(-QUERIES // bq), -(-KEYS // bk), QUERIES // bq, KEYS // bk, QUERIES % bq, KEYS % bk, KEYS - QUERIES]
    numbers = first + scale + np.array(blocks, np.int32).tobytes()
    of_keys = strides(KV_HEADS, KEYS)
    params = numbers + strides(HEADS, QUERIES) + of_keys + of_keys + strides(HEADS, QUERIES)
    return {
        0: normal(kind, HEADS * QUERIES * width, 1),
        1: normal(kind, KV_HEADS * KEYS * width, 2),
        2: normal(kind, KV_HEADS * KEYS * width, 3),
        3: Buffer.poisoned(kind, HEADS * QUERIES * width),
        4: Buffer(np.frombuffer(params, np.uint8), "uint8"),
    }
