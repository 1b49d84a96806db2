"""The model in a folder of Hugging Face's: config.json, safetensors, a tokenizer."""

from __future__ import annotations

import math
import os
import reprlib
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torch_foundry import quant
from torch_foundry.core.load_errors import AllowedFaults, LoadError
from torch_foundry.io.assemble import build_for
from torch_foundry.io.config_json import (
    check_layers,
    check_towers,
    make_config,
    read_config,
    read_model_config,
    without_code,
)
from torch_foundry.io.container import Container
from torch_foundry.io.packed import by_mlx, mlx, read_weights, without_quantization
from torch_foundry.io.parameters import COUNTED, TOWERS, ParameterNames, class_name, has_tower, is_whole
from torch_foundry.io.safetensors import open_safetensors
from torch_foundry.io.weights import ModelSource, Weight, WeightReader
from torch_foundry.io.words import check_words, load_tokenizer

CONFIG = "config.json"
# Decoders that are other models where there are no images: the three dimensions of a position are one then.
_SAME = {
    **{"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2"},
    **{"qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"},
}
LONGEST_NAME = 1 << 12  # letters; parameters have at most some hundred
CPU = torch.device("cpu")


def open_model_directory(
    path: Path, *, mmap: bool = False, check_finite: bool = True, allow: Iterable[str] = (), images: bool = False
) -> ModelSource:
    """The model in folder `path`. Code that comes with it never runs. images: with what sees them.

    LoadError: CONFIG, ARCH_MISSING, ARCH_UNKNOWN, TENSOR_TYPE, TENSOR_MISSING, and what reading safetensors raises.
    """
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    settings = read_model_config(path)
    kind = settings.get("model_type")
    if not isinstance(kind, str):
        raise LoadError("ARCH_MISSING", path / CONFIG, "model_type", expected="a name", found=reprlib.repr(kind))
    if class_name(kind, images=images) is None:
        what = "is shown images" if images else "generates text"
        known = f"a model of transformers {transformers.__version__} that {what}"
        raise LoadError("ARCH_UNKNOWN", path / CONFIG, "model_type", expected=known, found=reprlib.repr(kind))
    container = open_safetensors(path, check_finite=check_finite)
    try:
        if any(name.endswith(COUNTED) for name in container.tensors):
            container.tensors = {name: each for name, each in container.tensors.items() if not name.endswith(COUNTED)}
        permits = AllowedFaults(allow)
        for tensor in container.tensors:  # before it is looked for patterns in them
            if len(tensor) > LONGEST_NAME and not permits("TENSOR_EXTRA", tensor):
                expected = f"a name of at most {LONGEST_NAME} letters"
                raise LoadError("TENSOR_EXTRA", container.path, tensor, expected=expected, found=f"{len(tensor)}")
        source = WeightReader(container, mmap, lambda name: check_finite and not permits("NONFINITE", name))
        of_mlx = by_mlx(settings, container)
        own = without_quantization(mlx.adapted(settings, path / CONFIG) if of_mlx else settings)
        all_there = not any(each.startswith("TENSOR_MISSING") for each in allow)
        towers = not of_mlx or (kind in TOWERS and has_tower(container.tensors))
        whole = images or (towers and is_whole(kind))
        if of_mlx and kind not in TOWERS and images:
            expected = f"one whose tower mlx has as transformers has it: {', '.join(sorted(TOWERS))}"
            raise LoadError("ARCH_UNKNOWN", path / CONFIG, "model_type", expected=expected, found=kind)
        if all_there and whole:
            check_towers(settings, container.tensors, path)
        config = make_config(own, kind, path / CONFIG)
        if all_there:
            check_layers(config.get_text_config(), container.tensors, path)
        model_class = getattr(transformers, str(class_name(kind, images=True))) if images else None
        config, names = _model_of(config, kind, path, model_class, of_mlx and not whole)
        weights = arranged(container, read_weights(source, settings, str(path / CONFIG), names), names)
        rows = config.get_text_config().vocab_size
        words = check_words(path, rows) or TOKENIZER_MAPPING_NAMES.get(kind)
    except BaseException:
        container.close()
        raise
    return ModelSource(
        config=config,
        weights=weights,
        file=path,
        tokenizer=partial(load_tokenizer, path, rows, words, permits),
        close=container.close,
        generation_config=_generation_config(path),
        model_class=model_class,
    )


