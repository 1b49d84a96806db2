"""attention: decode and prefill against float64, exact retrievals, and equalities between ways to compute the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32
from shader_text import edited_shaders
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core import runtime
from torch_foundry.core.graph import capture
from torch_foundry.testing import op_checks, tolerance
from torch_foundry.testing import reference as plain

DECODE = 16  # attention_decode_max_queries of shaders/attention/attention.h


@dataclass(frozen=True)
class Case(kit.Case):
    batch: int = 1
    heads: int = 4
    kv_heads: int = 2
    queries: int = 1
    kv_len: int = 100
    capacity: int = 128
    head_dim: int = 64
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    mask: str = ""  # bool, float, same (as q); "+heads", "+batch", "+row": the dimension is not broadcast
    start: tuple[int, ...] = ()  # left padding
    gain: float = 1.0  # of the queries: large ones make the scores as large as 1e4


# Key lengths around tiles of 32 (16), rounds of 128, splits of 512 and 256; query rows around 1, 2, 4, 8, blocks of 32.
CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(), BF16),
    *((Case(kv_len=n, capacity=n), F32) for n in (1, 31, 32, 33, 128, 129, 256)),
    (Case(kv_len=257, capacity=300), F16),
    *((Case(kv_len=n, capacity=800), F16) for n in (512, 513, 769)),
    (Case(kv_len=700, capacity=700, batch=2, start=(0, 600)), F16),
    (Case(queries=2, heads=3, kv_heads=3), F32),
    (Case(queries=5), F32),
    (Case(queries=DECODE, kv_len=DECODE, capacity=DECODE), F32),
    (Case(heads=7, kv_heads=1), F32),
    (Case(heads=16, kv_heads=1, head_dim=128), F16),
    (Case(head_dim=32, heads=1, kv_heads=1), F32),
    (Case(head_dim=96), F16),
    (Case(head_dim=256, heads=8, kv_heads=1), BF16),
    (Case(head_dim=512, heads=8, kv_heads=1), BF16),
    (Case(head_dim=512, kv_len=600, capacity=600, batch=2, start=(0, 40)), F32),
    (Case(head_dim=272, queries=3), F16),
    (Case(head_dim=128), F16),
    (Case(head_dim=160), F32),
    (Case(head_dim=192, queries=3), BF16),
    (Case(head_dim=224), F32),
    (Case(batch=3, queries=2, start=(0, 40, 99)), F32),
    (Case(window=40), F32),
    (Case(queries=3, window=1), F32),
    (Case(softcap=30.0, gain=8.0), F32),
    (Case(mask="bool", queries=4, causal=False), F32),
    (Case(mask="float+heads+row", queries=2, batch=2), F16),
    (Case(mask="same+batch", batch=2, queries=3, window=50, softcap=20.0), F16),
    (Case(gain=2e3), F32),
    # prefill
    (Case(queries=17, kv_len=17, capacity=17), F32),
    (Case(queries=32, kv_len=33), F16),
    (Case(queries=40, kv_len=100), BF16),
    (Case(queries=33, kv_len=128, heads=3, kv_heads=3, head_dim=32), F32),
    (Case(queries=100, kv_len=100, window=7, heads=1, kv_heads=1), F32),
    (Case(queries=20, head_dim=96, heads=7, kv_heads=1), F16),
    (Case(queries=33, head_dim=128), F16),
    (Case(queries=17, head_dim=160), F32),
    (Case(queries=17, head_dim=192), BF16),
    (Case(queries=17, head_dim=224), F32),
    (Case(queries=20, head_dim=256, kv_heads=4, batch=2, start=(3, 95)), F32),
    (Case(queries=20, head_dim=512, batch=2, start=(3, 95)), F32),
    (Case(queries=21, head_dim=512, heads=8, kv_heads=1), BF16),
    (Case(queries=17, head_dim=272, window=30), F16),
    (Case(queries=18, mask="bool+heads+row", softcap=30.0, gain=8.0), F32),
    (Case(queries=18, mask="float+row", causal=False), F32),
    (Case(queries=18, gain=2e3), F16),
]
BENCH = [
    Case(kv_len=256, capacity=256),
    Case(heads=14, kv_len=1024, capacity=1024),
    Case(queries=128, kv_len=128),
    Case(queries=128, kv_len=512, capacity=512, heads=14),
]


def make_mask(case: Case, dtype: torch.dtype, g: torch.Generator) -> Tensor | None:
    if not case.mask:
        return None
    kind, *full = case.mask.split("+")
    shape = (
        case.batch if "batch" in full else 1,
        case.heads if "heads" in full else 1,
        case.queries if "row" in full else 1,
        case.kv_len + 3,
    )
    keep = torch.rand(shape, generator=g) < 0.7
    keep[..., case.kv_len // 2] = True
    if kind == "bool":
        return keep
    bias = kit.normal(g, *shape, dtype=F32).masked_fill(~keep, float("-inf"))
    return bias if kind == "float" else bias.to(dtype)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    c = case
    kv_start = torch.tensor(c.start, dtype=torch.int32) if c.start else None
    caches = []
    for _ in range(2):
        cache = kit.normal(g, c.batch, c.kv_heads, c.capacity, c.head_dim, dtype=dtype)
        cache[:, :, c.kv_len :] = float("nan")  # not yet written
        for b, first in enumerate(c.start):
            cache[b, :, :first] = float("nan")  # padding
        caches.append(cache)
    return {
        "q": kit.normal(g, c.batch, c.heads, c.queries, c.head_dim, dtype=dtype, scale=c.gain),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "kv_len": c.kv_len,
        "scale": c.head_dim**-0.5,
        "mask": make_mask(case, dtype, g),
        "causal": c.causal,
        "window": c.window,
        "softcap": c.softcap,
        "kv_start": kv_start,
    }


run = ops.attention
reference = plain.attention


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    c = case
    pairs = c.queries * c.kv_len - (c.queries * (c.queries - 1) // 2 if c.causal else 0)
    q, kv = c.batch * c.heads * c.queries * c.head_dim, c.batch * c.kv_heads * c.kv_len * c.head_dim
    return 4 * c.batch * c.heads * c.head_dim * pairs, 2 * (q + kv) * dtype.itemsize


check = op_checks.attention


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize("queries, window", [(1, 0), (6, 0), (6, 5), (40, 0), (40, 5)], ids=str)
def test_exact_means(queries: int, window: int) -> None:
    """Equal scores: each query gives the mean of the values it sees, so one key too many or too few shows."""
    case = Case(queries=queries, kv_len=70, window=window, batch=2, start=(0, 33))
    given = inputs(case, F32)
    g = kit.generator(queries, window)
    given["q"] = torch.zeros_like(given["q"])
    given["v_cache"] = torch.where(
        given["v_cache"].isnan(), torch.nan, kit.integers(g, *given["v_cache"].shape, dtype=F32, low=-99, high=99)
    )
    given["k_cache"] = torch.where(given["k_cache"].isnan(), torch.nan, 1.0)
    seen = plain.visible(queries, 70, True, window, given["kv_start"], given["q"].device).float()
    v = given["v_cache"][:, :, :70].nan_to_num(0.0).repeat_interleave(2, 1)
    mean = (seen @ v) / seen.sum(-1, keepdim=True)
    kit.assert_equal(ops.attention(**given), mean.nan_to_num(0.0).transpose(1, 2).reshape(2, queries, -1))


@pytest.mark.parametrize("queries, dtype", [(1, F32), (4, F16), (40, F16)], ids=str)
def test_exact_retrieval(queries: int, dtype: torch.dtype) -> None:
    """Keys are codes of +-1; a query that is the code of one key gives that key's value, bit for bit."""
    case = Case(queries=queries, kv_len=90, heads=6, kv_heads=3, head_dim=32, causal=False)
    g = kit.generator(queries, dtype)
    codes = torch.randint(0, 2, (1, 3, 128, 32), generator=g).to(dtype) * 2 - 1
    index = torch.arange(90)
    codes[..., :90, :7] = ((index[:, None] >> torch.arange(7)) & 1).to(dtype) * 2 - 1  # no two keys are equal
    target = torch.randint(0, 90, (1, 6, queries), generator=g)
    given = {**inputs(case, dtype), "k_cache": codes, "scale": 64.0}
    per_head = codes.repeat_interleave(2, 1)
    given["q"] = torch.gather(per_head, 2, target[..., None].expand(-1, -1, -1, 32)).contiguous()
    v = given["v_cache"].repeat_interleave(2, 1)
    expected = torch.gather(v, 2, target[..., None].expand(-1, -1, -1, 32))
    kit.assert_equal(ops.attention(**given), expected.transpose(1, 2).reshape(1, queries, -1))


