"""Drafts in an engine change no token, whatever else runs, and leave no block behind.

Tokens are compared one by one, drawn ones too: a choice depends on the text and on the number of the token alone, so
there is no distribution that could be bent, and no statistic would say more.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import torch_foundry
from tests.engine.test_engine import KINDS, drain, patched
from tests.hf.tiny_cases import FAMILIES, VOCAB
from tests.hf.tiny_models import build, ids, shared
from torch_foundry.demo_model import demo_model_path, draft_model_path
from torch_foundry.engine import Engine, SamplingParams, steps
from torch_foundry.generation.draft_history import DraftHistory
from torch_foundry.generation.draft_length import DraftLengthController
from torch_foundry.generation.drafting import PromptLookup
from torch_foundry.kvcache.block_manager import OutOfBlocks

pytestmark = pytest.mark.usefixtures("quiet")
GREEDY = SamplingParams(max_tokens=24, temperature=0)


@pytest.fixture(autouse=True)
def steps_take_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is drafted doesn't depend on this machine."""
    steps_of_a_second(monkeypatch)


def steps_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = DraftLengthController.timed

    def alike(self: Any, batch: int, rows: int, tokens: int, seconds: float | None, *, steps: int = 1) -> None:
        timed(self, batch, rows, tokens, None if seconds is None else float(steps), steps=steps)

    monkeypatch.setattr(DraftLengthController, "timed", alike)
    monkeypatch.setattr(DraftHistory, "due", lambda *_: False)
    monkeypatch.setattr(DraftHistory, "expected", lambda *_: 1.0)


def prompts(count: int = 8) -> list[list[int]]:
    """Most of them repeat themselves; every third begins like the second."""
    found = [(ids(1, 3 + i % 4, seed=i)[0].tolist() * 9)[: (12, 35, 20, 5)[i % 4]] for i in range(count)]
    return [found[1][:20] + p if i % 3 == 2 else p for i, p in enumerate(found)]


def answers(model: Any, requests: list[tuple[list[int], SamplingParams]], **options: Any) -> list[list[int]]:
    """Without drafts."""
    run = Engine(model, **options)
    streams = [run.submit(prompt, params) for prompt, params in requests]
    run.run()
    return [stream.tokens for stream in streams]


def similar(family: str) -> Any:
    """A draft model that is sometimes right."""
    draft = copy.deepcopy(shared(family))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.03 * float(weight.std(correction=0)))
    return torch_foundry.patch(draft)


def ended(run: Engine) -> None:
    """Nothing is left, of the draft neither."""
    drain(run)
    if (draft := run._drafting.model) is not None:
        draft.cache.manager.check()
        assert draft.cache.manager.used == 0 == len(draft.cache.manager)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_lookup_changes_no_token(family: str) -> None:
    """With blocks for a part of what runs, prompts in pieces and shared beginnings."""
    model = patched(family)
    requests = [(prompt, GREEDY) for prompt in prompts()]
    expected = answers(model, requests)
    run = Engine(model, requests=4, budget=40, blocks=5, prompt_lookup_num_tokens=7)
    streams = [run.submit(*request) for request in requests]
    ended(run)
    assert [s.tokens for s in streams] == expected
    assert run.speculation.accepted > 10, str(run.speculation)
    assert run.speculation.steps < run.speculation.tokens == sum(map(len, expected))
    assert sum(s.sequence.preempted for s in streams)
    for name in ("steps", "drafted", "accepted", "tokens"):
        assert sum(getattr(s.speculation, name) for s in streams) == getattr(run.speculation, name)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_a_draft_model_changes_no_token(family: str) -> None:
    model, draft = patched(family), similar(family)
    requests = [(p, kind) for i, p in enumerate(prompts()) for kind in (KINDS[i % len(KINDS)],)]
    expected = answers(model, requests)
    run = Engine(model, requests=4, budget=40, blocks=14, assistant_model=draft)
    streams = [run.submit(*request) for request in requests]
    ended(run)
    assert [s.tokens for s in streams] == expected
    assert 10 < run.speculation.accepted <= run.speculation.drafted, str(run.speculation)


