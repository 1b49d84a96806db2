"""Plots about practice, gifts, kind deeds and illness."""

from __future__ import annotations

from ..story import Story


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


def sick_friend(s: Story) -> None:
    s.opening()
    s.let(
        ill=s.pick(("a cold", "a fever", "a sore throat", "a headache", "a cough")),
        cure=s.pick(("hot soup", "tea with honey", "warm milk", "a bowl of porridge")),
    )
    s.title, s.topic = "The Sick Friend", "a sick friend"
    s.next()
    s.say(
        'One {weather} {time}, {friend} did not come out to play. ["Where is {friend}?" asked {hero}.|{hero} waited and'
        " waited.]",
        '"{friend} has {ill} and must stay in bed," said {elder}. [{hero} thought about what to do.|{hero} was'
        " worried.]",
        "[Then|So] {hero} made {cure} and carried it carefully to {friend}'s house, [step by step|without spilling a"
        " drop].",
    )
    s.next()
    s.say(
        '{friend} was lying in bed [and looked pale|under three blankets]. "[I am so bored|How good that you came],"'
        " said {friend}.",
        "{hero} [read {friend.him} a book|told {friend.him} a funny story|sang {friend.him} a song] until {friend.he}"
        " [laughed|fell asleep|smiled again].",
        "After [two|three|four] days {friend} was well again, and they played together as before.",
    )
    s.ask("Why did {friend} stay in bed?", "{friend} stayed in bed because {friend.he} had {ill}.")
    s.ask("What did {hero} make for {friend}?", "{hero} made {cure}.")
    s.ask("Who was ill?", "{friend} was ill.")
    s.lesson = s.pick(("a visit can be the best medicine", "a good friend comes when one is ill"))
    s.close(
        '"When you are ill, I will make {cure} for you," said {friend}.',
        '"Your {cure} made me well," said {friend}.',
        '{friend} hugged {hero} and said, "Thank you for coming."',
    )
