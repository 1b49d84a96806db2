"""Folders of Hugging Face's: dense safetensors through our readers, as transformers loads them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3_5Config

import torch_foundry
from tests.hf import tiny_cases, tiny_models, tiny_wrappers
from tests.io import words
from torch_foundry import LoadError

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "tied": ("Qwen2Config", {"tie_word_embeddings": True}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 12}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3MoeConfig", MOE),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return words.small()


def saved(name: str, path: Path, tokenizer: Any, **options: Any) -> Any:
    settings, more = MODELS[name]
    model = tiny_models.random_model(tiny_models.config(settings, **more))
    model.save_pretrained(path, **options)
    tokenizer.save_pretrained(path)
    return model


def load(path: Path, **options: Any) -> Any:
    return torch_foundry.load(path, device="cpu", progress=False, **options)


@pytest.mark.parametrize("name", MODELS)
def test_dense_folders_load_as_transformers_loads_them(name: str, tmp_path: Path, tokenizer: Any) -> None:
    stock = saved(name, tmp_path, tokenizer, max_shard_size="100kB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    for options in ({}, {"mmap": True}):
        model, read = load(tmp_path, **options)
        assert read("a b").input_ids == tokenizer("a b").input_ids
        state = {n: t for n, t in model.state_dict().items() if n in stock.state_dict()}
        assert state.keys() == stock.state_dict().keys()
        assert all(torch.equal(state[n], t) for n, t in stock.state_dict().items())
        assert tiny_models.tokens(model) == tiny_models.tokens(stock)
        assert model.generation_config.eos_token_id == stock.generation_config.eos_token_id


# whose experts, or convolutions, transformers saves under other names than the model's
RENAMED = ["mixtral", "qwen2_moe", "granitemoe", "gpt_oss", "olmoe", "olmo_hybrid", "qwen3_5_moe"]


@pytest.mark.parametrize("fmt", [None, "q8_0"])
@pytest.mark.parametrize("family", RENAMED)
def test_what_save_pretrained_renames(family: str, fmt: str | None, tmp_path: Path, tokenizer: Any) -> None:
    """There and back: loaded here, what has been saved is the same, and so it is by `from_pretrained`."""
    model = torch_foundry.patch(tiny_models.build(family), quantize=fmt)
    state = model.state_dict()
    for folder in (tmp_path / "saved", tmp_path / "again"):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        model, _ = load(folder)
        for read in (model, AutoModelForCausalLM.from_pretrained(folder)):
            assert read.state_dict().keys() == state.keys()
            assert all(torch.equal(tensor, state[name]) for name, tensor in read.state_dict().items())


NOW = ("falcon_h1", "gemma4", "gpt_neox", "mistral4", "nemotron_h")  # in the quick tier
LEFT_OUT = ("emu3",)  # a decoder that AutoModelForCausalLM does not know by itself


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in NOW else pytest.mark.tier("models"))
        for family in {**tiny_cases.ALL_FAMILIES, **tiny_cases.KIN}
        if family not in LEFT_OUT
    ],
)
def test_a_folder_of_any_family(family: str, tmp_path: Path, tokenizer: Any) -> None:
    """What `save_pretrained` makes of it: names of files, infinities, settings of single layers."""
    stock = tiny_models.build(family)
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _ = load(tmp_path, patch=False)
    assert type(model) is type(stock) and model.state_dict().keys() == stock.state_dict().keys()
    assert all(torch.equal(tensor, stock.state_dict()[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        close(model(tiny_models.PROMPT).logits, stock(tiny_models.PROMPT).logits)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Logits of the same weights: a BLAS may round by where they lie."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(name, fmt, marks=() if name in ("gemma3", "mistral3") else pytest.mark.tier("models"))
        for name in tiny_wrappers.WRAPPERS
        for fmt in (None, "q8_0")
        if (name, fmt) != ("qwen3_vl_moe", "q8_0")  # transformers can't save packed experts turned
    ],
)
def test_a_model_that_is_shown_images(name: str, fmt: str | None, tmp_path: Path, tokenizer: Any) -> None:
    stock, inputs = tiny_wrappers.shared(name), tiny_wrappers.prompt(name, [1], [2, 3])
    saved = torch_foundry.patch(copy.deepcopy(stock), quantize=fmt) if fmt else stock
    saved.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _ = load(tmp_path, patch=fmt is not None, images=name == "qwen3_5")  # else its decoder (below)
    assert isinstance(model, type(stock))
    with torch.no_grad():
        close(model(**inputs).logits, saved(**inputs).logits)


def test_numbers_of_a_tower_that_are_no_parameters(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 4's means and deviations of features, and the bounds of its linear layers."""
    case = tiny_wrappers.WRAPPERS["gemma4"]
    tower = case.tower | {"standardize": True, "use_clipped_linears": True}
    monkeypatch.setitem(tiny_wrappers.WRAPPERS, "gemma4", replace(case, tower=tower))
    stock = tiny_wrappers.build("gemma4")
    numbers = {name: b for name, b in stock.named_buffers() if name.endswith(("_min", "_max")) or "std_" in name}
    for index, buffer in enumerate(numbers.values()):
        buffer.fill_(index)
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = dict(load(tmp_path)[0].named_buffers())
    assert len(numbers) > 20 and all(torch.equal(found[name], buffer) for name, buffer in numbers.items())
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.vision_tower.std_scale"
    save_file({key: tensor for key, tensor in weights.items() if key != name}, tmp_path / "model.safetensors")
    assert (refusal(tmp_path).code, refusal(tmp_path).field) == ("TENSOR_MISSING", name)
    model, _ = load(tmp_path, allow=f"TENSOR_MISSING:{name}")
    assert not model.model.vision_tower.std_scale.any()


