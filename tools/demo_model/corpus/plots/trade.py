"""Plots of markets, trades, races and storms."""

from __future__ import annotations

from .. import words
from ..story import Story


def market(s: Story) -> None:
    s.opening()
    have = s.rng.randint(8, 20)
    goods = s.rng.sample(
        [
            "a loaf of bread",
            "a bag of nuts",
            "a candle",
            "a ball of wool",
            "a jar of honey",
            "a bunch of carrots",
            "a piece of cheese",
            "a bottle of milk",
            "a red ribbon",
            "a small brush",
        ],
        2,
    )
    price1 = s.rng.randint(1, have - 3)
    price2 = s.rng.randint(1, have - price1 - 1)
    name = words.NUMBER_WORDS
    coin = {1: "coin"}
    s.let(
        have=name[have],
        g1=goods[0],
        g2=goods[1],
        p1=name[price1],
        p2=name[price2],
        r1=name[have - price1],
        r2=name[have - price1 - price2],
        c1=coin.get(price1, "coins"),
        c2=coin.get(price2, "coins"),
        k1=coin.get(have - price1, "coins"),
        k2=coin.get(have - price1 - price2, "coins"),
    )
    s.title, s.topic = "At the Market", "the market"
    s.next()
    s.say(
        '{elder} sent {hero} to the market with {have} coins. "Please buy {g1} and {g2}," said {elder}. "[And count'
        ' well|Do not lose the coins|Be careful]."',
        "At the market [it was loud and full of people|people shouted and laughed|it smelled of fruit and bread].",
        "First {hero} bought {g1} for {p1} {c1}. Now {hero.he} had {r1} {k1} left. Then {hero.he} bought {g2} for {p2}"
        " {c2}. Now {hero.he} had {r2} {k2} left.",
    )
    s.next()
    s.say(
        "[{hero} counted once more, and it was right.|On the way home {hero} met {friend}, and they counted together.|A"
        " seller wanted to give {hero} one coin too many, but {hero} gave it back.]",
        'At home {hero} put {r2} {k2} on the table. "[Well done|Very good|You counted well]," said {elder}.',
    )
    s.ask("How many coins did {hero} have at first?", "At first {hero} had {have} coins.")
    s.ask("How much did {g1} cost?", "It cost {p1} {c1}.")
    s.ask(
        "How many coins were left in the end?",
        "In the end {r2} {k2} " + ("was" if have - price1 - price2 == 1 else "were") + " left.",
    )
    s.ask("What did {hero} buy?", "{hero} bought {g1} and {g2}.")
    s.lesson = s.pick(("it pays to count well", "people trust those who are careful"))
    s.close(
        "As thanks {hero} was allowed to keep one coin.",
        "Then they made {food} together.",
        "The next week {elder} sent {hero} to the market again, for now {elder.he} knew that {hero.he} could do it.",
    )


def _the(item: object) -> str:
    return "the " + str(item).split(" ", 1)[1]


def trade_chain(s: Story) -> None:
    s.opening()
    traders = s.rng.sample(
        [
            "the baker",
            "the shepherd",
            "the fisherman",
            "the weaver",
            "the blacksmith",
            "the potter",
            "the gardener",
            "the carpenter",
        ],
        3,
    )
    makes = {
        "the baker": "a loaf of bread",
        "the shepherd": "a bag of wool",
        "the fisherman": "a big fish",
        "the weaver": "a warm blanket",
        "the blacksmith": "an iron hook",
        "the potter": "a clay pot",
        "the gardener": "a basket of beans",
        "the carpenter": "a wooden stool",
    }
    s.let(t1=traders[0], t2=traders[1], t3=traders[2], i1=makes[traders[0]], i2=makes[traders[1]], i3=makes[traders[2]])
    s.let(d1=_the(s.scope["i1"]), d2=_the(s.scope["i2"]), d3=_the(s.scope["i3"]))
    s.title, s.topic = "The Good Trade", "a trade"
    s.next()
    s.say(
        '{hero} needed {i3}, but {hero.he} had no money. So {hero.he} went to {t3}. "I will give you {i3} if you bring'
        ' me {i2}," said {t3}.',
        '{hero} went to {t2}. "I will give you {i2} if you bring me {i1}," said {t2}.',
        '[What could {hero} do?|{hero} sighed and went on.] {hero.he} went to {t1}. "I need help today," said {t1}.'
        ' "[Work for me until evening, and you shall have {i1}.|Help me, and I will give you {i1}.]"',
    )
    s.next()
    s.say(
        "{hero} worked hard all day, and in the evening {hero.he} got {i1}. {hero.he} brought {d1} to {t2} and got"
        " {i2}. {hero.he} brought {d2} to {t3} and got {i3}. [What a long way for one thing!|{hero} laughed: it had"
        " worked!]"
    )
    s.ask("What did {hero} need?", "{hero} needed {i3}.")
    s.ask("What did {t2} want?", "{t2} wanted {i1}.")
    s.ask("What did {t3} want?", "{t3} wanted {i2}.")
    s.ask("For whom did {hero} work?", "{hero} worked for {t1}.")
    s.lesson = s.pick(("work can be worth as much as money", "step by step one reaches the goal"))
    s.close(
        "And everyone had got what they wanted.",
        "{hero} gave {d3} to {elder}, who had wished for it so long.",
        "Tired and happy, {hero} went home.",
    )


