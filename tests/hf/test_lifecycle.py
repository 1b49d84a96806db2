"""What users do with models, done to a patched one: everything behaves as it does with the stock model."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedModel,
)

from tests.exact import assert_as_exact
from tests.hf.tiny_models import PROMPT, assert_equal, classes, fused_all, ids, shared, tokens
from torch_foundry.hf.api import patch, patched, report, unpatch
from torch_foundry.models.state import FallbackWarning

pytestmark = pytest.mark.usefixtures("quiet")


def gradients(model: PreTrainedModel, **inputs: Any) -> list[torch.Tensor]:
    model(PROMPT, labels=PROMPT, **inputs).loss.backward()
    return [p.grad for p in model.parameters()]


@torch.no_grad()
def one_step(model: Any) -> DynamicCache:
    """Returns the cache, which the graph of the step belongs to."""
    cache = DynamicCache(config=model.config)
    model(PROMPT, past_key_values=cache)
    model(ids(1, 1), past_key_values=cache)
    return cache


def with_drafts(model: Any) -> Any:
    return tokens(model, prompt_lookup_num_tokens=2)


def pack(model: Any) -> None:
    tokens(patch(model, quantize="q8_0"))


@pytest.mark.cpu_only  # on the mock every call is watched, so no step is captured
@pytest.mark.parametrize("use", [one_step, tokens, with_drafts, pack], ids=lambda use: use.__name__)
def test_a_model_that_is_dropped_is_freed_at_once(use: Callable[[Any], Any], pair: Any) -> None:
    """Weights, graphs and the memory that these write to, without Python's collector of circles."""
    model = copy.deepcopy(pair[1])
    kept = use(model)
    parts = [*model.modules(), *model.parameters(), *model.buffers(), model.model.decoder_plan().graphs]
    left = [weakref.ref(part) for part in parts]
    assert use is pack or report(model).steps
    gc.collect()
    gc.disable()
    try:
        del model, parts
        assert [part() for part in left if part() is not None] == []
    finally:
        gc.enable()
    del kept


# --------------------------------------------------------------------------------------------------- patch and unpatch


def test_unpatch_restores_exactly(pair: Any) -> None:
    stock, model = pair
    before = copy.deepcopy(stock)
    assert tokens(model) == tokens(stock)
    unpatch(model)
    assert classes(model) == classes(before)
    assert [set(m.__dict__) for m in model.modules()] == [set(m.__dict__) for m in stock.modules()]
    assert tokens(model) == tokens(stock)
    assert str(report(model)) == "not patched"


def test_patching_twice_changes_nothing(pair: Any) -> None:
    _, model = pair
    found = classes(model)
    assert patch(model) is model
    assert classes(model) == found
    tokens(model)
    assert fused_all(model)


def test_context_manager() -> None:
    model = copy.deepcopy(shared("llama"))
    found = classes(model)
    with patched(model) as same:
        assert same is model and report(model).layers == 2
    assert classes(model) == found
    patch(model)
    with patched(model):
        pass
    assert report(model).layers == 2, "a model that was patched before stays patched"


def test_two_models_are_independent(pair: Any) -> None:
    stock, model = pair
    other = copy.deepcopy(stock)
    tokens(other)
    assert not report(other).swapped
    patch(other)
    unpatch(model)
    tokens(other)
    assert fused_all(other) and not report(model).swapped


def test_names_are_those_of_transformers(pair: Any) -> None:
    stock, model = pair
    assert [c.__name__ for c in classes(model)] == [c.__name__ for c in classes(stock)]
    assert [str(c) for c in classes(model)] == [str(c) for c in classes(stock)]
    assert "FoundryLlamaDecoderLayer" in str(model) and "FoundryLlamaForCausalLM" in str(model)


# ---------------------------------------------------------------------------------------------------- copies and files


def test_state_dict_is_untouched(pair: Any) -> None:
    a, b = (model.state_dict() for model in pair)
    assert list(a) == list(b)
    assert_equal(list(a.values()), list(b.values()))


def test_save_and_reload(pair: Any, tmp_path: Path) -> None:
    stock, model = pair
    model.save_pretrained(tmp_path / "patched")
    stock.save_pretrained(tmp_path / "stock")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "patched" / name).read_bytes() == (tmp_path / "stock" / name).read_bytes()
    assert tokens(AutoModelForCausalLM.from_pretrained(tmp_path / "patched")) == tokens(stock)


def test_what_its_class_makes_is_stock(pair: Any, tmp_path: Path) -> None:
    stock, model = pair
    stock.save_pretrained(tmp_path)
    for made in (type(model).from_pretrained(tmp_path), type(model)(stock.config).eval()):
        made.load_state_dict(stock.state_dict())
        made.generation_config = stock.generation_config
        assert classes(made) == classes(stock) and tokens(made) == tokens(stock)
        assert not report(made).swapped and fused_all_of(patch(made))
    layer = model.model.layers[0]
    assert type(type(layer)(stock.config, layer_idx=1)) is type(stock.model.layers[0])


def fused_all_of(model: Any) -> bool:
    tokens(model)
    return fused_all(model)


def test_deepcopy_of_a_parametrized_model(pair: Any) -> None:
    for model in pair:
        nn.utils.parametrizations.weight_norm(model.lm_head)
        nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    stock, model = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert tokens(copy.deepcopy(model)) == tokens(stock) == tokens(model)


