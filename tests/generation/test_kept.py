"""What generations leave to each other: the same tokens as without, and nothing that anybody else can see."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import torch_foundry
from tests.hf.tiny_cases import FAMILIES
from tests.hf.tiny_models import ids, padded, shared
from torch_foundry.hf.api import report

pytestmark = pytest.mark.usefixtures("quiet")
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 30, "repetition_penalty": 1.2}


def patched(family: str = "llama") -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(family)))


def generate(model: Any, inputs: Any = None, **options: Any) -> Any:
    torch.manual_seed(4)
    inputs = inputs or {"input_ids": ids(1, 9), "attention_mask": torch.ones(1, 9, dtype=torch.long)}
    return model.generate(**inputs, **{"max_new_tokens": 20, "do_sample": False, **options})


def spares(model: Any) -> Any:
    return model.model._foundry.graphs._spares


def captured(model: Any, *args: Any, **options: Any) -> int:
    """How many steps a generation records; its tokens must be those of a model that has kept nothing."""
    before = report(model).captured
    found = generate(model, *args, **options).tolist()
    forgetful = copy.deepcopy(model)
    assert found == generate(forgetful, *args, **options).tolist()
    return report(model).captured - before


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_recorded_once(family: str) -> None:
    model = patched(family)
    assert captured(model) == 1
    for length in (9, 30, 5, 120, 12):
        assert captured(model, {"input_ids": ids(1, length, seed=length)}) == (1 if length == 120 else 0)
    for lengths in ([9, 4, 7], [2, 30, 11], [9, 9, 3]):
        assert captured(model, padded(lengths), max_new_tokens=30) == (1 if lengths[0] == 9 and lengths[1] == 4 else 0)
    assert generate(model).tolist() == generate(copy.deepcopy(shared(family))).tolist()


def test_sampling() -> None:
    model = patched()
    assert captured(model, **SAMPLED) == 1
    assert captured(model, **SAMPLED) == 0
    assert captured(model, **{**SAMPLED, "temperature": 0.5, "repetition_penalty": 1.5}) == 0, "numbers only"
    assert captured(model, {"input_ids": ids(1, 20, seed=5)}, **SAMPLED) == 0
    assert captured(model) == 1, "other kernels"
    assert captured(model, eos_token_id=[5, 6], pad_token_id=0) == 1, "other tokens that end a text"
    assert captured(model, eos_token_id=[5, 6], pad_token_id=0) == 0


@pytest.mark.parametrize("every", [1, 3])
def test_after_an_early_end(every: int) -> None:
    """The device was ahead by a block when the last token was read."""
    model = patched()
    eos = generate(model)[0, 14].item()
    for _ in range(3):
        captured(model, eos_token_id=eos, pad_token_id=0, sync_every=every)
    assert captured(model, eos_token_id=eos, pad_token_id=0) == 0


def test_caches_that_somebody_knows_are_left_alone() -> None:
    model = patched()
    generate(model)
    assert len(spares(model)) == 1
    mine = DynamicCache(config=model.config)
    text = generate(model, past_key_values=mine)
    given = generate(model, return_dict_in_generate=True)
    stored = [layer.keys.clone() for cache in (mine, given.past_key_values) for layer in cache.layers]
    for seed in range(3):
        generate(model, {"input_ids": ids(1, 12, seed=seed)})
    again = [layer.keys for cache in (mine, given.past_key_values) for layer in cache.layers]
    assert all(torch.equal(a, b) for a, b in zip(stored, again, strict=True))
    assert mine.get_seq_length() == text.shape[1] - 1
    seen = []
    hooked = patched()
    hooked.register_forward_hook(lambda m, a, out: seen.append(out.past_key_values))
    generate(hooked)
    assert not spares(hooked) and seen[0].get_seq_length() == 28


def test_changes_in_between() -> None:
    model = patched()
    generate(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert captured(model) == 0, "in place"
    model.load_state_dict({n: 1.05 * t for n, t in model.state_dict().items()}, assign=True)
    assert captured(model) == 1
    model.lm_head.weight = torch.nn.Parameter(2 * model.lm_head.weight)
    assert captured(model) == 1
    model.to(torch.bfloat16)
    assert captured(model) == 1
    with torch.inference_mode():
        generate(model)
        generate(model)
    generate(model)
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    generate(model)
    handle.remove()
    generate(model)


def test_a_cache_that_a_hook_has_seen_is_left_alone() -> None:
    """In the middle of a text, so that graphs are there as well."""
    model, seen = patched(), []
    expected = generate(model).tolist()

    class Streamer:
        """Lets a hook look at some tokens."""

        tokens = 0

        def put(self, value: torch.Tensor) -> None:
            self.tokens += 1
            if self.tokens == 5:
                self.hook = model.register_forward_hook(lambda *call: seen.append(call[2].past_key_values))
            if self.tokens == 8:
                self.hook.remove()

        def end(self) -> None:
            """Nothing is left to do."""

    assert generate(model, streamer=Streamer()).tolist() == expected
    assert seen and seen[0].get_seq_length() == 9 + 19
    stored = [layer.keys.clone() for layer in seen[0].layers]
    generate(model, {"input_ids": ids(1, 9, seed=3)})
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(seen[0].layers, stored, strict=True))


def test_memory_that_is_not_kept() -> None:
    model = patched()
    generate(model)
    model.to(torch.float32)
    assert not spares(model)
    model.model._foundry.graphs.limit = 4000
    generate(model)
    assert not spares(model)
    assert captured(model) == 1


def test_threads() -> None:
    model = patched()
    prompts = [{"input_ids": ids(1, 5 + n, seed=n)} for n in range(8)]
    alone = [generate(model, prompt).tolist() for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda prompt: generate(model, prompt).tolist(), prompts)) == alone


def test_an_error_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patched()
    expected = generate(model).tolist()

    class Stop:
        """A streamer that ends it."""

        def put(self, value: Any) -> None:
            if value.numel() == 1:
                raise KeyboardInterrupt

        def end(self) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        generate(model, streamer=Stop())
    assert not spares(model)
    assert generate(model).tolist() == expected
