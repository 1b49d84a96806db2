"""What is not understood runs stock code, with a reason; what is understood in part is patched in part."""

from __future__ import annotations

import copy
import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import prune
from transformers import DynamicCache
from transformers.models.llama import modeling_llama

from tests.exact import assert_as_exact, assert_found_as_exact
from tests.hf.tiny_models import build, config, ids, random_model, shared, tokens
from torch_foundry.hf.api import patch, report
from torch_foundry.models.guards import mask_reason, tensor_reason
from torch_foundry.models.state import FallbackWarning
from torch_foundry.models.swap import has_own_forward

PROMPT = ids(2, 10)


@torch.no_grad()
def logits(model: Any, **inputs: Any) -> torch.Tensor:
    return model(PROMPT, **inputs).logits


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


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3", "qwen3_5", "granite4", "gemma3n"])
def test_norms_may_be_given_another_eps(family: str) -> None:
    """Of layers, mixers and the model, and of a norm that is called alone."""
    stock, model = copy.deepcopy(shared(family)), patch(copy.deepcopy(shared(family)))
    before = logits(model)
    for each in (stock, model):
        for module in each.modules():
            for name in {"eps", "variance_epsilon"} & module.__dict__.keys():
                setattr(module, name, 0.5)
    assert not torch.allclose(logits(model), before, atol=1e-3)
    assert_as_exact(logits, model, stock)
    norm, x = "model.norm", torch.randn(2, 64)
    torch.testing.assert_close(model.get_submodule(norm)(x), stock.get_submodule(norm)(x))
    assert not report(model).fallbacks


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3", "qwen3_5"])
def test_attention_may_be_given_another_scale(family: str) -> None:
    stock, model = copy.deepcopy(shared(family)), patch(copy.deepcopy(shared(family)))
    before = logits(model)
    tokens(model)
    for each in (stock, model):
        for module in each.modules():
            if "scaling" in module.__dict__:
                module.scaling *= 8
    assert not torch.allclose(logits(model), before, atol=1e-3)
    assert_as_exact(logits, model, stock)
    assert tokens(model) == tokens(stock) and not report(model).fallbacks


@pytest.mark.parametrize(("change", "reason"), REASONS, ids=lambda x: getattr(x, "__name__", ""))
def test_one_changed_layer_runs_stock(change: Callable[[Any], None], reason: str) -> None:
    stock = copy.deepcopy(shared("llama"))
    model = patch(copy.deepcopy(stock))
    change(stock)
    change(model)
    with pytest.warns(FallbackWarning, match=reason):
        ours = logits(model)
    assert_found_as_exact(ours, logits, stock)
    assert report(model).fallbacks == {reason: 1} and report(model).fused == 1


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((1, 1, 3, 9), torch.bool, None),
        ((2, 4, 3, 9), torch.float32, None),
        ((1, 1, 3, 8), torch.bool, "mask of another shape"),
        ((1, 1, 3, 10), torch.bool, "mask of another shape"),
        ((1, 1, 2, 9), torch.bool, "mask of another shape"),
        ((3, 1, 3, 9), torch.bool, "mask of another shape"),
        ((2, 2, 3, 9), torch.bool, "mask of another shape"),
        ((2, 9), torch.bool, "mask is not a 4D tensor"),
        ((1, 1, 3, 9), torch.float16, "mask of float16"),
        ((1, 1, 3, 9), torch.int64, "mask of int64"),
    ],
    ids=str,
)
def test_masks_that_kernels_take(shape: tuple[int, ...], dtype: torch.dtype, reason: str | None) -> None:
    """For 2 rows of 3 queries and 9 keys, with 4 heads, in float32."""
    assert mask_reason(torch.zeros(shape, dtype=dtype), torch.float32, 2, 4, 3, 9) == reason


