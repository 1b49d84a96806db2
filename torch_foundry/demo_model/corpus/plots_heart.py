"""Plots about feelings: friendship, courage, honesty, sharing, kindness, gifts, practice."""

from __future__ import annotations

from . import words
from .story import Story


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


def practice(s: Story) -> None:
    s.opening()
    skill, place_, mishap, event = s.pick(
        (
            ("swim", "in the lake", "swallowed a lot of water", "swam all the way across the lake"),
            ("ride a bicycle", "in the yard", "fell into a bush", "rode down the whole street"),
            ("skate", "on the frozen pond", "sat down hard on the ice", "skated a perfect circle"),
            ("play the violin", "at home", "made a terrible noise", "played a song for everyone"),
            ("juggle", "in the garden", "dropped all the balls", "juggled with three balls at the fair"),
            ("whistle", "on the way to school", "made no sound at all", "whistled a whole song"),
            ("read", "in the kitchen", "mixed up all the letters", "read a whole book aloud"),
            ("bake bread", "in the kitchen", "burned the first loaf", "baked a loaf that everyone loved"),
            ("climb", "on the rocks", "slipped at the first step", "stood on top of the highest rock"),
            ("dance", "in the barn", "stepped on {friend}'s foot", "danced at the summer feast"),
        )
    )
    s.let(skill=skill, where=place_, event=event)
    s.phrase(mishap=mishap)
    s.title, s.topic = f"{s.scope['hero']} Learns to {skill.title()}", f"learning to {skill}"
    s.next()
    s.say(
        "{hero} wanted to learn to {skill}. [All the others could do it already.|It looked so easy.|{hero.he} had"
        " dreamed of it for a long time.]",
        "On Monday {hero.he} tried it for the first time {where}. {hero.he} {mishap}.",
        '["I will never learn it," said {hero}.|{hero} was angry and wanted to give up.|{other} laughed at {hero.him},'
        ' and that hurt.] ["Nobody can do it on the first day," said {elder}. "Try again tomorrow."|"Slowly, slowly,"'
        ' said {elder}. "Every day a little."]',
    )
    s.next()
    s.say(
        "[On Tuesday it went a little better.|On Tuesday {hero} tried again, and it was a bit better.] [On Wednesday"
        " {hero.he} practised for an hour.|On Wednesday {friend} came along to help.] [On Thursday {hero.he} hardly"
        " made any mistakes.|On Thursday it almost worked.] And on [Friday|Saturday|Sunday], {hero} {event}!",
        '[Everyone clapped.|"Bravo!" cried {friend}.|{elder} was very proud.|Even {other} had to admit that it was'
        " good.]",
    )
    s.ask("What did {hero} want to learn?", "{hero} wanted to learn to {skill}.")
    s.ask("What happened on Monday?", "On Monday {hero} {mishap}.")
    s.ask("What did {elder} say?", "{elder} told {hero} to try again and not to give up.")
    s.ask("What could {hero} do in the end?", "In the end {hero} {event}.")
    s.lesson = s.pick(
        (
            "practice makes everything easier",
            "nobody is good at something on the first day",
            "one must not give up too early",
        )
    )
    s.close(
        "{hero} was tired, but very happy.",
        '"Tomorrow I will learn something new," said {hero}.',
        "Later {hero} taught {other} to {skill} too, and was very patient.",
    )


