"""The bundled weights: what they weigh, the perplexity on record, readable answers, stock and patched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_foundry
from tools.demo_model.corpus import BOS, chat_text, documents
from tools.demo_model.evaluate import fingerprint, perplexity
from torch_foundry.demo_model import demo_model_path, draft_model_path, held_out_sample, metrics

CONVERSATIONS = {
    "What is 7 + 5?": "7 + 5 = 12.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    'Which animal says "moo"?': 'The cow says "moo".',
    "Why does it rain?": "It rains because water in the clouds becomes too heavy and falls down.",
    "Count from 3 to 9.": "3, 4, 5, 6, 7, 8, 9.",
    "My name is Anna. What is my name?": "Your name is Anna.",
    "What is the capital of France?": "I do not know that. I am a small model and know only simple things.",
}


def encode(tokenizer: Any, prompt: str) -> dict[str, torch.Tensor]:
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)


def answer(model: Any, tokenizer: Any, prompt: str, **options: Any) -> str:
    inputs = encode(tokenizer, prompt)
    options = {"max_new_tokens": 60, "do_sample": False} | options
    output = model.generate(**inputs, **options)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_sizes(demo_model: Any, draft_model: Any) -> None:
    assert demo_model.num_parameters() == metrics()["main"]["parameters"] == 8_131_328
    assert draft_model.num_parameters() == metrics()["draft"]["parameters"] == 918_144
    files = [*demo_model_path().iterdir(), *draft_model_path().iterdir()]
    assert sum(file.stat().st_size for file in files) < 20e6
    config = demo_model.config
    assert (config.hidden_size, config.head_dim, config.num_key_value_heads) == (256, 64, 2)
    assert config.tie_word_embeddings and config.vocab_size == 4096


def test_the_held_out_sample_is_the_one_on_record() -> None:
    texts = held_out_sample()
    assert fingerprint(texts) == metrics()["held_out"]["sha256"] and texts == list(documents("heldout", 0, 48))
    assert held_out_sample(2) == texts[:2]


@pytest.mark.parametrize("name", ["main", "draft"])
def test_perplexity_is_the_one_on_record(name: str, tokenizer: Any, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue("demo_model" if name == "main" else "draft_model")
    found = perplexity(model, tokenizer, held_out_sample())
    assert found == pytest.approx(metrics()[name]["perplexity"], rel=1e-3)


def test_the_larger_model_is_the_better_one() -> None:
    assert 1 < metrics()["main"]["perplexity"] < metrics()["draft"]["perplexity"] < 2


@pytest.mark.parametrize("prompt", CONVERSATIONS)
def test_answers(prompt: str, demo_model: Any, tokenizer: Any) -> None:
    assert answer(demo_model, tokenizer, prompt) == CONVERSATIONS[prompt]


def test_a_story_has_sentences(demo_model: Any, tokenizer: Any) -> None:
    story = answer(demo_model, tokenizer, "Tell me a story about a lost kite.", max_new_tokens=400)
    assert "kite" in story and story.rstrip()[-1] in '."!?'
    assert len(story.split(". ")) > 6


def test_patched_answers_are_the_same(demo_model: Any, tokenizer: Any) -> None:
    prompt = "Tell me a story about a brave fox."
    stock = answer(demo_model, tokenizer, prompt, max_new_tokens=40)
    with torch_foundry.patched(demo_model):
        assert answer(demo_model, tokenizer, prompt, max_new_tokens=40) == stock
        assert not torch_foundry.report(demo_model).fallbacks


def test_the_draft_speculates_for_the_model(demo_model: Any, draft_model: Any, tokenizer: Any) -> None:
    prompt = "How do I bake bread?"
    alone = answer(demo_model, tokenizer, prompt)
    assert answer(demo_model, tokenizer, prompt, assistant_model=draft_model) == alone


@pytest.mark.parametrize(
    "text", ["Zürich, 東京", "🦊🕷️ é e\u0301", "नमस्ते \u0000\t\n\r  x", "1234 + 56", " ", "\U000e0001"]
)
def test_any_text_survives_the_tokenizer(text: str, tokenizer: Any) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert max(ids) < 4096
    assert tokenizer(text).input_ids == [tokenizer.bos_token_id, *ids]


def test_both_models_have_the_same_tokenizer() -> None:
    main, draft = (path / "tokenizer.json" for path in (demo_model_path(), draft_model_path()))
    assert main.read_bytes() == draft.read_bytes()


def test_the_chat_template_is_the_format_of_the_corpus(tokenizer: Any) -> None:
    turns = [("system", "Answer briefly."), ("user", "Hello!"), ("assistant", "Hi."), ("user", "How are you?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == BOS + chat_text(turns) + "<|assistant|>"
