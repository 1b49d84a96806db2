"""Models that are shown images: decode steps are captured behind stock generate(), and tokens are stock's."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, PreTrainedModel

import torch_foundry
from tests.hf.tiny_cases import VOCAB
from tests.hf.tiny_inputs import IMAGE, OWN, SOUNDS, VIDEO
from tests.hf.tiny_models import DEVICE, classes
from tests.hf.tiny_wrappers import BY_HEIGHT_AND_WIDTH, WRAPPERS, build, prompt, shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report
from torch_foundry.models.rope import Rotary

pytestmark = pytest.mark.tier("models", quick=1)
TOKENS = 64
EMBEDS = "the caller embeds the tokens (inputs_embeds)"
UNEQUAL = "layers of the cache hold different numbers of tokens"
PADDING = "padding among new tokens of recurrent layers"
# why a part of a prompt may be stock code's: keys that layers share, and a row that is still padding
PARTS = {"gemma3n": UNEQUAL, "gemma4": UNEQUAL, "minicpm_ocr": PADDING}


@functools.cache
def patched_model(name: str) -> PreTrainedModel:
    return patch(copy.deepcopy(shared(name)))


def generate(model: Any, inputs: dict[str, Any], **options: Any) -> torch.Tensor:
    return model.generate(**inputs, **{"max_new_tokens": TOKENS, "do_sample": False, **options})


def second_turn(model: Any, name: str, **options: Any) -> torch.Tensor:
    """A text with an image goes on, with another image in what is new, and then without one."""
    case, inputs = WRAPPERS[name], prompt(name, [1])
    cache = DynamicCache(config=model.config.get_text_config())
    text = generate(model, inputs, past_key_values=cache, max_new_tokens=9)
    for images in ([2], []):
        more = prompt(name, images)["input_ids"].repeat(1, 1 if images else 3)
        ids = torch.cat([text, more], dim=1)
        turn = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if case.types is not None:
            turn[case.types] = (ids == IMAGE).long()
        if images:
            shown = case.images(images)
            if "image_grid_thw" in shown:  # positions are those of all images, features those of the new ones
                features = model.get_image_features(**shown, return_dict=True)
                turn |= {"image_grid_thw": case.images([1, 2])["image_grid_thw"]}
                turn["mm_encoder_outputs"] = {"image": features}
            else:
                turn |= shown
        text = generate(model, turn, past_key_values=cache, **options)
    return text


def one_image(model: Any, name: str, *rows: list[int], **options: Any) -> torch.Tensor:
    return generate(model, prompt(name, *(rows or ([1],))), **options)


MODES = {
    "an image": one_image,
    "two rows": lambda model, name: one_image(model, name, [1], [2]),
    "several images": lambda model, name: one_image(model, name, [1, 2], [3], max_new_tokens=24),
    "some images": lambda model, name: one_image(model, name, [], [1], max_new_tokens=24),
    "text": lambda model, name: one_image(model, name, [], max_new_tokens=24),
    "second turn": lambda model, name: second_turn(model, name, max_new_tokens=12),
    "beams": lambda model, name: one_image(model, name, [1], [2], num_beams=2, max_new_tokens=24),
    "stock loop": lambda model, name: one_image(model, name, [1], [2], sync_every=0, max_new_tokens=24),
    "prompt lookup": lambda model, name: one_image(model, name, prompt_lookup_num_tokens=4, max_new_tokens=24),
    "chunked prefill": lambda model, name: one_image(model, name, [1], [2], prefill_chunk_size=7, max_new_tokens=24),
}


@functools.cache
def stock_tokens(name: str, mode: str) -> list[list[int]]:
    model: Any = copy.deepcopy(shared(name))
    model.generate = functools.partial(_without_sync_every, model.generate)
    return MODES[mode](model, name).tolist()


def _without_sync_every(generate: Any, *args: Any, sync_every: Any = None, **kwargs: Any) -> Any:
    return generate(*args, **kwargs)


SKIPPED = {
    "qwen3_5": {"prompt lookup"},  # stock code drafts no tokens for recurrent states
    **{name: {"prompt lookup"} for name in ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7")},
    "gemma3n": {"prompt lookup"},
    "gemma4": {"prompt lookup"},  # our own loop, none that may be an image's
    "muse_glimmer": {"prompt lookup"},
    "gemma4_unified": MODES.keys() - {"an image", "second turn"},  # in all else it is gemma4's
    **{name: {"chunked prefill"} for name in SOUNDS},  # which stock code refuses
    **{name: {"chunked prefill", "prompt lookup"} for name in SOUNDS if "granite" in name},
}
CASES = [case for case in itertools.product(WRAPPERS, MODES) if case[1] not in SKIPPED.get(case[0], ())]


@torch.no_grad()
@pytest.mark.parametrize("name, mode", CASES)
def test_tokens_equal_stock(name: str, mode: str) -> None:
    model = patched_model(name)
    before = report(model)
    tokens = MODES[mode](model, name).tolist()
    after = report(model)
    assert tokens == stock_tokens(name, mode)
    assert not after.fallbacks, str(after)
    assert after.layers == model.config.get_text_config().num_hidden_layers
    eager = after.eager - before.eager
    if mode == "chunked prefill":  # parts of a few tokens, some of them an image's
        for why in (EMBEDS, PARTS.get(name)):
            eager.pop(why, None)
    ours = not eager or mode in ("beams", "stock loop")  # these are Hugging Face's loops
    assert ours and all(reason.startswith("generate: ") for reason in eager), str(after)
    least = {"an image": TOKENS - 1, "two rows": TOKENS - 1, "prompt lookup": 1}.get(mode, 23)
    assert after.steps - before.steps >= least, str(after)


@torch.no_grad()
@pytest.mark.parametrize("name", WRAPPERS)
def test_texts_depend_on_images(name: str) -> None:
    """Otherwise the cases above prove nothing about them."""
    model = patched_model(name)
    first, second = prompt(name, [1, 2]), prompt(name, [1, 2])
    for key in ("pixel_values", "input_features"):
        if key in second:
            second[key] = WRAPPERS[name].images([3, 4])[key].to(model.device)
    texts = [generate(model, inputs, max_new_tokens=24).tolist() for inputs in (first, second)]
    assert texts[0] != texts[1]


@torch.no_grad()
@pytest.mark.parametrize("name", BY_HEIGHT_AND_WIDTH)
def test_a_step_stands_behind_an_image_by_its_height_and_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer positions than tokens; and a step at the token's number, on purpose, gives another text."""
    inputs = prompt(name, [1], [3, 2])
    stock: Any = shared(name)
    model = patched_model(name)
    stock_text = generate(stock, inputs).tolist()
    assert int(stock.model.rope_deltas.min()) < 0
    assert generate(model, inputs).tolist() == stock_text
    sections = Rotary.sections

    def counted(self: Rotary, positions: Any, batch: int) -> torch.Tensor:
        return sections(self, positions[0] if positions.ndim == 3 else positions, batch)

    monkeypatch.setattr(Rotary, "sections", counted)
    assert generate(model, inputs).tolist() != stock_text


