"""The simulation of many replicas: the same for the same seed, loses nothing, and tells policies apart."""

from __future__ import annotations

import dataclasses
import math

import pytest

from benchmarks import scale
from benchmarks.scale import AGENT, Machine, Replica, Seen, Session, Simulation, Turn, quantile


def run(slack: float, *, lose: bool = False, replicas: int = 12) -> tuple[Simulation, Seen]:
    simulation = Simulation(replicas, Machine(), slack, load=0.5, seconds=300, seed=1)
    return simulation, simulation.run(lose=lose)


def test_the_same_seed_gives_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for seed in ("3", "3", "4"):
        assert scale.main(["--replicas", "4", "--minutes", "3", "--seed", seed]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != told[2] and len(told[0].splitlines()) == 2 + len(scale.POLICIES)


def test_prefixes_and_queues_together_are_better_than_either() -> None:
    queue, prefix, both = (run(slack, replicas=60)[1] for slack in (-math.inf, math.inf, scale.SLACK))
    assert both.cached / both.prompt > 2 * queue.cached / queue.prompt
    assert quantile(both.first, 0.99) < min(quantile(queue.first, 0.99), quantile(prefix.first, 0.99))
    assert len(queue.first) == len(prefix.first) == len(both.first)  # the same sessions


@pytest.mark.parametrize("slack", scale.POLICIES.values(), ids=scale.POLICIES)
def test_nothing_is_lost_with_a_replica_but_answers_that_had_begun(slack: float) -> None:
    (simulation, lost), (_, whole) = run(slack, lose=True), run(slack)
    assert len(simulation.replicas) == 11 and lost.broken + lost.sent_again > 0 < len(lost.after)
    assert len(lost.first) == len(whole.first) + lost.broken  # each of these is asked for once more
    assert all(not r.open and not r.held and 0 <= r.kept <= r.machine.memory for r in simulation.replicas.values())


def test_a_replica_alone() -> None:
    """Times, cached tokens and memory of one agent's turns, by hand."""
    machine = Machine(prefill=1000, step=0.01, each=0.001, memory=30_000, budget=4096)
    replica, seen, session = Replica("0", machine), Seen(), Session(1, AGENT, "agent 1", 12_000, 3, None)  # type: ignore[arg-type]
    replica.waiting.append(Turn(session, 0.0, 13_000, 10))
    replica.admit(seen)
    ends, now = [], 0.0
    while replica.running:
        now = replica.plan(now)
        replica.end(now, seen)
        ends.append(now)
    assert seen.first == pytest.approx([13.0 + 4 * 0.01]) and ends[-1] == pytest.approx(13.04 + 9 * 0.011)
    assert replica.cache == {"1": 1010, "agent 1": 12_000} and (replica.held, replica.kept) == (0, 13_010)
    replica.waiting += [Turn(dataclasses.replace(session, number=2), 0.0, 13_000, 10), Turn(session, 0.0, 14_000, 10)]
    replica.admit(seen)
    assert [turn.left for turn in replica.running] == [1000, 990] and seen.cached == 12_000 + 13_010
