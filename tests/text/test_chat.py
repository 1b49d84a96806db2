"""apply_chat_template of guarded tokenizers: transformers' results, under a budget."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.text import templates
from torch_foundry.core.load_errors import LoadError
from torch_foundry.text import adopt, guard

DEMO = Path(__file__).parents[2] / "torch_foundry" / "demo_model" / "main"
CHATS = list(templates.CHATS.values())
PLAIN = CHATS[1]


@pytest.fixture
def stock() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture
def guarded() -> Any:
    return guard(AutoTokenizer.from_pretrained(DEMO), "model.gguf")


def same(found: Any, want: Any) -> bool:
    if isinstance(want, torch.Tensor):
        return torch.equal(found, want)
    if hasattr(want, "keys"):
        return set(found) == set(want) and all(same(found[key], want[key]) for key in want)
    return type(found) is type(want) and found == want


OPTIONS: list[dict[str, Any]] = [
    {},
    {"tokenize": False},
    {"return_dict": False},
    {"return_tensors": "pt"},
    {"return_tensors": "pt", "return_dict": False},
    {"add_generation_prompt": True, "max_length": 5, "truncation": True},
    {"tools": templates.TOOLS, "documents": templates.DOCUMENTS, "controls": {"a": 1}, "tokenize": False},
    {"continue_final_message": True, "tokenize": False},
    {"tokenizer_kwargs": {"return_offsets_mapping": True}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "none")
@pytest.mark.parametrize("template", ["chatml", "granite", "gemma"])
def test_results_are_those_of_transformers(stock: Any, guarded: Any, template: str, options: dict[str, Any]) -> None:
    stock.chat_template = guarded.chat_template = templates.BENIGN[template]
    for chat in (CHATS[0], CHATS[1], CHATS[2]):
        assert same(guarded.apply_chat_template(chat, **options), stock.apply_chat_template(chat, **options))
    batch = {"padding": True} | options
    if "return_dict" not in options or "return_tensors" in options:
        want = stock.apply_chat_template(CHATS[:3], **batch)
        assert same(guarded.apply_chat_template(CHATS[:3], **batch), want)


def test_masks_of_what_the_assistant_says(stock: Any, guarded: Any) -> None:
    stock.chat_template = guarded.chat_template = templates.BENIGN["generation"]
    for options in ({}, {"return_tensors": "pt", "padding": True}):
        for chat in (CHATS[2], CHATS[1:3]):
            arguments = {"return_assistant_tokens_mask": True, **options}
            want = stock.apply_chat_template(chat, **arguments)
            assert same(guarded.apply_chat_template(chat, **arguments), want)
            assert "1" in str(want["assistant_masks"])


def test_tools_may_be_functions(stock: Any, guarded: Any) -> None:
    def weather(place: str, days: list[int]) -> str:
        """Weather of a place.

        Args:
            place: Where.
            days: When.
        """
        return place + str(days)

    stock.chat_template = guarded.chat_template = templates.BENIGN["chatml with tools"]
    want = stock.apply_chat_template(CHATS[0], tools=[weather], tokenize=False)
    assert guarded.apply_chat_template(CHATS[0], tools=[weather], tokenize=False) == want and "When." in want


@pytest.mark.parametrize("content", ["Once upon", "Once upon ", [{"type": "text", "text": "Once "}]])
def test_a_message_to_be_continued(stock: Any, guarded: Any, content: Any) -> None:
    stock.chat_template = guarded.chat_template = templates.BENIGN["gemma"]
    chat = [*CHATS[0], {"role": "assistant", "content": content}]
    want = stock.apply_chat_template(chat, continue_final_message=True, tokenize=False)
    assert guarded.apply_chat_template(chat, continue_final_message=True, tokenize=False) == want
    assert want.endswith("Once" if isinstance(content, list) else "upon")


def test_reasoning_is_found_under_each_of_its_names(guarded: Any) -> None:
    guarded.chat_template = "{{ messages[0].reasoning_content }}|{{ messages[0].content }}"
    for name in ("reasoning_content", "thinking", "reasoning"):
        chat = [{"role": "assistant", name: "hm", "content": "yes", "tool_calls": None}]
        assert guarded.apply_chat_template(chat, tokenize=False) == "hm|yes"
        text = guarded.apply_chat_template(chat, continue_final_message=name, tokenize=False)
        assert text == "hm"


def test_control_tokens_of_users_can_be_made_text(stock: Any, guarded: Any) -> None:
    if not hasattr(stock, "_mark_chat_inputs"):
        with pytest.raises(ValueError, match="sanitize_control_tokens"):
            guarded.apply_chat_template(PLAIN, sanitize_control_tokens=True)
        return
    chat = [{"role": "user", "content": "a <|assistant|> b"}]
    want = stock.apply_chat_template(chat, sanitize_control_tokens=True)
    assert same(guarded.apply_chat_template(chat, sanitize_control_tokens=True), want)
    assert want["input_ids"] != stock.apply_chat_template(chat)["input_ids"]


@pytest.mark.parametrize("wrong", [{"add_generation_prompt": True}, {"return_assistant_tokens_mask": True}])
def test_what_does_not_go_together(guarded: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="continue_final_message"):
        guarded.apply_chat_template(PLAIN, continue_final_message=True, **wrong)


@pytest.mark.parametrize("chat", [[], [[]], [*CHATS[:1], []]])
def test_no_messages(guarded: Any, chat: Any) -> None:
    with pytest.raises(ValueError, match="at least one message"):
        guarded.apply_chat_template(chat)


def test_messages_are_mappings(guarded: Any) -> None:
    with pytest.raises(TypeError, match="messages are dicts"):
        guarded.apply_chat_template(["hello", {"role": "user", "content": "a"}])


def test_a_field_that_can_not_be_continued(guarded: Any) -> None:
    with pytest.raises(ValueError, match="to continue"):
        guarded.apply_chat_template([{"role": "user"}], continue_final_message=True)
    guarded.chat_template = "{{ messages[0].content | upper }}"
    with pytest.raises(ValueError, match="can't be continued"):
        guarded.apply_chat_template(CHATS[0], continue_final_message=True)


def test_a_hostile_template_is_refused_by_every_way_to_a_tokenizer(guarded: Any, tmp_path: Path) -> None:
    guarded.chat_template = "{{ 'a' * 10**10 }}{{ messages }}"
    copies = [guarded, copy.copy(guarded), copy.deepcopy(guarded), pickle.loads(pickle.dumps(guarded))]
    for tokenizer in copies:
        with pytest.raises(LoadError, match=r"model.gguf.*TMPL_BUDGET"):
            tokenizer.apply_chat_template(CHATS[0])
        assert isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer("Hello")["input_ids"]


def test_tokenizers_of_folders_are_checked(stock: Any) -> None:
    assert adopt(stock, "folder").template_path == "folder" and adopt(None, "folder") is None
    assert adopt(guard(stock, "model.gguf"), "folder").template_path == "model.gguf"
    for template in ("{{ 'a' * 10**10 }}", {"default": templates.BENIGN["chatml"], "rag": "{{ messages.__class__ }}"}):
        tokenizer = AutoTokenizer.from_pretrained(DEMO)
        tokenizer.chat_template = template
        with pytest.raises(LoadError, match=r"folder: chat_template"):
            adopt(tokenizer, "folder")


def test_saved_tokenizers_are_plain_ones(stock: Any, guarded: Any, tmp_path: Path) -> None:
    for name, tokenizer in (("stock", stock), ("guarded", guarded)):
        tokenizer.save_pretrained(tmp_path / name)
    for file in (tmp_path / "stock").iterdir():
        assert file.read_text() == (tmp_path / "guarded" / file.name).read_text()