@pytest.mark.parametrize("queries", [3, 20], ids=str)
def test_queries_that_see_nothing_give_zeros(queries: int) -> None:
    case = Case(batch=2, queries=queries, kv_len=30, start=(28, 30))
    got = ops.attention(**inputs(case, F32))
    assert bool((got[0, : queries - 2] == 0).all()) and bool((got[1] == 0).all())
    assert bool((got[0, queries - 2 :] != 0).any())
    hidden = {**inputs(Case(queries=queries), F32), "mask": torch.zeros(1, 1, 1, 100, dtype=torch.bool)}
    assert bool((ops.attention(**hidden) == 0).all())
    more_than_keys = inputs(Case(queries=queries, kv_len=2), F32)
    assert bool((ops.attention(**more_than_keys)[:, : queries - 2] == 0).all())
    assert bool((ops.attention(**{**more_than_keys, "kv_len": 0}) == 0).all())


def test_rows_do_not_depend_on_the_number_of_queries() -> None:
    """Decode: each query alone, over the cache as it was then, gives the same bits; across a split of keys too."""
    for kv_len in (60, 259):
        given = inputs(Case(queries=7, kv_len=kv_len, capacity=320), F32)
        together = ops.attention(**given)
        for i in range(7):
            alone = {**given, "q": given["q"][:, :, i : i + 1], "kv_len": kv_len - 6 + i}
            kit.assert_equal(ops.attention(**alone), together[:, i : i + 1])


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("lanes", [1, 32])
@pytest.mark.parametrize("group, head_dim", [(9, 64), (16, 128), (8, 256)])
def test_a_group_reads_its_keys_once(group: int, head_dim: int, lanes: int, tmp_path: Path) -> None:
    """One threadgroup has all heads of a KV head and a split: the kernel gives the same where no other one works."""
    batch = 130 if head_dim > 128 else 43  # enough for any GPU
    case = Case(batch=batch, heads=2 * group, kv_len=600, capacity=600, head_dim=head_dim)
    given = inputs(case, F16)
    with kit.choice("attention", lanes=lanes):
        expected = ops.attention(**given)
    only_first = kit.within("if (work.split >= max(", "if (", "if (work.first_row > 0 || ")
    kernels = ("attention_decode.metal", "attention_decode_matrix.metal")
    shaders = edited_shaders(tmp_path, *((name, *only_first) for name in kernels), kernels=kernels)
    with runtime.use_shaders(shaders), kit.choice("attention", lanes=lanes), tolerance.poisoned_outputs():
        kit.assert_equal(ops.attention(**given), expected)


