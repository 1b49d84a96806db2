"""The demo model's corpus: stories, conversations and facts about a small world, written by seeded grammars.

Document `i` of a split depends on nothing but (seed, split, i), so a corpus of any length can be written in
parallel and a held-out sample can be rewritten anywhere. Nothing in it is copied from anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from . import answers
from .chat import conversation, story

SEED = 20250101
SPLITS = {"train": 0, "heldout": 1}
BOS, EOS, PAD = "<|start|>", "<|end|>", "<|pad|>"
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
SPECIAL_TOKENS = [PAD, BOS, EOS, *ROLES.values()]


def chat_text(turns: list[tuple[str, str]]) -> str:
    """Turns in the chat format, which the chat template of the tokenizer reproduces."""
    return "".join(f"{ROLES[role]}{text}{EOS}" for role, text in turns)


def document(seed: int, split: str, index: int) -> str:
    """The text of one document, from its beginning-of-text token to its last end token."""
    rng = random.Random((seed << 40) + (SPLITS[split] << 39) + index)
    kind = rng.random()
    if kind < 0.42:
        tale = story(rng)
        body = (f"{tale.title}\n\n" if rng.random() < 0.25 else "") + tale.body() + EOS
    elif kind < 0.95:
        body = chat_text(conversation(rng))
    else:
        body = answers.article(rng) + EOS
    return BOS + body


def documents(split: str, start: int, stop: int, *, seed: int = SEED) -> Iterator[str]:
    """Documents `start` to `stop` of a split."""
    return (document(seed, split, index) for index in range(start, stop))
