"""What makers of questions and answers share."""

from __future__ import annotations

import random

from .grammar import expand, polish

Answer = tuple[str, str, str]
_SYLLABLES = [
    "ba",
    "be",
    "bo",
    "da",
    "do",
    "fi",
    "fu",
    "ga",
    "go",
    "ka",
    "ki",
    "ko",
    "la",
    "li",
    "lo",
    "lu",
    "ma",
    "mi",
    "mo",
    "na",
    "ne",
    "no",
    "pa",
    "pe",
    "po",
    "ra",
    "ri",
    "ro",
    "sa",
    "si",
    "so",
    "ta",
    "ti",
    "to",
    "va",
    "ve",
    "zo",
    "zu",
]


def made_up(rng: random.Random) -> str:
    """A word that does not exist."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4)))


def fill(rng: random.Random, question: str, answer: str, short: str, **slots: object) -> Answer:
    """Question, answer and short answer with the slots filled."""
    return tuple(polish(expand(text, rng, slots)) for text in (question, answer, short))  # type: ignore[return-value]
