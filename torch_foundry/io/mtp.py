"""A model's own MTP head, whose weights transformers leaves in the files (`torch_foundry.load_mtp`)."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_foundry import quant
from torch_foundry.core.load_errors import AllowedFaults, LoadError
from torch_foundry.io.assemble import build, fill
from torch_foundry.io.config_json import read_model_config
from torch_foundry.io.container import Container
from torch_foundry.io.gguf import open_gguf
from torch_foundry.io.gguf.model import GgufModel
from torch_foundry.io.gguf.slots import BLOCK, Sizes, Slot
from torch_foundry.io.load import gguf_of
from torch_foundry.io.model_directory import CONFIG, arranged
from torch_foundry.io.packed import read_weights
from torch_foundry.io.parameters import ParameterNames
from torch_foundry.io.safetensors import open_safetensors
from torch_foundry.io.weights import Weight, WeightReader
from torch_foundry.models.embedding import dtype_of
from torch_foundry.models.mtp import NAME, MTPInput

_OWN = re.compile(r"^(?:[a-z_]+\.){0,2}mtp\.(?:layers\.([0-9]{1,5})\.)?(.+)$")  # Qwen's names
_BEHIND = re.compile(r"^(?:[a-z_]+\.){0,3}layers\.([0-9]{1,5})\.(.+)$")  # DeepSeek's, of a layer behind the last
_INPUT, _JOINED = f"model.{NAME}", "fc"
# what lies beside the decoder layer, by Qwen's names and by DeepSeek's
_PLACES = {
    "pre_fc_norm_embedding": f"{_INPUT}.norm_embedding",
    "pre_fc_norm_hidden": f"{_INPUT}.norm_hidden",
    "enorm": f"{_INPUT}.norm_embedding",
    "hnorm": f"{_INPUT}.norm_hidden",
    "fc": _JOINED,
    "eh_proj": _JOINED,
    "norm": "model.norm",
    "shared_head.norm": "model.norm",
}
_SHARED = {"embed_tokens", "shared_head.head"}  # the model's, once more
_SAME = ("num_hidden_layers", "hidden_size", "vocab_size")

# the same in GGUF files, of the block behind the model's
_NEXTN = (
    Slot("nextn.enorm.weight", f"{_INPUT}.norm_embedding.weight", "H"),
    Slot("nextn.hnorm.weight", f"{_INPUT}.norm_hidden.weight", "H"),
    Slot("nextn.eh_proj.weight", f"{_JOINED}.weight", "H H+H"),
    Slot("nextn.shared_head_norm.weight", "model.norm.weight", "H"),
)


class _GgufHead(GgufModel):
    """The first head of the file, as a model of one layer without embedding and output layer."""

    def _slots(self) -> Iterator[tuple[list[str], Slot, Sizes]]:
        if self.layers == self.values["block_count"]:
            raise self.fail("TENSOR_MISSING", _NEXTN[0].tensor, "the weights of an MTP head", "none")
        self.allow = AllowedFaults(("TENSOR_EXTRA",))  # the model's
        yield from self._of_block(self.layers, self.architecture.slots(False), 0)
        for slot in _NEXTN:
            yield [BLOCK.format(self.layers) + slot.tensor], slot, self.sizes


def load_mtp(model: Any, path: str | os.PathLike[str] | None = None) -> None:
    """Load the MTP head of a patched `model`, with which `generate(use_mtp=True)` drafts.

    That call does so itself for a model that was loaded from a path. The head has the model's device, dtype,
    embedding and output layer; its packed weights stay packed. Of several heads the first is loaded.

    path: a folder with the model's safetensors, or its GGUF file; default: where the model was loaded from.

    LoadError: no such file or head, or one that doesn't fit the model. ValueError: `model` is no patched language
    model.
    """
    if not hasattr(model, "generator_plan"):
        raise ValueError(f"model: expected a patched language model, got {type(model).__name__}")
    place = _place(model.config.name_or_path if path is None else path)
    text, embedding = model.config.get_text_config(), model.get_input_embeddings()
    file = gguf_of(place)
    container = open_safetensors(place) if file is None else open_gguf(file)
    try:
        found = _of_folder(container, text, place) if file is None else _of_file(container, text)
        if (joined := found.pop(f"{_JOINED}.weight", None)) is not None:
            for half, name in enumerate(("fc_embedding", "fc_hidden")):
                found[f"{_INPUT}.{name}.weight"] = _half(joined, half, text.hidden_size, place)
        dtype = dtype_of(embedding)
        head = build(_config(text), dtype, text._attn_implementation)
        with torch.device("meta"):
            head.model.add_module(NAME, MTPInput(head.model.norm, text.hidden_size))
        # the model's own take their place below
        head.model.embed_tokens, head.lm_head, head.all_tied_weights_keys = nn.Identity(), nn.Identity(), {}
        fill(head, found, file=place, device=embedding.weight.device, dtype=dtype)
    finally:
        container.close()
    head.model.embed_tokens, head.lm_head = embedding, model.lm_head
    head.config.name_or_path = os.fspath(place)
    from torch_foundry.hf.api import patch

    model.generator_plan().mtp = patch(head)


def _place(path: str | os.PathLike[str]) -> Path:
    """A file or folder, or the folder of a model in the Hub's cache. LoadError ABSENT."""
    if os.fspath(path) and os.path.lexists(path):
        return Path(path)
    from transformers.utils.hub import cached_file

    found = None
    with contextlib.suppress(OSError, ValueError):
        found = cached_file(os.fspath(path), CONFIG, local_files_only=True) if os.fspath(path) else None
    if found is None:
        expected = "what the model was loaded from"
        raise LoadError("ABSENT", path, expected=expected, found="none" if os.fspath(path) else "a model without one")
    return Path(found).parent


