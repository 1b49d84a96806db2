"""Packing the weights of a model in place, and making them dense again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.utils.logging import tqdm

from torch_foundry import quant
from torch_foundry.core import memory
from torch_foundry.models.families import BLOCKS, EMBEDDINGS, EXPERTS, is_dense_linear
from torch_foundry.models.family import class_key
from torch_foundry.models.outputs import embedding_read_by
from torch_foundry.models.swap import base_class, is_swapped, restore
from torch_foundry.models.tensor_parallel import sharding_of
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import matrices_of
from torch_foundry.nn.linear import linear_sizes, matrix_of

Formats: TypeAlias = str | Mapping[str, str | None]
Module = TypeVar("Module", bound=nn.Module)


def plan_formats(model: nn.Module, layers: list[nn.Module], formats: Formats) -> dict[str, str]:
    """The linear layers, embeddings and experts of `model` to pack, by name, with the format of each.

    formats: as in `torch_foundry.quantize`. layers: the decoder layers that a single format applies to, besides
        embeddings and output layer. What a pattern says of a module holds for all modules that share its weight.

    ValueError: an unknown format; a pattern that matches nothing, or a module whose rows are not whole blocks; a weight
    that is shared with a module that can't be packed. ValueError: a single format for a model without `layers`, or one
    that is sharded over processes.
    """
    if isinstance(formats, str):
        formats = formats.lower()  # ggml writes q4_K
    else:
        formats = {pattern: fmt and fmt.lower() for pattern, fmt in formats.items()}
    wanted = [formats] if isinstance(formats, str) else [fmt for fmt in formats.values() if fmt is not None]
    for fmt in wanted:
        if fmt not in quant.PACKABLE:
            raise ValueError(f"quantize={fmt!r}: expected one of {quant.listing(quant.PACKABLE)}")
    if reason := sharding_of(model):
        raise ValueError(f"cannot quantize {type(model).__name__}: {reason}")
    tied = _tied(model)
    if isinstance(formats, str):
        if not layers:
            reason = f"{type(model).__name__} has no decoder layers of a known family"
            raise ValueError(f"cannot quantize: {reason}; patterns ({{'*': {formats!r}}}) pack any model")
        inside = {id(module) for layer in layers for module in layer.modules()}
        inside |= {id(module) for module in _ends(model)}
        packable = (n for n, m, columns in _candidates(model) if id(m) in inside and _whole(columns, formats))
        plan = dict.fromkeys(packable, formats)
    else:
        plan = _by_patterns(model, formats, tied)
    for target, source in tied.items():
        if plan.get(target) != plan.get(source):
            if not isinstance(formats, str):
                found = f"{plan.get(target)} and {plan.get(source)}"
                raise ValueError(f"{target} shares its weight with {source}: expected one format for both, got {found}")
            plan.pop(target, None)
            plan.pop(source, None)
    return plan


def _by_patterns(model: nn.Module, patterns: Mapping[str, str | None], tied: Mapping[str, str]) -> dict[str, str]:
    plan: dict[str, str] = {}
    used: set[str] = set()
    partners = {**tied, **{source: target for target, source in tied.items()}}
    for name, _, columns in _candidates(model):
        names = (name, partners.get(name, name))
        pattern = next((p for p in patterns if any(fnmatchcase(n, p) for n in names)), None)
        if pattern is None:
            continue
        used.add(pattern)
        fmt = patterns[pattern]
        if fmt is None:
            continue
        if not _whole(columns, fmt):
            size, width = quant.get_format(fmt).block_size, max(columns)
            raise ValueError(f"{name}: {fmt} packs rows of a multiple of {size} weights, got rows of {width}")
        plan[name] = fmt
    for pattern in patterns:
        if pattern not in used:
            raise ValueError(f"quantize: no linear layer, embedding or experts are called {pattern!r}")
    return plan


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, list[int]]]:
    """What can be packed: name, module, and the lengths of its rows, one of which must be whole blocks."""
    blocks = ((name, BLOCKS.get(class_key(type(module)))) for name, module in model.named_modules())
    routers = {f"{name}.{kind.router}.{kind.matrix}" for name, kind in blocks if kind}
    routers |= {f"{name}.proj" for name, module in model.named_modules() if "per_expert_scale" in module._parameters}
    altups = ((name, module) for name, module in model.named_modules() if "correct_output_scale" in module._parameters)
    routers |= {f"{name}.{child}" for name, module in altups for child in module._modules}
    read = {id(embedding_read_by(module)) for module in model.modules()}
    for name, module in model.named_modules():
        cls: Any = base_class(type(module))
        key = class_key(cls)
        found: Any = module
        if is_dense_linear(cls) and linear_sizes(found)[1] > 1 and name not in routers:  # of a gate there is one: dense
            yield name, module, [linear_sizes(found)[0]]
        elif (cls is nn.Embedding or key in EMBEDDINGS) and found.max_norm is None and id(found) not in read:
            yield name, module, [found.embedding_dim]
        elif key in EXPERTS:
            yield name, module, [matrix.shape[-1] for matrix in matrices_of(module)]


def _whole(columns: list[int], fmt: str) -> bool:
    return any(width % quant.get_format(fmt).block_size == 0 for width in columns)


def _ends(model: Any) -> list[nn.Module]:
    """Input and output embeddings."""
    if not hasattr(model, "get_input_embeddings"):
        return []
    return [m for m in (model.get_input_embeddings(), model.get_output_embeddings()) if m is not None]


def _tied(model: Any) -> dict[str, str]:
    """Names of the output layer and of the embedding whose weight it shares, or will share once it is loaded."""
    ends = _ends(model)
    if len(ends) < 2:
        return {}
    names = {id(module): name for name, module in model.named_modules()}
    source, target = (names[id(module)] for module in ends)
    declared = getattr(model, "all_tied_weights_keys", None) or {}
    first, last = (getattr(module, "weight", None) for module in ends)
    same = first is last and first is not None
    return {target: source} if same or declared.get(f"{target}.weight") == f"{source}.weight" else {}


def pack_model(model: nn.Module, plan: Mapping[str, str], importance: Mapping[str, torch.Tensor]) -> None:
    """Pack the modules that `plan` names. Dense weights are released one by one: at most one lies beside the model.

    importance: of linear layers, by name; an embedding that shares an output layer's weight is packed with its.
    """
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    modules = {name: model.get_submodule(name) for name in plan}
    check_beside(modules, plan)
    times = Counter(id(getattr(module, "weight", None)) for module in modules.values())
    factors = {id(modules[name].weight): found for name, found in importance.items() if name in modules}
    shared: dict[int, tuple[nn.Parameter, torch.Tensor]] = {}
    for name, fmt in tqdm(plan.items(), desc="Packing weights", unit="module", delay=2, disable=None):
        module = modules.pop(name)
        dense: Any = getattr(module, "weight", None)
        _, known = shared.get(id(dense), (None, None))
        new = packed_module(_stock(module), fmt, known, factors.get(id(dense)))
        if dense is not None and known is None and times[id(dense)] > 1:
            shared[id(dense)] = dense, new.weight  # type: ignore[assignment]
        for each in names[id(module)]:
            replace_module(model, each, new)


def check_beside(modules: Mapping[str, nn.Module], plan: Mapping[str, str]) -> None:
    """DoesNotFit unless there is room for the largest module that `plan` packs, beside what it is packed from."""
    for name, fmt in plan.items():
        device = next(modules[name].parameters()).device
        memory.check(device, packed_bytes(modules[name], fmt), f"{name}, packed as {fmt} beside the dense one")


def packed_bytes(module: Any, fmt: str) -> int:
    """Bytes of the matrices of a dense module once they are packed."""
    found = matrices_of(module) if class_key(type(module)) in EXPERTS else [matrix_of(module)]
    formats = (fmt if _whole([m.shape[-1]], fmt) else quant.DENSE_NAMES[m.dtype] for m in found)
    sizes = zip(found, formats, strict=True)
    return sum(quant.get_format(own).nbytes(m.shape[:-1].numel(), m.shape[-1]) for m, own in sizes)


def packed_module(
    module: Any, fmt: str, packed: torch.Tensor | None = None, importance: torch.Tensor | None = None
) -> nn.Module:
    """The packed module to put in the place of `module`. `packed`: its weight, if that has been packed already."""
    if packed is None and importance is not None:
        packed = quant.quantize(matrix_of(module), fmt, importance)
    if isinstance(module, nn.Linear | Conv1D):
        return FoundryLinear.from_linear(module, fmt, packed)
    if isinstance(module, nn.Embedding):
        return FoundryEmbedding.from_embedding(module, fmt, packed)
    return FoundryExperts.from_experts(module, fmt)


def packed_tensors(model: nn.Module) -> dict[str, str]:
    """The names of packed tensors in the state dict of `model`, and their formats."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            found[f"{name}.weight"] = module.format
        elif isinstance(module, FoundryExperts):
            stored = zip(module.names, module.formats, strict=True)
            found |= {f"{name}.{part}": fmt for part, fmt in stored if quant.get_format(fmt).packed}
    return found


