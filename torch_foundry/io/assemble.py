"""A transformers model from weights that are still in their files.

The stock model is built without memory for its matrices. Packed modules replace those whose weights are packed, and
each parameter is read once, to where it stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from torch_foundry import quant
from torch_foundry.core import memory
from torch_foundry.core.load_errors import AllowedFaults, LoadError
from torch_foundry.hf.packing import replace_module
from torch_foundry.io.parameters import COUNTED, class_name
from torch_foundry.io.weights import Weight
from torch_foundry.models.outputs import embedding_read_by
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import NAMES, matrices_of, names_of, set_matrices

_TABLES = {torch.arange, torch.eye, torch.full, torch.linspace, torch.ones, torch.zeros}
_LARGEST_TABLE = 1 << 26  # numbers; GPT-2's mask of 8192 tokens
SMALLER = ("q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k")  # formats to suggest
BOTH = "gate_up_proj"  # the first two, one above the other


def assemble(
    config: Any,
    weights: Mapping[str, Weight],
    *,
    file: str | os.PathLike[str],
    device: torch.device,
    dtype: torch.dtype,
    generation_config: Any = None,
    attn_implementation: str | None = None,
    model_class: Any = None,
    progress: bool = True,
    allow: Iterable[str] = (),
) -> Any:
    """The causal language model of `config`, in eval mode on `device`, with `weights` by the names of its parameters.

    Experts come matrix by matrix, as `nn.experts.names_of` names them, or under the stock names. Packed
    linear layers, embeddings and experts stay packed; a packed weight of any other module is made dense, and that of an
    embedding whose rows stock code reads itself. Dense weights, and activations, get `dtype`. An output layer that is
    tied and not among `weights` shares the embedding's weight. file: whom errors name. allow: see `AllowedFaults`.
    model_class: as of `build`.

    LoadError: CONFIG, TENSOR_MISSING, TENSOR_EXTRA, SHAPE, and whatever reading raises. DoesNotFit, before anything is
    read: `device` has no room for the weights.
    """
    model = build_for(file, config, dtype, attn_implementation=attn_implementation, model_class=model_class)
    model.generation_config = generation_config or model.generation_config
    return fill(model, weights, file=file, device=device, dtype=dtype, progress=progress, allow=allow)


def fill(
    model: Any, weights: Mapping[str, Weight], *, file: str | os.PathLike[str], device: torch.device,
    dtype: torch.dtype, progress: bool = True, allow: Iterable[str] = (),
) -> Any:  # fmt: skip
    """`model`, of `build`, with `weights`, in eval mode on `device`. Arguments and errors as of `assemble`."""
    for buffers in (module._buffers for module in model.modules()):
        buffers.update({name: b if b is None or b.is_meta else b.to(device) for name, b in buffers.items()})
    plan = Plan(model, weights, file, AllowedFaults(allow))
    installer = _Installer(model, plan.split, device, dtype)
    _check_memory(plan.weights, installer)
    for name in _advancing(plan.weights, progress):
        installer.put(name, plan.weights[name])
    for name in plan.absent:
        set_parameter(model, name, torch.zeros_like(model.state_dict()[name], device=device))
    for name in plan.kept:
        if name not in dict(model.named_buffers()):
            set_parameter(model, name, model.get_parameter(name).detach().to(device))
    for target, source in plan.tied.items():
        installer.tie(target, source)
    left = [n for tensors in (model.named_parameters(), model.named_buffers()) for n, t in tensors if t.is_meta]
    if left:
        raise RuntimeError(f"{type(model).__name__}: nothing computes {', '.join(left)}")
    return model.eval()


class _EmptyOnMeta(TorchFunctionMode):
    """Matrices (`torch.empty`) get no memory. What is computed (rotary frequencies, embedding scales) is real, up to a
    limit: ValueError.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            kwargs = {**(kwargs or {}), "device": "meta"}
        elif func in _TABLES and (n := func(*args, **{**(kwargs or {}), "device": "meta"}).numel()) > _LARGEST_TABLE:
            raise ValueError(f"a table of {n} numbers")
        return func(*args, **(kwargs or {}))


def build(config: Any, dtype: torch.dtype, attn_implementation: str | None = None, model_class: Any = None) -> Any:
    """The stock model of `config` with its matrices on the meta device and all else on the CPU; nothing is tied.

    model_class: default: its causal language model, or the model that is shown images.
    """
    import transformers
    from transformers import initialization

    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    if model_class is None and type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        model_class = getattr(transformers, str(class_name(config.model_type)), None)
    with initialization.no_init_weights(), initialization.no_tie_weights(), _EmptyOnMeta(), torch.device("cpu"):
        make = transformers.AutoModelForCausalLM.from_config if model_class is None else model_class._from_config
        return make(config, dtype=dtype, **options)


