"""An engine's answers are those that each request would get alone, whatever else runs."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import torch_foundry
from tests.hf.tiny_cases import ALL_FAMILIES, VOCAB
from tests.hf.tiny_models import build, ids, shared
from torch_foundry.core.memory import DoesNotFit
from torch_foundry.demo_model import demo_model_path
from torch_foundry.engine import Engine, QueueFull, SamplingParams
from torch_foundry.kvcache.block_manager import OutOfBlocks

pytestmark = pytest.mark.usefixtures("quiet")
GREEDY = SamplingParams(max_tokens=14, temperature=0)
KINDS = (
    GREEDY,
    SamplingParams(max_tokens=14, seed=5),
    SamplingParams(max_tokens=9, seed=6, temperature=0.6, top_k=8, top_p=0.9),
    SamplingParams(max_tokens=14, temperature=0, repetition_penalty=1.4),
    SamplingParams(max_tokens=12, seed=7, min_p=0.05, frequency_penalty=0.5, presence_penalty=0.2),
)


def patched(family: str = "llama") -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(family)))


def prompts(count: int = 8, seed: int = 0) -> list[list[int]]:
    """Of 2 to 50 tokens; every third begins like the second."""
    lengths = [(5, 40, 17, 3, 9, 30, 21, 2)[i % 8] for i in range(count)]
    found = [ids(1, n, seed=seed + i)[0].tolist() for i, n in enumerate(lengths)]
    return [found[1][:20] + p if i % 3 == 2 and count > 1 else p for i, p in enumerate(found)]


def alone(model: Any, prompt: list[int], tokens: int = 14) -> list[int]:
    text = torch.tensor([prompt])
    out = model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=tokens, do_sample=False)
    return out[0, len(prompt) :].tolist()


def drain(engine: Engine) -> None:
    while not engine.idle:
        engine.step()
        engine.cache.manager.check()
    assert engine.cache.manager.used == 0 and engine._steps.sampler.settings == [None] * engine.config.requests


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_answers_are_generates(family: str) -> None:
    """Prompts in pieces, shared beginnings, and blocks for a third of what runs."""
    model = patched(family)
    engine = Engine(model, requests=4, budget=20, blocks=9)
    streams = [engine.submit(prompt, SamplingParams(max_tokens=30, temperature=0)) for prompt in prompts()]
    drain(engine)
    assert [s.tokens for s in streams] == [alone(model, prompt, 30) for prompt in prompts()]
    assert {s.finish_reason for s in streams} == {"length"}
    assert sum(s.sequence.preempted for s in streams) and sum(s.sequence.reused for s in streams)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_answers_do_not_depend_on_the_load(batch_invariant: bool) -> None:
    """Greedy and drawn, with penalties and without; first each alone in an engine, then all in random company."""
    model = patched()
    requests = [(prompt, KINDS[i % len(KINDS)]) for i, prompt in enumerate(prompts(25))]
    expected = []
    for prompt, params in requests:
        engine = Engine(model, requests=1, budget=16, batch_invariant=batch_invariant)
        expected.append(engine.submit(prompt, params).result())
    for seed in range(3):
        chance = random.Random(seed)
        engine = Engine(
            model, requests=6, budget=chance.choice([9, 40]), blocks=14, queue=100, batch_invariant=batch_invariant
        )
        streams: dict[int, Any] = {}
        order = chance.sample(range(len(requests)), len(requests))
        while order or not engine.idle:
            for _ in range(chance.choice([0, 1, 4])):
                if order:
                    i = order.pop()
                    streams[i] = engine.submit(*requests[i])
            if chance.random() < 0.1:
                engine.submit(prompts()[chance.randrange(8)], GREEDY).cancel() if chance.random() < 0.5 else None
                engine.submit(prompts()[chance.randrange(8)], GREEDY)  # nobody waits for it
            engine.step()
            engine.cache.manager.check()
        assert [streams[i].tokens for i in range(len(requests))] == expected


@pytest.mark.parametrize(
    "family, dtype",
    [
        *(("llama", dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
        *(("olmo2", dtype) for dtype in (torch.float32, torch.bfloat16)),  # norms of rows: fused for few of them
    ],
    ids=str,
)
def test_invariant_logits_have_the_same_bits(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch_foundry.patch(build(family, dtype=dtype))
    found: dict[int, list[torch.Tensor]] = {}

    def run(requests: int, budget: int, which: list[int]) -> dict[int, list[torch.Tensor]]:
        found.clear()
        engine = Engine(model, requests=requests, budget=budget, blocks=40, batch_invariant=True)
        step = engine._steps.sampler.step

        def seen(logits: torch.Tensor, rows: Any) -> None:
            owner = {sequence.row: sequence for sequence in engine.scheduler.running}
            for row, each in zip(rows, logits, strict=True):
                found.setdefault(which[owner[row].id], []).append(each.clone())
            step(logits, rows)

        monkeypatch.setattr(engine._steps.sampler, "step", seen)
        for i in which:
            engine.submit(prompts(10)[i], GREEDY)
        drain(engine)
        return dict(found)

    together = run(8, 50, list(range(10)))
    others = run(5, 7, list(range(9, -1, -1)))
    for i in range(10):
        single = run(1, 300, [i])[i][:14]  # what is behind an answer's end may differ
        for each in (together[i], others[i]):
            assert all(torch.equal(a, b) for a, b in zip(single, each[:14], strict=True)), f"request {i}"


@pytest.mark.tier("models")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_without_invariance_only_near_ties_are_decided_otherwise(dtype: torch.dtype) -> None:
    """Where the tokens part, both were as good as equal to the model alone: within its dtype's rounding of logits."""
    model = torch_foundry.patch(build("llama", dtype=dtype))
    engine = Engine(model, requests=20, budget=120)
    given = prompts(24)
    streams = [engine.submit(prompt, GREEDY) for prompt in given]
    drain(engine)
    for prompt, stream in zip(given, streams, strict=True):
        single = alone(model, prompt)
        if stream.tokens == single:
            continue
        at = next(i for i, (a, b) in enumerate(zip(stream.tokens, single, strict=True)) if a != b)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + single[:at]])).logits[0, -1].float()
        gap = float((logits[single[at]] - logits[stream.tokens[at]]).abs())
        assert gap <= 8 * torch.finfo(dtype).eps * float(logits.abs().max()), gap


