"""Plots of special days: a stage, snow, stars, the sea, school."""

from __future__ import annotations

from .. import words
from ..story import Story


def stage_fright(s: Story) -> None:
    s.opening()
    s.let(
        act=s.pick(
            ("sing a song", "play the flute", "say a poem", "play the drum", "dance", "show a trick", "play the violin")
        )
    )
    s.title, s.topic = "On the Stage", "a show"
    s.next()
    s.say(
        "There was going to be a show in the village, and {hero} was to {act}. [{hero.he} had practised for"
        " weeks.|{hero.he} knew it by heart.]",
        "But when {hero} looked through the curtain and saw all the people, {hero.his} knees [began to shake|became"
        ' soft]. "I cannot do it," {hero.he} said.',
        '"[Look only at me|Breathe in, breathe out, and think of something nice|Everyone is afraid before a show],"'
        ' said {friend}. "[I will sit in the first row|You can do it|I will hold your hand until you begin]."',
    )
    s.next()
    s.say(
        "{hero} took a deep breath and went out. [At first {hero.his} voice was very small.|The first moment was the"
        " worst.|For a moment it was very quiet.] Then {hero.he} saw {friend}, who [nodded|smiled|waved], and {hero}"
        " began.",
        "[It went better and better.|Everything went well.|Suddenly it was easy.] When it was over, everybody clapped"
        " [and called for more|and cheered|for a long time].",
    )
    s.ask("What did {hero} have to do in the show?", "{hero} had to {act}.")
    s.ask("Why did {hero}'s knees shake?", "They shook because {hero} was afraid of all the people.")
    s.ask("Who helped {hero}?", "{friend} helped {hero}.")
    s.lesson = s.pick(("courage is to go on although one is afraid", "a friend can give you courage"))
    s.close(
        '"Next year I will do it again," said {hero}.',
        "{elder} was so proud that {elder.he} told everyone.",
        "{hero} took a bow, and then another one.",
    )


def snow_day(s: Story) -> None:
    s.opening()
    s.let(
        nose=s.pick(("carrot", "pine cone", "red pepper")),
        eyes=s.pick(("two buttons", "two pieces of coal", "two nuts")),
        head=s.pick(("an old hat", "a bucket", "a pot", "a green cap")),
    )
    s.title, s.topic = "The Snowman", "a snowman"
    s.next()
    s.say(
        'One morning everything was white. It had snowed all night. "[Snow!|Look, snow!]" cried {hero} and ran'
        " outside.",
        "{hero} and {friend} rolled [a big ball, then a smaller one, and then a little one|three balls of snow] and put"
        " them on top of each other.",
        "They gave the snowman a {nose} for a nose, {eyes} for eyes, and {head} for its head.",
        '["He looks like {elder}!" laughed {friend}.|"Now he needs a name," said {friend}. They called him Mr.'
        " Frost.|They danced around him until they were warm.]",
    )
    s.next()
    s.say(
        "But some days later the sun came out, and it became warm. The snowman grew smaller and smaller. [{friend} was"
        ' sad.|"Do not go!" cried {friend}.]',
        '"He turns into water," said {hero}, "and the water [waters the flowers|runs into the river|helps the grass to'
        ' grow]. Next winter he will come back."',
    )
    s.ask("What did they build?", "They built a snowman.")
    s.ask("What did the snowman have for a nose?", "The snowman had a {nose} for a nose.")
    s.ask("What did the snowman have on its head?", "The snowman had {head} on its head.")
    s.ask("Why did the snowman grow smaller?", "It grew smaller because the sun came out and the snow melted.")
    s.lesson = s.pick(("everything has its season", "what goes away can come back in another form"))
    s.close(
        "When they came home, {elder} gave them hot tea.",
        "In spring the first flower grew in that very place.",
        "They kept the {nose} for the next winter.",
    )


def star_night(s: Story) -> None:
    s.opening()
    count = s.rng.randint(5, 20)
    s.let(n=words.NUMBER_WORDS[count], shape=s.pick(("a bear", "a ship", "a fish", "a cup", "a bird", "a house")))
    s.title, s.topic = "The Stars", "the stars"
    s.next()
    s.say(
        'One clear night {hero} could not sleep. {elder} said, "Come with me," and they went up [the hill|to the'
        " roof|to the top of the tower].",
        "Above them were more stars than {hero} had ever seen. {hero} began to count: one, two, three... At {n}"
        " {hero.he} [lost count|had to yawn|gave up].",
        '"If you join these stars with a line," said {elder}, "you can see {shape}." [{hero} looked and looked, and'
        ' then {hero.he} saw it too.|"I see it!" cried {hero}.]',
    )
    s.next()
    s.say(
        '"[Where are the stars in the daytime?|Do the stars go away in the daytime?]" asked {hero}. "They are always'
        ' there," said {elder}, "but in the daytime the sun is so bright that we cannot see them."',
        "[A shooting star flew across the sky.|An owl called in the distance.|The wind was soft and warm.] [{hero} made"
        " a wish.|{hero} leaned against {elder}.]",
    )
    s.ask("How far did {hero} count?", "{hero} counted to {n}.")
    s.ask("What could one see in the stars?", "One could see {shape}.")
    s.ask("Why can we not see the stars in the daytime?", "We cannot see them because the sun is so bright.")
    s.ask("Who showed {hero} the stars?", "{elder} showed {hero} the stars.")
    s.lesson = s.pick(("some things are there even when one cannot see them", "the night has its own light"))
    s.close(
        "{hero} was asleep before they came home, and {elder} carried {hero.him} to bed.",
        "Since that night {hero} has not been afraid of the dark.",
        "The next evening {hero} showed {friend} the stars.",
    )


