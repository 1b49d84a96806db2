"""Models on disk: what they are, what `patch` would do with them, and whether a device has room, read from headers."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_foundry.core import memory
from torch_foundry.core.errors import first_line
from torch_foundry.core.load_errors import AllowedFaults, LoadError, is_fault
from torch_foundry.hf.api import patch
from torch_foundry.hf.report import LAYERS_ONLY, WHOLE, build_report, outcome
from torch_foundry.io.assemble import Plan, build
from torch_foundry.io.config_json import check_layers, check_towers, make_config, read_config, read_model_config
from torch_foundry.io.container import Container
from torch_foundry.io.load import is_tower, open_container, open_model
from torch_foundry.io.model_directory import CONFIG
from torch_foundry.io.safetensors import PICKLES, SUFFIXES

DEEPEST = 3  # folders below one that was given
_LATER_PART = re.compile(r"-(?!00001-of)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True)
class Entry:
    """A model on disk, by the name that commands take.

    nbytes: on disk. format: the kind of file and what most of it is stored as. formats: bytes of each, by name.
    parameters: how many numbers the weights are. loader: what loads it, "load" (as
    commands do) or only "from_pretrained". patch: "whole", "layers" or "leaves"; why: the reasons for less than
    "whole". needed: bytes of the weights once loaded on the device, without a cache; fits: whether these are free
    (None: nothing is refused there). problem: why it can't be loaded; what else is known is said all the same.
    """

    name: str
    path: str
    nbytes: int
    format: str = ""
    formats: dict[str, int] = field(default_factory=dict)
    architecture: str = ""
    parameters: int = 0
    loader: str = ""
    patch: str = ""
    why: str = ""
    needed: int = 0
    fits: bool | None = None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """All fields, by name."""
        return asdict(self)


def in_cache(device: torch.device) -> Iterator[Entry]:
    """What the Hub's cache has: of each repository the revision that its name stands for."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):  # there is none, or a file in its place
        return
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model":
            continue
        revision = repo.refs.get("main")
        if revision is None:
            problem = "no revision called main is in the cache, so its name finds nothing"
            yield Entry(repo.repo_id, str(repo.repo_path), repo.size_on_disk, problem=problem)
        else:
            yield from in_folder(revision.snapshot_path, device, repo.repo_id, 0)
    for warning in cache.warnings:
        path = re.search(r"models--[^/\\)]+", str(warning))
        name = path[0].removeprefix("models--").replace("--", "/") if path else str(cache.cache_dir)
        yield Entry(name, str(cache.cache_dir), 0, problem=first_line(warning))


def at(path: Path, device: torch.device) -> Iterator[Entry]:
    """The GGUF file `path`, or what its folder has; at least one entry."""
    if path.is_dir():
        found = list(in_folder(path, device, str(path)))
        yield from found or [Entry(str(path), str(path), 0, problem="no model in it")]
    elif path.is_file():
        yield _entry(str(path), path, _sizes(path, device), device)
    else:
        yield Entry(str(path), str(path), 0, problem="no such file or folder")


