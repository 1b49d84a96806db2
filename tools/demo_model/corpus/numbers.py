"""Counting, sums, comparisons and the like, in digits and in words."""

from __future__ import annotations

import random

from .answering import Answer
from .words import FRUIT, NUMBER_WORDS

_TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spell(n: int) -> str:
    """A number below 1000 in words."""
    if n <= 20:
        return NUMBER_WORDS[n]
    if n < 100:
        return _TENS[n // 10] + (f"-{NUMBER_WORDS[n % 10]}" if n % 10 else "")
    return f"{NUMBER_WORDS[n // 100]} hundred" + (f" and {spell(n % 100)}" if n % 100 else "")


def _sum(rng: random.Random) -> Answer:
    limit = rng.choice((10, 20, 20, 50, 100))
    sign, name = rng.choice((("+", "plus"), ("+", "plus"), ("-", "minus"), ("x", "times")))
    a, b = rng.randint(0, limit), rng.randint(0, limit)
    if sign == "-" and a < b:
        a, b = b, a
    if sign == "x":
        a, b = rng.randint(0, 10), rng.randint(0, 10)
    result = a + b if sign == "+" else a - b if sign == "-" else a * b
    if rng.random() < 0.2 and limit <= 20:
        words = f"{spell(a)} {name} {spell(b)}"
        return (
            rng.choice((f"What is {words}?", f"How much is {words}?")),
            f"{words} is {spell(result)}.".capitalize(),
            f"{spell(result)}.".capitalize(),
        )
    question = rng.choice(
        (
            f"What is {a} {sign} {b}?",
            f"{a} {sign} {b} = ?",
            f"How much is {a} {name} {b}?",
            f"What is {a} {name} {b}?",
            f"Calculate {a} {sign} {b}.",
        )
    )
    return (
        question,
        f"{a} {sign} {b} = {result}." if rng.random() < 0.5 else f"{a} {name} {b} is {result}.",
        f"{result}.",
    )


def _count(rng: random.Random) -> Answer:
    step = rng.choice((1, 1, 1, 2, 5, 10, -1, -1))
    start = rng.randint(0, 40) if step == 1 else rng.choice((0, step)) if step > 0 else rng.randint(5, 30)
    length = rng.randint(4, 12)
    if step < 0:
        length = min(length, start)
    numbers = [start + step * i for i in range(length + 1)]
    how = {1: "", -1: " backwards", 2: " in twos", 5: " in fives", 10: " in tens"}[step]
    spoken = rng.random() < 0.25 and max(numbers) <= 20
    listed = ", ".join(spell(n) if spoken else str(n) for n in numbers)
    extra = " in words" if spoken else ""
    question = rng.choice(
        (
            f"Count from {numbers[0]} to {numbers[-1]}{how}{extra}.",
            f"Please count{how}{extra} from {numbers[0]} to {numbers[-1]}.",
        )
    )
    answer = listed[0].upper() + listed[1:] + "."
    return question, answer, answer


def _compare(rng: random.Random) -> Answer:
    a, b = rng.sample(range(101), 2)
    big, small = max(a, b), min(a, b)
    return rng.choice(
        (
            (f"Which is larger, {a} or {b}?", f"{big} is larger than {small}.", f"{big}."),
            (f"Which is smaller, {a} or {b}?", f"{small} is smaller than {big}.", f"{small}."),
            (
                f"Is {a} larger than {b}?",
                f"{'Yes' if a > b else 'No'}, {a} is {'larger' if a > b else 'smaller'} than {b}.",
                "Yes." if a > b else "No.",
            ),
        )
    )


def _property(rng: random.Random) -> Answer:
    n = rng.randint(1, 100)
    parity = "odd" if n % 2 else "even"
    even = 2 * rng.randint(1, 50)
    return rng.choice(
        (
            (f"Is {n} odd or even?", f"{n} is {parity}.", f"{parity}.".capitalize()),
            (f"What number comes after {n}?", f"After {n} comes {n + 1}.", f"{n + 1}."),
            (f"What number comes before {n}?", f"Before {n} comes {n - 1}.", f"{n - 1}."),
            (f"What is half of {even}?", f"Half of {even} is {even // 2}.", f"{even // 2}."),
            (f"What is double {n}?", f"Double {n} is {2 * n}.", f"{2 * n}."),
            (f"Write {n} in words.", f"{n} in words is {spell(n)}.", f"{spell(n)}.".capitalize()),
            (f"Write {spell(n)} in digits.", f"{spell(n)} in digits is {n}.".capitalize(), f"{n}."),
        )
    )


def _sort(rng: random.Random) -> Answer:
    numbers = rng.sample(range(1, 60), rng.randint(3, 6))
    listed = ", ".join(map(str, numbers))
    kind = rng.randrange(3)
    if kind == 0:
        ordered = ", ".join(map(str, sorted(numbers)))
        return f"Sort these numbers: {listed}.", f"In order they are {ordered}.", f"{ordered}."
    name, value = (("largest", max(numbers)), ("smallest", min(numbers)))[kind - 1]
    return f"Which of these numbers is the {name}: {listed}?", f"The {name} is {value}.", f"{value}."


def _problem(rng: random.Random) -> Answer:
    names = ("Anna", "Tom", "Mia", "Ben", "Lily", "Max", "Nina", "Sam")
    who, other = rng.sample(names, 2)
    fruit = rng.choice(FRUIT)
    a, b = rng.randint(3, 20), rng.randint(2, 10)
    if rng.random() < 0.5:
        return (
            f"{who} has {a} {fruit}. {other} gives {who} {b} more. How many {fruit} does {who} have now?",
            f"{who} had {a} {fruit} and got {b} more. {a} + {b} = {a + b}, so {who} now has {a + b} {fruit}.",
            f"{a + b}.",
        )
    a, b = max(a, b + 1), min(b, a - 1)
    left = a - b
    noun = fruit if left != 1 else "one"
    return (
        f"{who} has {a} {fruit} and gives {b} to {other}. How many are left?",
        f"{who} had {a} {fruit} and gave {b} away. {a} - {b} = {left}, so {who} has {left} {noun} left.".replace(
            " one left", " left"
        ),
        f"{left}.",
    )


_KINDS = (_sum, _sum, _sum, _count, _count, _compare, _property, _sort, _problem)


def draw(rng: random.Random) -> Answer:
    """One question about numbers with its full and its short answer."""
    return _KINDS[int(rng.random() * len(_KINDS))](rng)