def race(s: Story) -> None:
    s.opening()
    contest, stop = s.pick(
        (
            ("a race around the lake", "lay down under a tree to sleep"),
            ("a race up the hill", "stopped to pick berries"),
            ("a boat race", "stopped to wave at everyone"),
            ("a sledge race", "stopped to throw snowballs"),
            ("a race through the forest", "stopped to look at {other.his} own face in a pond"),
        )
    )
    s.let(contest=contest)
    s.phrase(stop=stop)
    s.title, s.topic = "The Race", "a race"
    s.next()
    s.say(
        'One day there was {contest}. {other} was very fast and [boasted about it|laughed at everyone]. "[Nobody can'
        ' beat me|I will win anyway]," said {other}.',
        '{hero} was slow, but [{hero.he} never gave up|{hero.he} wanted to try]. ["Just do your best," said {elder}.|"I'
        ' believe in you," said {friend}.]',
        '"One, two, three, go!" [called {elder}|shouted {elder}]. {other} was far ahead at once.',
    )
    s.next()
    s.say(
        '["I have so much time," thought {other},|{other} looked back and saw nobody. So {other.he}|Half way there,'
        " {other}] {stop}.".replace("thought {other},", "thought {other}. So {other.he}"),
        "{hero} went on and on, [step by step|slowly but steadily|without stopping]. {hero.he} passed {other} quietly."
        " When {other} noticed it, [it was too late|{hero} was already near the finish].",
        "{hero} [won|crossed the line first]! [Everyone cheered.|{friend} threw {friend.his} hat into the air.]",
    )
    s.ask("Who won the race?", "{hero} won the race.")
    s.ask("Why did {other} lose?", "{other} lost because {other.he} {stop}.")
    s.ask("Who was faster at the start?", "At the start {other} was faster.")
    s.lesson = s.pick(
        ("slow and steady can win", "one should not boast before the end", "being fast is no use if one stops")
    )
    s.close(
        "{other} was ashamed at first, but then {other.he} shook {hero}'s hand.",
        "The prize was {food}, and {hero} shared it with everyone, even with {other}.",
        '"Next time I will not stop," said {other}, and both laughed.',
    )


def storm(s: Story) -> None:
    s.opening()
    damage, rebuild = s.pick(
        (
            ("the bridge", "a new bridge of strong wood"),
            ("the roof of the school", "a new roof"),
            ("the fence of the farm", "a new fence"),
            ("the big tree house", "a new tree house"),
            ("{friend}'s hut", "a new hut of stone"),
        )
    )
    s.phrase(damage=damage)
    s.let(rebuild=rebuild, shelter=s.pick(("a cave", "the cellar", "the barn", "the mill", "{e}'s house")))
    s.let(shelter=str(s.scope["shelter"]).replace("{e}", str(s.scope["elder"])))
    s.title, s.topic = "The Storm", "a storm"
    s.next()
    s.say(
        "One {time} dark clouds came over the mountains. [The birds were silent.|The wind grew stronger and"
        ' stronger.|The air was heavy.] "[A storm is coming|We must go inside]," said {hero}.',
        "[{hero} and {friend} ran to|Everybody hurried to|Just in time they reached] {shelter}. [Lightning flashed and"
        " thunder rolled.|Rain beat on the ground like drums.|Outside the trees bent in the wind.]",
        "[{friend} was afraid, so {hero} told {friend.him} a funny story.|To pass the time they sang songs.|They held"
        " hands and waited.]",
    )
    s.next()
    s.say(
        'In the morning [the sky was blue again|the storm was over]. But it had destroyed {damage}. ["What now?" asked'
        " {friend}.|Everyone was sad.|{friend} began to cry.]",
        '"[We will build it again|If everyone helps, it will be quick]," said {hero}. [One brought wood, one brought'
        " nails, and one brought {food}.|Some carried wood, some hammered, and some cooked for all.]",
        "After [three days|a week|some days] there was {rebuild}, [stronger than before|better than the old one].",
    )
    s.ask("What did the storm destroy?", "The storm destroyed {damage}.")
    s.ask("Where did they hide from the storm?", "They hid in {shelter}.")
    s.ask("What did they build?", "They built {rebuild}.")
    s.lesson = s.pick(("together people can mend almost anything", "after every storm comes a blue sky"))
    s.close(
        "In the evening they had a feast.",
        "And when the next storm came, it stood firm.",
        '"We did that together," said {hero}.',
    )
