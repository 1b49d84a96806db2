"""The cache that a generation leaves is Hugging Face's, also after an interrupt or an error."""

from __future__ import annotations

import copy
import random
import signal
import sys
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from tests.generation.generation import Collect, generate, patched, reference
from tests.hf.tiny_models import ids, padded, shared
from tests.interrupt import Interrupt
from torch_foundry.hf.api import report
from torch_foundry.kvcache.layer import FoundryLayer

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("every", [0, 16])
@pytest.mark.parametrize("whole", [True, False], ids=["whole text", "new tokens"])
@pytest.mark.parametrize("start", [0, 9, 3])
def test_positions_of_the_callers_own(every: int, whole: bool, start: int) -> None:
    """For a second turn, whose positions go on from the first, or don't."""
    new = ids(1, 12, seed=8)
    found = []
    for model in (copy.deepcopy(shared("llama")), patched()):
        cache = filled(model)
        inputs = {
            "input_ids": torch.cat([ids(1, 9), new], dim=1) if whole else new,
            "attention_mask": torch.ones(1, 21, dtype=torch.long),
        }
        count = inputs["input_ids"].shape[1]
        inputs["position_ids"] = (start - (9 if whole and start else 0) + torch.arange(count))[None].clamp(min=0)
        found.append(generate(model, inputs, every=every, past_key_values=cache).tolist())
    assert found[0] == found[1]


def filled(model: Any) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids(1, 9), past_key_values=cache)
    return cache


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_chat_goes_on_with_the_cache(family: str) -> None:
    texts = []
    for model in (copy.deepcopy(shared(family)), patched(family)):
        cache, text = DynamicCache(config=model.config), ids(1, 9)
        for turn in range(4):
            text = generate(model, {"input_ids": text}, past_key_values=cache, max_new_tokens=25)
            assert cache.get_seq_length() == text.shape[1] - 1
            text = torch.cat([text, ids(1, 5, seed=turn)], dim=1)
        texts.append(text.tolist())
    assert texts[0] == texts[1]


def test_stock_code_goes_on_with_the_cache() -> None:
    for family in ("llama", "mistral"):
        stock, model = copy.deepcopy(shared(family)), patched(family)
        found = []
        for first, second in ((stock, stock), (model, stock), (stock, model)):
            cache = DynamicCache(config=model.config)
            text = generate(first, past_key_values=cache)
            found.append(generate(second, {"input_ids": text}, past_key_values=cache).tolist())
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("every", [7, 64])
def test_long_texts(family: str, every: int) -> None:
    """Across three capacities of a cache, and many times around a window."""
    inputs = padded([100, 93])
    model = patched(family)
    ours = generate(model, inputs, every=every, max_new_tokens=330)
    assert ours.tolist() == reference(family, inputs, max_new_tokens=330).tolist()
    assert report(model).captured <= 4 and not report(model).eager, str(report(model))


def test_memory_is_set_aside_for_what_was_asked_for() -> None:
    model = patched()
    for prompt, new in ((100, 150), (9, 40), (120, 8)):
        before = report(model).captured
        found = generate(model, {"input_ids": ids(1, prompt)}, max_new_tokens=new, return_dict_in_generate=True)
        capacity = found.past_key_values.layers[0].memory[0].shape[2]
        assert capacity == -(-(prompt + new) // 128) * 128
        assert report(model).captured - before == 1


@pytest.mark.parametrize("place", [1, 2, 9, 16])
def test_an_interrupt_leaves_a_cache_that_can_be_used(place: int) -> None:
    for family in ("llama", "mistral"):
        model, cache, streamer = patched(family), DynamicCache(config=shared(family).config), Collect(place)
        with pytest.raises(KeyboardInterrupt):
            generate(model, every=4, past_key_values=cache, streamer=streamer)
        lengths = {layer.get_seq_length() for layer in cache.layers}
        assert len(lengths) == 1
        full = reference(family)
        seen = lengths.pop()
        rest = generate(model, {"input_ids": full[:, : seen + 1]}, past_key_values=cache, max_new_tokens=38 - seen)
        assert rest.tolist() == full.tolist()


def test_an_interrupt_while_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = patched("gemma3"), DynamicCache(config=shared("gemma3").config)
    commit, calls = FoundryLayer.commit, []

    def interrupted(layer: FoundryLayer, tokens: int) -> None:
        calls.append(1)
        if len(calls) == 3:  # the prompt's, a block's, the next block's
            signal.raise_signal(signal.SIGINT)  # waits until all layers have counted
        commit(layer, tokens)

    monkeypatch.setattr(FoundryLayer, "commit", interrupted)  # the second layer; the first one has a window
    with pytest.raises(KeyboardInterrupt):
        generate(model, every=16, past_key_values=cache)
    assert [layer.get_seq_length() for layer in cache.layers] == [9 + 29, 9 + 29]


@pytest.mark.parametrize("options", [{}, {"prompt_lookup_num_tokens": 4}], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_ctrl_c_at_any_line_leaves_a_cache_that_can_be_used(family: str, options: dict[str, Any]) -> None:
    """While the prompt is read, too: its layers are rolled back together."""
    model, full, chance, seen = patched(family), reference(family), random.Random(family), []
    for _ in range(40):
        cache, before = DynamicCache(config=model.config), sys.gettrace()
        sys.settrace(Interrupt(chance.randrange(1, 9000), ("/kvcache/", "/generation/", "/hf/", "/models/", "/core/")))
        try:
            generate(model, every=4, past_key_values=cache, **options)
        except KeyboardInterrupt:
            lengths = {layer.get_seq_length() for layer in cache.layers}
            assert len(lengths) <= 1
            seen.append(max(lengths, default=0))
        finally:
            sys.settrace(before)
        text = full[:, : max(cache.get_seq_length() + 1, 9)]
        if left := full.shape[1] - text.shape[1]:
            rest = generate(model, {"input_ids": text}, past_key_values=cache, max_new_tokens=left)
            assert rest.tolist() == full.tolist()
    assert len(seen) > 10 and 0 in seen and max(seen) > 20


def test_an_error_of_a_step_leaves_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_foundry.generation.step_graph import StepGraph

    model, cache = patched(), DynamicCache(config=shared("llama").config)
    run, calls = StepGraph.run, []

    def failing(graph: StepGraph) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 22:
            raise RuntimeError("no")
        return run(graph)

    monkeypatch.setattr(StepGraph, "run", failing)
    with pytest.raises(RuntimeError, match=r"^no$"):
        generate(model, past_key_values=cache)
    assert [layer.get_seq_length() for layer in cache.layers] == [9 + 15, 9 + 15], "what the first read told"