def test_chunked_prefill_equals_one_shot() -> None:
    given = inputs(Case(queries=57, kv_len=100), F32)
    together = ops.attention(**given)
    first = {**given, "q": given["q"][:, :, :20], "kv_len": 63}
    second = {**given, "q": given["q"][:, :, 20:]}
    kit.assert_equal(torch.cat((ops.attention(**first), ops.attention(**second)), 1), together)


@pytest.mark.parametrize("queries", [2, 20], ids=str)
def test_strides_and_offsets(queries: int) -> None:
    """Heads inside a projection, caches inside larger memory, broadcast masks: the same bits."""
    given = inputs(Case(queries=queries, mask="float+row", batch=2), F32)
    expected = ops.attention(**given)
    q = given["q"].transpose(1, 2).contiguous().transpose(1, 2)
    kit.assert_equal(ops.attention(**{**given, "q": q}), expected)
    pads = {n: kit.spread(given[n]) for n in ("q", "k_cache", "v_cache")}
    kit.assert_equal(ops.attention(**{**given, **pads}), expected)
    mask = given["mask"].expand(2, 4, -1, -1)
    kit.assert_equal(ops.attention(**{**given, "mask": mask}), expected)
    kit.assert_equal(ops.attention(**{**given, "mask": kit.shifted(mask.contiguous())}), expected)
    unaligned = ops.attention(**{**given, "q": kit.shifted(q), "k_cache": kit.spread(given["k_cache"], 1)})
    kit.assert_equal(unaligned, expected)


