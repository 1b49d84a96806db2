"""Forward passes of a few tokens replay graphs: bit for bit what capturing them computes, whatever the cache holds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import torch_foundry
from tests.exact import assert_as_exact
from tests.hf.test_step import launches_of
from tests.hf.tiny_cases import FAMILIES
from tests.hf.tiny_models import build, ids, padded, shared
from torch_foundry import counters
from torch_foundry.hf.api import report

pytestmark = pytest.mark.usefixtures("quiet")


def patched(family: str = "llama", **options: Any) -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(family)) if not options else build(family, **options))


def filled(model: Any, prompt: torch.Tensor, **inputs: Any) -> DynamicCache:
    """A cache that holds `prompt`."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(prompt, past_key_values=cache, **inputs)
    return cache


@torch.no_grad()
def logits(model: Any, cache: DynamicCache, tokens: torch.Tensor, **inputs: Any) -> torch.Tensor:
    return model(input_ids=tokens, past_key_values=cache, **inputs).logits


def contents(cache: DynamicCache) -> list[torch.Tensor]:
    return [t.clone() for layer in cache.layers for t in (layer.keys, layer.values)]


def forget(model: Any) -> None:
    """Let the next step be captured, that is, run op by op."""
    model.model.decoder_plan().guard = None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replay_is_what_recording_computes(family: str) -> None:
    replaying, capturing = patched(family), patched(family)
    inputs = padded([9, 4])
    caches = [filled(m, inputs["input_ids"], attention_mask=inputs["attention_mask"]) for m in (replaying, capturing)]
    mask = inputs["attention_mask"]
    for step, length in enumerate((1, 3, 1, 1, 3, 8, 1, 8, 1)):
        mask = torch.cat([mask, mask.new_ones(2, length)], dim=1)
        positions = (mask.cumsum(1) - 1)[:, -length:]
        tokens = ids(2, length, seed=step)
        forget(capturing)
        found = [
            logits(m, c, tokens, attention_mask=mask, position_ids=positions)
            for m, c in zip((replaying, capturing), caches, strict=True)
        ]
        assert torch.equal(*found), f"step {step}"
    assert all(torch.equal(a, b) for a, b in zip(*map(contents, caches), strict=True))
    assert (report(replaying).captured, report(capturing).captured) == (3, 9)
    assert not report(replaying).eager


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_positions_from_the_host_or_from_the_device(family: str) -> None:
    model = patched(family)
    caches = [filled(model, ids(2, 9)) for _ in range(3)]
    for at in range(9, 21):
        tokens = ids(2, 1, seed=at)
        by_default = logits(model, caches[0], tokens)
        given = logits(model, caches[1], tokens, position_ids=torch.tensor([[at]]))
        masked = logits(model, caches[2], tokens, attention_mask=torch.ones(2, at + 1, dtype=torch.bool))
        assert torch.equal(by_default, given) and torch.equal(by_default, masked)
    assert report(model).captured == 3 and not report(model).eager


def test_positions_and_masks_mean_what_they_mean_to_stock(pair: Any) -> None:
    stock, model = pair
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 2:5] = mask[1, 10] = 0
    inputs = {"attention_mask": mask, "position_ids": torch.tensor([[40, 7, 100], [3, 4, 900]])}
    assert_as_exact(lambda each: logits(each, filled(each, ids(2, 9)), ids(2, 3, seed=4), **inputs), model, stock)
    assert report(model).steps == 1


def test_logits_are_the_callers_to_keep() -> None:
    model = patched()
    cache = filled(model, ids(1, 9))
    kept = [logits(model, cache, ids(1, 1, seed=s)) for s in range(4)]
    copies = [t.clone() for t in kept]
    hidden = model.model(input_ids=ids(1, 1), past_key_values=cache).last_hidden_state
    before = hidden.clone()
    logits(model, cache, ids(1, 1, seed=9))
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True)) and torch.equal(hidden, before)
    assert len({t.data_ptr() for t in kept}) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_one_graph_of_few_launches(family: str) -> None:
    for layers in (2, 4):
        model = patched(family, layers=layers)
        cache = filled(model, ids(1, 9))
        logits(model, cache, ids(1, 1))
        before = counters()
        logits(model, cache, ids(1, 1))
        # embedding, norm and output layer
        assert (
            counters().launches - before.launches == sum(launches_of(family, layer) for layer in model.model.layers) + 3
        )


def test_caches_have_their_own_graphs() -> None:
    model, other = patched(), patched()
    first, second = filled(model, ids(1, 9)), filled(model, ids(1, 20, seed=1))
    alone = [filled(other, ids(1, 9)), filled(other, ids(1, 20, seed=1))]
    for step in range(4):
        for cache, reference in zip((first, second), alone, strict=True):
            tokens = ids(1, 1, seed=step)
            forget(other)
            assert torch.equal(logits(model, cache, tokens), logits(other, reference, tokens))
    assert report(model).captured == 2
    graphs = model.model._foundry.graphs._owned
    assert len(graphs) == 2
    del cache, first, second
    assert len(graphs) == 0, "a graph must not keep a cache's memory"


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_cache_grows_under_its_graphs(family: str) -> None:
    model = patched(family)

    def every_tenth(each: Any) -> list[torch.Tensor]:
        cache = filled(each, ids(2, 120))
        found = [logits(each, cache, ids(2, 1, seed=step)) for step in range(150)]
        assert [layer.get_seq_length() for layer in cache.layers] == [270, 270]
        return [*found[::10], found[-1]]

    assert_as_exact(every_tenth, model, shared(family))
    assert report(model).captured <= 3


def change_by_crop(cache: DynamicCache, stock: Any) -> None:
    cache.crop(-2)


