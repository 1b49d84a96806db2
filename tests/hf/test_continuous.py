"""transformers' continuous batching on patched models: tokens of the stock model, by our kernels."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import model_runner

import torch_foundry
from tests.hf.tiny_models import build, fused_all, ids, shared
from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.hf import continuous_batching
from torch_foundry.hf.api import patch, report
from torch_foundry.kvcache import view

pytestmark = pytest.mark.usefixtures("quiet")
PROMPTS = [ids(1, length, seed=length)[0].tolist() for length in (12, 5, 40, 1, 20)]


def generated(model: Any, *, page: int = 16, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[list[int]]:
    """Twenty tokens each; prompts go in pieces of at most 24 tokens, beside those that generate."""
    settings = GenerationConfig(max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0)
    given = {"num_blocks": 640 // page, "max_batch_tokens": 24, "page_size": page, **options}
    memory = ContinuousBatchingConfig(**given)  # the default takes most of what there is
    outputs = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=memory)
    assert len(outputs) == len(prompts) and all(len(o.generated_tokens) == 20 for o in outputs.values())
    return [outputs[key].generated_tokens for key in sorted(outputs)]


def alone(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The same, one prompt at a time."""
    options = {"max_new_tokens": 20, "do_sample": False}
    return [model.generate(torch.tensor([p]), **options)[0, len(p) :].tolist() for p in prompts]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How attention was called: on pages, or on what was gathered from them."""
    count: Counter[str] = Counter()

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        kind = "gathered" if kwargs.get("block_table") is None else "pages"
        queries = args[0].shape[2]
        count[kind if kind == "gathered" else f"{kind}, {'one token' if queries == 1 else 'a prompt'}"] += 1
        return ops.attention(*args, **kwargs)

    class Spied:
        def __getattr__(self, name: str) -> Any:
            return attention if name == "attention" else getattr(ops, name)

    monkeypatch.setattr(view, "ops", Spied())
    yield count


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", {"pages, one token", "pages, a prompt"}),
        ("smollm3", {"pages, one token", "pages, a prompt"}),  # layers with and without rope
        ("gpt2", {"pages, one token", "pages, a prompt"}),
        ("qwen3_moe", {"pages, one token", "pages, a prompt"}),
        ("mistral", {"gathered"}),
        ("gemma3", {"pages, one token", "pages, a prompt", "gathered"}),
        ("gemma2", {"pages, one token", "pages, a prompt", "gathered"}),
    ],
)
def test_tokens_are_the_stock_models(family: str, expected: set[str], calls: Counter[str]) -> None:
    stock, model = shared(family), patch(copy.deepcopy(shared(family)))
    assert generated(model) == generated(stock)
    assert fused_all(model) and set(calls) == expected
    steps = report(model).fused // 2  # of two layers
    assert sum(calls.values()) >= 2 * steps, "every layer of every step"


@pytest.mark.tier("models")
@pytest.mark.parametrize("page", [24, 64])
def test_pages_of_other_sizes(page: int, calls: Counter[str]) -> None:
    stock, model = shared("llama"), patch(copy.deepcopy(shared("llama")))
    assert generated(model, page=page) == generated(stock, page=page)
    assert fused_all(model) and ("gathered" in calls) == (page == 24)


@pytest.mark.tier("models")
def test_pages_that_kernels_can_not_index(calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stock, model = shared("llama"), patch(copy.deepcopy(shared("llama")))
    monkeypatch.setattr(continuous_batching, "LARGEST", 1000)
    assert generated(model) == generated(stock)
    assert fused_all(model) and set(calls) == {"gathered"}


def test_shared_beginnings_and_few_pages(calls: Counter[str]) -> None:
    """Prompts that share pages; so few that requests wait, or are computed again."""
    beginning = ids(1, 33)[0].tolist()
    prompts = [[*beginning, 3 + i] for i in range(6)]
    stock, model = shared("llama"), patch(copy.deepcopy(shared("llama")))
    assert generated(model, prompts=prompts, num_blocks=10) == alone(stock, prompts)
    assert fused_all(model)


def test_padded_batches(calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As before CUDA graphs are captured: there are tokens and requests that nobody asked for."""
    always = property(lambda self: True, lambda self, value: None)
    runner = next(c for name, c in vars(model_runner).items() if name.endswith("ModelRunner"))
    stock, model = shared("llama"), patch(copy.deepcopy(shared("llama")))
    expected = generated(stock)
    monkeypatch.setattr(runner, "pad_inputs", always, raising=False)
    padding: dict[str, Any] = {"q_padding_interval_size": 8, "kv_padding_interval_size": 64, "use_cuda_graph": False}
    assert generated(model, **padding) == expected
    assert fused_all(model) and "gathered" not in calls


def test_packed_weights() -> None:
    model = torch_foundry.patch(build("llama"), quantize="q8_0")
    assert generated(model) == alone(model, PROMPTS)


def test_what_stock_code_has_to_do() -> None:
    stock, model = shared("llama"), patch(copy.deepcopy(shared("llama")))
    model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda *_: None)
    assert generated(model) == generated(stock)
    seen = report(model)
    assert set(seen.fallbacks) == {"forward hook on self_attn.o_proj"} and seen.fused, "the other layer"


def test_another_kind_of_cache() -> None:
    spec: Any = None
    with pytest.raises(Fallback, match="cache is object"):
        continuous_batching.Continuous(0, spec, {"cache": object()})