@pytest.mark.parametrize("keys", [9, 11])
def test_a_mask_of_another_length_than_the_keys(keys: int) -> None:
    """Stock code raises; a kernel would read what lies behind it, or another query's."""
    mask, errors = torch.zeros(1, 1, 10, keys), []
    for model in (copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))):
        with warnings.catch_warnings(), pytest.raises(RuntimeError) as caught:
            warnings.simplefilter("ignore")
            logits(model, attention_mask=mask, use_cache=False)
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and "mask of another shape" in report(model).fallbacks


def test_a_mask_that_is_learned() -> None:
    """Nothing else requires gradients."""
    grads = []
    for model in (copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))):
        model.requires_grad_(False)
        mask = torch.eye(10)[None, None].clone().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(PROMPT, attention_mask=mask, use_cache=False).logits.square().sum().backward()
        grads.append(mask.grad)
    assert grads[0].abs().sum() > 0
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4 * float(grads[0].abs().max()))
    assert report(model).fused == 0 and list(report(model).fallbacks) == ["gradients are needed"]


def test_keys_that_are_learned() -> None:
    """Stored in a cache of ours, which a kernel would read without autograd; nothing else requires gradients."""
    grads = []
    for model in (copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))):
        model.requires_grad_(False)
        cache = DynamicCache(config=model.config)
        logits(model, past_key_values=cache)
        learned = []
        for layer in cache.layers:
            learned.append(layer.keys.clone().requires_grad_())
            layer.keys = learned[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(PROMPT, past_key_values=cache).logits.square().sum().backward()
        grads.append([keys.grad for keys in learned])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_unknown_arguments_reach_stock_code() -> None:
    model = patch(copy.deepcopy(shared("llama")))
    with pytest.warns(FallbackWarning, match="argument is_causal"):
        assert_as_exact(lambda each: logits(each, is_causal=False, use_cache=False), model, shared("llama"))
    assert report(model).fallbacks == {"argument is_causal": 2}
    logits(model, is_causal=True)
    assert report(model).fused == 2


class Spy(nn.Parameter):
    """A weight that may compute something else than it holds."""


def test_weights_that_are_no_plain_tensors() -> None:
    model, stock = (copy.deepcopy(shared("llama")) for _ in range(2))
    patch(model)
    mlp = model.model.layers[1].mlp
    mlp.up_proj.weight = Spy(mlp.up_proj.weight.data)
    with pytest.warns(FallbackWarning, match="a weight is a Spy"):
        ours = logits(model)
    assert_found_as_exact(ours, logits, stock)
    assert report(model).fallbacks == {"a weight is a Spy": 1} and report(model).fused == 1


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def pruned(module: nn.Module) -> None:
    prune.l1_unstructured(module, "weight", 0.4)


def parametrized(module: nn.Module) -> None:
    nn.utils.parametrize.register_parametrization(module, "weight", Doubled())


def by_columns(module: nn.Module) -> None:
    module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())


MATRICES = ("lm_head", "model.embed_tokens", "model.layers.1.mlp.up_proj")


@torch.no_grad()
@pytest.mark.parametrize(
    "change, name",
    [
        *itertools.product((pruned, parametrized), (*MATRICES, "model.norm")),
        *((by_columns, name) for name in MATRICES),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_weights_that_are_made_of_others(change: Callable[[nn.Module], None], name: str) -> None:
    """A leaf without a plain weight runs stock code, before a step was captured and behind it."""
    stock, model = copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))
    tokens(model)
    for each in (stock, model):
        change(each.get_submodule(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert_as_exact(logits, model, stock)
        assert tokens(model) == tokens(stock)
    assert change is by_columns or not torch.allclose(logits(stock), logits(shared("llama")), atol=1e-4)


def test_gradients_of_a_norm_whose_weight_is_made_of_others() -> None:
    found = []
    for model in (copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))):
        parametrized(model.model.layers[0].input_layernorm)
        parametrized(model.model.norm)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            model.train()(input_ids=PROMPT, labels=PROMPT).loss.backward()
        found.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_torch_func_sees_stock_code() -> None:
    """Kernels know neither batches of vmap nor tangents, which were lost in silence."""
    stock, model = build("llama"), patch(build("llama"))
    x, direction = torch.randn(3, 5, 64), torch.randn(3, 5, 64)

    def of(each: Any) -> list[torch.Tensor]:
        each.set_attn_implementation("eager")  # torch's fused attention has no forward derivatives
        forward = lambda x: each(inputs_embeds=x, use_cache=False).logits  # noqa: E731
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(forward(forward_ad.make_dual(x, direction)))
        batched = torch.func.vmap(lambda row: forward(row[None])[0])(x)
        assert dual.tangent is not None
        return [batched, dual.primal, dual.tangent, *torch.func.jvp(forward, (x,), (direction,))]

    with pytest.warns(FallbackWarning, match="torch.func"):
        found = of(model)
    torch.testing.assert_close(found, of(stock), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["LlamaMLP", "LlamaRMSNorm", "LlamaDecoderLayer"])
