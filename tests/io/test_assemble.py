"""Models put together from weights: equal to stock models with the same values, however they are used then."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.exact import assert_found_as_exact
from tests.hf import tiny_models
from torch_foundry import patch, quant, unpatch
from torch_foundry.io import LoadError, Weight
from torch_foundry.io.assemble import assemble
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import NAMES

CPU = torch.device("cpu")
F32 = {"file": "weights", "device": CPU, "dtype": torch.float32, "progress": False}


def weight(tensor: torch.Tensor, fmt: str = "f32", source: str = "") -> Weight:
    """A weight of these values, in memory."""
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    stored = quant.quantize(rows, fmt) if tensor.dim() > 1 else tensor.detach()
    return Weight(tuple(tensor.shape), fmt, source, lambda device: stored.view(*tensor.shape[:-1], -1).to(device))


def weights_of(model: Any, choose: Callable[[str], str]) -> dict[str, Weight]:
    """All weights of a stock model, in the formats that `choose` gives names; experts in their three parts."""
    found: dict[str, Weight] = {}
    for name, p in model.named_parameters():
        if name.endswith("gate_up_proj"):
            parts = dict(zip(NAMES, p.chunk(2, dim=1), strict=False))
            module = name.removesuffix("gate_up_proj")
            found |= {module + part: weight(t.contiguous(), choose(module + part)) for part, t in parts.items()}
        else:
            found[name] = weight(p, choose(name) if p.dim() > 1 else "f32")
    return found


def mixed(name: str) -> str:
    return "q4_0" if "mlp" in name and "gate.weight" not in name else "f16" if "o_proj" in name else "q8_0"


def dense_twin(stock: Any, weights: dict[str, Weight]) -> Any:
    """`stock` with the values that the weights stand for."""
    twin = copy.deepcopy(stock)
    state = {}
    for name, w in weights.items():
        blocks = w.load(CPU).reshape(-1, w.load(CPU).shape[-1])
        state[name] = quant.dequantize(blocks, w.format).view(w.shape) if len(w.shape) > 1 else w.load(CPU)
    for name in [name for name in state if name.endswith("experts.gate_proj")]:
        up = name.replace("gate_proj", "up_proj")
        state[name.replace("gate_proj", "gate_up_proj")] = torch.cat([state.pop(name), state.pop(up)], dim=1)
    missing, extra = twin.load_state_dict(state, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}
    return twin


MOE = {
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        },
    ),
}


def stock_of(family: str) -> Any:
    if family in MOE:
        name, options = MOE[family]
        return tiny_models.random_model(tiny_models.config(name, **options))
    return tiny_models.shared(family)


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "phi3", "granite", "mixtral", "qwen2_moe"])
def test_the_model_equals_stock_with_the_same_values(family: str) -> None:
    stock = stock_of(family)
    weights = weights_of(stock, mixed)
    ours = assemble(stock.config, weights, attn_implementation="eager", **F32)
    twin = dense_twin(stock, weights)
    twin.set_attn_implementation("eager")
    assert not ours.training and not [n for n, t in [*ours.named_parameters(), *ours.named_buffers()] if t.is_meta]
    ids = tiny_models.ids(2, 9)
    with torch.no_grad():
        assert_found_as_exact(ours(ids).logits, lambda each: each(ids).logits, twin)
        assert tiny_models.tokens(ours, eos_token_id=None) == tiny_models.tokens(patch(ours), eos_token_id=None)
        assert tiny_models.tokens(ours, eos_token_id=None) == tiny_models.tokens(twin, eos_token_id=None)
    packed = [m for m in ours.modules() if isinstance(m, FoundryLinear | FoundryEmbedding | FoundryExperts)]
    assert {fmt for m in packed for fmt in getattr(m, "formats", (getattr(m, "format", None),))} == {"q8_0", "q4_0"}
    assert ours.config.tie_word_embeddings == (ours.lm_head.weight is ours.model.embed_tokens.weight)


def test_computed_buffers_are_those_of_a_stock_model() -> None:
    """Rotary frequencies and embedding scales are in no file."""
    for family in ("llama-biased", "gemma3"):
        stock = tiny_models.shared(family)
        ours = assemble(stock.config, weights_of(stock, mixed), **F32)
        expected = {name: b for name, b in stock.named_buffers() if "embed_scale" not in name}
        found = dict(ours.named_buffers())
        assert expected and all(torch.equal(found[name], b) for name, b in expected.items())
    assert torch.equal(ours.model.embed_tokens.embed_scale, stock.model.embed_tokens.embed_scale)


def dequantized(model: Any) -> dict[str, torch.Tensor]:
    return dict(unpatch(copy.deepcopy(model), dequantize=True).state_dict())


def test_life_after_assembly() -> None:
    """Copies, pickles, casts and dequantised models hold the same values; what was tied stays tied."""
    stock = stock_of("qwen2")
    weights = weights_of(stock, mixed)
    ours = patch(assemble(stock.config, weights, **F32))
    expected = dense_twin(stock, weights).state_dict()
    assert dequantized(ours).keys() == expected.keys()
    torch.testing.assert_close(dequantized(ours), dict(expected), rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (copy.deepcopy(ours), torch.load(file, weights_only=False)):
        assert tiny_models.tokens(other) == tiny_models.tokens(ours)
        assert other.lm_head.weight is other.model.embed_tokens.weight
    cast = copy.deepcopy(ours).to(torch.bfloat16)
    assert cast.lm_head.weight.dtype == torch.uint8 and cast(tiny_models.PROMPT).logits.dtype == torch.bfloat16
    assert cast.lm_head.weight is cast.model.embed_tokens.weight
    dense = unpatch(ours, dequantize=True)
    assert type(dense.lm_head) is nn.Linear and dense.lm_head.weight is dense.model.embed_tokens.weight


def test_packed_modules_made_by_themselves_can_be_made_dense() -> None:
    """No dense module waits behind them."""
    torch.manual_seed(0)
    matrix = torch.randn(8, 32)
    packed = quant.quantize(matrix, "q8_0")
    values = quant.dequantize(packed, "q8_0")
    linear = FoundryLinear(32, 8, packed, "q8_0", nn.Parameter(torch.randn(8)))
    restored: Any = pickle_round_trip(linear).to_linear(torch.float32)
    x = torch.randn(3, 32)
    assert type(restored) is nn.Linear and torch.equal(restored.weight, values)
    assert_found_as_exact(linear(x), lambda each, x: each(x), restored, x)
    for scale in (None, torch.tensor(3.0)):
        embedding = FoundryEmbedding(8, 32, packed, "q8_0", torch.float32, padding_idx=0, embed_scale=scale)
        again: Any = pickle_round_trip(embedding).to_embedding()
        assert again.padding_idx == 0 and torch.equal(again(torch.arange(8)), embedding(torch.arange(8)))


def pickle_round_trip(module: Any) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def refusal(stock: Any, weights: dict[str, Weight], **options: Any) -> LoadError:
    with pytest.raises(LoadError) as caught:
        assemble(stock.config, weights, **F32, **options)
    return caught.value


def test_weights_that_do_not_come_out_even() -> None:
    stock = tiny_models.shared("llama")
    weights = weights_of(stock, mixed)
    name = "model.layers.1.self_attn.k_proj.weight"
    without = {n: w for n, w in weights.items() if n != name}
    error = refusal(stock, without)
    assert (error.code, error.field) == ("TENSOR_MISSING", name)
    other = weight(torch.zeros(3, 64), source="blk.1.attn_k.weight")
    error = refusal(stock, without | {name: other})
    assert (error.code, error.field, error.found) == ("SHAPE", "blk.1.attn_k.weight", "[3, 64]")
    error = refusal(stock, weights | {"model.evil": other})
    assert (error.code, error.field) == ("TENSOR_EXTRA", "blk.1.attn_k.weight")


def test_faults_that_are_allowed() -> None:
    stock = tiny_models.shared("llama")
    weights = weights_of(stock, mixed)
    extra = weights | {"model.evil": weight(torch.zeros(3, 64), source="evil")}
    assert refusal(stock, extra, allow=["TENSOR_EXTRA:other*", "TENSOR_MISSING"]).code == "TENSOR_EXTRA"
    ours = assemble(stock.config, extra, allow=["TENSOR_EXTRA:ev*"], **F32)
    twin = dense_twin(stock, weights)
    assert tiny_models.tokens(ours) == tiny_models.tokens(twin)
    for lost, value in (("model.layers.0.mlp.up_proj.weight", 0.0), ("model.norm.weight", 1.0)):
        fewer = {name: w for name, w in weights.items() if name != lost}
        ours = assemble(stock.config, fewer, allow=["TENSOR_MISSING"], **F32)
        twin = dense_twin(stock, weights)
        nn.init.constant_(twin.get_parameter(lost), value)
        with torch.no_grad():
            assert_found_as_exact(ours(tiny_models.PROMPT).logits, lambda each: each(tiny_models.PROMPT).logits, twin)
    with pytest.raises(ValueError, match="SHAPE"):
        assemble(stock.config, weights, allow=["SHAPE"], **F32)


def test_conversion_goes_through_load_as() -> None:
    """A weight that can be read in another dtype is never held in both."""
    stock = tiny_models.shared("llama")
    weights = weights_of(stock, mixed)
    asked: list[torch.dtype] = []

    def load_as(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        asked.append(dtype)
        return torch.full((120, 64), 0.5, dtype=dtype, device=device)

    def load(device: torch.device) -> torch.Tensor:
        raise AssertionError("read whole")

    weights["lm_head.weight"] = Weight((120, 64), "f16", "output.weight", load, load_as=load_as)
    ours = assemble(stock.config, weights, **{**F32, "dtype": torch.bfloat16})
    assert asked == [torch.bfloat16] and ours.lm_head.weight.eq(0.5).all()
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16} and ours.config.dtype == torch.bfloat16
