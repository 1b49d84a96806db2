"""patch(model, quantize=...): packed weights behave like the dense weights that they stand for."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.exact import assert_as_exact, assert_found_as_exact
from tests.hf.tiny_cases import ALL_FAMILIES
from tests.hf.tiny_models import classes, ids, shared
from torch_foundry import quant
from torch_foundry.hf.api import dequantize, patch, patched, quantize, report, unpatch
from torch_foundry.nn import FoundryEmbedding, FoundryLinear
from torch_foundry.nn.experts import matrices_of
from torch_foundry.nn.linear import linear_gemm
from torch_foundry.testing.tolerance import assert_norm, double

PROMPT = ids(1, 12)


def tokens(model: Any) -> list[list[int]]:
    return model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=16, do_sample=False).tolist()


def rounded(model: PreTrainedModel, fmt: str = "q8_0") -> PreTrainedModel:
    """A stock copy of `model` whose dense weights have the values that packing leaves."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                weight = module.weight
                if weight.shape[0] > 1:  # the weight of a shared expert stays dense
                    weight.copy_(quant.dequantize(quant.quantize(weight, fmt), fmt, weight.shape[1], weight.dtype))
            elif isinstance(getattr(module, "gate_up_proj", None), nn.Parameter):
                for weight in matrices_of(module):
                    rows = weight.flatten(0, 1).contiguous()
                    weight.copy_(quant.dequantize(quant.quantize(rows, fmt), fmt).view(weight.shape))
    return model


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_tokens_are_those_of_the_rounded_weights(family: str) -> None:
    model = patch(copy.deepcopy(shared(family)), quantize="q8_0")
    assert tokens(model) == tokens(rounded(shared(family)))
    seen = report(model)
    assert not seen.fallbacks and seen.fused, str(seen)
    # with experts, the shared one too, in one layer of two, or in both; with other projections in the first layer
    others = {"qwen3_next": 16, "qwen3_5": 15, "qwen3_5_moe": 21, "olmo_hybrid": 17}
    others |= {"kimi_linear": 22, "bailing_hybrid": 21}
    linear = {"phi3": 8, "qwen2_moe": 17, **others}.get(family, 14)
    assert len(seen.packed) == linear + 2 and set(seen.packed.values()) == {"q8_0"}
    dense = [m for m in model.modules() if isinstance(m, nn.Linear) and not isinstance(m, FoundryLinear)]
    assert [m.out_features for m in dense] == [1] * {"qwen2_moe": 1, "qwen3_next": 1, "qwen3_5_moe": 2}.get(family, 0)


