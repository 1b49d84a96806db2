"""Sessions of texts with images: every turn has the tokens of a whole recomputation, and reads images once."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf.tiny_models import ids
from tests.hf.tiny_wrappers import BY_HEIGHT_AND_WIDTH, WRAPPERS, first_embedded, prompt, shared
from torch_foundry import LoadError, Session
from torch_foundry.engine.images import TYPES
from torch_foundry.hf.api import patch

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.tier("models", quick=3)]
OPTIONS: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
# or with states
WINDOWED = {"gemma3", "gemma3n", "gemma4", "gemma4_unified", "llava_next", "llava_next_video", "lfm2_vl", "lfm3_vl"}
WINDOWED |= {"minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "muse_glimmer", "qwen3_5"}


@functools.cache
def model_of(name: str) -> Any:
    return patch(copy.deepcopy(shared(name)))


def whole(name: str, inputs: dict[str, Any]) -> list[list[int]]:
    """The stock model's answer."""
    return shared(name).generate(**inputs, **OPTIONS).tolist()  # type: ignore[operator, no-any-return]


def behind(inputs: dict[str, Any], text: torch.Tensor) -> dict[str, Any]:
    """The same images, in a `text` that begins with the prompt."""
    new = {**inputs, "input_ids": text, "attention_mask": torch.ones_like(text)}
    for kind in TYPES:
        if kind in inputs:
            more = torch.zeros_like(text[:, inputs["input_ids"].shape[1] :])
            new[kind] = torch.cat([inputs[kind], more], dim=1)
    return new


def answer(session: Session, inputs: dict[str, Any]) -> torch.Tensor:
    return session.generate(inputs["input_ids"], shown=inputs)


@torch.no_grad()
@pytest.mark.parametrize("name", WRAPPERS)
def test_turns(name: str, tmp_path: Path) -> None:
    """Of one conversation: a question about images, two about the same, the last of them again, saved and restored; one
    more image; none."""
    session, inputs = Session(model_of(name), **OPTIONS), prompt(name, [1, 2])
    length = inputs["input_ids"].shape[1]
    inputs = behind(inputs, torch.cat([inputs["input_ids"], ids(1, 5)], dim=1))
    said = answer(session, inputs)
    assert said.tolist() == whole(name, inputs) and not session.reused
    for turn in range(2):
        if int(said[0, length:].max()) >= first_embedded(name):
            said = said[:, : length + 5]  # it has said an image's token, which no text has
        inputs = behind(inputs, torch.cat([said, ids(1, 7, seed=turn)], dim=1))
        said = answer(session, inputs)
        assert said.tolist() == whole(name, inputs) and (session.reused > length or name in WINDOWED)
    again = behind(inputs, inputs["input_ids"])
    assert answer(session, again).tolist() == said.tolist()
    session.save(tmp_path / "x")
    restored = Session.restore(tmp_path / "x", model_of(name), **OPTIONS)
    assert restored.cache.shown == session.cache.shown and answer(restored, again).tolist() == said.tolist()
    assert restored.reused > length or name in WINDOWED
    for images in ([1, 2, 3], [3, 2], []):
        other = prompt(name, images)
        other = behind(other, torch.cat([other["input_ids"], ids(1, 5)], dim=1))
        assert answer(session, other).tolist() == whole(name, other) and not session.reused


@torch.no_grad()
@pytest.mark.parametrize("rows", [([3],), ([1], [3])], ids=["one row", "two"])
@pytest.mark.parametrize("name", BY_HEIGHT_AND_WIDTH)
def test_a_text_does_not_stand_behind_an_image_of_another_conversation(name: str, rows: tuple[list[int], ...]) -> None:
    """Stock code keeps by how much in the model, whatever cache it is given next."""
    model = patch(copy.deepcopy(shared(name)))
    session, text = Session(model, **OPTIONS), ids(1, 9)
    for turn in range(3):
        model.generate(**prompt(name, *rows), **OPTIONS)
        assert int(model.model.rope_deltas.min()) < 0
        text = torch.cat([text, ids(1, 7, seed=turn)], dim=1)
        said = session.generate(text)
        assert said.tolist() == whole(name, {"input_ids": text, "attention_mask": torch.ones_like(text)})
        assert bool(session.reused) == (turn > 0)
        text = said


@torch.no_grad()
def test_other_pixels_of_the_same_text_are_read_anew() -> None:
    session, inputs = Session(model_of("llava"), **OPTIONS), prompt("llava", [1])
    said = answer(session, inputs).tolist()
    inputs["pixel_values"] = prompt("llava", [5])["pixel_values"]
    assert said != answer(session, inputs).tolist() == whole("llava", inputs) and not session.reused


def test_what_can_not_be_shown_is_refused(tmp_path: Path) -> None:
    inputs = prompt("llava", [1])
    session = Session(model_of("llava"), **OPTIONS)
    padded = torch.ones_like(inputs["input_ids"])
    padded[0, 0] = 0
    for model, options, message in (
        (shared("llava"), {}, "shown: expected a patched model"),
        (model_of("llava").model.language_model, {}, "shown: expected a patched model"),
        (model_of("llava"), {"attention_mask": padded}, "attention_mask: expected a text without padding"),
        (model_of("llava"), {"num_beams": 2}, "neither beams nor several"),
    ):
        session.model = model
        with pytest.raises(ValueError, match=message):
            session.generate(inputs["input_ids"], shown=inputs, **options)
    session.model = model_of("llava")
    with pytest.raises(ValueError, match="expected text behind the last image"):
        end = int((inputs["input_ids"][0] == shared("llava").config.image_token_index).nonzero().max()) + 1
        session.generate(inputs["input_ids"][:, :end], shown={**inputs, "attention_mask": None})
    assert answer(session, inputs).tolist() == whole("llava", inputs)
    session.cache.shown = 1
    session.save(tmp_path / "x")
    with pytest.raises(LoadError, match="a session's description"):
        Session.restore(tmp_path / "x", model_of("llava"))
