"""Sessions of models whose states can't be cropped: how far an edited text goes back, and that nothing else changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_foundry
from tests.hf import ripple
from tests.hf.tiny_models import ids, shared
from torch_foundry import Session
from torch_foundry.kvcache.snapshots import Snapshots

pytestmark = pytest.mark.usefixtures("quiet")
EVERY = 16
OPTIONS: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False}
MODELS = ["ripple", "qwen3_5", "mistral", "gemma3"]


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with ripple.known():
        yield


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Any:
    name = getattr(request, "param", "ripple")
    return torch_foundry.patch(ripple.build(layers=2) if name == "ripple" else copy.deepcopy(shared(name)))


def again(model: Any, text: torch.Tensor, **options: Any) -> list[list[int]]:
    """Without anything that was read before."""
    return model.generate(text, attention_mask=torch.ones_like(text), **{**OPTIONS, **options}).tolist()


@pytest.mark.parametrize("model", MODELS, indirect=True)
def test_edited_anywhere(model: Any) -> None:
    """Also in an answer of several intervals."""
    session, text = Session(model, **OPTIONS, snapshot_every=EVERY), ids(1, 70)
    for edit in (50, 5, 64, 33, 16, 100, 1):
        whole = session.generate(text, max_new_tokens=50)
        text = torch.cat([whole[:, :edit], 3 + whole[:, edit : edit + 1] % 90, ids(1, 30, seed=edit)], 1)
        assert session.generate(text).tolist() == again(model, text), f"edited at {edit}"
        assert 0 <= edit - session.reused < EVERY + 8, f"edited at {edit}: {session.reused} tokens were there"
        text = ids(1, 70)


@pytest.mark.parametrize("model", MODELS, indirect=True)
def test_a_turn_behind_a_dropped_answer_reads_only_what_is_new(model: Any) -> None:
    session, text, before = Session(model, **OPTIONS), ids(1, 45), 0
    for turn in range(4):
        assert session.generate(text).tolist() == again(model, text)
        assert session.reused == before
        before = text.shape[1] - 1
        text = torch.cat([text[:, :-1], ids(1, 20, seed=turn)], 1)


@torch.no_grad()
@pytest.mark.parametrize("model", ["ripple", "mistral"], indirect=True)
def test_bits_are_those_of_the_first_time(model: Any) -> None:
    session, text, more = Session(model, **OPTIONS, snapshot_every=EVERY), ids(1, 40), ids(1, 7, seed=3)
    for taken in (16, 32, 39):
        session.reset()
        session.generate(text)
        logits = []
        for _ in range(2):
            assert session.cache.snapshots.back(session.cache, taken) == taken == session.cache.get_seq_length()
            logits.append(model(more, past_key_values=session.cache).logits)
        assert torch.equal(*logits)
        fresh = Session(model, **OPTIONS, snapshot_every=EVERY)
        fresh.generate(text[:, : taken + 1], max_new_tokens=1)
        fresh.cache.snapshots.back(fresh.cache, taken)
        assert torch.equal(model(more, past_key_values=fresh.cache).logits, logits[0])


def test_few_are_kept_and_later_ones_are_denser(model: Any) -> None:
    session = Session(model, **OPTIONS, snapshot_every=16, snapshots=5)
    session.generate(ids(1, 400))
    at = list(session.cache.snapshots.stored)
    assert len(at) == 5 and at[-1] >= 399 and at[0] < 200
    state = sum(tensor.nbytes for layer in session.cache.snapshots.stored[at[0]].values() for tensor in layer.values())
    assert session.cache.snapshots.nbytes == 5 * state


def test_what_needs_none_has_none(model: Any) -> None:
    llama = Session(torch_foundry.patch(copy.deepcopy(shared("llama"))), **OPTIONS)
    llama.generate(ids(1, 300))
    stock = Session(ripple.build(layers=2), **OPTIONS)
    for text in (ids(1, 300), ids(1, 290)):  # transformers' own layers are read again
        assert stock.generate(text).tolist() == again(stock.model, text) and not stock.reused
    padded = Session(model, **OPTIONS)
    padded.generate(ids(1, 20), torch.tensor([[0] * 3 + [1] * 17]))
    assert not any(Snapshots.of(session.cache).stored for session in (llama, stock, padded))  # type: ignore[union-attr]
    for name in ("snapshots", "snapshot_every"):
        with pytest.raises(ValueError, match=f"{name}: expected a whole number from 1 on, got 0"):
            Session(model, **{name: 0})


def histories(model: Any, count: int, seed: int) -> int:
    """Texts that go on from edited ones; returns how many tokens were not read again."""
    chance, session, reused = random.Random(seed), Session(model, **OPTIONS, snapshot_every=8, snapshots=6), 0
    text = ids(1, 40, seed=seed)
    for turn in range(count):
        options = {"max_new_tokens": chance.randrange(1, 25)}
        whole = session.generate(text, **options)
        assert whole.tolist() == again(model, text, **options), f"turn {turn} of {seed}"
        reused += session.reused
        cut = whole.shape[1] if chance.random() < 0.4 else chance.randrange(1, whole.shape[1])
        text = torch.cat([whole[:, : min(cut, 90)], ids(1, chance.randrange(1, 12), seed=seed + turn)], 1)
    return reused


@pytest.mark.parametrize("model", ["ripple", "mistral"], indirect=True)
def test_some_histories(model: Any) -> None:
    assert histories(model, 20, 0) > 400


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("model", ["ripple", "mistral"], indirect=True)
def test_many_histories(model: Any) -> None:
    assert all(histories(model, 50, 50 * seed) for seed in range(1, 21))
