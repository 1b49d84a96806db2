"""The report of any model says what was left alone and why, and of each step that no graph took the reason."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache, StaticCache

import torch_foundry
from tests.hf.tiny_cases import COMMON, VOCAB
from tests.hf.tiny_models import PROMPT, config, fused_all, ids, random_model, shared
from torch_foundry.hf.api import patch, report
from torch_foundry.models.calls import LONGEST_STEP, is_step

pytestmark = pytest.mark.usefixtures("quiet")
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
IMAGE = VOCAB - 10


def text(name: str, **options: Any) -> Any:
    return getattr(transformers, name)(**{**COMMON, **options})


def gemma3() -> Any:
    return transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(
            text_config=text("Gemma3TextConfig", sliding_window=12).to_dict(),
            vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
            mm_tokens_per_image=4,
            image_token_index=IMAGE,
            boi_token_index=IMAGE + 1,
            eoi_token_index=IMAGE + 2,
        )
    )


def video_llava() -> Any:
    """Known layers in a wrapper that is not."""
    vision = transformers.CLIPVisionConfig(**VISION, projection_dim=32)
    settings = transformers.VideoLlavaConfig(
        text_config=text("LlamaConfig"), vision_config=vision, image_token_index=IMAGE
    )
    return transformers.VideoLlavaForConditionalGeneration(settings)


def bloom() -> Any:
    return random_model(transformers.BloomConfig(hidden_size=64, n_head=2, n_layer=2, vocab_size=VOCAB))


def mamba() -> Any:
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": VOCAB, "pad_token_id": 0}
    return random_model(transformers.MambaConfig(**settings))


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "vocab_size": VOCAB}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


def subclass() -> Any:
    """Known layers in a decoder that may do something else."""

    class Custom(transformers.LlamaModel):
        """Of a user's own."""

    model: Any = copy.deepcopy(shared("llama"))
    model.model.__class__ = Custom
    return model


def generated(model: Any, tokens: int = 6, **options: Any) -> list[list[int]]:
    model.generation_config.eos_token_id = None
    inputs = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    with torch.no_grad():
        return model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **options).tolist()


EMBEDS, LOOP = "the caller embeds the tokens (inputs_embeds)", "is not a model that our loop is known for"
MODELS: list[tuple[Callable[[], Any], dict[str, str], str]] = [
    (video_llava, {"model.image_tower.encoder.layers.1": "CLIPEncoderLayer of"}, EMBEDS),
    (bloom, {"transformer.h.0": "BloomBlock of"}, "BloomModel is not a decoder"),
    (mamba, {"backbone.layers.1": "MambaBlock of", "backbone.norm_f": "MambaRMSNorm"}, "MambaModel is not a decoder"),
    (t5, {"decoder.block.0": "T5Block of"}, "T5Stack is not a decoder"),
    (subclass, {"model": "Custom is not a known decoder"}, "Custom is not a decoder"),
]


@pytest.mark.parametrize(("make", "left", "why"), MODELS, ids=lambda x: getattr(x, "__name__", ""))
def test_any_model(make: Callable[[], Any], left: dict[str, str], why: str) -> None:
    """Tokens are stock's; each one but the prompt's is a step without a graph, and no line says that all is well."""
    torch.manual_seed(0)
    stock = make().eval()
    model = patch(copy.deepcopy(stock))
    assert generated(model) == generated(stock)
    seen = report(model)
    for name, start in left.items():
        assert seen.not_replaced[name].startswith(start), str(seen)
    steps = 6 if make is t5 else 5
    (found,) = [reason for reason in seen.eager if not reason.startswith("generate: ")]
    assert found.startswith(why) and seen.eager[found] == steps and not seen.steps, str(seen)
    assert seen.prompts == 1
    loops = [reason for reason in seen.eager if reason.startswith("generate: ")]
    assert len(loops) == 1 and seen.eager[loops[0]] == 1, str(seen)
    if make is not subclass:
        assert loops[0] == f"generate: {type(model).__name__} {LOOP}"
        kind = type(model).__name__
        assert seen.not_replaced[""] == f"{kind} is not a known language model: generate() is Hugging Face's loop"
        assert "left:     the model: " in str(seen)
    assert "fallback: none" not in str(seen) and f"no graph:  {steps} times: {found}" in str(seen)
    assert report(patch(model)).not_replaced == seen.not_replaced, "the same when it is patched again"


def test_images_are_no_steps() -> None:
    torch.manual_seed(0)
    model = patch(gemma3().eval())
    tokens = torch.tensor([[5, IMAGE, IMAGE, IMAGE, IMAGE, 7]])
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            token_type_ids=(tokens == IMAGE).long(),
            pixel_values=torch.zeros(1, 3, 28, 28),
            max_new_tokens=4,
            do_sample=False,
        )
    seen = report(model)
    assert seen.prompts == 2 and seen.steps == 3 and not seen.eager, str(seen)  # the image, the prompt


