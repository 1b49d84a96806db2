"""`torch-foundry convert`, and what an importance matrix does for a model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import torch_foundry
from tests.io import towers
from torch_foundry import quant
from torch_foundry.cli import main
from torch_foundry.demo_model import demo_model_path, held_out_sample
from torch_foundry.hf.packing import packed_formats
from torch_foundry.io.load import load


@pytest.mark.parametrize("out", ["new.gguf", "new"])
def test_models_in_all_directions(
    tiny_model: Path, tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a file or folder, packed, and from there dense in another: the values that packing left."""
    first, second = tmp_path / out, tmp_path / "second"
    assert main(["convert", str(tiny_model), str(first), "--quantize", "Q8_0"]) == 0
    assert capsys.readouterr().out.startswith(f"{first}: ")
    packed, tokenizer = load(first, device="cpu", patch=False)
    assert packed_formats(packed) == "q8_0"
    source, words = load(tiny_model, device="cpu", patch=False)
    torch_foundry.dequantize(packed)
    assert tokenizer("a lost kite").input_ids == words("a lost kite").input_ids
    torch_foundry.dequantize(torch_foundry.quantize(source, "q8_0"))
    for name, weight in source.state_dict().items():
        assert torch.equal(packed.state_dict()[name], weight), name
    assert main(["convert", str(first), str(second), "--quantize", "q4_0"]) == 0  # packed anew
    assert packed_formats(load(second, device="cpu")[0]) == "q4_0"


def test_the_dtype_is_the_file_s(tiny_model: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    assert main(["convert", str(tiny_model), str(half), "--dtype", "bfloat16"]) == 0
    assert main(["convert", str(half), str(tmp_path / "same.gguf")]) == 0
    assert load(tmp_path / "same.gguf", device="cpu", dtype="auto", patch=False)[0].dtype == torch.bfloat16
    assert load(half, device="cpu", patch=False)[0].dtype == torch.float32


@pytest.mark.parametrize("name", ["qwen3_5", "gemma3"])
def test_what_sees_images_stays(name: str, tmp_path: Path) -> None:
    """Of Qwen3.5 too, which is loaded without it by default; and what its processor is made of."""
    source, out = tmp_path / "source", tmp_path / "out"
    towers.whole(name).save_pretrained(source)
    towers.words(name).save_pretrained(source)
    (source / "preprocessor_config.json").write_text("{}")
    assert main(["convert", str(source), str(out), "--quantize", "q8_0"]) == 0
    assert (out / "preprocessor_config.json").read_text() == "{}"
    model, _ = load(out, device="cpu", patch=False, images=True)
    twin = torch_foundry.dequantize(torch_foundry.quantize(copy.deepcopy(towers.whole(name)), "q8_0"))
    found = torch_foundry.dequantize(model).state_dict()
    assert found.keys() == twin.state_dict().keys()
    for key, weight in twin.state_dict().items():
        assert torch.equal(found[key], weight), key


@pytest.mark.parametrize(
    "options, message",
    [
        (["--quantize", "q9_0"], "--quantize q9_0: expected one of"),
        (["--imatrix", "text.txt"], "--imatrix: expected --quantize with one of q2_k, q3_k"),
        (["--imatrix", "text.txt", "--quantize", "q8_0"], "--imatrix: expected --quantize with one of"),
        (["--imatrix", "absent.txt", "--quantize", "iq4_nl"], "absent.txt: cannot be read"),
        (["--imatrix", "/dev/null", "--quantize", "iq4_nl"], "/dev/null: no text in it"),
    ],
)
def test_refusals(
    tiny_model: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(tiny_model), str(tmp_path / "new.gguf"), *options]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_is_there_stays(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.gguf"
    out.write_text("mine")
    assert main(["convert", str(tiny_model), str(out)]) == 2
    assert out.read_text() == "mine" and "exists already" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "none"), str(tmp_path / "b.gguf")]) == 2
    assert "cannot load the model" in capsys.readouterr().err


@torch.no_grad()
def test_importance_lowers_the_error_of_outputs() -> None:
    """Of layers of the demo model, for texts that it wasn't measured on."""
    path = demo_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [tokenizer(t, add_special_tokens=False, return_tensors="pt").input_ids for t in held_out_sample(8)]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    found = torch_foundry.importance(model, [text[0] for text in texts[:5]])
    layers = {name: model.get_submodule(name) for name in found if name.startswith("model.layers.1.")}
    inputs: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda _, given, name=name: inputs.update({name: given[0][0]}))
    model(torch.cat(texts[5:], dim=1)[:, :256])
    for name, layer in layers.items():
        errors = []
        for factors in (None, found[name]):
            rest = quant.dequantize(quant.quantize(layer.weight, "q2_k", factors), "q2_k") - layer.weight
            errors.append(float((inputs[name].double() @ rest.double().T).square().sum()))
        assert errors[1] < errors[0], name
    assert len(layers) == 7


def test_importance_is_the_mean_square_of_inputs(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    text = torch.arange(3, 23) % model.config.vocab_size
    seen: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    found = torch_foundry.importance(model, text, context=8)
    hook.remove()
    torch.testing.assert_close(found["lm_head"], torch.cat(seen).double().square().mean(0).float())
    assert set(found) == {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert not any(module._forward_pre_hooks for module in model.modules())
    for bad, message in ((text[:0], "expected some"), (text + 10**6, "expected ids below")):
        with pytest.raises(ValueError, match=message):
            torch_foundry.importance(model, bad)
    with pytest.raises(ValueError, match="expected one that is not patched"):
        torch_foundry.importance(torch_foundry.patch(model), text)