def build_for(file: str | os.PathLike[str], config: Any, dtype: torch.dtype, **options: Any) -> Any:
    """`build` for the model of `file`. LoadError CONFIG if the settings do not go together."""
    try:
        return build(config, dtype, **options)
    except Exception as error:  # whatever transformers raises
        if options.get("attn_implementation") is not None:
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LoadError("CONFIG", file, "config", expected="a model that transformers can build", found=line) from error


class Plan:
    """Which parameter gets which weight. LoadError unless each parameter has one and no weight is left.

    weights: by name, with matching shapes. tied: target -> source. split: modules whose experts come as separate
        matrices.
    absent, kept: parameters without a weight (which the caller allowed), on the meta device and on the CPU.
    """

    def __init__(
        self, model: Any, weights: Mapping[str, Weight], file: str | os.PathLike[str], allow: Callable[[str, str], bool]
    ) -> None:
        stored = model.state_dict()  # buffers, too
        shapes = {name: tuple(t.shape) for name, t in stored.items() if not name.endswith(COUNTED)}
        found = dict(weights)
        self.tied: dict[str, str] = {}
        for target, source in model.all_tied_weights_keys.items():
            if source not in found and target in found:
                found[source] = found.pop(target)
            if target not in found:
                self.tied[target] = source
                shapes.pop(target, None)
        for name in (f"{path}.weight" for path, module in model.named_modules() if isinstance(module, Conv1D)):
            if name in found and quant.get_format(found[name].format).packed:
                shapes[name] = shapes[name][::-1]  # packed by outputs
        self.split: set[str] = set()
        for name in list(shapes):
            module, _, leaf = name.rpartition(".")
            alone = leaf == "up_proj" and len(shapes[name]) == 3  # there is no gate
            if leaf == BOTH and name in found and quant.get_format(found[name].format).packed:
                self.split.add(module)
            if alone or (leaf == BOTH and name not in found):
                self.split.add(module)
                del shapes[name], shapes[f"{module}.down_proj"]
                experts = model.get_submodule(module)
                parts = zip(names_of(experts), matrices_of(experts), strict=True)
                shapes |= {f"{module}.{part}": tuple(matrix.shape) for part, matrix in parts}
        for name in [name for name in found if name not in shapes]:
            source = found.pop(name).source or name
            if not allow("TENSOR_EXTRA", source):
                raise LoadError("TENSOR_EXTRA", file, source, expected=f"no {name}", found="one")
        self.absent: list[str] = []
        self.kept: list[str] = []
        for name, shape in shapes.items():
            if name in found:
                if (given := tuple(found[name].shape)) != shape:
                    source = found[name].source or name
                    raise LoadError("SHAPE", file, source, expected=str(list(shape)), found=str(list(given)))
            elif not allow("TENSOR_MISSING", name):
                raise LoadError("TENSOR_MISSING", file, name, expected=f"a tensor {list(shape)}", found="none")
            else:
                (self.absent if model.state_dict()[name].is_meta else self.kept).append(name)
        self.weights = {name: found[name] for name in shapes if name in found}


def _advancing(weights: Mapping[str, Weight], progress: bool) -> Iterator[str]:
    """The names, while a bar of bytes advances; it shows when there is something to wait for."""
    from transformers.utils.logging import tqdm

    total = sum(weight.nbytes for weight in weights.values())
    options: dict[str, Any] = {"total": total, "desc": "Loading weights", "unit": "B", "unit_scale": True}
    options |= {"delay": 1, "disable": None}  # None: only on a terminal, as with all bars here
    with tqdm(**options) if progress else contextlib.nullcontext() as bar:
        for name, weight in weights.items():
            yield name
            if bar is not None:
                bar.update(weight.nbytes)


def _check_memory(weights: Mapping[str, Weight], installer: _Installer) -> None:
    """DoesNotFit unless its device has room for them."""

    def fits(left: int) -> str:
        bits = 8 * left / sum(weight.count for weight in weights.values())
        names = [name for name in SMALLER if quant.get_format(name).nbytes(1, 256) <= 32 * bits]
        text = f"{bits:.2g} bits a weight would fit"
        return f"{text}: a file in {names[0]}." if names else f"{text}, which is less than any format has."

    memory.check(installer.device, sum(map(installer.nbytes, weights, weights.values())), "the weights", fits)


