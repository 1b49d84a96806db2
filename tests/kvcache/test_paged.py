"""PagedCache: as a cache of transformers' own, under stock and patched models; and sequences kept in it by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

import torch_foundry
from tests.hf.tiny_models import config, ids, random_model
from torch_foundry import ops
from torch_foundry.core.memory import DoesNotFit
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.block_manager import OutOfBlocks
from torch_foundry.kvcache.formats import decoded, encoded, parse
from torch_foundry.kvcache.paged import PagedCache

LAYERS, HEADS, DIM = 2, 2, 32
LLAMA = config("LlamaConfig")


def through(x: torch.Tensor, name: str | None) -> torch.Tensor:
    return x if name is None else decoded(encoded(x, name), name, x.dtype)


def fused(layer: Any, k: torch.Tensor, v: torch.Tensor) -> None:
    """What the fused layer does in place of `update`."""
    batch, heads, tokens, dim = k.shape
    assert layer.fits(batch, KVSpec(heads, dim), k.dtype, k.device)
    view = layer.reserve(batch, KVSpec(heads, dim), tokens, k.dtype, k.device)
    flat = [x.transpose(1, 2).flatten(2).contiguous() for x in (k, v)]
    view.write(torch.zeros(batch, tokens, heads * dim), *flat, (None, None), head_dim=dim)
    layer.commit(tokens)


@pytest.mark.parametrize("kv_cache", [None, {"k": "q8_0", "v": "q4_0"}, "f16"], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_calls(seed: int, kv_cache: Any) -> None:
    """Against transformers' own cache of what storing leaves: the same keys, values, lengths and masks everywhere."""
    generator = torch.Generator().manual_seed(seed)
    formats, theirs, ours = parse(kv_cache), DynamicCache(), PagedCache(LLAMA, 60, kv_cache=kv_cache)
    batch = 2

    def pick(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    def step(tokens: int) -> None:
        way = pick(2)
        for i in range(LAYERS):
            k, v = torch.randn(2, batch, HEADS, tokens, DIM, generator=generator)
            expected = theirs.update(through(k, formats[0]), through(v, formats[1]), i)
            if way:
                fused(ours.layers[i], k, v)
                found = ours.layers[i].keys, ours.layers[i].values
            else:
                found = ours.update(k, v, i)
            for a, b in zip(found, expected, strict=True):
                assert a is not None and torch.equal(a, b)

    step(1 + pick(20))
    for _ in range(60):
        action = pick(8)
        if action < 3:
            step(1 + pick(20 if action == 0 else 3))
        elif action == 3 and theirs.get_seq_length() > 40:
            theirs.crop(-30), ours.crop(-30)
        elif action == 4:
            back = -pick(4)
            if theirs.get_seq_length() > 5:
                theirs.crop(back), ours.crop(back)
        elif action == 5:
            order = torch.randint(batch, (batch,), generator=generator)
            theirs.reorder_cache(order), ours.reorder_cache(order)
        elif action == 6 and batch < 4:
            theirs.batch_repeat_interleave(2), ours.batch_repeat_interleave(2)
            batch *= 2
        elif action == 7:
            chosen = torch.tensor([0, batch - 1])
            theirs.batch_select_indices(chosen), ours.batch_select_indices(chosen)
            batch = 2
            ours.layers[0].offload(), ours.layers[0].prefetch()
            if pick(2):
                ours = copy.deepcopy(ours)
        ours.manager.check()
        assert ours.get_seq_length() == theirs.get_seq_length() and ours.rows == batch
        for i in range(LAYERS):
            assert torch.equal(ours.layers[i].keys, theirs.layers[i].keys)
            assert torch.equal(ours.layers[i].values, theirs.layers[i].values)
            assert ours.get_mask_sizes(3, i) == theirs.get_mask_sizes(3, i)
    ours.reset()
    assert ours.manager.available == 60 and ours.get_seq_length() == 0
    batch = 3
    theirs = DynamicCache()
    step(4)


@pytest.mark.parametrize("name", ["LlamaConfig", "Qwen3Config", "Gemma3TextConfig"])
@pytest.mark.parametrize("way", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}, {"pad": True}], ids=str)
def test_generating(name: str, way: dict[str, Any]) -> None:
    """The tokens of a growing cache; all blocks come back."""
    options = {"sliding_window": 12} if name == "Gemma3TextConfig" else {}
    stock = random_model(config(name, **options))
    stock.generation_config.eos_token_id = None
    model = torch_foundry.patch(copy.deepcopy(stock))
    way = dict(way)
    prompt = ids(1, 20)
    if way.pop("pad", False):
        prompt = ids(2, 20)
        way["attention_mask"] = torch.ones_like(prompt)
        way["attention_mask"][1, :5] = 0
    options = {"max_new_tokens": 15, "do_sample": False, **way}
    expected = stock.generate(prompt, **options)
    for used in (model, stock):
        cache = PagedCache(stock.config, 40)
        assert torch.equal(used.generate(prompt, past_key_values=cache, **options), expected)
        cache.manager.check()
        cache.reset()
        assert cache.manager.available == 40
    assert not torch_foundry.report(model).fallbacks


