"""Rows that come and go: each row has the tokens that a sampler of its own would choose, whoever is beside it."""

from __future__ import annotations

import math

import pytest
import torch
from kit import F16, generator, normal
from torch import Tensor

from tests.sampling.draws import MIXED, drawing
from tests.sampling.test_state import device_of
from torch_foundry import capture, ops
from torch_foundry.sampling import Sampler, Settings
from torch_foundry.sampling.sampler import error_text

V, CAPACITY = 700, 24
KINDS = {
    "greedy": Settings(),
    "greedy, rules": Settings(suppress=(3, 40), eos=(5,), pad=9, min_new_length=12, min_new_tokens=(5,)),
    "greedy, penalties": Settings(repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3),
    "plain": drawing(),
    "cold": drawing(temperature=0.3),
    "top-k": drawing(top_k=5, temperature=1.3),
    "nucleus": drawing(top_p=0.7, min_p=0.02),
    "flat": drawing(temperature=30.0, top_p=0.99),  # more candidates than threadgroup memory takes
    "mixed": drawing(**{k: v for k, v in MIXED.items() if k not in ("no_repeat_ngram", "bad_words")}),
}


def logits_of(row: int, step: int, vocabulary: int = V) -> Tensor:
    """With ties, and infinities that are no tokens' fault."""
    logits = (normal(generator("slots", row, step), vocabulary, dtype=torch.float32, scale=3.0) * 4).round() / 4
    logits[7] = -math.inf
    return logits.to(F16)


def alone(kind: str, row: int, prompt: list[int], steps: int, vocabulary: int = V) -> list[int]:
    """Prompt and tokens of a sampler with one row."""
    ids = torch.tensor([prompt])
    sampler = Sampler(KINDS[kind], ids, vocab_size=vocabulary, capacity=CAPACITY, seed=row + 5, streams=[row * 3])
    for step in range(steps):
        sampler.step(logits_of(row, step, vocabulary)[None])
    return sampler.ids[0, : len(prompt) + steps].tolist()


def prompt_of(row: int) -> list[int]:
    return torch.randint(8, V, (2 + row % 4,), generator=generator("prompt", row)).tolist()


def fill(slots: Sampler, place: int, kind: str, row: int, text: list[int] | None = None) -> None:
    prompt = prompt_of(row)
    slots.fill(place, KINDS[kind], text or prompt, seed=row + 5, stream=row * 3, prompt=len(prompt))


def test_tokens_of_a_prompt_that_are_ignored_are_not_penalised() -> None:
    slots = Sampler.empty(1, capacity=CAPACITY, vocab_size=V, device="cpu")
    slots.fill(0, Settings(repetition_penalty=2.0, repetition_ignore=2), [5, 6, 7], seed=0, prompt=3)
    logits = torch.zeros(1, V)
    logits[0, 5], logits[0, 7] = 1.0, 1.5
    slots.step(logits)
    assert int(slots.token[0]) == 5  # 1.5 / 2 = 0.75 is less


@pytest.mark.parametrize("vocabulary", [V, 3000])
def test_rows_do_not_depend_on_their_company(vocabulary: int) -> None:
    """All kinds side by side; then every second one; then each as a batch of its own."""
    slots = Sampler.empty(len(KINDS) + 2, capacity=CAPACITY, vocab_size=vocabulary, device="cpu")
    places = dict(zip(KINDS, range(1, len(KINDS) + 1), strict=True))
    for kind, place in places.items():
        fill(slots, place, kind, place)
    for step in range(4):
        slots.step(torch.stack([logits_of(row, step, vocabulary) for row in range(len(KINDS) + 2)]))
    for place in places.values():
        if place % 2:
            slots.clear(place)
    slots.step(torch.stack([logits_of(row, 4, vocabulary) for row in range(len(KINDS) + 2)]))
    for kind, place in places.items():
        steps = 4 if place % 2 else 5
        if place % 2 == 0:
            slots.step(logits_of(place, 5, vocabulary)[None], rows=[place])
            steps = 6
        expected = alone(kind, place, prompt_of(place), steps, vocabulary)
        assert slots.ids[place, : len(expected)].tolist() == expected, kind
        assert steps == 4 or int(slots.token[place]) == expected[-1]
        assert steps == 4 or int(slots.length[place]) == len(expected)
    assert slots.ids[0].tolist() == [0] * CAPACITY, "a row that is nobody's stays as it is"
    assert slots.finished[[0, 1]].tolist() == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_request_goes_on(kind: str) -> None:
    """In another row, with its tokens, penalties and random numbers."""
    expected = alone(kind, 2, prompt_of(2), 8)
    slots = Sampler.empty(3, capacity=CAPACITY, vocab_size=V, device="cpu")
    fill(slots, 2, kind, 2)
    for step in range(3):
        slots.step(logits_of(2, step)[None], rows=[2])
    text = slots.ids[2, : len(prompt_of(2)) + 3].tolist()
    slots.clear(2)
    fill(slots, 1, "nucleus", 7)
    fill(slots, 0, kind, 2, text)
    for step in range(3, 8):
        slots.step(torch.stack([logits_of(2, step), logits_of(7, step)]), rows=[0, 1])
    assert slots.ids[0, : len(expected)].tolist() == expected


