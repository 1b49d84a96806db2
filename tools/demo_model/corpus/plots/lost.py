"""Plots of looking for something: lost things, treasure, strays."""

from __future__ import annotations

from .. import surroundings, words
from ..story import Place, Story, Thing, place

_LOST = {
    "light": [
        "The wind [blew it away|carried it off|had taken it]",
        "A gust of wind [took it|pulled it out of {hero.his} hands]",
    ],
    "round": [
        "It [rolled away|had rolled down the path|rolled out of sight]",
        "It slipped from {hero.his} hands and rolled away",
    ],
    "small": ["It [fell|had fallen] through a hole in {hero.his} pocket", "It slipped out of {hero.his} bag"],
    "shiny": [
        (
            "A magpie [had taken it|picked it up and flew away], [because magpies love shiny things|for it shone so"
            " brightly]"
        ),
        "It [slipped off|dropped] without a sound",
    ],
    "plain": [
        "{hero} put it down for a moment and forgot [it|about it]",
        "{hero} [had left it behind|left it on a wall]",
    ],
    "floating": ["The water [carried it away|pulled it along]", "A wave [took it|carried it off]"],
}


def lost_thing(s: Story) -> None:
    s.opening()
    thing = s.scope["thing"]
    assert isinstance(thing, Thing)
    if thing.nature == "floating":
        s.let(place=place(s.rng, ["the beach", "the lake", "the river", "the harbour"]))
    where = s.scope["place"]
    assert isinstance(where, Place)
    s.title, s.topic = f"The Lost {thing.noun.title()}", f"a lost {thing.noun}"
    s.say("{hero.he} had a {thing.full}, and {hero.he} took it everywhere.")
    if s.maybe():
        s.say("It was [a gift|a present] from {elder}.")
        s.ask("Who gave {hero} the {thing}?", "{elder} gave {hero} the {thing}.")
    s.next()
    s.arrive()
    cause = s.pick(_LOST[thing.nature])
    s.say(
        "[{hero} was having so much fun that {hero.he} forgot everything else.|{hero} ran and jumped and laughed.|"
        "{hero} wanted to {verb} the {thing} there.]".replace("{verb}", thing.use)
    )
    s.say(
        "[But then something happened.|But suddenly the {thing} was gone.|When {hero.he} looked again, the {thing} was"
        " gone.]",
        cause + ".",
    )
    s.say(
        '["Oh no! Where is my {thing}?" cried {hero}.|"My {thing} is gone!" said {hero}, and {hero.he} began to cry.|'
        '{hero} felt very sad. "I must find my {thing}," {hero.he} said.]'
    )
    s.ask("What did {hero} lose?", "{hero} lost {hero.his} {thing.full}.")
    s.ask("What colour was the {thing}?", f"The {{thing}} was {thing.colour}.")
    s.next()
    spots = s.rng.sample(where.spots, 3)
    s.let(first=spots[0], second=spots[1], third=spots[2])
    s.say(
        '{friend} [heard this and came to help|came by and asked, "Why are you sad?"|saw {hero} and wanted to help].',
        '["Let us look for it together," said {friend}.|"Do not cry. We will find it," said {friend}.|'
        '"Two can see more than one," said {friend}.]',
    )
    s.say(
        "[First they looked|They looked] {first}, but [it was not there|there was nothing there|they found only"
        " leaves]."
    )
    if s.maybe(0.7):
        s.say(
            "[Then|Next] they looked {second}, but [it was not there either|there was only an old shoe|they saw only a"
            " beetle]."
        )
    s.say("[At last|Finally|In the end] they looked {third}, and there [was the {thing}|it was|lay the {thing}]!")
    s.ask("Where did they find the {thing}?", "They found the {thing} {third}.")
    s.ask("Who helped {hero}?", "{friend} helped {hero}.")
    s.ask("How did {hero} feel when the {thing} was gone?", "{hero} felt sad because the {thing} was gone.")
    s.lesson = s.pick(
        (
            "two friends can find what one alone cannot",
            "it is good to ask for help",
            "one should take good care of the things one loves",
        )
    )
    s.close(
        "{hero} was so happy that {hero.he} [hugged|thanked] {friend}. [Then they played until the sun went down.|"
        "They walked home together.]",
        '"Thank you, {friend}!" said {hero}. From then on {hero.he} kept the {thing} [in a safe place|close to'
        " {hero.him}].",
        '{hero} laughed with joy. "You are a good friend," {hero.he} told {friend}.',
    )


