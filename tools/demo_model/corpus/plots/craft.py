"""Plots of making and mending: gardens, kitchens, machines, paint."""

from __future__ import annotations

from .. import facts
from ..story import Story


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


def painting(s: Story) -> None:
    s.opening()
    a, b, mixed = s.pick(facts.MIXES)
    s.let(
        a=a,
        b=b,
        mixed=mixed,
        what=s.pick(("the door", "the fence", "an old boat", "a bird house", "a chair", "the gate")),
    )
    s.title, s.topic = "The New Colour", f"the colour {mixed}"
    s.next()
    s.say(
        "{hero} and {friend} wanted to paint {what}. {hero} wanted it to be {mixed}, but there was no {mixed} paint."
        " There was only {a} and {b}.",
        '["Then we will paint it {a}," said {friend}. "No, {b}," said {hero}. They began to quarrel.|"What shall we'
        ' do?" asked {friend}.|{hero} was disappointed.]',
    )
    s.next()
    s.say(
        "[By accident|Then] a little {a} paint [dripped|fell] into the {b} paint. {hero} stirred it with a stick."
        ' ["Look!"|"What is that?"] cried {friend}. The paint had become {mixed}!',
        "They mixed more and more, and by evening {what} was {mixed}. [There was {mixed} paint on their noses"
        " too.|Their hands were {mixed} as well.|]",
    )
    s.ask("What did they want to paint?", "They wanted to paint {what}.")
    s.ask("Which colours did they mix?", "They mixed {a} and {b}.")
    s.ask("What do {a} and {b} make?", "{a} and {b} make {mixed}.")
    s.ask("What colour was {what} in the end?", "In the end {what} was {mixed}.")
    s.lesson = s.pick(("two different things together can make something new", "a mistake can be a discovery"))
    s.close(
        '"Together our colours are best," said {hero}.',
        "Everyone asked where they had bought that paint.",
        "{elder} liked it so much that {elder.he} wanted {mixed} windows too.",
    )
