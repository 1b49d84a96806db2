"""A tiny text grammar: `[a|b|c]` picks one branch, `{name.attribute}` fills a slot, branches nest."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple


class Slot(NamedTuple):
    path: tuple[str, ...]


class Choice(NamedTuple):
    branches: tuple[tuple[str | Slot | Choice, ...], ...]


Node = str | Slot | Choice


@cache
def parse(template: str) -> tuple[Node, ...]:
    """The node sequence of a template; raises ValueError on unbalanced brackets."""
    nodes, end = _sequence(template, 0, nested=False)
    if end != len(template):
        raise ValueError(f"unbalanced ']' in template: {template!r}")
    return nodes


def _sequence(text: str, at: int, *, nested: bool) -> tuple[tuple[Node, ...], int]:
    nodes: list[Node] = []
    stop = "[{|]" if nested else "[{]"
    while at < len(text):
        char = text[at]
        if char == "[":
            branches = []
            while char != "]":
                branch, at = _sequence(text, at + 1, nested=True)
                branches.append(branch)
                if at >= len(text):
                    raise ValueError(f"unbalanced '[' in template: {text!r}")
                char = text[at]
            nodes.append(Choice(tuple(branches)))
            at += 1
        elif char == "{":
            close = text.index("}", at)
            nodes.append(Slot(tuple(text[at + 1 : close].split("."))))
            at = close + 1
        elif char in stop:
            break
        else:
            end = at
            while end < len(text) and text[end] not in stop:
                end += 1
            nodes.append(text[at:end])
            at = end
    return tuple(nodes), at


def expand(template: str, rng: random.Random, scope: Mapping[str, object]) -> str:
    """One random expansion of the template, with slots taken from `scope`; spacing and articles still raw."""
    out: list[str] = []
    _expand(parse(template), rng, scope, out)
    return "".join(out)


def _expand(nodes: tuple[Node, ...], rng: random.Random, scope: Mapping[str, object], out: list[str]) -> None:
    for node in nodes:
        if isinstance(node, str):
            out.append(node)
        elif isinstance(node, Slot):
            value = scope[node.path[0]]
            for name in node.path[1:]:
                value = getattr(value, name)
            out.append(str(value))
        else:
            _expand(node.branches[int(rng.random() * len(node.branches))], rng, scope, out)


_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOUÅ]|hon|hour)(?!(?:one|once|uni|use|eu|honey)[a-z]*)")
_SENTENCE = re.compile(r'(^"?|(?:[.!?] |\." |\n)"?)([a-z])')
_SPACES = re.compile(r" {2,}")


def polish(text: str) -> str:
    """Raw expansion to prose: single spaces, `a`/`an`, no space before punctuation, capitals at sentence starts."""
    text = (
        _SPACES.sub(" ", text.strip())
        .replace(" ,", ",")
        .replace(" .", ".")
        .replace('?".', '?"')
        .replace('!".', '!"')
        .replace('?."', '?"')
        .replace('!."', '!"')
    )
    text = _ARTICLE.sub(r"\1n ", text)
    return _SENTENCE.sub(lambda match: match.group(1) + match.group(2).upper(), text)