def change_by_reorder(cache: DynamicCache, stock: Any) -> None:
    cache.reorder_cache(torch.tensor([1, 0]))


def change_by_assignment(cache: DynamicCache, stock: Any) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.clone(), layer.values.clone()


def change_by_slices(cache: DynamicCache, stock: Any) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, 2:], layer.values[:, :, 2:]


def change_by_stock_layers(cache: DynamicCache, stock: Any) -> None:
    fresh = DynamicCache(config=stock.config)
    for index, layer in enumerate(cache.layers):
        fresh.update(layer.keys.clone(), layer.values.clone(), index)
    cache.layers[:] = fresh.layers


def change_by_reset(cache: DynamicCache, stock: Any) -> None:
    if type(cache.layers[0]) is DynamicLayer:  # whose reset kept the length in earlier versions
        cache.layers[:] = DynamicCache(config=stock.config).layers
    else:
        cache.reset()
    with torch.no_grad():
        stock(ids(2, 5, seed=3), past_key_values=cache)


CHANGES = [
    change_by_crop,
    change_by_reorder,
    change_by_assignment,
    change_by_slices,
    change_by_stock_layers,
    change_by_reset,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_cache_changed_from_outside(change: Any) -> None:
    stock, model = shared("llama"), patched()

    def steps(each: Any) -> list[torch.Tensor]:
        cache, found = filled(each, ids(2, 9)), []
        for step in range(6):
            found.append(logits(each, cache, ids(2, 1, seed=step)))
            if step in (1, 3):
                change(cache, stock if each is model else each)
        return found

    assert_as_exact(steps, model, stock)
    assert report(model).steps == 6, str(report(model))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_stock_code_and_graphs_share_a_cache(family: str) -> None:
    stock, model, lengths = shared(family), patched(family), []

    def steps(each: Any) -> list[torch.Tensor]:
        cache, found = filled(each, ids(1, 9)), []
        for step in range(30):
            one = stock if each is model and step % 5 == 4 else each
            found.append(logits(one, cache, ids(1, 1 + step % 3, seed=step)))
        lengths.append([layer.get_seq_length() for layer in cache.layers])
        return found

    assert_as_exact(steps, model, stock)
    assert lengths[0] == lengths[1]


def test_a_cache_without_a_config_and_windows() -> None:
    def steps(each: Any) -> list[torch.Tensor]:
        cache = DynamicCache()
        logits(each, cache, ids(1, 9))
        return [logits(each, cache, ids(1, 1, seed=step)) for step in range(30)]

    model = patched("mistral")
    assert_as_exact(steps, model, shared("mistral"))
    assert report(model).steps == 30


def test_attention_in_both_directions() -> None:
    """Between the new tokens, that is: a graph is causal."""
    stock = copy.deepcopy(shared("gemma3"))
    stock.config.use_bidirectional_attention = True
    model = torch_foundry.patch(copy.deepcopy(stock))
    assert_as_exact(lambda each: logits(each, filled(each, ids(1, 9)), ids(1, 3, seed=1)), model, stock)
    assert report(model).eager == {"attention is not causal": 1}
    found = [m.generate(ids(1, 9), max_new_tokens=9, do_sample=False).tolist() for m in (stock, model)]
    assert found[0] == found[1] and report(model).tokens == 0


def test_inference_mode_and_back() -> None:
    def steps(each: Any) -> list[torch.Tensor]:
        cache, found = filled(each, ids(1, 9)), []
        for step in range(6):
            with torch.inference_mode(step in (1, 2, 4)):
                found.append(logits(each, cache, ids(1, 1, seed=step)))
        return found

    model = patched()
    assert_as_exact(steps, model, shared("llama"))
    with torch.inference_mode():
        inside = DynamicCache(config=model.config)
        logits(model, inside, ids(1, 9))
        logits(model, inside, ids(1, 1))
    assert logits(model, inside, ids(1, 1)).isfinite().all()
    assert report(model).steps == 8


@pytest.mark.parametrize("token", [-1, 120, 10_000])
def test_ids_outside_the_vocabulary_raise_as_in_stock(token: int, pair: Any) -> None:
    """A graph looks at no values, and its kernel would read what lies beside the embedding."""
    for model in pair:
        cache = filled(model, ids(1, 9))
        logits(model, cache, ids(1, 2))
        with pytest.raises(IndexError):
            logits(model, cache, torch.tensor([[5, token]]))
        assert cache.get_seq_length() == 11


@pytest.mark.parametrize("length", [9, 12])
def test_masks_of_another_length_are_stocks(length: int, pair: Any) -> None:
    """Of 9 tokens and 2 more; a graph would see what is beyond a short mask."""
    found: list[Any] = []
    for model in pair:
        cache = filled(model, ids(1, 9))
        mask = torch.ones(1, length, dtype=torch.long)
        mask[0, :4] = 0
        try:
            found.append(logits(model, cache, ids(1, 2), attention_mask=mask))
        except (IndexError, RuntimeError) as error:
            found.append(str(error))
    theirs, ours = found
    assert ours == theirs if isinstance(theirs, str) else torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not report(pair[1]).steps
    if not isinstance(theirs, str):
        assert report(pair[1]).eager == {"mask is not one of [batch, tokens]": 1}


def test_a_factor_that_the_dtype_does_not_have() -> None:
    """Kernels multiply by the exact number, as stock code does."""
    model = patched("granite", dtype=torch.bfloat16, embedding_multiplier=0.1)
    ours = logits(model, filled(model, ids(1, 9)), ids(1, 1))
    assert report(model).steps == 1 and not report(model).eager
    torch_foundry.unpatch(model)
    theirs, exact = (logits(m, filled(m, ids(1, 9)), ids(1, 1)) for m in (model, copy.deepcopy(model).double()))
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()
