"""Plots of noises, journeys and riddles."""

from __future__ import annotations

from ..story import Story


def night_noise(s: Story) -> None:
    s.opening()
    s.let(
        noise=s.pick(
            (
                "a knock, knock, knock",
                "a soft scratching",
                "a long, low hooo",
                "a creak and a crack",
                "a tapping at the window",
                "a strange whistle",
            )
        )
    )
    noise = str(s.scope["noise"])
    truth = {
        "a knock, knock, knock": "an apple tree whose branch knocked against the wall",
        "a soft scratching": "a hungry hedgehog at the door",
        "a long, low hooo": "an owl on the roof",
        "a creak and a crack": "the old door that moved in the wind",
        "a tapping at the window": "the rain that tapped on the glass",
        "a strange whistle": "the wind in the chimney",
    }[noise]
    s.let(truth=truth)
    s.title, s.topic = "The Noise in the Night", "a noise in the night"
    s.next()
    s.say(
        "One night {hero} [could not sleep|woke up]. It was dark, and [the moon was hidden|the house was very quiet].",
        "[Then|Suddenly] {hero.he} heard {noise}.",
        '["What is that?" whispered {hero}.|"Is it a monster?" thought {hero}.|{hero} pulled the blanket up to'
        " {hero.his} nose.]",
        "[{hero.his} heart beat fast.|{hero.he} was afraid.|{hero.he} did not dare to move.]",
    )
    s.next()
    s.say(
        "But {hero} [wanted to know what it was|did not want to be afraid all night|was also curious].",
        "[So {hero.he} lit a candle|So {hero.he} took a lamp|{hero.he} took a lantern] and [went to look|walked very"
        " slowly towards the noise|followed the sound].",
        "[Step by step {hero.he} came closer.|The floor was cold under {hero.his} feet.|{hero.he} counted to three and"
        " looked.]",
        "[It was no monster at all.|There was no monster.|What a surprise!] It was only {truth}!",
    )
    s.say('[{hero} had to laugh.|"So it was only you!" said {hero} and laughed.|{hero} was not afraid any more.]')
    s.ask("What did {hero} hear?", "{hero} heard {noise}.")
    s.ask("What was the noise?", "It was only {truth}.")
    s.ask("How did {hero} feel at first?", "At first {hero} was afraid.")
    s.ask("Was it a monster?", "No, it was not a monster. It was only {truth}.")
    s.lesson = s.pick(
        ("many things are less scary when one looks at them", "being brave means to look even when one is afraid")
    )
    s.close(
        "{hero} went back to bed and [soon fell asleep|slept until morning].",
        'In the morning {hero} told {elder} about it. "That was very brave," said {elder}.',
        "Then {hero} closed {hero.his} eyes and dreamed of {food}.",
    )


def journey(s: Story) -> None:
    s.opening()
    obstacle, means, tool = s.pick(
        (
            ("a wide river", "they built a raft out of branches", "a raft"),
            ("a deep valley", "they crossed it on a rope bridge, one after the other", "a rope bridge"),
            ("a high wall", "they found a small door hidden behind the ivy", "a small door"),
            ("a dark tunnel", "they lit a lantern and held hands", "a lantern"),
            ("a field of deep snow", "they made snow shoes out of twigs", "snow shoes"),
            ("a steep mountain", "they tied a rope around themselves and climbed slowly", "a rope"),
            ("a thick fog", "they followed the sound of a bell", "the sound of a bell"),
        )
    )
    s.let(obstacle=obstacle, means=means, tool=tool)
    s.phrase(
        goal=s.pick(
            (
                "visit {elder}",
                "see the sea",
                "bring medicine to {elder}",
                "deliver a letter to {elder}",
                "see the first snow on the mountain",
                "go to the great fair",
            )
        ),
        load=s.pick(("{food} and a bottle of water", "a blanket and some {food}", "a map and some {food}")),
    )
    s.title, s.topic = "The Long Way", "a long journey"
    s.next()
    s.say(
        "One {weather} {time}, {hero} and {friend} wanted to {goal}.",
        "They packed {load} and [left|set out] early.",
        "[The road was long.|They walked for hours.|The sun rose as they walked.] [They sang to pass the time.|They"
        " talked about many things.|]",
    )
    s.say(
        'Then they came to {obstacle}. ["How can we get past this?" asked {friend}.|"We cannot go on," said {friend}.|'
        '"Must we turn back now?" asked {friend}.]'
    )
    s.next()
    s.say(
        '[{hero} sat down and thought.|{hero} thought for a while.|"Let me think," said {hero}.] [Then {hero.he} had an'
        " idea.|Soon {hero.he} knew what to do.|]",
        "[In the end|So|Together] {means}.",
        "[It was not easy, but it worked.|It took a long time, but they did it.|Soon they were on the other side.]",
    )
    s.ask("What was in their way?", "{obstacle} was in their way.")
    s.ask("What did they want to do?", "They wanted to {goal}.")
    s.ask("What helped them?", "{tool} helped them.")
    s.ask("What did they pack?", "They packed {load}.")
    s.lesson = s.pick(
        ("there is almost always a way", "it helps to stop and think", "together one gets further than alone")
    )
    s.close(
        "When they arrived, {elder} was waiting with [hot tea|hot soup|a warm smile].",
        "In the evening they reached the end of the road, tired but proud.",
        '"We made it!" they shouted, and their voices echoed far away.',
    )


