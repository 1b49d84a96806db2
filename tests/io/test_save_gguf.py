"""Models written as GGUF files: the gguf package and our loader read back what was written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

import torch_foundry
from tests.hf import tiny_models
from tests.io.gguf_models import CASES, contents, make, write, write_file
from torch_foundry import patch, quant, save_gguf, unpatch
from torch_foundry.demo_model import demo_model_path
from torch_foundry.io.gguf.writer import describe_model, write_gguf

WITHOUT = {"device": "cpu", "progress": False, "allow": ("VOCAB_MISSING",)}


def fields(path: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}


@pytest.mark.parametrize("name", CASES)
def test_what_was_loaded_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    """Every tensor of the file that an independent writer made is in ours, in the same type and bytes."""
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    write(source, name, make(name))
    model, _ = torch_foundry.load(source, device="cpu", progress=False)
    save_gguf(model, target)
    theirs = {t.name: t for t in gguf.GGUFReader(source).tensors}
    ours = {t.name: t for t in gguf.GGUFReader(target).tensors}
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        if tensor.tensor_type == gguf.GGMLQuantizationType.F16:  # loaded as float32
            assert (ours[key].data == tensor.data.astype("float32")).all()
        elif key == "rope_freqs.weight":
            torch.testing.assert_close(torch.tensor(ours[key].data), torch.tensor(tensor.data))
        else:
            assert ours[key].tensor_type == tensor.tensor_type and (ours[key].data == tensor.data).all(), key
    again, tokenizer = torch_foundry.load(target, **WITHOUT)
    assert tokenizer is None and again.config.to_diff_dict().keys() >= {"hidden_size"}
    model.generation_config.eos_token_id = None
    assert tiny_models.tokens(again) == tiny_models.tokens(model)
    with torch.no_grad():
        assert torch.equal(again(tiny_models.PROMPT).logits, model(tiny_models.PROMPT).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dense_models(dtype: torch.dtype, tmp_path: Path) -> None:
    stock = copy.deepcopy(tiny_models.shared("llama-biased")).to(dtype)
    save_gguf(stock, tmp_path / "model.gguf")
    again, _ = torch_foundry.load(tmp_path / "model.gguf", dtype=dtype, patch=False, **WITHOUT)
    expected = stock.state_dict()
    assert again.state_dict().keys() == expected.keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in expected.items())
    read = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert read["blk.0.attn_q.weight"] == {4: "F32", 2: "F16" if dtype == torch.float16 else "BF16"}[dtype.itemsize]
    assert read["blk.0.attn_q.bias"] == read["output_norm.weight"] == "F32"


def test_every_format_that_can_be_packed(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for fmt in quant.PACKABLE:
        if quant.FORMATS[fmt].gguf_type is None:
            continue
        sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
        model = transformers.AutoModelForCausalLM.from_config(
            tiny_models.config("LlamaConfig", num_hidden_layers=1, **sizes)
        )
        for p in model.parameters():
            p.data.normal_(generator=generator)
        model = patch(model.eval(), quantize=fmt) if quant.FORMATS[fmt].packed else model
        save_gguf(model, tmp_path / "model.gguf")
        tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
        down = tensors["blk.0.ffn_down.weight"]
        stored = model.model.layers[0].mlp.down_proj.weight.detach()
        assert down.data.tobytes() == stored.view(torch.uint8).numpy().tobytes()
        if fmt == "q1_0":
            continue  # the gguf package can't unpack it yet
        values = torch.from_numpy(gguf.dequantize(down.data, down.tensor_type).copy())
        dense = unpatch(model, dequantize=True) if quant.FORMATS[fmt].packed else model
        assert torch.equal(values, dense.model.layers[0].mlp.down_proj.weight), fmt


def test_the_demo_model_talks_on(tmp_path: Path) -> None:
    """Exported with its tokenizer and loaded again, packed and dense: equal ids, equal answers."""
    directory, path = demo_model_path(), tmp_path / "demo.gguf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    chat = [{"role": "user", "content": "What is the opposite of hot?"}]
    for fmt in (None, "q8_0"):
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        model = patch(model) if fmt is None else patch(model, quantize=fmt)
        save_gguf(model, path, tokenizer)
        again, words = torch_foundry.load(path, device="cpu", progress=False)
        assert words.get_vocab() == tokenizer.get_vocab() and words.chat_template == tokenizer.chat_template
        options: dict[str, Any] = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        inputs = words.apply_chat_template(chat, **options)
        assert torch.equal(inputs["input_ids"], tokenizer.apply_chat_template(chat, **options)["input_ids"])
        answers = [m.generate(**inputs, max_new_tokens=12, do_sample=False).tolist() for m in (model, again)]
        assert answers[0] == answers[1] and "cold" in words.decode(answers[1][0])
    read = fields(path)
    assert read["general.architecture"] == "llama" and read["tokenizer.ggml.pre"] == "smollm"
    types = gguf.GGUFReader(path).fields["tokenizer.ggml.token_type"].types
    assert types[1] == gguf.GGUFValueType.INT32, "llama.cpp refuses others"
    assert read["llama.block_count"] == 9 and read["tokenizer.ggml.add_bos_token"] is True


def test_what_longrope_multiplies_by_is_said(tmp_path: Path) -> None:
    """Others don't compute it: a file without it is run as if it were 1."""
    model = make("phi4-mini")
    assert "attention_factor" not in model.config.rope_parameters
    save_gguf(model, tmp_path / "a.gguf")
    expected = model.model.rotary_emb.attention_scaling
    assert expected > 1.1 and fields(tmp_path / "a.gguf")["phi3.rope.scaling.attn_factor"] == pytest.approx(expected)
    again, _ = torch_foundry.load(tmp_path / "a.gguf", **WITHOUT)
    assert again.model.rotary_emb.attention_scaling == pytest.approx(expected)
    assert "attention_factor" not in again.config.rope_parameters, "the config that the file was made from"


