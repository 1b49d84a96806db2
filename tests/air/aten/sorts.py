"""Sorting, top k: in one threadgroup, by merges of sorted blocks, by digits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.aten.types import KINDS, NAMES, numbers, parity
from tests.air.case import Array, Buffer, Case, edges, from_bfloat, normal

BLOCK = re.compile(rf"(mb_)?sort_block(_topk)?(_fkey)?_({NAMES})_tptg(\d+)(_u16)?(_stable)?")
MERGE = re.compile(rf"mb_merge(_final)?(_topk)?(_fkey)?_({NAMES})_tptg(\d+)(_u16)?")
COUNT = re.compile(rf"radix_count(_scan)?_({NAMES})_(\d)bit(_tptg512|_mb4)?")
SCATTER = re.compile(rf"radix_scatter(_fused)?(_final)?(_topk)?_({NAMES})_(\d)bit(_tptg512)?(_u16)?")
SOURCE = "ATen/native/mps/kernels/SortTopK.h"
EACH, ROWS = 4, 2  # elements a thread sorts, rows
CHOSEN = 3, 7  # ranks from 3 on, 7 of them


def case(name: str) -> Case | None:
    if found := BLOCK.fullmatch(name):
        many, topk, keyed, kind, threads, short, _ = found.groups()
        block = int(threads) * EACH
        size = block * 5 // 2 + 3 if many else block - 11
        buffers = partial(_block, name, KINDS[kind], size, bool(many), bool(topk), bool(keyed), bool(short))
        return _case(name, buffers, -(-size // block) if many else 1, int(threads))
    if found := MERGE.fullmatch(name):
        final, topk, keyed, kind, threads, short = found.groups()
        block = int(threads) * EACH
        size = block * 7 // 2 + 3
        buffers = partial(_merge, name, KINDS[kind], size, block, bool(final), bool(topk), bool(keyed), bool(short))
        return _case(name, buffers, -(-size // block), int(threads))
    if found := COUNT.fullmatch(name):
        scan, kind, bits, tile = found.groups()
        threads, block = _tile(kind, tile == "_tptg512")
        size = block * 5 // 2 + 3
        buffers = partial(_count, name, KINDS[kind], size, block, int(bits))
        return _case(name, buffers, 1 if scan else -(-size // block), threads)
    if name == "radix_scan":
        return _case(name, _scan, 1, 1024)
    if found := SCATTER.fullmatch(name):
        fused, final, topk, kind, bits, tile, short = found.groups()
        threads, block = _tile(kind, bool(tile))
        size = block * 5 // 2 + 3
        buffers = partial(
            _scatter, name, KINDS[kind], size, block, int(bits), bool(fused), bool(final), bool(topk), bool(short)
        )
        return _case(name, buffers, -(-size // block), threads)
    return None


def _case(name: str, buffers: partial[Mapping[int, Buffer]], groups: int, threads: int) -> Case:
    return Case(name, SOURCE, "", buffers, (groups, ROWS, 1), (threads, 1, 1), threads=False, project="torch")


def _tile(kind: str, small: bool) -> tuple[int, int]:
    """Threads of a threadgroup, and the elements that it sorts by a digit."""
    size = Buffer.poisoned(KINDS[kind], 1).array.itemsize
    threads = 1024 if size == 2 and not small else 512
    return threads, threads * (8 if size == 1 else 4)


def _index(short: bool) -> str:
    return "uint16" if short else "uint32"


def _block(name: str, kind: str, size: int, many: bool, topk: bool, keyed: bool, short: bool) -> Mapping[int, Buffer]:
    made = (_index(keyed and kind != "float32") if keyed else kind, _index(short) if many else "int64")
    count = CHOSEN[1] if topk else size
    found = {0: edges(kind, ROWS * size), 1: Buffer.poisoned(made[0], ROWS * count),
             2: Buffer.poisoned(made[1], ROWS * count), 3: Buffer.of(size, "int32"), 4: numbers("int64", 1, size),
             5: Buffer.of(parity(name), "bool_")}  # fmt: skip
    return found | ({6: numbers("int32", *CHOSEN)} if topk else {})


def _merge(
    name: str, kind: str, size: int, block: int, final: bool, topk: bool, keyed: bool, short: bool
) -> Mapping[int, Buffer]:
    given = _index(kind != "float32") if keyed else kind
    falls = parity(name)
    values = normal(given, ROWS * size).array.reshape(ROWS, size)
    order = np.zeros((ROWS, size), np.int64)
    for row in range(ROWS):
        for at in range(0, size, block):
            part = slice(at, min(at + block, size))
            keys = _numbers(values[row, part], given)
            # what has a key is sorted upwards, and turned back at the end
            order[row, part] = at + np.argsort(-keys if falls and not keyed else keys, kind="stable")
    count = CHOSEN[1] if topk else size
    index = _index(short)
    found = {
        0: Buffer(np.take_along_axis(values, order, 1).ravel(), given),
        1: Buffer(order.ravel().astype(np.uint16 if short else np.uint32), index),
        2: Buffer.poisoned(kind, ROWS * count),
        3: Buffer.poisoned("int64" if final else index, ROWS * count),
        4: numbers("int32", size, 2, 0, 0),
        5: Buffer.of(falls, "bool_"),
    }
    return found | ({6: numbers("int32", *CHOSEN)} if topk else {})


def _numbers(values: Array, kind: str) -> Array:
    if kind == "bfloat16":
        return from_bfloat(values)
    return values.astype(np.float32 if kind == "float16" else np.int64) if kind != "float32" else values


def _shift(kind: str, bits: int) -> int:
    """The digit above the lowest one."""
    return 0 if kind == "bool_" else bits


def _digits(values: Array, kind: str, falls: bool, bits: int) -> Array:
    """The digits that the kernels sort by, of numbers without NaN."""
    width = 8 * values.itemsize
    unsigned = values.view(f"u{values.itemsize}").astype(np.uint32)
    top, full = np.uint32(1 << (width - 1)), np.uint32((1 << width) - 1)
    if "float" in kind:
        key = np.where(unsigned & top, unsigned ^ full, unsigned ^ top)
    else:
        key = unsigned ^ top if kind.startswith("int") else unsigned
    key = key ^ full if falls else key
    return (key >> np.uint32(_shift(kind, bits))) & np.uint32((1 << bits) - 1)


def _counts(values: Array, kind: str, falls: bool, bits: int, block: int) -> Array:
    """How often each digit is in each block of a row: (rows, digits, blocks)."""
    digits = _digits(values, kind, falls, bits)
    parts = [digits[:, at : at + block] for at in range(0, digits.shape[1], block)]
    return np.array([[np.bincount(part[row], minlength=1 << bits) for part in parts] for row in range(ROWS)],
                    np.uint32).transpose(0, 2, 1)  # fmt: skip


def _count(name: str, kind: str, size: int, block: int, bits: int) -> Mapping[int, Buffer]:
    blocks = -(-size // block)
    return {
        0: edges(kind, ROWS * size),
        1: Buffer.poisoned("uint32", ROWS * blocks << bits),
        2: numbers("int32", size, blocks, _shift(kind, bits), 0),
        3: Buffer.of(parity(name), "bool_"),
    }


def _scan() -> Mapping[int, Buffer]:
    entries = 2500
    return {0: normal("uint32", ROWS * entries), 1: Buffer.of(entries, "int32")}


def _scatter(
    name: str, kind: str, size: int, block: int, bits: int, fused: bool, final: bool, topk: bool, short: bool
) -> Mapping[int, Buffer]:
    falls, index, blocks = parity(name), _index(short), -(-size // block)
    values = normal(kind, ROWS * size).array.reshape(ROWS, size)
    counts = _counts(values, kind, bool(falls), bits, block).reshape(ROWS, -1)
    offsets = counts if fused else np.cumsum(counts, 1, dtype=np.uint32) - counts
    count = CHOSEN[1] if topk else size
    indices = np.concatenate([np.random.default_rng(row).permutation(size) for row in range(ROWS)])
    found = {
        0: Buffer(values.ravel(), kind),
        1: Buffer(indices.astype(np.uint16 if short else np.uint32), index),
        2: Buffer.poisoned(kind, ROWS * count),
        3: Buffer.poisoned("int64" if final else index, ROWS * count),
        4: Buffer(offsets.ravel(), "uint32"),
        5: numbers("int32", size, blocks, _shift(kind, bits), 0),
        6: numbers("bool_", falls, parity(name[::-1])),
    }
    return found | ({7: numbers("int32", *CHOSEN)} if topk else {})