RIDDLES = [
    ("What has hands but cannot clap?", "a clock"),
    ("What has teeth but cannot bite?", "a comb"),
    ("What gets wet while it dries you?", "a towel"),
    ("What goes up when the rain comes down?", "an umbrella"),
    ("What has legs but cannot walk?", "a table"),
    ("What has one eye but cannot see?", "a needle"),
    ("What is full of holes but still holds water?", "a sponge"),
    ("What runs but has no feet?", "a river"),
    ("What has a neck but no head?", "a bottle"),
    ("What has many leaves but is not a tree?", "a book"),
    ("What can you catch but not throw?", "a cold"),
    ("What grows smaller the longer it burns?", "a candle"),
    ("What has keys but opens no door?", "a piano"),
    ("What follows you all day and leaves you at night?", "your shadow"),
    ("What has a face but no mouth, and shines at night?", "the moon"),
    ("What flies without wings?", "the wind"),
]


def riddle_gate(s: Story) -> None:
    s.opening()
    riddle, answer = s.pick(RIDDLES)
    wrong = s.pick([other for _, other in RIDDLES if other != answer])
    s.let(
        riddle=riddle,
        answer=answer,
        wrong=wrong,
        guard=s.pick(("a tall troll", "a grey cat", "a stone lion", "an old raven", "a sleepy giant")),
        door=s.pick(("a bridge", "a gate", "a green door", "a narrow path")),
    )
    s.title, s.topic = "The Riddle", "a riddle"
    s.next()
    s.say(
        "One {time}, {hero} came to {door}, and in front of it sat {guard}.",
        '"Nobody may pass who cannot answer my riddle," said [the guard|the voice of the guard].',
        '"{riddle}"',
    )
    s.next()
    s.say(
        "[{hero} thought for a long time.|{hero} scratched {hero.his} head.|{hero} closed {hero.his} eyes and thought.]"
    )
    if s.maybe():
        s.say('"Is it {wrong}?" {hero.he} asked. "No," said the guard. "Try again."')
        s.ask("Which answer was wrong?", "The wrong answer was {wrong}.")
    s.say(
        "[Then {hero.he} smiled.|Suddenly {hero.he} knew it.|Then {hero.he} remembered something that {elder} had once"
        ' said.] "It is {answer}!" said {hero}.',
        '"[That is right|Correct|Well done]," said the guard, and [stepped aside|let {hero.him} pass|bowed].',
    )
    s.ask("What was the riddle?", "The riddle was: {riddle}")
    s.ask("What was the answer to the riddle?", "The answer was {answer}.")
    s.ask("Who asked the riddle?", "{guard} asked the riddle.")
    s.lesson = s.pick(("thinking can open any door", "it is worth taking time to think"))
    s.close(
        "Behind it {hero} found [a garden full of flowers|the shortest way home|a spring of clear water].",
        "{hero} thanked the guard and went on {hero.his} way.",
        "From then on {hero} asked everyone that riddle, and only a few knew the answer.",
    )