def test_a_graph_serves_requests_of_one_structure(request: pytest.FixtureRequest) -> None:
    device = device_of(request)
    slots = Sampler.empty(2, capacity=CAPACITY, vocab_size=V, device=device)
    fill(slots, 0, "top-k", 0)
    fill(slots, 1, "greedy", 1)
    logits = torch.zeros(2, V, dtype=F16, device=device)
    structure = slots.flags()
    with capture() as graph:
        slots.step(logits)
    fill(slots, 0, "greedy", 4)
    fill(slots, 1, "nucleus", 5)
    assert slots.flags() == structure != slots.flags([0])
    for step in range(5):
        logits.copy_(torch.stack([logits_of(4, step), logits_of(5, step)]))
        graph.replay()
    for place, (kind, row) in enumerate((("greedy", 4), ("nucleus", 5))):
        expected = alone(kind, row, prompt_of(row), 5)
        assert slots.ids[place, : len(expected)].tolist() == expected


@pytest.mark.parametrize("at_once", [4, 64])
def test_what_would_be_chosen(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tokens of rows at once are those of steps, and the rows are as they were."""
    monkeypatch.setattr("torch_foundry.sampling.sampler.PEEKED", at_once * (8 * CAPACITY + V))
    calls, sample = [], ops.sample
    monkeypatch.setattr(ops, "sample", lambda x, *given, **named: calls.append(len(x)) or sample(x, *given, **named))
    kinds = ("greedy", "nucleus", "plain")
    slots = Sampler.empty(4, capacity=CAPACITY, vocab_size=V, device="cpu")
    for place, kind in enumerate(kinds):
        fill(slots, place, kind, place)
    texts = [alone(kind, place, prompt_of(place), 4) for place, kind in enumerate(kinds)]
    before = {name: t.clone() for name, t in vars(slots).items() if isinstance(t, torch.Tensor)}
    for rows in ([0] * 4, [2, 2, 1, 0, 1, 2], [1]):
        steps = [rows[:i].count(row) for i, row in enumerate(rows)]
        lengths = [len(prompt_of(row)) + step for row, step in zip(rows, steps, strict=True)]
        logits = torch.stack([logits_of(row, step) for row, step in zip(rows, steps, strict=True)])
        tokens, errors = slots.peek(logits, rows, lengths)
        assert tokens.tolist() == [texts[row][length] for row, length in zip(rows, lengths, strict=True)]
        assert not errors.any()
    assert max(calls) == min(at_once, 6), "memory is bounded"
    assert all(torch.equal(t, getattr(slots, name)) for name, t in before.items())
    slots.seek([len(prompt_of(1)) + 2, len(prompt_of(0)) + 3], rows=[1, 0])
    slots.step(torch.stack([logits_of(0, 3), logits_of(1, 2)]), rows=[0, 1])
    assert slots.token[:2, 0].tolist() == [texts[0][-1], texts[1][len(prompt_of(1)) + 2]]
    fill(slots, 3, "greedy, penalties", 3)
    with pytest.raises(ValueError, match="depends on the tokens before it"):
        slots.peek(logits_of(3, 0)[None], [3], [5])


def test_errors_are_the_rows_own() -> None:
    slots = Sampler.empty(3, capacity=CAPACITY, vocab_size=V, device="cpu")
    for place, kind in enumerate(("greedy", "plain", "greedy")):
        fill(slots, place, kind, place)
    logits = torch.stack([logits_of(row, 0) for row in range(3)])
    logits[0, 3], logits[1, 3], logits[2, 3] = math.inf, math.inf, math.nan
    slots.step(logits)
    assert int(slots.token[0]) == 3, "what is infinite can be the largest"
    assert slots.finished.tolist() == [0, 1, 1]
    none, infinite, nan = slots.errors.tolist()
    assert not none and "an infinite score can't be drawn from" in error_text(infinite) and "NaN" in error_text(nan)
    with pytest.raises(RuntimeError, match="row 1: an infinite score can't be drawn from"):
        slots.check()


def test_what_cannot_be_filled() -> None:
    slots = Sampler.empty(1, capacity=4, vocab_size=V, device="cpu")
    for text, message in (
        ([], "expected 1 to 4 tokens, got 0"),
        ([1] * 5, "got 5"),
        ([1, V], f"a vocabulary of {V}"),
        ([-1], f"a vocabulary of {V}"),
    ):
        with pytest.raises(ValueError, match=message):
            slots.fill(0, Settings(), text, seed=0)
    with pytest.raises(ValueError, match="a batch of their own"):
        slots.fill(0, Settings(no_repeat_ngram=2), [1], seed=0)
    assert slots.settings == [None]
    logits = torch.zeros(1, V)
    with pytest.raises(RuntimeError, match="params"):
        torch.ops.torch_foundry.sample(
            logits, slots.params.repeat(2, 1), slots.rules, None, None, None, slots.start, slots.streams, slots.length,
            slots.finished, slots.errors, slots.ids, slots.token, None, False, False, False,
        )  # fmt: skip
