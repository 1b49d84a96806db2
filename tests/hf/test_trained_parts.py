"""Norms, MLPs and rotations of layers that run stock code to be differentiated: gradients of every family, what a step
saves and calls, and whatever hooks, adapters and copies expect of stock modules."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama import modeling_llama

from tests.exact import InFloat64, assert_as_exact, doubled
from tests.hf.tiny_cases import ALL_FAMILIES, KIN
from tests.hf.tiny_models import build, classes, ids, shared
from torch_foundry.hf.api import patch, report, unpatch
from torch_foundry.hf.training import TrainedAttentionMixin, TrainedMixin, TrainedMLPMixin, TrainedNormMixin
from torch_foundry.testing.tolerance import assert_norm

pytestmark = pytest.mark.usefixtures("quiet")
PROMPT = ids(2, 12)
NAMES = [*ALL_FAMILIES, *KIN]
# Attention whose scale is 1: what makes scores small lies in the trained weights of its norm, not in random ones. With
# those a weight's last bit moves gradients by 40 to 300 roundings, with a quarter of them by 10 to 25.
UNSCALED = "gemma3n", "gemma4_e"
# Of which no part has an op with a backward: LayerNorms, no rotation, no gates.
WITHOUT = "gpt2", "gpt2-by-layer", "gpt_bigcode", "gpt_neo", "opt", "opt-plain"
KINDS = (TrainedNormMixin, TrainedMLPMixin, TrainedAttentionMixin)


def gradients(model: Any, **inputs: Any) -> list[Tensor]:
    """Of the norms' weights, and of all others, one after the other."""
    model.zero_grad(set_to_none=True)
    model(PROMPT, labels=PROMPT, use_cache=False, **inputs).loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norms = [grad.flatten() for name, grad in found.items() if "norm" in name]
    rest = [grad.flatten() for name, grad in found.items() if "norm" not in name]
    return [torch.cat(each) for each in (norms, rest) if each]


def parts(model: nn.Module) -> Counter[str]:
    """How many modules there are of each kind of part."""
    return Counter(kind.__name__ for module in model.modules() for kind in KINDS if isinstance(module, kind))


@pytest.mark.tier("models", quick=4)
@pytest.mark.parametrize("family", NAMES)
def test_gradients_are_as_exact_as_stock(family: str) -> None:
    stock = build(family)
    if family in UNSCALED:
        stock = copy.deepcopy(stock)
        with torch.no_grad():
            for layer in stock.model.layers:
                layer.self_attn.q_norm.weight /= 4
    ours = patch(copy.deepcopy(stock))
    assert_as_exact(gradients, ours, stock)
    ran = [module._foundry.fused for module in ours.modules() if isinstance(module, TrainedMixin)]
    assert all(ran) and bool(ran) != (family in WITHOUT) and report(ours).trained == sum(ran), report(ours).fallbacks


@pytest.mark.parametrize("mode", [None, False, True], ids=["whole", "checkpoints", "reentrant checkpoints"])
def test_training_and_checkpoints(mode: bool | None) -> None:
    stock = build("qwen3").train()
    ours = patch(copy.deepcopy(stock))
    if mode is not None:
        ours.gradient_checkpointing_enable({"use_reentrant": mode})
        ours.enable_input_require_grads()
    assert_as_exact(gradients, ours, stock)
    # torch ends a recomputation where all is there that was saved: inside of each layer's MLP
    again = {None: 0, True: parts(ours).total(), False: parts(ours).total() - 2}
    assert report(ours).trained == parts(ours).total() + again[mode]
    assert report(ours).fallbacks == {"training": 2 if mode is None else 4, "gradients are needed": 2}


def test_narrow_weights() -> None:
    stock = build("llama", torch.bfloat16).train()
    ours = patch(copy.deepcopy(stock))
    assert_as_exact(gradients, ours, stock)
    assert report(ours).trained == parts(ours).total()


def test_autocast() -> None:
    stock = build("llama").train()
    ours = patch(copy.deepcopy(stock))
    with InFloat64():
        truth = gradients(doubled(stock))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, theirs = gradients(ours), gradients(stock)
    for mine, one, true in zip(found, theirs, truth, strict=True):
        assert_norm(mine, true, one)
    assert report(ours).trained == parts(ours).total()