def test_experts_that_are_turned_in_files(tmp_path: Path, tokenizer: Any) -> None:
    """As Qwen3-VL's are published: [experts, inputs, outputs]."""
    stock = tiny_wrappers.shared("qwen3_vl_moe")
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    experts = [name for name in state if name.endswith((".experts.gate_up_proj", ".experts.down_proj"))]
    assert len(experts) == 4
    save_file(state | {n: state[n].transpose(1, 2).contiguous() for n in experts}, tmp_path / "model.safetensors")
    model, _ = load(tmp_path, patch=False)
    assert all(torch.equal(tensor, stock.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_the_decoder_of_a_folder_with_a_vision_tower(tmp_path: Path, tokenizer: Any) -> None:
    """As Qwen3.5 is published: what transformers' own model of text ignores is ignored."""
    text = tiny_models.build("qwen3_5")
    Qwen3_5Config(text_config=text.config.to_dict()).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    state = {name.replace("model.", "model.language_model.", 1): t for name, t in text.state_dict().items()}
    others = {"model.visual.pos_embed.weight": torch.zeros(2), "mtp.norm.weight": torch.zeros(2)}
    save_file({**state, **others}, tmp_path / "model.safetensors")
    model, _ = load(tmp_path, patch=False)
    assert type(model) is type(text) and model.state_dict().keys() == text.state_dict().keys()
    assert all(torch.equal(tensor, text.state_dict()[name]) for name, tensor in model.state_dict().items())
    save_file({**state, "model.vision.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert (refusal(tmp_path).code, refusal(tmp_path).field) == ("TENSOR_EXTRA", "model.vision.weight")


def refusal(path: Path) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load(path)
    return caught.value


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_folders_that_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    saved("llama", tmp_path, tokenizer)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    good = config.read_text(), load_file(weights)
    for values, code in (
        ({"model_type": "no_such_model"}, "ARCH_UNKNOWN"),
        ({"model_type": None}, "ARCH_MISSING"),
        ({"hidden_size": "large"}, "CONFIG"),
        ({"hidden_size": 128}, "SHAPE"),
        ({"num_hidden_layers": 3}, "TENSOR_MISSING"),
        ({"num_hidden_layers": 1}, "TENSOR_EXTRA"),
    ):
        config.write_text(good[0])
        change(config, **values)
        assert refusal(tmp_path).code == code, values
    for text in ("{", "[]", "[" * 100_000, "\xff"):
        config.write_text(text, encoding="latin-1")
        assert refusal(tmp_path).code == "CONFIG"
    config.unlink()
    assert refusal(tmp_path).code == "ABSENT"
    config.write_text(good[0])
    name = "model.layers.0.mlp.up_proj.weight"
    for other, code in ((torch.ones(96, 64).int(), "TENSOR_TYPE"), (torch.full((96, 64), torch.nan), "NONFINITE")):
        save_file({**good[1], name: other}, weights)
        assert (refusal(tmp_path).code, refusal(tmp_path).field) == (code, name)
    save_file(good[1], weights)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert refusal(tmp_path).code == "TOKENIZER"


def test_code_in_a_folder_never_runs(tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture) -> None:
    saved("llama", tmp_path, tokenizer)
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('it ran')\n")
    names = {"AutoConfig": "modeling_own.Config", "AutoModelForCausalLM": "modeling_own.Model"}
    change(tmp_path / "config.json", auto_map=names)
    model, _ = load(tmp_path)
    assert type(model).__module__.startswith("transformers.")
    change(tmp_path / "config.json", model_type="own")
    assert refusal(tmp_path).code == "ARCH_UNKNOWN"


def test_experts_that_are_not_all_there(tmp_path: Path, tokenizer: Any) -> None:
    saved("qwen3_moe", tmp_path, tokenizer)
    weights = tmp_path / "model.safetensors"
    good = load_file(weights)
    lost = next(name for name in good if ".experts.2." in name)
    save_file({name: t for name, t in good.items() if name != lost}, weights)
    assert refusal(tmp_path).code == "TENSOR_MISSING"
    save_file({**good, lost: torch.ones(3, 64)}, weights)
    assert refusal(tmp_path).code == "SHAPE"


@pytest.mark.parametrize("family", ["gpt2", "gpt_bigcode", "gpt_neo", "opt"])
def test_folders_of_gpt2s_kin(family: str, tmp_path: Path, tokenizer: Any) -> None:
    """Their class would ignore tensors by names that are part of others' (attn.bias, of c_attn.bias)."""
    stock = tiny_models.build(family)
    stock.save_pretrained(tmp_path / "dense")
    packed = torch_foundry.patch(copy.deepcopy(stock), quantize="q8_0")
    packed.save_pretrained(tmp_path / "packed")
    for folder, whole in (("dense", stock), ("packed", packed)):
        tokenizer.save_pretrained(tmp_path / folder)
        model, _ = load(tmp_path / folder)
        model.generation_config.eos_token_id = None
        assert tiny_models.tokens(model) == tiny_models.tokens(whole) and tiny_models.fused_all(model)


def test_a_folder_saved_without_an_output_layer(tmp_path: Path, tokenizer: Any) -> None:
    """As GPT-2 was published: names lack the decoder's, and causal masks are stored."""
    stock = tiny_models.build("gpt2")
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tensors = {n.removeprefix("transformer."): t for n, t in load_file(tmp_path / "model.safetensors").items()}
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 8, 8).tril() for i in range(2)}
    save_file(tensors | masks, tmp_path / "model.safetensors", {"format": "pt"})
    model, _ = load(tmp_path)
    model.generation_config.eos_token_id = None
    assert tiny_models.tokens(model) == tiny_models.tokens(stock) and tiny_models.fused_all(model)
