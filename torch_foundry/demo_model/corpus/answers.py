"""Questions with their answers, drawn from the fact tables. Every function returns one (question, answer, short answer)."""

from __future__ import annotations

import random
from collections.abc import Callable

from . import facts, meanings, words
from .grammar import expand, polish

Answer = tuple[str, str, str]
_MAKERS: list[Callable[[random.Random], Answer]] = []


_SYLLABLES = [
    "ba",
    "be",
    "bo",
    "da",
    "do",
    "fi",
    "fu",
    "ga",
    "go",
    "ka",
    "ki",
    "ko",
    "la",
    "li",
    "lo",
    "lu",
    "ma",
    "mi",
    "mo",
    "na",
    "ne",
    "no",
    "pa",
    "pe",
    "po",
    "ra",
    "ri",
    "ro",
    "sa",
    "si",
    "so",
    "ta",
    "ti",
    "to",
    "va",
    "ve",
    "zo",
    "zu",
]


def made_up(rng: random.Random) -> str:
    """A word that does not exist."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4)))


def _maker(function: Callable[[random.Random], Answer]) -> Callable[[random.Random], Answer]:
    _MAKERS.append(function)
    return function


def _fill(rng: random.Random, question: str, answer: str, short: str, **slots: object) -> Answer:
    return tuple(polish(expand(text, rng, slots)) for text in (question, answer, short))  # type: ignore[return-value]


@_maker
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
    return _fill(rng, *rng.choice(forms), **slots)


@_maker
def ability(rng: random.Random) -> Answer:
    verb, able = rng.choice((("fly", facts.FLIERS), ("swim", facts.SWIMMERS)))
    name = rng.choice(
        [*able, "cow", "pig", "sheep", "goat", "hen", "penguin", "frog", "fish", "snake"]
        if verb == "fly"
        else [*able, "sparrow", "hen", "butterfly", "ant"]
    )
    if name in able:
        why = "it has wings" if verb == "fly" else "it is at home in the water"
        return _fill(
            rng, "Can a {a} {verb}?", "Yes, a {a} can {verb}, because {why}.", "Yes.", a=name, verb=verb, why=why
        )
    return _fill(rng, "Can a {a} {verb}?", "No, a {a} cannot {verb} [well|very well].", "No.", a=name, verb=verb)


@_maker
def colour(rng: random.Random) -> Answer:
    what = rng.choice(list(facts.COLOURS_OF))
    right = facts.COLOURS_OF[what]
    wrong = rng.choice([c for c in words.COLOURS[:11] if c != right])
    return _fill(
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


@_maker
def mix(rng: random.Random) -> Answer:
    a, b, c = rng.choice(facts.MIXES)
    if rng.random() < 0.5:
        a, b = b, a
    return _fill(
        rng,
        "[What do you get when you mix {a} and {b}?|Which colour do {a} and {b} make?|I mix {a} with {b}. What colour"
        " is it now?]",
        "[If you mix {a} and {b}, you get {c}.|{a} and {b} make {c}.]",
        "{c}.",
        a=a,
        b=b,
        c=c,
    )


@_maker
def opposite(rng: random.Random) -> Answer:
    a, b = rng.choice(facts.OPPOSITES)
    if rng.random() < 0.5 and a not in ("short", "light", "right", "long", "heavy", "tall"):
        a, b = b, a
    return _fill(
        rng,
        '[What is the opposite of {a}?|Tell me the opposite of "{a}".|Opposite of {a}?|Which word is the opposite of'
        " {a}?]",
        "The opposite of {a} is {b}.",
        "{b}.",
        a=a,
        b=b,
    )


@_maker
def word(rng: random.Random) -> Answer:
    kind = rng.randrange(6)
    if kind == 5:
        a = rng.choice([p for pair in facts.PLURALS for p in pair] + list(words.THINGS))
        return _fill(
            rng,
            "[Spell {a}.|How do you spell {a}?|Spell the word {a}.]",
            "{a} is spelled {b}.",
            "{b}.",
            a=f'"{a}"',
            b="-".join(a.replace(" ", "")),
        )
    if kind == 0:
        a, b = rng.choice(facts.SYNONYMS)
        return _fill(
            rng,
            "[Tell me another word for {a}.|What is another word for {a}?]",
            "Another word for {a} is {b}.",
            "{b}.",
            a=a,
            b=b,
        )
    if kind == 1:
        a, b = rng.choice(facts.PLURALS)
        return _fill(
            rng, "[What is the plural of {a}?|One {a}, two what?]", "The plural of {a} is {b}.", "{b}.", a=a, b=b
        )
    if kind == 2:
        a, b = rng.choice(facts.PAST)
        return _fill(
            rng,
            "[What is the past of {a}?|What is the past tense of {a}?|Today I {a}. And yesterday?]",
            "The past of {a} is {b}.",
            "{b}.",
            a=a,
            b=b,
        )
    if kind == 3:
        a, b = rng.choice(facts.RHYMES)
        return _fill(
            rng,
            "[What rhymes with {a}?|Tell me a word that rhymes with {a}.]",
            "{b} rhymes with {a}.",
            "{b}.",
            a=a,
            b=b,
        )
    a = rng.choice([p for p, _ in facts.PLURALS] + list(words.THINGS)[:8])
    return _fill(
        rng,
        "[What is the first letter of {a}?|Which letter does {a} begin with?]",
        "The first letter of {a} is {b}.",
        "{b}.",
        a=a,
        b=a[0].upper(),
    )


@_maker
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
    return _fill(rng, *rng.choice(forms), x=x, after=after, before=before, noun=noun)


@_maker
def use(rng: random.Random) -> Answer:
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.choice(list(facts.JOBS.items()))
        return _fill(
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
        return _fill(
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
        return _fill(
            rng, "[What do we use {a} for?|What can we do with {a}?]", "We use {a} to {b}.", "To {b}.", a=a, b=b
        )
    a, b = rng.choice(list(facts.MADE_OF.items()))
    return _fill(
        rng, "What {be} {a} made of?", "{a} {be} made of {b}.", "{b}.", a=a, b=b, be="are" if a == "raisins" else "is"
    )


@_maker
def category(rng: random.Random) -> Answer:
    kind = rng.choice(list(facts.CATEGORIES))
    members = facts.CATEGORIES[kind]
    other = rng.choice([k for k in facts.CATEGORIES if k != kind])
    many = facts.PLURAL_OF_CATEGORY.get(kind, kind + "s")
    n = rng.randint(2, 5)
    chosen = rng.sample(members, n)
    odd = rng.choice([m for m in facts.CATEGORIES[other] if m not in members])
    listed = ", ".join(chosen[:-1]) + (", and " if n > 2 else " and ") + chosen[-1]
    mixed = [*chosen[:3], odd]
    rng.shuffle(mixed)
    return _fill(
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


@_maker
def size(rng: random.Random) -> Answer:
    i, j = sorted(rng.sample(range(len(facts.SIZES)), 2))
    a, b = facts.SIZES[i], facts.SIZES[j]
    first, second = rng.sample((a, b), 2)
    return _fill(
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


@_maker
def why(rng: random.Random) -> Answer:
    question, answer = rng.choice(facts.WHY)
    return question, answer, answer


@_maker
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
    return _fill(
        rng,
        "[How does one {task}?|How do I {task}?|Tell me how to {task}.|Explain how to {task}.]",
        answer,
        answer,
        task=task,
    )


@_maker
def shape(rng: random.Random) -> Answer:
    name, sides = rng.choice(list(facts.SHAPES.items()))
    return _fill(
        rng,
        "[How many sides does a {a} have?|How many corners does a {a} have?]",
        "A {a} has {n} sides and {n} corners.",
        "{n}.",
        a=name,
        n=words.NUMBER_WORDS[sides],
    )


@_maker
def meaning(rng: random.Random) -> Answer:
    what, is_ = rng.choice(list(meanings.MEANINGS.items()))
    return _fill(
        rng,
        '[What is {a}?|What does "{bare}" mean?|Can you explain what {a} is?|Do you know what {a} is?]',
        "{a} is {b}.",
        "{b}.",
        a=what,
        b=is_,
        bare=what.removeprefix("a ").removeprefix("an ").removeprefix("the "),
    )


@_maker
def superlative(rng: random.Random) -> Answer:
    question, answer = rng.choice(meanings.SUPERLATIVES)
    return _fill(rng, question, answer, answer)


@_maker
def unknown(rng: random.Random) -> Answer:
    names = words.GIRLS + words.BOYS + words.ANIMAL_NAMES
    question = rng.choice(meanings.UNKNOWN).format(
        place=rng.choice(meanings.PLACES),
        tech=rng.choice(meanings.TECHNOLOGY),
        n=rng.randint(300, 3000),
        n2=rng.randint(300, 3000),
        name=rng.choice(names),
        name2=rng.choice(names),
        thing=rng.choice(list(words.THINGS)),
        colour=rng.choice(words.COLOURS),
        word=made_up(rng),
        job=rng.choice(list(facts.JOBS)),
        animal=rng.choice(words.SPECIES),
        food=rng.choice(words.FOODS),
    )
    return polish(question), rng.choice(meanings.DO_NOT_KNOW), "I do not know."


@_maker
def unclear(rng: random.Random) -> Answer:
    said = rng.choice(("letters", "words", "mixed"))
    if said == "letters":
        text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 10)))
    elif said == "words":
        text = " ".join(made_up(rng) for _ in range(rng.randint(1, 5)))
    else:
        pool = [*words.THINGS, *words.COLOURS, *words.FRUIT, "and", "if", "the", "not", "very"]
        text = " ".join(rng.sample(pool, rng.randint(3, 7)))
    return text + rng.choice(("", ".", "?", "!")), rng.choice(meanings.UNCLEAR), "I did not understand that."


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


def draw(rng: random.Random) -> Answer:
    """One question with its full and its short answer, from a random maker; animals count thrice."""
    return animal(rng) if rng.random() < 0.15 else _MAKERS[int(rng.random() * len(_MAKERS))](rng)
