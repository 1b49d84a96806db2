"""Every format that GGUF has, in every place, and every family: files that save_gguf writes say what the model is."""

from __future__ import annotations

import copy
import fnmatch
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf import tiny_cases, tiny_models
from tests.io.gguf_models import converted, write_file
from torch_foundry import patch, quant, save_gguf, unpatch
from torch_foundry.nn import FoundryExperts
from torch_foundry.testing import weights

WITHOUT = {"device": "cpu", "progress": False, "allow": ("VOCAB_MISSING",)}
PACKED = [name for name, known in quant.FORMATS.items() if known.packed and known.gguf_type is not None]
SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}
KEYS = {
    **{"context_length": 256, "embedding_length": 256, "block_count": 1, "feed_forward_length": 256},
    **{"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6},
    **{"expert_count": 4, "expert_used_count": 2, "rope.freq_base": 1e4},
}


def tensors_of(path: Path) -> dict[str, tuple[Type, bytes]]:
    return {t.name: (t.tensor_type, t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}


@pytest.fixture(scope="module")
def mixtral() -> dict[str, np.ndarray]:
    """Tensors of a file with heads, whose rows it has in another order, and with experts."""
    settings = tiny_models.config("MixtralConfig", num_local_experts=4, num_experts_per_tok=2, **SIZES)
    return converted("mixtral", tiny_models.random_model(settings))


@pytest.mark.parametrize("fmt", PACKED)
def test_blocks_come_back(fmt: str, mixtral: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Also those that nothing here packs: experts, rows of heads, embedding and output layer, byte for byte."""
    source, target, tensors = tmp_path / "source.gguf", tmp_path / "target.gguf", {}
    for name, values in mixtral.items():
        dense = torch.from_numpy(values)
        if dense.ndim > 1 and "gate_inp" not in name:
            packed = weights.packed(dense.reshape(-1, dense.shape[-1]), fmt)
            tensors[name] = packed.view(*dense.shape[:-1], -1).numpy(), Type(quant.FORMATS[fmt].gguf_type)
        else:
            tensors[name] = values, Type.F32
    write_file(source, "llama", {f"llama.{key}": value for key, value in KEYS.items()}, tensors)
    model, _ = torch_foundry.load(source, **WITHOUT)
    experts = next(m for m in model.modules() if isinstance(m, FoundryExperts))
    assert experts.formats == (fmt,) * 3
    save_gguf(model, target)
    assert tensors_of(target) == tensors_of(source)
    again, _ = torch_foundry.load(target, **WITHOUT)
    state = model.state_dict()
    assert again.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


# what a file can't say of the zoo's models: a scale of scores, layers without rope or experts, a family it has not
UNSAID = {
    "gemma2": "query_pre_attn_scalar",
    "gemma3": "query_pre_attn_scalar",
    "smollm3": "no_rope_layers",
    "qwen2_moe": "mlp.gate.weight",
}
MIXED = {"*.experts": "q4_1", "*.v_proj": "q8_0", "*.qkv_proj": "q5_1", "*": "q5_0"}


@pytest.mark.parametrize("formats", [None, "q8_0", MIXED], ids=["dense", "q8_0", "mixed"])
@pytest.mark.parametrize("family", tiny_cases.FAMILIES)
def test_every_family(family: str, formats: Any, tmp_path: Path) -> None:
    model, path = copy.deepcopy(tiny_models.shared(family)), tmp_path / "model.gguf"
    if isinstance(formats, dict):
        names = [name for name, _ in model.named_modules()]
        formats = {pattern: fmt for pattern, fmt in formats.items() if fnmatch.filter(names, pattern)}
    model = patch(model) if formats is None else patch(model, quantize=formats)
    if family in UNSAID:
        with pytest.raises(ValueError, match=UNSAID[family]):
            save_gguf(model, path)
        assert not list(tmp_path.iterdir())
        return
    save_gguf(model, path)
    again, _ = torch_foundry.load(path, **WITHOUT)
    state = model.state_dict()
    assert again.state_dict().keys() == state.keys()
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=1e-6 if "norm" in name else 0)  # Gemma's + 1
    with torch.no_grad():
        dense = unpatch(copy.deepcopy(model), dequantize=True)
        assert_found_as_exact(again(tiny_models.PROMPT).logits, lambda each: each(tiny_models.PROMPT).logits, dense)
    again.generation_config.eos_token_id = None
    assert tiny_models.tokens(again) == tiny_models.tokens(model)
    read = {info.name: info for info in gguf.GGUFReader(path).tensors}
    for module, parameter in model.named_modules():
        if getattr(parameter, "format", None) and module.endswith("down_proj"):
            info = read[f"blk.{module.split('.')[2]}.ffn_down.weight"]
            values = torch.from_numpy(gguf.dequantize(info.data, info.tensor_type).copy())
            assert torch.equal(values, parameter.dequantized(torch.float32))
