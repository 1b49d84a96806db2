"""Perplexity and divergence against a direct computation in float64, and the formats' figures on the demo model."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import torch_foundry
from tests.hf.tiny_models import build
from tools.demo_model.evaluate import perplexity as plain_perplexity
from torch_foundry.demo_model import demo_model_path, held_out_sample
from torch_foundry.diagnostics.perplexity import measure, perplexity

pytestmark = pytest.mark.tier("models")

VOCABULARY = 97


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def other(model: Any) -> Any:
    """`model` with noise in its weights."""
    torch.manual_seed(1)
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for p in noisy.parameters():
            p += 0.05 * torch.randn_like(p)
    return noisy


@pytest.fixture(scope="module")
def texts() -> list[Tensor]:
    g = torch.Generator().manual_seed(2)
    return [torch.randint(0, VOCABULARY, (n,), generator=g) for n in (70, 1, 2, 33)]


@torch.inference_mode()
def logs(model: Any, texts: list[Tensor], context: int) -> tuple[Tensor, Tensor]:
    """log p [tokens, vocabulary] in float64 and targets [tokens], a window at a time and all its scores at once."""
    found, targets = [], []
    for text in texts:
        for start in range(0, len(text) - 1, context - 1):
            window = text[start : start + context]
            found.append(model(window[None, :-1]).logits[0].double().log_softmax(-1))
            targets.append(window[1:])
    return torch.cat(found), torch.cat(targets)


@pytest.mark.parametrize("rows", [1000, 16, 7, 1])
@pytest.mark.parametrize("context", [None, 20, 2])
def test_against_float64(
    model: Any, other: Any, texts: list[Tensor], context: int | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the windows, and however many forward passes and conversions they take."""
    monkeypatch.setattr(measure, "LOGITS", rows * VOCABULARY)
    monkeypatch.setattr(measure, "WIDE", 5 * VOCABULARY)
    got = perplexity(other, texts, against=model, context=context)
    q, targets = logs(other, texts, context or 64)
    p, _ = logs(model, texts, context or 64)
    n = sum(len(text) - 1 for text in texts if len(text))
    assert got.tokens == n == len(targets) and got.context == (context or 64)
    nll, reference = (-each[torch.arange(n), targets] for each in (q, p))
    kl = (p.exp() * (p - q)).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).double()
    d = got.against
    assert d is not None
    close = lambda value: pytest.approx(float(value), rel=2e-4)  # noqa: E731  (scores are float32, KL a difference)
    assert got.perplexity == close(nll.mean().exp())
    assert got.perplexity_error == close(nll.mean().exp() * nll.std() / n**0.5)
    assert (d.perplexity, d.perplexity_error) == (
        close(reference.mean().exp()),
        close(reference.mean().exp() * reference.std() / n**0.5),
    )
    ratio = (nll - reference).mean().exp()
    assert (d.ratio, d.ratio_error) == (close(ratio), close(ratio * (nll - reference).std() / n**0.5))
    assert (d.kl_mean, d.kl_error) == (close(kl.mean()), close(kl.std() / n**0.5))
    assert (d.kl_99, d.kl_max) == (close(kl.quantile(0.99, interpolation="nearest")), close(kl.max()))
    assert (d.top1, d.top1_error) == (close(same.mean()), close(same.std() / n**0.5))
    assert d.kl_mean > 0.001 and 0 < d.top1 < 1
    alone = perplexity(other, texts, context=context)
    assert (alone.perplexity, alone.perplexity_error, alone.against) == (
        close(got.perplexity),
        close(got.perplexity_error),
        None,
    )


