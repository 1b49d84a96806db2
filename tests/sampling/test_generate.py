"""Settings from what generate() makes, and the tokens that generate() gives, from the same logits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kit import generator
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as hf

from torch_foundry.sampling import Sampler, Settings

V, PROMPT, NEW = 40, 6, 24


class Watched(LlamaForCausalLM):
    """Keeps what `_sample` is given: what a sampler on the device has to know."""

    def _sample(self, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, **kwargs: Any) -> Any:
        self.given = input_ids, logits_processor, kwargs["generation_config"]
        return super()._sample(input_ids, logits_processor, stopping_criteria, **kwargs)


@pytest.fixture(scope="module")
def model() -> Watched:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.6,
    )  # fmt: skip
    return Watched(config).eval()


# Options of generate(), all greedy: tokens must be equal.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-eos": {"eos_token_id": None},
    "several-eos": {"eos_token_id": [2, 5, 9, 14, 21]},
    "repetition": {"repetition_penalty": 1.6},
    "repetition-below-1": {"repetition_penalty": 0.8},
    "ngram-1": {"no_repeat_ngram_size": 1},
    "ngram-2": {"no_repeat_ngram_size": 2, "eos_token_id": None},
    "ngram-3": {"no_repeat_ngram_size": 3, "eos_token_id": None},
    "bad-words": {"bad_words_ids": [[3], [2], [17, 4], [6, 7, 8], [30, 30]]},
    "min-length": {"min_length": PROMPT + 9, "eos_token_id": [2, 5, 9, 14, 21]},
    "min-new-tokens": {"min_new_tokens": 7, "eos_token_id": [2, 5, 9, 14, 21]},
    "forced-eos": {"forced_eos_token_id": 11},
    "suppress": {"suppress_tokens": [4, 7, 12, 33], "begin_suppress_tokens": [6, 18, 22]},
    "many": {
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[3], [9, 4]], "min_new_tokens": 5,
        "forced_eos_token_id": [5, 11], "suppress_tokens": [8], "begin_suppress_tokens": [6],
    },
}  # fmt: skip


def prompts(left_padded: bool) -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, V, (5, PROMPT), generator=generator("prompts"))
    mask = torch.ones_like(ids)
    if left_padded:
        for row, padding in enumerate((0, 2, 5, 1, 0)):
            ids[row, :padding], mask[row, :padding] = 0, 0
    return ids, mask


def replayed(model: Watched, out: Any, settings: Settings) -> Tensor:
    """The tokens that a sampler chooses from generate()'s logits, and padding to its length."""
    ids, _, config = model.given
    sampler = Sampler(settings, ids, vocab_size=V, capacity=config.max_length)
    for logits in out.logits:
        sampler.step(logits)
    sampler.check()
    return sampler.ids[:, : out.sequences.shape[1]]


@pytest.mark.parametrize("left_padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("name", OPTIONS, ids=str)
def test_tokens_are_generates(model: Watched, name: str, left_padded: bool) -> None:
    ids, mask = prompts(left_padded)
    options = {"max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True, **OPTIONS[name]}
    out = model.generate(ids, attention_mask=mask, do_sample=False, **options)
    _, processors, config = model.given
    settings, reason = Settings.from_generation_config(config, processors)
    assert settings is not None, reason
    assert torch.equal(replayed(model, out, settings), out.sequences)


def test_forced_bos(model: Watched) -> None:
    ids = torch.ones(3, 1, dtype=torch.int64)
    options = {"max_new_tokens": 5, "forced_bos_token_id": 17, "return_dict_in_generate": True, "output_logits": True}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
    settings, reason = Settings.from_generation_config(model.given[2], model.given[1])
    assert settings is not None, reason
    assert out.sequences[:, 1].tolist() == [17] * 3
    assert torch.equal(replayed(model, out, settings), out.sequences)


def test_the_cases_do_something(model: Watched) -> None:
    ids, mask = prompts(False)
    results = {}
    for name, options in OPTIONS.items():
        results[name] = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, **options
        ).tolist()
    plain = results.pop("plain")
    assert [name for name, tokens in results.items() if tokens == plain] == []


# --------------------------------------------------------------------------------------------------------- translation


def translated(config: Any = None, *processors: Any) -> tuple[Settings | None, str]:
    return Settings.from_generation_config(config or SimpleNamespace(do_sample=True), list(processors))


def test_sampling_options_of_generate(model: Watched) -> None:
    ids, mask = prompts(False)
    options = {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.05, "eos_token_id": [2, 3], "pad_token_id": 4}
    model.generate(ids, attention_mask=mask, do_sample=True, max_new_tokens=3, **options)
    settings, reason = Settings.from_generation_config(model.given[2], model.given[1])
    expected = Settings(do_sample=True, temperature=0.7, top_k=12, top_p=0.9, min_p=0.05, eos=(2, 3), pad=4)
    assert settings == expected and reason == ""


def test_special_tokens() -> None:
    assert translated(GenerationConfig(eos_token_id=[4, 5]))[0] == Settings(eos=(4, 5), pad=4)
    assert translated(GenerationConfig(eos_token_id=4, pad_token_id=9))[0] == Settings(eos=(4,), pad=9)
    assert translated(GenerationConfig(do_sample=True))[0] == Settings(do_sample=True)


class Own(LogitsProcessor):
    pass


class OwnTopK(hf.TopKLogitsWarper):
    pass


@pytest.mark.parametrize(
    "processors, reason",
    [
        ([Own()], "Own is not known"),
        ([OwnTopK(3)], "OwnTopK is not known"),
        ([hf.TopHLogitsWarper(0.5)], "TopHLogitsWarper is not known"),
        ([hf.TypicalLogitsWarper(0.5)], "TypicalLogitsWarper is not known"),
        ([hf.SequenceBiasLogitsProcessor({(3,): 1.0})], "SequenceBiasLogitsProcessor is not known"),
        ([hf.LogitNormalization()], "LogitNormalization is not known"),
        (
            [hf.TopPLogitsWarper(0.9), hf.TemperatureLogitsWarper(0.5)],
            "TemperatureLogitsWarper comes after TopPLogitsWarper",
        ),
        ([hf.TopKLogitsWarper(9), hf.TopKLogitsWarper(8)], "TopKLogitsWarper comes after TopKLogitsWarper"),
        ([hf.TopKLogitsWarper(9, filter_value=-1e9)], "TopKLogitsWarper has the filter value -1000000000.0"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_not_known_is_named(processors: list[Any], reason: str) -> None:
    assert translated(None, *processors) == (None, reason)


def test_warpers_without_a_draw() -> None:
    config = SimpleNamespace(do_sample=False)
    assert translated(config, hf.TopKLogitsWarper(3)) == (None, "TopKLogitsWarper without do_sample")


def test_a_processor_list_is_taken_whole() -> None:
    processors = LogitsProcessorList(
        [hf.MinLengthLogitsProcessor(5, 2), hf.TopPLogitsWarper(0.5, min_tokens_to_keep=3)]
    )
    settings, _ = Settings.from_generation_config(SimpleNamespace(do_sample=True), processors)
    assert settings == Settings(do_sample=True, min_length=5, min_length_tokens=(2,), top_p=0.5, top_p_keep=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0.0}, {"temperature": math.nan}, {"repetition_penalty": -1.0}, {"top_p": 1.5}, {"min_p": -0.1},
        {"top_k": 0}, {"top_p_keep": 0}, {"presence_penalty": math.inf}, {"no_repeat_ngram": -1}, {"bad_words": ((),)},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected "):
        Settings(**wrong)
