"""Plots of special days: illness, a stage, snow, stars, the sea, paint, a dragon, a first day, working together."""

from __future__ import annotations

from . import facts, words
from .story import Story


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


PLOTS = [
    sick_friend,
    stage_fright,
    snow_day,
    star_night,
    first_sea,
    painting,
    lonely_giant,
    lonely_giant,
    together,
    first_day,
]
