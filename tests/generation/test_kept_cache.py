"""A cache that the caller keeps goes on from what it and the next text have in common: tokens are those of no cache."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.generation.generation import Collect, generate, patched
from tests.hf.tiny_models import ids, padded
from torch_foundry.hf import kept_cache
from torch_foundry.kvcache.hf_cache import new_cache
from torch_foundry.kvcache.snapshots import Snapshots

pytestmark = pytest.mark.usefixtures("quiet")
FAMILIES = ["llama", "qwen3_next", "qwen3_5", "gemma3"]


def alone(model: Any, text: torch.Tensor, **options: Any) -> list[list[int]]:
    return answer(model, text, DynamicCache(config=model.config), **options)


def answer(model: Any, text: torch.Tensor, cache: Any, **options: Any) -> list[list[int]]:
    mask = options.pop("attention_mask", torch.ones_like(text))
    options = {"max_new_tokens": 12, **options}
    return generate(model, {"input_ids": text, "attention_mask": mask}, past_key_values=cache, **options).tolist()


def reads(model: Any, cache: Any, text: torch.Tensor, **options: Any) -> tuple[list[list[int]], int]:
    """The answer, and how many tokens of the prompt were read."""
    lengths, begin = [], kept_cache.begin

    def watched(*args: Any) -> Any:
        known = begin(*args)
        lengths.append(cache.get_seq_length())
        return known

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_cache, "begin", watched)
        return answer(model, text, cache, **options), text.shape[1] - lengths[0]


def changed(text: torch.Tensor, at: int) -> torch.Tensor:
    return torch.cat([text[:, :at], 3 + text[:, at : at + 1] % 90, text[:, at + 1 :]], 1)


@pytest.mark.parametrize("options", [{}, {"prompt_lookup_num_tokens": 3}], ids=["plain", "drafts"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_text_follows(family: str, options: dict[str, Any]) -> None:
    """The same, extended, edited, cut, another."""
    model, cache, text = patched(family), new_cache(patched(family).config), ids(1, 30)
    whole = torch.tensor(answer(model, text, cache, **options))
    for following in (
        *(text, whole, torch.cat([whole, ids(1, 5, seed=1)], 1), changed(whole, 35), changed(text, 12), text[:, :20]),
        *(text[:, :1], ids(1, 25, seed=9), whole[:, :-1], whole[:, :-2]),
    ):
        assert answer(model, following, cache, **options) == alone(model, following), following.shape


@pytest.mark.parametrize(("family", "edited"), [("llama", 18), ("qwen3_5", 30), ("gemma3", 30)])
def test_what_is_common_is_not_read_again(family: str, edited: int) -> None:
    model = patched(family)
    cache, text = DynamicCache(config=model.config), ids(1, 30)
    whole = torch.tensor(answer(model, text, cache))
    extended = torch.cat([whole, ids(1, 5, seed=1)], 1)
    assert reads(model, cache, extended) == (alone(model, extended), 6)
    assert reads(model, cache, changed(text, 12)) == (alone(model, changed(text, 12)), edited)


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_back_to_a_snapshot(family: str) -> None:
    model = patched(family)
    cache, text = DynamicCache(config=model.config), ids(1, 30)
    vars(cache)["snapshots"] = Snapshots(8)
    whole = torch.tensor(answer(model, text, cache, max_new_tokens=30))
    at = max(n for n in cache.snapshots.stored if n <= 45)
    assert at > 30
    edited = changed(whole, 45)
    assert reads(model, cache, edited) == (alone(model, edited), edited.shape[1] - at)


@pytest.mark.parametrize("family", FAMILIES)
def test_new_tokens_alone(family: str) -> None:
    """With a mask of the whole text; nothing is cut, and the next whole text is compared again."""
    model, new = patched(family), ids(1, 5, seed=3)
    cache, text = DynamicCache(config=model.config), ids(1, 14)
    whole = torch.tensor(answer(model, text, cache))
    joined = torch.cat([whole, new], 1)
    rest = torch.cat([whole[:, -1:], new], 1)
    found = answer(model, rest, cache, attention_mask=torch.ones_like(joined))
    assert found[0][rest.shape[1] :] == alone(model, joined)[0][joined.shape[1] :]
    for following in (changed(joined, joined.shape[1] - 2), changed(text, 5)):
        assert answer(model, following, cache) == alone(model, following)


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_several_rows(family: str) -> None:
    """Padded on the left, with rows that end before others, whose padding was never read."""
    model, (inputs, other) = patched(family), (padded([12, 9]), padded([12, 10]))
    text, mask = inputs["input_ids"], inputs["attention_mask"]
    first = alone(model, text, attention_mask=mask)
    ends = {"eos_token_id": first[0][15], "pad_token_id": 0}
    for settings in ({}, ends):
        cache = DynamicCache(config=model.config)
        whole = torch.tensor(answer(model, text, cache, attention_mask=mask, **settings))
        more = torch.cat([whole, ids(2, 4, seed=5)], 1)
        masked = torch.cat([mask, torch.ones_like(more[:, mask.shape[1] :])], 1)
        for ids_, mask_ in ((more, masked), (changed(text, 11), mask), (other["input_ids"], other["attention_mask"])):
            assert answer(model, ids_, cache, attention_mask=mask_) == alone(model, ids_, attention_mask=mask_)
        assert answer(model, ids(1, 9), cache) == alone(model, ids(1, 9))  # other rows


def test_padding_was_not_read() -> None:
    """Of a row that has ended: the device went on with other tokens."""
    model, inputs = patched(), padded([12, 9])
    text, mask, cache = inputs["input_ids"], inputs["attention_mask"], DynamicCache(config=patched().config)
    eos = alone(model, text, attention_mask=mask)[0][12]
    whole = torch.tensor(answer(model, text, cache, attention_mask=mask, eos_token_id=eos, pad_token_id=0))
    assert whole[0].tolist()[12:] == [eos, *[0] * 11]
    masked = torch.cat([mask, torch.ones_like(whole[:, 12:])], 1)
    assert reads(model, cache, whole, attention_mask=masked)[1] == whole.shape[1] - 13


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_another_mask(family: str) -> None:
    model, text, cache = patched(family), ids(1, 20), DynamicCache(config=patched(family).config)
    for hidden in (0, 6, 0):
        mask = (torch.arange(20) >= hidden).long()[None]
        found, count = reads(model, cache, text, attention_mask=mask)
        assert found == alone(model, text, attention_mask=mask) and count == 20


@torch.no_grad()
def test_somebody_else_used_it() -> None:
    """Then it is transformers' again: what it holds is taken for the text's beginning."""
    model, text = patched(), ids(1, 20)
    for change in (
        lambda c: model(ids(1, 4, seed=2), past_key_values=c),
        lambda c: (c.crop(-4), model(ids(1, 4, seed=2), past_key_values=c)),  # as long as before
        lambda c: model.model(input_ids=ids(1, 1), past_key_values=c),
        lambda c: c.crop(-4),
    ):
        caches = [DynamicCache(config=model.config) for _ in range(2)]
        for cache in caches:
            whole = torch.tensor(answer(model, text, cache))
            change(cache)
        vars(caches[1]).pop("read_text", None)
        following = torch.cat([changed(whole, 3), ids(1, 9, seed=1)], 1)
        assert answer(model, following, caches[0]) == answer(model, following, caches[1])


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma3"])
def test_hugging_face_s_own_loop(family: str) -> None:
    """It goes on with what ours has noted, and leaves as much."""
    model, text = patched(family), ids(1, 20)
    for options in ({"sync_every": 0}, {"sync_every": 0, "prompt_lookup_num_tokens": 3}):
        if family == "llama" or len(options) == 1:
            cache = DynamicCache(config=model.config)
            answer(model, text, cache)
            for at in (7, 11):
                assert answer(model, changed(text, at), cache, **options) == alone(model, changed(text, at))
            assert answer(model, changed(text, 5), cache) == alone(model, changed(text, 5))


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_beams_leave_nothing(family: str) -> None:
    model, text, cache = patched(family), ids(1, 20), DynamicCache(config=patched(family).config)
    answer(model, text, cache)
    assert answer(model, changed(text, 7), cache, num_beams=2) == alone(model, changed(text, 7), num_beams=2)
    assert "read_text" not in vars(cache)


def test_embeddings_and_other_positions() -> None:
    """Nothing is known of them: all is read again."""
    model, text = patched(), ids(1, 20)
    edited, cache = changed(text, 3), DynamicCache(config=model.config)
    answer(model, text, cache)
    inputs = {"inputs_embeds": model.model.embed_tokens(edited).detach(), "attention_mask": torch.ones_like(edited)}
    assert (
        generate(model, inputs, past_key_values=cache, max_new_tokens=9).tolist()[0] == alone(model, edited)[0][20:29]
    )
    for start in (0, 5):
        cache = DynamicCache(config=model.config)
        answer(model, text, cache)
        inputs = {"input_ids": edited, "attention_mask": torch.ones_like(edited)}
        inputs["position_ids"] = torch.arange(start, start + 20)[None]
        found = generate(model, inputs, past_key_values=cache).tolist()
        assert found == generate(model, inputs, past_key_values=DynamicCache(config=model.config)).tolist()


def test_static_caches_are_left_alone() -> None:
    model, text = patched(), ids(1, 20)
    cache = StaticCache(config=model.config, max_cache_len=64)
    assert answer(model, text, cache) == alone(model, text)
    assert "read_text" not in vars(cache)


def test_after_an_interrupt() -> None:
    for family in ("llama", "qwen3_5"):
        model, cache, text = patched(family), DynamicCache(config=patched(family).config), ids(1, 20)
        with pytest.raises(KeyboardInterrupt):
            answer(model, text, cache, streamer=Collect(5))
        assert answer(model, changed(text, 7), cache) == alone(model, changed(text, 7))


def test_a_cache_that_generate_made_and_copies_of_it() -> None:
    model, text = patched(), ids(1, 20)
    inputs = {"input_ids": text, "attention_mask": torch.ones_like(text)}
    cache = generate(model, inputs, return_dict_in_generate=True).past_key_values
    for kept in (copy.deepcopy(cache), cache):
        assert answer(model, changed(text, 9), kept) == alone(model, changed(text, 9))


@pytest.mark.parametrize("family", FAMILIES)
def test_histories(family: str) -> None:
    model, chance = patched(family), random.Random(family)
    cache, text = DynamicCache(config=model.config), ids(1, 20)
    for turn in range(12):
        options = {"max_new_tokens": chance.randrange(1, 15)}
        whole = answer(model, text, cache, **options)
        assert whole == alone(model, text, **options), turn
        cut = len(whole[0]) if chance.random() < 0.4 else chance.randrange(1, len(whole[0]))
        text = torch.cat([torch.tensor(whole)[:, : min(cut, 60)], ids(1, chance.randrange(1, 9), seed=turn)], 1)