@pytest.mark.parametrize("kv_cache", ["q8_0", {"k": "q8_0", "v": "q4_0"}])
def test_packed_caches(kv_cache: Any) -> None:
    model = patched()
    found = []
    for requests, budget in ((1, 16), (5, 30)):
        engine = Engine(model, requests=requests, budget=budget, kv_cache=kv_cache, batch_invariant=True)
        found.append([engine.submit(p, GREEDY) for p in prompts()])
        drain(engine)
    assert [s.tokens for s in found[0]] == [s.tokens for s in found[1]]


def test_freed_blocks_may_hold_anything() -> None:
    """What nobody owns is poisoned before each step."""
    model = patched()
    engine = Engine(model, requests=4, budget=20, blocks=12)
    streams = [engine.submit(prompt, GREEDY) for prompt in prompts()]
    while not engine.idle:
        manager = engine.cache.manager
        idle = torch.tensor(manager._free, dtype=torch.long)
        for layer in engine.cache.layers:
            for pool in layer.pools:
                pool.data[idle] = float("nan")
        engine.step()
    assert [s.tokens for s in streams] == [alone(model, prompt) for prompt in prompts()]


def test_cancelling() -> None:
    model = patched()
    expected = [alone(model, prompt) for prompt in prompts(5)]
    for victim in range(5):
        for after in range(0, 20, 3):
            engine = Engine(model, requests=3, budget=16, blocks=10)
            streams = [engine.submit(prompt, GREEDY) for prompt in prompts(5)]
            for _ in range(after):
                engine.step()
            had = list(streams[victim].tokens)
            ended = streams[victim].finish_reason
            streams[victim].cancel()
            streams[victim].cancel()
            drain(engine)
            assert streams[victim].tokens == had and streams[victim].finish_reason == (ended or "cancelled")
            for i, stream in enumerate(streams):
                assert i == victim or stream.tokens == expected[i]


