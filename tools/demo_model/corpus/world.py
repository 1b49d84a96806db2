"""Questions about the world: animals, colours, what things are for, sizes, shapes."""

from __future__ import annotations

import random

from . import facts, vocabulary, words
from .answering import Answer, fill


def animal(rng: random.Random) -> Answer:
    name = rng.choice(list(facts.ANIMALS))
    sound, home, food, legs, covering, young, emoji = facts.ANIMALS[name]
    slots = {
        "a": name,
        "sound": sound,
        "home": home,
        "food": food,
        "legs": words.NUMBER_WORDS[legs] if legs else "no",
        "covering": covering,
        "young": young,
        "emoji": emoji,
    }
    forms = [
        (
            "[Where does a {a} live?|Where do you find a {a}?|What is the home of a {a}?]",
            "A {a} lives {home}.",
            "{home}.",
        ),
        ("[What does a {a} eat?|What do you feed a {a}?|What is the food of a {a}?]", "A {a} eats {food}.", "{food}."),
        ("[How many legs does a {a} have?|How many legs has a {a}?]", "A {a} has {legs} legs.", "{legs}."),
        (
            "[What covers the body of a {a}?|What covers a {a}?]",
            "The body of a {a} is covered with {covering}.",
            "{covering}.",
        ),
        (
            "[What is the young of a {a} called?|What do you call a young {a}?|What is a baby {a}?]",
            "A young {a} is called a {young}.",
            "A {young}.",
        ),
        (
            "[Show me a {a}.|Is there an emoji of a {a}?|Draw a {a} with one sign.]",
            "[Here is a {a}|This is a {a}]: {emoji}",
            "{emoji}",
        ),
        ("[What is {emoji}?|What does {emoji} mean?|Which animal is this: {emoji}?]", "{emoji} is a {a}.", "A {a}."),
        (
            "[Tell me something about the {a}.|What do you know about the {a}?|Describe a {a}.|Tell me about {emoji}.]",
            (
                "A {a} lives {home}. It eats {food}. It has {legs} legs, and its body is covered with {covering}. A"
                " young {a} is called a {young}."
            ),
            "It lives {home}.",
        ),
    ]
    if sound:
        forms.append(
            (
                "[What sound does a {a} make?|What does the {a} say?|How does a {a} sound?]",
                'A {a} says "{sound}".',
                "{sound}.",
            )
        )
        forms.append(('Which animal says "{sound}"?', 'The {a} says "{sound}".', "The {a}."))
    return fill(rng, *rng.choice(forms), **slots)


def ability(rng: random.Random) -> Answer:
    verb, able = rng.choice((("fly", facts.FLIERS), ("swim", facts.SWIMMERS)))
    name = rng.choice(
        [*able, "cow", "pig", "sheep", "goat", "hen", "penguin", "frog", "fish", "snake"]
        if verb == "fly"
        else [*able, "sparrow", "hen", "butterfly", "ant"]
    )
    if name in able:
        why = "it has wings" if verb == "fly" else "it is at home in the water"
        return fill(
            rng, "Can a {a} {verb}?", "Yes, a {a} can {verb}, because {why}.", "Yes.", a=name, verb=verb, why=why
        )
    return fill(rng, "Can a {a} {verb}?", "No, a {a} cannot {verb} [well|very well].", "No.", a=name, verb=verb)


def colour(rng: random.Random) -> Answer:
    what = rng.choice(list(facts.COLOURS_OF))
    right = facts.COLOURS_OF[what]
    wrong = rng.choice([c for c in words.COLOURS[:11] if c != right])
    return fill(
        rng,
        *rng.choice(
            (
                (
                    (
                        "[What colour is {x}?|Which colour does {x} have?|What is the colour of {x}?|Tell me the colour"
                        " of {x}.]"
                    ),
                    "{x} is {c}.",
                    "{c}.",
                ),
                ("Is {x} {c}?", "Yes, {x} is {c}.", "Yes."),
                ("Is {x} {w}?", "No, {x} is not {w}. It is {c}.", "No."),
                ("[What is {c}?|Name something {c}.|What do you know that is {c}?]", "{x} is {c}.", "{x}."),
            )
        ),
        x=what,
        c=right,
        w=wrong,
    )


def mix(rng: random.Random) -> Answer:
    a, b, c = rng.choice(facts.MIXES)
    if rng.random() < 0.5:
        a, b = b, a
    return fill(
        rng,
        "[What do you get when you mix {a} and {b}?|Which colour do {a} and {b} make?|I mix {a} with {b}. What colour"
        " is it now?]",
        "[If you mix {a} and {b}, you get {c}.|{a} and {b} make {c}.]",
        "{c}.",
        a=a,
        b=b,
        c=c,
    )


