"""The model in a folder of Hugging Face's: config.json, safetensors, a tokenizer."""

from __future__ import annotations

import os
import re
import reprlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torch_foundry import quant
from torch_foundry.core.load_errors import AllowedFaults, LoadError
from torch_foundry.io.config_json import check_layers, check_sizes, read_config, without_code
from torch_foundry.io.container import Container
from torch_foundry.io.packed import read_weights
from torch_foundry.io.safetensors import open_safetensors
from torch_foundry.io.weights import ModelSource, Weight, WeightReader
from torch_foundry.io.words import check_words, load_tokenizer

CONFIG = "config.json"
LONGEST_NAME = 1 << 12  # letters; parameters have at most some hundred
COMPUTED = re.compile(r"rotary_emb\.inv_freq$")  # in old files; the model computes it
# One expert's matrices, by the names of Mixtral's files and of all others': (module, index, matrix).
EXPERT = re.compile(
    r"^(.*)\.(?:block_sparse_moe|mlp)\.experts\.([0-9]{1,5})\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$"
)
MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def open_model_directory(
    path: Path, *, mmap: bool = False, check_finite: bool = True, allow: Iterable[str] = ()
) -> ModelSource:
    """The model in folder `path`. Code that comes with it never runs.

    LoadError: CONFIG, ARCH_MISSING, ARCH_UNKNOWN, TENSOR_TYPE, TENSOR_MISSING, and what reading safetensors raises.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    settings = read_config(path / CONFIG)
    kind = settings.get("model_type")
    if not isinstance(kind, str):
        raise LoadError("ARCH_MISSING", path / CONFIG, "model_type", expected="a name", found=reprlib.repr(kind))
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known = f"a model of transformers {transformers.__version__} that generates text"
        raise LoadError("ARCH_UNKNOWN", path / CONFIG, "model_type", expected=known, found=reprlib.repr(kind))
    container = open_safetensors(path, check_finite=check_finite)
    try:
        permits = AllowedFaults(allow)
        for name in container.tensors:  # before it is looked for patterns in them
            if len(name) > LONGEST_NAME and not permits("TENSOR_EXTRA", name):
                expected = f"a name of at most {LONGEST_NAME} letters"
                raise LoadError("TENSOR_EXTRA", container.path, name, expected=expected, found=f"{len(name)}")
        source = WeightReader(container, mmap, lambda name: check_finite and not permits("NONFINITE", name))
        settings, weights = read_weights(source, settings, str(path / CONFIG))
        weights = _arranged(container, weights)
        config = _config(settings, kind, path / CONFIG)
        if not any(each.startswith("TENSOR_MISSING") for each in allow):
            check_layers(config, container.tensors, path)
        rows = config.get_text_config().vocab_size
        words = check_words(path, rows) or TOKENIZER_MAPPING_NAMES.get(kind)
    except BaseException:
        container.close()
        raise
    return ModelSource(
        config=config,
        weights=weights,
        file=path,
        tokenizer=partial(load_tokenizer, path, rows, words),
        close=container.close,
        generation_config=_generation_config(path),
    )


def _config(settings: dict[str, Any], kind: str, file: Path) -> Any:
    import transformers

    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(without_code(settings))
        text = config.get_text_config()
    except Exception as error:  # whatever its checks raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise LoadError("CONFIG", file, file.name, expected="what transformers takes", found=line[:200]) from error
    check_sizes(text, file)
    return config


def _generation_config(path: Path) -> Any:
    import transformers

    name = "generation_config.json"
    if not os.path.lexists(path / name):
        return None
    settings = without_code(read_config(path / name))
    try:
        return transformers.GenerationConfig.from_dict(settings)
    except Exception as error:
        expected = "what transformers takes"
        raise LoadError("CONFIG", path / name, name, expected=expected, found=str(error)[:200]) from error


def _arranged(container: Container, weights: dict[str, Weight]) -> dict[str, Weight]:
    """Every weight by its parameter's name; experts that lie apart, as one."""
    found: dict[str, Weight] = {}
    experts: dict[str, dict[int, Weight]] = defaultdict(dict)
    for name, weight in weights.items():
        if COMPUTED.search(name):
            continue
        slot: dict[Any, Weight] = found
        key: Any = name.replace(".block_sparse_moe.gate.", ".mlp.gate.")
        if match := EXPERT.match(name):
            module, index, matrix = match.groups()
            slot = experts[f"{module}.mlp.experts.{MIXTRAL.get(matrix, matrix)}"]
            key = int(index)
        if key in slot:
            raise LoadError("NAME_DUP", container.path, name, expected="one weight for a parameter", found="two")
        slot[key] = weight
    for name, parts in experts.items():
        if name in found:
            raise LoadError("NAME_DUP", container.path, name, expected="experts in one way", found="in two")
        found[name] = _stacked(container, name, parts)
    return found


def _stacked(container: Container, name: str, parts: dict[int, Weight]) -> Weight:
    """Matrices of one shape as one weight [count, N, K]."""
    for index in range(len(parts)):
        if index not in parts:
            raise LoadError("TENSOR_MISSING", container.path, f"{name} of expert {index}", expected="one", found="none")
    first = parts[0]
    for part in parts.values():
        if part.shape != first.shape:
            expected = str(list(first.shape))
            raise LoadError("SHAPE", container.path, part.source, expected=expected, found=str(list(part.shape)))
        if part.format != first.format or part.order is not None:
            expected = f"{first.format} in the order of the inputs"
            found = part.format if part.order is None else "another order"
            raise LoadError("TENSOR_TYPE", container.path, part.source, expected=expected, found=found)
    packed = quant.get_format(first.format)

    def blocks(device: torch.device) -> torch.Tensor:
        rows = (*first.shape[:-1], packed.row_size(first.shape[-1]))
        out = torch.empty(len(parts), *rows, dtype=torch.uint8, device=device)
        for index, part in parts.items():
            out[index] = part.load(torch.device("cpu"))
        return out

    if packed.packed:
        return Weight((len(parts), *first.shape), first.format, first.source, blocks)

    def load(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        out = torch.empty(len(parts), *first.shape, dtype=dtype, device=device)
        for index, part in parts.items():
            read: Callable[[torch.device, torch.dtype], torch.Tensor] | None = part.load_as
            assert read is not None
            out[index] = read(torch.device("cpu"), dtype)
        return out

    stored = quant.get_format(first.format).dtype
    return Weight((len(parts), *first.shape), first.format, first.source, lambda d: load(d, stored), load_as=load)
