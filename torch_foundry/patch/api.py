"""patch, unpatch, patched, report."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import transformers
from torch import nn
from transformers import PreTrainedModel

from torch_foundry import runtime, support
from torch_foundry.kvcache.formats import parse
from torch_foundry.patch.adapters import SAME, merge
from torch_foundry.patch.families import FAMILIES, TESTED_VERSIONS, class_key
from torch_foundry.patch.layer import LayerMixin, LayerPlan
from torch_foundry.patch.leaves import leaf_mixin
from torch_foundry.patch.model import forget, model_mixin
from torch_foundry.patch.packing import Formats, dequantize_model, pack_model, packed_formats, plan_formats
from torch_foundry.patch.quantizer import attach
from torch_foundry.patch.spec import Unsupported, known_layers
from torch_foundry.patch.state import ModelState, Plan
from torch_foundry.patch.summary import Report, build_report
from torch_foundry.patch.swap import is_swapped, restore, swap

Model = TypeVar("Model", bound=nn.Module)


def patch(
    model: Model,
    *,
    quantize: Formats | None = None,
    sync_every: int | None = None,
    kv_cache: str | Mapping[str, str | None] | None = None,
) -> Model:
    """Run `model` on fused kernels; returns it. Results are the same up to rounding.

    Decoder layers of known families, and embeddings, norms and output layers, get another class; parameters, names,
    hooks and `state_dict` stay as they are, and `unpatch` puts the classes back. Whatever the kernels do not do
    (training, recording attentions, foreign caches ...) runs the stock code. `report(model)` says what was swapped,
    what was left alone and why, and what ran stock code. Patching a second time swaps what was added since.

    quantize: a format, or formats by patterns: first pack weights, as `torch_foundry.quantize` does. That changes
        results, and stays after `unpatch`.
    sync_every: how many tokens generate() hands to the device before it waits to read them. Default: 1 where a streamer
        waits for each token, else 16; 64 is for throughput. `generate(sync_every=...)` and an attribute of that name of
        the generation config come first; TORCH_FOUNDRY_SYNC_EVERY is used where nothing else says anything. 0: Hugging
        Face's own loop (which also draws torch's random numbers; ours are the same for any other number, but not
        torch's).
    kv_cache: what keys and values of `DynamicCache`s are stored as from now on: "q8_0" (8.5 bits a number), "q4_0"
        (4.5), "f16", "bf16", "f32", or {"k": ..., "v": ...} of these; default: the model's dtype. They are packed as
        they are written and unpacked inside attention. A cache that has keys already stays as it is, and
        `kvcache.adopt.new_cache` makes one of any kind. Changes results.

    RuntimeError says why if this build can't run kernels on the model's device. A model on the meta device may be
    patched (its weights can be loaded later), but not quantized.
    """
    _check_version()
    _check_device(model, quantize)
    if sync_every is not None and (not isinstance(sync_every, int) or sync_every < 0):
        raise ValueError(f"sync_every={sync_every!r}: expected a number of tokens, or 0 for Hugging Face's own loop")
    formats = None if kv_cache is None else parse(kv_cache)
    state = _state_of(model) or ModelState()
    plans, left = _plan_layers(model, state)
    if quantize is not None:
        _pack(model, plan_formats(model, [layer for layer, _ in plans] + _fused_layers(model), quantize))
        plans, left = _plan_layers(model, state)  # specs are about modules, and these have been exchanged
    state.quantized = state.quantized or packed_formats(model)
    inside = {id(m) for layer in [layer for layer, _ in plans] + _fused_layers(model) for m in layer.modules()}
    leaves = [
        (module, mixin, mixin.plan_class(module, state))
        for module in model.modules()
        if id(module) not in inside and not is_swapped(module) and (mixin := leaf_mixin(module)) is not None
    ]
    models = [(m, model_mixin(m)) for m in model.modules() if isinstance(m, PreTrainedModel) and not is_swapped(m)]

    # from here on nothing can fail
    state.left = left
    state.sync_every = state.sync_every if sync_every is None else sync_every
    state.kv_cache = state.kv_cache if formats is None else formats
    for layer, plan in plans:
        swap(layer, LayerMixin, plan)
    for module, mixin, leaf_plan in leaves:
        swap(module, mixin, leaf_plan)
    for pretrained, model_class in models:
        swap(pretrained, model_class, Plan(state))
    return model


def unpatch(model: Model, *, dequantize: bool = False) -> Model:
    """Give every module of `model` its own class back; returns it.

    Weights that `patch(model, quantize=...)` packed stay packed: the model then runs stock code around
    `FoundryLinear` layers. `dequantize=True` turns them into dense layers with the values that packing has left.
    """
    state = _state_of(model)
    _restore(model)
    if dequantize:
        _unpack(model)
    elif state is not None and state.quantized:
        warnings.warn(
            f"weights stay packed as {state.quantized}; torch_foundry.dequantize(model) makes them dense", stacklevel=2
        )
    return model


def quantize(model: Model, formats: Formats) -> Model:
    """Pack weights of `model` in place, a few rows at a time; returns it. It may be patched, before or after.

    formats: "q4_0" or another of `torch_foundry.quant.PACKABLE`, for the linear layers and experts of known decoder
        layers, the embeddings and the output layer; those whose rows are not whole blocks of the format stay dense. Or
        shell patterns of the names of modules, in any model, of which the first that fits decides:
        {"*.down_proj": "q6_k", "lm_head": None, "*": "q4_k"}, where None leaves dense. An output layer and an embedding
        that share their weight answer to either name.

    `save_pretrained` then writes packed weights, which AutoModelForCausalLM and `torch_foundry.load` read;
    `dequantize(model)` first makes it write a model that any transformers can read.

    ValueError: an unknown format, a pattern that fits nothing, or one that fits a module whose rows are not whole
    blocks. RuntimeError: weights that are not finite, or on the meta device.
    """
    if any(p.is_meta for p in model.parameters()):
        raise RuntimeError(f"cannot quantize {type(model).__name__}: {support.device_problem('meta', False)}")
    _pack(model, plan_formats(model, known_layers(model), formats))
    return model


def dequantize(model: Model) -> Model:
    """Make every packed weight of `model` dense, in place, with the values that packing has left; returns it."""
    _unpack(model)
    return model


def merge_adapters(model: Any, formats: str | None = SAME) -> Any:
    """The model inside peft's `model`, with its active adapters (LoRA) merged into its weights, packed ones too.

    formats: "same" packs each layer again as it was, None leaves those that had adapters dense, and the name of a
        format packs them as that. Sums are in float32; packing rounds them, and results differ by as much.

    peft's own `merge_and_unload` knows dense weights only, and raises for packed ones. `model` is used up.
    ValueError, before anything is changed: a format that nothing can be packed as, or rows that are not whole blocks of
    it; a weight that another module shares (a tied output layer). TypeError: no model of peft's.
    """
    merged = merge(model, formats)
    forget(merged)
    _packed_now(merged)
    return merged


def _restore(model: nn.Module) -> None:
    for module in list(model.modules()):
        if is_swapped(module):
            restore(module)


def _pack(model: nn.Module, plan: dict[str, str]) -> None:
    forget(model)
    pack_model(model, plan)
    _packed_now(model)


def _unpack(model: nn.Module) -> None:
    forget(model)
    dequantize_model(model)
    _packed_now(model)


def _packed_now(model: nn.Module) -> None:
    state = _state_of(model)
    if state is not None:
        state.quantized = packed_formats(model)
        for layer in _fused_layers(model):
            layer.__dict__["_foundry"] = Plan(state)  # it makes its own anew: its submodules have been exchanged
    attach(model)


@contextlib.contextmanager
def patched(
    model: Model,
    *,
    quantize: Formats | None = None,
    sync_every: int | None = None,
    kv_cache: str | Mapping[str, str | None] | None = None,
) -> Iterator[Model]:
    """`patch` inside the block, `unpatch` (and make dense what was packed) after it.

    A model that was patched before stays so.
    """
    if _state_of(model) is not None:
        if quantize is not None or sync_every is not None or kv_cache is not None:
            raise ValueError("the model is patched already; change that with patch(model, ...)")
        yield model
        return
    patch(model, quantize=quantize, sync_every=sync_every, kv_cache=kv_cache)
    try:
        yield model
    finally:
        _restore(model)
        if quantize is not None:
            _unpack(model)


def report(model: nn.Module) -> Report:
    """What `patch` did to `model` and what ran since. Print it."""
    return build_report(model)


def _check_version() -> None:
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    first, last = TESTED_VERSIONS
    if version < first:
        raise ImportError(f"torch_foundry needs transformers {first[0]}.{first[1]}, this is {transformers.__version__}")
    if version > last:
        warnings.warn(
            f"torch_foundry was tested with transformers up to {last[0]}.{last[1]}, this is {transformers.__version__}",
            stacklevel=3,
        )


def _check_device(model: nn.Module, quantize: Formats | None) -> None:
    """Refuse a model that has no weight where a kernel could run."""
    kinds = dict.fromkeys(p.device.type for p in model.parameters())
    if "meta" in kinds and quantize is not None:
        raise RuntimeError(f"cannot quantize {type(model).__name__}: {support.device_problem('meta', False)}")
    problems = {k: support.device_problem(k, runtime.has_executor(k)) for k in kinds if k != "meta"}
    if problems and all(problems.values()):
        kind, problem = next(iter(problems.items()))
        raise RuntimeError(f"cannot patch {type(model).__name__} on {kind}: {problem}")


def _state_of(model: nn.Module) -> ModelState | None:
    for module in model.modules():
        if is_swapped(module):
            plan: Any = module._foundry
            return plan.state
    return None


def _fused_layers(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, LayerMixin)]


def _looks_like_a_decoder_layer(cls: type) -> bool:
    return cls.__name__.endswith("DecoderLayer") or any(class_key(base) in FAMILIES for base in cls.__mro__)


def _plan_layers(model: nn.Module, state: ModelState) -> tuple[list[tuple[nn.Module, LayerPlan]], dict[str, str]]:
    """Plans for the decoder layers that are not swapped yet, and the reasons for those that cannot be."""
    plans: list[tuple[nn.Module, LayerPlan]] = []
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        if is_swapped(module):
            continue
        if _looks_like_a_decoder_layer(type(module)):
            try:
                plans.append((module, LayerPlan(module, state)))
            except Unsupported as unsupported:
                left[name] = str(unsupported)
    return plans, left
