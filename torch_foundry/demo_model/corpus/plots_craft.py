"""Plots of making and doing: gardens, kitchens, machines, markets, trades, races, storms, wishes."""

from __future__ import annotations

from . import words
from .story import Story


def garden(s: Story) -> None:
    s.opening()
    plant, part = s.pick(
        (
            ("sunflower", "flower"),
            ("pumpkin", "pumpkin"),
            ("bean", "vine"),
            ("apple tree", "tree"),
            ("tomato", "plant"),
            ("rose", "rose bush"),
            ("carrot", "carrot"),
            ("melon", "melon"),
        )
    )
    s.let(
        plant=plant,
        part=part,
        colour={
            "sunflower": "yellow",
            "pumpkin": "orange",
            "bean": "green",
            "apple tree": "green",
            "tomato": "red",
            "rose": "red",
            "carrot": "orange",
            "melon": "green",
        }[plant],
    )
    s.title, s.topic = f"The {plant.title()}", f"a {plant}"
    s.next()
    s.say(
        'In spring, {elder} gave {hero} a seed. "What is it?" asked {hero}. "[Plant it and you will see|Wait and see|It'
        ' is a secret that grows]," said {elder}.',
        "{hero} dug a hole, put in the seed, and covered it with earth. Every day {hero.he} watered it.",
        '[After one week there was nothing to see.|Days went by, and nothing happened.] ["Perhaps it is asleep," said'
        ' {friend}.|"Is it broken?" asked {hero}.|{hero} became impatient.] "[Good things need time|Be patient]," said'
        " {elder}.",
    )
    s.next()
    s.say(
        "Then, one {weather} morning, a tiny green leaf [came out of the ground|looked out of the earth]. {hero}"
        " [jumped for joy|danced around it].",
        "[It grew and grew.|In summer it grew taller than {hero}.|The sun and the rain made it grow.] [When the wind"
        " was strong, {hero} tied it to a stick.|When the sun was hot, {hero} gave it more water.]",
        "[By autumn|In the end] it was a huge {colour} {part}, [the biggest in the whole village|bigger than any that"
        " {hero} had ever seen].",
    )
    s.ask("What grew from the seed?", "A {plant} grew from the seed.")
    s.ask("What did {hero} do every day?", "Every day {hero} watered the seed.")
    s.ask("Who gave {hero} the seed?", "{elder} gave {hero} the seed.")
    s.ask("What colour was the {part}?", "The {part} was {colour}.")
    s.lesson = s.pick(("good things need time", "patience is rewarded", "small things can grow big with care"))
    s.close(
        "{hero} kept new seeds for the next spring.",
        "Everyone came to see it, and {hero} gave each of them a seed.",
        '"You were right," {hero} told {elder}. "It was worth the wait."',
    )


