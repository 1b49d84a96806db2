"""Models of every architecture from GGUF files that an independent writer made: packed bytes are the file's, logits and
tokens those of the transformers model that the file was made from, with dequantised weights."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf import tiny_cases, tiny_models
from tests.io.gguf_models import CASES, INTERLEAVED, contents, converted, make, mixed, names_of, write, write_file
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear


@functools.cache
def stock(name: str) -> Any:
    return make(name)


def twin_of(name: str, stored: dict[str, np.ndarray], choose: Any) -> Any:
    """The stock model with what the file's types leave of its weights: quantised in the model's own order of rows."""
    twin = copy.deepcopy(stock(name))
    names: dict[str, str] = {}
    for key in converted(name, twin):
        names[key] = choose(key) if stored[key].ndim > 1 else "f32"
    with torch.no_grad():
        for key, p in twin.named_parameters():
            if p.dim() < 2:
                continue
            for part, rows in _parts(key, p):
                target = _file_name(name, part)
                kind = getattr(gguf.GGMLQuantizationType, names[target].upper())
                flat = rows.reshape(-1, rows.shape[-1]).numpy()
                values = gguf.dequantize(gguf.quantize(flat, kind), kind)
                rows.copy_(torch.from_numpy(values).view(rows.shape))
    return twin


def _parts(key: str, p: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    if key.endswith("gate_up_proj"):
        gate, up = p.chunk(2, dim=1)
        return [(key.replace("gate_up_proj", "gate_proj"), gate), (key.replace("gate_up_proj", "up_proj"), up)]
    return [(key, p)]


def _file_name(name: str, key: str) -> str:
    stem = key.removesuffix(".weight")
    if name == "mixtral" and "experts" not in stem:
        stem = stem.replace("mlp.gate", "block_sparse_moe.gate")
    found = names_of(name).get_name(stem)
    assert found is not None
    return f"{found}.weight"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(tiny_models.PROMPT).logits


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_the_one_that_the_file_was_made_from(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    stored = write(path, name, stock(name), mixed)
    twin = twin_of(name, stored, mixed)
    model, tokenizer = torch_foundry.load(path, device="cpu", progress=False)
    assert len(tokenizer) == tiny_cases.VOCAB and type(model.config) is type(twin.config)
    assert packed_bytes(model, name) == {key: value.tobytes() for key, value in unswapped(name, stored).items()}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    model.generation_config.eos_token_id = None
    assert_found_as_exact(logits(model), logits, twin)
    assert tiny_models.tokens(model) == tiny_models.tokens(twin)
    plain, _ = torch_foundry.load(path, device="cpu", progress=False, patch=False, mmap=True)
    plain.set_attn_implementation("eager")
    twin.set_attn_implementation("eager")
    assert_found_as_exact(logits(plain), logits, twin)


def test_parts_of_a_model(tmp_path: Path) -> None:
    """From any of its parts, or from their folder; one that is missing is named."""
    keys, tensors = contents("qwen2", stock("qwen2"))
    write_file(tmp_path / "whole.gguf", "qwen2", keys, tensors)
    folder = tmp_path / "parts"
    folder.mkdir()
    write_file(folder / "model.gguf", "qwen2", keys, tensors, in_a_part=5)
    parts = sorted(folder.iterdir())
    assert len(parts) > 3 and parts[0].name.startswith("model-00001-of-0000")
    expected = logits(torch_foundry.load(tmp_path / "whole.gguf", device="cpu", progress=False)[0])
    for path in (parts[0], parts[2], folder):
        for mmap in (False, True):
            model, _ = torch_foundry.load(path, device="cpu", progress=False, mmap=mmap)
            assert torch.equal(logits(model), expected), str(path)
    parts[1].unlink()
    with pytest.raises(torch_foundry.LoadError, match=parts[1].name):
        torch_foundry.load(parts[0], device="cpu", progress=False)


def packed_bytes(model: Any, name: str) -> dict[str, bytes]:
    """Packed weights of the model, by their names in the file."""
    found = {}
    for path, module in model.named_modules():
        if path == "lm_head" and model.config.tie_word_embeddings:
            assert module.weight is model.model.embed_tokens.weight
        elif isinstance(module, FoundryLinear | FoundryEmbedding):
            found[_file_name(name, f"{path}.weight")] = module.weight.numpy().tobytes()
        elif isinstance(module, FoundryExperts):
            for part, fmt in zip(("gate_proj", "up_proj", "down_proj"), module.formats, strict=True):
                if fmt not in ("f32", "f16"):
                    found[_file_name(name, f"{path}.{part}")] = getattr(module, part).numpy().tobytes()
    return found


def unswapped(name: str, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The packed tensors of the file with rows of heads where transformers has them."""
    settings, found = stock(name).config, {}
    for key, blocks in stored.items():
        if blocks.dtype != np.uint8:
            continue
        if CASES[name].arch in INTERLEAVED and key.endswith(("attn_q.weight", "attn_k.weight")):
            heads = settings.num_attention_heads if "attn_q" in key else settings.num_key_value_heads
            pairs = blocks.reshape(heads, -1, 2, blocks.shape[-1])
            blocks = np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(blocks.shape)
        found[key] = blocks
    return found


def test_transformers_own_loader_agrees_where_it_is_right(tmp_path: Path) -> None:
    """It makes everything dense. Of Qwen's files it ignores the head's size, and that of experts."""
    import transformers

    write(tmp_path / "model.gguf", "llama", stock("llama"), mixed)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").eval()
    ours, _ = torch_foundry.load(tmp_path, device="cpu", progress=False)
    assert_found_as_exact(logits(ours), logits, theirs)
