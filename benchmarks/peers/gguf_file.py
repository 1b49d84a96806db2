"""A model with random weights as a GGUF file without vocabulary, for llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch

from benchmarks.models import Model
from benchmarks.ways import Network
from torch_foundry import quant


@torch.no_grad()
def write(path: Path, model: Model, network: Network, fmt: str) -> None:
    """Write `network` with its matrices in `fmt`. Packed, they become the dequantised ones in `network` as well."""
    kind = network.config.model_type
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(network.config.max_position_embeddings)
    writer.add_embedding_length(model.hidden_size)
    writer.add_block_count(model.num_hidden_layers)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.num_attention_heads)
    writer.add_head_count_kv(model.num_key_value_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_layer_norm_rms_eps(network.config.rms_norm_eps)
    writer.add_rope_freq_base(model.options.get("rope_theta", 1e4))
    writer.add_vocab_size(model.vocab_size)
    writer.add_tokenizer_model("none")
    architecture = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(architecture, model.num_hidden_layers)
    seen: set[int] = set()
    for name, parameter in network.named_parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        writer.add_tensor(
            str(names.get_name(name, try_suffixes=(".weight", ".bias"))), **_stored(model, kind, name, parameter, fmt)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored(model: Model, kind: str, name: str, parameter: torch.Tensor, fmt: str) -> dict[str, Any]:
    known = quant.get_format(fmt)
    if known.gguf_type is None:
        raise ValueError(f"format: expected one that GGUF files have, got {fmt!r}")
    if parameter.dim() < 2 or parameter.shape[1] % known.block_size:
        return {"tensor": parameter.float().numpy()}
    heads = {"q_proj": model.num_attention_heads, "k_proj": model.num_key_value_heads}
    of = next((n for part, n in heads.items() if kind == "llama" and part in name), None)
    stored = quant.quantize(parameter, fmt)
    if known.packed:
        parameter.copy_(quant.dequantize(stored, fmt))
    if of is not None:  # llama.cpp rotates neighbours where Hugging Face rotates halves
        stored = stored.view(of, 2, -1, stored.shape[-1]).transpose(1, 2).reshape(stored.shape)
    if fmt == "bf16":
        stored = stored.view(torch.uint8)
    return {"tensor": stored.contiguous().numpy(), "raw_dtype": gguf.GGMLQuantizationType(known.gguf_type)}
