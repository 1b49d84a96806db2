"""Plots about feelings: friendship, honesty, sharing, helping."""

from __future__ import annotations

from .. import words
from ..story import Story


def new_friend(s: Story) -> None:
    s.opening()
    s.let(game=s.pick(("hide and seek", "catch", "ball", "tag", "a board game", "skipping rope")))
    s.title, s.topic = "The New Friend", "friendship"
    s.next()
    s.say(
        "[{hero} had just moved there and knew nobody.|{hero} was new in the village and had no friends yet.|"
        "{hero} was new and very shy.]"
    )
    s.arrive()
    s.say(
        "{friend} and {other} were playing {game}. {hero} [watched them from far away|stood under a tree and watched].",
        '["They will not want to play with me," thought {hero}.|{hero} wanted to play too but did not dare to ask.]',
    )
    s.next()
    trouble, fix = s.pick(
        (
            ("their ball flew up into a tree", "{hero} climbed up and threw it down"),
            ("{friend} fell and hurt {friend.his} knee", "{hero} ran over and helped {friend.him} up"),
            ("a heavy rain began to fall", '{hero} called, "Come here! There is room for all of us under this roof!"'),
            ("they could not agree on the rules", "{hero} came over and explained a fair way to play"),
            ("{friend} looked up and waved", "{hero} waved back and came closer, step by step"),
        )
    )
    s.phrase(trouble=trouble, fix=fix)
    s.say(
        "[Then|Suddenly] {trouble}. [At once|Without thinking,|Quickly] {fix}.",
        '["Thank you!" said {friend}. "What is your name?"|{friend} smiled. "Who are you?" {friend.he} asked.] "I am'
        ' {hero}," said {hero}.',
        '["Do you want to play {game} with us?" asked {other}.|"Play with us!" said {other}.] [{hero} nodded'
        ' happily.|"Yes, please!" said {hero}.]',
    )
    s.ask("What were {friend} and {other} playing?", "They were playing {game}.")
    s.ask("Why was {hero} alone?", "{hero} was alone because {hero.he} was new and had no friends yet.")
    s.ask("What happened while they played?", "{trouble}.")
    s.lesson = s.pick(
        (
            "a small kind deed can make a friend",
            "one should dare to take the first step",
            "friends can be found anywhere",
        )
    )
    s.close(
        "They played {game} until it was dark. After that {hero} was never lonely again.",
        "From that day on, the three of them were best friends.",
        'When {hero} came home, {hero.he} said, "Today I found two friends!"',
    )


def honesty(s: Story) -> None:
    s.opening()
    broken, how = s.pick(
        (
            ("vase", "knocked it off the table with a ball"),
            ("window", "threw a ball too high"),
            ("blue plate", "dropped it on the floor"),
            ("flower pot", "ran into it"),
            ("lamp", "pulled the cord by mistake"),
            ("jug", "tried to carry too much at once"),
            ("clock", "took it apart to see how it worked"),
        )
    )
    s.let(broken=broken, how=how, other_name=s.pick(("the cat", "the wind", "the dog")))
    s.title, s.topic = f"The Broken {broken.title()}", "honesty"
    s.next()
    s.say(
        "{elder} had a {broken} that {elder.he} liked very much.",
        "One {time}, {hero} {how}. [Crash!|There was a loud crash.|It broke into many pieces.] The {broken} was"
        " broken.",
        "[{hero} was frightened and hid the pieces under the bed.|{hero} quickly hid the pieces and ran away.]",
        '[When {elder} asked what had happened, {hero} said, "It was {other_name}."|"Who broke the {broken}?" asked'
        ' {elder}. "I do not know," said {hero}.]',
    )
    s.next()
    s.say(
        "[But {hero} did not feel well.|But the lie lay in {hero.his} stomach like a stone.|That night {hero} could not"
        " sleep.] [Even {food} did not taste good.|{hero.he} thought about it all the time.]",
        '[At last|In the morning|After a while] {hero} went to {elder} and said, "[It was me. I broke the {broken}. I'
        ' am sorry.|I told a lie. I broke the {broken}, and I am very sorry.]"',
    )
    s.say(
        '{elder} [was quiet for a moment|looked at {hero} for a long time]. Then {elder.he} said, "[A {broken} can be'
        " replaced, but trust is worth more. Thank you for telling the truth.|I am glad that you told me the truth.|It"
        ' is only a {broken}. Being honest was brave.]"'
    )
    s.ask("What did {hero} break?", "{hero} broke the {broken}.")
    s.ask("How did the {broken} break?", "{hero} {how}.")
    s.ask("What did {hero} do with the pieces?", "{hero} hid the pieces.")
    s.ask("Did {hero} tell the truth in the end?", "Yes, in the end {hero} told {elder} the truth.")
    s.lesson = s.pick(
        ("the truth makes the heart light", "it is better to tell the truth at once", "being honest takes courage")
    )
    s.close(
        "Together they glued the pieces, and {hero} felt light again.",
        "{hero} hugged {elder}. Never had {hero.he} felt so relieved.",
        "{hero} worked in the garden for a week to pay for a new {broken}, and did it gladly.",
    )