def in_folder(folder: Path, device: torch.device, name: str, depth: int = DEEPEST) -> Iterator[Entry]:
    """The model of a folder, its GGUF files, and those of the folders in it, so deep; with `depth` 0 at least one."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        yield Entry(name, str(folder), 0, problem=f"cannot be read: {error.strerror}")
        return
    files = [path for path in (sorted(folder.rglob("*")) if depth == 0 else inside) if path.is_file()]
    models = [path for path in files if path.suffix == ".gguf" and not is_tower(path.name)]
    gguf = [path for path in models if not _LATER_PART.search(path.name)]
    top = [path for path in files if path.parent == folder]
    weights = any(path.name.endswith(SUFFIXES + PICKLES) for path in top)
    if (weights and any(path.name == CONFIG for path in top)) or (depth == 0 and not gguf):
        yield _entry(name, folder, sum(_size(path) for path in files if path.suffix != ".gguf"), device)
    for path in gguf:
        yield _entry(f"{name}/{path.relative_to(folder).as_posix()}", path, _sizes(path, device), device)
    if depth > 1:
        for path in inside:
            if path.is_dir() and not path.name.startswith("."):
                yield from in_folder(path, device, f"{name}/{path.name}", depth - 1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sizes(path: Path, device: torch.device) -> int:
    """Of a GGUF file with its other parts."""
    parts = (
        path.parent.glob(re.sub(r"-00001-of-(\d{5}\.gguf)$", r"-*-of-\1", path.name)) if "-00001-" in path.name else ()
    )
    return sum(map(_size, parts)) or _size(path)


def _entry(name: str, path: Path, nbytes: int, device: torch.device) -> Entry:
    known: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _look(known, path, device)
        except BaseException as error:  # whatever a file, or transformers at its config, can do
            if not is_fault(error):
                raise
            known["problem"] = first_line(error).replace(f"{path}/", "").removeprefix(f"{path}: ")
    return Entry(name, str(path), nbytes, **known)


def _look(known: dict[str, Any], path: Path, device: torch.device) -> None:
    """Fill in what is known of the model at `path`. Raises what is wrong with it."""
    with open_container(path, check_finite=False) as container:
        known["formats"] = _formats({name: (info.format, info.nbytes) for name, info in container.tensors.items()})
        known["format"] = _named(path, known["formats"])
        try:
            return _as_loaded(known, path, device)
        except LoadError as error:
            if error.code not in ("ARCH_UNKNOWN", "TENSOR_EXTRA") or not path.is_dir():
                raise
            if not _as_stock(known, path, container, device, error.code == "TENSOR_EXTRA"):
                raise


def _as_loaded(known: dict[str, Any], path: Path, device: torch.device) -> None:
    """What `torch_foundry.load` makes of it; LoadError as there, but for what only reading weights shows."""
    source = open_model(path, check_finite=False)
    source.close()
    model = build(source.config, torch.float32)
    known["architecture"] = type(model).__name__
    absent = AllowedFaults(f"TENSOR_MISSING:{name}" for name in source.absent)
    weights = Plan(model, source.weights, source.file, absent).weights
    known["formats"] = _formats({name: (weight.format, weight.nbytes) for name, weight in weights.items()})
    known["format"] = _named(path, known["formats"])
    known["parameters"] = sum(weight.count for weight in weights.values())
    dtype = source.dtype_on(device)
    _conclude(known, model, sum(weight.bytes_as(dtype) for weight in weights.values()), device, "load")


def _as_stock(known: dict[str, Any], path: Path, container: Container, device: torch.device, wrappers: bool) -> bool:
    """The same of a model that transformers alone loads, such as one that is shown images. False: nor does that.

    wrappers: only of models around a decoder.
    """
    import transformers

    settings = read_config(path / CONFIG)
    kind, names = settings.get("model_type"), settings.get("architectures")
    model_class = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if kind not in transformers.CONFIG_MAPPING or not isinstance(model_class, type):
        return False
    check_towers(settings, container.tensors, path)
    config = make_config(settings, str(kind), path / CONFIG)
    text = config.get_text_config()
    if wrappers and text is config:
        return False
    check_layers(text, container.tensors, path)
    model = build(config, torch.float32, model_class=model_class)
    known["architecture"] = type(model).__name__
    known["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    _conclude(known, model, sum(known["formats"].values()), device, "from_pretrained")
    return True


def _conclude(known: dict[str, Any], model: Any, needed: int, device: torch.device, loader: str) -> None:
    known["loader"] = loader
    free = memory.free(device)
    known["needed"], known["fits"] = needed, None if free is None else needed <= free
    found = outcome(build_report(patch(model)))
    known["patch"] = {WHOLE: "whole", LAYERS_ONLY: "layers"}.get(found.kind, "leaves")
    known["why"] = found.why or ("" if found.kind == WHOLE else "not a known family")


def _formats(stored: dict[str, tuple[str, int]]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for fmt, nbytes in stored.values():
        sizes[fmt] += nbytes
    return dict(sizes.most_common())


def _named(path: Path, formats: dict[str, int]) -> str:
    """Such as "gguf q4_k", "safetensors bf16", "mlx 4-bit", "mxfp4"."""
    most = next(iter(formats), "")
    if not path.is_dir():
        return f"gguf {most}"
    if not (path / CONFIG).is_file():
        return f"safetensors {most}"
    settings = read_model_config(path)
    how = settings.get("quantization_config") or settings.get("quantization")
    if not isinstance(how, dict):
        return f"safetensors {most}"
    method = how.get("quant_method", "mlx" if "group_size" in how else most)
    bits = how.get("bits")
    return f"{method} {bits}-bit" if isinstance(bits, int) else str(method)
