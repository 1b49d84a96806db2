"""Questions with their answers, and short articles, drawn from the tables of facts."""

from __future__ import annotations

import random

from . import facts, language, words, world
from .answering import Answer, fill
from .grammar import expand, polish


def why(rng: random.Random) -> Answer:
    question, answer = rng.choice(facts.WHY)
    return question, answer, answer


def how(rng: random.Random) -> Answer:
    task, steps = rng.choice(facts.HOW)
    if rng.random() < 0.5:
        lines = "\n".join(f"{i}. {step[0].upper()}{step[1:]}." for i, step in enumerate(steps, 1))
        answer = f"[This is how to {task}|Here are the steps]:\n{lines}"
    else:
        answer = (
            f"First, {steps[0]}. "
            + "".join(f"[Then|Next], {step}. " for step in steps[1:-1])
            + f"[At last|Finally], {steps[-1]}."
        )
    return fill(
        rng,
        "[How does one {task}?|How do I {task}?|Tell me how to {task}.|Explain how to {task}.]",
        answer,
        answer,
        task=task,
    )


def article(rng: random.Random) -> str:
    """A short text that describes an animal, a season, a trade or how to do something."""
    kind = rng.random()
    if kind < 0.5:
        name = rng.choice(list(facts.ANIMALS))
        sound, home, food, legs, covering, young, emoji = facts.ANIMALS[name]
        slots = {
            "a": name,
            "home": home,
            "food": food,
            "legs": words.NUMBER_WORDS[legs] if legs else "no",
            "covering": covering,
            "young": young,
            "sound": sound,
            "emoji": emoji,
        }
        lines = [
            "A {a} lives {home}.",
            "[It eats|Its food is] {food}.",
            "[It has {legs} legs.|One can count its legs: it has {legs}.]",
            "Its body is covered with {covering}.",
            "A young {a} is called a {young}.",
        ]
        if sound:
            lines.append('[It says|Its sound is] "{sound}".')
        first, rest = lines[0], lines[1:]
        rng.shuffle(rest)
        head = "The {a}\n\n" if rng.random() < 0.5 else "{emoji} " if rng.random() < 0.3 else ""
        return polish(expand(" ".join([head + first, *rest]), rng, slots))
    if kind < 0.65:
        season = rng.choice(words.SEASONS)
        return polish(
            f"{season} is one of the four seasons. In {season} {facts.SEASON_FACTS[season]}. After {season} comes"
            f" {words.SEASONS[(words.SEASONS.index(season) + 1) % 4]}."
        )
    if kind < 0.8:
        trades = rng.sample(list(facts.JOBS.items()), rng.randint(3, 6))
        return " ".join(polish(f"a {job} {work}.") for job, work in trades)
    return " ".join(answer for _, answer in rng.sample(facts.WHY, rng.randint(2, 5))) if kind < 0.9 else how(rng)[1]


# the order is part of the corpus: a question picks its maker by position
_MAKERS = (
    world.animal,
    world.ability,
    world.colour,
    world.mix,
    language.opposite,
    language.word,
    language.calendar,
    world.use,
    world.category,
    world.size,
    why,
    how,
    world.shape,
    language.meaning,
    language.superlative,
    language.unknown,
    language.unclear,
)


def draw(rng: random.Random) -> Answer:
    """One question with its full and its short answer, from a random maker; animals count thrice."""
    return world.animal(rng) if rng.random() < 0.15 else _MAKERS[int(rng.random() * len(_MAKERS))](rng)
