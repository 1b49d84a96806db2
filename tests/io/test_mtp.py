"""MTP heads in GGUF files: a block behind the model's, in their places and formats."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from tests.hf import tiny_models
from tests.io.gguf_cases import CASES, LAID_OUT
from tests.io.gguf_models import Keys, Tensors, contents, write_file
from tests.io.test_gguf_laid_out import stock
from torch_foundry import load, load_mtp
from torch_foundry.core.load_errors import LoadError
from torch_foundry.hf.api import report

Type = gguf.GGMLQuantizationType
FILES = CASES | LAID_OUT
ALLOWED = ("VOCAB_MISSING",)
NORMS = ("enorm", "hnorm", "shared_head_norm")


def with_head(name: str, kind: Type = Type.F32) -> tuple[Keys, Tensors]:
    """A file's contents; its head has the weights of the last block."""
    arch = FILES[name].arch
    keys, tensors = contents(name, stock(name), lambda _: "f32")
    keys |= {f"{arch}.block_count": 3, f"{arch}.nextn_predict_layers": 1}
    for tensor in [tensor for tensor in tensors if tensor.startswith("blk.1.")]:
        tensors[tensor.replace("blk.1.", "blk.2.")] = tensors[tensor]
    rng = np.random.default_rng(0)
    joined = rng.standard_normal((64, 128)).astype(np.float32)
    tensors["blk.2.nextn.eh_proj.weight"] = gguf.quantize(joined, kind), kind
    for number, norm in enumerate(NORMS):
        tensors[f"blk.2.nextn.{norm}.weight"] = np.full(64, 1.5 + number, np.float32), Type.F32
    return keys, tensors


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "glm4moe"])
def test_a_head_is_read_into_its_places(name: str, kind: Type, tmp_path: Path) -> None:
    keys, tensors = with_head(name, kind)
    write_file(tmp_path / "model.gguf", FILES[name].arch, keys, tensors)
    model = load(tmp_path / "model.gguf", allow=ALLOWED)[0]
    model.generation_config.eos_token_id = None
    load_mtp(model)
    head = model.generator_plan().mtp
    layer, last = head.model.layers[0].state_dict(), model.model.layers[1].state_dict()
    assert layer.keys() == last.keys() and all(torch.equal(layer[key], last[key]) for key in layer)
    beside = head.model.mtp
    norms = beside.norm_embedding, beside.norm_hidden, head.model.norm
    added = name.startswith("qwen")  # whose files have 1 added
    assert [norm.weight[0].item() for norm in norms] == [value - added for value in (1.5, 2.5, 3.5)]
    rows, _ = tensors["blk.2.nextn.eh_proj.weight"]
    for half, linear in enumerate((beside.fc_embedding, beside.fc_hidden)):
        expected = torch.tensor(gguf.dequantize(rows, kind))[:, 64 * half : 64 * (half + 1)]
        found = linear.weight if kind == Type.F32 else linear.dequantized(torch.float32)
        assert torch.equal(found, expected)
    assert tiny_models.tokens(model, use_mtp=True) == tiny_models.tokens(model)
    assert not report(model).eager


def test_faults(tmp_path: Path) -> None:
    keys, tensors = with_head("qwen35")
    file, arch = tmp_path / "model.gguf", FILES["qwen35"].arch

    def refused(changed: Tensors, code: str, field: str) -> None:
        write_file(file, arch, keys, changed)
        model, _ = load(file, allow=ALLOWED)
        with pytest.raises(LoadError) as caught:
            load_mtp(model)
        assert (caught.value.code, caught.value.field) == (code, field)

    eh_proj = "blk.2.nextn.eh_proj.weight"
    refused({key: value for key, value in tensors.items() if key != eh_proj}, "TENSOR_MISSING", eh_proj)
    refused({**tensors, eh_proj: (np.ones((64, 64), np.float32), Type.F32)}, "SHAPE", eh_proj)
    keys[f"{arch}.nextn_predict_layers"], keys[f"{arch}.block_count"] = 0, 2
    without = {key: value for key, value in tensors.items() if not key.startswith("blk.2.")}
    refused(without, "TENSOR_MISSING", "nextn.enorm.weight")