def test_a_draft_model_forgets_what_old_weights_computed() -> None:
    """With the target's new weights it is as right as before: nothing of a prompt's beginning is from the old ones."""
    model, draft = patched(), patched()
    run, text = Engine(model, assistant_model=draft), ids(1, 70, seed=5)[0].tolist()
    before = run.submit(text, GREEDY).result()
    with torch.no_grad():
        for each in (model, draft):
            each.model.layers[0].self_attn.v_proj.weight.mul_(-3)
    run.forget()
    drafted, accepted = run.speculation.drafted, run.speculation.accepted
    assert drafted == accepted and run.submit(text, GREEDY).result() != before
    assert run.speculation.drafted - drafted == run.speculation.accepted - accepted > 10


def test_the_same_model_as_draft_is_always_right() -> None:
    """It draws with the same random numbers; and its cache has to be right after each of its drafts."""
    model = patched()
    for params in (GREEDY, SamplingParams(max_tokens=24, seed=3, temperature=0.8, top_k=20)):
        run = Engine(model, requests=2, assistant_model=patched())
        streams = [run.submit(prompt, params) for prompt in prompts(3)]
        ended(run)
        assert [s.tokens for s in streams] == answers(model, [(p, params) for p in prompts(3)])
        assert run.speculation.accepted == run.speculation.drafted > 30, str(run.speculation)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_under_changing_load(batch_invariant: bool) -> None:
    """Greedy, drawn, with penalties, with drafts and without, cancels, few blocks: the answers of requests alone."""
    model = patched()
    requests = [(p, KINDS[i % len(KINDS)]) for i, p in enumerate(prompts(20))]
    expected = [answers(model, [request], batch_invariant=batch_invariant)[0] for request in requests]
    drafted = 0
    for seed in range(3):
        chance = random.Random(seed)
        source: dict[str, Any] = {"assistant_model": similar("llama")} if seed == 1 else {"prompt_lookup_num_tokens": 4}
        run = Engine(
            model,
            requests=6,
            budget=chance.choice([12, 60]),
            blocks=16,
            batch_invariant=batch_invariant,
            ahead=4 if seed == 2 else 1,
            **source,
        )
        streams: dict[int, Any] = {}
        order = chance.sample(range(len(requests)), len(requests))
        while order or not run.idle:
            for _ in range(chance.choice([0, 0, 1, 3])):
                if order:
                    i = order.pop()
                    asked = chance.choice([None, None, 0, 7])
                    params = dataclasses.replace(requests[i][1], prompt_lookup_num_tokens=asked)
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
        drafted += run.speculation.accepted
    assert drafted > 10


def test_cancelling_after_each_step() -> None:
    model = patched()
    requests = [(prompt, GREEDY) for prompt in prompts(3)]
    expected = answers(model, requests)
    for after in range(14):
        run = Engine(model, requests=3, blocks=14, prompt_lookup_num_tokens=7)
        streams = [run.submit(*request) for request in requests]
        for _ in range(after):
            run.step()
        had = list(streams[1].tokens)
        streams[1].cancel()
        ended(run)
        assert streams[1].tokens == had == expected[1][: len(had)]
        assert [streams[0].tokens, streams[2].tokens] == [expected[0], expected[2]]


