"""Features of attention, crossed: kernels in which every pair of compiled features meets, and calls of each of them in
which all else varies. Each call is held against float64 over the same (dequantised) cache, and against itself in pages.

`python tests/ops/attention_grid.py [kernels [calls]]` runs so many (or all) kernels with so many calls each and counts.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import kit
import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.quant.kv import pack_rows
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain
from torch_foundry.testing.tolerance import (
    BF16,
    F16,
    F32,
    assert_bound,
    assert_equal,
    assert_norm,
    generator,
    normal,
    relative_error,
)

Kernel = dict[str, Any]
FEATURES: dict[str, list[Any]] = {
    "dtype": [F32, F16, BF16],
    "columns": [(64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 192), (256, 256), (192, 128), (96, 64)],
    "k": ["own", "f16", "q8_0", "q4_0"],
    "v": ["own", "bf16", "q8_0", "q4_0"],
    "mask": ["", "bool", "bias"],
    "softcap": [0.0, 20.0],
    "sinks": ["", "float", "own"],
    "prefill": [False, True],
    "lanes": [1, 8],  # that read a key together, of decode on the host: 8 is what GPUs have; 32: by_matrices
}


def kernels() -> list[Kernel]:
    """As few as a greedy search finds such that each pair of features is in one of them. The same in every process."""
    rng = random.Random(7)
    names = list(FEATURES)
    pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(FEATURES[names[a]]))
        for j in range(len(FEATURES[names[b]]))
    }
    found = []
    while pairs:
        best: tuple[int, ...] = ()
        gain: set[Any] = set()
        for _ in range(60):
            a, i, b, j = min(pairs)
            pick = [rng.randrange(len(FEATURES[n])) for n in names]
            pick[a], pick[b] = i, j
            covered = {p for p in pairs if pick[p[0]] == p[1] and pick[p[2]] == p[3]}
            if len(covered) > len(gain):
                best, gain = tuple(pick), covered
        pairs -= gain
        found.append({n: FEATURES[n][i] for n, i in zip(names, best, strict=True)})
    return found


def calls(kernel: Kernel, count: int) -> Iterator[dict[str, Any]]:
    """Shapes and run-time features, by the number of the call."""
    rng = random.Random(repr(kernel))
    for i in range(count):
        group = rng.choice([1, 1, 2, 3, 4, 7, 8, 16])
        queries = rng.choice([17, 24, 40] if kernel["prefill"] else [1, 1, 2, 4, 5, 8, 16])
        kv_len = max(rng.choice([1, 16, 31, 33, 64, 100, 129, 257, 513, 600]), rng.choice([0, queries]))
        yield {
            "seed": i,
            "batch": rng.choice([1, 2, 3]),
            "kv_heads": rng.choice([1, 2] if group < 8 else [1]),
            "group": group,
            "queries": queries,
            "kv_len": kv_len,
            "window": rng.choice([0, 0, 1, 7, 40, 200]),
            "causal": rng.random() < 0.8,
            "padding": rng.random() < 0.3,
            "ragged": rng.random() < 0.4,
            "page": rng.choice([16, 32, 64]),
            "gain": rng.choice([1.0, 1.0, 1.0, 30.0, 0.01]),
            "broadcast": rng.choice(["", "batch", "heads", "row"]),
        }


def inputs(kernel: Kernel, call: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ops.attention with a contiguous cache; what may not be read is NaN."""
    g = generator(repr(kernel), repr(call))
    dtype, (d, dv), b = kernel["dtype"], kernel["columns"], call["batch"]
    kv_len, length, heads = call["kv_len"], call["queries"], call["kv_heads"] * call["group"]
    capacity = -(-(kv_len + 5) // 64) * 64
    rows = torch.tensor([[kv_len - length, length]] * b, dtype=torch.int32)
    if call["ragged"]:
        count = torch.randint(0, length + 1, (b,), generator=g, dtype=torch.int32)
        end = torch.randint(0, kv_len + 1, (b,), generator=g, dtype=torch.int32)
        rows = torch.stack((end - count, count), -1)
    start = torch.randint(0, kv_len + 1, (b,), generator=g, dtype=torch.int32) if call["padding"] else None

    def cache(columns: int, how: str) -> tuple[Tensor, str | None]:
        x = normal(g, b, call["kv_heads"], capacity, columns, dtype=dtype)
        for i in range(b):
            x[i, :, max(int(rows[i].sum()), 0) :] = torch.nan
            if start is not None:
                x[i, :, : int(start[i])] = torch.nan
        if how in ("q8_0", "q4_0"):
            return pack_rows(x, how), how
        return x.to({"own": dtype, "f16": F16, "bf16": BF16}[how]), None

    (k, k_format), (v, v_format) = cache(d, kernel["k"]), cache(dv, kernel["v"])
    mask = None
    if kernel["mask"]:
        full = call["broadcast"]
        shape = (1 if full == "batch" else b, 1 if full == "heads" else heads, 1 if full == "row" else length)
        mask = torch.rand((*shape, kv_len + 2), generator=g) < 0.7
        if kernel["mask"] == "bias":
            mask = normal(g, *mask.shape, dtype=F32).masked_fill(~mask, -torch.inf)
    sinks = None if not kernel["sinks"] else normal(g, heads, dtype=F32 if kernel["sinks"] == "float" else dtype)
    return {
        "q": normal(g, b, heads, length, d, dtype=dtype, scale=call["gain"]),
        "k_cache": k, "v_cache": v, "kv_len": kv_len, "scale": d**-0.5, "mask": mask, "causal": call["causal"],
        "window": call["window"], "softcap": kernel["softcap"], "kv_start": start,
        "rows": rows if call["ragged"] else None, "sinks": sinks, "k_format": k_format, "v_format": v_format,
    }  # fmt: skip


def paged(given: dict[str, Any], page: int, g: torch.Generator) -> dict[str, Any]:
    """The same call with its cache in pages, in an order of their own, some of them nobody's."""
    batch, _, capacity, _ = given["k_cache"].shape
    count = -(-capacity // page)
    table = torch.randperm(batch * count + 3, generator=g)[: batch * count].view(batch, count).int()
    changed: dict[str, Any] = {"block_table": table}
    for name in ("k_cache", "v_cache"):
        x = given[name]
        pool = torch.full((batch * count + 3, x.shape[1], page, x.shape[3]), 255, dtype=torch.uint8).to(x.dtype)
        if x.is_floating_point():
            pool.fill_(torch.nan)
        pool[table.long()] = x.unflatten(2, (count, page)).transpose(1, 2)
        changed[name] = pool
    return {**given, **changed}


def dense(given: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same call on what its cache stands for, as `dtype`, with zeros for what is not read."""
    changed = {
        f"{n}_cache": plain.stored(given[f"{n}_cache"], given[f"{n}_format"], None, dtype).nan_to_num(0.0) for n in "kv"
    }
    own = {n: given[n].to(dtype) for n in ("q", "sinks") if given[n] is not None}
    return {**given, **changed, **own, "k_format": None, "v_format": None}


def stock(own: dict[str, Any], truth: Tensor) -> Tensor:
    """Plain torch's result, of eight orders in which it may add up scores the worst: where queries are large and few
    scores decide, one order's error is a tenth of another's."""
    orders = [torch.randperm(own["q"].shape[-1], generator=generator("order", i)) for i in range(8)]
    results = [plain.attention(**{**own, **{n: own[n][..., o] for n in ("q", "k_cache")}}) for o in orders]
    return max(results, key=lambda result: relative_error(result, truth))


def check(kernel: Kernel, call: dict[str, Any]) -> None:
    """One call: against float64 by norm and element, and the same bits from pages."""
    given = inputs(kernel, call)
    with kit.choice("attention", lanes=kernel["lanes"]):
        got = ops.attention(**given)
        in_pages = ops.attention(**paged(given, call["page"], generator(call["seed"])))
    wide = dense(given, torch.float64)
    truth = plain.attention(**wide)
    assert_norm(got, truth, stock(dense(given, kernel["dtype"]), truth))
    assert_bound(got, truth, op_checks.attention_bound(wide, truth, got.dtype))
    assert_equal(in_pages, got)


def by_matrices() -> list[Kernel]:
    """Those of `kernels` that attention_decode_matrix.metal can do too, done by it."""
    found = []
    for kernel in kernels():
        own = {F16: "f16", BF16: "bf16"}.get(kernel["dtype"])
        stores = {kernel["k"], kernel["v"]} <= {"own", own, "q8_0", "q4_0"}
        if own and stores and not kernel["prefill"] and all(n % 32 == 0 for n in kernel["columns"]):
            found.append({**kernel, "lanes": 32})
    return found


def main() -> None:
    count, each = (*sys.argv[1:], "all", "55")[:2]
    chosen, done = (kernels() + by_matrices())[: None if count == "all" else int(count)], 0
    for kernel in chosen:
        for call in calls(kernel, int(each)):
            try:
                check(kernel, call)
            except BaseException:
                print(kernel, call)
                raise
            done += 1
    print(f"{done} combinations of {len(chosen)} kernels agree with float64, in pages too")


if __name__ == "__main__":
    main()