def stepped(given: dict[str, Any], dropped: int = 0) -> dict[str, Any]:
    """The same call with the length in memory, of a cache whose first keys have gone."""
    capacity, queries, length = given["k_cache"].shape[2], given["q"].shape[2], given["kv_len"]
    changed = {name: given[name][:, :, dropped:] for name in ("k_cache", "v_cache")}
    if given["mask"] is not None:
        changed["mask"] = torch.nn.functional.pad(given["mask"], (0, capacity - given["mask"].shape[-1]))
    step = torch.tensor([length - queries - dropped, dropped], dtype=torch.int32)
    return {**given, **changed, "kv_len": capacity - dropped, "step": step}


@kit.cases(*CASES)
def test_a_length_in_memory_is_as_good(case: Case, dtype: torch.dtype) -> None:
    """Bit for bit, whatever capacity the grid is made for."""
    given = inputs(case, dtype)
    kit.assert_equal(ops.attention(**stepped(given)), ops.attention(**given))
    if case.kv_len + 2048 < 4096 and case.queries <= DECODE:
        wide = {
            n: torch.nn.functional.pad(given[n], (0, 0, 0, 2048), value=float("nan")) for n in ("k_cache", "v_cache")
        }
        kit.assert_equal(ops.attention(**stepped({**given, **wide})), ops.attention(**given))


@kit.cases((Case(kv_len=700, capacity=700), F16), (Case(kv_len=700, capacity=700, batch=2, start=(0, 600)), F32))
def test_room_for_many_splits_changes_nothing(case: Case, dtype: torch.dtype) -> None:
    """Few splits have the same bits by the kernel that joins few as by the one that may have to join many."""
    given = inputs(case, dtype)
    wide = {n: torch.nn.functional.pad(given[n], (0, 0, 0, 4096)) for n in ("k_cache", "v_cache")}
    with capture() as graph:
        many = ops.attention(**stepped({**given, **wide}))
        few = ops.attention(**given)
    graph.replay()
    kit.assert_equal(many, few)
    joined = [launch.kernel.split("<")[0] for launch in graph.launches() if "merge" in launch.kernel]
    assert joined == ["attention_merge", "attention_merge_few"]


def test_short_contexts_are_one_launch() -> None:
    """The first split is as long as two (decision 072)."""
    for capacity, launches in ((512, ["attention_decode"]), (513, ["attention_decode", "attention_merge_few"])):
        given = inputs(Case(kv_len=capacity, capacity=capacity, heads=2, kv_heads=1, head_dim=32), F32)
        with kit.choice("attention", format="f32", keys=256, lanes=8, simdgroups=4), capture() as graph:
            ops.attention(**given)
        assert [launch.kernel.split("<")[0] for launch in graph.launches()] == launches


def test_splits_grow() -> None:
    """Beyond 4096 keys, and again beyond 16384: those of each kind, and one more that is not full."""
    for kv_len in (5000, 17900):
        given = inputs(Case(kv_len=kv_len, capacity=kv_len, heads=2, kv_heads=1, head_dim=32), F32)
        op_checks.attention(given)
        kit.assert_equal(ops.attention(**stepped(given)), ops.attention(**given))


@pytest.mark.parametrize("queries", [1, 3, 18])
@pytest.mark.parametrize("extra", [{"mask": "bool+batch"}, {"start": (90, 97)}, {"window": 20}], ids=str)
def test_masks_know_what_went_before(queries: int, extra: dict[str, Any]) -> None:
    """A cache that holds the last keys only, as that of a sliding window."""
    given = inputs(Case(batch=2, queries=queries, kv_len=160, capacity=170, **extra), F32)
    if "mask" in extra:
        given["mask"][..., :64] = False
    exact = plain.attention(**kit.double(op_checks.finite(given)))
    kit.assert_norm(ops.attention(**stepped(given, 64)), exact, plain.attention(**op_checks.finite(given)))


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    for case in (Case(queries=3, kv_len=300, capacity=300), Case(queries=20)):
        given = inputs(case, F32)
        kit.in_every_lane_order(lambda given=given: ops.attention(**given))