def test_an_epsilon_has_two_names(tmp_path: Path) -> None:
    """llama.cpp asks Nemotron-H's files for the one, other writers leave out the other."""
    model = make("nemotron_h")
    metadata, tensors = describe_model(model)
    rms, plain = (f"nemotron_h.attention.layer_norm_{name}epsilon" for name in ("rms_", ""))
    assert metadata[rms] == metadata[plain] == model.config.layer_norm_epsilon
    write_gguf(tmp_path / "a.gguf", {key: value for key, value in metadata.items() if key != rms}, tensors)
    again, _ = torch_foundry.load(tmp_path / "a.gguf", **WITHOUT)
    assert again.config.layer_norm_epsilon == model.config.layer_norm_epsilon
    write_gguf(tmp_path / "b.gguf", {key: value for key, value in metadata.items() if key not in (rms, plain)}, tensors)
    with pytest.raises(torch_foundry.LoadError, match=f"{rms}: .*HP_MISSING"):
        torch_foundry.load(tmp_path / "b.gguf", **WITHOUT)


def test_a_name_that_is_empty_is_no_other_name(tmp_path: Path) -> None:
    """Most keys have one name: what lies behind a bare point stands for none of them."""
    metadata, tensors = describe_model(make("llama"))
    left = {key: value for key, value in metadata.items() if key != "llama.attention.layer_norm_rms_epsilon"}
    write_gguf(tmp_path / "a.gguf", left | {"llama.": 1e-5}, tensors)
    with pytest.raises(torch_foundry.LoadError, match=r"layer_norm_rms_epsilon: .*HP_MISSING"):
        torch_foundry.load(tmp_path / "a.gguf", **WITHOUT)


def test_several_ends_stay(tmp_path: Path) -> None:
    keys, tensors = contents("qwen2", make("qwen2"))
    write_file(tmp_path / "a.gguf", "qwen2", keys | {"tokenizer.ggml.eot_token_id": 5}, tensors)
    model, words = torch_foundry.load(tmp_path / "a.gguf", device="cpu", progress=False)
    save_gguf(model, tmp_path / "b.gguf", words)
    again, tokenizer = torch_foundry.load(tmp_path / "b.gguf", device="cpu", progress=False)
    assert again.generation_config.eos_token_id == [2, 5] and tokenizer("hi th").input_ids == words("hi th").input_ids
    first, second = fields(tmp_path / "a.gguf"), fields(tmp_path / "b.gguf")
    assert {k: v for k, v in first.items() if k in second and second[k] != v} == {}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ({"rms_norm_eps": 2.0}, "layer_norm_rms_epsilon"),
    ],
)
def test_settings_that_a_file_cannot_say(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = tiny_models.random_model(tiny_models.config("LlamaConfig", **change))
    with pytest.raises(ValueError, match=message):
        save_gguf(model, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_settings_of_published_configs_that_nothing_reads(tmp_path: Path) -> None:
    model = tiny_models.random_model(tiny_models.config("LlamaConfig", moe_layer_freq=1, block_dim=64))
    assert model.config.moe_layer_freq == 1
    save_gguf(model, tmp_path / "model.gguf")


def test_sizes_that_a_config_makes_of_others(tmp_path: Path) -> None:
    """LFM2's rows of an MLP, which are not `intermediate_size`, and layers that are said twice."""
    model = tiny_models.build("lfm2")
    model.config.full_attn_idxs = [1]
    rows = model.model.layers[0].feed_forward.w1.out_features
    assert model.config.block_auto_adjust_ff_dim and rows != model.config.intermediate_size
    save_gguf(model, tmp_path / "model.gguf")
    read, _ = torch_foundry.load(tmp_path / "model.gguf", device="cpu", allow=("VOCAB_MISSING",))
    assert read.config.intermediate_size == rows
    assert tiny_models.tokens(read) == tiny_models.tokens(model)


def test_models_and_formats_that_have_no_place(tmp_path: Path) -> None:
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50))
    with pytest.raises(ValueError, match="expected one of Llama"):
        save_gguf(gpt2, tmp_path / "model.gguf")
    other = next(f for f in quant.PACKABLE if quant.FORMATS[f].gguf_type is None)
    sizes = {"hidden_size": 256, "intermediate_size": 256}
    model = patch(tiny_models.random_model(tiny_models.config("LlamaConfig", **sizes)), quantize=other)
    with pytest.raises(ValueError, match=f"GGUF has no {other}"):
        save_gguf(model, tmp_path / "model.gguf")


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(tiny_models.shared("llama"), path)
    before = path.read_bytes()

    def fail(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_gguf(tiny_models.shared("qwen3"), path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
