"""Which policy should route requests to many replicas: a simulation of their steps and caches.

python -m benchmarks.scale --replicas 10,100,1000 --prefill 825 --step 11 --each 1 --memory 270000

Sessions of chats and agents come in bursts. Each turn reads the conversation so far, of up to 60,000 tokens, of which a
replica may have a prefix in its cache. Policies are those of `torch_foundry.serving.routing`: `queue` takes the shorter
of two queues, `prefix` the replica with the longest prefix, `both` that one unless its queue is longer than others by
more than the slack. Half way a replica is lost: what has not begun to stream is sent to others, the rest is reported.
Times of steps are parameters, as `torch-foundry bench` measures them: no time here is measured. The same seed prints
the same table.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch_foundry.serving.routing import SLACK, Router

POLICIES = {"queue": -math.inf, "prefix": math.inf, "both": SLACK}
TITLES = """| replicas | policy | requests | first p50 | p99 | cached | lost: again | broken | then p50 | p99 |
|---|---|---|---|---|---|---|---|---|---|"""
BURST, EVERY, TIMES = (
    60.0,
    300.0,
    4.0,
)  # seconds of a burst, seconds between two beginnings, sessions beside other times


@dataclass(frozen=True)
class Machine:
    """A replica's speed and memory. prefill: tokens a second. step, each: seconds of a step that reads the weights, and
    for each sequence in it. memory: tokens of the cache. budget: tokens of prompts in a step. running: sequences."""

    prefill: float = 825.0
    step: float = 0.011
    each: float = 0.001
    memory: int = 270_000
    budget: int = 2048
    running: int = 32


@dataclass(frozen=True)
class Kind:
    """Sessions of one sort. kinds: different prompts of the system, of `system` tokens. first, grows, answer, turns:
    ranges. think: seconds between an answer and the next turn, in the mean. most: tokens of a conversation."""

    name: str
    kinds: int
    system: int
    first: tuple[int, int]
    grows: tuple[int, int]
    answer: tuple[int, int]
    turns: tuple[int, int]
    think: float
    most: int


AGENT = Kind("agent", 8, 12_000, (200, 4000), (300, 4000), (60, 500), (5, 25), 4.0, 60_000)
CHAT = Kind("chat", 4, 1_000, (50, 800), (30, 400), (100, 600), (2, 12), 30.0, 60_000)


@dataclass(eq=False)
class Session:
    """A conversation. tokens: of it so far."""

    number: int
    kind: Kind
    system: str
    tokens: int
    turns: int
    random: random.Random
    replica: str | None = None  # of the last turn


@dataclass(eq=False)
class Turn:
    """A request. left, answer: tokens of the prompt to read, and of the answer to come. held: of the cache's memory."""

    session: Session
    came: float
    prompt: int
    answer: int
    left: int = 0
    held: int = 0
    streams: bool = False
    after: bool = False  # whether it is the first behind the loss of what answered its session before


@dataclass
class Seen:
    """What came of a run. first: seconds to the first token of each request."""

    first: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    sent_again: int = 0
    broken: int = 0  # answers that had begun on the lost replica
    after: list[float] = field(default_factory=list)  # seconds to the next first token of its sessions

    def summary(self) -> list[str]:
        """Times to the first token, and how much of prompts was cached."""
        share = self.cached / max(1, self.prompt)
        return [f"{quantile(self.first, 0.5):.1f} s", f"{quantile(self.first, 0.99):.1f} s", f"{share:.1%}"]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share is below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


