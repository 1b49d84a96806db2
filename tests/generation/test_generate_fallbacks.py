"""What our generation loop doesn't do runs in Hugging Face's, or step by step, and the report says why."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.generation.generation import SAMPLED, generate, patched, reference
from tests.hf.tiny_models import config, ids, padded, random_model, shared
from torch_foundry.hf.api import report

pytestmark = pytest.mark.usefixtures("quiet")


class Nothing(LogitsProcessor):
    """Changes nothing."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


class Never(StoppingCriteria):
    """Never stops."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


REASONS: dict[str, dict[str, Any]] = {
    "Nothing is not known": {"logits_processor": [Nothing()]},
    "Never is not known": {"stopping_criteria": [Never()]},
    "MaxTimeCriteria is not known": {"max_time": 1000.0},
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "cache is StaticCache": {"cache_implementation": "static", "disable_compile": True},
    "argument use_cache": {"use_cache": False},
}


@pytest.mark.parametrize("reason", REASONS)
def test_hugging_faces_loop(reason: str) -> None:
    model, theirs = patched(), reference("llama", **REASONS[reason])
    ours = generate(model, **REASONS[reason])
    if "output_scores" in reason:
        assert len(ours.scores) == 30
        scores = lambda each: generate(each, **REASONS[reason]).scores  # noqa: E731
        assert_found_as_exact(ours.scores, scores, shared("llama"))
        ours, theirs = ours.sequences, theirs.sequences
    assert ours.tolist() == theirs.tolist()
    seen = report(model)
    assert next(r for r in seen.eager if r.startswith("generate: ")).startswith(f"generate: {reason}"), str(seen)
    assert seen.tokens == 0
    assert "no graph:" in str(seen)


def test_hugging_faces_loop_runs_on_graphs() -> None:
    for family in ("llama", "mistral", "gemma3"):
        model = patched(family)
        for options in ({}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 4}):
            inputs = {"input_ids": ids(1, 6).repeat(1, 4), "attention_mask": torch.ones(1, 24, dtype=torch.long)}
            before = report(model)
            ours = generate(model, inputs, every=0, **options)
            assert ours.tolist() == reference(family, inputs, **options).tolist()
            steps = report(model).steps - before.steps
            assert steps > 5
            assert report(model).captured - before.captured <= 6
        inputs = padded([9, 4, 7])
        assert generate(model, inputs, every=0).tolist() == reference(family, inputs).tolist()
        found = set(report(model).eager)
        reasons = {"generate: sync_every is 0", "assisted generate: sync_every is 0", "generate: beams"}
        assert found == reasons, str(report(model))


def test_hooks_on_the_whole_model_run_for_each_token() -> None:
    model, calls = patched(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert generate(model).tolist() == reference("llama").tolist()
    assert len(calls) == 30
    assert report(model).tokens == 30 and report(model).reads == 30


@pytest.mark.parametrize("rope", ["dynamic", "longrope", "yarn", "linear"])
def test_rope_that_depends_on_the_length(rope: str) -> None:
    settings: dict[str, Any] = {"rope_type": rope, "rope_theta": 1e4, "factor": 4.0}
    if rope == "longrope":
        settings |= {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "original_max_position_embeddings": 24}
    if rope == "yarn":
        settings |= {"original_max_position_embeddings": 24}
    extra = {"max_position_embeddings": 24} if rope == "dynamic" else {}
    stock = random_model(config("LlamaConfig", rope_parameters=settings, **extra))
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.mul_(3)
    stock.generation_config.eos_token_id = None
    model = torch_foundry.patch(copy.deepcopy(stock))
    for inputs in (None, padded([9, 4])):
        assert (
            generate(model, inputs, max_new_tokens=40).tolist() == generate(stock, inputs, max_new_tokens=40).tolist()
        )
    constant = rope in ("yarn", "linear")
    assert bool(report(model).tokens) == constant, str(report(model))
    assert report(model).steps or not constant


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"max_new_tokens": 10**9, "eos_token_id": 7}, "no memory is set aside for 1000000009 tokens a row"),
        ({"max_new_tokens": 10**20, "eos_token_id": 7}, "no memory is set aside for"),
        ({"temperature": 1e300, "do_sample": True}, "a setting is no number of 32 bits"),
        ({"repetition_penalty": 1e300}, "a setting is no number of 32 bits"),
        ({"no_repeat_ngram_size": 10**10}, "a setting is no number of 32 bits"),
    ],
    ids=str,
)
def test_numbers_that_are_too_large_for_the_sampler(options: dict[str, Any], reason: str) -> None:
    ends = int(reference("llama")[0, 20])  # the text has it soon, however long it may be
    options = {**options, "eos_token_id": ends} if "eos_token_id" in options else options
    model, found = patched(), []
    for each in (copy.deepcopy(shared("llama")), model):
        torch.manual_seed(5)
        found.append(generate(each, **options).tolist())
    assert found[0] == found[1]
    assert any(each.startswith(f"generate: {reason}") for each in report(model).eager), str(report(model))


def test_many_rows() -> None:
    """For those there is torch's own matrix product, layer by layer."""
    inputs = padded([9, 4, 7] * 7)
    model = patched()
    assert generate(model, inputs, max_new_tokens=3).tolist() == reference("llama", inputs, max_new_tokens=3).tolist()
    assert report(model).eager == {"generate: more than 16 rows": 1, "more than 16 tokens in a step": 2}
    assert generate(model, padded([9, 4] * 8)).shape == (16, 39) and report(model).tokens == 30
    found = []
    for each in (copy.deepcopy(shared("llama")), model):
        torch.manual_seed(5)
        found.append(generate(each, inputs, max_new_tokens=3, **SAMPLED).tolist())
    assert found[0] == found[1], "torch's random numbers, from the first on"


@pytest.mark.parametrize("options", [{"prompt_lookup_num_tokens": 0}, {"max_matching_ngram_size": -1}], ids=str)
def test_no_tokens_to_look_up(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="Invalid max_matching_ngram_size or num_output_tokens"):
        generate(patched(), **{"prompt_lookup_num_tokens": 3, **options})
