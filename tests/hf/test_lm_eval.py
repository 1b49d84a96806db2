"""lm-eval (EleutherAI's harness) on patched models: its own tasks' metrics, over text that comes with the package."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="lm-eval is not installed: make test-lm-eval")

import datasets
from lm_eval import evaluator
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM

import torch_foundry
from tests.exact import MOST, InFloat64, doubled
from torch_foundry.demo_model import demo_model_path, held_out_sample
from torch_foundry.testing.tolerance import UNIT, assert_norm, relative_error

pytestmark = pytest.mark.tier("nightly")
DOCUMENTS = 8  # a batch
Found = tuple[dict[str, Any], dict[str, torch.Tensor], list[str]]  # metrics, log-likelihoods by task, texts


def documents() -> datasets.Dataset:
    """Beginnings of held-out texts, with what follows, as itself and among what follows elsewhere."""
    texts = [text for text in held_out_sample() if len(text.split(" ")) > 30][:DOCUMENTS]
    words = [text.split(" ") for text in texts]
    starts, ends = ([" ".join(each[part]) for each in words] for part in (slice(0, 24), slice(24, 28)))
    choices = [[f" {ends[(index + other) % len(ends)]}" for other in range(4)] for index in range(len(ends))]
    rows = zip(starts, ends, choices, texts, strict=True)
    return datasets.Dataset.from_list(
        [{"start": start, "end": end, "choices": four, "text": text[:300]} for start, end, four, text in rows]
    )


def tasks() -> dict[str, Any]:
    """One for each kind of request."""
    common = {"test_split": "test", "custom_dataset": lambda **_: {"test": documents()}, "num_fewshot": 0}
    start, mean = {"doc_to_text": "{{start}}"}, {"aggregation": "mean", "higher_is_better": True}
    likelihood = {
        **{"output_type": "loglikelihood", "doc_to_target": " {{end}}", **start},
        "metric_list": [{"metric": "perplexity", "aggregation": "perplexity"}, {"metric": "acc", **mean}],
    }
    choice = {
        **{"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": 0, **start},
        "metric_list": [{"metric": "acc", **mean}, {"metric": "acc_norm", **mean}],
    }
    generate = {
        **{"output_type": "generate_until", "doc_to_target": "{{end}}", **start},
        "generation_kwargs": {"until": ["."], "max_gen_toks": 8, "do_sample": False},
        "metric_list": [{"metric": "exact_match", **mean}],
    }
    names = ("word_perplexity", "byte_perplexity", "bits_per_byte")
    rolling = {
        **{"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"},
        "metric_list": [{"metric": name} for name in names],
    }
    kinds = {"likelihood": likelihood, "choice": choice, "generate": generate, "rolling": rolling}
    return {name: ConfigurableTask(config={"task": name, **common, **kind}) for name, kind in kinds.items()}


def evaluate(model: Any, tokenizer: Any, batch: int) -> Found:
    """What the harness makes of `model`."""
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, max_length=192, device="cpu")
    found = evaluator.evaluate(lm, tasks(), bootstrap_iters=0)
    assert found is not None
    likelihoods: dict[str, torch.Tensor] = {}
    texts: list[str] = []
    for name, samples in found["samples"].items():
        given = [each[0] for sample in sorted(samples, key=lambda sample: sample["doc_id"]) for each in sample["resps"]]
        if name == "generate":
            texts = given
        else:
            numbers = [each[0] if isinstance(each, (tuple, list)) else each for each in given]
            likelihoods[name] = torch.tensor(numbers, dtype=torch.float64)
    metrics = {
        name: {k: v for k, v in values.items() if "stderr" not in k} for name, values in found["results"].items()
    }
    return metrics, likelihoods, texts


def as_exact(ours: Found, stock: Found, exact: Found) -> None:
    """Texts and choices are stock's; likelihoods are as close to float64 as stock's, and so are perplexities."""
    assert ours[2] == stock[2] and any(ours[2])
    for name, values in ours[0].items():
        for metric, value in values.items():
            if metric.startswith(("acc", "exact_match")):
                assert value == stock[0][name][metric], (name, metric)
    for name, values in ours[1].items():
        assert relative_error(stock[1][name], exact[1][name]) < MOST * UNIT[torch.float32]
        assert_norm(values.float(), exact[1][name], stock[1][name].float())


@pytest.fixture(scope="module")
def stock() -> tuple[Any, Any]:
    return torch_foundry.load(demo_model_path(), device="cpu", dtype=torch.float32, patch=False, progress=False)


def in_float64(model: Any, tokenizer: Any) -> Found:
    with InFloat64():
        return evaluate(doubled(model), tokenizer, DOCUMENTS)


@pytest.mark.parametrize("batch", [1, DOCUMENTS])
def test_patched_models_have_stock_metrics(stock: tuple[Any, Any], batch: int) -> None:
    model, tokenizer = stock
    patched = torch_foundry.patch(copy.deepcopy(model))
    found = evaluate(patched, tokenizer, batch)
    seen = torch_foundry.report(patched)
    assert seen.fused and not seen.fallbacks
    as_exact(found, evaluate(model, tokenizer, batch), in_float64(model, tokenizer))
    assert {"word_perplexity,none", "acc_norm,none"} <= {key for values in found[0].values() for key in values}


@pytest.mark.parametrize("batch", [1, DOCUMENTS])
def test_packed_weights_have_the_metrics_of_the_same_numbers_dense(stock: tuple[Any, Any], batch: int) -> None:
    model, tokenizer = copy.deepcopy(stock[0]), stock[1]
    packed = torch_foundry.patch(model, quantize="q8_0")
    dense = torch_foundry.unpatch(torch_foundry.dequantize(copy.deepcopy(packed)))
    found = evaluate(packed, tokenizer, batch)
    assert torch_foundry.report(packed).packed and not torch_foundry.report(packed).fallbacks
    as_exact(found, evaluate(dense, tokenizer, batch), in_float64(dense, tokenizer))


def test_a_fault_is_noticed(stock: tuple[Any, Any]) -> None:
    model, tokenizer = stock
    wrong = copy.deepcopy(model)
    wrong.model.layers[0].mlp.down_proj.weight.data *= 1.001
    truth = evaluate(model, tokenizer, 8)
    with pytest.raises(AssertionError):
        as_exact(evaluate(wrong, tokenizer, 8), truth, in_float64(model, tokenizer))