class Calls(TorchDispatchMode):
    """Counts what computes: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and "empty" not in str(func):
            self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.cpu_only
@pytest.mark.parametrize("family, dtype", [("llama", torch.bfloat16), ("gemma3", torch.float32)], ids=str)
def test_a_step_calls_and_saves_less(family: str, dtype: torch.dtype) -> None:
    """Calls are launches on a GPU. What is saved is memory between the passes."""
    calls, saved = [], []
    for model in (build(family, dtype).train(), patch(build(family, dtype).train())):
        kept: dict[int, int] = {}

        def pack(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with Calls() as seen, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = model(PROMPT, labels=PROMPT, use_cache=False).loss
            saved.append(sum(kept.values()))
            loss.backward()
        calls.append(seen.seen.total())
    assert calls[1] < 0.75 * calls[0] and saved[1] < 0.9 * saved[0], (calls, saved)


def test_what_runs_without_gradients_is_stock_code() -> None:
    """Bit for bit, where something else than gradients keeps a layer from being fused."""
    stock = build("llama")
    ours = patch(copy.deepcopy(stock))
    with torch.no_grad():
        for model in (stock, ours):
            model.set_attn_implementation("eager")
        expected, found = (m(PROMPT, output_attentions=True, use_cache=False).logits for m in (stock, ours))
    assert report(ours).fallbacks["output_attentions"] == 2 and not report(ours).trained
    unfused = [m for m in ours.modules() if isinstance(m, TrainedMixin)]
    assert unfused and not any(m._foundry.fused for m in unfused)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # the last norm and the head are ours


# ------------------------------------------------------------------------------------------------ what users do to them


def test_hooks_on_parts_and_on_what_they_call() -> None:
    stock = build("llama").train()
    ours = patch(copy.deepcopy(stock))
    seen: list[str] = []
    layer = ours.model.layers[0]
    for name in ("input_layernorm", "mlp", "mlp.act_fn", "mlp.gate_proj", "self_attn", "self_attn.q_proj"):
        layer.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    assert_as_exact(gradients, ours, stock)
    assert Counter(seen) == dict.fromkeys(seen, 1) and len(seen) == 6
    why = "SiLUActivation has hooks, or is another activation"
    assert report(ours).fallbacks[why] == 1 and report(ours).trained == parts(ours).total() - 1


def test_an_activation_that_was_replaced() -> None:
    stock = build("llama").train()
    ours = patch(copy.deepcopy(stock))
    for model in (stock, ours):
        model.model.layers[1].mlp.act_fn = nn.Tanh()
    assert_as_exact(gradients, ours, stock)


CONFIGS = {
    "lora": peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False),
    "dora": peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["gate_proj", "q_proj"], use_dora=True, init_lora_weights=False
    ),
    "norms": peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], modules_to_save=["input_layernorm"], init_lora_weights=False
    ),
    "ia3": peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"],
        init_ia3_weights=False,
    ),
    "ln_tuning": peft.LNTuningConfig(task_type="CAUSAL_LM", target_modules=["post_attention_layernorm"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("adapted_first", [False, True], ids=["patched first", "adapted first"])
def test_adapters(kind: str, adapted_first: bool) -> None:
    def adapted(model: Any) -> Any:
        torch.manual_seed(3)
        return peft.get_peft_model(model, copy.deepcopy(CONFIGS[kind])).train()

    stock = adapted(build("llama"))
    ours = patch(adapted(build("llama"))) if adapted_first else adapted(patch(build("llama")))
    assert_as_exact(lambda m: [p.grad for p in after(m).parameters() if p.requires_grad], ours, stock)
    assert report(ours.get_base_model()).trained > 0


def after(model: Any) -> Any:
    model.zero_grad(set_to_none=True)
    model(PROMPT, labels=PROMPT, use_cache=False).loss.backward()
    return model


def test_unpatch_copies_and_pickles() -> None:
    stock = build("llama").train()
    before = classes(stock)
    ours = patch(copy.deepcopy(stock))
    for model in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_as_exact(gradients, model, stock)
        assert report(model).trained == parts(model).total() > 0
    assert classes(unpatch(ours)) == before


def test_other_models_are_left_alone() -> None:
    rotate = modeling_llama.apply_rotary_pos_emb
    gradients(patch(build("llama").train()))
    assert modeling_llama.apply_rotary_pos_emb is rotate
    assert not any(isinstance(module, TrainedMixin) for module in shared("llama").modules())


def test_derivatives_that_ops_have_not() -> None:
    """torch.func and forward mode go through stock code."""
    model = patch(build("llama").train())
    norm = model.model.layers[0].input_layernorm
    x, direction = torch.randn(2, 64), torch.randn(2, 64)
    _, found = torch.func.jvp(norm, (x,), (direction,))
    exact = modeling_llama.LlamaRMSNorm(64, norm.variance_epsilon)
    exact.load_state_dict(norm.state_dict())
    torch.testing.assert_close(found, torch.func.jvp(exact, (x,), (direction,))[1])
    grad = torch.func.grad(lambda t: norm(t).sum())(x)
    torch.testing.assert_close(grad, torch.func.grad(lambda t: exact(t).sum())(x))
    assert report(model).fallbacks["torch.func (vmap, grad ...) or derivatives in forward mode"] == 2