def treasure(s: Story) -> None:
    s.opening()
    start, middle, end = s.rng.sample(list(surroundings.PLACES), 3)
    steps = s.rng.randint(3, 12)
    s.let(
        a=place(s.rng, [start]),
        b=place(s.rng, [middle]),
        c=place(s.rng, [end]),
        steps=words.NUMBER_WORDS[steps],
        prize=s.pick(
            (
                "a chest full of old coins",
                "a box of golden buttons",
                "a jar of honey and a note",
                "a silver bell",
                "a book of stories",
                "a bag of glass marbles",
                "a sweet cake wrapped in paper",
            )
        ),
    )
    s.let(spot=s.pick(place(s.rng, [end]).spots))
    s.title, s.topic = "The Map", "a treasure"
    s.next()
    s.say(
        "One {weather} {time}, {hero} found an old map [in a bottle|in a drawer|under a stone|inside a book].",
        "[There was a red cross on it.|Someone had drawn a red cross on it.|The paper was yellow and torn.]",
        '["A treasure map!" cried {hero}.|"This must lead to a treasure," said {hero}.]',
        "{hero.he} showed it to {friend}, and [they set out at once|they packed some {food} and set out].",
    )
    s.next()
    s.say(
        "[First the map led them|The map first sent them] to {a}. [It was a long way, but they sang as they went.|"
        "They looked around, but there was only an arrow on a stone.|There they rested for a while.]",
        "[Then they came|Next they had to go|From there the path went] to {b}.",
        '["Are we there yet?" asked {friend}. "Not yet," said {hero}.|"I am tired," said {friend}. "Only a little'
        ' more," said {hero}.|{friend} wanted to turn back, but {hero} did not give up.]',
        "[At last|Finally] they reached {c}.",
    )
    s.say(
        'The map said: "Take {steps} steps and look {spot}."',
        "{hero} counted the steps, one by one, up to {steps}.",
        "[They looked {spot}, and there was {prize}!|There, {spot}, they found {prize}!]",
    )
    s.ask("What did they find?", "They found {prize}.")
    s.ask("How many steps did {hero} take?", "{hero} took {steps} steps.")
    s.ask("Where did the map lead them first?", "First the map led them to {a}.")
    s.ask("Who went with {hero}?", "{friend} went with {hero}.")
    s.lesson = s.pick(
        (
            "those who do not give up reach the goal",
            "the best part of a treasure is sharing it",
            "a long way is shorter with a friend",
        )
    )
    s.close(
        "They shared [the treasure|it] [like good friends|and went home happy].",
        '"Half for you and half for me," said {hero}. {friend} smiled.',
        "On the way home they told each other what they would do with [the treasure|it].",
    )


def stray_sheep(s: Story) -> None:
    s.opening()
    herd, young = s.pick(
        (("sheep", "lamb"), ("goats", "kid"), ("ducks", "duckling"), ("hens", "chick"), ("geese", "gosling"))
    )
    total = s.rng.randint(4, 15)
    s.let(
        herd=herd,
        young=young,
        total=words.NUMBER_WORDS[total],
        less=words.NUMBER_WORDS[total - 1],
        place=place(s.rng, ["the hill", "the meadow", "the river", "the forest", "the lake"]),
    )
    where = s.scope["place"]
    assert isinstance(where, Place)
    s.let(spot=s.pick(where.spots))
    s.title, s.topic = f"The Missing {young.title()}", f"a missing {young}"
    s.next()
    s.say(
        "{hero} looked after {total} {herd}. Every evening {hero.he} counted them.",
        "One {weather} evening {hero.he} counted again. There were only {less}!",
        '["One is missing," said {hero}.|"Where is the little {young}?" {hero.he} asked.|{hero} counted once more, but'
        " it was true: one was missing.]",
    )
    s.next()
    s.say(
        "{hero} [asked {elder} to watch the others|closed the gate so that the others were safe].",
        "Then {hero.he} went to {place} and called.",
        "[For a long time there was no answer.|It grew dark, but {hero} did not give up.|At first {hero.he} heard only"
        " the wind.]",
        "[Then {hero.he} heard a small cry.|At last a small voice answered.] The little {young} [sat|was] {spot}, [cold"
        " and afraid|and it could not get out|all alone].",
        "{hero} [took it in {hero.his} arms|picked it up] and carried it home.",
    )
    s.ask("How many {herd} did {hero} have?", "{hero} had {total} {herd}.")
    s.ask("Where was the {young}?", "The {young} was {spot}.")
    s.ask("How many {herd} were there when one was missing?", "There were only {less} {herd}.")
    s.ask("Why did {hero} go to {place}?", "{hero} went to {place} because the little {young} was missing.")
    s.lesson = "even the smallest one counts"
    s.close(
        "Now there were {total} {herd} again, and {hero} was glad.",
        "{hero} counted again: {total}! Everyone was home, and everyone was safe.",
        "The mother was so happy that she would not leave the {young} all night.",
    )