def test_a_class_whose_forward_was_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As packages do that patch transformers' classes."""
    stock, cls = build("llama"), getattr(modeling_llama, name)
    before, own = logits(stock), cls.forward

    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return 1.5 * own(self, *args, **kwargs)

    monkeypatch.setattr(cls, "forward", forward)
    model = patch(build("llama"))
    assert_as_exact(logits, model, stock)
    assert not torch.allclose(logits(stock), before, atol=1e-3)
    assert "forward of" in str(report(model).not_replaced) or "its forward" in str(report(model).not_replaced)


def test_weights_of_another_dtype() -> None:
    """Stock code says what is wrong."""
    errors = []
    for model in (copy.deepcopy(shared("llama")), patch(copy.deepcopy(shared("llama")))):
        model.model.layers[0].mlp.double()
        with warnings.catch_warnings(), pytest.raises(RuntimeError) as caught:
            warnings.simplefilter("ignore")
            logits(model)
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and report(model).fallbacks == {"weights and input differ in dtype": 1}


def test_tracing_sees_stock_code() -> None:
    """What a kernel was told of lengths would be a constant."""
    reasons: list[str | None] = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        reasons.append(tensor_reason(x))
        return 2 * x

    torch.jit.trace(traced, (torch.zeros(3),), check_trace=False)
    assert reasons == ["tracing"] and tensor_reason(torch.zeros(3)) is None


def test_a_config_that_is_not_causal_any_more() -> None:
    model, stock = patch(copy.deepcopy(shared("llama"))), copy.deepcopy(shared("llama"))
    for each in (model, stock):
        each.config.is_causal = False
    with pytest.warns(FallbackWarning, match="causal"):
        assert_as_exact(lambda each: logits(each, use_cache=False), model, stock)


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
    tokens = []

    def gradients(base: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        tuned = peft.get_peft_model(base, settings)
        with torch.no_grad():
            tokens.append(tuned.generate(input_ids=PROMPT, max_new_tokens=6, do_sample=False).tolist())
        tuned.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned(PROMPT, labels=PROMPT).loss.backward()
        return [p.grad for p in tuned.parameters() if p.requires_grad]

    assert_as_exact(gradients, model, stock)
    assert tokens[0] == tokens[1]


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
        "trained:  8 calls of norms, MLPs and rotations in layers that ran stock code",
        "prompts:  2 forward passes of many tokens, or without a filled cache",
        "fallback: 2 calls: training",
    ]
    unknown = str(report(patch(random_model(config("DiffLlamaConfig")))))
    assert "left:     model.layers.0, model.layers.1: DiffLlamaDecoderLayer of" in unknown
    assert "fallback: none" in unknown


def test_forwards_that_are_a_class_s_own() -> None:
    """Of a list, which has none, and of a class that says it is of another module, as families made at run time do."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    Doubled.__module__ = "elsewhere.modeling_elsewhere"
    assert has_own_forward(nn.ModuleList()) and has_own_forward(nn.Linear(1, 1)) and has_own_forward(Doubled())
    Doubled.forward = nn.Identity.forward  # type: ignore[assignment]
    assert not has_own_forward(Doubled())
