"""A model's own MTP head drafts for the requests of an engine: no token changes, and no block is left behind."""

from __future__ import annotations

import copy
import dataclasses
import gc
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from tests.engine.test_drafting import GREEDY, answers, ended, prompts, steps_of_a_second
from tests.engine.test_engine import KINDS
from tests.generation.test_mtp import ALONE, folder, loaded, reference
from tests.hf.tiny_models import build, ids
from torch_foundry import LoadError
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.engine.mtp import PagedMTPDrafter
from torch_foundry.generation.draft_length import DraftLengthController

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(autouse=True)
def always_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of_a_second(monkeypatch)
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: True)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(folder(tmp_path_factory.mktemp("hybrid"), "qwen3_5"))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next", "deepseek_v3", "glm4_moe"])
def test_the_head_changes_no_token(family: str, tmp_path: Path) -> None:
    """With few blocks, so requests are preempted, prompts in pieces and shared beginnings; greedy and drawn."""
    model = loaded(folder(tmp_path, family))
    requests = [(ids(1, 30, seed=i)[0].tolist(), GREEDY) for i in range(3)]  # for whose ends there are no blocks
    requests += [(prompt, KINDS[i % len(KINDS)]) for i, prompt in enumerate(prompts())]
    expected = answers(model, requests)
    run = Engine(model, requests=4, budget=40, blocks=8, use_mtp=True)
    streams = [run.submit(*request) for request in requests]
    ended(run)
    assert [s.tokens for s in streams] == expected
    assert 10 < run.speculation.accepted < run.speculation.drafted, str(run.speculation)
    assert sum(s.sequence.preempted for s in streams) and not run.speculation.stopped


@pytest.mark.parametrize("kv_cache", ["f32", "q8_0"])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_head_that_says_what_the_model_says_is_always_right(
    batch_invariant: bool, kv_cache: str, tmp_path: Path
) -> None:
    """Layers that add nothing: what comes next depends on the newest token alone."""
    model = loaded(folder(tmp_path, "qwen3_5", 0.0, fc_weight=ALONE))
    told: dict[str, Any] = {"batch_invariant": batch_invariant, "kv_cache": kv_cache}
    for params in (GREEDY, SamplingParams(max_tokens=24, seed=3, temperature=0.8, top_k=20)):
        run = Engine(model, requests=2, use_mtp=True, **told)
        streams = [run.submit(prompt, params) for prompt in prompts(3)]
        ended(run)
        assert [s.tokens for s in streams] == answers(model, [(p, params) for p in prompts(3)], **told)
        assert run.speculation.accepted == run.speculation.drafted > 30, str(run.speculation)


