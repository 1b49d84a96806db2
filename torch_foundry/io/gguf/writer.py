"""A transformers model as a GGUF file (`torch_foundry.save_gguf`): the inverse of `model.py` and `model_file.py`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from torch_foundry import quant
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import Container, TensorInfo
from torch_foundry.io.files import replacing
from torch_foundry.io.gguf.activations import said_of_activations
from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.architectures import ARCHITECTURES
from torch_foundry.io.gguf.blocks import ROTATED, head_dim, leading_dense, said_of_blocks
from torch_foundry.io.gguf.model import GgufModel
from torch_foundry.io.gguf.rope import rope_metadata
from torch_foundry.io.gguf.slots import BLOCK, OUTPUT, Slot
from torch_foundry.io.gguf.stored import Tensor, find, sizes_of, tensors_of
from torch_foundry.io.gguf.values import pack_string, pack_value
from torch_foundry.io.model_file import make_config

# What a config says about a model that a file either says too or can't say; ids of tokens are the vocabulary's.
IGNORED = {"architectures", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "transformers_version"}
IGNORED |= {"initializer_range", "use_cache", "attention_dropout", "attn_implementation", "_name_or_path"}
IGNORED |= {"router_aux_loss_coef", "output_router_logits", "pretraining_tp", "max_window_layers", "torch_dtype"}
IGNORED |= {"resid_pdrop", "embd_pdrop", "quantization_config", "chunk_size_feed_forward", "return_dict", "id2label"}
IGNORED |= {"sliding_window_pattern"}
ALIGNMENT = 32  # bytes


def save_gguf(model: Any, path: str | os.PathLike[str], tokenizer: Any = None) -> None:
    """Write `model`, patched or not, to the GGUF file `path`. Packed weights are written block for block.

    The model is not changed. Vectors (norms, biases) become float32, as in all GGUF files. Gemma's norms are stored
    with 1 added, which costs their last digits in float32. tokenizer: is stored in the file; without one, `load` needs
    allow=("VOCAB_MISSING",). The file appears at `path` only when it is complete.

    ValueError: a model of an unknown family, settings or a tokenizer that GGUF can't describe, or weights in formats of
    mlx, GPTQ, AWQ or bitsandbytes, which GGUF doesn't have (`unpatch(model, dequantize=True)` makes them dense).
    """
    metadata, tensors = describe_model(model)
    if tokenizer is not None:
        from torch_foundry.text.export import gguf_from_tokenizer

        metadata |= gguf_from_tokenizer(tokenizer, model.config.vocab_size)
        ends = model.generation_config.eos_token_id
        others = [i for i in (ends if isinstance(ends, list) else []) if i != tokenizer.eos_token_id]
        for name, end in zip(("eot", "eom"), others, strict=False):
            metadata[f"tokenizer.ggml.{name}_token_id"] = end
    write_gguf(path, metadata, tensors)


def write_gguf(path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file; it appears under its name when it is whole, and not at all if anything fails.

    metadata: bool, int (u32, i32 or u64 by its value), float (f32), str, or a sequence of one of these. tensors: read
    and written one by one.
    """
    with replacing(path) as file:
        _write(file, metadata, tensors)


