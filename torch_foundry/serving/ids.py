"""Ids of requests, responses and tool calls."""

from __future__ import annotations

import random

_random = random.Random()  # seeded by the system once: asking it each time makes both threads change places


def new_id(prefix: str) -> str:
    """An id that no other object has; it may be guessed."""
    return f"{prefix}_{_random.getrandbits(96):024x}"
