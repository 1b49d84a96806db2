"""The story builder: a cast drawn once, sentences said in order, and the facts that questions may ask for later."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from . import surroundings, words
from .grammar import expand, polish
from .scenes import DETAILS, INTERLUDES, OPENINGS

T = TypeVar("T")
_FORMS = {"he": ("him", "his", "himself"), "she": ("her", "her", "herself"), "it": ("it", "its", "itself")}


@dataclass(frozen=True)
class Who:
    """A character: `{x}` is the name, `{x.he}`, `{x.him}`, `{x.his}`, `{x.self}` the pronouns, `{x.kind}` what it is."""

    name: str
    kind: str
    he: str

    def __str__(self) -> str:
        return self.name

    @property
    def him(self) -> str:
        return _FORMS[self.he][0]

    @property
    def his(self) -> str:
        return _FORMS[self.he][1]

    @property
    def self(self) -> str:
        return _FORMS[self.he][2]


@dataclass(frozen=True)
class Thing:
    """An object: `{x}` is the bare noun, `{x.full}` with size and colour."""

    noun: str
    adjective: str
    colour: str
    nature: str
    use: str

    def __str__(self) -> str:
        return self.noun

    @property
    def full(self) -> str:
        return f"{self.adjective} {self.colour} {self.noun}".strip()


@dataclass(frozen=True)
class Place:
    """A place: `{x}` is "the beach", `{x.at}` "on the beach", spots and sights belong to it alone."""

    name: str
    preposition: str
    spots: tuple[str, ...]
    sights: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def at(self) -> str:
        return f"{self.preposition} {self.name}"


def child(rng: random.Random, taken: Sequence[str] = ()) -> Who:
    """A human child whose name is not taken."""
    while True:
        he = rng.choice(("she", "he"))
        name = rng.choice(words.GIRLS if he == "she" else words.BOYS)
        if name not in taken:
            return Who(name, rng.choice(words.CHILD_KINDS[he]), he)


def animal(rng: random.Random, taken: Sequence[str] = ()) -> Who:
    """A talking animal whose name is not taken."""
    while True:
        name = rng.choice(words.ANIMAL_NAMES)
        if name not in taken:
            size = rng.choice(("little ", "young ", "small ", ""))
            return Who(name, size + rng.choice(words.SPECIES), rng.choice(("she", "he")))


def thing(rng: random.Random, nouns: Sequence[str] = ()) -> Thing:
    """An object with its adjective and colour; `nouns` narrows the choice."""
    noun = rng.choice(nouns or list(surroundings.THINGS))
    nature, use = surroundings.THINGS[noun]
    colour = rng.choice(("golden", "silver")) if nature == "shiny" else rng.choice(words.COLOURS[:11])
    return Thing(noun, rng.choice(words.SIZES) if rng.random() < 0.6 else "", colour, nature, use)


def place(rng: random.Random, names: Sequence[str] = ()) -> Place:
    """A place with its own spots and sights; `names` narrows the choice."""
    name = rng.choice(names or list(surroundings.PLACES))
    preposition, spots, sights = surroundings.PLACES[name]
    return Place(name, preposition, tuple(spots), tuple(sights))


@dataclass
class Story:
    """Paragraphs under construction. `topic` is what a reader would ask for: "a fox", "a lost kite"."""

    rng: random.Random
    scope: dict[str, object] = field(default_factory=dict)
    paragraphs: list[list[str]] = field(default_factory=lambda: [[]])
    questions: list[tuple[str, str]] = field(default_factory=list)
    title: str = ""
    topic: str = ""
    lesson: str = ""

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def maybe(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def let(self, **names: object) -> None:
        """Put values into the slots."""
        self.scope.update(names)

    def phrase(self, **templates: str) -> None:
        """Put expanded (unpolished) phrases into the slots."""
        self.scope.update({name: expand(template, self.rng, self.scope) for name, template in templates.items()})

    def text(self, template: str) -> str:
        """One polished expansion."""
        return polish(expand(template, self.rng, self.scope))

    def say(self, *sentences: str) -> None:
        """Append sentences to the current paragraph."""
        self.paragraphs[-1].extend(self.text(sentence) for sentence in sentences)

    def perhaps(self, *sentences: str) -> None:
        """Append each of the sentences with even odds."""
        for sentence in sentences:
            if self.maybe():
                self.say(sentence)

    def next(self) -> None:
        """Begin a new paragraph."""
        if self.paragraphs[-1]:
            self.paragraphs.append([])

    def ask(self, question: str, answer: str) -> None:
        """Remember a question about the story and its answer."""
        self.questions.append((self.text(question), self.text(answer)))

    def body(self) -> str:
        """The story's text."""
        return "\n\n".join(" ".join(paragraph) for paragraph in self.paragraphs if paragraph)

    def cast(self) -> None:
        """Draw the hero, a friend, an elder, a place, a thing: either a world of people or one of talking animals."""
        rng = self.rng
        people = rng.random() < 0.55
        make = child if people else animal
        hero = make(rng)
        if rng.random() < 0.12:
            kind, he = rng.choice(words.SPECIAL_HEROES)
            hero = Who(rng.choice(words.ANIMAL_NAMES), kind, he)
        friend = make(rng, (hero.name,))
        other = make(rng, (hero.name, friend.name))
        elder = Who(
            *(lambda pair: (pair[0], "elder", pair[1]))(rng.choice(words.ELDERS if people else words.ANIMAL_ELDERS))
        )
        self.let(
            hero=hero,
            friend=friend,
            other=other,
            elder=elder,
            place=place(rng),
            thing=thing(rng),
            home=rng.choice(surroundings.HOMES if people else surroundings.ANIMAL_HOMES),
            food=rng.choice(words.FOODS),
            trait=rng.choice(words.TRAITS),
            weather=rng.choice(words.WEATHER),
            time=rng.choice(words.TIMES),
        )

    def opening(self) -> None:
        """Introduce the hero; every plot begins here."""
        self.cast()
        self.say(self.pick(OPENINGS))
        self.perhaps_detail()
        hero = self.scope["hero"]
        assert isinstance(hero, Who)
        self.topic = f"a {hero.kind.split()[-1]}"
        if self.maybe():
            self.ask(
                "[Who is the story about?|Who is this story about?]",
                "[The story is about|It is about] {hero}, a {hero.kind}.",
            )
        else:
            self.ask(
                "[What is the hero called?|What is the name of the {hero.kind}?]", "The {hero.kind} is called {hero}."
            )
        if self.maybe(0.45):
            self.say(
                "{hero} loved [{food}|to eat {food}|the smell of warm {food}] [more than anything|very much|best of"
                " all]."
            )
            self.ask("What did {hero} love to eat?", "{hero} loved {food}.")

    def perhaps_detail(self) -> None:
        """Perhaps one more thing about the hero."""
        if self.maybe(0.3):
            scene, question, answer = self.pick(DETAILS)
            self.say(scene)
            self.ask(question, answer)

    def arrive(self) -> None:
        """Bring the hero to the place and look around."""
        place_ = self.scope["place"]
        assert isinstance(place_, Place)
        self.let(sight=self.pick(place_.sights))
        self.say(
            self.pick(
                (
                    "One {weather} {time}, {hero} [went|walked|came] to {place}.",
                    "One {weather} {time}, {hero} was {place.at}.",
                    "On a {weather} {time}, {hero} [decided to go to|set out for|went to] {place}.",
                    "It was a {weather} {time}, and {hero} was [playing|alone|walking around] {place.at}.",
                )
            )
        )
        if self.maybe(0.7):
            self.say("{sight}.")
        self.ask("Where [was {hero}|did the story happen]?", "{hero} was {place.at}.")

    def interlude(self) -> None:
        """A small scene on the way that changes nothing but can be asked for."""
        scene, question, answer = self.pick(INTERLUDES)
        self.say(scene)
        self.ask(question, answer)

    def close(self, *endings: str) -> None:
        """Say one of the endings and perhaps the lesson."""
        if self.maybe(0.35):
            self.next()
            self.interlude()
        self.next()
        self.say(self.pick(endings))
        if self.lesson and self.maybe(0.6):
            self.say(
                "[{hero} had learned|So {hero} learned|That {time} {hero} learned|And {hero} never forgot] that "
                + self.lesson
                + "."
            )
        if self.lesson:
            self.ask("What did {hero} learn?", "{hero} learned that " + self.lesson + ".")
        if self.maybe(0.3):
            self.say("[The end.|And that was that.|That night {hero.he} slept very well.|It had been a good day.]")
