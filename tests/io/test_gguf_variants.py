"""GGUF files of other times and makers: a tensor for each expert, NVFP4 with the factors of its tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf import tiny_models
from tests.io.gguf_models import Keys, Tensors, contents, make, write_file
from torch_foundry import LoadError, quant, save_gguf
from torch_foundry.io.gguf import open_gguf
from torch_foundry.io.gguf.model import GgufModel
from torch_foundry.io.weights import WeightReader
from torch_foundry.nn import FoundryExperts, FoundryLinear


def load(path: Path, **options: Any) -> Any:
    return torch_foundry.load(path, device="cpu", progress=False, allow=("VOCAB_MISSING",), **options)[0]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(tiny_models.PROMPT).logits


def experts_alone(tensors: Tensors) -> Tensors:
    """As files had them before a layer's experts were stacked."""
    found: Tensors = {}
    for name, (data, kind) in tensors.items():
        parts = {name: data}
        if "_exps." in name:
            parts = {name.replace("_exps.", f".{i}."): part for i, part in enumerate(data)}
        found |= {part: (value, kind) for part, value in parts.items()}
    return found


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "f16", "f32"])
@pytest.mark.parametrize("mmap", [False, True])
def test_experts_that_have_tensors_of_their_own(kind: str, mmap: bool, tmp_path: Path) -> None:
    keys, tensors = contents("mixtral", make("mixtral"), lambda name: kind if "exps" in name else "q8_0")
    write_file(tmp_path / "new.gguf", "llama", keys, tensors)
    write_file(tmp_path / "old.gguf", "llama", keys, experts_alone(tensors))
    new, old = (load(tmp_path / f"{name}.gguf", mmap=mmap) for name in ("new", "old"))
    assert old.state_dict().keys() == new.state_dict().keys()
    for name, value in new.state_dict().items():
        assert torch.equal(old.state_dict()[name], value), name
    experts = old.model.layers[1].mlp.experts
    assert isinstance(experts, FoundryExperts) == (kind[0] == "q")
    assert torch.equal(logits(old), logits(new))
    save_gguf(old, tmp_path / "again.gguf")
    assert "blk.0.ffn_gate_exps.weight" in {t.name for t in gguf.GGUFReader(tmp_path / "again.gguf").tensors}


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "glm4moe"])
@pytest.mark.parametrize("kind", ["q8_0", "f32"])
def test_experts_with_gate_and_up_in_one_tensor(name: str, kind: str, tmp_path: Path) -> None:
    """As llama.cpp's converter fuses them on request."""
    keys, tensors = contents(name, make(name), lambda name: kind if "exps" in name else "q8_0")
    arch, fused = keys_of(keys), dict(tensors)
    write_file(tmp_path / "two.gguf", arch, keys, tensors)
    for key, (up, kind_of) in tensors.items():
        if key.endswith("ffn_up_exps.weight"):
            gate, _ = fused.pop(key.replace("up", "gate"))
            fused[key.replace("up", "gate_up")] = np.concatenate((gate, up), 1), kind_of
            del fused[key]
    write_file(tmp_path / "one.gguf", arch, keys, fused)
    assert len(fused) < len(tensors)
    two, one = (load(tmp_path / f"{count}.gguf") for count in ("two", "one"))
    assert one.state_dict().keys() == two.state_dict().keys()
    for key, value in two.state_dict().items():
        assert torch.equal(one.state_dict()[key], value), key
    assert torch.equal(logits(one), logits(two))