@pytest.mark.parametrize("lanes", [1, 8])
def test_padding_that_leaves_no_keys(lanes: int) -> None:
    """Nothing is read, as all of it may be NaN: what is left is the sink."""
    q, cache = torch.ones(1, 2, 3, 64), torch.full((1, 2, 64, 64), torch.nan)
    rows, start = torch.tensor([[7, 3]], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    with kit.choice("attention", lanes=lanes):
        y = ops.attention(q, cache, cache.clone(), 50, scale=1.0, rows=rows, kv_start=start, sinks=torch.zeros(2))
    kit.assert_equal(y, torch.zeros(1, 3, 128))


def test_nan_is_not_hidden() -> None:
    for queries in (1, 20):
        given = inputs(Case(queries=queries), F32)
        given["q"][0, 1, -1, 5] = float("nan")
        got = ops.attention(**given).view(queries, 4, 64)
        assert bool(got[-1, 1].isnan().all()) and int(got.isnan().sum()) == 64


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = op_checks.finite(inputs(Case(queries=2, head_dim=32, kv_len=20), F32))
    kit.opcheck("attention", *given.values())


def test_empty() -> None:
    given = inputs(Case(), F32)
    assert ops.attention(**{**given, "q": given["q"][:, :, :0]}).shape == (1, 0, 256)


def refuse(message: str, **changed: Any) -> None:
    with kit.refuses(message):
        ops.attention(**{**inputs(Case(batch=2), F32), **changed})


def test_bad_inputs() -> None:
    given = inputs(Case(batch=2), F32)
    q, k = given["q"], given["k_cache"]
    refuse(r"q: expected dtype Float or Half or BFloat16, got Double", q=q.double())
    refuse(r"k_cache: expected dtype Float or Half or BFloat16, got Double", k_cache=k.double())
    refuse(r"k_cache: expected head_dim=64, got", k_cache=k[..., :32])
    refuse(r"v_cache: expected \[batch=2, 2, 128, 64\]", v_cache=k[:1])
    refuse(r"q: expected a head_dim of 32 to 512", q=q[..., :40], k_cache=k[..., :40], v_cache=k[..., :40])
    refuse(r"q: expected a multiple of kv_heads=2 heads", q=q[:, :3])
    refuse(r"kv_len: expected 0 to the capacity of 128, got 129", kv_len=129)
    refuse(r"kv_len: expected 0 to the capacity of 99, got 100", v_cache=given["v_cache"][:, :, :99])
    refuse(r"window: expected 0 \(none\)", window=-1)
    for wrong in (-1.0, torch.inf, torch.nan):
        refuse(r"softcap: expected 0 \(none\)", softcap=wrong)
        if wrong != -1.0:
            refuse("scale: expected a finite number", scale=wrong)
    refuse(r"mask: expected dtype Bool or Float", mask=torch.ones(1, 1, 1, 100, dtype=torch.int32))
    refuse(r"mask: expected at least kv_len=100 columns", mask=torch.ones(1, 1, 1, 99))
    refuse(r"mask: expected \[2 or 1, 4 or 1, 1 or 1, >=100\]", mask=torch.ones(3, 1, 1, 100))
    refuse(r"mask: expected 4 dimensions", mask=torch.ones(1, 100))
    refuse(r"kv_start: expected dtype Int", kv_start=torch.zeros(2, dtype=torch.int64))
    refuse(r"kv_start: expected \[batch=2\]", kv_start=torch.zeros(3, dtype=torch.int32))
    vast = k[:1, :, :1].expand(2, 2, 2**25, 64)
    refuse(r"k_cache: expected at most 2\^31-1 elements", k_cache=vast)
    refuse(r"k_cache: expected a contiguous last dimension", k_cache=k.transpose(2, 3).contiguous().transpose(2, 3))