@pytest.mark.parametrize("fmt", ["q8_0", "q4_0"])
def test_many_rows_go_through_torchs_product_on_unpacked_weights(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what torch gives for the dense weight, in pieces of it too; so does a long prompt of the model."""
    weight, bias = quant.quantize(torch.randn(70, 64), fmt), torch.randn(70)
    dense = quant.dequantize(weight, fmt)
    x = torch.randn(2, 9, 64)
    assert torch.equal(linear_gemm(x, weight, fmt, bias), nn.functional.linear(x, dense, bias))
    monkeypatch.setattr("torch_foundry.nn.linear.DEQUANT_CHUNK", 33 * 64)
    exact = nn.functional.linear(*double((x, dense, bias)))
    assert_norm(linear_gemm(x, weight, fmt, bias), exact, nn.functional.linear(x, dense, bias))

    stock, model = rounded(shared("llama"), fmt), patch(copy.deepcopy(shared("llama")), quantize=fmt)
    prompt = ids(2, 40)
    calls = []
    for caller in ("models.weights", "nn.linear"):
        spy = lambda *given: calls.append(given) or linear_gemm(*given)  # noqa: E731
        monkeypatch.setattr(f"torch_foundry.{caller}.linear_gemm", spy)
    with torch.no_grad():
        found = model(prompt).logits
        assert_found_as_exact(found, lambda each: each(prompt).logits, stock)
    assert len(calls) == sum(isinstance(module, FoundryLinear) for module in model.modules())


def test_fake_tensors_leave_nothing_behind() -> None:
    """What is kept for the next product is not made of fake ones."""
    weight, x = quant.quantize(torch.randn(71, 64), "q8_0"), torch.randn(20, 64)
    with FakeTensorMode() as mode:
        assert linear_gemm(mode.from_tensor(x), mode.from_tensor(weight), "q8_0", None).shape == (20, 71)
    expected = nn.functional.linear(x, quant.dequantize(weight, "q8_0"))
    assert torch.equal(linear_gemm(x, weight, "q8_0", None), expected)


def test_stock_code_runs_on_packed_weights() -> None:
    model = patch(copy.deepcopy(shared("llama")), quantize="q8_0")
    expected = tokens(rounded(shared("llama")))
    with pytest.warns(UserWarning, match="stay packed as q8_0"):
        unpatch(model)
    assert not report(model).swapped and report(model).packed
    assert tokens(model) == expected
    patch(model)
    assert tokens(model) == expected
    assert report(model).fused and not report(model).fallbacks


def test_dequantize_gives_dense_modules_back() -> None:
    for family in ("llama", "gemma"):  # gemma: tied and scaled embedding
        original = shared(family)
        model = patch(copy.deepcopy(original), quantize="q8_0")
        unpatch(model, dequantize=True)
        assert classes(model) == classes(original)
        expected = rounded(original).state_dict()
        for name, value in model.state_dict().items():
            assert torch.equal(value, expected[name]), name
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == original.config.tie_word_embeddings
        assert tokens(model) == tokens(rounded(original))


def test_context_manager_makes_dense_again() -> None:
    model = copy.deepcopy(shared("llama"))
    with patched(model, quantize="q8_0"):
        assert report(model).packed
    assert classes(model) == classes(shared("llama"))
    with pytest.raises(ValueError, match="patched already"), patched(patch(model), quantize="q8_0"):
        pass


def test_a_block_leaves_what_was_packed_before_and_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    model = quantize(copy.deepcopy(shared("llama")), "q8_0")
    before = classes(model)
    with patched(model):
        assert classes(model) != before
    assert classes(model) == before and not [w for w in recwarn if "packed" in str(w.message)]


def test_tied_embeddings_share_one_packed_weight() -> None:
    model = patch(copy.deepcopy(shared("qwen2")), quantize="q8_0")
    embedding, head = model.model.embed_tokens, model.lm_head
    assert isinstance(embedding, FoundryEmbedding) and isinstance(head, FoundryLinear)
    assert embedding.weight is head.weight
    model.to("meta").to_empty(device="cpu")
    assert embedding.weight is head.weight, "moving a model keeps it one"
    twin = copy.deepcopy(model)
    assert twin.model.embed_tokens.weight is twin.lm_head.weight


def test_packed_stays_packed() -> None:
    model = patch(copy.deepcopy(shared("llama")), quantize="q8_0").to(torch.bfloat16)
    assert model.lm_head.weight.dtype == torch.uint8
    assert model.model.norm.weight.dtype == torch.bfloat16
    assert model(PROMPT).logits.dtype == torch.bfloat16
    with torch.no_grad():
        assert model.model.embed_tokens(PROMPT).dtype == torch.bfloat16
    assert model.dtype == torch.bfloat16


def test_copies_and_state_dict() -> None:
    model = patch(copy.deepcopy(shared("llama")), quantize="q8_0")
    expected = tokens(model)
    assert tokens(copy.deepcopy(model)) == expected
    assert tokens(pickle.loads(pickle.dumps(model))) == expected
    state = {name: value.clone() for name, value in model.state_dict().items()}
    other = patch(copy.deepcopy(shared("llama")), quantize="q8_0")
    with torch.no_grad():
        other.lm_head.weight.zero_()
    other.load_state_dict(state)
    assert tokens(other) == expected


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_saved_packed_or_made_dense_first(family: str, tmp_path: Path) -> None:
    model = patch(copy.deepcopy(shared(family)), quantize="q8_0")
    expected = tokens(model)
    model.save_pretrained(tmp_path / "packed")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    assert tokens(again) == expected and isinstance(again.lm_head, FoundryLinear)
    dequantize(model).save_pretrained(tmp_path / "dense")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "dense")
    assert tokens(again) == expected and type(again.lm_head) is nn.Linear
    assert not report(model).packed and tokens(model) == expected


def test_packing_a_patched_model() -> None:
    """Graphs and plans of before are not used any more."""
    model = patch(copy.deepcopy(shared("llama")))
    assert tokens(model) == tokens(shared("llama"))
    quantize(model, {"*.down_proj": None, "*": "q4_0"})
    expected = rounded(shared("llama"), "q4_0")
    for ours, theirs, before in zip(
        expected.model.layers, model.model.layers, shared("llama").model.layers, strict=True
    ):
        ours.mlp.down_proj.weight.data.copy_(before.mlp.down_proj.weight)
        assert type(theirs.mlp.down_proj) is not FoundryLinear
    assert tokens(model) == tokens(expected)
    assert report(model).fused and not report(model).fallbacks
    with pytest.raises(RuntimeError, match="packed embeddings cannot be resized"):
        model.resize_token_embeddings(130)


def test_gradients_reach_inputs_and_biases() -> None:
    dense = rounded(shared("llama-biased"))
    model = patch(copy.deepcopy(shared("llama-biased")), quantize="q8_0")

    def gradients(each: Any, embeddings: torch.Tensor) -> list[Any]:
        embeddings.requires_grad_()
        each(inputs_embeds=embeddings).logits.sum().backward()
        return [embeddings.grad, each.model.layers[0].self_attn.q_proj.bias.grad]

    assert_as_exact(gradients, model, dense, dense.get_input_embeddings()(PROMPT).detach())


def test_lora_on_packed_weights() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    tuned: Any = None

    def loss_and_gradients(base: Any) -> list[torch.Tensor]:
        nonlocal tuned
        torch.manual_seed(3)
        tuned = peft.get_peft_model(base, config).train()
        loss = tuned(PROMPT, labels=PROMPT).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in tuned.parameters() if p.requires_grad)]

    found = loss_and_gradients(patch(copy.deepcopy(shared("llama")), quantize="q8_0"))
    with pytest.raises(RuntimeError, match="must match the size"):
        tuned.merge_and_unload()
    assert_found_as_exact(found, loss_and_gradients, rounded(shared("llama")))


def test_stock_fallbacks_of_the_leaves() -> None:
    linear = FoundryLinear.from_linear(nn.Linear(64, 10), "q8_0")
    x = torch.randn(3, 64, dtype=torch.float64)
    dense = linear.dequantized(torch.float64)
    linear.double()
    assert torch.equal(linear(x), nn.functional.linear(x, dense, linear.bias))
    embedding = FoundryEmbedding.from_embedding(nn.Embedding(20, 64), "q8_0").double()
    rows = embedding(torch.tensor([[3, 3, 19]]))
    assert torch.equal(rows, embedding.dequantized(torch.float64)[[3, 3, 19]][None])
    assert "format=q8_0" in str(linear) and "format=q8_0" in str(embedding)


def test_another_format() -> None:
    model = patch(copy.deepcopy(shared("llama")), quantize="q4_0")
    assert tokens(model) == tokens(rounded(shared("llama"), "q4_0"))
    assert set(report(model).packed.values()) == {"q4_0"} and not report(model).fallbacks


def test_packed_embeddings_are_not_resized() -> None:
    model = patch(copy.deepcopy(shared("llama")), quantize="q8_0")
    with pytest.raises(RuntimeError, match="packed embeddings cannot be resized"):
        model.resize_token_embeddings(130)
    unpatch(model, dequantize=True).resize_token_embeddings(130)
    assert patch(model)(PROMPT).logits.shape[-1] == 130


def test_what_cannot_be_packed() -> None:
    model = copy.deepcopy(shared("llama"))
    with pytest.raises(ValueError, match=r"quantize='q9_9': expected one of .*q8_0"):
        patch(model, quantize="q9_9")
    with pytest.raises(ValueError, match="no decoder layers of a known family"):
        patch(nn.Sequential(nn.Linear(64, 64)), quantize="q8_0")
    assert not report(model).swapped
    model.model.layers[0].mlp.down_proj = nn.Linear(96, 64)  # the config says 96: still understood
    narrow = nn.Linear(64, 24)
    model.extra = narrow
    patch(model, quantize="q8_0")
    assert model.extra is narrow and type(narrow) is not FoundryLinear, "not part of a layer that is understood"
