"""What users do with models, done to a patched one: everything behaves as it does with the stock model."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
)

import torch_foundry
from tests.patch.zoo import build, classes, ids, padded, shared
from torch_foundry.patch import patch, patched, report, unpatch
from torch_foundry.patch.state import FallbackWarning

PROMPT = ids(1, 12)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


@pytest.fixture
def pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A stock model and a patched copy of it."""
    stock = copy.deepcopy(shared("llama"))
    return stock, patch(copy.deepcopy(stock))


def tokens(model: Any, **options: Any) -> list[list[int]]:
    inputs = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    return model.generate(**inputs, max_new_tokens=12, **{"do_sample": False, **options}).tolist()


def fused_all(model: Any) -> bool:
    seen = report(model)
    return bool(seen.fused) and not seen.fallbacks


def gradients(model: PreTrainedModel, **inputs: Any) -> list[torch.Tensor]:
    model(PROMPT, labels=PROMPT, **inputs).loss.backward()
    return [p.grad for p in model.parameters()]


def assert_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


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


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("mode", ["train", "eval", "checkpointing"])
def test_gradients_are_those_of_stock(pair: Any, mode: str) -> None:
    for model in pair:
        model.train(mode != "eval")
        if mode == "checkpointing":
            model.gradient_checkpointing_enable()
    assert_equal(*(gradients(model) for model in pair))
    reason = "gradients are needed" if mode == "eval" else "training"
    assert report(pair[1]).fallbacks[reason]


def test_gradient_for_an_input_of_a_frozen_model(pair: Any) -> None:
    found = []
    for model in pair:
        model.requires_grad_(False)
        embeddings = model.get_input_embeddings()(PROMPT).clone().requires_grad_()
        model(inputs_embeds=embeddings).logits.sum().backward()
        found.append(embeddings.grad)
    assert torch.equal(*found)


def test_frozen_model_is_fused_with_grad_enabled(pair: Any) -> None:
    _, model = pair
    model.requires_grad_(False)
    model(PROMPT)
    assert fused_all(model)


def test_gradient_on_top_of_a_cache(pair: Any) -> None:
    """Prefill fused, then differentiate through a step on that cache."""
    found = []
    for model in pair:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(PROMPT, past_key_values=cache)
        model(ids(1, 4, seed=2), past_key_values=cache).logits.sum().backward()
        found.append([p.grad for p in model.parameters()])
    for ours, stock in zip(*found, strict=True):
        torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


def test_lora(pair: Any) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = []
    for model in pair:
        torch.manual_seed(3)
        adapted.append(peft.get_peft_model(model, config).eval())
    assert tokens(adapted[1]) == tokens(adapted[0])
    assert "self_attn.q_proj was replaced" in report(pair[1]).fallbacks

    for model in adapted:
        model.train()
    loss = [model(PROMPT, labels=PROMPT).loss for model in adapted]
    for value in loss:
        value.backward()
    trained = [[p.grad for p in model.parameters() if p.requires_grad] for model in adapted]
    assert_equal(*trained)

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
    assert all("v_proj is a Linear" in why for why in report(model).left.values()) and len(report(model).left) == 2
    merged = patch(model.merge_and_unload())
    assert tokens(merged) == expected
    assert report(merged).layers == 2 and not report(merged).left


# -------------------------------------------------------------------------------------------------- looking inside


def test_hidden_states_are_recorded_without_a_fallback(pair: Any) -> None:
    stock, model = pair
    with torch.no_grad():
        ours, theirs = (each(PROMPT, output_hidden_states=True).hidden_states for each in (model, stock))
    assert len(ours) == len(theirs) == 3
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert tokens(model) == tokens(stock), "the recorders stay installed"
    assert fused_all(model)


def test_attentions(pair: Any) -> None:
    for model in pair:
        model.set_attn_implementation("eager")
    with torch.no_grad():
        ours, theirs = (model(PROMPT, output_attentions=True).attentions for model in pair)
    assert len(ours) == len(theirs) == 2
    assert_equal(list(ours), list(theirs))
    assert report(pair[1]).fallbacks["output_attentions"] == 2


def test_hooks_on_submodules_run(pair: Any) -> None:
    stock, model = pair
    calls = []
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *_: calls.append(1))
    assert tokens(model) == tokens(stock)
    assert len(calls) == 12
    assert report(model).fallbacks == {"forward hook on mlp": 12}, "the other layer stays fused"
    handle.remove()
    fused = report(model).fused
    tokens(model)
    assert report(model).fused == fused + 24