def first_sea(s: Story) -> None:
    s.opening()
    found = s.rng.sample(
        [
            "a white shell",
            "a round stone",
            "a piece of green glass",
            "a long feather",
            "a starfish",
            "a piece of wood that looked like a fish",
        ],
        2,
    )
    s.let(a=found[0], b=found[1])
    s.title, s.topic = "The Sea", "the sea"
    s.next()
    s.say(
        '{hero} had never seen the sea. "How big is it?" {hero.he} asked. "[Bigger than everything you know|So big that'
        ' you cannot see the other side]," said {elder}.',
        "One {weather} day they [took the train|walked over the hills|rode on a cart] to the beach. First {hero} [heard"
        " it|smelled it], and then {hero.he} saw it: blue and wide, up to the sky.",
        '["Oh!" was all that {hero} could say.|{hero} stood there with open mouth.|{hero} took off {hero.his} shoes and'
        " ran.]",
    )
    s.next()
    s.say(
        'The waves came and went. {hero} built a castle of sand, and a wave [took half of it|washed it away]. ["Again!"'
        " laughed {hero}.|So {hero} built another one.]",
        "{hero.he} looked for treasures and found {a} and {b}.",
        '{hero} tasted the water. ["It is salty!"|"Who put salt in it?"] {hero.he} cried. "The rivers bring the salt'
        ' from the rocks," said {elder}.',
    )
    s.ask("What did {hero} find on the beach?", "{hero} found {a} and {b}.")
    s.ask("What did {hero} build?", "{hero} built a castle of sand.")
    s.ask("Why is the sea salty?", "The rivers bring the salt from the rocks.")
    s.ask("How did the water taste?", "The water tasted salty.")
    s.lesson = s.pick(("the world is bigger than one thinks", "there is always something new to see"))
    s.close(
        "In the evening the sun sank into the water, and {hero} waved at it.",
        "{hero} gave {friend} {a} and told {friend.him} everything.",
        "That night {hero} could still hear the waves in {hero.his} sleep.",
    )


def first_day(s: Story) -> None:
    s.opening()
    s.phrase(
        worry=(
            "[that nobody would talk to {hero.him}|that {hero.he} would get lost|that {hero.he} would not know the"
            " answers]"
        )
    )
    s.let(
        seat=s.pick(("by the window", "in the first row", "at the back")),
        game=s.pick(("marbles", "chess", "catch", "riddles")),
    )
    s.title, s.topic = "The First Day", "the first day of school"
    s.next()
    s.say(
        "It was {hero}'s first day of school. {hero.he} [had hardly slept|had packed {hero.his} bag three times] and"
        " was afraid {worry}.",
        '"[You will see, it will be fine|Just be yourself|Everyone has a first day]," said {elder}.',
        "At school {hero} sat down {seat}. Next to {hero.him} sat {friend}, who was [drawing a ship|biting {friend.his}"
        " nails|looking at {friend.his} shoes|reading a book].",
    )
    s.next()
    s.say(
        '"I am a bit afraid," [whispered {friend}|said {friend} quietly]. "You too?" said {hero}. [They both had to'
        " laugh.|Now {hero} was not afraid any more.]",
        "They shared [their bread|an apple|a piece of cake] and played {game} in the break. [The teacher told a story"
        " about the sea.|They learned to write their names.|They learned a song about the rain.]",
        "When the bell rang, {hero} [did not want to go home|was surprised that it was over already].",
    )
    s.ask("Where did {hero} sit?", "{hero} sat {seat}.")
    s.ask("Who sat next to {hero}?", "{friend} sat next to {hero}.")
    s.ask("What did they play in the break?", "They played {game}.")
    s.ask("What was {hero} afraid of?", "{hero} was afraid {worry}.")
    s.lesson = s.pick(("others are often as shy as oneself", "new things are only new once"))
    s.close(
        '"How was it?" asked {elder}. "I want to go again tomorrow," said {hero}.',
        "On the way home they walked together.",
        "That evening {hero} packed {hero.his} bag again, and this time {hero.he} was looking forward to it.",
    )
