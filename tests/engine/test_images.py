"""Prompts with images in an engine: tokens are those of generate(), whatever else runs, and whatever is cached."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.hf.tiny_inputs import IMAGE, VIDEO
from tests.hf.tiny_models import DEVICE
from tests.hf.tiny_wrappers import WRAPPERS, build, prompt, shared
from torch_foundry.engine import Engine, SamplingParams, Stream
from torch_foundry.engine.images import TYPES
from torch_foundry.engine.sequence import Sequence
from torch_foundry.hf.api import patch, report

pytestmark = pytest.mark.tier("models", quick=2)
TOKENS = 12
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0)


@functools.cache
def model_of(name: str) -> Any:
    return patch(copy.deepcopy(shared(name)))


@functools.cache
def expected(name: str, *images: int) -> list[int]:
    """Of the stock model."""
    inputs = prompt(name, [*images])
    text = shared(name).generate(**inputs, max_new_tokens=TOKENS, do_sample=False)  # type: ignore[operator]
    return text[0, inputs["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]


def answers(engine: Engine, *inputs: dict[str, Any], **options: Any) -> list[Stream]:
    streams = [engine.submit(each, GREEDY, **options) for each in inputs]
    engine.run()
    engine.cache.manager.check()
    return streams


@torch.no_grad()
@pytest.mark.parametrize("name", WRAPPERS)
def test_tokens_equal_stock(name: str) -> None:
    """Prompts with one image, several and none at a time; those with images exceed a step's budget, or its rest."""
    model, rows = model_of(name), ([1], [2, 3], [])
    before = report(model).fallbacks
    streams = answers(Engine(model, blocks=64, budget=16, requests=3), *(prompt(name, [*images]) for images in rows))
    assert [stream.tokens for stream in streams] == [expected(name, *images) for images in rows]
    assert report(model).fallbacks == before


@torch.no_grad()
@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "qwen3_5"])
def test_a_prefix_is_that_of_the_same_images(name: str) -> None:
    """And of all of them: a part of a prompt's images is nothing to go on from."""
    engine, inputs, others = Engine(model_of(name), blocks=64), prompt(name, [1, 2]), prompt(name, [1, 2])
    others["pixel_values"] = prompt(name, [5, 4])["pixel_values"]
    assert others["pixel_values"].shape == inputs["pixel_values"].shape
    (first,) = answers(engine, longer(inputs))
    again, other, salted = (
        answers(engine, longer(each), salt=salt)[0] for each, salt in ((inputs, b""), (others, b""), (inputs, b"x"))
    )
    assert again.tokens == first.tokens == salted.tokens != other.tokens
    assert again.sequence.reused >= again.sequence.whole and not other.sequence.reused and not salted.sequence.reused
    for _ in range(2):  # the blocks that are full end among the images
        (short,) = answers(engine, inputs)
        assert short.tokens == expected(name, 1, 2) and not short.sequence.reused
    manager, ids, whole = engine.cache.manager, first.sequence.tokens, first.sequence.whole
    for end in (len(ids), whole - 1):  # as much as is there, or none
        found = manager.add("part", ids[:end], salt=first.sequence.salt, least=whole)
        assert (found >= whole) == (end > whole) and bool(found) == (end > whole)
        manager.free("part")


def longer(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same prompt with more text behind the last image: blocks of it."""
    ids = inputs["input_ids"]
    more = torch.randint(5, IMAGE - 1, (1, 40), generator=torch.Generator().manual_seed(9)).to(ids.device)
    new = {**inputs, "input_ids": torch.cat([ids, more], dim=1), "attention_mask": None}
    for kind in TYPES:
        if kind in inputs:
            new[kind] = torch.cat([inputs[kind], torch.zeros_like(more)], dim=1)
    return new


@torch.no_grad()
def test_a_request_with_images_that_lost_its_place_begins_again() -> None:
    rows = ([1], [2], [3], [4])
    engine = Engine(model_of("qwen2_5_vl"), blocks=5, requests=4)  # two of them fit, and grow
    streams = answers(engine, *(prompt("qwen2_5_vl", [*images]) for images in rows))
    assert [stream.tokens for stream in streams] == [expected("qwen2_5_vl", *images) for images in rows]
    assert any(stream.sequence.preempted for stream in streams)


@torch.no_grad()
def test_text_stands_behind_an_image_by_its_height_and_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its token's number, on purpose, it gives another text."""
    inputs = prompt("qwen2_vl", [3, 2])
    (stream,) = answers(Engine(model_of("qwen2_vl"), blocks=32), inputs)
    assert stream.sequence.shift < 0 and stream.tokens == expected("qwen2_vl", 3, 2)
    monkeypatch.setattr(Sequence, "shift", 0)
    assert answers(Engine(model_of("qwen2_vl"), blocks=32), inputs)[0].tokens != stream.tokens


@torch.no_grad()
@pytest.mark.parametrize("name, tokens", [("gemma3n", 188), ("gemma4", 8)])
def test_a_sound_for_a_model_that_is_shown_images(name: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = WRAPPERS[name]
    if name == "gemma4":
        tower = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 48}
        sound = {"audio_config": tower | {"subsampling_conv_channels": [128, 4]}}
        monkeypatch.setitem(WRAPPERS, name, replace(case, options=case.options | sound))
    stock: Any = build(name, "eager" if name == "gemma4" else "sdpa")  # which its tower of sounds has alone
    g = torch.Generator().manual_seed(0)
    text = torch.randint(5, VIDEO - 8, (1, 11), generator=g)
    ids = torch.cat([text[:, :5], torch.full((1, tokens), VIDEO), text[:, 5:]], dim=1)
    frames, numbers = 32, getattr(stock.config.audio_config, "input_feat_size", 128)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "input_features": torch.randn(1, frames, numbers, generator=g),
        "input_features_mask": torch.ones(1, frames, dtype=torch.bool),
    }
    if name == "gemma4":
        inputs["mm_token_type_ids"] = (ids == VIDEO).long() * 3
    inputs = {key: value.to(DEVICE) for key, value in inputs.items()}
    other = {**inputs, "input_features": -inputs["input_features"]}
    model = patch(copy.deepcopy(stock))
    texts = []
    for given in (inputs, other):
        ours, wanted = (
            each.generate(**given, max_new_tokens=TOKENS, do_sample=False)[0, ids.shape[1] :].tolist()
            for each in (model, stock)
        )
        (stream,) = answers(Engine(model, blocks=64), given)
        assert stream.tokens == ours == wanted
        texts.append(wanted)
    assert texts[0] != texts[1] and not report(model).eager, str(report(model))