@torch.no_grad()
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_loop_of_the_callers_own(name: str) -> None:
    """Forward passes of ids on a cache: captured, with the positions that the wrapper counts by itself."""
    graded = "image_grid_thw" in prompt(name, [1])  # stock code counts positions itself, of texts of one length alone
    inputs, texts = prompt(name, *([[1]] if graded else [[1], [2]])), []
    model = patch(copy.deepcopy(shared(name)))
    for each in (shared(name), model):
        cache = DynamicCache(config=each.config.get_text_config())
        mask, given = inputs["attention_mask"], dict(inputs)
        text = []
        for _ in range(12):
            out = each(**given, past_key_values=cache, use_cache=True)
            text.append(out.logits[:, -1:].argmax(-1))
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            given = {"input_ids": text[-1]}
            if not graded:
                given |= {"attention_mask": mask, "position_ids": mask.sum(-1, keepdim=True) - 1}
        texts.append(torch.cat(text, dim=1).tolist())
    assert texts[0] == texts[1]
    seen = report(model)
    assert seen.steps == 11 and not seen.eager and not seen.fallbacks, str(seen)


@torch.no_grad()
@pytest.mark.parametrize("name", WRAPPERS)
def test_patching_changes_nothing_that_is_stored(name: str) -> None:
    stock = shared(name)
    model = copy.deepcopy(stock)
    patch(model)
    generate(model, prompt(name, [1]), max_new_tokens=3)
    state, before = model.state_dict(), stock.state_dict()
    assert state.keys() == before.keys() and all(torch.equal(state[key], before[key]) for key in before)
    towers = dict.fromkeys(("smolvlm", "idefics3"), "vision_model")
    towers |= {"gemma4_unified": "embed_vision", "lighton_ocr": "vision_encoder"}
    towers |= {each: "encoder" if "granite" in each else "audio_tower" for each in SOUNDS}
    usual = "visual" if name.startswith(("glm4", "glm_", "paddle", "qwen")) else "vision_tower"
    seen, tower = report(model), towers.get(name, usual)
    assert any(key.startswith(f"model.{tower}") for key in seen.not_replaced), "the tower's layers are stock, and named"
    assert all("is not a known" in why for why in seen.not_replaced.values())
    decoder = WRAPPERS[name].text.get("model_type", name).removesuffix("_text")
    assert not any(decoder in key or "language_model" in key for key in seen.not_replaced)
    torch_foundry.unpatch(model)
    assert classes(model) == classes(stock)
    texts = [generate(each, prompt(name, [1]), max_new_tokens=12).tolist() for each in (stock, model)]
    assert texts[0] == texts[1]