def sharing(s: Story) -> None:
    s.opening()
    count = s.rng.choice((4, 6, 8, 10, 12))
    fruit = s.pick(words.FRUIT)
    s.let(fruit=fruit, n=words.NUMBER_WORDS[count], half=words.NUMBER_WORDS[count // 2])
    s.title, s.topic = f"The {fruit.title()}", "sharing"
    s.next()
    s.say(
        'One {weather} {time}, {hero} found {n} [sweet|ripe|big] {fruit}. ["They are all mine!" {hero.he} said.|{hero}'
        ' wanted to keep them all.|"I will eat them all by myself," said {hero}.]',
        '{friend} came by and asked, "[May I have one?|Could you share with me? I have not eaten today.|What a lot of'
        ' {fruit}! Can I have some?]"',
        '["No," said {hero}, "they are mine."|But {hero} shook {hero.his} head.|"There are not enough," said {hero},'
        " and that was not true.] {friend} [went away sadly|walked off without a word].",
    )
    s.next()
    s.say(
        "{hero} [ate and ate|began to eat] until {hero.his} stomach hurt. [And it was no fun to eat alone.|There was"
        " nobody to talk to.|It was very quiet.]",
        '[Then {hero} thought of {friend}.|{hero} felt sorry.|"That was not kind of me," thought {hero}.] [So {hero.he}'
        " ran after {friend.him}.|{hero.he} got up and looked for {friend}.]",
        '"[I am sorry|Please forgive me]," said {hero}. "[Let us share what is left.|Half of them are for you.|Come and'
        ' eat with me.]"',
    )
    s.ask("What did {hero} find?", "{hero} found {n} {fruit}.")
    s.ask("Who asked {hero} for some {fruit}?", "{friend} asked {hero} for some {fruit}.")
    s.ask("What would half of the {fruit} be?", "Half of {n} {fruit} is {half} {fruit}.")
    s.ask("Why did {hero}'s stomach hurt?", "It hurt because {hero} ate too many {fruit}.")
    s.lesson = s.pick(
        (
            "food tastes better when it is shared",
            "sharing makes two people happy",
            "a friend is worth more than a full plate",
        )
    )
    s.close(
        "They sat in the grass and ate together, and the {fruit} tasted twice as good.",
        "{friend} smiled, and soon they were laughing again.",
        "The next day {friend} brought {food}, and {friend.he} shared it with {hero}.",
    )


def rescue(s: Story) -> None:
    s.opening()
    creature = s.pick(words.SMALL_ANIMALS)
    trap, failed, why, tool, solution = s.pick(
        (
            (
                "in a deep hole",
                "reach down with {hero.his} arm",
                "the hole was too deep",
                "a rope",
                "let down a rope with a basket, and pulled it up",
            ),
            (
                "high up in a tree",
                "climb the tree",
                "the branches were too thin",
                "a ladder",
                "leaned a ladder against the tree",
            ),
            (
                "on a stone in the middle of the river",
                "walk through the water",
                "the water was too fast",
                "a long board",
                "laid a long board across the water",
            ),
            (
                "under a heavy branch",
                "lift the branch",
                "it was too heavy",
                "a strong stick",
                "used a strong stick to raise it",
            ),
            (
                "in a thorn bush",
                "pull it out",
                "the thorns were too sharp",
                "a pair of scissors",
                "cut the thorns with a pair of scissors",
            ),
            (
                "behind a fence",
                "squeeze through",
                "the gap was too narrow",
                "a spade",
                "dug a little hole under the fence with a spade",
            ),
            (
                "on the thin ice of the pond",
                "walk on the ice",
                "the ice began to crack",
                "a sledge",
                "pushed a sledge over the ice on a rope",
            ),
        )
    )
    s.let(creature=creature, trap=trap, why=why, tool=tool, solution=solution)
    s.phrase(failed=failed)
    s.title, s.topic = f"The Little {creature.title()}", f"a {creature} in trouble"
    s.next()
    s.arrive()
    s.say(
        "[Suddenly|Then] {hero.he} heard a [small|thin|sad] cry. A little {creature} was stuck {trap}!",
        '["Help!" cried the {creature}.|"Please help me!" it called.|The poor {creature} was shaking with fear.] ["I'
        ' will help you," said {hero}.|"Do not worry," said {hero}.|]',
    )
    s.next()
    s.say(
        "First {hero} tried to {failed}, but {why}.",
        '["What can I do?" {hero.he} thought.|So {hero.he} had to think of something else.|That did not work.] [Then'
        " {hero.he} remembered that {elder} had {tool}.|Then {hero.he} ran to {elder} to borrow {tool}.]",
        "[Carefully|Slowly and carefully|With the help of {friend}], {hero} {solution}. The {creature} was free!",
    )
    s.ask("Which animal was in trouble?", "A little {creature} was in trouble.")
    s.ask("Where was the {creature} stuck?", "The {creature} was stuck {trap}.")
    s.ask("What did {hero} use to help the {creature}?", "{hero} used {tool}.")
    s.ask("Why did the first try not work?", "It did not work because {why}.")
    s.lesson = s.pick(
        (
            "with a good idea even the weak can do great things",
            "if the first try fails, one should try another way",
            "nobody is too small to help",
        )
    )
    s.close(
        "The {creature} thanked {hero} and never forgot it.",
        "From then on the {creature} followed {hero} everywhere.",
        "Some weeks later, when {hero} was lost in the fog, the {creature} showed {hero.him} the way home.",
    )