@torch.no_grad()
def test_a_video() -> None:
    ids = torch.tensor([[5, 6, *[VIDEO] * 8, 9, 10, 11]])
    pixels = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
    inputs: dict[str, Any] = {"input_ids": ids, "mm_token_type_ids": (ids == VIDEO).long() * 2}
    inputs |= {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([[2, 4, 4]])}
    inputs |= {"second_per_grid_ts": torch.tensor([1.0])}
    inputs = {key: value.to(DEVICE) for key, value in inputs.items()}
    stock: Any = shared("qwen2_5_vl")
    text = stock.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)[0, ids.shape[1] :].tolist()
    assert answers(Engine(model_of("qwen2_5_vl"), blocks=32), inputs)[0].tokens == text


@torch.no_grad()
def test_images_that_can_not_be_shown_end_their_request_alone() -> None:
    engine, good = Engine(model_of("llava"), blocks=64), prompt("llava", [1])
    bad = {**prompt("llava", [2]), "pixel_values": prompt("llava", [2, 3])["pixel_values"], "attention_mask": None}
    bad["input_ids"] = torch.cat([bad["input_ids"][:, :1].expand(1, 12), bad["input_ids"]], dim=1)
    streams = answers(engine, good, bad, prompt("llava", []))
    assert [stream.finish_reason for stream in streams] == ["length", "error", "length"]
    with pytest.raises(RuntimeError, match="its images can't be shown to the model: ValueError"):
        streams[1].result()
    assert [streams[i].tokens for i in (0, 2)] == [expected("llava", 1), expected("llava")]
    assert streams[1].sequence.whole == 32  # two blocks, of which nothing is kept
    assert answers(engine, bad)[0].finish_reason == "error"


def _without(name: str, **changes: Any) -> Callable[[], tuple[str, dict[str, Any]]]:
    return lambda: (name, {**prompt(name, [1]), **changes})


def _cut() -> tuple[str, dict[str, Any]]:
    inputs = prompt("llava", [1])
    end = 1 + int((inputs["input_ids"][0] == IMAGE).nonzero().max())
    return "llava", {**inputs, "input_ids": inputs["input_ids"][:, :end], "attention_mask": None}


def _text() -> tuple[str, dict[str, Any]]:
    return "llava", {**prompt("llava", [1]), "input_ids": prompt("llava", [])["input_ids"], "attention_mask": None}


def _padded() -> tuple[str, dict[str, Any]]:
    inputs = prompt("llava", [1])
    return "llava", {
        **inputs,
        "attention_mask": inputs["attention_mask"].index_fill(1, torch.tensor([0]).to(DEVICE), 0),
    }


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_cut, "expected text behind the last image"),
        (_text, "expected the tokens of an image"),
        (_padded, "without padding"),
        (_without("llava", input_features=torch.zeros(1)), "got input_features as well"),
        (_without("llava", rows=[1]), "got rows as well"),
        (_without("qwen2_vl", mm_token_type_ids=None), "expected mm_token_type_ids"),
        (_without("qwen2_vl", mm_token_type_ids=torch.zeros(1, 3)), "mm_token_type_ids: expected a tensor"),
        (_without("qwen2_vl", image_grid_thw=None), "its images are not those that its tokens speak of"),
        (_without("qwen2_vl", image_grid_thw=torch.tensor([[1, 80, 80]])), "(?s)prompt: "),
    ],
)
def test_what_is_refused(make: Callable[[], tuple[str, dict[str, Any]]], message: str) -> None:
    name, inputs = make()
    engine = Engine(model_of(name), blocks=32)
    with pytest.raises(ValueError, match=message):
        engine.submit(inputs, GREEDY)
    assert engine.idle


@torch.no_grad()
def test_types_that_a_model_does_not_read_are_left_out() -> None:
    inputs = prompt("llava", [1])
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    assert answers(Engine(model_of("llava"), blocks=32), inputs)[0].tokens == expected("llava", 1)


def test_a_model_that_is_shown_no_images(pair: Any) -> None:
    engine = Engine(pair[1], blocks=32)
    with pytest.raises(ValueError, match="prompt: LlamaForCausalLM is shown no images"):
        engine.submit({"input_ids": [5, 6], "pixel_values": torch.zeros(1)}, GREEDY)
    with pytest.raises(ValueError, match="expected input_ids among what a processor returns"):
        engine.submit({"pixel_values": torch.zeros(1)}, GREEDY)
    assert answers(engine, {"input_ids": [5, 6]})[0].tokens == answers(engine, [5, 6])[0].tokens  # type: ignore[arg-type]
