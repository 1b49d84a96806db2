"""Tokenizers whose `apply_chat_template` renders under a budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import get_json_schema

from torch_foundry.core.load_errors import is_fault

from .template import check_template, plain, render_spans

# What transformers renders in place of the template: the text that has been rendered already, in parts.
_PASS_ON = "{% for part in messages %}{{ part['content'] }}{% endfor %}"
_PASS_ON_SPANS = (
    "{% for part in messages %}{% if part['role'] == 'assistant' %}"
    "{% generation %}{{ part['content'] }}{% endgeneration %}{% else %}{{ part['content'] }}{% endif %}{% endfor %}"
)
# Arguments that aren't the template's.
_OPTIONS = ("padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs")
_TAG = "CONTINUE_THIS_MESSAGE "
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing; templates read the first


def guard(tokenizer: PreTrainedTokenizerBase, path: str | os.PathLike[str] = "chat template") -> Any:
    """The same tokenizer, whose `apply_chat_template` takes the same arguments, but renders by `template.render`.

    It stays an instance of its class, is saved under its class's name, and can be copied and pickled. path: what errors
    name as the template's file.
    """
    if not isinstance(tokenizer, Guarded):
        kind: Any = type(tokenizer)
        tokenizer.__class__ = _guarded(kind)
    tokenizer.template_path = os.fspath(path)
    return tokenizer


def adopt(tokenizer: Any, path: str | os.PathLike[str]) -> Any:
    """A tokenizer that transformers made from a folder: checks its templates (LoadError), then applies `guard`."""
    if tokenizer is None or isinstance(tokenizer, Guarded):
        return tokenizer
    templates = getattr(tokenizer, "chat_template", None) or {}
    for name, template in ({"default": templates} if isinstance(templates, str) else templates).items():
        check_template(template, path, "chat_template", chats=name == "default")
    return guard(tokenizer, path)


class Guarded:
    """Mixed into a tokenizer's class by `guard`."""

    template_path = "chat template"
    beyond: dict[int, str] = {}  # noqa: RUF012 (tokens without a row in the embedding, and what to say of them)

    def _encode_plus(self, *args: Any, **kwargs: Any) -> Any:
        """Every text becomes tokens here."""
        try:
            found: Any = super()._encode_plus(*args, **kwargs)  # type: ignore[misc]
        except BaseException as problem:
            if isinstance(problem, Exception) or not is_fault(problem):
                raise
            raise ValueError(f"text: it can't be made into tokens: {problem}") from None
        for encoding in (found.encodings or ()) if self.beyond else ():
            if odd := self.beyond.keys() & set(encoding.ids):
                raise ValueError(f"text: it has the token {self.beyond[min(odd)]}")
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(2)
        make, (_, *arguments), *state = reduced
        return _restored, (make, type(self).__bases__[1], *arguments), *state

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        documents: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tokenize: bool = True,
        *,
        return_assistant_tokens_mask: bool = False,
        sanitize_control_tokens: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As transformers documents it; what is rendered is limited as `torch_foundry.text.render` says."""
        template = self.get_chat_template(chat_template, tools)  # type: ignore[attr-defined]
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        first = conversation[0] if isinstance(conversation, (list, tuple)) and conversation else conversation
        batched = isinstance(first, (list, tuple)) or hasattr(first, "messages")
        chats = [_messages(chat) for chat in (conversation if batched else [conversation])]
        if continue_final_message and (add_generation_prompt or return_assistant_tokens_mask):
            raise ValueError("continue_final_message goes with neither add_generation_prompt nor an assistant mask")
        schemas = None if tools is None else [t if isinstance(t, dict) else get_json_schema(t) for t in tools]
        if sanitize_control_tokens:
            mark = getattr(self, "_mark_chat_inputs", None)
            if mark is None:
                raise ValueError("this version of transformers has no sanitize_control_tokens")
            marked = mark(template, chats, schemas, documents, kwargs, tokenize, return_assistant_tokens_mask)
            chats, schemas, documents, kwargs = marked
        inputs = {"tools": schemas, "documents": documents, "add_generation_prompt": add_generation_prompt}
        variables = {**self.special_tokens_map, **kwargs, **inputs}  # type: ignore[attr-defined]

        def rendered(chat: list[dict[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
            return render_spans(template, variables | {"messages": chat}, self.template_path)

        texts = [_continued(chat, continue_final_message, rendered) for chat in chats]
        if sanitize_control_tokens:  # the marks are in the texts, to be found when they are encoded
            return self._encoded([text for text, _ in texts], batched, **options)
        if return_assistant_tokens_mask:
            options |= {"return_assistant_tokens_mask": True}
        parts = [_parts(text, spans if return_assistant_tokens_mask else []) for text, spans in texts]
        return super().apply_chat_template(  # type: ignore[misc]
            parts if batched else parts[0],
            chat_template=_PASS_ON_SPANS if return_assistant_tokens_mask else _PASS_ON,
            tokenize=tokenize,
            **options,
        )

    def _encoded(
        self, texts: list[str], batched: bool, return_dict: bool = True, tokenizer_kwargs: Any = None, **options: Any
    ) -> Any:
        options |= {"add_special_tokens": False, "sanitize_control_tokens": True, **(tokenizer_kwargs or {})}
        out = self(texts if batched else texts[0], **options)  # type: ignore[operator]
        return out if return_dict else out["input_ids"]


@cache
def _guarded(base: type) -> type:
    return type(base.__name__, (Guarded, base), {"__module__": base.__module__, "__doc__": base.__doc__})


def _restored(make: Callable[..., Any], base: type, *arguments: Any) -> Any:
    return make(_guarded(base), *arguments)


def _messages(chat: Any) -> list[dict[str, Any]]:
    """Plain messages: keys whose value is None are dropped, and reasoning is given under each of its names."""
    messages = []
    for message in plain(list(getattr(chat, "messages", chat))):
        if not isinstance(message, dict):
            raise TypeError(f"messages are dicts, dataclasses or pydantic models, not {message!r}")
        message = {key: value for key, value in message.items() if value is not None}
        reasoning = next((message[name] for name in _REASONING if name in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        messages.append(message)
    if not messages:
        raise ValueError("a chat template needs at least one message")
    return messages


def _parts(text: str, spans: list[tuple[int, int]]) -> list[dict[str, str]]:
    """The text, cut where the assistant begins and ends to speak."""
    parts, at = [], 0
    for start, stop in spans:
        parts += [{"role": "text", "content": text[at:start]}, {"role": "assistant", "content": text[start:stop]}]
        at = stop
    return [*parts, {"role": "text", "content": text[at:]}]


def _continued(
    chat: list[dict[str, Any]],
    field: bool | str,
    rendered: Callable[[list[dict[str, Any]]], tuple[str, list[tuple[int, int]]]],
) -> tuple[str, list[tuple[int, int]]]:
    """The chat; if the last message is to be continued, up to the end of the field that continues."""
    if not field:
        return rendered(chat)
    name = field if isinstance(field, str) else "content"
    last = dict(chat[-1])
    said = last.get(name)
    if isinstance(said, list):
        block = next((i for i in reversed(range(len(said))) if "text" in said[i]), None)
        if block is not None:
            tagged = {**said[block], "text": said[block]["text"] + _TAG}
            last[name], said = [*said[:block], tagged, *said[block + 1 :]], said[block]["text"]
    elif isinstance(said, str):
        for same in _REASONING if name in _REASONING else (name,):
            if last.get(same) == said:
                last[same] = said + _TAG
    if not isinstance(said, str):
        raise ValueError(f"the last message has no {name!r} to continue")
    text, spans = rendered([*chat[:-1], last])
    at = text.rfind(_TAG.strip())
    if at < 0 or said.strip() not in text:
        raise ValueError(f"the template doesn't print the last message's {name!r} as it is: it can't be continued")
    kept = text[:at]
    return (kept if text[at : at + len(_TAG)] == _TAG else kept.rstrip()), spans
