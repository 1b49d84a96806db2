"""Conversations: turns of (role, text) made of small talk, facts, numbers, stories and questions about them."""

from __future__ import annotations

import random

from . import answers, numbers, puzzles, surroundings, words
from .answering import made_up
from .grammar import expand, polish
from .plots import PLOTS, RIDDLES
from .smalltalk import ASK_ANY_STORY, ASK_STORY, SMALL_TALK, SYSTEM_LONG, SYSTEM_SHORT
from .story import Story, Who

Turn = tuple[str, str]


def story(rng: random.Random) -> Story:
    """One finished story."""
    result = Story(rng)
    PLOTS[int(rng.random() * len(PLOTS))](result)
    return result


def _say(rng: random.Random, template: str, **slots: object) -> str:
    return polish(expand(template, rng, slots))


def _fact_turns(rng: random.Random, short: bool) -> list[Turn]:
    question, full, brief = rng.choices((answers, numbers, puzzles), (50, 28, 22))[0].draw(rng)
    return [("user", question), ("assistant", brief if short else full)]


def _small_talk(rng: random.Random) -> list[Turn]:
    question, reply = rng.choice(SMALL_TALK)
    slots = {
        "food": rng.choice(words.FOODS),
        "thing": rng.choice(list(surroundings.THINGS)),
        "animal": rng.choice(words.SPECIES),
        "colour": rng.choice(words.COLOURS),
        "name": rng.choice(words.GIRLS + words.BOYS + words.ANIMAL_NAMES),
    }
    return [("user", _say(rng, question, **slots)), ("assistant", _say(rng, reply, **slots))]


def _name_game(rng: random.Random, short: bool) -> list[Turn]:
    name = rng.choice(words.GIRLS + words.BOYS + words.ANIMAL_NAMES)
    key, value = rng.choice(
        (
            ("colour", rng.choice(words.COLOURS[:11])),
            ("food", rng.choice(words.FOODS)),
            ("animal", "the " + rng.choice(words.SPECIES)),
        )
    )
    turns = [
        ("user", _say(rng, "[Hello, |]my name is {n}." if rng.random() < 0.5 else "I am {n}.", n=name)),
        ("assistant", _say(rng, "[Hello {n}!|Nice to meet you, {n}!] [How can I help you?|]", n=name)),
    ]
    asks = [("user", "What is my name?"), ("assistant", f"{name}." if short else f"Your name is {name}.")]
    likes = [
        ("user", f"My favourite {key} is {value}."),
        ("assistant", _say(rng, "[That is a good choice.|I will remember that.|How nice!]")),
    ]
    recall = [
        ("user", f"What is my favourite {key}?"),
        ("assistant", f"{value}.".capitalize() if short else f"Your favourite {key} is {value}."),
    ]
    middle = _fact_turns(rng, short) if rng.random() < 0.5 else []
    return turns + (likes + middle + recall + asks if rng.random() < 0.5 else middle + asks)


def _repeat(rng: random.Random) -> list[Turn]:
    if rng.random() < 0.15:  # rare characters, so that no byte of the vocabulary stays untrained
        text = "".join(
            chr(
                rng.choice(
                    (
                        rng.randint(0x21, 0x2FF),
                        rng.randint(0x370, 0x58F),
                        rng.randint(0x3040, 0x9FFF),
                        rng.randint(0x1F300, 0x1F9FF),
                    )
                )
            )
            for _ in range(rng.randint(2, 8))
        )
    else:
        if rng.random() < 0.3:
            pool = [made_up(rng) for _ in range(8)]
        else:
            pool = words.FRUIT + words.SPECIES + list(surroundings.THINGS) + words.COLOURS + words.GIRLS + words.BOYS
        text = " ".join(rng.sample(pool, rng.randint(2, 7)))
    return [
        ("user", rng.choice((f"Repeat: {text}", f"Say this again: {text}", f"Please repeat these words: {text}"))),
        ("assistant", text),
    ]


