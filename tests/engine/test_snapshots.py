"""Which states an engine keeps: how much of a prompt is read again, what is given up first, and that no state is
another prefix's. A scheduler and its blocks run on a pretended device: a state is a hash of the tokens before it."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest

from torch_foundry.engine.scheduler import Scheduler
from torch_foundry.engine.sequence import ScheduledSequence, Sequence
from torch_foundry.kvcache.block_manager import BlockManager
from torch_foundry.kvcache.packed_state_tables import PackedStateTables
from torch_foundry.kvcache.state_tables import StateTables

SIZE = 16  # of a block


class Pretended:
    """What an engine does, but for the model: the next token is a function of the state."""

    def __init__(
        self, *, blocks: int, snapshots: int, every: int, requests: int = 4, budget: int = 64, packed: bool = False
    ) -> None:
        kind: Any = partial(PackedStateTables, format="q8_0") if packed else StateTables
        self.tables = kind(requests, 5, snapshots, every=every)
        self.places = [0] * self.tables.places
        self.manager = BlockManager(blocks, SIZE, states=self.tables)
        self.scheduler = Scheduler(self.manager, running=requests, budget=budget)
        self.slots = [0] * self.tables.slots
        self.pages = [0] * blocks * SIZE  # states as well: the same tokens behind others have other keys
        self.behind: dict[int, int] = {}  # the state that a sequence goes on from
        self.read = 0  # tokens, in all
        self.chance = random.Random(0)

    def submit(self, prompt: list[int], new: int = 8) -> Sequence:
        sequence = Sequence(list(prompt), len(prompt), len(prompt) + new)
        self.scheduler.add(sequence)
        return sequence

    def run(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        batch = self.scheduler.next()
        single = batch and all(part.wanted == len(part.ids) == 1 for part in batch)
        left = max((part.sequence.limit - len(part.sequence.tokens) for part in batch), default=1)
        steps = min(self.chance.randrange(1, 5), left) if single else 1
        if steps > 1 and not self.scheduler.room(batch, steps):
            steps = 1
        if isinstance(self.tables, PackedStateTables):
            for pack, source, target in self.tables.moves:
                given, taken = (self.slots, self.places) if pack else (self.places, self.slots)
                taken[target] = given[source]
            self.tables.moves = []
        for part in batch:
            for old, new in part.copies:
                self.pages[new * SIZE : (new + 1) * SIZE] = self.pages[old * SIZE : (old + 1) * SIZE]
        for part in batch:
            self.commit(part, steps)
        return bool(batch)

    def commit(self, part: ScheduledSequence, steps: int) -> None:
        """Compute a part, and `steps` - 1 tokens more."""
        sequence, table = part.sequence, self.manager.table(part.id)
        count, *ring = self.tables.row(part.id)
        state = self.slots[ring[count % 5]] if count else 0
        if part.start == sequence.reused:
            stored = [self.pages[table[i // SIZE] * SIZE + i % SIZE] for i in range(part.start)]
            self.behind[part.id] = ([0, *stored])[-1]
            assert [0, *stored] == states(sequence.tokens[: part.start]), "other keys than those of the tokens before"
        assert state == self.behind[part.id], "another state than that of the tokens before"
        ids = list(part.ids)
        alone = len(ids) < 5
        for t in range(len(ids) + steps - 1):
            if t == len(ids):
                ids.append(state % 50)
            state = hash((state, ids[t]))
            at = part.start + t
            self.pages[table[at // SIZE] * SIZE + at % SIZE] = state
            if alone or t + 1 == len(ids):
                self.slots[ring[(count + 1 + (t if alone else 0)) % 5]] = state
        new = [*ids[len(part.ids) :], state % 50] if part.wanted else []
        new = new[: sequence.limit - len(sequence.tokens)]
        sequence.tokens += new
        counted = part.ids + new[:-1]
        self.read += len(counted)
        self.behind[part.id] = self.pages[table[(at := part.start + len(counted) - 1) // SIZE] * SIZE + at % SIZE]
        self.scheduler.commit(part, counted)
        if len(sequence.tokens) >= sequence.limit:
            self.scheduler.remove(sequence)


def states(tokens: list[int]) -> list[int]:
    """The state before each token, and behind the last."""
    return list(itertools.accumulate(tokens, lambda state, token: hash((state, token)), initial=0))


def answered(prompt: list[int], new: int = 8) -> list[int]:
    """The prompt and its answer, without anything that was read before."""
    text, state = list(prompt), states(prompt)[-1]
    for _ in range(new):
        text.append(state % 50)
        state = hash((state, text[-1]))
    return text


def words(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(50) for _ in range(count)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("budget", [48, 64, 70, 300])
@pytest.mark.parametrize("every", [16, 64, 100])
def test_an_edited_text_is_read_again_from_one_interval_before(every: int, budget: int, packed: bool) -> None:
    engine, text = Pretended(blocks=200, snapshots=200, every=every, budget=budget, packed=packed), words(500, 0)
    engine.run()
    assert engine.submit(text[:20]) and engine.submit(words(5, 1), 60)  # another one takes its share of the budget
    whole = engine.submit(text, 90)
    engine.run()
    for edit in range(0, 589, 7):
        again = engine.submit([*whole.tokens[:edit], 60, 61], 1)
        engine.run()
        assert again.tokens == answered(again.tokens[:-1], 1)
        assert edit - again.reused < every + SIZE, f"edited at {edit}"


@pytest.mark.parametrize("every", [32, 256])
def test_a_turn_goes_on_behind_the_prompt_or_the_answer_before(every: int) -> None:
    engine = Pretended(blocks=200, snapshots=30, every=every)
    for length in (300, 304, 315):
        first = engine.submit(words(length, length), 100)
        engine.run()
        for kept in (length + 1, length + 99):  # a template that drops the answer; one that keeps it
            turn = engine.submit([*first.tokens[:kept], *words(20, 5)])
            engine.run()
            assert turn.reused == kept // SIZE * SIZE


def test_snapshots_of_an_answer_are_few() -> None:
    engine = Pretended(blocks=200, snapshots=50, every=64)
    engine.submit(words(100, 0), 1000)
    engine.run()
    ends = sorted(entry.tokens for entry in engine.tables._snapshots.values())
    assert ends == [64, 96, 160, 224, *range(288, 1100, 64), 1088][: len(ends)] and ends[-1] == 1088, str(ends)


def test_the_end_of_a_prefix_goes_before_its_beginning_and_the_oldest_prefix_first() -> None:
    engine = Pretended(blocks=200, snapshots=5, every=64, requests=1)  # and the five slots of a request
    texts = [words(64 * 5 + 1, seed) for seed in range(3)]

    def answer(text: list[int]) -> int:
        """What of a text was not read again."""
        turn = engine.submit(text, 1)
        engine.run()
        engine.tables.check()
        return turn.reused

    for text in (texts[0], texts[1]):
        assert answer(text) == 0
    assert answer([*texts[1], 7]) == 320, "of the prefix that was used last all are there"
    assert answer([*texts[0], 7]) == 192, "of the other one its end is gone"
    assert answer(texts[2]) == 0  # nobody's, so the one that was used longest ago makes room
    assert [answer([*texts[i], 8]) for i in (2, 0, 1)] == [320, 192, 0], "there are ten slots"
    one = Pretended(blocks=200, snapshots=6, every=64, requests=1)
    one.submit(words(900, 0), 1)
    one.run()
    ends = {entry.tokens for entry in one.tables._snapshots.values()}
    gone = [tokens for tokens in range(64, 900, 64) if tokens not in ends]
    assert gone[0] > 128 and gone[-1] < 896 and gone == [*range(gone[0], gone[-1] + 1, 64)], "beginning and end stay"


TURNS, EVERY = 20, 32


@pytest.mark.parametrize("conversations", [1, 8])
def test_an_agents_trace(conversations: int) -> None:
    """Each turn brings a tool's result before the last words of all that was said so far, which stay the last ones.

    A 32nd of an agent's lengths: a shared system prompt of 12 K, results of 2 to 8 K tokens.
    """
    chance, system = random.Random(conversations), words(375, 0)
    engine = Pretended(blocks=2000, snapshots=2000, every=EVERY, requests=8, budget=EVERY)
    texts = [[*system, *words(9, 100 + i)] for i in range(conversations)]
    said: list[list[int]] = [[] for _ in texts]
    for turn in range(TURNS):
        before = engine.read
        turns = [engine.submit(text) for text in texts]
        engine.run()
        new = 0
        for i, (sequence, text) in enumerate(zip(turns, texts, strict=True)):
            shared = len(system) if not turn and i else common(said[i], text)
            assert shared - sequence.reused <= EVERY, f"turn {turn} of {i}"
            new += len(sequence.tokens) - 1 - shared
            said[i] = sequence.tokens
            end = len(sequence.tokens) - 12  # what stays behind the tool's result
            texts[i] = [*said[i][:end], *words(chance.randrange(62, 250), turn * 8 + i), *said[i][end:]]
        assert engine.read - before - new <= EVERY * conversations, "tokens read again"
        assert all(sequence.preempted == 0 for sequence in turns)
    engine.tables.check()


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("packed", [False, True])
def test_preempted_requests_go_on_from_snapshots(packed: bool) -> None:
    """What others have not taken of the pages of one is not computed again."""
    engine = Pretended(blocks=60, snapshots=40, every=32, packed=packed)
    sequences = [engine.submit(words(200, seed), 60) for seed in range(4)]
    engine.run()
    assert [sequence.tokens for sequence in sequences] == [answered(words(200, seed), 60) for seed in range(4)]
    lost = sum(sequence.preempted for sequence in sequences)
    assert lost and engine.read - 4 * 259 < 200, f"{engine.read - 4 * 259} tokens read again"


def edited(chance: random.Random, texts: list[list[int]]) -> list[int]:
    """A prompt that begins as one before did, up to anywhere, and goes on otherwise."""
    text = chance.choice(texts)
    return [*text[: chance.randrange(len(text) + 1)], *(chance.randrange(50) for _ in range(chance.randrange(1, 60)))]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_random_histories(seed: int, packed: bool) -> None:
    """With cancels, preemptions and little room: each state and key is that of the tokens before it; nothing leaks."""
    chance = random.Random(seed)
    every, budget = chance.choice([16, 32, 100]), chance.choice([8, 40, 200])
    blocks = chance.choice([20, 40, 90])
    engine = Pretended(blocks=blocks, snapshots=seed % 7, every=every, budget=budget, packed=packed)
    texts, running, preempted = [words(90, seed)], list[tuple[Sequence, list[int]]](), 0
    for _ in range(150):
        prompt, new = edited(chance, texts)[:200], chance.randrange(1, 60)
        running.append((engine.submit(prompt, new), answered(prompt, new)))
        for _ in range(chance.randrange(12)):
            engine.step()
        if chance.random() < 0.2:
            sequence, _ = running.pop(chance.randrange(len(running)))
            if len(sequence.tokens) < sequence.limit:
                engine.scheduler.remove(sequence)
        if chance.random() < 0.3:
            engine.run()
        engine.manager.check()
        engine.tables.check()
        for sequence, expected in running:
            assert sequence.tokens == expected[: len(sequence.tokens)]
            preempted += sequence.preempted
        texts = [sequence.tokens for sequence, _ in running[-6:]] or texts
        running = [each for each in running if len(each[0].tokens) < each[0].limit]
    engine.run()
    engine.manager.forget()
    assert preempted or engine.manager.blocks > 20
    assert len(engine.manager._free) == engine.manager.blocks and len(engine.tables._free) == engine.tables.slots