@torch.no_grad()
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_static_cache_falls_back(name: str, quiet: None) -> None:
    stock, model = shared(name), patch(copy.deepcopy(shared(name)))
    options: dict[str, Any] = {"cache_implementation": "static", "disable_compile": True, "max_new_tokens": 12}
    texts = [generate(each, prompt(name, [1], [2]), **options).tolist() for each in (stock, model)]
    assert texts[0] == texts[1]
    seen = report(model)
    assert not seen.steps and seen.eager["generate: cache is StaticCache"] == 1, str(seen)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl"])
def test_eager_attention(name: str) -> None:
    """Whose masks are numbers."""
    stock = build(name, "eager")
    model = patch(copy.deepcopy(stock))
    texts = [generate(each, prompt(name, [1], [2]), max_new_tokens=24).tolist() for each in (stock, model)]
    seen = report(model)
    assert texts[0] == texts[1] and seen.steps == 23 and not seen.eager and not seen.fallbacks, str(seen)


@torch.no_grad()
def test_tokens_of_an_image_see_each_other() -> None:
    """Otherwise the cases of Gemma 3 prove nothing about its mask."""
    inputs = prompt("gemma3", [1, 2])
    text = generate(patched_model("gemma3"), inputs, max_new_tokens=24).tolist()
    inputs["token_type_ids"] = torch.zeros_like(inputs["token_type_ids"])
    assert generate(patched_model("gemma3"), inputs, max_new_tokens=24).tolist() != text


@torch.no_grad()
def test_a_video() -> None:
    ids = torch.tensor([[5, 6, *[VIDEO] * 8, 9, 10, 11]])
    pixels = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == VIDEO).long() * 2,
        "pixel_values_videos": pixels,
        "video_grid_thw": torch.tensor([[2, 4, 4]]),
        "second_per_grid_ts": torch.tensor([1.0]),
    }
    inputs = {key: value.to(DEVICE) for key, value in inputs.items()}
    models = shared("qwen2_5_vl"), patch(copy.deepcopy(shared("qwen2_5_vl")))
    texts = [generate(each, inputs, max_new_tokens=24).tolist() for each in models]
    seen = report(models[1])
    assert texts[0] == texts[1] and seen.steps == 23 and not seen.eager, str(seen)


@torch.no_grad()
def test_an_image_whose_token_has_no_embedding() -> None:
    """Stock code gives it another id; ours would look it up behind the end."""
    stock = copy.deepcopy(shared("gemma3"))
    stock.config.image_token_index = VOCAB
    inputs = prompt("gemma3", [1])
    inputs["input_ids"][inputs["input_ids"] == IMAGE] = VOCAB
    model = patch(copy.deepcopy(stock))
    texts = [generate(each, inputs, max_new_tokens=12).tolist() for each in (stock, model)]
    assert texts[0] == texts[1]
    seen = report(model)
    assert seen.eager["generate: there is no embedding of an image's token"] == 1 and not seen.steps, str(seen)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"sync_every": 3}, {"sync_every": 0}], ids=str)
@pytest.mark.parametrize("name", ["gemma4", "muse_glimmer"])
def test_a_token_of_an_image_that_is_generated_is_embedded_as_padding(name: str, options: dict[str, int]) -> None:
    stock: Any = copy.deepcopy(shared(name))
    stock.lm_head.weight[IMAGE] = 2 * stock.lm_head.weight[50]  # chosen now and then
    model = patch(copy.deepcopy(stock))
    inputs = prompt(name, [1], [2])
    text = generate(stock, inputs)
    assert (text[:, -TOKENS:-1] == IMAGE).any()
    assert generate(model, inputs, **options).tolist() == text.tolist()
    seen = report(model)
    assert seen.steps and (options.get("sync_every") == 0 or seen.eager["step of generate: the token of an image"])