def use(rng: random.Random) -> Answer:
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.choice(list(facts.JOBS.items()))
        return fill(
            rng,
            *rng.choice(
                (
                    ("[What does a {a} do?|What is the work of a {a}?]", "A {a} {b}.", "{b}."),
                    ("Who {b}?", "A {a} {b}.", "A {a}."),
                )
            ),
            a=a,
            b=b,
        )
    if kind == 1:
        a, b = rng.choice(list(facts.TOOLS.items()))
        return fill(
            rng,
            *rng.choice(
                (
                    (
                        "[What is {a} for?|What do you do with {a}?|What can one do with {a}?|Why do people use {a}?]",
                        "One uses {a} to {b}.",
                        "To {b}.",
                    ),
                    ("[What do you need to {b}?|How can I {b}?]", "To {b}, one uses {a}.", "{a}."),
                )
            ),
            a=a,
            b=b,
        )
    if kind == 2:
        a, b = rng.choice(list(facts.PARTS.items()))
        return fill(
            rng, "[What do we use {a} for?|What can we do with {a}?]", "We use {a} to {b}.", "To {b}.", a=a, b=b
        )
    a, b = rng.choice(list(facts.MADE_OF.items()))
    return fill(
        rng, "What {be} {a} made of?", "{a} {be} made of {b}.", "{b}.", a=a, b=b, be="are" if a == "raisins" else "is"
    )


def category(rng: random.Random) -> Answer:
    kind = rng.choice(list(vocabulary.CATEGORIES))
    members = vocabulary.CATEGORIES[kind]
    other = rng.choice([k for k in vocabulary.CATEGORIES if k != kind])
    many = vocabulary.PLURAL_OF_CATEGORY.get(kind, kind + "s")
    n = rng.randint(2, 5)
    chosen = rng.sample(members, n)
    odd = rng.choice([m for m in vocabulary.CATEGORIES[other] if m not in members])
    listed = ", ".join(chosen[:-1]) + (", and " if n > 2 else " and ") + chosen[-1]
    mixed = [*chosen[:3], odd]
    rng.shuffle(mixed)
    return fill(
        rng,
        *rng.choice(
            (
                (
                    "[Name {n} {many}.|Tell me {n} {many}.|Can you name {n} {many}?|List {n} {many}.]",
                    "[Here are {n} {many}: {listed}.|{n} {many} are {listed}.]",
                    "{listed}.",
                ),
                ("[What is a {m}?|Do you know what a {m} is?]", "A {m} is a {kind}.", "A {kind}."),
                ("Is a {m} a {kind}?", "Yes, a {m} is a {kind}.", "Yes."),
                ("Is a {odd} a {kind}?", "No, a {odd} is not a {kind}. It is a {other}.", "No."),
                (
                    "Which word does not fit: {mixed}?",
                    '"{odd}" does not fit, because it is a {other} and the others are {many}.',
                    "{odd}.",
                ),
            )
        ),
        n=words.NUMBER_WORDS[n],
        many=many,
        listed=listed,
        m=chosen[0],
        kind=kind,
        odd=odd,
        other=other,
        mixed=", ".join(mixed[:-1]) + " or " + mixed[-1],
    )


def size(rng: random.Random) -> Answer:
    i, j = sorted(rng.sample(range(len(facts.SIZES)), 2))
    a, b = facts.SIZES[i], facts.SIZES[j]
    first, second = rng.sample((a, b), 2)
    return fill(
        rng,
        *rng.choice(
            (
                ("Which is bigger, {x} or {y}?", "{b} is bigger than {a}.", "{b}."),
                ("Which is smaller, {x} or {y}?", "{a} is smaller than {b}.", "{a}."),
                ("Is {a} bigger than {b}?", "No, {a} is smaller than {b}.", "No."),
                ("Is {b} bigger than {a}?", "Yes, {b} is bigger than {a}.", "Yes."),
            )
        ),
        a=a,
        b=b,
        x=first,
        y=second,
    )


def shape(rng: random.Random) -> Answer:
    name, sides = rng.choice(list(facts.SHAPES.items()))
    return fill(
        rng,
        "[How many sides does a {a} have?|How many corners does a {a} have?]",
        "A {a} has {n} sides and {n} corners.",
        "{n}.",
        a=name,
        n=words.NUMBER_WORDS[sides],
    )
