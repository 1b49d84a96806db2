"""The model in a folder of Hugging Face's: config.json, safetensors, a tokenizer."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torch_foundry import quant
from torch_foundry.loaders.allow import Allow
from torch_foundry.loaders.described import Described
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File
from torch_foundry.loaders.folder import open_safetensors
from torch_foundry.loaders.packs import read_weights
from torch_foundry.loaders.source import Source
from torch_foundry.loaders.tensors import Container, Weight

CONFIG = "config.json"
LONGEST = 1 << 24  # bytes of a config that are read
DENSE = ("f32", "f16", "bf16")
COMPUTED = re.compile(r"rotary_emb\.inv_freq$")  # in old files; the model computes it
# One expert's matrices, by the names of Mixtral's files and of all others': (module, index, matrix).
EXPERT = re.compile(r"^(.*)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$")
MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def describe_directory(
    path: Path, *, mmap: bool = False, check_finite: bool = True, allow: Iterable[str] = ()
) -> Described:
    """The model in folder `path`. Code that comes with it never runs.

    LoadError: CONFIG, ARCH_MISSING, ARCH_UNKNOWN, TENSOR_TYPE, TENSOR_MISSING, and what reading safetensors raises.
    """
    import transformers

    settings = read_config(path / CONFIG)
    kind = settings.get("model_type")
    if not isinstance(kind, str):
        raise LoadError("ARCH_MISSING", path / CONFIG, "model_type", expected="a name", found=repr(kind)[:80])
    if kind not in transformers.CONFIG_MAPPING:
        known = "a model type of transformers " + transformers.__version__
        raise LoadError("ARCH_UNKNOWN", path / CONFIG, "model_type", expected=known, found=repr(kind)[:80])
    container = open_safetensors(path, check_finite=check_finite)
    try:
        permits = Allow(allow)
        source = Source(container, mmap, lambda name: check_finite and not permits("NONFINITE", name))
        settings, weights = read_weights(source, settings, str(path / CONFIG))
        weights = _arranged(container, weights)
        config = _config(settings, kind, path / CONFIG)
    except BaseException:
        container.close()
        raise
    counts = Counter(w.format for w in weights.values() if len(w.shape) > 1 and w.format in DENSE)
    return Described(
        config=config,
        weights=weights,
        file=path,
        dtype=quant.get_format(counts.most_common(1)[0][0]).dtype if counts else None,
        tokenizer=partial(_tokenizer, path),
        close=container.close,
        generation_config=_generation_config(path),
    )


def read_config(file: Path) -> dict[str, Any]:
    """A JSON object. LoadError CONFIG if it is none."""
    opened = File(file)
    try:
        if opened.size > LONGEST:
            raise LoadError("CONFIG", file, expected=f"at most {LONGEST} bytes", found=str(opened.size))
        found = json.loads(bytes(opened.read(opened.size, 0, file.name)))
    except (ValueError, RecursionError) as error:
        raise LoadError("CONFIG", file, expected="JSON", found=str(error)[:120]) from None
    finally:
        opened.close()
    if not isinstance(found, dict):
        raise LoadError("CONFIG", file, expected="an object", found=type(found).__name__)
    return found


def _config(settings: dict[str, Any], kind: str, file: Path) -> Any:
    import transformers

    own = {key: value for key, value in settings.items() if key not in ("auto_map", "quantization_config")}
    try:
        return transformers.CONFIG_MAPPING[kind].from_dict(own)
    except Exception as error:  # whatever its checks raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise LoadError("CONFIG", file, expected="what transformers takes", found=line[:200]) from error


def _generation_config(path: Path) -> Any:
    import transformers

    name = "generation_config.json"
    if not (path / name).is_file():
        return None
    try:
        return transformers.GenerationConfig.from_dict(read_config(path / name))
    except LoadError:
        raise
    except Exception as error:
        raise LoadError("CONFIG", path / name, expected="what transformers takes", found=str(error)[:200]) from error


def _tokenizer(path: Path) -> Any:
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a broken folder makes transformers or tokenizers raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LoadError("TOKENIZER", path, expected="a tokenizer", found=line[:200]) from error


def _arranged(container: Container, weights: dict[str, Weight]) -> dict[str, Weight]:
    """Every weight by its parameter's name; experts that lie apart, as one."""
    found: dict[str, Weight] = {}
    experts: dict[str, dict[int, Weight]] = defaultdict(dict)
    for name, weight in weights.items():
        if COMPUTED.search(name):
            continue
        if match := EXPERT.match(name):
            module, index, matrix = match.groups()
            experts[f"{module}.mlp.experts.{MIXTRAL.get(matrix, matrix)}"][int(index)] = weight
        else:
            found[name.replace(".block_sparse_moe.gate.", ".mlp.gate.")] = weight
    return found | {name: _stacked(container, name, parts) for name, parts in experts.items()}


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