def _of_folder(container: Container, text: Any, folder: Path) -> dict[str, Weight]:
    """The head's weights among safetensors, by the names of a model of one layer."""
    settings, names = read_model_config(folder), ParameterNames(text.model_type.removesuffix("_text"))
    inside = settings.get("text_config")
    _check({**settings, **inside} if isinstance(inside, dict) else settings, text, folder / CONFIG)
    weights = read_weights(WeightReader(container, False, lambda _: True), settings, str(folder / CONFIG), names)
    found = _head(weights, text, folder)
    joined = {name: found.pop(name) for name in [f"{_JOINED}.weight"] if name in found}
    return arranged(container, found, names) | joined


def _of_file(container: Container, text: Any) -> dict[str, Weight]:
    """The same in a GGUF file."""
    head = _GgufHead(container)
    sizes = (head.layers, head.sizes["H"], head.sizes["V"])
    _check(dict(zip(_SAME, sizes, strict=True)), text, container.path)
    return dict(head.weights)


def _check(settings: Mapping[str, Any], text: Any, file: Path) -> None:
    """LoadError CONFIG unless these settings are those of a model like `text`."""
    for name in _SAME:
        if name in settings and settings[name] != (own := getattr(text, name)):
            raise LoadError("CONFIG", file, name, expected=f"the model's {own}", found=str(settings[name]))
    if settings.get("mtp_use_dedicated_embeddings"):
        raise LoadError("CONFIG", file, "mtp_use_dedicated_embeddings", expected="the model's", found="true")


def _head(weights: Mapping[str, Weight], text: Any, folder: Path) -> dict[str, Weight]:
    """The weights of the first head, by the names that they would have in files of a model of one layer."""
    found: dict[str, Weight] = {}
    for name, weight in weights.items():
        if (own := _OWN.match(name)) is not None:
            number = int(own[1] or 0)
        elif (own := _BEHIND.match(name)) is not None:
            number = int(own[1]) - text.num_hidden_layers
        else:
            continue
        if number:
            continue
        part, _, leaf = own[2].rpartition(".")
        if part in _SHARED:
            if weight.shape != (shape := (text.vocab_size, text.hidden_size)):
                raise LoadError("SHAPE", folder, name, expected=str(list(shape)), found=str(list(weight.shape)))
            continue
        place = f"{_PLACES[part]}.{leaf}" if part in _PLACES else f"model.layers.0.{own[2]}"
        if place in found:
            raise LoadError("NAME_DUP", folder, name, expected="one weight for a parameter", found="two")
        found[place] = weight
    if not found:
        raise LoadError("TENSOR_MISSING", folder, "mtp.*", expected="weights of an MTP head", found="none")
    return found


def _half(weight: Weight, number: int, size: int, folder: Path) -> Weight:
    """The columns of a matrix [H, 2 H] that embeddings (0) or hidden states (1) are multiplied by."""
    if weight.shape != (size, 2 * size) or weight.order is not None:
        found = str(list(weight.shape)) if weight.order is None else "columns in another order"
        raise LoadError("SHAPE", folder, weight.source, expected=str([size, 2 * size]), found=found)
    known = quant.get_format(weight.format)
    if known.packed and size % known.block_size:
        expected = f"rows of which each half is whole blocks of {known.block_size}"
        raise LoadError("BLOCK", folder, weight.source, expected=expected, found=f"{size} columns")

    def half(read: Callable[..., torch.Tensor], *where: Any) -> torch.Tensor:
        return read(*where).chunk(2, dim=-1)[number].contiguous()

    as_dtype = None if weight.load_as is None else partial(half, weight.load_as)
    return replace(weight, shape=(size, size), load=partial(half, weight.load), load_as=as_dtype)


def _config(text: Any) -> Any:
    """The config of a model of one layer, which is as the last ones of `text` with attention and, if any, experts."""
    config = copy.deepcopy(text)
    options = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "mlp_only_layers": [], "decoder_sparse_step": 1}
    options |= {"layer_types": ["full_attention"], "mlp_layer_types": ["sparse"]}
    for name, value in options.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    return config
