"""Which replica a request goes to."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from torch_foundry.serving.routing import PIECE, Router, keys_of


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def chosen(router: Router, keys: list[Any], queues: dict[str, int]) -> str:
    name = router.choose(keys, queues, queues.__getitem__)
    router.note(keys, name)
    return name


def test_a_conversation_stays_where_its_longest_prefix_is() -> None:
    router, queues = Router(slack=2, seed=0), {"a": 0, "b": 0, "c": 0}
    router.note(["system"], "a")
    router.note(["system", "first"], "b")
    assert chosen(router, ["system", "first", "next"], queues) == "b"
    assert chosen(router, ["system", "other"], {"a": 1, "b": 0, "c": 0}) == "b"  # of two that have it, the shorter
    assert chosen(router, ["system", "first", "next", "last"], {"a": 0, "b": 2, "c": 0}) == "b"


def test_a_queue_that_is_longer_by_more_than_the_slack_is_left() -> None:
    router = Router(slack=2, tried=3, seed=0)
    router.note(["system"], "a")
    router.note(["system", "first"], "b")
    assert chosen(router, ["system", "first"], {"a": 2, "b": 3, "c": 0}) == "a"  # a shorter prefix of it
    assert chosen(router, ["system"], {"a": 9, "b": 9, "c": 0}) == "c"
    assert chosen(router, ["system"], {"a": 0, "b": 9, "c": 3}) == "a"


@pytest.mark.parametrize(("slack", "expected"), [(-math.inf, "c"), (math.inf, "a")])
def test_slacks_without_end(slack: float, expected: str) -> None:
    router = Router(slack, tried=3, seed=0)
    router.note(["system"], "a")
    assert chosen(router, ["system"], {"a": 50, "b": 2, "c": 1}) == expected


def test_replicas_that_are_gone_and_old_prefixes_are_forgotten() -> None:
    router = Router(slack=9, tried=3, remembered=2, seed=0)
    router.note(["x"], "a")
    assert chosen(router, ["x"], {"b": 1, "c": 0}) == "c"  # a is not among them
    router.forget("c")
    assert chosen(router, ["x"], {"a": 5, "b": 0, "c": 1}) == "a"
    router.note(["y"], "a")
    router.note(["z"], "a")
    assert chosen(router, ["x"], {"a": 5, "b": 0, "c": 1}) == "b"


def test_keys_grow_with_the_conversation() -> None:
    one = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    more = [*one, {"role": "assistant", "content": "a"}]
    first, next_ = keys_of(body(messages=one)), keys_of(body(messages=more, temperature=1))
    assert len(first) == 2 and next_[:2] == first and len(set(next_)) == 3
    assert keys_of(body(messages=one), b"key")[0] != first[0]
    assert keys_of(body(messages=one, tools=[{"name": "t"}]))[-1] != first[-1]
    assert keys_of(body(system="s", messages=one[1:]))[0] != keys_of(body(system="t", messages=one[1:]))[0]
    text = "x" * (2 * PIECE + 1)
    assert (
        keys_of(body(prompt=text))[:2] == keys_of(body(prompt=text + "y"))[:2] and len(keys_of(body(input=text))) == 3
    )
    assert not keys_of(b"") and not keys_of(b"[1]") and not keys_of(b"\xff") and not keys_of(body(model="m"))
