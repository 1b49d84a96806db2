"""Caches of every format: what they hold, how they grow, what models and graphs make of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from transformers.cache_utils import DynamicCache, DynamicLayer

import torch_foundry
from tests.hf.tiny_models import config, ids, random_model
from tools.demo_model.evaluate import perplexity
from torch_foundry import counters, demo_model, ops
from torch_foundry.demo_model import held_out_sample
from torch_foundry.engine.memory import block_bytes
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.buffer import GrowingBuffer
from torch_foundry.kvcache.formats import Formats, decoded, encoded, packed, parse
from torch_foundry.kvcache.hf_cache import new_cache
from torch_foundry.kvcache.layer import FoundryLayer
from torch_foundry.kvcache.room import LARGEST
from torch_foundry.quant.kv import row_bytes

F32 = torch.float32
BOTH = ("q8_0", "q4_0")


@pytest.mark.parametrize("formats", [(None, None), BOTH], ids=["dense", "packed"])
def test_growing_is_one_shot(formats: Formats) -> None:
    """2047, 2048, 2049, 4097 tokens: the same bits as at once, in few moves, with little more memory than is used."""
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 1, 1, 4097, 32, generator=generator)
    layer, q = FoundryLayer(formats=formats), torch.randn(1, 2, 1, 32, generator=generator)
    capacities, end = set(), 0
    stops = [2047, *range(2048, 2060), 4096, 4097]
    for stop in stops:
        tokens = stop - end
        view = layer.reserve(1, KVSpec(1, 32), tokens, F32, q.device)
        new = (x[:, 0, end:stop].contiguous() for x in (k, v))
        view.write(torch.zeros(1, tokens, 64), *new, (None, None), head_dim=32)
        layer.commit(tokens)
        capacity = layer.capacity
        capacities.add(capacity)
        assert capacity <= 2 * stop + 128 and capacity % 128 == 0
        end = stop
    assert len(capacities) == 3  # 2048, at 2049 twice that, at 4097 again
    kinds: dict[str, Any] = {"k_format": packed(formats[0]), "v_format": packed(formats[1]), "scale": 0.2}
    once = [x if name is None else encoded(x, name) for x, name in zip((k, v), formats, strict=True)]
    keys, values = layer.memory
    assert keys is not None and values is not None
    assert torch.equal(keys[:, :, :4097], once[0]) and torch.equal(values[:, :, :4097], once[1])
    assert torch.equal(ops.attention(q, keys, values, 4097, **kinds), ops.attention(q, *once, 4097, **kinds))


def test_the_largest_buffer() -> None:
    """What kernels can index is used to its end, and no further; the error says how much fits."""
    device, shape = torch.device("meta"), (4, 8, 128)
    most = LARGEST // (4 * 8 * 128)
    buffer = GrowingBuffer()
    buffer.reserve(shape, most // 2 + 100, F32, device)
    buffer.extend(most // 2 + 100)
    buffer.reserve(shape, 1000, F32, device)
    assert buffer.capacity == most  # not twice as much
    buffer.extend(most - buffer.length)
    before = buffer.data
    with pytest.raises(RuntimeError, match=f"no room for {most + 1} tokens.* {most} tokens fit"):
        buffer.reserve(shape, 1, F32, device)
    assert buffer.data is before and buffer.length == most
    packed_buffer = GrowingBuffer("q4_0")
    packed_buffer.reserve(shape, 1, F32, device)
    assert packed_buffer.data is not None and packed_buffer.data.shape == (4, 8, 128, row_bytes(128, "q4_0"))
    with pytest.raises(RuntimeError, match="no room for"):
        GrowingBuffer().reserve(shape, most + 1, F32, device)


@pytest.mark.cpu_only
@pytest.mark.parametrize("kind", [None, "q8_0"])
def test_rejected_drafts_take_no_room_behind_the_end(kind: str | None) -> None:
    model = torch_foundry.patch(random_model(config("LlamaConfig")))
    model.generation_config.eos_token_id = None
    for prompt, new in ((13, 8), (22, 13), (34, 7)):
        way = {"max_new_tokens": new, "do_sample": False, "prompt_lookup_num_tokens": 7}
        full = new_cache(model.config, kind, max_length=prompt + new - 1)
        out = model.generate(ids(1, prompt), past_key_values=full, **way)
        assert torch.equal(out, model.generate(ids(1, prompt), past_key_values=new_cache(model.config, kind), **way))


@pytest.mark.parametrize("kind", [None, "q8_0"])
def test_a_limit(kind: str | None) -> None:
    """Memory grows up to it and no further; what would not fit changes nothing, by any way of running."""
    model = torch_foundry.patch(random_model(config("LlamaConfig")))
    model.generation_config.eos_token_id = None
    cache = new_cache(model.config, kind, max_length=300)
    assert cache.get_max_length() == 300
    layer: Any = cache.layers[0]
    with torch.no_grad():
        model(ids(1, 130), past_key_values=cache)
        assert layer.memory[0].shape[2] == 256
        model(ids(1, 169), past_key_values=cache)
        assert layer.memory[0].shape[2] == 300
        for tokens in (2, 30):  # by a graph, and layer by layer
            with pytest.raises(RuntimeError, match=f"no room for {299 + tokens} tokens: it was made for at most 300"):
                model(ids(1, tokens), past_key_values=cache)
        assert all(each.get_seq_length() == 299 for each in cache.layers)
        model(ids(1, 1), past_key_values=cache)
    cache.reset()
    options = {"max_new_tokens": 20, "do_sample": False}
    for way in ({}, {"sync_every": 1}):
        out = model.generate(ids(1, 281), past_key_values=cache, **options, **way)  # the last token is never stored
        assert torch.equal(out, model.generate(ids(1, 281), **options))
        cache.reset()
    with pytest.raises(RuntimeError, match="made for at most 300"):
        model.generate(ids(1, 282), past_key_values=cache, **options)
    sliding = new_cache(config("MistralConfig", sliding_window=12), kind, max_length=20)
    window = torch_foundry.patch(random_model(config("MistralConfig", sliding_window=12)))
    assert window.generate(ids(1, 30), past_key_values=sliding, **options).shape[1] == 50
    with pytest.raises(ValueError, match="max_length=0"):
        new_cache(model.config, kind, max_length=0)


def test_names() -> None:
    assert parse(None) == (None, None) and parse("q8_0") == ("q8_0", "q8_0")
    assert parse({"k": "q8_0"}) == ("q8_0", None) and parse({"k": "f16", "v": "q4_0"}) == ("f16", "q4_0")
    for wrong in ("q5_k", {"keys": "q8_0"}, {"k": "int8"}, ""):
        with pytest.raises(ValueError, match="kv_cache="):
            parse(wrong)
    model = random_model(config("LlamaConfig"))
    with pytest.raises(ValueError, match="kv_cache="):
        torch_foundry.patch(model, kv_cache="q2")
    assert not hasattr(model, "_foundry")


def test_memory_of_a_token() -> None:
    """Of a layer of 8 heads of 128: 8.5 and 4.5 bits a number."""
    for kind, expected in ((None, 4096), ("q8_0", 2176), ("q4_0", 1152)):
        assert block_bytes([KVSpec(8, 128)], 1, kind, torch.float16) == expected
    cache = new_cache(config("LlamaConfig"), "q8_0")
    model = torch_foundry.patch(random_model(config("LlamaConfig")))
    with torch.no_grad():
        model(ids(1, 100), past_key_values=cache)
    layer: Any = cache.layers[0]
    used = sum(b.nbytes / b.shape[2] for b in layer.memory)
    assert used == block_bytes([KVSpec(2, 32)], 1, "q8_0", F32)


class Rounding(DynamicLayer):
    """A stock layer that stores what packing leaves."""

    formats: Formats = BOTH

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """As stock."""
        both = []
        for x, name in zip((key_states, value_states), self.formats, strict=True):
            both.append(x if name is None else decoded(encoded(x.float(), name), name, x.dtype))
        return super().update(*both, *args, **kwargs)


def rounding_cache(layers: int, formats: Formats) -> DynamicCache:
    cache = DynamicCache()
    for _ in range(layers):
        layer = Rounding()
        layer.formats = formats
        cache.layers.append(layer)
    return cache


@pytest.mark.parametrize(
    ("name", "options", "formats"),
    [
        ("LlamaConfig", {"head_dim": 80}, ("q8_0", "q4_0")),
        ("Qwen3Config", {}, ("q8_0", "q8_0")),
        ("Qwen2Config", {}, ("q4_0", None)),
    ],
)
@torch.no_grad()
def test_models_compute_with_what_is_stored(name: str, options: dict[str, Any], formats: Formats) -> None:
    """Against float64 with a cache of the same rounded numbers: off by little next to what the rounding itself does
    (a code on the edge may fall to the other side), in prompts and in steps; and the same tokens."""
    stock = random_model(config(name, **options))
    stock.generation_config.eos_token_id = None
    truth = copy.deepcopy(stock).double()
    kinds = {"k": formats[0], "v": formats[1]}
    model = torch_foundry.patch(copy.deepcopy(stock), kv_cache=kinds)
    tokens, cache, expected = ids(2, 40), DynamicCache(), []
    reference = rounding_cache(2, formats)
    got, exact = [], []
    for part in (tokens[:, :25], *tokens[:, 25:].split(1, dim=1)):
        got.append(model(part, past_key_values=cache).logits)
        expected.append(truth(part, past_key_values=reference).logits)
    exact = truth(tokens).logits
    ours, theirs = torch.cat(got, 1).double(), torch.cat(expected, 1)
    assert all(layer.formats == tuple(map(packed, formats)) for layer in cache.layers)
    assert float((ours - theirs).norm()) <= 0.15 * float((exact - theirs).norm())
    prompt = tokens[:, :10]
    options = {"max_new_tokens": 20, "do_sample": False}
    by_loop = model.generate(prompt, **options)
    assert torch.equal(by_loop, stock.generate(prompt, past_key_values=rounding_cache(2, formats), **options))
    assert torch.equal(by_loop, model.generate(prompt, sync_every=0, **options))
    assert torch.equal(by_loop, model.generate(prompt, past_key_values=new_cache(model.config, kinds), **options))
    seen = torch_foundry.report(model)
    assert not seen.fallbacks, str(seen)
    assert "captured" in str(seen) or is_in_torch_dispatch_mode(), str(seen)  # the mock of mps is one: no graphs there


@torch.no_grad()
def test_rows_are_packed_and_unpacked_inside_other_launches() -> None:
    """On a graph and off it: attention does both."""
    launches = []
    for kind in (None, "q8_0", "q4_0"):
        model = torch_foundry.patch(random_model(config("LlamaConfig")), kv_cache=kind)
        cache = DynamicCache()
        model(ids(1, 20), past_key_values=cache)
        model(ids(1, 1), past_key_values=cache)
        before = counters().launches
        model(ids(1, 1), past_key_values=cache)
        launches.append(counters().launches - before)
    assert launches == [launches[0]] * 3


@pytest.mark.parametrize("way", [{"num_beams": 3}, {"prompt_lookup_num_tokens": 3}, {"pad": True}], ids=str)
def test_ways_of_generating(way: dict[str, Any]) -> None:
    """Beams reorder rows, drafts are cropped, rows are padded: the tokens of a stock model on the rounded numbers."""
    stock = random_model(config("LlamaConfig"))
    stock.generation_config.eos_token_id = None
    model = torch_foundry.patch(copy.deepcopy(stock), kv_cache="q8_0")
    way, prompt = dict(way), ids(1, 12)
    if way.pop("pad", False):
        prompt = ids(2, 12)
        mask = torch.ones_like(prompt)
        mask[1, :5] = 0
        way["attention_mask"] = mask
    options = {"max_new_tokens": 15, "do_sample": False, **way}
    expected = stock.generate(prompt, past_key_values=rounding_cache(2, ("q8_0", "q8_0")), **options)
    assert torch.equal(model.generate(prompt, **options), expected)


def test_a_sliding_window_that_is_packed() -> None:
    stock = random_model(config("Gemma3TextConfig", sliding_window=12, num_hidden_layers=6))
    stock.generation_config.eos_token_id = None
    model = torch_foundry.patch(copy.deepcopy(stock), kv_cache={"k": "f16", "v": "q8_0"})
    prompt, options = ids(2, 20), {"max_new_tokens": 30, "do_sample": False}
    tokens = model.generate(prompt, **options)
    cache = new_cache(model.config, {"k": "f16", "v": "q8_0"})
    assert torch.equal(tokens, model.generate(prompt, past_key_values=cache, sync_every=0, **options))
    assert torch.equal(tokens, stock.generate(prompt, **options)), "as close as that is"
    sliding: Any = cache.layers[0]
    assert sliding.memory[1].dtype == torch.uint8 and sliding.memory[0].dtype == torch.float16
    assert sliding.memory[0].shape[2] <= 128 + 64


def test_another_format_from_now_on() -> None:
    """What the last generation left is of the old format."""
    model = random_model(config("LlamaConfig"))
    model.generation_config.eos_token_id = None
    prompt, options = ids(1, 10), {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    torch_foundry.patch(model)
    for kind, dtype in ((None, F32), ("q8_0", torch.uint8), ("bf16", torch.bfloat16), ("f32", F32)):
        torch_foundry.patch(model, kv_cache=kind)
        model.generate(prompt, max_new_tokens=12, do_sample=False)
        out = model.generate(prompt, **options)
        assert out.past_key_values.layers[0].memory[0].dtype == dtype


def test_no_gradients_and_no_other_dtype() -> None:
    layer = FoundryLayer(formats=("q8_0", "q8_0"))
    k = torch.randn(1, 2, 3, 32)
    with pytest.raises(RuntimeError, match="no gradients"):
        layer.update(k.clone().requires_grad_(), k)
    layer.update(k, k)
    with pytest.raises(RuntimeError, match=r"expected torch\.float32 on cpu as before, got torch\.float16"):
        layer.update(k.half(), k.half())


def test_assigning_what_was_read() -> None:
    """Code that takes keys, changes them and puts them back."""
    layer = FoundryLayer(formats=("q8_0", "q4_0"))
    k, v = torch.randn(2, 2, 2, 9, 64)
    layer.update(k, v)
    before = layer.keys, layer.values
    layer.keys, layer.values = layer.keys[:1], layer.values[:1]  # type: ignore[index]
    assert torch.equal(layer.keys, before[0][:1]) and torch.equal(layer.values, before[1][:1])  # type: ignore[index]
    layer.update(k[:1], v[:1])
    assert layer.get_seq_length() == 18


@pytest.mark.cpu_only
def test_perplexity_of_the_demo_model() -> None:
    """Within 0.1 % of a dense cache's with q8_0, in a prompt; of q4_0 within 2 %."""
    directory = Path(demo_model.__file__).parent / "main"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=F32).eval()
    texts = held_out_sample(2)
    dense = perplexity(model, tokenizer, texts)
    for kind, allowed in (("q8_0", 1e-3), ("q4_0", 2e-2)):
        torch_foundry.patch(model, kv_cache=kind)
        found = perplexity(model, tokenizer, texts)
        assert 0 < abs(found / dense - 1) < allowed
    assert not torch_foundry.report(model).fallbacks