def test_memory_is_bounded(model: Any, texts: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass returns no more scores than LOGITS."""
    sizes: list[int] = []
    hook = model.lm_head.register_forward_hook(lambda _m, _i, out: sizes.append(out.numel()))
    monkeypatch.setattr(measure, "LOGITS", 10 * VOCABULARY)
    perplexity(model, texts)
    hook.remove()
    assert max(sizes) == 10 * VOCABULARY and sum(sizes) == sum(len(t) - 1 for t in texts) * VOCABULARY


def test_against_itself(model: Any, texts: list[Tensor]) -> None:
    got = perplexity(model, texts[0], against=model).against
    assert got is not None
    assert (got.ratio, got.ratio_error, got.kl_mean, got.kl_max, got.top1) == (1.0, 0.0, 0.0, 0.0, 1.0)


def test_a_single_token(model: Any) -> None:
    got = perplexity(model, torch.tensor([3, 5]))
    assert got.tokens == 1 and math.isnan(got.perplexity_error)
    assert got.perplexity == pytest.approx(float((-logs(model, [torch.tensor([3, 5])], 9)[0][0, 5]).exp()), rel=1e-5)
    assert "±" not in str(got) and got.to_json()["perplexity_error"] is None


@pytest.mark.parametrize("rows", [1000, 16])
def test_a_packed_cache_counts(texts: list[Tensor], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many forward passes a window takes: its keys are read back from where they were packed."""
    model = build("llama", vocab_size=VOCABULARY)
    monkeypatch.setattr(measure, "LOGITS", rows * VOCABULARY)
    found = {}
    for kv_cache in (None, "q8_0", "q4_0"):
        with torch_foundry.patched(copy.deepcopy(model), kv_cache=kv_cache) as each:
            found[kv_cache] = perplexity(each, texts, against=model).against
    dense, *packed = (each.kl_mean for each in found.values() if each is not None)
    assert dense < 1e-9 and 100 * dense < packed[0] < packed[1]


def test_training_mode_comes_back(model: Any, texts: list[Tensor]) -> None:
    model.train()
    perplexity(model, texts[2])
    assert model.training
    model.eval()


def test_forbidden_tokens(model: Any, texts: list[Tensor]) -> None:
    """A reference that never gives a token says nothing about it; a model that never gives one diverges infinitely."""
    barred = copy.deepcopy(model)
    hook = barred.lm_head.register_forward_hook(lambda _m, _i, out: out.index_fill(-1, torch.tensor([0]), -math.inf))
    text = texts[0][texts[0] != 0]
    mine, theirs = perplexity(model, text, against=barred).against, perplexity(barred, text, against=model).against
    hook.remove()
    assert mine is not None and 0 < mine.kl_mean < math.inf
    assert theirs is not None and theirs.kl_mean == math.inf


@pytest.mark.parametrize(
    "tokens, context, message",
    [
        (torch.tensor([1]), None, "tokens: expected a text of at least 2, got 1 in all"),
        ([torch.tensor([1]), torch.tensor([2])], None, "tokens: expected a text of at least 2, got 2 in all"),
        ([], None, "tokens: expected a text of at least 2, got 0 in all"),
        (torch.tensor([1, VOCABULARY]), None, f"tokens: expected ids below {VOCABULARY}, got 1 to {VOCABULARY}"),
        (torch.tensor([-1, 2]), None, f"tokens: expected ids below {VOCABULARY}, got -1 to 2"),
        (torch.tensor([[1, 2]]), None, r"tokens: expected whole numbers \[n\], got torch.int64 \[1, 2\]"),
        (torch.tensor([1.0, 2.0]), None, r"tokens: expected whole numbers \[n\], got torch.float32 \[2\]"),
        (torch.tensor([1, 2]), 1, "context: expected 2 to 64 tokens, got 1"),
        (torch.tensor([1, 2]), 65, "context: expected 2 to 64 tokens, got 65"),
    ],
)
def test_refusals(model: Any, tokens: Any, context: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity(model, tokens, context=context)


def test_another_vocabulary(model: Any) -> None:
    config = copy.deepcopy(model.config)
    config.vocab_size = VOCABULARY + 3
    with pytest.raises(ValueError, match="against: expected the model's vocabulary of 97 tokens, got one of 100"):
        perplexity(model, torch.tensor([1, 2]), against=LlamaForCausalLM(config))


def test_scores_that_are_no_numbers(model: Any) -> None:
    broken = copy.deepcopy(model)
    broken.lm_head.weight.data[3, 3] = float("nan")
    with pytest.raises(ValueError, match="model: expected finite scores, got NaN or infinity"):
        perplexity(broken, torch.tensor([1, 2, 3]))


# ------------------------------------------------------------------------------------------------------- the demo model


@pytest.fixture(scope="module")
def demo() -> tuple[Any, list[Tensor]]:
    """The demo model in float32, and half of its held-out documents."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    texts = [tokenizer(t, add_special_tokens=False, return_tensors="pt").input_ids[0] for t in held_out_sample(24)]
    return AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=torch.float32).eval(), texts


def test_the_plain_definition(demo: tuple[Any, list[Tensor]]) -> None:
    """The figure that training recorded is of the same definition."""
    from transformers import AutoTokenizer

    model, texts = demo
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    expected = plain_perplexity(model, tokenizer, held_out_sample(4))
    assert perplexity(model, texts[:4], context=1024).perplexity == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name, limit", [("q8_0", 0.001), ("q4_k", 0.03)])
def test_formats_on_the_demo_model(demo: tuple[Any, list[Tensor]], name: str, limit: float) -> None:
    """Every weight is packed: rows of the demo model are of 256 and 768, whole blocks of each format."""
    dense, texts = demo
    packed = torch_foundry.patch(copy.deepcopy(dense), quantize=name)
    assert not [n for n, p in packed.named_parameters() if p.dim() == 2]
    got = perplexity(packed, texts, against=dense).against
    assert got is not None and abs(got.ratio - 1) < limit
    assert 0 < got.kl_mean < limit / 10 and got.top1 > 0.93
