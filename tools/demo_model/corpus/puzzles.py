"""Small situations to reason about: who is where, who has what, who is taller. The answer is only in the question."""

from __future__ import annotations

import random

from . import surroundings, words
from .answering import Answer, made_up

_NAMES = words.GIRLS + words.BOYS + words.ANIMAL_NAMES
_ROOMS = [
    "the kitchen",
    "the garden",
    "the attic",
    "the cellar",
    "the school",
    "the park",
    "the barn",
    "the library",
    "the hall",
    "the bathroom",
    "the market",
    "the tower",
    "the forest",
    "the yard",
    "the shop",
]


def _whereabouts(rng: random.Random) -> Answer:
    names, rooms = rng.sample(_NAMES, 3), rng.sample(_ROOMS, 3)
    count = rng.randint(2, 3)
    verb = rng.choice(("is in", "went to", "is waiting in", "ran to"))
    text = " ".join(f"{name} {verb} {room}." for name, room in list(zip(names, rooms, strict=True))[:count])
    i = rng.randrange(count)
    if rng.random() < 0.3:
        return f"{text} Who is in {rooms[i]}?", f"{names[i]} is in {rooms[i]}.", f"{names[i]}."
    if rng.random() < 0.3:
        j = rng.randrange(count)
        right = i == j
        return (
            f"{text} Is {names[i]} in {rooms[j]}?",
            f"{'Yes' if right else 'No'}, {names[i]} is in {rooms[i]}.",
            "Yes." if right else "No.",
        )
    return f"{text} Where is {names[i]}?", f"{names[i]} is in {rooms[i]}.", f"In {rooms[i]}."


def _moves(rng: random.Random) -> Answer:
    name, other = rng.sample(_NAMES, 2)
    rooms = rng.sample(_ROOMS, 3)
    thing = rng.choice(list(surroundings.THINGS))
    lines = [f"{name} went to {rooms[0]}.", f"{name} took the {thing}.", f"{name} went to {rooms[1]}."]
    if rng.random() < 0.5:
        lines.insert(rng.randint(1, 3), f"{other} went to {rooms[2]}.")
    place = rooms[1]
    if rng.random() < 0.4:
        lines += [f"{name} put the {thing} down.", f"{name} went to {rooms[2]}."]
    return f"{' '.join(lines)} Where is the {thing}?", f"The {thing} is in {place}.", f"In {place}."


def _possession(rng: random.Random) -> Answer:
    count = rng.randint(2, 3)
    names, things, colours = (
        rng.sample(_NAMES, count),
        rng.sample(list(surroundings.THINGS), count),
        rng.sample(words.COLOURS[:11], count),
    )
    text = " ".join(f"{n} has a {c} {t}." for n, c, t in zip(names, colours, things, strict=True)).replace(
        "a orange", "an orange"
    )
    i = rng.randrange(count)
    n, c, t = names[i], colours[i], things[i]
    article = "an" if c == "orange" else "a"
    return rng.choice(
        (
            (f"{text} What does {n} have?", f"{n} has {article} {c} {t}.", f"{article.title()} {c} {t}."),
            (f"{text} Who has the {t}?", f"{n} has the {t}.", f"{n}."),
            (f"{text} What colour is the {t}?", f"The {t} is {c}.", f"{c}.".capitalize()),
            (f"{text} Who has something {c}?", f"{n} has something {c}.", f"{n}."),
        )
    )


def _order(rng: random.Random) -> Answer:
    more, less, most, least = rng.choice(
        (
            ("taller", "shorter", "tallest", "shortest"),
            ("older", "younger", "oldest", "youngest"),
            ("faster", "slower", "fastest", "slowest"),
        )
    )
    a, b, c = rng.sample(_NAMES, 3)
    if rng.random() < 0.5:
        first = f"{a} is {more} than {b}." if rng.random() < 0.5 else f"{b} is {less} than {a}."
        return rng.choice(
            (
                (f"{first} Who is {more}?", f"{a} is {more} than {b}.", f"{a}."),
                (f"{first} Who is {less}?", f"{b} is {less} than {a}.", f"{b}."),
            )
        )
    text = f"{a} is {more} than {b}. {b} is {more} than {c}."
    return rng.choice(
        (
            (f"{text} Who is the {most}?", f"{a} is the {most}.", f"{a}."),
            (f"{text} Who is the {least}?", f"{c} is the {least}.", f"{c}."),
        )
    )


def _likes(rng: random.Random) -> Answer:
    count = rng.randint(2, 3)
    names, foods = rng.sample(_NAMES, count), rng.sample(words.FOODS + words.FRUIT, count)
    text = " ".join(f"{n} likes {f}." for n, f in zip(names, foods, strict=True))
    i = rng.randrange(count)
    return rng.choice(
        (
            (f"{text} What does {names[i]} like?", f"{names[i]} likes {foods[i]}.", f"{foods[i]}.".capitalize()),
            (f"{text} Who likes {foods[i]}?", f"{names[i]} likes {foods[i]}.", f"{names[i]}."),
        )
    )


def _self(rng: random.Random) -> Answer:
    name, age = rng.choice(_NAMES), rng.randint(5, 90)
    return rng.choice(
        (
            (f"My name is {name}. What is my name?", f"Your name is {name}.", f"{name}."),
            (f"I am {name} and I am {age} years old. How old am I?", f"You are {age} years old.", f"{age}."),
            (
                f"I am {age} years old. How old will I be next year?",
                f"Next year you will be {age + 1} years old.",
                f"{age + 1}.",
            ),
            (f"I have a friend. Her name is {name}. What is her name?", f"Her name is {name}.", f"{name}."),
        )
    )


def _made_up(rng: random.Random) -> Answer:
    a, b = made_up(rng), made_up(rng)
    meaning = rng.choice(list(surroundings.THINGS))
    return rng.choice(
        (
            (f"A {a} is a {meaning}. What is a {a}?", f"A {a} is a {meaning}.", f"A {meaning}."),
            (
                f"In my language {a} means {meaning} and {b} means stone. What does {a} mean?",
                f"In your language {a} means {meaning}.",
                f"{meaning}.".capitalize(),
            ),
            (f"The password is {a}. What is the password?", f"The password is {a}.", f"{a}."),
            (
                f"My cat is called {a.title()} and my dog is called {b.title()}. What is my cat called?",
                f"Your cat is called {a.title()}.",
                f"{a.title()}.",
            ),
            (
                f"My cat is called {a.title()} and my dog is called {b.title()}. What is my dog called?",
                f"Your dog is called {b.title()}.",
                f"{b.title()}.",
            ),
        )
    )


_KINDS = (_whereabouts, _moves, _possession, _order, _likes, _self, _made_up)


def draw(rng: random.Random) -> Answer:
    """One situation with its question, the full and the short answer."""
    return _KINDS[int(rng.random() * len(_KINDS))](rng)