class _Installer:
    """Reads weights and gives them to the modules of a model."""

    def __init__(self, model: Any, split: set[str], device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.split, self.device, self.dtype = model, split, device, dtype
        self.experts: dict[str, dict[str, tuple[torch.Tensor, str]]] = {}  # parts that wait for the others
        # rows of the others' weights are read by stock code itself: a tower's positions, Gemma 4's padding
        self.embeddings = {id(module) for module in model.get_decoder().modules()}
        self.embeddings -= {id(embedding_read_by(module)) for module in model.modules()}
        self.unpacked: dict[str, tuple[str, torch.Tensor]] = {}  # embeddings that became dense, as they were

    def nbytes(self, name: str, weight: Weight) -> int:
        """Bytes of a weight once it is there, beside its packed self if it is an embedding that becomes dense."""
        module = self.model.get_submodule(name.rpartition(".")[0])
        packed = quant.get_format(weight.format).packed
        both = packed and isinstance(module, nn.Embedding) and id(module) not in self.embeddings
        return weight.bytes_as(self.dtype) + both * weight.count * self.dtype.itemsize

    def put(self, name: str, weight: Weight) -> None:
        """Read `weight` and give it to the parameter, or part of experts, called `name`."""
        path, _, leaf = name.rpartition(".")
        parent, packed = self.model.get_submodule(path), quant.get_format(weight.format).packed
        if path in self.split and leaf in (*names_of(parent), BOTH):
            self._put_experts(parent, path, leaf, weight)
        elif leaf in parent._buffers:
            parent._buffers[leaf] = self._dense(weight, parent._buffers[leaf].dtype)
        elif not packed:
            set_parameter(self.model, name, self._dense(weight))
        elif leaf == "weight" and type(parent) in (nn.Linear, Conv1D):
            order = None if weight.order is None else weight.order.to(self.device)
            blocks = weight.load(self.device)
            replace_module(self.model, path, FoundryLinear.from_linear(parent, weight.format, blocks, order))
        elif leaf == "weight" and isinstance(parent, nn.Embedding) and id(parent) in self.embeddings:
            embedding = FoundryEmbedding.from_embedding(parent, weight.format, weight.load(self.device))
            replace_module(self.model, path, embedding)
        else:
            blocks = weight.load(self.device).flatten(0, -2)
            if isinstance(parent, nn.Embedding):
                self.unpacked[name] = weight.format, blocks
            dense = quant.dequantize(blocks, weight.format, weight.shape[-1], self.dtype)
            set_parameter(self.model, name, dense.view(weight.shape))

    def _dense(self, weight: Weight, dtype: torch.dtype | None = None) -> torch.Tensor:
        if weight.load_as is not None:
            return weight.load_as(self.device, dtype or self.dtype)
        return weight.load(self.device).to(dtype or self.dtype)

    def _put_experts(self, stock: Any, path: str, part: str, weight: Weight) -> None:
        packed = quant.get_format(weight.format).packed
        tensor = weight.load(self.device) if packed else self._dense(weight)
        parts = self.experts.setdefault(path, {})
        fmt = weight.format if packed else quant.DENSE_NAMES[self.dtype]
        both = part == BOTH
        for name, own in zip(NAMES[:2] if both else (part,), tensor.chunk(1 + both, 1), strict=True):
            parts[name] = own.contiguous(), fmt
        names = names_of(stock)
        if len(parts) < len(names):
            return
        matrices, formats = [parts[name][0] for name in names], [parts[name][1] for name in names]
        del self.experts[path]
        if any(quant.get_format(fmt).packed for fmt in formats):
            replace_module(self.model, path, FoundryExperts(stock, matrices, formats))
        else:
            set_matrices(stock, matrices)

    def tie(self, target: str, source: str) -> None:
        """Let the output layer `target` have the weight of `source`, packed or not."""
        path = target.rpartition(".")[0]
        layer, origin = self.model.get_submodule(path), self.model.get_submodule(source.rpartition(".")[0])
        fmt, blocks = self.unpacked.get(source, (None, None))
        if isinstance(origin, FoundryEmbedding):
            fmt, blocks = origin.format, origin.weight
        if fmt is not None:
            replace_module(self.model, path, FoundryLinear.from_linear(layer, fmt, blocks))
        else:
            layer.weight = origin.weight


def set_parameter(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Give the parameter, or the buffer, called `name` this tensor."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._buffers:
        module._buffers[leaf] = tensor
    else:
        module._parameters[leaf] = nn.Parameter(tensor)
