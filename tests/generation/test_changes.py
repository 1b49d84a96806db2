"""A model that has changed since its graphs were captured: they are captured again, or not used."""

from __future__ import annotations

import copy
import pickle
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf.tiny_models import build, ids, shared
from torch_foundry.core import runtime
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.api import report, unpatch

pytestmark = pytest.mark.usefixtures("quiet")
Change = Callable[[Any], Any]


@torch.no_grad()
def step(model: Any, cache: DynamicCache, seed: int) -> torch.Tensor:
    return model(input_ids=ids(1, 1, seed=seed), past_key_values=cache).logits


def started(family: str = "llama") -> tuple[Any, DynamicCache]:
    """A patched model of its own, in the middle of a text."""
    model = torch_foundry.patch(copy.deepcopy(shared(family)))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids(1, 9), past_key_values=cache)
    for seed in range(3):
        step(model, cache, seed)
    assert (report(model).steps, report(model).captured) == (3, 1)
    return model, cache


def other_weights(model: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {n: t + 0.05 * torch.randn(t.shape, generator=generator) for n, t in model.state_dict().items()}


def assign(model: Any) -> None:
    model.load_state_dict(other_weights(model), assign=True)


def new_data(model: Any) -> None:
    for name, value in other_weights(model).items():
        model.get_parameter(name).data = value


def new_parameter(model: Any) -> None:
    norm = model.model.layers[1].input_layernorm
    norm.weight = nn.Parameter(2 * norm.weight)


def new_last_norm(model: Any) -> None:
    model.model.norm.weight = nn.Parameter(2 * model.model.norm.weight)


def new_embedding(model: Any) -> None:
    model.model.embed_tokens.weight = nn.Parameter(2 * model.model.embed_tokens.weight)


def fewer_layers(model: Any) -> None:
    model.config.num_hidden_layers = 1


def other_rope(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(0.5)


def other_rope_buffer(model: Any) -> None:
    model.model.rotary_emb.inv_freq = 0.5 * model.model.rotary_emb.inv_freq


def other_eps(model: Any) -> None:
    model.model.layers[1].input_layernorm.variance_epsilon = 0.5


def other_last_eps(model: Any) -> None:
    model.model.norm.variance_epsilon = 0.5


RECORDED_AGAIN: list[Change] = [
    assign, new_data, new_parameter, new_last_norm, new_embedding, fewer_layers, other_rope, other_rope_buffer,
    other_eps, other_last_eps,
]  # fmt: skip


@pytest.mark.parametrize("change", RECORDED_AGAIN, ids=lambda f: f.__name__)
def test_what_makes_graphs_anew(change: Change) -> None:
    model, cache = started()
    unlike, copied = step(model, copy.deepcopy(cache), 9), copy.deepcopy(cache)
    change(model)
    found = step(model, cache, 9)
    assert report(model).captured == 3 and not report(model).eager  # one for the copy of the cache
    stock = copy.deepcopy(shared("llama"))
    change(stock)
    assert_found_as_exact(found, step, stock, copied, 9)
    assert not torch.allclose(found, unlike, atol=1e-3)
    step(model, cache, 10)
    assert report(model).captured == 3


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_values_that_change_in_place(family: str) -> None:
    """Merging an adapter, say: the same graph reads the new values."""
    model, cache = started(family)
    stock, copied = copy.deepcopy(shared(family)), copy.deepcopy(cache)
    for each in (model, stock):
        with torch.no_grad():
            for parameter in each.parameters():
                parameter.mul_(1.1)
    assert_found_as_exact(step(model, cache, 9), step, stock, copied, 9)
    assert report(model).captured == 1


def test_the_factor_on_gemmas_embedding() -> None:
    model, cache = started("gemma")
    stock, copied = copy.deepcopy(shared("gemma")), copy.deepcopy(cache)
    for each in (model, stock):
        each.model.embed_tokens.embed_scale.mul_(1.5)
    assert_found_as_exact(step(model, cache, 9), step, stock, copied, 9)


def hook_on_layer(model: Any) -> Any:
    return model.model.layers[0].register_forward_hook(lambda m, a, out: 2 * out)


def hook_on_mlp(model: Any) -> Any:
    return model.model.layers[1].mlp.register_forward_pre_hook(lambda m, args: (2 * args[0],))


def hook_on_norm(model: Any) -> Any:
    return model.model.norm.register_forward_hook(lambda m, a, out: 2 * out)


def hook_on_decoder(model: Any) -> Any:
    def twice(module: Any, args: Any, out: Any) -> Any:
        out.last_hidden_state = 2 * out.last_hidden_state
        return out

    return model.model.register_forward_hook(twice)


def global_hook(model: Any) -> Any:
    norm = model.model.norm
    return nn.modules.module.register_module_forward_hook(lambda m, a, out: 2 * out if m is norm else None)


HOOKS: list[Change] = [hook_on_layer, hook_on_mlp, hook_on_norm, hook_on_decoder, global_hook]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda f: f.__name__)
def test_hooks_run(hook: Change) -> None:
    model, cache = started()
    copied = copy.deepcopy(cache)
    handle = hook(model)
    found = step(model, cache, 9)
    handle.remove()
    assert report(model).steps == 3 and sum(report(model).eager.values()) == 1
    stock = copy.deepcopy(shared("llama"))

    def hooked(each: Any, kept: DynamicCache) -> torch.Tensor:
        handle = hook(each)
        logits = step(each, kept, 9)
        handle.remove()
        return logits

    assert_found_as_exact(found, hooked, stock, copied)
    step(model, cache, 10)
    assert report(model).steps == 4, "graphs again once the hook is gone"


def train(model: Any) -> None:
    model.train()


def train_one_layer(model: Any) -> None:
    model.model.layers[1].train()


def switch_off(model: Any) -> None:
    model._foundry.state.enabled = False


def replace_forward(model: Any) -> None:
    model.model.layers[0].mlp.forward = model.model.layers[0].mlp.forward


def replace_module(model: Any) -> None:
    model.model.layers[0].mlp.up_proj = copy.deepcopy(model.model.layers[0].mlp.up_proj)


def mixed_dtypes(model: Any) -> None:
    model.model.norm.weight.data = model.model.norm.weight.data.bfloat16()


def hidden_states_by_config(model: Any) -> None:
    model.config.output_hidden_states = True


NOT_USED: list[tuple[Change, str]] = [
    (train, "training"),
    (train_one_layer, "training"),
    (replace_forward, "was replaced"),
    (replace_module, "mlp.up_proj was replaced"),
    (hidden_states_by_config, "outputs of layers"),
]


@pytest.mark.parametrize(("change", "reason"), NOT_USED, ids=lambda x: getattr(x, "__name__", ""))
def test_what_keeps_graphs_from_being_used(change: Change, reason: str) -> None:
    model, cache = started()
    change(model)
    step(model, cache, 9)
    assert report(model).steps == 3
    assert reason in next(iter(report(model).eager)), str(report(model))


@torch.no_grad()
def test_other_attention_implementations() -> None:
    model, _ = started()
    plan = model.model.decoder_plan()
    plan.check()
    model.set_attn_implementation("eager")
    plan.check()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(Fallback, match="attention implementation flex_attention"):
        plan.check()


def test_a_dispatch_mode_sees_every_op() -> None:
    class Count(TorchDispatchMode):
        """Counts our ops."""

        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += func.namespace == "torch_foundry"
            return func(*args, **(kwargs or {}))

    model, cache = started()
    with Count() as count:
        step(model, cache, 9)
    assert count.calls > 10
    assert report(model).eager == {"a dispatch mode is active": 1}


def test_switched_off_is_silent() -> None:
    model, cache = started()
    copied = copy.deepcopy(cache)
    switch_off(model)
    assert torch.equal(step(model, cache, 9), step(shared("llama"), copied, 9))
    assert report(model).steps == 3 and not report(model).eager


def test_grad() -> None:
    model, cache = started()
    assert model(input_ids=ids(1, 1), past_key_values=cache).logits.requires_grad
    assert report(model).eager == {"gradients are needed": 1}
    model, cache = started()
    model.requires_grad_(False)
    model(input_ids=ids(1, 1), past_key_values=cache)
    assert report(model).steps == 4


def test_outputs_that_only_layers_have() -> None:
    model, cache = started()
    stock, copied = copy.deepcopy(shared("llama")), copy.deepcopy(cache)
    with torch.no_grad():
        ours = model(input_ids=ids(1, 1), past_key_values=cache, output_hidden_states=True)
        theirs = stock(input_ids=ids(1, 1), past_key_values=copied, output_hidden_states=True)
    assert len(ours.hidden_states) == len(theirs.hidden_states) == 3
    assert report(model).steps == 3
    step(model, cache, 2)
    assert report(model).steps == 4, "transformers' recorders stay installed, but rest"
    with torch.no_grad():
        assert isinstance(model(input_ids=ids(1, 1), past_key_values=cache, return_dict=False), tuple)
        assert isinstance(model.model(input_ids=ids(1, 1), past_key_values=cache, return_dict=False), tuple)


def test_other_dtypes() -> None:
    model, cache = started()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        model.to(dtype)
        fresh = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids(1, 9), past_key_values=fresh)
        copied = copy.deepcopy(fresh)
        found = step(model, fresh, 9)
        assert found.dtype == dtype
        model.model.decoder_plan().guard = None
        assert torch.equal(found, step(model, copied, 9))
    step(model, cache, 9)
    assert report(model).steps == 3 + 2 * 3 + 1
    model.to(torch.float64)
    with torch.no_grad():
        model(ids(1, 9), past_key_values=(doubles := DynamicCache(config=model.config)))
    step(model, doubles, 9)
    assert report(model).eager


