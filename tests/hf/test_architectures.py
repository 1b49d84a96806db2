"""Other architectures than the known ones are patched as far as they are understood, and never wrongly."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.exact import assert_as_exact
from tests.hf.tiny_models import build, classes, config, ids, random_model, shared
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.api import patch, report
from torch_foundry.models.families import EMBEDDINGS, NORMS
from torch_foundry.models.family import MODELS, class_key
from torch_foundry.models.moe import ExpertsSpec
from torch_foundry.models.spec import build_spec

PROMPT = ids(2, 10)


@torch.no_grad()
def logits(model: Any, **inputs: Any) -> torch.Tensor:
    return model(PROMPT, **inputs).logits


def report_of_equal_results(stock: Any) -> Any:
    """The report of a patched copy, whose logits and greedy tokens are those of `stock`."""
    model = patch(copy.deepcopy(stock))
    assert_as_exact(logits, model, stock)
    model.generation_config.eos_token_id = stock.generation_config.eos_token_id = None
    tokens = [m.generate(PROMPT, max_new_tokens=8, do_sample=False).tolist() for m in (model, stock)]
    assert tokens[0] == tokens[1]
    return report(model)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("MixtralConfig", {"num_local_experts": 64, "num_experts_per_tok": 33}, "33 of 64 experts"),
        ("DiffLlamaConfig", {}, "not a known decoder layer"),
        ("LlamaConfig", {"head_dim": 24}, "head_dim 24"),
        ("LlamaConfig", {"hidden_act": "tanh"}, "activation Tanh"),
        ("Gemma3TextConfig", {"use_bidirectional_attention": True}, "attention is not causal"),
    ],
)
def test_architectures_that_are_not_understood(name: str, options: dict[str, Any], why: str) -> None:
    """Leaves are swapped all the same; results are those of stock."""
    seen = report_of_equal_results(random_model(config(name, **options)))
    left = [text for name, text in seen.not_replaced.items() if name.startswith("model.layers.")]
    assert seen.layers == 0 and len(left) == 2 and all(why in text for text in left)
    assert seen.fused_leaf_modules and not seen.fallbacks, str(seen)


@pytest.mark.parametrize("head_dim", [80, 112])
@torch.no_grad()
def test_heads_that_are_no_multiple_of_32(head_dim: int) -> None:
    seen = report_of_equal_results(random_model(config("LlamaConfig", head_dim=head_dim)))
    assert seen.layers == 2 and not seen.fallbacks and not seen.not_replaced, str(seen)


def test_the_first_gpt_has_nothing_like_a_decoder_layer() -> None:
    stock = random_model(transformers.OpenAIGPTConfig(n_embd=64, n_head=2, n_layer=2, vocab_size=120))
    model = patch(copy.deepcopy(stock))
    assert_as_exact(logits, model, stock)
    whole = {"OpenAIGPTLMHeadModel", "OpenAIGPTModel"}
    assert set(report(model).swapped.values()) == whole | {"Conv1D", "Embedding", "LayerNorm", "Linear"}
    assert not report(model).fallbacks, str(report(model))


def test_some_layers_understood_some_not() -> None:
    stock = copy.deepcopy(shared("llama"))

    class Adapter(nn.Linear):
        """A linear layer that may do something else."""

    odd = Adapter(64, 96, bias=False)
    stock.model.layers[0].mlp.gate_proj = odd
    model = patch(copy.deepcopy(stock))
    assert_as_exact(logits, model, stock)
    assert report(model).layers == 1
    assert report(model).not_replaced == {"model.layers.0": "gate_proj is a Adapter"}


def test_subclasses_are_not_their_base() -> None:
    class Custom(transformers.models.llama.modeling_llama.LlamaDecoderLayer):
        """A decoder layer that does more."""

        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 2 * super().forward(*args, **kwargs)

    stock = copy.deepcopy(shared("llama"))
    stock.model.layers[1].__class__ = Custom
    model = patch(copy.deepcopy(stock))
    assert_as_exact(logits, model, stock)
    assert list(report(model).not_replaced) == ["model.layers.1"]


def test_plain_modules() -> None:
    model = nn.Sequential(nn.Embedding(50, 40), nn.Linear(40, 33), nn.GELU(), nn.Linear(33, 7), nn.LayerNorm(7))
    x = torch.randint(50, (3, 5))
    with torch.no_grad():
        assert_as_exact(lambda each: each(x), patch(copy.deepcopy(model)), model)
        patch(model)(x)
    assert report(model).fused_leaf_modules == 4
    images = nn.LayerNorm((3, 5))
    assert not report(patch(images)).swapped, "it is of matrices"
    limited = nn.Sequential(nn.Embedding(50, 40, max_norm=1.0))
    assert not report(patch(limited)).swapped, "renormalises its weight"


def test_nothing_changes_if_building_a_plan_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_foundry.models import tensor_parallel

    model = copy.deepcopy(shared("llama"))
    before = classes(model)
    built = iter([build_spec, None])
    monkeypatch.setattr(tensor_parallel, "build_spec", lambda module: next(built)(module))
    with pytest.raises(TypeError):
        patch(model)
    assert classes(model) == before and not report(model).swapped


def test_classes_of_the_tables_exist() -> None:
    """A class that transformers renames would otherwise be left alone without anybody noticing."""
    import importlib

    from torch_foundry.models.families import BLOCKS, DECODERS, EXPERTS, FAMILIES, HEADS, ROTARIES, WRAPPERS
    from torch_foundry.nn.activations import ACTIVATIONS

    tables = [NORMS, DECODERS, HEADS, WRAPPERS, EMBEDDINGS, EXPERTS, ROTARIES, BLOCKS]
    for key in [*FAMILIES, *(key for table in tables for key in table)]:
        module, name = (MODELS + key).rsplit(".", 1)
        assert class_key(getattr(importlib.import_module(module), name)) == key
    for key in ACTIVATIONS:
        module, name = key.rsplit(".", 1)
        assert class_key(getattr(importlib.import_module(module), name)) == key


def test_spec_reads_what_differs_between_layers() -> None:
    model = build("gemma3")
    assert [build_spec(layer).mixer.facts.window for layer in model.model.layers] == [12, 0]
    assert build_spec(build("gemma2").model.layers[0]).mixer.facts.softcap == 50.0
    assert [build_spec(layer).mixer.facts.rope for layer in build("smollm3").model.layers] == [True, False]
    assert build_spec(build("granite").model.layers[0]).residual_scale == 0.4
    blocks = [build_spec(layer).ffn for layer in build("qwen2_moe").model.layers]
    assert [isinstance(block, ExpertsSpec) for block in blocks] == [True, False]


def test_norms_of_queries_and_keys_that_differ_are_refused() -> None:
    for family in ("qwen3", "olmo2"):
        layer: Any = build(family).model.layers[0]
        layer.self_attn.k_norm.variance_epsilon *= 2
        with pytest.raises(Fallback, match="norms of queries and keys differ"):
            build_spec(layer)


def test_other_modules_are_refused() -> None:
    with pytest.raises(Fallback, match="Linear of torch"):
        build_spec(nn.Linear(1, 1))