def test_a_known_model_is_left_with_nothing() -> None:
    model = patch(copy.deepcopy(shared("llama")))
    generated(model)
    seen = report(model)
    assert not seen.not_replaced and not seen.eager and seen.steps == 5 and seen.prompts == 1 and fused_all(model)
    assert "fallback: none" in str(seen)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_beams": 2}, "beams"),
        ({"use_cache": False}, "argument use_cache"),
        ({"custom_generate": lambda model, input_ids, **_: input_ids}, "a way of decoding"),
    ],
    ids=["beams", "no cache", "custom"],
)
def test_each_generation_that_is_not_our_loops_is_counted(options: dict[str, Any], why: str) -> None:
    model = patch(copy.deepcopy(shared("llama")))
    generated(model, **options)
    seen = report(model)
    assert sum(seen.eager.values()) == 1 and next(iter(seen.eager)).startswith(f"generate: {why}"), str(seen)
    assert seen.prompts == (6 if "use_cache" in options else "num_beams" in options)


def test_a_generation_inside_another_is_counted_once() -> None:
    class Wrapper(transformers.LlamaPreTrainedModel, transformers.GenerationMixin):
        """Hands generate() to the model inside, as BLIP does."""

        def __init__(self) -> None:
            super().__init__(shared("llama").config)
            self.inner = copy.deepcopy(shared("llama"))

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner.generate(*args, **kwargs)

    model = patch(Wrapper().eval())
    model.inner.generation_config.eos_token_id = None
    generated(model)
    seen = report(model)
    assert seen.tokens == 6 and not seen.eager, str(seen)
    generated(model, num_beams=2)
    assert report(model).eager == {"generate: beams": 1}


def odd_calls(model: Any) -> list[tuple[Callable[[], Any], str | None]]:
    """Calls of a decoder, each with the reason that is counted; None: a step on a graph; "": no step."""
    decoder, cache = model.model, DynamicCache(config=model.config)
    static = StaticCache(config=model.config, max_cache_len=64)
    decoder(ids(1, 9), past_key_values=cache)
    decoder(ids(1, 9), past_key_values=static)
    one = ids(1, 1)
    return [
        (lambda: decoder(one, past_key_values=cache), None),
        (lambda: decoder(input_ids=ids(1, 8), past_key_values=cache), None),
        (lambda: decoder(ids(1, 9), past_key_values=cache), ""),
        (lambda: decoder(one), ""),
        (lambda: decoder(one, past_key_values=DynamicCache(config=model.config)), ""),
        (lambda: decoder(one, past_key_values=static), "cache is StaticCache"),
        (lambda: decoder(one, None, past_key_values=cache), "positional arguments"),
        (lambda: decoder(inputs_embeds=decoder.embed_tokens(one), past_key_values=cache), EMBEDS),
        (lambda: decoder(one, past_key_values=cache, output_hidden_states=True), "argument output_hidden_states"),
        (
            lambda: decoder(one, past_key_values=cache, attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool)),
            "mask is not one of [batch, tokens]",
        ),
    ]


@torch.no_grad()
def test_each_call_of_a_decoder_is_counted_once() -> None:
    model = patch(copy.deepcopy(shared("llama")))
    calls = odd_calls(model)
    chance = random.Random(0)
    for call, why in [*calls, *chance.choices(calls, k=30)]:
        before = report(model)
        call()
        after = report(model)
        assert after.steps - before.steps == (why is None)
        assert after.prompts - before.prompts == (why == "")
        assert dict(after.eager - before.eager) == ({why: 1} if why else {}), str(after)


def test_not_counted_when_switched_off_on_purpose() -> None:
    model = patch(copy.deepcopy(shared("llama")))
    torch_foundry.compare(model, PROMPT)
    before = report(model)
    model._foundry.state.enabled = False
    generated(model)
    assert report(model).eager == before.eager and report(model).prompts == before.prompts


def test_copies_count_for_themselves() -> None:
    model = patch(copy.deepcopy(shared("llama")))
    generated(model, num_beams=2)
    other = copy.deepcopy(model)
    assert report(other).prompts == 0 and not report(other).eager
    generated(other)
    assert report(other).prompts == 1 and report(other).steps == 5 and report(model).eager == {"generate: beams": 1}


def test_what_is_left_of_plain_modules() -> None:
    linear = nn.Linear(32, 32)
    replaced = nn.Linear(32, 32)
    replaced.forward = replaced.forward  # type: ignore[method-assign]
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)), nn.Linear(32, 32)])
    model = nn.ModuleDict({"a": linear, "b": replaced, "c": blocks, "d": nn.GELU(), "e": nn.Conv1d(3, 3, 1)})
    assert report(patch(model)).not_replaced == {
        "b": "its forward was replaced",
        "c.0": "Sequential of torch.nn.modules.container is not a known layer",
        "e": "Conv1d of torch.nn.modules.conv is not a known module",
    }


def test_what_a_step_is() -> None:
    """Whatever the cache is called, and however tokens are given; of a kind that nobody knows, it may be filled."""
    one, many = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, LONGEST_STEP + 1, dtype=torch.int64)
    filled, empty = DynamicCache(), DynamicCache()
    filled.update(torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 8), 0)
    static = StaticCache(config=config("LlamaConfig"), max_cache_len=8)
    assert not is_step((one,), {}) and not is_step((one,), {"past_key_values": None})
    assert not is_step((one,), {"past_key_values": empty}) and not is_step((one,), {"past_key_values": static})
    assert is_step((one,), {"past_key_values": filled}) and not is_step((many,), {"past_key_values": filled})
    assert is_step((), {"inputs_embeds": torch.zeros(1, 1, 8), "cache_params": object()})
    assert is_step((), {"decoder_input_ids": one, "input_ids": None, "past_key_values": ((one,),)})
    assert is_step((), {"state": object()}) and not is_step((), {"input_ids": many, "state": object()})