def test_hooks_on_layers_run_fused(pair: Any) -> None:
    _, model = pair
    calls = []
    model.model.layers[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    model.model.layers[0].register_forward_hook(lambda *_: calls.append("after"))
    tokens(model)
    assert calls == ["before", "after"] * 12
    assert fused_all(model)


def test_compile(pair: Any) -> None:
    stock, model = pair
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        ours, theirs = compiled(PROMPT, use_cache=False).logits, stock(PROMPT, use_cache=False).logits
    torch.testing.assert_close(ours, theirs)


def test_autocast(pair: Any) -> None:
    stock, model = pair
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = model(PROMPT).logits, stock(PROMPT).logits
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


# --------------------------------------------------------------------------------------------------- other ways to run


def test_continuous_batching(pair: Any) -> None:
    settings = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
    memory = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)  # the default takes most of what there is
    prompts = [PROMPT[0].tolist(), PROMPT[0, :5].tolist()]
    found = []
    for model in pair:
        outputs = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=memory)
        found.append([outputs[key].generated_tokens for key in sorted(outputs)])
    assert found[0] == found[1] and len(found[0]) == 2
    assert not report(pair[1]).fused


def test_foreign_caches(pair: Any) -> None:
    options = {"cache_implementation": "static", "disable_compile": True}
    stock, model = pair
    assert tokens(model, **options) == tokens(stock)
    assert report(model).fallbacks["cache is StaticCache"] and not report(model).fused


def test_a_cache_moves_between_stock_and_patched(pair: Any) -> None:
    for family in ("llama", "mistral"):
        stock = copy.deepcopy(shared(family))
        model = patch(copy.deepcopy(stock))
        logits = []
        for order in ([stock, stock, stock], [stock, model, stock], [model, stock, model]):
            cache = DynamicCache(config=stock.config)
            with torch.no_grad():
                for seed, each in enumerate(order):
                    output = each(ids(2, 9, seed), past_key_values=cache).logits
            logits.append(output)
        for other in logits[1:]:
            torch.testing.assert_close(other, logits[0], rtol=1e-4, atol=1e-4)
        assert fused_all(model)


def test_inference_mode_cache_is_usable_outside(pair: Any) -> None:
    logits = []
    for each in pair:
        cache = DynamicCache(config=each.config)
        with torch.inference_mode():
            each(PROMPT, past_key_values=cache)
        with torch.no_grad():
            logits.append(each(ids(1, 3), past_key_values=cache).logits)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    assert fused_all(pair[1])


def test_packed_sequences_and_custom_masks(pair: Any) -> None:
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    blocks = torch.zeros(1, 1, 12, 12, dtype=torch.bool)
    blocks[..., :5, :5] = torch.ones(5, 5).tril().bool()
    blocks[..., 5:, 5:] = True
    with torch.no_grad():
        for inputs in ({"position_ids": positions}, {"attention_mask": blocks}):
            ours, theirs = (model(PROMPT, use_cache=False, **inputs).logits for model in pair)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert fused_all(pair[1])


def test_generation_extras(pair: Any) -> None:
    stock, model = pair

    class Collect:
        """A streamer that only counts."""

        def __init__(self) -> None:
            self.calls = 0

        def put(self, value: torch.Tensor) -> None:
            self.calls += 1

        def end(self) -> None: ...

    streamer = Collect()
    embeddings = stock.get_input_embeddings()(PROMPT)
    assert tokens(model, streamer=streamer) == tokens(stock) and streamer.calls == 13
    assert tokens(model, tokenizer=None) == tokens(stock)
    ours, theirs = (
        each.generate(inputs_embeds=embeddings, attention_mask=torch.ones_like(PROMPT), max_new_tokens=5)
        for each in (model, stock)
    )
    assert ours.tolist() == theirs.tolist()
    outputs = model.generate(
        **padded([6, 3]), max_new_tokens=4, return_dict_in_generate=True, output_scores=True, output_hidden_states=True
    )
    assert len(outputs.scores) == 4 and len(outputs.hidden_states) == 4
    assert fused_all(model)


def test_head_less_model_and_classifier() -> None:
    for attribute in ("AutoModel", "AutoModelForSequenceClassification"):
        torch.manual_seed(0)
        stock = getattr(transformers, attribute).from_config(shared("llama").config).eval()
        model = patch(copy.deepcopy(stock))
        with torch.no_grad():
            ours, theirs = (each(PROMPT)[0] for each in (model, stock))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert fused_all(model)
        assert classes(unpatch(model)) == classes(stock)


def test_functional_call_uses_the_given_weights(pair: Any) -> None:
    stock, model = pair
    weights = {name: 1.2 * value for name, value in stock.state_dict().items()}
    with torch.no_grad():
        ours, theirs = (torch.func.functional_call(each, weights, (PROMPT,)).logits for each in (model, stock))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_package_is_callable_like_its_function() -> None:
    model = copy.deepcopy(shared("llama"))
    assert torch_foundry.patch(model) is model
    assert torch_foundry.report(model).layers == 2
    torch_foundry.unpatch(model)


def test_device_map_sees_whole_layers() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = build("llama", layers=4)
    options = {"max_memory": {0: 400_000, "cpu": 10**9}, "no_split_module_classes": model._no_split_modules}
    assert accelerate.infer_auto_device_map(patch(model), **options) == accelerate.infer_auto_device_map(
        unpatch(model), **options
    )
