"""What is not understood runs stock code, with a reason; what is understood in part is patched in part."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.patch.zoo import COMMON, build, classes, ids, shared
from torch_foundry.patch import patch, report
from torch_foundry.patch.families import NORMS, SCALED_EMBEDDINGS, class_key
from torch_foundry.patch.spec import Unsupported, build_spec
from torch_foundry.patch.state import FallbackWarning

PROMPT = ids(2, 10)


@torch.no_grad()
def logits(model: Any, **inputs: Any) -> torch.Tensor:
    return model(PROMPT, **inputs).logits


def config(name: str, **options: Any) -> Any:
    return getattr(transformers, name)(**{**COMMON, **options})


def random_model(settings: Any, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(settings).eval()


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ reasons


def replace_submodule(model: Any) -> None:
    model.model.layers[0].mlp.up_proj = copy.deepcopy(model.model.layers[0].mlp.up_proj)


def replace_forward(model: Any) -> None:
    module = model.model.layers[0].mlp
    module.forward = module.forward


def parametrize(model: Any) -> None:
    class Double(nn.Module):
        """Twice the weight."""

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    nn.utils.parametrize.register_parametrization(model.model.layers[0].self_attn.k_proj, "weight", Double())


def mixed_dtype(model: Any) -> None:
    model.model.layers[0].mlp.double()
    model.model.layers[0].mlp.register_forward_pre_hook(lambda _, args: args[0].double())
    model.model.layers[0].mlp.register_forward_hook(lambda *call: call[2].float())


def pre_hook(model: Any) -> None:
    model.model.layers[0].self_attn.register_forward_pre_hook(lambda *_: None)


REASONS: list[tuple[Callable[[Any], None], str]] = [
    (replace_submodule, "mlp.up_proj was replaced"),
    (replace_forward, "forward of mlp was replaced"),
    (parametrize, "self_attn.k_proj was replaced"),
    (mixed_dtype, "forward hook on mlp"),
    (pre_hook, "forward hook on self_attn"),
]


@pytest.mark.parametrize(("change", "reason"), REASONS, ids=lambda x: getattr(x, "__name__", ""))
def test_one_changed_layer_runs_stock(change: Callable[[Any], None], reason: str) -> None:
    stock = copy.deepcopy(shared("llama"))
    model = patch(copy.deepcopy(stock))
    change(stock)
    change(model)
    with pytest.warns(FallbackWarning, match=reason):
        ours = logits(model)
    assert_close(ours, logits(stock))
    assert report(model).fallbacks == {reason: 1} and report(model).fused == 1


def test_unknown_arguments_reach_stock_code() -> None:
    model = patch(copy.deepcopy(shared("llama")))
    with pytest.warns(FallbackWarning, match="argument is_causal"):
        found = logits(model, is_causal=False, use_cache=False)
    assert_close(found, logits(shared("llama"), is_causal=False, use_cache=False))
    assert report(model).fallbacks == {"argument is_causal": 2}
    logits(model, is_causal=True)
    assert report(model).fused == 2


def test_a_config_that_is_not_causal_any_more() -> None:
    model, stock = patch(copy.deepcopy(shared("llama"))), copy.deepcopy(shared("llama"))
    for each in (model, stock):
        each.config.is_causal = False
    with pytest.warns(FallbackWarning, match="causal"):
        assert_close(logits(model, use_cache=False), logits(stock, use_cache=False))


def test_other_attention_implementations() -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("test_attention", sdpa_attention_forward)
    model = patch(copy.deepcopy(shared("llama")))
    model.set_attn_implementation("test_attention")
    with pytest.warns(FallbackWarning, match="attention implementation test_attention"):
        logits(model)
    model.set_attn_implementation("eager")
    logits(model)
    assert report(model).fused == 2


def test_warns_once_per_model_and_reason() -> None:
    for _ in range(2):
        model = patch(copy.deepcopy(shared("llama"))).train()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                logits(model)
        assert [str(w.message)[:40] for w in seen] == ["LlamaDecoderLayer runs stock code: train"]
        assert report(model).fallbacks == {"training": 6}


def test_cache_of_another_batch_raises_as_stock_does() -> None:
    from transformers import DynamicCache

    errors = []
    for model in (copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))):
        cache = DynamicCache(config=model.config)
        logits(model, past_key_values=cache)
        with torch.no_grad(), warnings.catch_warnings(), pytest.raises(RuntimeError) as caught:
            warnings.simplefilter("ignore")
            model(PROMPT[:1], past_key_values=cache)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_ids_outside_the_vocabulary_raise() -> None:
    model = patch(copy.deepcopy(shared("llama")))
    with torch.no_grad(), pytest.raises(IndexError):
        model(torch.tensor([[5, 10_000]]))


def test_prefix_tuning() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    stock, model = copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))
    tokens, gradients = [], []
    for base in (stock, model):
        torch.manual_seed(1)
        tuned = peft.get_peft_model(base, settings)
        with torch.no_grad():
            tokens.append(tuned.generate(input_ids=PROMPT, max_new_tokens=6, do_sample=False).tolist())
        tuned.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned(PROMPT, labels=PROMPT).loss.backward()
        gradients.append([p.grad for p in tuned.parameters() if p.requires_grad])
    assert tokens[0] == tokens[1]
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs)


# ------------------------------------------------------------------------------------------------- other architectures


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("MixtralConfig", {"num_local_experts": 4}, "not a known decoder layer"),
        ("CohereConfig", {}, "not a known decoder layer"),
        ("Olmo3Config", {"sliding_window": 12}, "not a known decoder layer"),
        ("StableLmConfig", {"head_dim": 16}, "not a known decoder layer"),
        ("LlamaConfig", {"head_dim": 24}, "head_dim 24"),
        ("LlamaConfig", {"hidden_act": "relu"}, "activation ReLU"),
        ("Gemma3TextConfig", {"use_bidirectional_attention": True}, "attention is not causal"),
    ],
)
def test_architectures_that_are_not_understood(name: str, options: dict[str, Any], why: str) -> None:
    """Leaves are swapped all the same; results are those of stock."""
    stock = random_model(config(name, **options))
    model = patch(copy.deepcopy(stock))
    assert_close(logits(model), logits(stock))
    model.generation_config.eos_token_id = stock.generation_config.eos_token_id = None
    tokens = [m.generate(PROMPT, max_new_tokens=8, do_sample=False).tolist() for m in (model, stock)]
    assert tokens[0] == tokens[1]
    seen = report(model)
    assert seen.layers == 0 and len(seen.left) == 2 and all(why in text for text in seen.left.values())
    assert seen.fused_leaves and not seen.fallbacks, str(seen)


def test_gpt2_has_nothing_like_a_decoder_layer() -> None:
    settings = transformers.GPT2Config(n_embd=64, n_head=2, n_layer=2, vocab_size=120, bos_token_id=1, eos_token_id=2)
    stock = random_model(settings)
    model = patch(copy.deepcopy(stock))
    assert_close(logits(model), logits(stock))
    assert set(report(model).swapped.values()) <= {"GPT2LMHeadModel", "GPT2Model", "Embedding", "Linear"}


def test_some_layers_understood_some_not() -> None:
    stock = copy.deepcopy(shared("llama"))

    class Adapter(nn.Linear):
        """A linear layer that may do something else."""

    odd = Adapter(64, 96, bias=False)
    stock.model.layers[0].mlp.gate_proj = odd
    model = patch(copy.deepcopy(stock))
    assert_close(logits(model), logits(stock))
    assert report(model).layers == 1
    assert report(model).left == {"model.layers.0": "gate_proj is a Adapter"}


def test_subclasses_are_not_their_base() -> None:
    class Custom(transformers.models.llama.modeling_llama.LlamaDecoderLayer):
        """A decoder layer that does more."""

        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 2 * super().forward(*args, **kwargs)

    stock = copy.deepcopy(shared("llama"))
    stock.model.layers[1].__class__ = Custom
    model = patch(copy.deepcopy(stock))
    assert_close(logits(model), logits(stock))
    assert list(report(model).left) == ["model.layers.1"]


def test_plain_modules() -> None:
    model = nn.Sequential(nn.Embedding(50, 40), nn.Linear(40, 33), nn.GELU(), nn.Linear(33, 7), nn.LayerNorm(7))
    x = torch.randint(50, (3, 5))
    with torch.no_grad():
        expected = model(x)
        assert_close(patch(model)(x), expected)
    assert report(model).fused_leaves == 3
    limited = nn.Sequential(nn.Embedding(50, 40, max_norm=1.0))
    assert not report(patch(limited)).swapped, "renormalises its weight"


def test_nothing_changes_if_building_a_plan_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_foundry.patch import layer

    model = copy.deepcopy(shared("llama"))
    before = classes(model)
    built = iter([build_spec, None])
    monkeypatch.setattr(layer, "build_spec", lambda module: next(built)(module))
    with pytest.raises(TypeError):
        patch(model)
    assert classes(model) == before and not report(model).swapped


def test_classes_of_the_tables_exist() -> None:
    """A class that transformers renames would otherwise be left alone without anybody noticing."""
    import importlib

    from torch_foundry.patch.families import ACTIVATIONS, FAMILIES, MODELS

    for key in [*FAMILIES, *NORMS, *SCALED_EMBEDDINGS]:
        module, name = (MODELS + key).rsplit(".", 1)
        assert class_key(getattr(importlib.import_module(module), name)) == key
    for key in ACTIVATIONS:
        module, name = key.rsplit(".", 1)
        assert class_key(getattr(importlib.import_module(module), name)) == key


def test_spec_reads_what_differs_between_layers() -> None:
    model = build("gemma3")
    assert [build_spec(layer).window for layer in model.model.layers] == [12, 0]
    assert build_spec(build("gemma2").model.layers[0]).softcap == 50.0
    assert [build_spec(layer).rope for layer in build("smollm3").model.layers] == [True, False]
    assert build_spec(build("granite").model.layers[0]).residual_scale == 0.4
    with pytest.raises(Unsupported, match="Linear of torch"):
        build_spec(nn.Linear(1, 1))


# -------------------------------------------------------------------------------------------------------------- report


def test_report_reads_well() -> None:
    model = copy.deepcopy(shared("mistral"))
    assert str(report(model)) == "not patched"
    patch(model)
    logits(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logits(model.train())
    assert str(report(model)).splitlines() == [
        "swapped:  1 Embedding, 1 Linear, 2 MistralDecoderLayer, 1 MistralForCausalLM, 1 MistralModel, "
        "1 MistralRMSNorm",
        "fused:    2 decoder layer calls, 6 other calls",
        "fallback: 2 calls: training",
    ]
    unknown = str(report(patch(random_model(config("CohereConfig")))))
    assert "left:     model.layers.0, model.layers.1: CohereDecoderLayer of" in unknown
    assert "fallback: none" in unknown
