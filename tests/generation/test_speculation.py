"""Drafting ahead: the text is that of generate() without drafts, token for token, whatever is drafted."""

from __future__ import annotations

import copy
import gc
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import torch_foundry
from tests.generation.generation import Collect
from tests.hf.tiny_cases import FAMILIES, VOCAB
from tests.hf.tiny_models import build, ids, shared
from torch_foundry.demo_model import demo_model_path, draft_model_path
from torch_foundry.generation import loop, speculation
from torch_foundry.generation.draft_history import DraftHistory
from torch_foundry.generation.draft_length import DraftLengthController
from torch_foundry.generation.drafting import PromptLookup
from torch_foundry.generation.loop import PendingTokens
from torch_foundry.hf.api import report

pytestmark = pytest.mark.usefixtures("quiet")
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9}
LOOKUP = {"prompt_lookup_num_tokens": 5}


def patched(family: str = "llama", **options: Any) -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(family)), **options)


def generate(model: Any, seed: int = 0, prompt: torch.Tensor | None = None, **options: Any) -> Any:
    """60 tokens behind a prompt that repeats itself."""
    if prompt is None:
        prompt = ids(1, 9).repeat(1, 3)
    torch.manual_seed(seed)
    return model.generate(prompt, **{"max_new_tokens": 60, "do_sample": False, **options})


@pytest.fixture(autouse=True)
def never_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, by which every step takes as long; the tests of that do it by hand."""
    monkeypatch.setattr(speculation, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: True)


@pytest.fixture(scope="module")
def similar() -> dict[str, Any]:
    """Draft models that are sometimes right: the model itself with some noise on its weights."""
    drafts = {}
    for family in ("llama", "gemma2", "mistral"):
        draft = copy.deepcopy(shared(family))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in draft.parameters():
                weight.add_(
                    torch.randn(weight.shape, generator=generator), alpha=0.03 * float(weight.std(correction=0))
                )
        drafts[family] = torch_foundry.patch(draft)
    return drafts


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_lookup_changes_no_token(family: str) -> None:
    model = patched(family)
    for options in ({}, SAMPLED, {**SAMPLED, "temperature": 0.05}):
        expected = generate(model, **options).tolist()
        assert generate(model, **options, **LOOKUP).tolist() == expected
    seen = report(model).speculation
    assert seen.accepted > 20 and seen.drafted > seen.accepted, str(seen)
    assert not any("assisted" in reason for reason in report(model).eager), str(report(model))


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_a_draft_model_changes_no_token(family: str, similar: dict[str, Any]) -> None:
    model = patched(family)
    for options in ({}, SAMPLED):
        expected = generate(model, seed=3, **options).tolist()
        assert generate(model, seed=3, **options, assistant_model=similar[family]).tolist() == expected
    seen = report(model).speculation
    assert 0 < seen.accepted < seen.drafted, str(seen)


def test_the_same_model_as_draft_is_always_right() -> None:
    """It draws with the same random numbers; and its cache has to be right after each of its drafts."""
    model, draft = patched(), patched()
    for options in ({}, SAMPLED):
        generate(model, **options, assistant_model=draft)
    seen = report(model).speculation
    assert seen.accepted == seen.drafted > 80 and seen.tokens > 2.5 * seen.steps, str(seen)


def test_a_step_with_a_draft_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafts are read along with what the model says of them."""
    model, draft, reads, tolist = patched(), patched(), [0], torch.Tensor.tolist

    def counted(self: torch.Tensor) -> Any:
        reads[0] += 1
        return tolist(self)

    generate(model, assistant_model=draft)
    before = report(model).speculation.steps
    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    generate(model, assistant_model=draft, max_new_tokens=120)
    steps = report(model).speculation.steps - before
    assert 15 < steps < 60 and reads[0] < steps + 12


