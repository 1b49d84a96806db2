"""What test_new_format.py runs in a tree with copies of both kinds of q8_0: new_format.py NAME GGUF_TYPE FOLDER."""

from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf import tiny_models
from torch_foundry import ops, quant
from torch_foundry.core import extension
from torch_foundry.demo_model import demo_model_path
from torch_foundry.diagnostics.doctor import selfcheck
from torch_foundry.hf.api import report
from torch_foundry.io import LoadError, open_gguf, open_safetensors
from torch_foundry.quant import kv
from torch_foundry.testing import op_checks, reference
from torch_foundry.testing.tolerance import generator, normal

NAME, GGUF_TYPE, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
load: Any = partial(torch_foundry.load, device="cpu", progress=False)


def check_table() -> None:
    assert extension.PACKAGE.parent == FOLDER and extension.shader_dir() == FOLDER / "shaders"
    known, model = quant.FORMATS[NAME], quant.FORMATS["q8_0"]
    assert known == quant.Format(**{**vars(model), "name": NAME, "gguf_type": GGUF_TYPE})


def check_ops() -> None:
    g = generator(NAME)
    dense = normal(g, 65, 288, dtype=torch.float32)
    weight = quant.quantize(dense, NAME)
    assert torch.equal(weight, quant.quantize(dense, "q8_0"))
    checks = [check for check in selfcheck.suite(quick=False) if NAME in check.name]
    assert {check.name.split()[0] for check in checks} == {"linear", "embedding"}
    for check in checks:
        check.run("cpu")
    given = {"weight": weight, "format": NAME, "bias": None, "residual": None, "scale": 1.0, "activation": None}
    for rows in (1, 33):
        op_checks.linear({"x": normal(g, rows, 288, dtype=torch.float32), **given}, "cpu")


def check_files() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    model: Any = AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=torch.float32)
    torch_foundry.patch(model, quantize=NAME)
    prompt = torch.arange(7)[None]
    expected = model(prompt).logits
    plain = torch_foundry.unpatch(copy.deepcopy(model), dequantize=True)
    assert_found_as_exact(expected, lambda each: each(prompt).logits, plain)
    torch_foundry.save_gguf(model, FOLDER / "model.gguf", tokenizer)
    for part in (model, tokenizer):
        part.save_pretrained(FOLDER / "model")
    for path in (FOLDER / "model.gguf", FOLDER / "model"):
        again, _ = load(path)
        assert again.model.layers[0].self_attn.o_proj.format == NAME
        assert torch.equal(again(prompt).logits, expected)
    with open_gguf(FOLDER / "model.gguf") as container:
        damage_scale(container.tensors["blk.0.attn_output.weight"])
    with open_safetensors(FOLDER / "model" / "model.safetensors") as container:
        damage_scale(container.tensors["model.layers.0.self_attn.o_proj.weight"])
    for path in (FOLDER / "model.gguf", FOLDER / "model"):
        with pytest.raises(LoadError) as caught:
            load(path)
        assert caught.value.code == "NONFINITE"


def check_caches() -> None:
    assert kv.FORMATS[NAME] == kv.FORMATS["q8_0"]
    g, formats = generator(NAME), {"k_format": NAME, "v_format": NAME}
    k, v = (normal(g, 1, 37, 2 * 64, dtype=torch.float32) for _ in range(2))
    caches = [torch.zeros(1, 2, 48, kv.row_bytes(64, NAME), dtype=torch.uint8) for _ in range(2)]
    ops.rope_kv(torch.zeros(1, 37, 4 * 64), k, v, None, None, *caches, 0, head_dim=64, **formats)
    for cache, x in zip(caches, (k, v), strict=True):
        rows = x.view(1, 37, 2, 64).transpose(1, 2)
        assert torch.equal(cache[:, :, :37], kv.pack_rows(rows, NAME))
        assert torch.equal(cache[:, :, :37], kv.pack_rows(rows, "q8_0"))
    for tokens in (1, 20):
        q = normal(g, 1, 4, tokens, 64, dtype=torch.float32)
        dense = [kv.unpack_rows(cache, NAME, torch.float64) for cache in caches]
        truth = reference.attention(q.double(), *dense, 37, scale=0.125)
        torch.testing.assert_close(ops.attention(q, *caches, 37, scale=0.125, **formats), truth.float())
    model = torch_foundry.patch(copy.deepcopy(tiny_models.shared("llama")), kv_cache=NAME)
    model.generate(tiny_models.PROMPT, max_new_tokens=8, do_sample=False)
    seen = report(model)
    assert seen.captured and not seen.eager and not seen.fallbacks, str(seen)


def damage_scale(info: Any) -> None:
    """Infinity in the second block of a tensor."""
    with open(info.path, "r+b") as file:
        file.seek(info.offset + quant.FORMATS[NAME].block_bytes)
        file.write(b"\0\x7c")


with torch.no_grad():
    check_table()
    check_ops()
    check_files()
    check_caches()