@torch.no_grad()
def test_ids_of_the_towers_are_embedded_by_them() -> None:
    """In a prompt without images, and where one is generated; engines say that they can't."""
    stock: Any = copy.deepcopy(shared("gemma3n"))
    model = patch(copy.deepcopy(stock))
    ids = torch.tensor([[5, 6, OWN, 7, OWN + 5, 8, 9, 10]]).to(DEVICE)
    texts = [generate(each, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}) for each in (stock, model)]
    assert torch.equal(*texts)
    for each in (stock, model):
        for at in (OWN + 1, OWN + 6):
            each.lm_head.weight[at] = 2 * each.lm_head.weight[int(texts[0][0, -at // 4])]
    texts = [generate(each, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}) for each in (stock, model)]
    assert torch.equal(*texts) and (texts[0][:, 8:-1] >= OWN).any()
    assert report(model).eager["step of generate: the token of an image"], str(report(model))
    engine = Engine(model)
    with pytest.raises(ValueError, match=f"token {OWN} is an image's or a sound's"):
        engine.submit(ids, SamplingParams(max_tokens=12, temperature=0))
    stream = engine.submit(ids[:, 5:], SamplingParams(max_tokens=TOKENS, temperature=0))
    engine.run()
    with pytest.raises(RuntimeError, match="is an image's or a sound's"):
        stream.result()


@torch.no_grad()
def test_packed_weights_of_a_wrapper_that_reads_its_embedding() -> None:
    model = patch(copy.deepcopy(shared("gemma4")), quantize="q8_0")
    packed = report(model).packed
    assert packed and "model.language_model.embed_tokens" not in packed
    assert generate(model, prompt("gemma4", [1]), max_new_tokens=3).shape[1]


@torch.no_grad()
def test_an_image_at_the_end_is_left_to_the_stock_loop() -> None:
    """With a position by time, height and width, the text behind it would go on from three numbers."""
    inputs = prompt("qwen2_vl", [1])
    keep = int((inputs["input_ids"][0] == IMAGE).nonzero().max()) + 1
    for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
        inputs[key] = inputs[key][:, :keep]
    stock, model = shared("qwen2_vl"), patch(copy.deepcopy(shared("qwen2_vl")))
    texts = [generate(each, inputs, max_new_tokens=12).tolist() for each in (stock, model)]
    assert texts[0] == texts[1]
    seen = report(model)
    assert seen.eager == {"generate: the prompt ends with an image": 1} and seen.steps == 11, str(seen)


def _hook(model: Any) -> None:
    model.model.register_forward_hook(lambda module, args, out: None)


def _pre_hook(model: Any) -> None:
    model.model.register_forward_pre_hook(lambda module, args: None)


def _decoder(model: Any) -> None:
    torch_foundry.unpatch(model)

    class Own(transformers.LlamaModel):
        """Of a user's."""

    model.model.language_model.__class__ = Own
    patch(model)


@torch.no_grad()
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_hook, "generate: hook on LlavaModel"),
        (_pre_hook, "generate: hook on LlavaModel"),
        (_decoder, "generate: the decoder is not a known one"),
    ],
)
def test_what_lies_around_the_decoder_is_checked(change: Any, why: str, quiet: None) -> None:
    model = patch(copy.deepcopy(shared("llava")))
    text = generate(model, prompt("llava", [1]), max_new_tokens=12).tolist()
    before = report(model)
    change(model)
    assert generate(model, prompt("llava", [1]), max_new_tokens=12).tolist() == text
    seen = report(model)
    assert seen.eager[why] or any("hook" in reason for reason in seen.eager), str(seen)
    del before


@torch.no_grad()
def test_texts_alone_in_an_engine_and_packed() -> None:
    for name in ("qwen3_vl", "gemma3"):
        model: Any = patch(copy.deepcopy(shared(name)), quantize="q8_0")
        assert not any(key.startswith(("model.vis", "model.multi")) for key in report(model).packed)
        inputs = prompt(name, [])
        text = generate(model, inputs, max_new_tokens=12)[0].tolist()
        engine = Engine(model)
        stream = engine.submit(inputs["input_ids"], SamplingParams(max_tokens=12, temperature=0))
        engine.run()
        assert text[inputs["input_ids"].shape[1] :] == stream.tokens


@pytest.mark.parametrize("name", ["gemma3", "qwen2_vl", "smolvlm"])
def test_steps_of_texts_are_compared(name: str) -> None:
    """Whatever image was shown before."""
    model = patch(copy.deepcopy(shared(name)))
    generate(model, prompt(name, [1]), max_new_tokens=3)
    found = torch_foundry.compare(model, prompt(name, [])["input_ids"])
    assert found.first_bad is None and found.left_out is None, str(found)
    inputs = prompt(name, [1])
    refused = torch_foundry.compare(model, inputs.pop("input_ids"), **inputs)
    assert refused.first_bad is None and (refused.left_out or "").startswith("argument "), str(refused)