def packed_formats(model: nn.Module) -> str | None:
    """The formats of the packed weights in `model`, for messages; None if there are none."""
    return ", ".join(dict.fromkeys(packed_tensors(model).values())) or None


def dequantize_model(model: nn.Module) -> None:
    """Turn every packed module of `model` into a dense one; what was shared is shared again."""
    dense: dict[int, tuple[nn.Module, torch.Tensor]] = {}  # with the module, which keeps the address taken
    dtype: torch.dtype = model.dtype if hasattr(model, "dtype") else torch.get_default_dtype()  # type: ignore[assignment]
    shared = Counter(id(m.weight) for m in model.modules() if isinstance(m, FoundryLinear | FoundryEmbedding))
    _check_dense(model, dtype)
    for name, module in list(model.named_modules()):
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            key = id(module.weight)
            _, known = dense.get(key, (None, None))
            if isinstance(module, FoundryEmbedding):
                restored = module.to_embedding(known)
            else:
                restored = module.to_linear(dtype, known)
            if shared[key] > 1:
                dense[key] = module, restored.weight  # type: ignore[assignment]
            replace_module(model, name, restored)
        elif isinstance(module, FoundryExperts):
            replace_module(model, name, module.to_experts(dtype))


def _check_dense(model: nn.Module, dtype: torch.dtype) -> None:
    """DoesNotFit unless there is room for the weights that are packed in `model` as dense ones of `dtype`."""
    more: Counter[torch.device] = Counter()
    packed = ((model.get_buffer(name), fmt) for name, fmt in packed_tensors(model).items())
    found = {id(tensor): (tensor, fmt) for tensor, fmt in packed}
    for tensor, fmt in found.values():
        columns = quant.get_format(fmt).columns(tensor.shape[-1])
        more[tensor.device] += tensor.shape[:-1].numel() * columns * dtype.itemsize - tensor.nbytes
    for device, nbytes in more.items():
        memory.check(device, nbytes, "the model's weights made dense")


def _stock(module: Module) -> Module:
    if is_swapped(module):
        restore(module)
    return module


def replace_module(root: nn.Module, name: str, new: nn.Module) -> None:
    """Put `new` in the place of the module called `name`."""
    parent, _, leaf = name.rpartition(".")
    root.get_submodule(parent)._modules[leaf] = new