def test_what_a_draft_does_once_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the prompt and capturing its steps: they would make drafting look slow."""
    model, draft, slow = patched(), patched(), [0]
    plan = draft.model.decoder_plan()

    class Clock:
        """A second a call; a hundred more where the draft has captured a graph meanwhile, or gone layer by layer."""

        now, before = 0.0, (0, 0)

        def perf_counter(self) -> float:
            done = plan.captured, report(draft).eager.total()
            slow[0] += done != self.before
            self.now += 1 + 100 * (done != self.before)
            self.before = done
            return self.now

    monkeypatch.setattr(speculation, "time", Clock())
    generate(model, assistant_model=draft)
    times = report(model).speculation.times
    assert slow[0] and times.keys() >= {(1, 1), (1, 8)} and max(times.values()) == 1.0


def test_drawn_tokens_have_the_distribution_of_single_steps() -> None:
    """Over many seeds, each text is the one without drafts: stronger than any statistic."""
    model = patched()
    for seed in range(40):
        options = {**SAMPLED, "max_new_tokens": 12, "temperature": 1.0}
        assert generate(model, seed, **options, **LOOKUP).tolist() == generate(model, seed, **options).tolist()
    assert 0 < report(model).speculation.accepted < report(model).speculation.drafted


@pytest.mark.parametrize("place", [0, 1, 7, 20])
def test_the_end_of_the_text(place: int) -> None:
    """End-of-text tokens among the drafts, one after another; what the cache counts is what generate() leaves."""
    model = patched()
    full = generate(model)[0, 27:].tolist()
    eos = full[place]
    options = {"eos_token_id": eos, "pad_token_id": 0, "return_dict_in_generate": True}
    expected, found = generate(model, **options), generate(model, **options, **LOOKUP)
    assert found.sequences.tolist() == expected.sequences.tolist() and found.sequences[0, -1] == eos
    assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()


@pytest.mark.parametrize("tokens", [1, 2, 3, 17])
def test_no_more_tokens_than_were_asked_for(tokens: int) -> None:
    model = patched()
    expected = generate(model, max_new_tokens=tokens).tolist()
    assert generate(model, max_new_tokens=tokens, **LOOKUP).tolist() == expected
    assert generate(model, max_new_tokens=tokens, assistant_model=patched()).tolist() == expected


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_returned_cache_can_be_gone_on_with(family: str) -> None:
    model = patched(family)
    first = generate(model, max_new_tokens=20, return_dict_in_generate=True, **LOOKUP)
    for options in ({}, LOOKUP):
        cache = copy.deepcopy(first.past_key_values)
        found = generate(model, prompt=first.sequences, max_new_tokens=40, past_key_values=cache, **options)
        assert found.tolist() == generate(model).tolist()


def test_a_streamer_gets_every_token_once() -> None:
    model, streamer = patched(), Collect()
    found = generate(model, streamer=streamer, **LOOKUP)
    assert [token for part in streamer.got for token in part] == found[0].tolist() and streamer.ended == 1
    assert all(len(part) == 1 for part in streamer.got[1:])


def test_an_interrupt_leaves_the_cache_as_long_as_the_text() -> None:
    model, streamer = patched(), Collect(fail_at=30)
    prompt = ids(1, 9).repeat(1, 3)
    with torch.no_grad():
        cache = model(prompt[:, :-1]).past_key_values
    with pytest.raises(KeyboardInterrupt):
        generate(model, streamer=streamer, past_key_values=cache, **LOOKUP)
    text = torch.cat([prompt, torch.tensor([[token for part in streamer.got[1:] for token in part]])], dim=1)
    cache.crop(text.shape[1] - 1 - cache.get_seq_length())
    assert generate(model, prompt=text, past_key_values=cache, max_new_tokens=31).tolist() == generate(model).tolist()


def test_left_padding() -> None:
    model = patched()
    prompt = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids(1, 9).repeat(1, 3)], dim=1)
    mask = (torch.arange(prompt.shape[1]) >= 5).long()[None]
    expected = generate(model, prompt=prompt, attention_mask=mask).tolist()
    assert generate(model, prompt=prompt, attention_mask=mask, **LOOKUP).tolist() == expected
    assert expected[0][32:] == generate(model)[0, 27:].tolist()
    assert report(model).speculation.accepted


def test_steps_are_kept_for_the_next_text() -> None:
    """Captured once for texts of one kind; another kind, other weights or a padded prompt begin anew."""
    model, one = patched(), {"prompt_lookup_num_tokens": 1}  # steps of one row and of two

    def captured(**options: Any) -> int:
        before = report(model).captured
        prompt = options.pop("prompt", None)
        plain = {name: value for name, value in options.items() if name != "prompt_lookup_num_tokens"}
        found = generate(model, prompt=prompt, **options).tolist()
        after = report(model).captured
        assert found == generate(model, prompt=prompt, **plain).tolist()
        return after - before

    assert captured(**one) >= 2
    other = ids(1, 7, seed=4).repeat(1, 4)
    assert captured(**one) == captured(prompt=other, **one) == 0
    long = ids(1, 300)  # which needs more memory, and no step
    assert captured(prompt=long, max_new_tokens=1, **one) == captured(**one) == 0, "kept all the same"
    assert captured(**SAMPLED, **one) >= 2 and captured(**SAMPLED, seed=8, **one) == 0
    assert captured(**{**SAMPLED, "temperature": 1.2}, **one) == 0, "numbers may change"
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight * 1.1)
    assert captured(**SAMPLED, **one) >= 2
    model.generation_config.max_length = 4096
    assert captured(**SAMPLED, **one, max_new_tokens=300) >= 2, "more room"


def test_padding_is_not_the_next_texts() -> None:
    """Steps that are kept have a mask, longer than the next prompt."""
    model, before = patched(), 0
    for padding in (40, 4):
        prompt = torch.cat([torch.zeros(1, padding, dtype=torch.long), ids(1, 9).repeat(1, 2)], dim=1)
        mask = (torch.arange(prompt.shape[1]) >= padding).long()[None]
        expected = generate(patched(), prompt=prompt, attention_mask=mask).tolist()
        before = report(model).captured
        assert generate(model, prompt=prompt, attention_mask=mask, prompt_lookup_num_tokens=1).tolist() == expected
    assert report(model).captured == before, "kept"


def test_packed_weights_and_the_output_layers_own_ways() -> None:
    model = patched(quantize="q8_0")
    assert generate(model, **LOOKUP).tolist() == generate(model).tolist()
    assert report(model).speculation.accepted and not report(model).eager


@pytest.mark.tier("models")
def test_the_demo_models_draft() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    model, draft = (
        torch_foundry.patch(AutoModelForCausalLM.from_pretrained(path))
        for path in (demo_model_path(), draft_model_path())
    )
    prompt = tokenizer("Once upon a time there was a small kite.", return_tensors="pt").input_ids
    for options in ({}, {"do_sample": True}):
        expected = generate(model, prompt=prompt, **options).tolist()
        assert generate(model, prompt=prompt, **options, assistant_model=draft).tolist() == expected
    assert report(model).speculation.accepted / report(model).speculation.drafted > 0.3, str(report(model))


# --------------------------------------------------------------------------------------------------- what it doesn't do


def test_other_requests_go_to_hugging_faces_code() -> None:
    model, stock = patched(), shared("llama")
    for options, reason in (
        ({"repetition_penalty": 1.3, **LOOKUP}, "what may come next depends on tokens that are only drafted"),
        ({"assistant_model": copy.deepcopy(stock)}, "the draft is no patched model"),
        ({"sync_every": 0, **LOOKUP}, "sync_every is 0"),
    ):
        plain = {name: value for name, value in options.items() if name == "repetition_penalty"}
        assert generate(model, **options).tolist() == generate(stock, **plain).tolist()
        assert report(model).eager[f"assisted generate: {reason}"] == 1, str(report(model))


def test_another_vocabulary_is_refused() -> None:
    draft = torch_foundry.patch(build("llama", vocab_size=VOCAB + 8))
    with pytest.raises(ValueError, match="different tokenizers"):  # by transformers
        generate(patched(), assistant_model=draft)


def test_hooks_end_the_drafting() -> None:
    model, draft = patched(), patched()
    expected = generate(model).tolist()
    calls: list[int] = []

    def put_a_hook(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 12:
            model.register_forward_hook(lambda *_: None)

    class Streamer(Collect):
        def put(self, value: torch.Tensor) -> None:
            put_a_hook()
            super().put(value)

    assert generate(model, assistant_model=draft, streamer=Streamer()).tolist() == expected
    assert report(model).speculation.stopped == "switched off: hook on LlamaForCausalLM"


def test_nan_behind_a_rejected_draft_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patched()
    expected = generate(model)
    bad = next(i for i in range(10, VOCAB) if i not in expected)
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # not the embedding's any more
        model.model.embed_tokens.weight[bad] = float("nan")
    monkeypatch.setattr(PromptLookup, "propose", lambda self, text, most, end=None: (3, [bad] * most))
    assert generate(model, **LOOKUP).tolist() == expected.tolist()
    assert model.generator_plan().speculation.stopped == "switched off: no token could be chosen behind a draft"
    last = expected[0, -1].item()  # forgotten by the next call, which has the same graphs
    monkeypatch.setattr(PromptLookup, "propose", lambda self, text, most, end=None: (3, [last] * most))
    assert generate(model, **LOOKUP).tolist() == expected.tolist()
    assert "no token could be chosen" not in (model.generator_plan().speculation.stopped or "")


def test_nan_without_drafts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patched()
    fifth = generate(model)[0, -26].item()
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # not the embedding's any more
        model.model.embed_tokens.weight[fifth] = float("nan")
    monkeypatch.setattr(PromptLookup, "propose", lambda self, text, most, end=None: (0, []))
    with pytest.raises(RuntimeError, match="NaN among the scores"):
        generate(model, **LOOKUP)


# ----------------------------------------------------------------------------------------------------- draft length


@pytest.mark.parametrize("after", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "drawn"])
def test_switched_off_the_text_goes_on(after: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = patched(), {"max_new_tokens": 100, **options}
    expected = generate(model, **options).tolist()
    answers = iter([True] * after)
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: next(answers, False))
    assert generate(model, **options, **LOOKUP).tolist() == expected
    assert report(model).speculation.stopped == "switched off, as it did not pay"
    assert "switched off, as it did not pay" in str(report(model))


@pytest.mark.parametrize("tokens", [1, 2, 9, 40, 61])
@pytest.mark.parametrize("place", [None, 3, 14, 33])
def test_paused_it_runs_as_plain_generation_does(
    tokens: int, place: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is handed over before the one before it is read; ends, limits and streamers are those of plain text."""
    model, draft, depth = patched(), patched(), [0]
    options: dict[str, Any] = {"max_new_tokens": tokens, "sync_every": 4}
    if place is not None:
        options |= {"eos_token_id": generate(model)[0, 27 + place].item(), "pad_token_id": 0}
    plain, streamer = Collect(), Collect()
    expected = generate(model, **options, streamer=plain).tolist()
    waiting, read = [0], PendingTokens.read

    class Counted(PendingTokens):
        def __init__(self, *of: Any) -> None:
            super().__init__(*of)
            waiting[0] += 1
            depth[0] = max(depth[0], waiting[0])

        def read(self) -> list[list[int]]:
            waiting[0] -= 1
            return read(self)

    history = model.generator_plan().speculation.histories[draft] = DraftHistory()
    history.tries = -1.0
    monkeypatch.setattr(loop, "PendingTokens", Counted)
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: False)
    assert generate(model, **options, assistant_model=draft, streamer=streamer).tolist() == expected
    assert streamer.got == plain.got and streamer.ended == 1 and not waiting[0]
    assert depth[0] == (2 if len(expected[0]) > 27 + 1 + 8 + 4 else depth[0])
    assert not model.generator_plan().speculation.drafted


