"""Forward passes of a few tokens replay tapes: bit for bit what recording them computes, whatever the cache holds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import torch_foundry
from tests.patch.test_step import launches_of
from tests.patch.zoo import FAMILIES, assert_close, build, ids, padded, shared
from torch_foundry import counters
from torch_foundry.patch import report

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
    """Let the next step be recorded, that is, run op by op."""
    model.model.decoder_plan().snapshot = None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replay_is_what_recording_computes(family: str) -> None:
    replaying, recording = patched(family), patched(family)
    inputs = padded([9, 4])
    caches = [filled(m, inputs["input_ids"], attention_mask=inputs["attention_mask"]) for m in (replaying, recording)]
    mask = inputs["attention_mask"]
    for step, length in enumerate((1, 3, 1, 1, 3, 8, 1, 8, 1)):
        mask = torch.cat([mask, mask.new_ones(2, length)], dim=1)
        positions = (mask.cumsum(1) - 1)[:, -length:]
        tokens = ids(2, length, seed=step)
        forget(recording)
        found = [
            logits(m, c, tokens, attention_mask=mask, position_ids=positions)
            for m, c in zip((replaying, recording), caches, strict=True)
        ]
        assert torch.equal(*found), f"step {step}"
    assert all(torch.equal(a, b) for a, b in zip(*map(contents, caches), strict=True))
    assert (report(replaying).recorded, report(recording).recorded) == (3, 9)
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
    assert report(model).recorded == 3 and not report(model).eager


def test_positions_and_masks_mean_what_they_mean_to_stock(pair: Any) -> None:
    caches = [filled(m, ids(2, 9)) for m in pair]
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 2:5] = mask[1, 10] = 0
    inputs = {"attention_mask": mask, "position_ids": torch.tensor([[40, 7, 100], [3, 4, 900]])}
    ours, theirs = (logits(m, c, ids(2, 3, seed=4), **inputs) for m, c in zip(pair[::-1], caches[::-1], strict=True))
    assert_close(ours, theirs)
    assert report(pair[1]).steps == 1


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
def test_a_step_is_one_tape_of_few_launches(family: str) -> None:
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


def test_caches_have_their_own_tapes() -> None:
    model, other = patched(), patched()
    first, second = filled(model, ids(1, 9)), filled(model, ids(1, 20, seed=1))
    alone = [filled(other, ids(1, 9)), filled(other, ids(1, 20, seed=1))]
    for step in range(4):
        for cache, reference in zip((first, second), alone, strict=True):
            tokens = ids(1, 1, seed=step)
            forget(other)
            assert torch.equal(logits(model, cache, tokens), logits(other, reference, tokens))
    assert report(model).recorded == 2
    tapes = model.model._foundry._tapes
    assert len(tapes) == 2
    del cache, first, second
    assert len(tapes) == 0, "a tape must not keep a cache's memory"


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_cache_grows_under_its_tapes(family: str) -> None:
    stock, model = shared(family), patched(family)
    caches = [filled(m, ids(2, 120)) for m in (stock, model)]
    for step in range(150):
        tokens = ids(2, 1, seed=step)
        theirs, ours = (logits(m, c, tokens) for m, c in zip((stock, model), caches, strict=True))
        if step % 10 == 0:
            assert_close(ours, theirs)
    assert_close(ours, theirs)
    assert [layer.get_seq_length() for layer in caches[1].layers] == [270, 270]
    assert report(model).recorded <= 3


def change_by_crop(cache: DynamicCache) -> None:
    cache.crop(-2)


def change_by_reorder(cache: DynamicCache) -> None:
    cache.reorder_cache(torch.tensor([1, 0]))


def change_by_assignment(cache: DynamicCache) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.clone(), layer.values.clone()


def change_by_slices(cache: DynamicCache) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, 2:], layer.values[:, :, 2:]


def change_by_stock_layers(cache: DynamicCache) -> None:
    fresh = DynamicCache(config=shared("llama").config)
    for index, layer in enumerate(cache.layers):
        fresh.update(layer.keys.clone(), layer.values.clone(), index)
    cache.layers[:] = fresh.layers


def change_by_reset(cache: DynamicCache) -> None:
    if type(cache.layers[0]) is DynamicLayer:  # whose reset kept the length in earlier versions
        cache.layers[:] = DynamicCache(config=shared("llama").config).layers
    else:
        cache.reset()
    with torch.no_grad():
        shared("llama")(ids(2, 5, seed=3), past_key_values=cache)


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
    caches = [filled(m, ids(2, 9)) for m in (stock, model)]
    for step in range(6):
        tokens = ids(2, 1, seed=step)
        theirs, ours = (logits(m, c, tokens) for m, c in zip((stock, model), caches, strict=True))
        assert_close(ours, theirs)
        if step in (1, 3):
            for cache in caches:
                change(cache)
    assert report(model).steps == 6, str(report(model))


def test_stock_code_and_tapes_share_a_cache() -> None:
    for family in ("llama", "mistral"):
        stock, model = shared(family), patched(family)
        caches = [filled(m, ids(1, 9)) for m in (stock, model)]
        for step in range(30):
            tokens = ids(1, 1 + step % 3, seed=step)
            theirs = logits(stock, caches[0], tokens)
            assert_close(logits(stock if step % 5 == 4 else model, caches[1], tokens), theirs)
        assert [layer.get_seq_length() for layer in caches[1].layers] == [c.get_seq_length() for c in caches[0].layers]


def test_a_cache_without_a_config_and_windows() -> None:
    stock, model = shared("mistral"), patched("mistral")
    caches = [DynamicCache(), DynamicCache()]
    for m, cache in zip((stock, model), caches, strict=True):
        logits(m, cache, ids(1, 9))
    for step in range(30):
        theirs, ours = (logits(m, c, ids(1, 1, seed=step)) for m, c in zip((stock, model), caches, strict=True))
        assert_close(ours, theirs)
    assert report(model).steps == 30


def test_attention_in_both_directions() -> None:
    """Between the new tokens, that is: a tape is causal."""
    stock = copy.deepcopy(shared("gemma3"))
    stock.config.use_bidirectional_attention = True
    model = torch_foundry.patch(copy.deepcopy(stock))
    caches = [filled(m, ids(1, 9)) for m in (stock, model)]
    theirs, ours = (logits(m, c, ids(1, 3, seed=1)) for m, c in zip((stock, model), caches, strict=True))
    assert_close(ours, theirs)
    assert report(model).eager == {"attention is not causal": 1}
    found = [m.generate(ids(1, 9), max_new_tokens=9, do_sample=False).tolist() for m in (stock, model)]
    assert found[0] == found[1] and report(model).tokens == 0


def test_inference_mode_and_back() -> None:
    stock, model = shared("llama"), patched()
    caches = [filled(m, ids(1, 9)) for m in (stock, model)]
    for step in range(6):
        with torch.inference_mode(step in (1, 2, 4)):
            theirs, ours = (logits(m, c, ids(1, 1, seed=step)) for m, c in zip((stock, model), caches, strict=True))
        assert_close(ours, theirs)
    with torch.inference_mode():
        inside = DynamicCache(config=model.config)
        logits(model, inside, ids(1, 9))
        logits(model, inside, ids(1, 1))
    assert logits(model, inside, ids(1, 1)).isfinite().all()
    assert report(model).steps == 8