@torch.no_grad()
def test_pages_and_one_buffer_are_equal_bit_for_bit() -> None:
    stock = random_model(LLAMA)
    model = torch_foundry.patch(copy.deepcopy(stock), kv_cache="q8_0")
    tokens, grown, pages = ids(2, 60), DynamicCache(), PagedCache(LLAMA, 20, block_size=32, kv_cache="q8_0")
    dense = DynamicCache()
    for part in tokens.split([33, 1, 5, 21], dim=1):
        expected = model(part, past_key_values=grown).logits
        got = model(part, past_key_values=pages).logits
        rounding = float((stock(part, past_key_values=dense).logits - expected).norm())
        if part.shape[1] > 8:  # shorter ones go by a graph, whose norms are weighted on the way
            assert torch.equal(got, expected)
        else:  # where that puts a code on the other side, little changes next to what all the rounding does
            assert float((got - expected).norm()) <= 0.15 * rounding


@torch.no_grad()
def test_without_room_nothing_changes() -> None:
    model = torch_foundry.patch(random_model(LLAMA))
    cache = PagedCache(LLAMA, 4)
    model(ids(1, 40), past_key_values=cache)
    before = [(layer.keys, layer.values) for layer in cache.layers]
    with pytest.raises(OutOfBlocks, match="1 rows of 70 tokens need 2 more blocks, of 4 1 are free"):
        model(ids(1, 30), past_key_values=cache)
    assert cache.get_seq_length() == 40 and cache.manager.available == 1
    for layer, (k, v) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, k) and torch.equal(layer.values, v)  # type: ignore[arg-type]
    with pytest.raises(OutOfBlocks):
        model(ids(5, 1), past_key_values=PagedCache(LLAMA, 4))
    model(ids(1, 20), past_key_values=cache)
    assert cache.get_seq_length() == 60


@torch.no_grad()
def test_a_forward_pass_that_fails_half_way() -> None:
    model = torch_foundry.patch(random_model(LLAMA))
    cache, whole = PagedCache(LLAMA, 10), DynamicCache()
    tokens = ids(1, 40)
    model(tokens[:, :20], past_key_values=cache)

    def fail(*args: Any) -> None:
        raise RuntimeError("on purpose")

    hook = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        model(tokens[:, 20:], past_key_values=cache)
    hook.remove()
    assert cache.get_seq_length() == 20 and cache.manager.used == 2
    cache.manager.check()
    model(tokens[:, :20], past_key_values=whole)
    expected = model(tokens[:, 20:], past_key_values=whole).logits
    assert torch.equal(model(tokens[:, 20:], past_key_values=cache).logits, expected)


def test_sequences_by_name() -> None:
    """Two texts with the same beginning, in different steps: what the second finds need not be written again."""
    generator = torch.Generator().manual_seed(0)
    cache = PagedCache(LLAMA, 12, kv_cache="q8_0")
    manager, layer = cache.manager, cache.layers[0]
    keys, values = (p.allocate(HEADS, DIM, torch.float32, torch.device("cpu")) for p in layer.pools)
    text = list(range(40))
    k, v = torch.randn(2, 1, 40, HEADS * DIM, generator=generator)
    q = torch.randn(2, 4, 1, DIM, generator=generator)
    names = {"k_format": "q8_0", "v_format": "q8_0"}

    def write(name: str, start: int, count: int) -> None:
        cache.copy(manager.reserve(name, count))
        rows = torch.tensor([[start, count]], dtype=torch.int32)
        table = cache.tables([name], torch.device("cpu"))
        ops.rope_kv(
            torch.zeros(1, count, 4 * DIM), k[:, start : start + count], v[:, start : start + count], None, None,
            keys, values, 0, head_dim=DIM, rows=rows, block_table=table, **names,
        )  # fmt: skip
        manager.commit(name, text[start : start + count])

    assert manager.add("a", text) == 0
    write("a", 0, 25), write("a", 25, 15)
    manager.free("a")
    assert manager.add("b", text[:35]) == 32
    write("b", 32, 3)
    assert manager.add("c", text) == 32
    write("c", 32, 8)
    table = cache.tables(["b", "c"], torch.device("cpu"))
    rows = torch.tensor([[34, 1], [39, 1]], dtype=torch.int32)
    got = ops.attention(q, keys, values, 48, scale=0.2, rows=rows, block_table=table, **names)
    whole = [encoded(x.view(1, 40, HEADS, DIM).transpose(1, 2).contiguous(), "q8_0") for x in (k, v)]
    for i, length in enumerate((35, 40)):
        assert torch.equal(got[i], ops.attention(q[i : i + 1], *whole, length, scale=0.2, **names)[0])


def test_mistakes() -> None:
    for size in (8, 24):
        with pytest.raises(ValueError, match="block_size="):
            PagedCache(LLAMA, 4, block_size=size)
    cache = PagedCache(LLAMA, 4)
    with pytest.raises(TypeError, match="can't be assigned"):
        cache.layers[0].keys = torch.zeros(1)
    with pytest.raises(TypeError, match="rows of a paged cache"):
        cache.layers[0].reorder_cache(torch.tensor([0]))  # type: ignore[arg-type]
    k = torch.randn(1, 2, 3, 32)
    with pytest.raises(RuntimeError, match="no gradients"):
        cache.update(k.clone().requires_grad_(), k, 0)
    cache.update(k, k, 0)
    with pytest.raises(RuntimeError, match="another shape, dtype or device"):
        cache.update(k.half(), k.half(), 0)
    model = torch_foundry.patch(random_model(config("LlamaConfig", num_hidden_layers=3)))
    with torch.no_grad(), pytest.raises(RuntimeError, match="it was made for 2 layers, and the model has more"):
        model(ids(1, 5), past_key_values=PagedCache(LLAMA, 4))
    with pytest.raises(DoesNotFit, match="no room for 16777216 blocks of 16 tokens"):
        PagedCache(LLAMA, 2**24).update(k, k, 0)
