"""Which of several replicas answers a request: one that has its prefix in the cache, unless that one is too busy.

Neither transport nor tokens are known here: a prompt is a chain of keys, each of a longer prefix than the one before.
`benchmarks/scale.py` simulates it, and `serving.ray` routes by it.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

SLACK = 4  # requests by which a replica with the prefix may be ahead of the shortest queue: see docs/scale.md
REMEMBERED = 1 << 16  # prefixes
PIECE = 4096  # characters of a text between two keys
FIRST = ("model", "tools", "system", "instructions")  # fields that templates put before the conversation
CONVERSATION = ("messages", "input", "prompt")


class Router:
    """Remembers which replicas have read which prefixes.

    slack: requests by which the replica that has the longest prefix may be ahead of the shortest of `tried` queues;
    inf: it is always taken; -inf: never, so the shortest queue alone decides.
    """

    def __init__(self, slack: float = SLACK, *, tried: int = 2, remembered: int = REMEMBERED, seed: Any = None) -> None:
        self.slack, self.tried, self.remembered = slack, tried, remembered
        self._random = random.Random(seed)
        self._known: OrderedDict[Any, dict[str, None]] = OrderedDict()  # prefix -> its replicas, the last one last

    def choose(self, keys: Sequence[Any], names: Collection[str], open: Callable[[str], float]) -> str:
        """One of the replicas `names`, of which each has so many `open` requests, for a prompt with these `keys`."""
        some = [*names] if len(names) <= self.tried else self._random.sample([*names], self.tried)
        shortest = min(some, key=open)
        limit = open(shortest) + self.slack
        for key in reversed(keys) if self.slack > -math.inf else ():
            having = [name for name in self._known.get(key, ()) if name in names]
            if having and open(best := min(reversed(having), key=open)) <= limit:
                return best
        return shortest

    def note(self, keys: Sequence[Any], name: str) -> None:
        """`name` reads a prompt with these `keys`."""
        for key in keys:
            replicas = self._known.setdefault(key, {})
            replicas.pop(name, None)
            replicas[name] = None
            self._known.move_to_end(key)
        while len(self._known) > self.remembered:
            self._known.popitem(last=False)

    def forget(self, name: str) -> None:
        """A replica is gone, and its cache with it."""
        for replicas in self._known.values():
            replicas.pop(name, None)


def keys_of(body: bytes, salt: bytes = b"") -> list[bytes]:
    """The keys of a request's prompt, by its JSON; none if it is not such a request. salt: what shares no prefixes with
    others: a key of the API."""
    try:
        fields: Any = json.loads(body)
    except ValueError:
        return []
    if not isinstance(fields, dict):
        return []
    digest, keys = hashlib.blake2b(salt, digest_size=16), []
    pieces: list[Any] = [[fields.get(name) for name in FIRST]] if any(name in fields for name in FIRST[1:]) else []
    for name in CONVERSATION:
        found = fields.get(name)
        if isinstance(found, str):
            pieces += [found[start : start + PIECE] for start in range(0, len(found), PIECE)]
        elif isinstance(found, list):
            pieces += found
    for piece in pieces:
        digest.update(json.dumps(piece, sort_keys=True).encode())
        keys.append(digest.digest())
    return keys
