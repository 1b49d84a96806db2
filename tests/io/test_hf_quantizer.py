"""Packed models through transformers' own door: packed while they load, saved, loaded again, made dense."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf.tiny_models import config, ids, shared
from torch_foundry import FoundryConfig, quant
from torch_foundry.hf import quantizer
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.testing.tolerance import assert_norm, relative_error

PROMPT = ids(1, 12)
MIXED = {"*.q_proj": "q4_0", "*.layers.1.*.down_proj": None, "*.layers.*": "q8_0", "lm_head": "affine8_g32_f32"}
SOME = ["llama-biased", "qwen2", "gemma3", "phi3"]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(PROMPT).logits


def load(folder: Path, **options: Any) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    return model.eval()


@pytest.mark.parametrize("family", SOME)
def test_packed_while_loading_saved_and_loaded_again(family: str, tmp_path: Path) -> None:
    shared(family).save_pretrained(tmp_path / "dense")
    expected = torch_foundry.quantize(copy.deepcopy(shared(family)), "q8_0")
    model = load(tmp_path / "dense", quantization_config=FoundryConfig("q8_0"))
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert_found_as_exact(logits(model), logits, expected)  # another attention

    torch_foundry.patch(model)
    model.save_pretrained(tmp_path / "packed")
    written = load_file(tmp_path / "packed" / "model.safetensors")
    formats = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]["formats"]
    assert formats and all(written[name].dtype == torch.uint8 for name in formats)
    assert {name for name, tensor in written.items() if tensor.dtype == torch.uint8} == set(formats)

    again = load(tmp_path / "packed")
    assert_found_as_exact(logits(again), logits, expected)
    if expected.config.tie_word_embeddings:
        assert again.lm_head.weight is again.model.embed_tokens.weight and "lm_head.weight" not in written
    assert_found_as_exact(logits(torch_foundry.patch(again)), logits, expected)

    torch_foundry.dequantize(again).save_pretrained(tmp_path / "dense again")
    assert "quantization_config" not in json.loads((tmp_path / "dense again" / "config.json").read_text())
    stock = load(tmp_path / "dense again")
    assert not any(isinstance(m, FoundryLinear | FoundryEmbedding | FoundryExperts) for m in stock.modules())
    assert_found_as_exact(logits(expected), logits, stock)


def test_tied_weights_that_came_apart(tmp_path: Path) -> None:
    """As moving a model that isn't patched to another device leaves them."""
    model = torch_foundry.quantize(copy.deepcopy(shared("qwen2")), "q8_0")
    model.lm_head._buffers["weight"] = model.lm_head.weight.clone()
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert_found_as_exact(logits(again), logits, model)
    assert isinstance(again.lm_head, FoundryLinear)
    formats = json.loads((tmp_path / "config.json").read_text())["quantization_config"]["formats"]
    assert set(formats) <= set(load_file(tmp_path / "model.safetensors"))


def test_experts(tmp_path: Path) -> None:
    settings = config("Qwen3MoeConfig", hidden_size=64, moe_intermediate_size=96, num_experts=4, num_experts_per_tok=2)
    torch.manual_seed(0)
    stock = AutoModelForCausalLM.from_config(settings).eval()
    stock.save_pretrained(tmp_path / "dense")
    expected = torch_foundry.quantize(copy.deepcopy(stock), {"*": "q8_0"})
    model = load(tmp_path / "dense", quantization_config=FoundryConfig({"*": "q8_0"}))
    assert sum(isinstance(m, FoundryExperts) for m in model.modules()) == settings.num_hidden_layers
    assert_found_as_exact(logits(model), logits, expected)
    model.save_pretrained(tmp_path / "packed")
    again = load(tmp_path / "packed")
    assert sum(isinstance(m, FoundryExperts) for m in again.modules()) == settings.num_hidden_layers
    assert_found_as_exact(logits(again), logits, expected)


@pytest.mark.parametrize("method", ["mxfp4", "fp8"])
def test_folders_that_others_have_packed(method: str, tmp_path: Path) -> None:
    """As README says: transformers takes the quantizer that the folder names, so `load` is what to call."""
    shared("llama").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": {"quant_method": method}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"is quantized with \w+ but you are passing a FoundryConfig"):
        AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=FoundryConfig("q8_0"))


def test_patterns(tmp_path: Path) -> None:
    shared("llama").save_pretrained(tmp_path)
    model = load(tmp_path, quantization_config=FoundryConfig(MIXED))
    expected = torch_foundry.quantize(copy.deepcopy(shared("llama")), MIXED)
    assert torch.equal(logits(model), logits(expected))
    found = {
        n: m.format if isinstance(m, FoundryLinear) else None for n, m in model.named_modules() if n[-4:] == "proj"
    }
    assert found["model.layers.0.self_attn.q_proj"] == "q4_0" and found["model.layers.0.mlp.down_proj"] == "q8_0"
    assert found["model.layers.1.mlp.down_proj"] is None and model.lm_head.format == "affine8_g32_f32"
    assert type(model.model.embed_tokens) is nn.Embedding
    model.save_pretrained(tmp_path / "packed")
    assert torch.equal(logits(load(tmp_path / "packed")), logits(expected))