def test_deepcopy_is_patched_and_separate(pair: Any) -> None:
    stock, model = pair
    tokens(model)
    calls = report(model).fused
    twin = copy.deepcopy(model)
    assert tokens(twin) == tokens(stock)
    assert fused_all(twin) and report(twin).fused == calls == report(model).fused
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert tokens(model) == tokens(stock)
    assert twin.model.layers[0]._foundry.state is twin._foundry.state is not model._foundry.state


@pytest.mark.parametrize("through", ["pickle", "torch.save"])
def test_pickle(pair: Any, through: str) -> None:
    stock, model = pair
    if through == "pickle":
        loaded = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
    assert tokens(loaded) == tokens(stock)
    assert fused_all(loaded)
    assert classes(unpatch(loaded)) == classes(stock)


def test_weights_may_change_at_any_time(pair: Any) -> None:
    stock, model = pair
    tokens(model)
    for assign in (False, True):
        state = {name: 1.1 * value for name, value in stock.state_dict().items()}
        for each in pair:
            each.load_state_dict({name: value.clone() for name, value in state.items()}, assign=assign)
        assert tokens(model) == tokens(stock)
    assert fused_all(model)


def test_to_dtype(pair: Any) -> None:
    _, model = pair
    tokens(model)
    model.to(torch.bfloat16)
    assert len(tokens(model)[0]) == 24
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert fused_all(model)
    model.double()
    tokens(model)
    assert "dtype float64" in report(model).fallbacks


def test_scaled_embedding_follows_its_buffer() -> None:
    """bfloat16 and back leaves Gemma's factor rounded, in stock and here."""
    stock = copy.deepcopy(shared("gemma"))
    model = patch(copy.deepcopy(stock))
    tokens(model)
    for each in (stock, model):
        each.to(torch.bfloat16).to(torch.float32)
    with torch.no_grad():
        assert torch.equal(model.model.embed_tokens(PROMPT), stock.model.embed_tokens(PROMPT))
    assert fused_all(model)


def test_resized_embeddings(pair: Any) -> None:
    for model in pair:
        torch.manual_seed(0)
        model.resize_token_embeddings(130, mean_resizing=False)
    assert tokens(pair[1]) == tokens(pair[0])
    assert "lm_head" not in report(pair[1]).swapped, "transformers made a new one"
    assert "lm_head" in report(patch(pair[1])).swapped
    assert tokens(pair[1]) == tokens(pair[0])


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("mode", ["train", "eval", "checkpointing"])
def test_gradients_are_those_of_stock(pair: Any, mode: str) -> None:
    stock, model = (each.train(mode != "eval") for each in pair)
    if mode == "checkpointing":
        model.gradient_checkpointing_enable()
    assert_as_exact(gradients, model, stock)
    reason = "gradients are needed" if mode == "eval" else "training"
    assert report(pair[1]).fallbacks[reason]


def test_gradient_for_an_input_of_a_frozen_model(pair: Any) -> None:
    def of_embeddings(model: Any, embeddings: torch.Tensor) -> torch.Tensor:
        embeddings.requires_grad_()
        model(inputs_embeds=embeddings).logits.sum().backward()
        assert embeddings.grad is not None
        return embeddings.grad

    stock, model = (each.requires_grad_(False) for each in pair)
    assert_as_exact(of_embeddings, model, stock, stock.get_input_embeddings()(PROMPT).clone())


def test_frozen_model_is_fused_with_grad_enabled(pair: Any) -> None:
    _, model = pair
    model.requires_grad_(False)
    model(PROMPT)
    assert fused_all(model)


def test_gradient_on_top_of_a_cache(pair: Any) -> None:
    """Prefill fused, then differentiate through a step on that cache."""

    def of_a_step(model: Any) -> list[Any]:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(PROMPT, past_key_values=cache)
        model(ids(1, 4, seed=2), past_key_values=cache).logits.sum().backward()
        return [p.grad for p in model.parameters()]

    stock, model = pair
    assert_as_exact(of_a_step, model, stock)


def test_lora(pair: Any) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = []
    for model in pair:
        torch.manual_seed(3)
        adapted.append(peft.get_peft_model(model, config).eval())
    assert tokens(adapted[1]) == tokens(adapted[0])
    assert "self_attn.q_proj was replaced" in report(pair[1]).fallbacks

    def trained(model: Any) -> list[torch.Tensor]:
        model.train()(PROMPT, labels=PROMPT).loss.backward()
        return [p.grad for p in model.parameters() if p.requires_grad]

    assert_as_exact(trained, adapted[1], adapted[0])

    merged = [model.eval().merge_and_unload() for model in adapted]
    before = report(merged[1])
    assert tokens(merged[1]) == tokens(merged[0])
    after = report(merged[1])
    assert after.fused > before.fused and after.fallbacks == before.fallbacks, "fused again by itself"


def test_patching_an_adapted_model() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(copy.deepcopy(shared("llama")), config).eval()
    expected = tokens(model)
    patch(model)
    assert tokens(model) == expected
    reasons = report(model).not_replaced.values()
    assert len(reasons) == 2 and all("v_proj is a Linear" in why for why in reasons)
    merged = patch(model.merge_and_unload())
    assert tokens(merged) == expected
    assert report(merged).layers == 2 and not report(merged).not_replaced