class Replica:
    """An engine: steps that read pieces of prompts and give each running sequence a token."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self.waiting: deque[Turn] = deque()
        self.running: list[Turn] = []
        self.cache: OrderedDict[str, int] = OrderedDict()  # prefix -> its own tokens, the oldest first
        self.held = 0  # tokens of running sequences
        self.kept = 0  # tokens in `cache`
        self.version = 0  # of the step that is under way
        self.began, self.steps, self.long = 0.0, 0, 0.0  # that step, or steps without prompts: when, how many, of what

    @property
    def open(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    def admit(self, seen: Seen) -> None:
        """Let requests run, in order, while there is memory; what the cache has of their prompts is not read again."""
        while self.waiting and len(self.running) < self.machine.running:
            turn = self.waiting[0]
            session, system = turn.session, turn.session.kind.system
            own = self.cache.get(str(session.number))
            shared = self.cache.get(session.system, 0)
            hit = shared and shared + (own or 0)
            need = turn.prompt - system + turn.answer
            free = self.machine.memory - self.held - system
            if need > free and self.running:
                return
            self.waiting.popleft()
            self.kept -= self.cache.pop(str(session.number), 0)
            self.keep(session.system, system)
            self.held += need
            self.shrink()
            turn.held, turn.left = need, max(1, turn.prompt - hit)  # the last token is always read
            seen.prompt += turn.prompt
            seen.cached += turn.prompt - turn.left
            self.running.append(turn)

    def keep(self, key: str, tokens: int) -> None:
        """A prefix, as the newest, of which `tokens` are its own."""
        self.kept += tokens - self.cache.pop(key, 0)
        self.cache[key] = tokens

    def shrink(self) -> None:
        """Forget the oldest prefixes until the rest fits."""
        while self.kept + self.held > self.machine.memory and len(self.cache) > 1:
            self.kept -= self.cache.popitem(last=False)[1]

    def plan(self, now: float) -> float:
        """Begin the next step; when it ends. Steps without prompts are taken together, until one sequence ends."""
        machine, budget = self.machine, self.machine.budget
        read = min(budget, sum(turn.left for turn in self.running))
        decoding = [turn for turn in self.running if not turn.left]
        self.steps = 1 if read or not decoding else min(turn.answer for turn in decoding)
        self.long = machine.step + machine.each * len(decoding) + read / machine.prefill
        self.began, self.version = now, self.version + 1
        return now + self.steps * self.long

    def cut(self, now: float) -> float | None:
        """A request has come: end steps that are taken together with the one under way. When; None: as planned."""
        steps = int((now - self.began) / self.long) + 1
        if steps >= self.steps:
            return None
        self.steps, self.version = steps, self.version + 1
        return self.began + steps * self.long

    def end(self, now: float, seen: Seen) -> list[Turn]:
        """The step has ended; returns the turns that are answered."""
        budget, done = self.machine.budget, []
        for turn in self.running:
            if turn.left:
                read = min(budget, turn.left)
                turn.left, budget = turn.left - read, budget - read
                if turn.left:
                    continue
                turn.streams = True
                seen.first.append(now - turn.came)
                if turn.after:
                    seen.after.append(now - turn.came)
                turn.answer -= 1
            else:
                turn.answer -= self.steps
            if turn.answer <= 0:
                done.append(turn)
        for turn in done:
            self.running.remove(turn)
            self.held -= turn.held
            self.keep(str(turn.session.number), turn.held)
            self.keep(turn.session.system, turn.session.kind.system)
        self.shrink()
        return done


class Simulation:
    """`count` replicas for `seconds`, with `load` sessions a replica and minute. lose: whether one is lost half way."""

    def __init__(self, count: int, machine: Machine, slack: float, load: float, seconds: float, seed: int) -> None:
        self.replicas = {str(i): Replica(str(i), machine) for i in range(count)}
        self.router, self.seen, self.seconds = Router(slack, seed=seed), Seen(), seconds
        self.random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        for when, session in self._sessions(count * load / 60):
            self._at(when, functools.partial(self._turn, session, first=True))

    def run(self, *, lose: bool = False) -> Seen:
        """What comes of it."""
        if lose:
            self._at(self.seconds / 2, self._lose)
        while self._events:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        return self.seen

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _sessions(self, rate: float) -> Iterator[tuple[float, Session]]:
        now, most = 0.0, rate * TIMES
        for number in itertools.count():
            now += self.random.expovariate(most)
            if now > self.seconds:
                return
            if now % EVERY > BURST and self.random.random() > 1 / TIMES:
                continue
            own = random.Random(self.random.random())
            kind = own.choice((AGENT, CHAT))
            system = f"{kind.name} {own.randrange(kind.kinds)}"
            yield now, Session(number, kind, system, kind.system, own.randint(*kind.turns), own)

    def _turn(self, session: Session, now: float, first: bool = False) -> None:
        kind = session.kind
        prompt = session.tokens + session.random.randint(*(kind.first if first else kind.grows))
        answer = session.random.randint(*kind.answer)
        session.tokens, session.turns = prompt + answer, session.turns - 1
        self._send(Turn(session, now, prompt, answer), now)

    def _send(self, turn: Turn, now: float) -> None:
        keys = [turn.session.system, turn.session.number]
        name = self.router.choose(keys, self.replicas, lambda name: self.replicas[name].open)
        self.router.note(keys, name)
        replica = self.replicas[name]
        turn.after = turn.after or (turn.session.replica or name) not in self.replicas
        turn.session.replica = name
        replica.waiting.append(turn)
        if not replica.running:
            self._begin(replica, now)
        elif (end := replica.cut(now)) is not None:
            self._step(replica, end)

    def _begin(self, replica: Replica, now: float) -> None:
        replica.admit(self.seen)
        if replica.running:
            self._step(replica, replica.plan(now))

    def _step(self, replica: Replica, end: float) -> None:
        version = replica.version

        def ended(now: float) -> None:
            if replica.version != version or replica.name not in self.replicas:
                return
            for turn in replica.end(now, self.seen):
                session = turn.session
                if session.turns and session.tokens < session.kind.most:
                    think = session.random.expovariate(1 / session.kind.think)
                    self._at(now + think, functools.partial(self._turn, session))
            self._begin(replica, now)

        self._at(end, ended)

    def _lose(self, now: float) -> None:
        """The busiest replica is gone."""
        lost = max(self.replicas.values(), key=lambda replica: replica.open)
        del self.replicas[lost.name]
        self.router.forget(lost.name)
        for turn in (*lost.running, *lost.waiting):
            if turn.streams:  # its client is told, and asks again
                self.seen.broken += 1
                turn = Turn(turn.session, now, turn.prompt, max(1, turn.answer))
            else:
                self.seen.sent_again += 1
                turn.left = turn.held = 0
            self._send(turn, now)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="scale", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", default="10,100,1000", help="numbers of them (default: 10,100,1000)")
    parser.add_argument("--prefill", type=float, default=Machine.prefill, help="tokens of prompts a second")
    parser.add_argument("--step", type=float, default=1000 * Machine.step, help="ms of a step, whatever is in it")
    parser.add_argument("--each", type=float, default=1000 * Machine.each, help="ms for each sequence in it")
    parser.add_argument("--memory", type=int, default=Machine.memory, help="tokens of a replica's cache")
    parser.add_argument("--load", type=float, default=0.5, help="new sessions a minute for each replica (default: 0.5)")
    parser.add_argument("--minutes", type=float, default=20.0, help="in which they come (default: 20)")
    parser.add_argument("--slack", type=float, default=SLACK, help=f"of `both`, in requests (default: {SLACK})")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    machine = Machine(args.prefill, args.step / 1000, args.each / 1000, args.memory)
    print(TITLES)
    for count in map(int, args.replicas.split(",")):
        for policy, slack in (POLICIES | {"both": args.slack}).items():
            given = (count, machine, slack, args.load, 60 * args.minutes, args.seed)
            seen, lost = Simulation(*given).run(), Simulation(*given).run(lose=count > 1)
            told = [str(count), policy, str(len(seen.first)), *seen.summary(), str(lost.sent_again), str(lost.broken)]
            told += [f"{quantile(lost.after, share):.1f} s" for share in (0.5, 0.99)]
            print("| " + " | ".join(told) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
