"""A model with recurrent layers (`tests/hf/ripple.py`) in an engine: pooled states, preemption, prefixes, drafts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_foundry
from tests.hf import ripple
from tests.hf.ripple import WIDTH
from tests.hf.tiny_models import ids
from torch_foundry.core.memory import DoesNotFit
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.engine.memory import memory_of

LENGTHS = (3, 11, 45, 100, 16, 33)
PROMPTS = [ids(1, n, seed=n)[0].tolist() for n in LENGTHS]
NEW = 24
GREEDY = SamplingParams(max_tokens=NEW, temperature=0)


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with ripple.known():
        yield


@pytest.fixture(scope="module")
def stock() -> Any:
    return ripple.build()


@pytest.fixture
def model(stock: Any) -> Any:
    return torch_foundry.patch(copy.deepcopy(stock))


@pytest.fixture(scope="module")
def expected(stock: Any) -> list[list[int]]:
    """What stock code answers."""
    return [answer(stock, prompt) for prompt in PROMPTS]


def answer(stock: Any, prompt: list[int]) -> list[int]:
    text = stock.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)
    return text[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "options",
    [{"ahead": 2**60}, {"snapshots": 2**60}, {"snapshots": 2**60, "snapshot_format": "q8_0"}, {"cache_bytes": 2**60}],
    ids=str,
)
def test_states_that_are_too_many_for_any_machine(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(
        DoesNotFit, match=r"no room for 4 requests with \d+ each .* an engine has at most 16777216 states"
    ):
        build(model, **options)


def build(model: Any, **options: Any) -> Engine:
    return Engine(model, **{"requests": 4, "budget": 32, "blocks": 64, **options})


def run(engine: Engine, prompts: list[list[int]] = PROMPTS, **params: Any) -> list[list[int]]:
    streams = [
        engine.submit(prompt, GREEDY if not params else SamplingParams(max_tokens=NEW, **params)) for prompt in prompts
    ]
    engine.run()
    manager = engine.cache.manager
    manager.check()
    manager.states.check()
    assert not manager.states._rings, "an answered request has states"
    return [stream.tokens for stream in streams]


@pytest.mark.parametrize(
    "options",
    [{}, {"ahead": 1}, {"ahead": 7}, {"batch_invariant": True}, {"requests": 1}, {"budget": 200}, {"block_size": 32}],
    ids=str,
)
def test_answers_are_those_of_stock_code(model: Any, expected: list[list[int]], options: dict[str, Any]) -> None:
    engine = build(model, **options)
    for _ in range(2):  # the second time from snapshots, with graphs
        assert run(engine) == expected
    plan = model.model.decoder_plan()
    assert plan.captured and not plan.eager and plan.steps > 2 * plan.captured


def test_a_prefix_goes_on_from_its_state(stock: Any, model: Any) -> None:
    engine, start = build(model), PROMPTS[3]
    run(engine, [start])
    for behind in (ids(1, 9, seed=1)[0].tolist(), ids(1, 40, seed=2)[0].tolist()):
        for kept, prompt in ((96, start + behind), (80, start[:90] + behind), (0, behind)):
            stream = engine.submit(prompt, GREEDY)
            engine.run()
            assert stream.tokens == answer(stock, prompt)
            # chunks of a prompt end where the budget does: at 32 and 64 as well; then a prompt of this test is kept
            assert stream.sequence.reused <= kept and (kept != 96 or stream.sequence.reused == 96), (
                stream.sequence.reused
            )


def test_a_conversation_goes_on_behind_its_last_answer(stock: Any, model: Any) -> None:
    engine, text = build(model), PROMPTS[1]
    for turn in range(3):
        stream = engine.submit(text, GREEDY)
        engine.run()
        assert stream.tokens == answer(stock, text)
        assert turn == 0 or stream.sequence.reused >= len(text) - 5 - 16, (
            "snapshots are taken while answers are generated"
        )
        text = text + stream.tokens + ids(1, 5, seed=turn)[0].tolist()


def test_other_salts_share_no_state(model: Any) -> None:
    engine = build(model)
    streams = []
    for salt in (b"a", b"b", b"a"):
        streams.append(engine.submit(PROMPTS[3], GREEDY, salt=salt))
        engine.run()
    assert [stream.sequence.reused for stream in streams] == [0, 0, 96]
    assert streams[0].tokens == streams[1].tokens == streams[2].tokens


@pytest.mark.parametrize("snapshots", [0, 1, 3])
def test_snapshots_are_bounded(model: Any, expected: list[list[int]], snapshots: int) -> None:
    engine = build(model, snapshots=snapshots)
    states = engine.cache.manager.states
    assert states.slots == 4 * 5 + snapshots
    pools = [tensor for layer in engine.cache.layers[::2] for tensor in layer.memory]
    assert all(len(pool) == states.slots for pool in pools)
    for _ in range(2):
        assert run(engine) == expected


@pytest.mark.parametrize("blocks", [10, 14, 18])
def test_preempted_requests_compute_their_state_again(model: Any, stock: Any, blocks: int) -> None:
    prompts = [ids(1, 40, seed=i)[0].tolist() for i in range(4)]
    engine = build(model, blocks=blocks)
    streams = [engine.submit(prompt, GREEDY) for prompt in prompts]
    engine.run()
    assert [stream.tokens for stream in streams] == [answer(stock, prompt) for prompt in prompts]
    assert blocks > 14 or any(stream.sequence.preempted for stream in streams)


@pytest.mark.parametrize("drafts", ["lookup", "per request", "wrong model", "same model"])
def test_rejected_drafts_leave_no_trace(stock: Any, model: Any, expected: list[list[int]], drafts: str) -> None:
    options: dict[str, Any] = {}
    params: dict[str, Any] = {"temperature": 0}
    if drafts == "lookup":
        options["prompt_lookup_num_tokens"] = 7
    elif drafts == "per request":  # an engine that was not made for them keeps fewer states
        params["prompt_lookup_num_tokens"] = 7
    else:
        options["assistant_model"] = torch_foundry.patch(
            copy.deepcopy(stock) if drafts == "same model" else ripple.build(layers=2)
        )
    engine = build(model, **options)
    for _ in range(2):
        assert run(engine, **params) == expected
    assert engine.speculation.drafted and (drafts != "same model" or engine.speculation.accepted), str(
        engine.speculation
    )


def test_sampled_answers_do_not_depend_on_company_or_drafts(model: Any) -> None:
    params = {"temperature": 0.9, "top_k": 30, "seed": 5}
    alone = [run(build(model, requests=1), [prompt], **params)[0] for prompt in PROMPTS]
    assert run(build(model), **params) == alone
    assert run(build(model, prompt_lookup_num_tokens=4), **params) == alone


@pytest.mark.parametrize("at", [1, 3, 6, 9])
def test_a_step_that_fails_is_repeated(model: Any, expected: list[list[int]], monkeypatch: Any, at: int) -> None:
    engine, calls = build(model), 0
    streams = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
    scheduler, commit = engine.scheduler, engine.scheduler.commit

    def fails(*committed: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise RuntimeError("after the device has done its part")
        commit(*committed)

    monkeypatch.setattr(scheduler, "commit", fails)
    with pytest.raises(RuntimeError, match="its part"):
        engine.run()
    engine.run()
    assert [stream.tokens for stream in streams] == expected


def test_a_budget_in_bytes(model: Any, expected: list[list[int]]) -> None:
    """Of blocks of the two layers with attention, and states of the other two."""
    config = model.config
    block = 16 * 2 * 2 * config.num_key_value_heads * config.head_dim * 4
    state = 2 * config.hidden_size * (WIDTH + 1) * 4
    for options, blocks, snapshots in (
        ({"snapshot_every": 64}, 50, 12),
        ({"snapshot_every": 1000}, 52, 1),
        ({"blocks": 20}, 20, (52 * block + state - 20 * block) // state),
        ({"snapshots": 5}, 51, 5),
    ):
        engine = build(model, **{"blocks": None, "cache_bytes": 52 * block + state, **options})
        assert (engine.cache.manager.blocks, engine.snapshots) == (blocks, snapshots), str(options)
        pages, states = memory_of(engine.cache)
        assert pages == blocks * block and states == (4 * 5 + snapshots) * state
        assert pages + snapshots * state <= 52 * block + state
    assert run(engine) == expected
    for options in ({"cache_bytes": block + state - 1}, {"cache_bytes": 9 * block, "blocks": 9}):
        with pytest.raises(ValueError, match=f"one of each: .* 16 tokens takes {block}, .* states {state}"):
            build(model, **{"blocks": None, **options})
    with pytest.raises(ValueError, match="two of them at most"):
        build(model, cache_bytes=10**6, snapshots=3)
    with pytest.raises(ValueError, match="snapshot_every: expected a whole number from 16 on, got 8"):
        build(model, snapshot_every=8)