def gift(s: Story) -> None:
    s.opening()
    present, material = s.pick(
        (
            ("a scarf", "old wool"),
            ("a picture", "paper and paint"),
            ("a bird house", "some boards and nails"),
            ("a flower wreath", "flowers from the meadow"),
            ("a candle", "some wax and a string"),
            ("a song", "nothing but words and a tune"),
            ("a necklace", "shells from the beach"),
            ("a toy boat", "a piece of bark"),
            ("a cushion", "soft feathers and cloth"),
        )
    )
    event = s.pick(("birthday", "wedding day", "name day"))
    s.let(present=present, material=material, event=event)
    s.title, s.topic = "The Best Present", "a present"
    s.next()
    s.say(
        "It was [nearly|soon] {elder}'s {event}, and {hero} wanted to give {elder.him} something [special|beautiful].",
        "But {hero} had no money. [{hero.his} purse was empty.|In {hero.his} pocket there were only a button and a"
        " string.|All the things in the shop cost too much.]",
        '{friend} said, "[The best presents are made by hand.|Why not make something yourself?|You are so good at'
        ' making things.]"',
    )
    s.next()
    s.say(
        "So {hero} took {material} and made {present}. [It took three days.|{hero.he} worked until late in the"
        " evening.|The first try went wrong, but {hero.he} began again.]",
        '[On the {event}|When the day came], {hero} gave it to {elder}. ["It is not much," {hero.he} said quietly.|"I'
        ' made it myself," {hero.he} said.]',
        "[{elder}'s eyes shone.|{elder} was silent with joy.] \"[This is the best present of all, because you made it"
        ' for me.|I have never had a finer present.]"',
    )
    s.ask("What did {hero} make for {elder}?", "{hero} made {present} for {elder}.")
    s.ask("Why did {hero} not buy a present?", "{hero} did not buy a present because {hero.he} had no money.")
    s.ask("What did {hero} use to make it?", "{hero} used {material}.")
    s.ask("Why did {hero} want to give {elder} a present?", "It was {elder}'s {event}.")
    s.lesson = s.pick(("a present from the heart is worth more than gold", "time is the finest present"))
    s.close(
        "They all ate {food} together and laughed until late.",
        "{elder} kept it for many years.",
        "{hero} was as happy as if {hero.he} had received a present {hero.self}.",
    )


def kindness_returns(s: Story) -> None:
    s.opening()
    stranger = s.pick(
        (
            "an old woman",
            "a lonely traveller",
            "a lame donkey",
            "a small bird",
            "a lost puppy",
            "a poor fiddler",
            "an old dog",
            "a strange boy",
        )
    )
    need, gave = s.pick(
        (
            ("was hungry", "half of {hero.his} bread"),
            ("was cold", "{hero.his} warm scarf"),
            ("was thirsty", "a cup of fresh water"),
            ("was tired", "a place by the fire"),
        )
    )
    trouble, help_ = s.pick(
        (
            ("{hero} lost the way in the fog", "showed {hero.him} the right path"),
            ("{hero}'s cart got stuck in the mud", "pulled with all strength until it was free"),
            ("a thief wanted to steal {hero}'s bag", "made such a noise that the thief ran away"),
            ("{hero} fell into the water", "held out a branch and saved {hero.him}"),
        )
    )
    s.let(stranger=stranger, short=stranger.split(" ", 1)[1], need=need)
    s.phrase(gave=gave, trouble=trouble, help=help_)
    s.title, s.topic = "A Kind Deed", "kindness"
    s.next()
    s.arrive()
    s.say(
        "There {hero.he} met {stranger} who {need}. [Others simply walked past.|Nobody wanted to help.|{other} had just"
        " walked past without stopping.]",
        'But {hero} [stopped|was sorry for the {short}|did not look away] and gave the {short} {gave}. ["It is not'
        ' much, but I give it gladly," said {hero}.|]',
        "[The {short} thanked {hero.him} with a nod.|The {short} looked at {hero.him} gratefully.]",
    )
    s.next()
    s.say(
        '[A week later|Many days later|When winter came], {trouble}. ["Help!" called {hero}, but no one seemed to'
        " hear.|It looked bad for {hero}.|]",
        "Then somebody came: it was the {short}! The {short} {help}.",
        '["You helped me," said the {short}, "and now I can help you."|"You did not forget me!" said {hero}.]',
    )
    s.ask("Whom did {hero} meet?", "{hero} met {stranger}.")
    s.ask("What did {hero} give the {short}?", "{hero} gave the {short} {gave}.")
    s.ask("What happened later?", "Later {trouble}, and the {short} helped.")
    s.lesson = s.pick(("kindness comes back", "no kind deed is ever lost"))
    s.close(
        "After that they were friends for life.",
        "{hero} told the story to everyone, and soon people in the village were kinder to each other.",
        "They walked home together and ate {food}.",
    )


PLOTS = [new_friend, honesty, sharing, rescue, rescue, practice, practice, gift, kindness_returns]