def baking(s: Story) -> None:
    s.opening()
    dish, missing, source, effect = s.pick(
        (
            ("a cake", "eggs", "the hens on the farm", "rise"),
            ("pancakes", "milk", "the farmer with the cow", "become smooth"),
            ("bread", "flour", "the miller", "become a dough"),
            ("honey biscuits", "honey", "the beekeeper", "become sweet"),
            ("an apple pie", "apples", "the orchard", "taste of anything"),
            ("plum jam", "sugar", "the shop in the village", "become sweet"),
            ("vegetable soup", "carrots", "the garden of a neighbour", "taste of anything"),
        )
    )
    s.let(
        dish=dish,
        missing=missing,
        source=source,
        effect=effect,
        feast=s.pick(("{x}'s birthday", "the summer feast", "the harvest feast", "a visit from {x}")),
    )
    s.let(feast=str(s.scope["feast"]).replace("{x}", str(s.scope["elder"])))
    the_dish = "the " + dish.removeprefix("a ").removeprefix("an ")
    s.let(ready=the_dish + (" were" if dish in ("pancakes", "honey biscuits") else " was"))
    s.title, s.topic = f"{s.scope['hero']} Cooks", f"making {dish}"
    s.next()
    s.say(
        "{hero} wanted to make {dish} for {feast}. {hero.he} [put on an apron|washed {hero.his} hands] and looked into"
        " the cupboard.",
        '["Oh dear," said {hero}. "There are no {missing} left!"|But there was something missing: the {missing}.]'.replace(
            "are no", "is no" if missing in ("milk", "flour", "honey", "sugar") else "are no"
        ),
        "Without {missing} it would not {effect}. So {hero} went to {source} [with a basket|with {friend}|as fast as"
        " {hero.he} could] and asked for {missing}.",
        '["Of course," was the answer, "if you bring me a piece."|"You may have some if you help me sweep the yard,"'
        " was the answer. So {hero} swept the yard.|There {hero.he} got plenty.]",
    )
    s.next()
    s.say(
        "Back at home {hero} mixed and stirred [until {hero.his} arm hurt|with a big wooden spoon]. [There was flour on"
        " {hero.his} nose.|{friend} helped and licked the spoon.|The kitchen was a mess.]",
        "Soon [a wonderful smell filled the house|the whole house smelled good]. {ready} ready!",
    )
    s.ask("What did {hero} want to make?", "{hero} wanted to make {dish}.")
    s.ask(
        "What was missing?",
        "The {missing} " + ("was" if missing in ("milk", "flour", "honey", "sugar") else "were") + " missing.",
    )
    s.ask("Where did {hero} get the {missing}?", "{hero} got the {missing} from {source}.")
    s.ask("What was the occasion?", "It was {feast}.")
    s.lesson = s.pick(("a good meal begins with good preparation", "asking kindly opens many doors"))
    s.close(
        "Everybody wanted a second helping.",
        '"Who made this?" asked {elder}. "I did," said {hero} proudly.',
        "Not a crumb was left over.",
    )


def repair(s: Story) -> None:
    s.opening()
    machine, symptom, cause, fix = s.pick(
        (
            ("clock", "did not tick any more", "a small wheel was missing", "made a new wheel out of a button"),
            ("robot", "could not move its arm", "a screw was loose", "tightened the screw"),
            ("mill", "stood still", "a branch had blocked the wheel", "pulled the branch out of the wheel"),
            ("bicycle", "made a terrible squeak", "the chain was dry", "put a drop of oil on the chain"),
            ("lamp", "stayed dark", "the wire was broken", "joined the ends of the wire"),
            ("boat", "was full of water", "there was a hole in the bottom", "closed the hole with wood and tar"),
            ("music box", "played only one note", "there was sand inside", "cleaned it with a soft brush"),
            ("well", "gave no more water", "the rope had torn", "tied a new rope to the bucket"),
            ("train", "did not start", "there was no coal left", "brought a sack of coal"),
        )
    )
    s.let(machine=machine, symptom=symptom, cause=cause, fix=fix)
    s.title, s.topic = f"The Broken {machine.title()}", f"a broken {machine}"
    s.next()
    s.say(
        "In the village there was an old {machine}, and everybody needed it. One {weather} {time}, the {machine}"
        " {symptom}.",
        '["It is too old," said {other}. "Throw it away."|"Nobody can repair that," said {other}.|People shook their'
        ' heads.] But {hero} said, "[Let me have a look|I want to know why|First we must find the reason]."',
    )
    s.next()
    s.say(
        "{hero} [took it apart piece by piece|looked at every part|listened and looked carefully]. [{friend} held the"
        " lamp.|It took the whole afternoon.|]",
        "At last {hero.he} found it: {cause}!",
        '{hero} {fix}. [Then they waited.|"Now try it," {hero.he} said.|Everyone held their breath.] And [look|see]:'
        " the {machine} worked again!",
    )
    s.ask("What was wrong with the {machine}?", "The {machine} {symptom} because {cause}.")
    s.ask("How did {hero} repair the {machine}?", "{hero} {fix}.")
    s.ask("Who wanted to give up?", "{other} did not believe that it could be repaired.")
    s.lesson = s.pick(
        (
            "one should look for the cause before giving up",
            "many things can be repaired",
            "looking closely is half the work",
        )
    )
    s.close(
        'The people cheered, and {other} said, "I was wrong."',
        "After that everyone brought their broken things to {hero}.",
        "As a reward {hero} got {food}, and shared it with {friend}.",
    )


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


PLOTS = [garden, baking, repair, market, market, trade_chain, race, storm, wishes]