def test_a_source_is_remembered() -> None:
    """By the model, as long as it lives."""
    model, draft, other = patched(), patched(), patched()
    for assistant in (draft, draft, other):
        generate(model, assistant_model=assistant)
    generate(model, **LOOKUP)
    totals = report(model).speculation
    assert len(totals.histories) == 3 and totals.times is totals.histories[PromptLookup].times
    assert totals.histories[draft].rates[0] > 0.95 and totals.histories[draft].times
    del other, assistant
    gc.collect()
    assert len(totals.histories) == 2


def test_prompt_lookup_finds_the_newest_of_the_longest() -> None:
    lookup = PromptLookup(3)
    assert lookup.propose([1, 2, 3], 4) == (0, [])
    text = [5, 1, 2, 3, 7, 8, 2, 3, 9, 1, 2, 3]
    assert lookup.propose(text, 4) == (3, [7, 8, 2, 3]), "three tokens before two"
    assert lookup.propose([*text, 4, 2, 3], 2) == (2, [4, 2]), "the newest of two"
    assert lookup.propose([*text, 4, 2, 3, 6], 2) == (0, [])


def test_what_is_copied_goes_on_into_the_copy() -> None:
    assert PromptLookup(1).propose([1, 1], 4) == (1, [1] * 4)
    assert PromptLookup(3).propose([9, 1, 2, 3, 1, 2], 7) == (2, [3, 1, 2, 3, 1, 2, 3])


def test_looking_back_sees_no_more_than_was_known_then() -> None:
    text, lookup = [7, 1, 2, 7, 1, 7, 1, 2, 2, 7, 1, 2], PromptLookup(3)
    for end in range(1, len(text) + 1):
        assert lookup.propose(text, 3, end) == PromptLookup(3).propose(text[:end], 3)


def test_what_is_accepted() -> None:
    assert speculation.accepted([], [5]) == 0
    assert speculation.accepted([5, 6], [5, 6, 7]) == 2
    assert speculation.accepted([5, 6], [5, 7, 7]) == 1
    assert speculation.accepted([4, 6], [5, 6, 7]) == 0