@pytest.mark.parametrize("family, factor", [("qwen3_5", 0.3), ("deepseek_v3", 0.1)])
def test_drafts_are_those_of_transformers_module(
    family: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind prompts in pieces, steps ahead, a prefix of others, and drafts that were accepted and that were not."""
    reference_of = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(reference_of, "MtpModel"):
        pytest.skip("this transformers has no module for MTP")
    model, made = loaded(folder(tmp_path, family, factor, 8.0)), list[tuple[int, list[int], list[int]]]()
    propose = PagedMTPDrafter.propose

    def recorded(self: Any, sequences: Any, count: int) -> None:
        propose(self, sequences, count)
        for own in sequences:
            first = self._known[own.sequence.id].first if own.drafts else 0
            made.append((first, list(own.sequence.tokens), list(own.drafts)))

    monkeypatch.setattr(PagedMTPDrafter, "propose", recorded)
    monkeypatch.setattr("torch_foundry.engine.mtp.READ_AT_ONCE", 16)
    run = Engine(model, requests=2, budget=24, use_mtp=True)
    shared = ids(1, 41, seed=4)[0].tolist()
    streams = [run.submit(shared + more, GREEDY) for more in ([5], [6, 7, 8], [5, 9] * 20)]
    ended(run)
    assert all(stream.sequence.reused for stream in streams[2:])
    assert 0 < run.speculation.accepted < run.speculation.drafted, str(run.speculation)
    made = [each for each in made if each[2]]
    assert len(made) > 8 and not any(first for first, *_ in made)
    for _, text, drafts in made:
        assert drafts == reference(tmp_path, text, len(drafts))


def test_a_prefix_that_only_the_model_has(hybrid: Any) -> None:
    """The head begins behind it: its pages are forgotten."""
    run, text = Engine(hybrid, use_mtp=True, snapshot_every=16), ids(1, 70, seed=5)[0].tolist()
    first = run.submit(text, GREEDY)
    run.run()
    run._drafting.model.cache.manager.forget()  # type: ignore[union-attr]
    second = run.submit(text, GREEDY)
    while not second.sequence.speculation.drafted:
        run.step()
    (known,) = run._drafting.model._known.values()  # type: ignore[union-attr]
    assert known.first == second.sequence.reused > 0
    ended(run)
    assert second.tokens == first.tokens


def test_under_changing_load(hybrid: Any) -> None:
    """Greedy, drawn, with penalties, with lookup instead, with none, cancels, few blocks, steps ahead."""
    requests = [(p, KINDS[i % len(KINDS)]) for i, p in enumerate(prompts(12))]
    expected = [answers(hybrid, [request])[0] for request in requests]
    accepted = 0
    for seed in range(2):
        chance = random.Random(seed)
        run = Engine(hybrid, requests=5, budget=chance.choice([12, 60]), blocks=14, use_mtp=True, ahead=1 + 3 * seed)
        streams: dict[int, Any] = {}
        order = chance.sample(range(len(requests)), len(requests))
        while order or not run.idle:
            for _ in range(chance.choice([0, 0, 1, 3])):
                if order:
                    i = order.pop()
                    params = dataclasses.replace(
                        requests[i][1], prompt_lookup_num_tokens=chance.choice([None, None, 0, 7])
                    )
                    streams[i] = run.submit(requests[i][0], params)
            if chance.random() < 0.1:
                victim = run.submit(prompts()[chance.randrange(8)], GREEDY)
                for _ in range(chance.randrange(6)):
                    run.step()
                victim.cancel()
            run.step()
            run.cache.manager.check()
        ended(run)
        assert [streams[i].tokens for i in range(len(requests))] == expected
        assert not run._drafting.model._known  # type: ignore[union-attr]
        accepted += run.speculation.accepted
    assert accepted > 8


def test_a_failing_step_leaves_everything_as_it_was(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the n-th forward pass, of the head too; the next step goes on, with drafts again."""
    requests = [(prompt, GREEDY) for prompt in prompts(3)]
    expected = answers(hybrid, requests)
    for n in range(0, 9, 2):
        run, calls = Engine(hybrid, requests=3, blocks=14, use_mtp=True), [0]
        streams = [run.submit(*request) for request in requests]

        def failing(forward: Any, calls: list[int] = calls, n: int = n) -> Any:
            def fails(*args: Any, **given: Any) -> Any:
                calls[0] += 1
                if calls[0] == n + 1:
                    raise torch.OutOfMemoryError("no memory")
                return forward(*args, **given)

            fails.go_on = forward.go_on  # type: ignore[attr-defined]
            return fails

        monkeypatch.setattr(run._steps, "forward", failing(run._steps.forward))
        head = run._drafting.model
        monkeypatch.setattr(head, "_forward", failing(head._forward))  # type: ignore[union-attr]
        with pytest.raises(torch.OutOfMemoryError):
            run.run()
        ended(run)
        assert [s.tokens for s in streams] == expected and run.speculation.accepted


def test_it_switches_itself_off(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: False)
    run = Engine(hybrid, use_mtp=True)
    stream = run.submit(prompts()[0], SamplingParams(max_tokens=200, temperature=0))
    ended(run)
    assert run.speculation.stopped == "switched off, as it did not pay" and not run.speculation.drafted
    assert stream.tokens == answers(hybrid, [(prompts()[0], SamplingParams(max_tokens=200, temperature=0))])[0]


def test_another_output_layer(tmp_path: Path) -> None:
    """Nothing is drafted from then on; another engine has the head anew."""
    model = loaded(folder(tmp_path, "qwen3_5"))
    run = Engine(model, use_mtp=True)
    run.submit(prompts()[0], GREEDY).result()
    before = run.speculation.drafted
    torch_foundry.quantize(model, {"lm_head": "q8_0"})
    expected = answers(model, [(prompts()[1], GREEDY)])
    run.forget()
    assert [run.submit(prompts()[1], GREEDY).result()] == expected and run.speculation.drafted == before > 0
    assert run.speculation.stopped == (
        "switched off: the model has another embedding or output layer than its MTP head"
    )
    again = Engine(model, use_mtp=True)
    assert [again.submit(prompts()[1], GREEDY).result()] == expected and again.speculation.accepted


def test_heads_that_there_are_not(hybrid: Any, tmp_path: Path) -> None:
    llama = torch_foundry.patch(build("llama"))
    with pytest.raises(LoadError, match="a model without one"):
        Engine(llama, use_mtp=True)
    assert Engine(llama).submit([5, 6, 7], GREEDY).result()
    wrong = loaded(folder(tmp_path, "qwen3_5", fc_weight=torch.zeros(64, 64)))
    for _ in range(2):
        with pytest.raises(LoadError, match=r"mtp\.fc\.weight"):
            Engine(wrong, use_mtp=True)
    assert Engine(wrong).submit([5, 6, 7], GREEDY).result()
    for other in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": llama}):
        with pytest.raises(ValueError, match=r"use_mtp.*: expected one of them, got both"):
            Engine(hybrid, use_mtp=True, **other)
    with pytest.raises(ValueError, match="use_mtp: expected True or False, got 'yes'"):
        Engine(hybrid, use_mtp="yes")


def test_a_dropped_engine_is_gone_at_once(hybrid: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        run = Engine(hybrid, use_mtp=True)
        run.submit(prompts()[0], GREEDY).result()
        pages = weakref.ref(run._drafting.model.cache.layers[0].memory[0])  # type: ignore[union-attr]
        del run
        assert pages() is None
    finally:
        gc.enable()


def test_a_copy_of_the_model_has_none_of_the_head(hybrid: Any) -> None:
    Engine(hybrid, use_mtp=True).submit(prompts()[0], GREEDY).result()
    assert "mtp" not in str(copy.deepcopy(hybrid).state_dict().keys())
