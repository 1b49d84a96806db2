"""Plots with magic and monsters, and with many hands."""

from __future__ import annotations

from ..story import Story


def wishes(s: Story) -> None:
    s.opening()
    giver = s.pick(("a golden fish", "a tiny fairy", "a talking frog", "an old lamp", "a white bird"))
    first, trouble = s.pick(
        (
            ("a mountain of {food}", "soon nobody could see the sun, and ants came from everywhere"),
            ("to be as tall as a tree", "{hero.he} did not fit into {hero.his} house any more"),
            (
                "that everything {hero.he} touched would turn to chocolate",
                "even {hero.his} pillow and {hero.his} shoes melted",
            ),
            ("that it would never be night again", "nobody could sleep, and everyone was tired and angry"),
            ("to be invisible", "nobody saw {hero.him}, and {friend} sat down on {hero.him}"),
            ("to understand all animals", "the sparrows chattered so much that {hero.he} could not sleep"),
        )
    )
    s.let(giver=giver, short=giver.split(" ", 1)[1])
    s.phrase(first=first, trouble=trouble)
    s.title, s.topic = "Two Wishes", "wishes"
    s.next()
    s.arrive()
    s.say(
        'There {hero.he} [found|met] {giver}. "[You have been kind|You set me free|You woke me up]," said the {short}.'
        ' "You have two wishes. [Think well!|Choose wisely!]"',
        "[{hero} did not think for long.|{hero} was so excited that {hero.he} did not think.] {hero.he} wished {first}."
        " [Whoosh! It came true.|At once it came true.]".replace(
            "wished {first}", "wished for {first}" if first.startswith("a ") else "wished {first}"
        ),
    )
    s.next()
    s.say(
        'At first {hero} was happy. But then {trouble}. ["What have I done?" said {hero}.|"I did not want that!" cried'
        ' {hero}.|"This is terrible," said {hero}.]',
        '{hero} [ran back|went back] to the {short}. "I wish that everything were as it was before," {hero.he} said.'
        ' ["A wise wish," said the {short}.|The {short} nodded, and it was done.]',
    )
    s.ask("Who gave {hero} two wishes?", "{giver} gave {hero} two wishes.")
    s.ask("What was the first wish?", "{hero} wished " + ("for " if first.startswith("a ") else "") + "{first}.")
    s.ask("What was the second wish?", "{hero} wished that everything were as it was before.")
    s.ask("What went wrong?", "{trouble}.")
    s.lesson = s.pick(("one should think before one wishes", "what one has is often enough"))
    s.close(
        "{hero} went home, and everything was just right.",
        "Since then {hero} has been content with what {hero.he} has.",
        '"I have all I need," said {hero} that evening, and meant it.',
    )


def lonely_giant(s: Story) -> None:
    s.opening()
    beast, gift, reason = s.pick(
        (
            ("dragon", "a warm blanket", "it was cold and had a cough"),
            ("giant", "a cake", "nobody had ever visited him"),
            ("bear", "a jar of honey", "it had a thorn in its paw"),
            ("wolf", "a bowl of soup", "it was hungry and alone"),
            ("monster", "a lantern", "it was afraid of the dark"),
            ("troll", "a song", "nobody had ever sung for him"),
        )
    )
    s.let(
        beast=beast,
        gift=gift,
        reason=reason,
        noise=s.pick(("roared", "howled", "groaned")),
        lair=s.pick(
            ("in a cave on the mountain", "in the old tower", "behind the dark forest", "at the end of the valley")
        ),
    )
    s.title, s.topic = f"The {beast.title()}", f"a {beast}"
    s.next()
    s.say(
        "{lair} lived a {beast}. Every night it {noise} so loudly that nobody could sleep. [Everyone was afraid of"
        ' it.|"It will eat us all," people said.|Nobody dared to go near.]',
        'But {hero} said, "[Perhaps it is sad|Has anyone ever asked it what is wrong?|Maybe it only needs help]."'
        " {hero.he} took {gift} and went to find the {beast}.",
        "[{friend} begged {hero.him} not to go.|The way was steep and dark.|{hero.his} heart was beating fast.]",
    )
    s.next()
    s.say(
        '"[Who is there?|What do you want?]" asked the {beast} in a deep voice. "I am {hero}, and this is for you,"'
        ' said {hero}. "Why do you cry every night?"',
        'The {beast} [was very surprised|looked at the ground]. Then it told {hero} everything: {reason}. ["Nobody ever'
        ' asked me," it said.|A big tear ran down its face.]',
        "{hero} gave it {gift} and stayed until morning. That night [it was quiet|everyone slept well], and the next"
        " night too.",
    )
    s.ask("Who {noise} every night?", "A {beast} {noise} every night.")
    s.ask("What did {hero} bring the {beast}?", "{hero} brought the {beast} {gift}.")
    s.ask("Why did the {beast} cry?", "It cried because {reason}.")
    s.ask("Where did the {beast} live?", "The {beast} lived {lair}.")
    s.lesson = s.pick(("those who seem angry are often sad", "one should ask before one judges"))
    s.close(
        "Soon the {beast} came to every feast, and the children rode on its back.",
        "From then on the {beast} watched over the village.",
        '"Come again tomorrow," said the {beast}, and {hero} did.',
    )


def together(s: Story) -> None:
    s.opening()
    load, goal = s.pick(
        (
            ("a heavy log", "build a bridge"),
            ("a huge stone", "clear the road"),
            ("a big cart", "bring the hay home"),
            ("a giant cheese", "take it to the feast"),
            ("an old boat", "bring it to the water"),
            ("a long table", "put it in the garden"),
        )
    )
    s.let(load=load, goal=goal, the="the " + load.split(" ", 1)[1])
    s.title, s.topic = "All Together", "working together"
    s.next()
    s.say(
        "{hero} wanted to move {load} to {goal}. {hero.he} pulled and pushed, but {the} did not move.",
        "{friend} came and helped. They pulled and pushed, but {the} did not move. Then {other} came. The three pulled"
        " and pushed, and {the} moved a little, but only a little.",
        '["It is no use," said {other}.|"We need someone very strong," said {friend}.|They sat down and were tired.]',
    )
    s.next()
    s.say(
        'Then a small mouse came by. "May I help?" it asked. [{other} laughed: "You? You are much too small!"|"You are'
        ' kind, but so small," said {friend}.] "Everyone counts," said {hero}.',
        'So all four pulled at the same time: "One, two, three!" And {the} moved, slowly at first and then faster and'
        ' faster. ["Hurrah!" they cried.|They had done it!]',
    )
    s.ask("What did {hero} want to move?", "{hero} wanted to move {load}.")
    s.ask("Who came last?", "A small mouse came last.")
    s.ask("Why did {hero} want to move {the}?", "{hero} wanted to move it to {goal}.")
    s.ask("How many pulled in the end?", "In the end four pulled.")
    s.lesson = s.pick(("even a little help can make the difference", "together we are strong"))
    s.close(
        "The mouse sat on {hero}'s shoulder all the way home.",
        '"That was me," squeaked the mouse, and everybody agreed.',
        "Then they all ate {food}, and the mouse got the first piece.",
    )
