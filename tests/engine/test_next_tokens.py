"""What requests change of logits and learn of them: bias, constraints, log-probabilities. Others don't notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.engine.test_engine import GREEDY, KINDS, alone, drain, patched, prompts
from tests.hf.tiny_cases import VOCAB
from torch_foundry.demo_model import demo_model_path
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.sampling import Sampler, Settings

pytestmark = pytest.mark.usefixtures("quiet")
PROMPT = prompts(1)[0]


def logits(model: Any, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([text])).logits[0, -1].double()


def biased(model: Any, bias: dict[int, float], new: int) -> list[int]:
    """The greedy answer, by one forward pass of all tokens for each."""
    text = list(PROMPT)
    for _ in range(new):
        scores = logits(model, text)
        for token, value in bias.items():
            scores[token] += value
        text.append(int(scores.argmax()))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("options", [{}, {"ahead": 1}, {"prompt_lookup_num_tokens": 5}], ids=str)
def test_a_bias_is_added_to_the_logits(options: dict[str, Any]) -> None:
    model = patched()
    first = alone(model, PROMPT)[0]
    bias = {first: -100.0, 7: 0.05, 9: 0.02}
    engine = Engine(model, requests=4, **options)
    others = [engine.submit(prompt, GREEDY) for prompt in prompts(3)]
    found = engine.submit(PROMPT, SamplingParams(max_tokens=14, temperature=0, logit_bias=bias))
    drain(engine)
    assert found.tokens == biased(model, bias, 14) and first not in found.tokens
    assert [stream.tokens for stream in others] == [alone(model, prompt) for prompt in prompts(3)]


@pytest.mark.parametrize("wanted", [1e38, -1e38, 3.4e38, -3.4e38])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.1},
        {"temperature": 1e-30},
        {"temperature": 3e38},
        {"repetition_penalty": 1e-3},
        {"repetition_penalty": 1e3},
        {"temperature": 0},
    ],
    ids=str,
)
def test_a_bias_that_is_too_large_to_be_divided(wanted: float, params: dict[str, float]) -> None:
    bias = {5: wanted} if wanted > 0 else {token: wanted for token in range(VOCAB) if token != 5}
    stream = Engine(patched()).submit(PROMPT, SamplingParams(max_tokens=4, seed=1, logit_bias=bias, **params))
    if params != {"temperature": 3e38}:  # at that one all tokens are as likely
        assert stream.result() == [5] * 4
    else:
        assert len(stream.result()) == 4


@pytest.mark.parametrize("params", KINDS, ids=range(len(KINDS)))
def test_logprobs_are_of_the_models_own_distribution(params: SamplingParams) -> None:
    model = patched()
    engine = Engine(model, requests=3, prompt_lookup_num_tokens=5)
    told = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__} | {"logprobs": 3}
    plain, found = engine.submit(PROMPT, params), engine.submit(PROMPT, SamplingParams(**told))
    drain(engine)
    assert found.tokens == plain.tokens and not plain.logprobs and len(found.logprobs) == len(found.tokens)
    for i, (token, own) in enumerate(zip(found.tokens, found.logprobs, strict=True)):
        expected = logits(model, PROMPT + found.tokens[:i]).log_softmax(-1)
        assert own.logprob == pytest.approx(float(expected[token]), abs=1e-4)
        values, tokens = expected.topk(3)
        assert [t for t, _ in own.top] == tokens.tolist()
        assert [p for _, p in own.top] == pytest.approx(values.tolist(), abs=1e-4)


class Even:
    """Every second token may be only even, and after `end` nothing but an end token."""

    def __init__(self, fault: int = 99) -> None:
        self.fault = fault

    def allowed(self, tokens: Sequence[int]) -> torch.Tensor:
        if len(tokens) >= self.fault:
            raise LookupError("no state")
        mask = torch.ones(VOCAB, dtype=torch.uint8)
        mask[1 - len(tokens) % 2 :: 2] = 0
        return mask


@pytest.mark.parametrize("params", KINDS[:3], ids=range(3))
def test_a_constraint_decides_what_may_come(params: SamplingParams) -> None:
    """With blocks for half of what runs, so that rows are filled again."""
    model = patched()
    engine = Engine(model, requests=4, blocks=9)
    told = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__ if name != "constraint"}
    told |= {"max_tokens": 30}
    streams = [engine.submit(prompt, SamplingParams(**told, constraint=Even())) for prompt in prompts(4)]
    others = [engine.submit(prompt, GREEDY) for prompt in prompts(4)]
    drain(engine)
    assert sum(stream.sequence.preempted for stream in (*streams, *others))
    for stream in streams:
        assert [token % 2 for token in stream.tokens] == [i % 2 for i in range(len(stream.tokens))]
    assert [stream.tokens for stream in others] == [alone(model, prompt) for prompt in prompts(4)]


def test_a_fault_of_a_constraint_is_its_requests_own() -> None:
    model = patched()
    engine = Engine(model, requests=2)
    broken = engine.submit(PROMPT, SamplingParams(max_tokens=14, temperature=0, constraint=Even(fault=3)))
    other = engine.submit(PROMPT, GREEDY)
    drain(engine)
    assert broken.finish_reason == "error" and len(broken.tokens) == 3
    assert "constraint: it failed: LookupError: no state" in str(broken.error)
    assert other.tokens == alone(model, PROMPT)


class Nothing:
    """After two tokens the answer has to end. impossible: it says so itself."""

    def __init__(self, impossible: bool) -> None:
        self.impossible = impossible

    def allowed(self, tokens: Sequence[int]) -> torch.Tensor:
        if self.impossible and len(tokens) == 2:
            raise ValueError("language: no more than two")
        mask = torch.zeros(VOCAB, dtype=torch.uint8)
        mask[0 if len(tokens) == 2 else slice(1, None)] = 1
        return mask


@pytest.mark.parametrize("impossible, said", [(True, "language: no more than two"), (False, "min_tokens, logit_bias")])
def test_what_a_constraint_and_settings_rule_out_is_the_callers_fault(impossible: bool, said: str) -> None:
    told: dict[str, Any] = {"max_tokens": 14, "temperature": 0, "min_tokens": 3, "stop_token_ids": [0]}
    stream = Engine(patched()).submit(PROMPT, SamplingParams(**told, constraint=Nothing(impossible)))
    with pytest.raises(ValueError, match=said):
        stream.result()
    assert len(stream.tokens) == 2 and stream.finish_reason == "error"


def test_special_tokens_in_the_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    special = next(iter(tokenizer.all_special_ids))
    engine = Engine(patched(), tokenizer, requests=2)
    told: dict[str, Any] = {"max_tokens": 3, "temperature": 0, "logit_bias": {special: 1e4}, "ignore_eos": True}
    shown = engine.submit(PROMPT, SamplingParams(**told, skip_special_tokens=False))
    hidden = engine.submit(PROMPT, SamplingParams(**told))
    drain(engine)
    assert shown.text == 3 * tokenizer.convert_ids_to_tokens(special) and hidden.text == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"logit_bias": {"a": 1.0}}, "logit_bias: expected numbers by token id"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs: expected None or 0 to 20, got 21"),
        ({"logprobs": True}, "logprobs"),
    ],
    ids=str,
)
def test_what_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SamplingParams(**wrong)


def test_bias_of_unknown_tokens() -> None:
    with pytest.raises(ValueError, match=f"logit_bias: expected tokens of a vocabulary of {VOCAB}"):
        Engine(patched()).submit([1], SamplingParams(logit_bias={VOCAB: 1.0}))


def test_a_mask_needs_settings_that_say_so() -> None:
    sampler = Sampler.empty(2, capacity=4, vocab_size=8, device="cpu")
    sampler.fill(0, Settings(), [1], seed=0)
    with pytest.raises(ValueError, match="masked row"):
        sampler.allow(0, torch.ones(8, dtype=torch.uint8))
    sampler.fill(0, Settings(masked=True), [1], seed=0)
    with pytest.raises(ValueError, match=r"allowed: expected \[8\]"):
        sampler.allow(0, torch.ones(7, dtype=torch.uint8))
    with pytest.raises(ValueError, match="suppress"):
        Settings(masked=True, suppress=(1,))
