"""Processors of models that are shown images, whose `apply_chat_template` renders under a budget."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import TemplateError

from torch_foundry.core.load_errors import LoadError

from .media import in_parts

# What transformers renders in place of the template: the text that has been rendered already.
_PASS_ON = "{{ messages[-1]['content'][0]['text'] }}"
_OPTIONS = ("return_tensors", "return_dict", "processor_kwargs")
# Before a template that knows no images, or no sounds: contents become texts.
_TEXTS = """\
{%- set texts = namespace(messages=[]) -%}\
{%- for message in messages -%}\
{%- set text = namespace(content=message.content) -%}\
{%- if message.content and message.content is not string -%}\
{%- set text.content = '' -%}\
{%- for part in message.content -%}\
{%- set text.content = text.content + (TOKEN if part.type == KIND else part.text) -%}\
{%- endfor -%}\
{%- endif -%}\
{%- set texts.messages = texts.messages + [dict(message, content=text.content)] -%}\
{%- endfor -%}\
{%- set messages = texts.messages -%}"""


def seeing(kind: type, tokenizer: Any, **parts: Any) -> Any:
    """A processor of class `kind` around a tokenizer of `guard`, whose template is the processor's, too.

    parts: what else it is made of; None: it is shown no videos, which would need torchvision, or hears nothing.
    """
    return _seeing(kind)(tokenizer=tokenizer, chat_template=tokenizer.chat_template, **parts)


def showing(tokenizer: Any, token: str, kind: str = "image") -> Any:
    """The template of a tokenizer of `guard`, which writes `token` for an image, or a part of another `kind`: behind
    what makes texts of the messages, if that helps, and it doesn't by itself."""
    template = tokenizer.chat_template
    if not isinstance(template, str):
        return template
    asked = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": "What?"}]}]

    def shows(template: str) -> bool:
        try:
            text = tokenizer.apply_chat_template(asked, chat_template=template, tokenize=False)
        except (LoadError, TemplateError):  # it takes texts alone
            return False
        return token.strip() in text and "What?" in text

    of_texts = _TEXTS.replace("TOKEN", repr(token)).replace("KIND", repr(kind)) + template
    return of_texts if not shows(template) and shows(of_texts) else template


def transcription(processor: Any, sound: Any, **told: str) -> str:
    """The rendered conversation that asks a model for what is said in a sound (float32 [n]): as its processor's
    `apply_transcription_request` has it, under a budget; without one, a question of ours.

    told: its `language` and a `prompt`, if they are known. ValueError: the processor takes no such argument.
    """
    ask = getattr(processor, "apply_transcription_request", None)
    if ask is None:
        question = "Write down what is said in this audio, word for word, and nothing else."
        question += f" The language is {told['language']}." if "language" in told else ""
        question += f" What is known of it: {told['prompt']}" if "prompt" in told else ""
        parts = [{"type": "audio"}, {"type": "text", "text": question}]
        asked = [{"role": "user", "content": parts}]
        return str(processor.tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))
    for name in sorted(told.keys() - inspect.signature(ask).parameters.keys()):
        raise ValueError(f"{name}: expected none, as {type(processor).__name__} takes none, got {told[name]!r:.60}")
    if not isinstance(processor, Seeing):
        kind: type = type(processor)
        processor = copy.copy(processor)
        processor.__class__ = _seeing(kind)
    return str(processor.apply_transcription_request(audio=[sound], tokenize=False, **told)[0])


def transcript(processor: Any, tokens: Sequence[int]) -> str:
    """What a model answers to `transcription`, without what its processor knows to be no part of the transcript."""
    taken = inspect.signature(processor.decode).parameters
    known = {"return_format": "transcription_only", "strip_prefix": True}
    options = {name: value for name, value in known.items() if name in taken}
    return str(processor.decode([[*tokens]], skip_special_tokens=True, **options)[0])


class Seeing:
    """Mixed into a processor's class by `seeing`."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument is None:
            return None
        return super().check_argument_for_proper_class(argument_name, argument)  # type: ignore[misc]

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers documents it. ValueError: it lacks a part, without which nothing would load it again."""
        lacking = [name for name in self.get_attributes() if getattr(self, name) is None]  # type: ignore[attr-defined]
        if lacking:
            raise ValueError(f"this processor has no {', '.join(lacking)}: save its image_processor and tokenizer")
        return super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    def apply_chat_template(
        self,
        conversation: Any,
        chat_template: str | None = None,
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As transformers documents it, but that arguments for the processor itself come as `processor_kwargs`: others
        are the template's. What is rendered is limited as `torch_foundry.text.render` says."""
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        batched = bool(conversation) and isinstance(conversation[0], (list, tuple))
        told = {
            **{"chat_template": chat_template, "tools": tools, "documents": documents, "tokenize": False},
            **{"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message},
        }
        chats = []
        for chat in conversation if batched else [conversation]:
            text = self.tokenizer.apply_chat_template(in_parts(chat), **told, **kwargs)  # type: ignore[attr-defined]
            chats.append([*chat, {"role": "text", "content": [{"type": "text", "text": text}]}])
        return super().apply_chat_template(  # type: ignore[misc]
            chats if batched else chats[0], chat_template=_PASS_ON, tokenize=tokenize, **options
        )


@cache
def _seeing(base: type) -> type:
    return type(base.__name__, (Seeing, base), {"__module__": base.__module__, "__doc__": base.__doc__})