def test_experts_are_read_to_where_they_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not through a piece of memory in between, and each once."""
    keys, tensors = contents("mixtral", make("mixtral"), lambda name: "q8_0" if "exps" in name else "f32")
    write_file(tmp_path / "old.gguf", "llama", keys, experts_alone(tensors))
    read: list[tuple[str, int]] = []
    with open_gguf(tmp_path / "old.gguf") as container:
        into = container.read_into
        monkeypatch.setattr(WeightReader, "_parts", None)

        def noted(name: str, out: torch.Tensor, *rest: Any, **options: Any) -> None:
            read.append((name, out.data_ptr()))
            into(name, out, *rest, **options)

        monkeypatch.setattr(container, "read_into", noted)
        weight = GgufModel(container).weights["model.layers.1.mlp.experts.down_proj"]
        stacked = weight.load(torch.device("cpu"))
    assert stacked.numpy().tobytes() == tensors["blk.1.ffn_down_exps.weight"][0].tobytes()
    assert read == [(f"blk.1.ffn_down.{i}.weight", stacked[i].data_ptr()) for i in range(4)]


EXPERT = "blk.1.ffn_up.2.weight"


@pytest.mark.parametrize(
    "change, code, field",
    [
        (lambda t: t.pop(EXPERT), "TENSOR_MISSING", EXPERT),
        (lambda t: t.update({"blk.1.ffn_up.4.weight": t[EXPERT]}), "TENSOR_EXTRA", "blk.1.ffn_up.4.weight"),
        (lambda t: t.update({EXPERT: t["blk.1.ffn_gate.2.weight"]}), "TENSOR_TYPE", EXPERT),
        (lambda t: t.update({EXPERT: (t[EXPERT][0][:-1], t[EXPERT][1])}), "SHAPE", EXPERT),
        (lambda t: t.update({"blk.1.ffn_up_exps.weight": t[EXPERT]}), "TENSOR_EXTRA", "blk.1.ffn_up.0.weight"),
    ],
)
def test_mistakes_of_experts(change: Any, code: str, field: str, tmp_path: Path) -> None:
    keys, tensors = contents("mixtral", make("mixtral"), lambda name: "f32" if "ffn_gate_exps" in name else "q8_0")
    tensors = experts_alone(tensors)
    change(tensors)
    write_file(tmp_path / "model.gguf", "llama", keys, tensors)
    with pytest.raises(LoadError) as caught:
        load(tmp_path / "model.gguf")
    assert (caught.value.code, caught.value.field) == (code, field)


def nvfp4(name: str) -> tuple[Keys, Tensors, dict[str, np.ndarray]]:
    """A case whose matrices of whole blocks are NVFP4 with factors as llama.cpp's converter writes them; their values.

    Weights are those of random codes: nothing packs this format.
    """
    keys, tensors = contents(name, make(name), lambda _: "f32")
    rng, found, values = np.random.default_rng(0), dict(tensors), {}
    for key, (data, _) in tensors.items():
        values[key] = data
        if data.ndim < 2 or data.shape[-1] % 64 or key == "token_embd.weight" or "gate_inp" in key:
            continue
        blocks = rng.integers(0, 256, (*data.shape[:-1], data.shape[-1] // 64, 36), np.uint8)
        blocks[..., :4] = rng.integers(0x28, 0x40, blocks[..., :4].shape)
        blocks = blocks.reshape(*data.shape[:-1], -1)
        factors = (rng.random(data.shape[0] if data.ndim == 3 else 1) * 0.04 + 0.01).astype(np.float32)
        plain = "attn_v" in key  # a factor of 1 is left out
        if not plain:
            found[key.replace("weight", "scale")] = factors, Type.F32
            found[key.replace("weight", "input_scale")] = factors, Type.F32
        found[key] = blocks, Type.NVFP4
        dense = gguf.dequantize(blocks.reshape(-1, blocks.shape[-1]), Type.NVFP4).reshape(data.shape)
        values[key] = dense if plain else dense * factors.reshape(-1, *[1] * (data.ndim - 1))
    return keys, found, values


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "phi3"])
def test_nvfp4_with_factors(name: str, tmp_path: Path) -> None:
    """Weights are the blocks' values times the factor, bit for bit, and logits those of a file of these values."""
    keys, tensors, values = nvfp4(name)
    arch = keys_of(keys)
    write_file(tmp_path / "model.gguf", arch, keys, tensors)
    write_file(tmp_path / "dense.gguf", arch, keys, {key: (value, Type.F32) for key, value in values.items()})
    dense = load(tmp_path / "dense.gguf", patch=False)
    for mmap in (False, True):
        model = load(tmp_path / "model.gguf", mmap=mmap)
        formats = {m.format for m in model.modules() if isinstance(m, FoundryLinear)}
        assert formats == {"nvfp4_f32", "nvfp4"} - ({"nvfp4"} if name == "phi3" else set())
        for path, module in model.named_modules():
            if isinstance(module, FoundryLinear):
                assert torch.equal(module.dequantized(torch.float32), dense.get_submodule(path).weight), path
        assert_found_as_exact(logits(model), logits, dense)
    model.generation_config.eos_token_id = dense.generation_config.eos_token_id = None
    assert tiny_models.tokens(model) == tiny_models.tokens(dense)
    save_gguf(model, tmp_path / "again.gguf")
    again = {t.name: t for t in gguf.GGUFReader(tmp_path / "again.gguf").tensors}
    assert again.keys() == {key for key in tensors if not key.endswith("input_scale")}
    for key, tensor in again.items():
        assert tensor.tensor_type == tensors[key][1] and tensor.data.tobytes() == tensors[key][0].tobytes(), key


def keys_of(keys: Keys) -> str:
    return next(key for key in keys if key.endswith(".block_count")).partition(".")[0]


GATE = "blk.1.ffn_gate"


@pytest.mark.parametrize(
    "change, code, field",
    [
        (lambda t: t.update({f"{GATE}.scale": (np.ones(2, np.float32), Type.F32)}), "SHAPE", f"{GATE}.scale"),
        (lambda t: t.update({f"{GATE}.scale": (np.ones(1, np.float16), Type.F16)}), "TENSOR_TYPE", f"{GATE}.scale"),
        (lambda t: t.update({f"{GATE}.scale": (np.array([np.nan], np.float32), Type.F32)}), "NONFINITE",
         f"{GATE}.scale"),
        (lambda t: t.update({f"{GATE}.input_scale": (np.ones(3, np.float32), Type.F32)}), "SHAPE",
         f"{GATE}.input_scale"),
        (lambda t: t.update({"blk.1.ffn_down.scale": (np.ones(1, np.float32), Type.F32)}), "TENSOR_EXTRA",
         "blk.1.ffn_down.scale"),
        (lambda t: t.update({"blk.1.attn_norm.scale": (np.ones(1, np.float32), Type.F32)}), "TENSOR_EXTRA",
         "blk.1.attn_norm.scale"),
    ],
)  # fmt: skip
def test_mistakes_of_factors(change: Any, code: str, field: str, tmp_path: Path) -> None:
    keys, tensors, _ = nvfp4("llama")
    change(tensors)
    write_file(tmp_path / "model.gguf", "llama", keys, tensors)
    with pytest.raises(LoadError) as caught:
        load(tmp_path / "model.gguf")
    assert (caught.value.code, caught.value.field) == (code, field)


def test_factors_that_a_file_cannot_say(tmp_path: Path) -> None:
    keys, tensors, _ = nvfp4("llama")
    write_file(tmp_path / "model.gguf", "llama", keys, tensors)
    model = load(tmp_path / "model.gguf")
    layer = model.model.layers[0].mlp.gate_proj
    layer.weight[3, :4] = torch.tensor([0.5]).view(torch.uint8)
    with pytest.raises(ValueError, match=re.escape("mlp.gate_proj.weight: GGUF has one factor")):
        save_gguf(model, tmp_path / "again.gguf")
    assert quant.FORMATS["nvfp4_f32"].gguf_type is None