def test_one_dense_weight_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is packed as soon as it is read: by then all before it are."""
    shared("llama").save_pretrained(tmp_path)
    held: list[int] = []
    convert = quantizer._Pack.convert

    def counting(self: Any, tensors: Any, *, model: Any, **options: Any) -> Any:
        result = convert(self, tensors, model=model, **options)
        dense = [m for m in model.modules() if type(m) in (nn.Linear, nn.Embedding)]
        held.append(sum(not m.weight.is_meta for m in dense))
        return result

    monkeypatch.setattr(quantizer._Pack, "convert", counting)
    load(tmp_path, quantization_config=FoundryConfig("q8_0"))
    assert held == [0] * 16


def test_columns_in_an_order_of_their_own(tmp_path: Path) -> None:
    model = copy.deepcopy(shared("llama"))
    dense = model.model.layers[0].mlp.down_proj
    order = torch.randperm(dense.in_features, generator=torch.Generator().manual_seed(0))
    packed = quant.quantize(dense.weight[:, order], "q8_0")
    ordered = FoundryLinear(dense.in_features, dense.out_features, packed, "q8_0", dense.bias, order)
    model.model.layers[0].mlp.down_proj = ordered
    x = torch.randn(3, 5, dense.in_features)
    with torch.no_grad():
        weight = ordered.dequantized(torch.float32)
        exact, plain = nn.functional.linear(x.double(), weight.double()), nn.functional.linear(x, weight)
        assert_norm(ordered(x), exact, plain)
        assert_norm(ordered(x[:1, :1]), exact[:1, :1], plain[:1, :1])
        assert relative_error(ordered.double()(x.double()), exact) <= 1e-14
    ordered.float()
    grown = x.clone().requires_grad_()
    ordered(grown).sum().backward()
    assert grown.grad is not None
    assert_norm(grown.grad[0, 0], weight.double().sum(0), weight.sum(0))

    stock = torch_foundry.dequantize(copy.deepcopy(model))
    assert_found_as_exact(logits(model), logits, stock)
    torch_foundry.patch(model)
    assert not torch_foundry.report(model).not_replaced
    assert_found_as_exact(logits(model), logits, stock)
    generated = model.generate(PROMPT, max_new_tokens=6, do_sample=False)
    assert torch_foundry.report(model).steps and not torch_foundry.report(model).fallbacks
    torch_foundry.unpatch(model)
    assert torch.equal(generated, model.generate(PROMPT, max_new_tokens=6, do_sample=False))
    quantizer.attach(model)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert torch.equal(again.model.layers[0].mlp.down_proj.order.long(), order)
    assert torch.equal(logits(again), logits(model))


def test_other_types_of_the_other_weights(tmp_path: Path) -> None:
    shared("llama").save_pretrained(tmp_path)
    model = load(tmp_path, quantization_config=FoundryConfig("q8_0"), dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16 and logits(model).dtype == torch.bfloat16
    assert logits(model.half()).dtype == torch.float16
    assert model.lm_head.weight.dtype == torch.uint8


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    shared("llama").save_pretrained(tmp_path)
    for formats, message in (
        ("q9_9", "expected one of .*q8_0"),
        ({"*.router": "q8_0"}, "called '\\*.router'"),
        ({"*": "q4_k"}, "rows of a multiple of 256 weights, got rows of 64"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path, quantization_config=FoundryConfig(formats))
    model = copy.deepcopy(shared("qwen2"))
    model.model.embed_tokens.max_norm = 1.0
    with pytest.raises(ValueError, match=r"lm_head shares its weight with model\.embed_tokens"):
        torch_foundry.quantize(model, {"lm_head": "q8_0"})


@pytest.mark.parametrize("name", ["lm_head", "*.embed_tokens"])
@pytest.mark.parametrize("fmt", ["q8_0", None])
def test_a_shared_weight_answers_to_either_name(name: str, fmt: str | None) -> None:
    model = torch_foundry.quantize(copy.deepcopy(shared("qwen2")), {name: fmt, "*": "q4_0"})
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert getattr(model.lm_head, "format", None) == getattr(model.model.embed_tokens, "format", None) == fmt
    assert model.model.layers[0].mlp.down_proj.format == "q4_0"


def test_settings_of_a_saved_model_are_checked(tmp_path: Path) -> None:
    torch_foundry.quantize(copy.deepcopy(shared("llama")), "q8_0").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["formats"]["lm_head.weight"] = "q9_9"
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="expected known formats of tensors by name"):
        load(tmp_path)


@pytest.mark.tier("files")
@pytest.mark.parametrize("first", ["torch_foundry", "transformers.quantizers.auto"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    """Importing torch_foundry alone imports neither torch nor transformers, and is enough for reading packed models."""
    script = f"""
import sys
import {first}
assert "{first}" != "torch_foundry" or not {{"torch", "transformers"}} & set(sys.modules)
import torch_foundry
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
print(set(torch_foundry.hf.registration.METHODS) <= set(AUTO_QUANTIZER_MAPPING))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_without_the_import_the_error_is_preceded_by_what_to_do(tmp_path: Path) -> None:
    torch_foundry.quantize(copy.deepcopy(shared("llama")), "q8_0").save_pretrained(tmp_path)
    script = f"from transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"
    told = {**os.environ, "TRANSFORMERS_VERBOSITY": "warning"}  # mlx-vlm, if it is installed, sets another
    done = subprocess.run([sys.executable, "-c", script], env=told, capture_output=True, text=True, check=False)
    assert done.returncode and "import torch_foundry before the model is loaded" in done.stdout + done.stderr


def test_folders_that_older_versions_packed_load(tmp_path: Path) -> None:
    model = torch_foundry.quantize(copy.deepcopy(shared("llama")), "q8_0")
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["quant_method"] = "foundry"
    path.write_text(json.dumps(config))
    assert torch.equal(load(tmp_path).state_dict()["lm_head.weight"], model.state_dict()["lm_head.weight"])