def test_old_weights_are_given_up() -> None:
    model, _ = started()
    old = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    model.load_state_dict(other_weights(model), assign=True)
    assert old() is None
    model, _ = started()
    old = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    torch_foundry.patch(model, quantize="q8_0")
    assert old() is None


def test_lora() -> None:
    peft = pytest.importorskip("peft")
    model, cache = started()
    stock, copied = copy.deepcopy(shared("llama")), copy.deepcopy(cache)

    def adapted_and_merged(base: Any, kept: DynamicCache) -> list[torch.Tensor]:
        settings = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
        torch.manual_seed(3)
        tuned = peft.get_peft_model(base, settings).eval()
        return [step(tuned, kept, 9), step(tuned.merge_and_unload(), kept, 10)]

    assert_found_as_exact(adapted_and_merged(model, cache), adapted_and_merged, stock, copied)
    assert report(model).steps == 4, str(report(model))


def test_copies_and_pickles_make_their_own() -> None:
    model, cache = started()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        kept = copy.deepcopy(cache)
        assert_found_as_exact(step(other, kept, 9), step, shared("llama"), cache, 9)
        assert report(other).steps == 1
    assert report(model).steps == 3


def test_unpatched_and_patched_again() -> None:
    model, cache = started()
    copied = copy.deepcopy(cache)
    unpatch(model)
    assert torch.equal(step(model, cache, 9), step(shared("llama"), copied, 9))
    torch_foundry.patch(model)
    step(model, cache, 10)
    assert report(model).steps == 1


