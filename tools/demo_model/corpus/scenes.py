"""Sentences that any plot may use: openings, details about the hero, small scenes on the way."""

from __future__ import annotations

OPENINGS = (
    "[Once upon a time|Long ago|Once], there was a {trait} {hero.kind} [named|called] {hero}.",
    "[Once upon a time|Many years ago], a {hero.kind} [named|called] {hero} lived in {home}.",
    "There [once was|was once] a {hero.kind} [named|called] {hero}.",
    "{hero} was a {trait} {hero.kind} who lived in {home}.",
    "In {home} lived a {hero.kind} [whose name was|named|called] {hero}.",
    "This is the story of {hero}, a {trait} {hero.kind}.",
    "{hero} was a {hero.kind}. [Everyone said that {hero.he} was very {trait}|{hero.he} lived in {home}].",
    "{hero} and {friend} were [best|good] friends. {hero} was a {hero.kind}, and {friend} was a {friend.kind}.",
    "[Far away|Behind the seven hills|In a land that nobody knows] lived a {trait} {hero.kind} called {hero}.",
    "One day a {hero.kind} named {hero} [woke up very early|looked out of the window|was sitting by the door].",
    "The sun was shining, and {hero}, a {hero.kind}, was [in a good mood|looking for something to do].",
    "Everybody knew {hero}, the {trait} {hero.kind}.",
    "Have you heard of {hero}? {hero} was a {hero.kind} who lived in {home}.",
    "When {elder} was young, there was a {hero.kind} called {hero}, who lived in {home}.",
    "A {trait} {hero.kind} called {hero} once lived in {home}.",
)

# scene, a question about it, its answer
DETAILS = (
    (
        "[In the whole place|Far and wide] nobody could [run|whistle|laugh] like {hero}.",
        "Who was {hero}?",
        "{hero} was a {hero.kind}.",
    ),
    (
        "{hero} had a friend called {friend}.",
        "What was {hero}'s friend called?",
        "{hero}'s friend was called {friend}.",
    ),
    (
        "{hero} always wore a {thing.colour} scarf.",
        "What colour was {hero}'s scarf?",
        "{hero}'s scarf was {thing.colour}.",
    ),
    ("Every evening {elder} told {hero} a story.", "Who told {hero} stories?", "{elder} told {hero} stories."),
    (
        "{hero} could count to a hundred and was proud of it.",
        "How far could {hero} count?",
        "{hero} could count to a hundred.",
    ),
    (
        "{hero} was afraid of [thunder|spiders|the dark], but nobody knew that.",
        "Did anybody know what {hero} was afraid of?",
        "No, nobody knew that.",
    ),
    (
        "Every morning {hero} said hello to the sun.",
        "What did {hero} do every morning?",
        "Every morning {hero} said hello to the sun.",
    ),
    (
        "{hero}'s favourite colour was {thing.colour}.",
        "What was {hero}'s favourite colour?",
        "{hero}'s favourite colour was {thing.colour}.",
    ),
    ("{hero} lived with {elder}, who was old and wise.", "With whom did {hero} live?", "{hero} lived with {elder}."),
    (
        "{hero} wanted to see the whole world one day.",
        "What did {hero} want to see?",
        "{hero} wanted to see the whole world.",
    ),
)

INTERLUDES = (
    (
        "On the way back it began to rain, so {hero} [waited|stood] under a big leaf and listened to the drops.",
        "Why did {hero} wait under a big leaf?",
        "{hero} waited there because it began to rain.",
    ),
    (
        (
            'By the path a snail was sitting on a stone. "Where are you going?" asked {hero}. "Home," said the snail,'
            ' "and I am there already."'
        ),
        "Whom did {hero} meet by the path?",
        "{hero} met a snail by the path.",
    ),
    (
        "A little later {hero} heard music. {other} was sitting on a wall and playing the [flute|fiddle].",
        "Who was playing music?",
        "{other} was playing music.",
    ),
    (
        "{hero} was hungry by now. {friend} had brought {food}, and they ate it in the shade of a tree.",
        "What did {hero} and {friend} eat?",
        "They ate {food}.",
    ),
    (
        (
            "Above them the clouds looked like [sheep|ships|pillows|mountains]. {hero} and {friend} lay in the grass"
            " and watched them for a while."
        ),
        "What did {hero} and {friend} watch?",
        "They watched the clouds.",
    ),
    (
        'In the evening the moon came up, round and bright. ["Good evening, moon," said {hero}.|{hero} waved at it.]',
        "What came up in the evening?",
        "In the evening the moon came up.",
    ),
    (
        "Then {hero} was thirsty and drank some cool water from a spring.",
        "What did {hero} drink?",
        "{hero} drank some cool water from a spring.",
    ),
    ("{elder} had seen it all from the window and had to smile.", "Who had seen it all?", "{elder} had seen it all."),
    (
        '"I will tell everybody about this," said {friend}, and so {friend.he} did.',
        "Who told everybody about it?",
        "{friend} told everybody about it.",
    ),
    (
        (
            "{hero} was so tired that {hero.he} fell asleep on the grass. When {hero.he} woke up, there was a butterfly"
            " on {hero.his} nose."
        ),
        "What was on {hero}'s nose?",
        "There was a butterfly on {hero}'s nose.",
    ),
    (
        "{hero} wrote it all down in a small {thing.colour} book, so that it would not be forgotten.",
        "What colour was the small book?",
        "The small book was {thing.colour}.",
    ),
    (
        (
            'They sat down by the fire and {elder} made tea. "Tell me everything," said {elder}. And {hero} told the'
            " whole story from the beginning."
        ),
        "What did {elder} make?",
        "{elder} made tea.",
    ),
)