@pytest.mark.parametrize("source", ["lookup", "draft"])
def test_a_failing_step_leaves_everything_as_it_was(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the n-th forward pass, of the draft too; the next step goes on."""
    model, same = patched(), patched()
    requests = [(prompt, GREEDY) for prompt in prompts(3)]
    expected = answers(model, requests)
    for n in range(0, 9, 2):
        options: dict[str, Any] = {"prompt_lookup_num_tokens": 7} if source == "lookup" else {"assistant_model": same}
        run, calls = Engine(model, requests=3, blocks=14, **options), [0]
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
        if (draft := run._drafting.model) is not None:
            monkeypatch.setattr(draft, "_forward", failing(draft._forward))
        with pytest.raises(torch.OutOfMemoryError):
            run.run()
        ended(run)
        assert [s.tokens for s in streams] == expected


def test_no_blocks_for_drafts_are_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other reservation of more than a token fails: nobody is preempted for drafts."""
    model = patched()
    requests = [(prompt, GREEDY) for prompt in prompts(3)]
    run = Engine(model, requests=3, blocks=30, prompt_lookup_num_tokens=7)
    reserve, calls = run.cache.manager.reserve, itertools.count()

    def rare(name: Any, tokens: int) -> Any:
        if 1 < tokens <= 8 and next(calls) % 2:
            raise OutOfBlocks("for this test")
        return reserve(name, tokens)

    monkeypatch.setattr(run.cache.manager, "reserve", rare)
    streams = [run.submit(*request) for request in requests]
    ended(run)
    assert [s.tokens for s in streams] == answers(model, requests)
    assert not sum(s.sequence.preempted for s in streams) and run.speculation.accepted


def test_ends_of_text_among_drafts() -> None:
    """Of each place in the text: what comes behind an end is no part of it, nor behind the largest number of tokens."""
    model = patched()
    prompt = prompts()[0]
    full = answers(model, [(prompt, GREEDY)])[0]
    for at in range(len(full)):
        ways: tuple[dict[str, Any], ...] = ({"stop_token_ids": (full[at],)}, {"max_tokens": at + 1})
        for more in ways:
            run = Engine(model, assistant_model=model)
            params = dataclasses.replace(GREEDY, **more)
            stream = run.submit(prompt, params)
            ended(run)
            assert stream.tokens == answers(model, [(prompt, params)])[0]
            assert stream.finish_reason == ("stop" if "stop_token_ids" in more else "length")
    run = Engine(model, blocks=2, assistant_model=model)
    assert len(run.submit(prompt, SamplingParams(max_tokens=100, temperature=0)).result()) == 32 - len(prompt)
    ended(run)


@pytest.mark.tier("models")
def test_texts_that_stop_among_drafts() -> None:
    path = demo_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model, draft = (torch_foundry.patch(AutoModelForCausalLM.from_pretrained(p)) for p in (path, draft_model_path()))
    told = SamplingParams(max_tokens=40, temperature=0)
    plain = Engine(model, tokenizer).submit("Once upon a time", told)
    plain.result()
    run = Engine(model, tokenizer, assistant_model=draft)
    whole = run.submit("Once upon a time", told)
    assert "".join(whole.texts()) == whole.text == plain.text and whole.tokens == plain.tokens
    assert whole.speculation.accepted > 5 and "tokens a step" in str(run.speculation)
    word = whole.text[30:38]
    stopped = run.submit("Once upon a time", SamplingParams(max_tokens=40, temperature=0, stop=(word,)))
    assert "".join(stopped.texts()) == whole.text[:30] and stopped.finish_reason == "stop"
    ended(run)


def test_nan_behind_a_rejected_draft_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that makes everything NaN is drafted, and not a second time; then it is in a prompt."""
    model = patched()
    prompt = [5, 6, 7, 9] * 4
    expected = answers(model, [(prompt, GREEDY)])[0]
    bad = next(i for i in range(10, VOCAB) if i not in expected)
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # not the embedding's any more
        model.model.embed_tokens.weight[bad] = float("nan")
    run = Engine(model, prompt_lookup_num_tokens=7)
    monkeypatch.setattr(PromptLookup, "propose", lambda self, text, most, end=None: (3, [bad] * most))
    stream = run.submit(prompt, GREEDY)
    assert stream.result() == expected and stream.speculation.accepted == 0 < stream.speculation.drafted < 8
    with pytest.raises(RuntimeError, match="NaN among the scores"):
        run.submit([*prompt, bad], GREEDY).result()
    ended(run)


def test_many_requests_are_not_drafted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of up to eight tokens takes as long as one, a larger one longer in proportion."""
    monkeypatch.undo()
    model, clock = patched(), [0.0]
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    found = {}
    for requests in (1, 8):
        run = Engine(model, requests=requests, prompt_lookup_num_tokens=7)
        forward = run._steps.forward

        def seen(parts: Any, forward: Any = forward, **given: Any) -> Any:
            clock[0] += max(8, sum(len(part.ids) for part in parts))
            return forward(parts, **given)

        def go_on(tokens: Any, *of: Any, forward: Any = forward) -> Any:
            clock[0] += max(8, len(tokens))
            return forward.go_on(tokens, *of)

        seen.go_on = go_on  # type: ignore[attr-defined]
        monkeypatch.setattr(run._steps, "forward", seen)
        for _ in range(requests):
            run.submit([5, 6, 7] * 8, SamplingParams(max_tokens=60, temperature=0, seed=0))
        ended(run)
        found[requests] = run.speculation
    assert found[1].drafted > 20 and found[1].drafted > found[8].drafted / 8
    assert found[8].stopped == "switched off, as it did not pay"
    assert found[1].without > 1.2 * found[1].seconds


def test_how_drafts_are_asked_for() -> None:
    model = patched()
    prompt = prompts()[0]
    run = Engine(model)
    asked = run.submit(prompt, SamplingParams(max_tokens=24, temperature=0, prompt_lookup_num_tokens=3))
    other = run.submit(prompt, GREEDY)
    assert asked.result() == other.result()
    assert asked.speculation.drafted and not other.speculation.steps
    for wrong in (-1, 1.5, True, "7"):
        with pytest.raises(ValueError, match="prompt_lookup_num_tokens: expected None or a whole number"):
            SamplingParams(prompt_lookup_num_tokens=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="prompt_lookup_num_tokens: expected None or a whole number"):
            Engine(model, prompt_lookup_num_tokens=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected one of them, got both"):
        Engine(model, prompt_lookup_num_tokens=3, assistant_model=model)
    with pytest.raises(ValueError, match="another tokenizer"):
        Engine(model, assistant_model=torch_foundry.patch(build("llama", vocab_size=VOCAB + 8)))
    with pytest.raises(RuntimeError, match="assistant_model: an engine can't run it"):
        Engine(model, assistant_model=copy.deepcopy(shared("llama")))


@pytest.mark.parametrize("more", [8, -8])
def test_a_draft_whose_vocabulary_is_padded_otherwise(more: int) -> None:
    """With tokenizers that are the same; where they differ, or nobody knows, it is refused."""
    path, model, draft = demo_model_path(), patched(), build("llama", vocab_size=VOCAB + more, seed=1)
    with torch.no_grad():
        for name, weight in draft.state_dict().items():
            same = model.state_dict()[name]
            weight[: len(same)] = same[: len(weight)]
        draft.lm_head.weight[VOCAB:] *= 100  # padding has the largest scores
    torch_foundry.patch(draft)
    tokenizer, other = (AutoTokenizer.from_pretrained(path) for _ in range(2))
    run = Engine(model, tokenizer, requests=2, assistant_model=draft, assistant_tokenizer=other)
    streams = [run.submit(prompt, GREEDY) for prompt in [*prompts(3), [VOCAB - 1, 5]]]
    ended(run)
    assert [s.tokens for s in streams] == answers(model, [(p, GREEDY) for p in [*prompts(3), [VOCAB - 1, 5]]])
    assert run.speculation.accepted == run.speculation.drafted > 10, str(run.speculation)
    other.add_tokens(["another"])
    with pytest.raises(ValueError, match="assistant_tokenizer: expected the tokens of the engine's"):
        Engine(model, tokenizer, assistant_model=draft, assistant_tokenizer=other)
    with pytest.raises(ValueError, match="another tokenizer"):
        Engine(model, tokenizer, assistant_model=draft)


def test_a_step_that_was_captured_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, timed, seen = patched(), DraftLengthController.timed, []
    plan = model.model.decoder_plan()

    def watched(self: Any, batch: int, rows: int, tokens: int, seconds: float | None, *, steps: int = 1) -> None:
        seen.append((seconds is None, plan.captured))
        timed(self, batch, rows, tokens, seconds, steps=steps)

    monkeypatch.setattr(DraftLengthController, "timed", watched)
    run = Engine(model, prompt_lookup_num_tokens=7)
    run.submit(prompts()[0], GREEDY).result()
    before = [0, *(captured for _, captured in seen)]
    assert [none for none, _ in seen] == [now > then for then, now in itertools.pairwise(before)]
    assert 1 < plan.captured < len(seen)