def _riddle(rng: random.Random) -> list[Turn]:
    riddle, answer = rng.choice(RIDDLES)
    guess, wrong = answer, rng.choice(RIDDLES)[1]
    if rng.random() < 0.25:
        return [("user", riddle), ("assistant", _say(rng, "[The answer is|It is|I think it is] {a}.", a=answer))]
    turns = [
        ("user", rng.choice(("Ask me a riddle.", "Do you know a riddle?", "Tell me a riddle.", "A riddle, please."))),
        ("assistant", riddle),
    ]
    if rng.random() < 0.4 and wrong != answer:
        guess = wrong
    turns.append(("user", _say(rng, "[Is it {g}?|It is {g}.|{g}|{g}!|I think it is {g}.]", g=guess)))
    if rng.random() < 0.15:
        turns[-1] = ("user", rng.choice(("I do not know.", "Tell me the answer.")))
        return [*turns, ("assistant", f"The answer is {answer}.")]
    return [
        *turns,
        (
            "assistant",
            _say(
                rng,
                (
                    "[That is right!|Correct!|Yes, well done!] The answer is {a}."
                    if guess == answer
                    else "[No, that is not right.|Not quite.] The answer is {a}."
                ),
                a=answer,
            ),
        ),
    ]


def _casual(rng: random.Random, text: str) -> str:
    """The text as somebody in a hurry types it: no capital, no full stop."""
    text = text.removesuffix("." if rng.random() < 0.7 else "?")
    return text[0].lower() + text[1:] if rng.random() < 0.6 and not text.startswith("I ") else text


def _story_turns(rng: random.Random, short: bool) -> list[Turn]:
    tale = story(rng)
    if rng.random() < 0.12:
        first = tale.paragraphs[0]
        given = " ".join(first[: rng.randint(1, len(first))])
        rest = tale.body()[len(given) :].strip()
        turns = [
            (
                "user",
                rng.choice(
                    (f"Continue the story: {given}", f"How does this story go on? {given}", f"Please continue: {given}")
                ),
            ),
            ("assistant", rest),
        ]
    elif rng.random() < 0.6:
        head = f"{tale.title}\n\n" if rng.random() < 0.3 else ""
        hero = tale.scope["hero"]
        assert isinstance(hero, Who)
        body = tale.body()
        topics = [
            tale.topic,
            tale.topic,
            f"a {hero.kind}",
            f"{hero}",
            f"a {hero.kind} called {hero}",
            f"{hero}, a {hero.kind}",
        ]
        topics += [f"a {tale.scope['trait']} {hero.kind.split()[-1]}"] if f" {tale.scope['trait']}" in body else []
        topics += [f"{tale.scope['place']}"] if str(tale.scope["place"]) in body else []
        topics += [f"{hero} and {tale.scope['friend']}"] if str(tale.scope["friend"]) in body else []
        topics += [polish(f"a {tale.scope['thing']}")] * 2 if f" {tale.scope['thing']}" in body else []
        topic = rng.choice(topics)
        turns = [
            (
                "user",
                (_say(rng, rng.choice(ASK_STORY), topic=topic) if rng.random() < 0.9 else _say(rng, ASK_ANY_STORY)),
            ),
            ("assistant", head + body),
        ]
    else:
        asked = tale.questions.pop(int(rng.random() * len(tale.questions)))
        turns = [("user", f"{tale.body()}\n\n{asked[0]}"), ("assistant", asked[1])]
    for question, answer in rng.sample(tale.questions, min(len(tale.questions), rng.randint(0, 3))):
        turns += [("user", question), ("assistant", answer)]
    if rng.random() < 0.15:
        turns += [
            ("user", rng.choice(("Thank you!", "Thanks.", "What a nice story!"))),
            ("assistant", rng.choice(("You are welcome!", "I am glad that you liked it."))),
        ]
    return turns


def conversation(rng: random.Random) -> list[Turn]:
    """One conversation, sometimes typed in a hurry."""
    hurry = rng.random() < 0.22
    return [(role, _casual(rng, text) if hurry and role == "user" else text) for role, text in _conversation(rng)]


def _conversation(rng: random.Random) -> list[Turn]:
    """One conversation, sometimes with a system message that asks for brevity (and gets it)."""
    short = rng.random() < 0.1
    turns: list[Turn] = []
    if short:
        turns.append(("system", rng.choice(SYSTEM_SHORT)))
    elif rng.random() < 0.12:
        turns.append(("system", rng.choice(SYSTEM_LONG)))
    kind = rng.random()
    if kind < 0.36:
        return turns + _story_turns(rng, short)
    if kind < 0.44:
        return turns + _name_game(rng, short)
    for _ in range(rng.randint(1, 6)):
        part = rng.random()
        turns += (
            _small_talk(rng)
            if part < 0.12 and not short
            else _repeat(rng)
            if part < 0.2
            else _riddle(rng)
            if part < 0.23 and not short
            else _fact_turns(rng, short)
        )
    return turns