def _write(file: BinaryIO, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += pack_string(key) + pack_value(value)
    offset = 0
    for name, tensor in tensors.items():
        dims = tensor.shape[::-1]
        header += pack_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.type, offset)
        offset += _aligned(tensor.nbytes)
    file.write(header.ljust(_aligned(len(header)), b"\0"))
    for name, tensor in tensors.items():
        data = tensor.read().detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        if data.numel() != tensor.nbytes:
            raise ValueError(f"{name}: expected {tensor.nbytes} bytes to write, got {data.numel()}")
        file.write(data.numpy().data)
        file.write(bytes(_aligned(tensor.nbytes) - tensor.nbytes))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def describe_model(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of the file, without a vocabulary.

    ValueError for a model of an unknown family, with settings that such files can't say, or with weights that GGUF
    can't hold.
    """
    config = model.config
    name, architecture = _architecture(config)
    tensors: dict[str, Tensor] = {}
    for slot in _slots(model, architecture):
        tensors |= tensors_of(model, slot, architecture)
    rotary, factors = rope_metadata(model, architecture) if architecture.rotated else ({}, {})
    tensors |= {tensor: Tensor(t.shape, "f32", lambda t=t: t) for tensor, t in factors.items()}  # type: ignore[misc]
    values = _hyperparameters(config, architecture, tensors) | rotary
    metadata: dict[str, Any] = {"general.architecture": name, "general.type": "model"}
    if any(quant.get_format(tensor.format).packed for tensor in tensors.values()):
        metadata["general.quantization_version"] = 2
    metadata |= {f"{name}.{key}": value for key, value in values.items() if value is not None}
    metadata |= said_of_activations(model) if architecture.xielu else {}
    _check(config, metadata, tensors, architecture)
    return metadata, tensors


def _architecture(config: Any) -> tuple[str, Architecture]:
    wanted, known = type(config).__name__, dict[str, list[tuple[str, Architecture]]]()
    for name, architecture in ARCHITECTURES.items():
        for each in (architecture, *architecture.variants.values()) if architecture.blocks != "streams" else ():
            known.setdefault(each.config, []).append((name, each))
    if wanted not in known:
        families = ", ".join(each.removesuffix("Config") for each in known)
        raise ValueError(f"model: expected one of {families}, got {wanted.removesuffix('Config')}")
    return next((each for each in known[wanted] if each[1].fits(config)), known[wanted][0])


def _slots(model: Any, architecture: Architecture) -> Iterator[Slot]:
    """Every tensor of the file and the parameter that it is, both by their full names."""
    output = () if model.config.tie_word_embeddings else (OUTPUT,)
    for slot in (*architecture.whole, *output):
        if not slot.needs or find(model, slot.parameter) is not None:
            yield slot
    options: list[Slot] = []
    for group in architecture.options.values():
        if find(model, architecture.block.format(0) + group[0].parameter) is not None:
            options += group
    dense = next((key.field for key in architecture.keys if key.name == "leading_dense_block_count"), "")
    for index in range(model.config.num_hidden_layers):
        recurrent = bool(architecture.recurrent) and model.config.layer_types[index] != "full_attention"
        leading = bool(dense) and index < leading_dense(model.config, dense)
        for slot in (*architecture.slots(recurrent, leading), *options):
            tensor = "+".join(BLOCK.format(index) + name for name in slot.tensors)
            parameter = architecture.block.format(index) + slot.parameter
            found = find(model, parameter) if slot.needs else None
            # a matrix that makes keys and values lies in one tensor if it is packed, else in two
            if found and architecture.blocks == "latent" and slot.needs in "BW":
                found = found if quant.get_format(found[1]).packed == (slot.needs == "W") else None
            if not slot.needs or found is not None:
                yield replace(slot, tensor=tensor, parameter=parameter)


def _hyperparameters(config: Any, architecture: Architecture, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """By key without the architecture's name; None: left out."""
    head, heads, names = head_dim(config), config.num_attention_heads, {key.name for key in architecture.keys}
    values: dict[str, Any] = {
        "attention.head_count_kv": config.to_dict().get("num_key_value_heads") or heads,
        "vocab_size": config.vocab_size,
    }
    for key in architecture.keys:
        if key.field and (value := getattr(config, key.field, None)) is not None:
            values[key.name] = key.kind(value)
            values |= {key.also: values[key.name]} if key.also else {}
    if head * heads != config.hidden_size or architecture.pattern:
        values |= {"attention.key_length": head, "attention.value_length": head}
    if "ssm.inner_size" in names:
        values["ssm.inner_size"] = sizes_of(config, architecture)["Z"]
    if "full_attention_interval" in names:
        if "full_attention" in config.layer_types:
            values["full_attention_interval"] = config.layer_types.index("full_attention") + 1
        else:
            values["full_attention_interval"] = config.num_hidden_layers + 1
    if "rope.scaling.finetuned" in names:
        values["rope.scaling.finetuned"] = config.position_embedding_type == "rope"
    if (mrope := architecture.rope.get("default")) is not None:
        values["rope.dimension_sections"] = [*config.rope_parameters.get("mrope_section", mrope["mrope_section"]), 0]
    if "expert_count" in values:
        last = next(name for name in reversed(list(tensors)) if name.endswith("ffn_down_exps.weight"))
        values["expert_feed_forward_length"] = tensors[last].shape[2]
        shared = [tensor.shape[0] for name, tensor in tensors.items() if name.endswith("ffn_up_shexp.weight")]
        values |= {"expert_shared_feed_forward_length": shared[0]} if shared else {}
    # what only one number can be
    values |= {key.name: key.kind(key.low) for key in architecture.keys if not key.field and 0 < key.low == key.high}
    if "block_auto_adjust_ff_dim" in architecture.constants:  # the config has a size from which that of rows is made
        values["feed_forward_length"] = tensors["blk.0.ffn_gate.weight"].shape[0]
    if "attention.sliding_window_pattern" in {key.name for key in architecture.keys}:
        values["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    if ROTATED in names:
        values[ROTATED] = [bool(theta) for theta in config.layer_rope_theta]
    values |= said_of_blocks(config, architecture, any(name.endswith(".attn_kv_b.weight") for name in tensors))
    if architecture.recurrent and "full_attention_interval" not in names:
        kv_heads = values["attention.head_count_kv"]
        values["attention.head_count_kv"] = [kv_heads * (kind == "full_attention") for kind in config.layer_types]
    return values


def _check(config: Any, metadata: dict[str, Any], tensors: dict[str, Tensor], architecture: Architecture) -> None:
    """Whether the file will describe this model: our own reading of it is compared with the config."""
    infos = {n: TensorInfo(n, t.shape, t.format, Path(), 0, t.nbytes) for n, t in tensors.items()}
    try:
        read = make_config(GgufModel(_Written(metadata, infos, tensors))).to_dict()
    except LoadError as error:
        raise ValueError(f"a GGUF file can't say this: {error}") from None
    settings = config.to_dict()
    if (rope := settings.get("rope_parameters")) is not None:
        twice = {"type": rope.get("rope_type"), "max_position_embeddings": settings.get("max_position_embeddings")}
        rope = {key: value for key, value in rope.items() if key not in twice or twice[key] != value}
        settings["rope_parameters"] = {**architecture.rope.get(rope.get("rope_type", "default"), {}), **rope}
    ignored = IGNORED | architecture.unused
    own = type(config)().to_dict().keys() | {"per_layer_config"}  # published configs say more, which nothing reads
    for key, value in settings.items():
        if (key, value) == ("use_bidirectional_attention", "vision"):  # of pictures, which a file has no model for
            continue
        if key in own - ignored and not _same(read.get(key), value) and not (key == "head_dim" and value is None):
            raise ValueError(f"config.{key}: GGUF can't say {value!r}; a file would mean {read.get(key)!r}")


class _Written(Container):
    """What is to be written."""

    path = Path("GGUF")

    def __init__(self, metadata: dict[str, Any], infos: dict[str, TensorInfo], tensors: dict[str, Tensor]) -> None:
        self.metadata = {k: _Listed(v) if isinstance(v, list) else v for k, v in metadata.items()}
        self.tensors, self._tensors = infos, tensors

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        return self._tensors[name].read()[start:stop]


class _Listed(list[Any]):
    def tolist(self) -> list[Any]:
        return list(self)


def _same(a: Any, b: Any) -> bool:
    """Equal, but for what float32 loses and for what says nothing."""
    if isinstance(a, dict) and isinstance(b, dict):
        return all(_same(a.get(key), b.get(key)) for key in a.keys() | b.keys())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float | int) and isinstance(b, float | int):
        return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    return a == b or (not a and not b)
