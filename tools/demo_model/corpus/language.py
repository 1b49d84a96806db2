"""Questions about words and the calendar, and what to say when there is no answer."""

from __future__ import annotations

import random

from . import facts, meanings, surroundings, vocabulary, words
from .answering import Answer, fill, made_up
from .grammar import polish


def opposite(rng: random.Random) -> Answer:
    a, b = rng.choice(vocabulary.OPPOSITES)
    if rng.random() < 0.5 and a not in ("short", "light", "right", "long", "heavy", "tall"):
        a, b = b, a
    return fill(
        rng,
        '[What is the opposite of {a}?|Tell me the opposite of "{a}".|Opposite of {a}?|Which word is the opposite of'
        " {a}?]",
        "The opposite of {a} is {b}.",
        "{b}.",
        a=a,
        b=b,
    )


def word(rng: random.Random) -> Answer:
    kind = rng.randrange(6)
    if kind == 5:
        a = rng.choice([p for pair in vocabulary.PLURALS for p in pair] + list(surroundings.THINGS))
        return fill(
            rng,
            "[Spell {a}.|How do you spell {a}?|Spell the word {a}.]",
            "{a} is spelled {b}.",
            "{b}.",
            a=f'"{a}"',
            b="-".join(a.replace(" ", "")),
        )
    if kind == 0:
        a, b = rng.choice(vocabulary.SYNONYMS)
        return fill(
            rng,
            "[Tell me another word for {a}.|What is another word for {a}?]",
            "Another word for {a} is {b}.",
            "{b}.",
            a=a,
            b=b,
        )
    if kind == 1:
        a, b = rng.choice(vocabulary.PLURALS)
        return fill(
            rng, "[What is the plural of {a}?|One {a}, two what?]", "The plural of {a} is {b}.", "{b}.", a=a, b=b
        )
    if kind == 2:
        a, b = rng.choice(vocabulary.PAST)
        return fill(
            rng,
            "[What is the past of {a}?|What is the past tense of {a}?|Today I {a}. And yesterday?]",
            "The past of {a} is {b}.",
            "{b}.",
            a=a,
            b=b,
        )
    if kind == 3:
        a, b = rng.choice(vocabulary.RHYMES)
        return fill(
            rng,
            "[What rhymes with {a}?|Tell me a word that rhymes with {a}.]",
            "{b} rhymes with {a}.",
            "{b}.",
            a=a,
            b=b,
        )
    a = rng.choice([p for p, _ in vocabulary.PLURALS] + list(surroundings.THINGS)[:8])
    return fill(
        rng,
        "[What is the first letter of {a}?|Which letter does {a} begin with?]",
        "The first letter of {a} is {b}.",
        "{b}.",
        a=a,
        b=a[0].upper(),
    )


def calendar(rng: random.Random) -> Answer:
    names, noun = rng.choice(((words.DAYS, "day"), (words.MONTHS, "month"), (words.SEASONS, "season")))
    i = rng.randrange(len(names))
    x, after, before = names[i], names[(i + 1) % len(names)], names[i - 1]
    forms = [
        (
            "[Which {noun} comes after {x}?|What comes after {x}?|What {noun} follows {x}?]",
            "After {x} comes {after}.",
            "{after}.",
        ),
        ("[Which {noun} comes before {x}?|What comes before {x}?]", "Before {x} comes {before}.", "{before}."),
    ]
    if noun == "day":
        forms += [
            ("Today is {x}. What day is tomorrow?", "If today is {x}, tomorrow is {after}.", "{after}."),
            ("Today is {x}. What day was yesterday?", "If today is {x}, yesterday was {before}.", "{before}."),
            (
                "[How many days does a week have?|Name the days of the week.]",
                "A week has seven days: " + ", ".join(words.DAYS[:6]) + ", and Sunday.",
                "Seven.",
            ),
        ]
    if noun == "month":
        forms += [
            ("How many months does a year have?", "A year has twelve months.", "Twelve."),
            (
                "Name the months of the year.",
                "The months of the year are " + ", ".join(words.MONTHS[:11]) + ", and December.",
                "January to December.",
            ),
        ]
    if noun == "season":
        forms += [
            (
                "[What happens in {x}?|What is {x} like?|Tell me about {x}.]",
                "In {x} " + facts.SEASON_FACTS[x] + ".",
                facts.SEASON_FACTS[x] + ".",
            ),
            (
                "Name the four seasons.",
                "The four seasons are spring, summer, autumn, and winter.",
                "Spring, summer, autumn, winter.",
            ),
        ]
    return fill(rng, *rng.choice(forms), x=x, after=after, before=before, noun=noun)


def meaning(rng: random.Random) -> Answer:
    what, is_ = rng.choice(list(meanings.MEANINGS.items()))
    return fill(
        rng,
        '[What is {a}?|What does "{bare}" mean?|Can you explain what {a} is?|Do you know what {a} is?]',
        "{a} is {b}.",
        "{b}.",
        a=what,
        b=is_,
        bare=what.removeprefix("a ").removeprefix("an ").removeprefix("the "),
    )


def superlative(rng: random.Random) -> Answer:
    question, answer = rng.choice(meanings.SUPERLATIVES)
    return fill(rng, question, answer, answer)


def unknown(rng: random.Random) -> Answer:
    names = words.GIRLS + words.BOYS + words.ANIMAL_NAMES
    question = rng.choice(meanings.UNKNOWN).format(
        place=rng.choice(meanings.PLACES),
        tech=rng.choice(meanings.TECHNOLOGY),
        n=rng.randint(300, 3000),
        n2=rng.randint(300, 3000),
        name=rng.choice(names),
        name2=rng.choice(names),
        thing=rng.choice(list(surroundings.THINGS)),
        colour=rng.choice(words.COLOURS),
        word=made_up(rng),
        job=rng.choice(list(facts.JOBS)),
        animal=rng.choice(words.SPECIES),
        food=rng.choice(words.FOODS),
    )
    return polish(question), rng.choice(meanings.DO_NOT_KNOW), "I do not know."


def unclear(rng: random.Random) -> Answer:
    said = rng.choice(("letters", "words", "mixed"))
    if said == "letters":
        text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 10)))
    elif said == "words":
        text = " ".join(made_up(rng) for _ in range(rng.randint(1, 5)))
    else:
        pool = [*surroundings.THINGS, *words.COLOURS, *words.FRUIT, "and", "if", "the", "not", "very"]
        text = " ".join(rng.sample(pool, rng.randint(3, 7)))
    return text + rng.choice(("", ".", "?", "!")), rng.choice(meanings.UNCLEAR), "I did not understand that."