def _model_of(config: Any, kind: str, path: Path, model_class: Any, alone: bool) -> tuple[Any, ParameterNames]:
    """The config of what is made of the folder, and the names of its parameters. alone: it has a decoder for us."""
    text = config.get_text_config()
    alone = alone and text is not config
    if alone:
        config = _of_text(text, kind, path)
    model = build_for(path, config, torch.float32, model_class=model_class)
    return config, ParameterNames(config.model_type, model, alone=alone)


def _of_text(config: Any, kind: str, path: Path) -> Any:
    """The config of a decoder that is given texts alone; LoadError ARCH_UNKNOWN if transformers has no such model."""
    if class_name(config.model_type):
        return config
    if (same := _SAME.get(config.model_type)) is None:
        expected = "one whose decoder transformers has without towers, which in mlx's folders are mlx's own"
        raise LoadError("ARCH_UNKNOWN", path / CONFIG, "model_type", expected=expected, found=kind)
    rope = {name: value for name, value in (config.rope_parameters or {}).items() if not name.startswith("mrope")}
    settings = {**config.to_dict(), "model_type": same, "rope_parameters": rope}
    return make_config(settings, same, path / CONFIG)


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


def arranged(container: Container, weights: dict[str, Weight], names: ParameterNames) -> dict[str, Weight]:
    """Every weight by its parameter's name; those that lie apart in the file, as one."""
    found: dict[str, Weight] = {}
    pieces: dict[tuple[str, bool], dict[int, Weight]] = defaultdict(dict)
    for name, weight in weights.items():
        if names.ignored(name):
            continue
        parameter, part, stacked = names.find(name)
        if not quant.get_format(weight.format).packed and names.turned(parameter, weight.shape):
            count, columns, rows = weight.shape
            weight = weight.laid_out((count, rows, columns), lambda read: read.transpose(1, 2).contiguous())
        slot: dict[Any, Weight] = found if part is None else pieces[parameter, stacked]
        key = parameter if part is None else part
        if key in slot:
            raise LoadError("NAME_DUP", container.path, name, expected="one weight for a parameter", found="two")
        slot[key] = weight
    for (name, stacked), parts in pieces.items():
        if name in found:
            raise LoadError("NAME_DUP", container.path, name, expected="its parts in one way", found="in two")
        found[name] = _whole(container, name, parts, stacked)
    return found


def _whole(container: Container, name: str, parts: dict[int, Weight], stacked: bool) -> Weight:
    """Parts as one weight: matrices [N, K] as [count, N, K] if they are stacked, else one below the other."""
    kind = "expert" if stacked else "part"
    for index in range(len(parts)):
        if index not in parts:
            raise LoadError("TENSOR_MISSING", container.path, f"{name} of {kind} {index}", expected="one", found="none")
    first = parts[0]
    for part in parts.values():
        if part.shape[not stacked :] != first.shape[not stacked :]:
            expected = str(list(first.shape))
            raise LoadError("SHAPE", container.path, part.source, expected=expected, found=str(list(part.shape)))
        if part.format != first.format or part.order is not None:
            expected = f"{first.format} in the order of the inputs"
            found = part.format if part.order is None else "another order"
            raise LoadError("TENSOR_TYPE", container.path, part.source, expected=expected, found=found)
    rows = [math.prod(part.shape[:1]) for _, part in sorted(parts.items())]
    shape = (len(parts), *first.shape) if stacked else (sum(rows), *first.shape[1:])
    known = quant.get_format(first.format)

    def load(device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
        out = torch.empty(*shape[:-1], known.row_size(shape[-1]), dtype=dtype or known.dtype, device=device)
        for index, target in enumerate(out.unbind() if stacked else out.split(rows)):
            read = parts[index].load_as
            target.copy_(parts[index].load(CPU) if dtype is None or read is None else read(CPU, dtype))
        return out

    return Weight(shape, first.format, first.source, load, load_as=None if known.packed else load)
