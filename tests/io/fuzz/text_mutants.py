"""What is done to the JSON of safetensors headers as text."""

from __future__ import annotations

import random
from collections.abc import Callable

TEXTS: dict[str, Callable[[random.Random, str], str]] = {}


def text(name: str) -> Callable[[Callable[[random.Random, str], str]], Callable[[random.Random, str], str]]:
    def add(function: Callable[[random.Random, str], str]) -> Callable[[random.Random, str], str]:
        TEXTS[f"text: {name}"] = function
        return function

    return add


def _place(rng: random.Random, value: str) -> int:
    return rng.randrange(len(value) + 1)


@text("insert")
def _insert(rng: random.Random, value: str) -> str:
    at = _place(rng, value)
    pieces = (
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "\\",
        "\0",
        " ",
        "\t",
        "\n",
        "-",
        "0",
        "e9",
        ".",
        "NaN",
        "\\u00",
        "\\ud800",
        "﻿",
        "/*",
    )
    return value[:at] + rng.choice(pieces) + value[at:]


@text("delete")
def _delete(rng: random.Random, value: str) -> str:
    at = _place(rng, value)
    return value[:at] + value[at + rng.randrange(1, 5) :]


@text("swap")
def _swap(rng: random.Random, value: str) -> str:
    at = _place(rng, value)
    return value[:at] + value[at + 1 : at + 2] + value[at : at + 1] + value[at + 2 :]


@text("repeat")
def _repeat(rng: random.Random, value: str) -> str:
    a, count = _place(rng, value), rng.randrange(1, 60)
    return value[:a] + value[a : a + count] * 2 + value[a + count :]


@text("surround")
def _surround(rng: random.Random, value: str) -> str:
    before, behind = rng.choice(
        ((" ", ""), ("\n", ""), ("", "   "), ("", "\0"), ("", "x"), ("[", "]"), ('{"a":', "}"), ("", "\n"))
    )
    return before + value + behind


@text("nest")
def _nest(rng: random.Random, value: str) -> str:
    at, depth = _place(rng, value), rng.choice((2, 30, 2000))
    return value[:at] + rng.choice(("[", '{"a":')) * depth + value[at:]


@text("number")
def _digits(rng: random.Random, value: str) -> str:
    places = [i for i, c in enumerate(value) if c.isdigit()] or [0]
    at = rng.choice(places)
    pieces = ("-", "0", "00", "9" * 20, "9" * 400, "1.0", "1e2", "1E+2", "-0", "+1", "0x1", "1_0", "²", "٣")
    return value[:at] + rng.choice(pieces) + value[at + 1 :]


@text("escape")
def _escape(rng: random.Random, value: str) -> str:
    at = _place(rng, value)
    return value[:at] + f"\\u{ord(value[at]):04x}" + value[at + 1 :] if at < len(value) else value


@text("cut")
def _cut(rng: random.Random, value: str) -> str:
    return value[: _place(rng, value)]


@text("white space")
def _space(rng: random.Random, value: str) -> str:
    return value.replace(
        rng.choice((":", ",", "[", "}")), rng.choice((" , ", ": ", " ", ",\n", "\r", "\v", "\xa0")), rng.randrange(1, 4)
    )