def test_a_failing_step_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the n-th step; the next one goes on."""
    model = patched()
    expected = [alone(model, prompt) for prompt in prompts(5)]
    for n in range(0, 12, 2):
        engine = Engine(model, requests=3, budget=16, blocks=10)
        streams = [engine.submit(prompt, GREEDY) for prompt in prompts(5)]
        forward, calls = engine._steps.forward, []

        def fails(*args: Any, forward: Any = forward, calls: list[int] = calls, n: int = n, **given: Any) -> Any:
            calls.append(1)
            if len(calls) == n + 1:
                raise torch.OutOfMemoryError("no memory")
            return forward(*args, **given)

        fails.go_on = forward.go_on  # type: ignore[attr-defined]
        monkeypatch.setattr(engine._steps, "forward", fails)
        with pytest.raises(torch.OutOfMemoryError):
            drain(engine)
        drain(engine)
        assert [s.tokens for s in streams] == expected


def test_streams() -> None:
    model = patched()
    engine = Engine(model, requests=2)
    first, second = engine.submit(prompts()[0], GREEDY), engine.submit(prompts()[1], GREEDY)
    seen = []
    for token in first:
        seen.append(token)
        assert first.tokens[: len(seen)] == seen
    assert seen == first.result() == alone(model, prompts()[0]) and first.finish_reason == "length"
    assert len(second.tokens) >= 12, "the other one goes on beside it"
    assert second.result() == alone(model, prompts()[1])


def test_ends_of_text() -> None:
    model = patched()
    full = alone(model, prompts()[1])
    engine = Engine(model)
    ends = SamplingParams(max_tokens=14, temperature=0, stop_token_ids=(full[4],))
    at = full.index(full[4])
    assert engine.submit(prompts()[1], ends).result() == full[: at + 1]
    model.generation_config.eos_token_id = [full[4], VOCAB + 7]
    engine = Engine(model)
    stream = engine.submit(prompts()[1], GREEDY)
    assert stream.result() == full[: at + 1] and stream.finish_reason == "stop"
    ignored = SamplingParams(max_tokens=14, temperature=0, ignore_eos=True)
    assert engine.submit(prompts()[1], ignored).result() == full
    later = SamplingParams(max_tokens=14, temperature=0, min_tokens=8)
    assert full[4] not in engine.submit(prompts()[1], later).result()[:8]


def test_limits_of_model_and_cache() -> None:
    model = patched()
    engine = Engine(model, requests=2, blocks=2, queue=3)
    assert engine.limit == 32
    stream = engine.submit(list(range(3, 30)), SamplingParams(max_tokens=100, temperature=0))
    assert len(stream.result()) == 5 and stream.finish_reason == "length"
    for prompt, message in (
        ([], "at least one token"),
        ([3] * 32, "fewer than 32 tokens .* got 32"),
        ([VOCAB], f"a vocabulary of {VOCAB}, got {VOCAB}"),
        ([-1], "got -1"),
        ("text", "a text needs an engine with a tokenizer"),
        ([3.5], r"a text or token ids, got \[3.5\]"),
        (None, "a text or token ids, got None"),
        ([[3, 4]], "a text or token ids"),
        (torch.ones(3), "a text or token ids"),
        (torch.ones(2, 3, dtype=torch.int64), r"one text, got a tensor of shape \[2, 3\]"),
        (b"ab", "a text or token ids, got b'ab'"),
        (bytearray(b"ab"), "a text or token ids"),
        ([5, True], r"a text or token ids, got \[5, True\]"),
        (torch.ones(3, dtype=torch.bool), "a text or token ids"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.submit(prompt)
    with pytest.raises(ValueError, match="stop: texts need"):
        engine.submit([3], SamplingParams(stop=("x",)))
    for wrong in ({"salt": "a"}, {"params": {"max_tokens": 3}}):  # salt: would have stopped every later step
        with pytest.raises(ValueError, match="params, salt: expected SamplingParams and bytes"):
            engine.submit([3], **wrong)
    for _ in range(3):
        engine.submit([3], GREEDY)
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        engine.submit([3], GREEDY)
    drain(engine)
    engine.submit([3], GREEDY)


@pytest.mark.parametrize("options", [{"blocks": 2**60}, {"requests": 2**60}, {"cache_bytes": 2**60}], ids=str)
def test_blocks_that_are_too_many_for_any_machine(options: dict[str, int]) -> None:
    with pytest.raises(DoesNotFit, match=r"no room for \d+ blocks of 16 tokens: .* so \d+ blocks fit"):
        Engine(patched(), **options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": True}, {"min_tokens": -1}, {"temperature": -0.1},
        {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": 0}, {"top_p": 1.5}, {"min_p": -1},
        {"seed": 2**64}, {"seed": "1"}, {"stop": "abc"}, {"stop": ("",)}, {"repetition_penalty": 0},
        {"presence_penalty": float("nan")}, {"presence_penalty": 1e300}, {"frequency_penalty": -1e300},
        {"repetition_penalty": 1e300}, {"temperature": 1e300}, {"top_k": 1.5}, {"temperature": None}, {"top_p": "x"},
        {"stop_token_ids": 5}, {"stop_token_ids": ("a",)}, {"stop_token_ids": (5.5,)}, {"stop": (5,)},
        {"stop_token_ids": (True,)}, {"stop": ["x"] * 65}, {"stop": ("x" * 1025,)}, {"temperature": 1e-300},
        {"repetition_penalty": 1e-45},
    ],
    ids=lambda wrong: str(wrong)[:40],
)  # fmt: skip
def test_wrong_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_the_largest_parameters_are_answered() -> None:
    engine = Engine(patched(), blocks=4)
    largest = SamplingParams(
        max_tokens=2**80, min_tokens=2**80, top_k=2**80, temperature=3e38, repetition_penalty=3e38,
        presence_penalty=-3e38, frequency_penalty=3e38, seed=2**64 - 1, stop_token_ids=(2**80, 5),
    )  # fmt: skip
    others = [engine.submit([3], largest), engine.submit([4], GREEDY)]
    drain(engine)
    assert others[1].result() == alone(engine.model, [4])
    assert others[0].finish_reason


def test_the_least_divisors_are_answered() -> None:
    engine = Engine(patched(), blocks=4)
    least = {"temperature": 1e-30, "repetition_penalty": 1e-6}
    assert len(engine.submit([3], SamplingParams(max_tokens=3, **least)).result()) == 3


def test_salts_share_nothing() -> None:
    model = patched()
    engine = Engine(model, requests=1)
    prompt = ids(1, 40)[0].tolist()
    reused = []
    for salt in (b"a", b"a", b"b", b""):
        stream = engine.submit(prompt, GREEDY, salt=salt)
        stream.result()
        reused.append(stream.sequence.reused)
    assert reused == [0, 32, 0, 0]


def test_nan_is_the_errors_request_alone() -> None:
    model = patched()
    expected = alone(model, [5, 6, 7])
    unused = next(i for i in range(8, VOCAB) if i not in expected)
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # not the embedding's any more
        model.model.embed_tokens.weight[unused] = float("nan")
    engine = Engine(model, requests=3)
    good, bad = engine.submit([5, 6, 7], GREEDY), engine.submit([5, unused, 7], GREEDY)
    with pytest.raises(RuntimeError, match="NaN among the scores"):
        bad.result()
    assert bad.finish_reason == "error" and good.result() == expected
    drain(engine)


def test_models_that_an_engine_cannot_run() -> None:
    with pytest.raises(RuntimeError, match="not a patched model"):
        Engine(copy.deepcopy(shared("llama")))
    model = patched()
    model.train()
    with pytest.raises(RuntimeError, match="can't run this model: training"):
        Engine(model)
    with pytest.raises(RuntimeError, match="NoneType is not a patched model"):
        Engine(None)
    for name in ("requests", "budget", "queue", "ahead"):
        with pytest.raises(ValueError, match=f"{name}: expected a whole number from 1 on"):
            Engine(patched(), **{name: 0})


@pytest.mark.parametrize("add", ["register_forward_hook", "register_forward_pre_hook", "forward"])
def test_hooks_on_the_model_are_not_passed_over(add: str) -> None:
    """An engine calls the decoder and the output layer: what is put around the model would not run."""
    model = patched()
    engine = Engine(model)
    stream, expected = engine.submit([3, 4, 5], GREEDY), alone(model, [3, 4, 5])
    engine.step()
    hook = None if add == "forward" else getattr(model, add)(lambda *_: None)
    if hook is None:
        model.forward = model.forward
    for do in (engine.step, lambda: Engine(model)):
        with pytest.raises(RuntimeError, match="can't run this model: hook on LlamaForCausalLM"):
            do()
    model.__dict__.pop("forward") if hook is None else hook.remove()
    assert stream.result() == expected


def test_a_model_that_changes_under_an_engine() -> None:
    model = patched()
    engine = Engine(model)
    stream = engine.submit([3, 4, 5], GREEDY)
    engine.step()
    torch_foundry.unpatch(model)
    with pytest.raises(RuntimeError, match="can't run this model: LlamaDecoderLayer is not fused"):
        engine.step()
    torch_foundry.patch(model)
    assert stream.result() == alone(model, [3, 4, 5])
    model.resize_token_embeddings(VOCAB + 10)
    stream = engine.submit([3, 4, 5], GREEDY)
    with pytest.raises(RuntimeError, match="its vocabulary has changed, which needs a new engine"):
        stream.result()
    stream.cancel()
    drain(engine)


def test_texts() -> None:
    """The demo model, with a text that stops and one that almost does."""
    path = demo_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = torch_foundry.patch(AutoModelForCausalLM.from_pretrained(path))
    engine = Engine(model, tokenizer)
    told = SamplingParams(max_tokens=40, temperature=0)
    whole = engine.submit("Once upon a time", told)
    pieces = list(whole.texts())
    assert "".join(pieces) == whole.text == tokenizer.decode(whole.tokens, skip_special_tokens=True)
    assert len(pieces) > 10
    word = whole.text[30:38]
    assert whole.text.index(word) == 30
    stopped = engine.submit(
        "Once upon a time", SamplingParams(max_tokens=40, temperature=0, stop=("never there", word))
    )
    assert "".join(stopped.texts()) == stopped.text == whole.text[:30] and stopped.finish_reason == "stop"
    almost = engine.submit("Once upon a time", SamplingParams(max_tokens=40, temperature=0, stop=(word + "\0",)))
    assert "".join(almost.texts()) == almost.text == whole.text
    drain(engine)


def test_out_of_blocks_is_no_error_of_a_request() -> None:
    """The n-th reservation fails: whoever is preempted for it gets the same answer later."""
    model = patched()
    expected = [alone(model, prompt) for prompt in prompts(5)]
    for n in range(0, 40, 5):
        engine = Engine(model, requests=3, budget=16, blocks=20)
        manager, calls = engine.cache.manager, [0]
        reserve = manager.reserve

        def once(
            name: Any, tokens: int, reserve: Any = reserve, calls: list[int] = calls, n: int = n, manager: Any = manager
        ) -> Any:
            calls[0] += 1
            if calls[0] == n + 1 and len(manager) > 1:
                raise OutOfBlocks("once")
            return reserve(name, tokens)

        manager.reserve = once  # type: ignore[method-assign]
        streams = [engine.submit(prompt, GREEDY) for prompt in prompts(5)]
        drain(engine)
        assert [s.tokens for s in streams] == expected