@pytest.mark.tier("models")
def test_other_shaders(tmp_path: Path) -> None:
    model, cache = started()
    copied = copy.deepcopy(cache)
    directory = shutil.copytree(Path(torch_foundry.__file__).parents[1] / "shaders", tmp_path / "shaders")
    with runtime.use_shaders(directory):
        found = step(model, cache, 9)
    assert torch.equal(found, step(model, copied, 9))
    assert report(model).captured == 3


@pytest.mark.parametrize("family", ["llama", "gemma", "qwen2"])
def test_packed_weights(family: str) -> None:
    stock = build(family, layers=2)
    model = torch_foundry.patch(stock, quantize="q8_0")
    stock = unpatch(copy.deepcopy(model), dequantize=True)

    @torch.no_grad()
    def steps(each: Any, **options: Any) -> list[torch.Tensor]:
        cache = DynamicCache(config=each.config)
        each(ids(2, 9), past_key_values=cache)
        given = [ids(2, 1, seed=seed) for seed in range(4)]
        return [each(input_ids=tokens, past_key_values=cache, **options).logits for tokens in given]

    assert_found_as_exact(steps(model), steps, stock)
    assert_found_as_exact(steps(model, output_hidden_states=True), steps, stock)  # layer by layer
    assert report(model).steps == 4
    model.to(torch.bfloat16)
    with torch.no_grad():
        model(ids(2, 9), past_key_values=(cache := DynamicCache(config=model.config)))
        assert model(input_ids=ids(2, 1), past_key_values=cache).logits.dtype == torch.bfloat16
    assert report(model).steps == 5
