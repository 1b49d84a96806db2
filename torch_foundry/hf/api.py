"""The public functions: patch, unpatch, patched, quantize, dequantize, merge_adapters, report."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.generation.utils import GenerationMixin

from torch_foundry.core import devices, runtime
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.adapters import SAME, merge
from torch_foundry.hf.decoder import DecoderMixin
from torch_foundry.hf.first_token import compile_first_token
from torch_foundry.hf.generate import CountingMixin, GeneratorMixin
from torch_foundry.hf.layer import LayerMixin
from torch_foundry.hf.leaf_modules import leaf_mixin
from torch_foundry.hf.not_replaced import modules_not_replaced
from torch_foundry.hf.packing import Formats, dequantize_model, pack_model, packed_formats, plan_formats
from torch_foundry.hf.pretrained import ModelMixin, forget
from torch_foundry.hf.quantizer import attach
from torch_foundry.hf.report import Report, build_report
from torch_foundry.hf.training import trained_parts
from torch_foundry.hf.wrapper import WrapperMixin
from torch_foundry.kvcache.formats import parse
from torch_foundry.models.families import FAMILIES, TESTED_VERSIONS
from torch_foundry.models.family import class_key
from torch_foundry.models.guards import CallGuard
from torch_foundry.models.layer_plan import LayerPlan
from torch_foundry.models.outputs import decoder_of, head_of, wrapper_of
from torch_foundry.models.spec import known_layers
from torch_foundry.models.state import ModelState, Plan
from torch_foundry.models.swap import is_swapped, restore, swap

Model = TypeVar("Model", bound=nn.Module)


def patch(
    model: Model,
    *,
    quantize: Formats | None = None,
    sync_every: int | None = None,
    kv_cache: str | Mapping[str, str | None] | None = None,
) -> Model:
    """Run `model` on fused kernels, in place; returns it. Results are the same up to rounding.

    Decoder layers of known families, embeddings, norms and output layers get another class. Parameters, names, hooks
    and `state_dict` stay as they are, and `unpatch` restores the classes. Whatever the kernels can't do (recorded
    attentions, foreign caches ...) runs the stock code; in training that is of layers, whose norms, MLPs and rotations
    are ops with a backward. `report(model)` says what was replaced, what was not and why, and how often stock code ran.
    Patching again replaces modules that were added since.

    quantize: pack the weights first, as `torch_foundry.quantize(model, quantize)` does. Changes results, and `unpatch`
        does not undo it.
    sync_every: how many tokens generate() hands to the device before it waits to read them. 1 shows each token at once,
        64 is for throughput, 0 is Hugging Face's own loop. Overridden by `generate(sync_every=...)` and by an attribute
        `sync_every` of the generation config. Default: $TORCH_FOUNDRY_SYNC_EVERY, else 1 with a streamer and 4
        without. Sampled tokens are the same for every value but 0, which draws torch's random numbers instead of ours.
    kv_cache: the format of keys and values in `DynamicCache`s from now on: "q8_0" (8.5 bits a number), "q4_0" (4.5),
        "f16", "bf16" or "f32", or one for each: {"k": ..., "v": ...}. Default: the model's dtype. They are packed when
        they are written and unpacked inside attention, which changes results. A cache that has keys already stays as it
        is; `kvcache.hf_cache.new_cache` makes one of any kind.

    RuntimeError: this build can't run kernels on the model's device (the message says why). A model on the meta device
    may be patched, so that its weights can be loaded later, but not quantized. ValueError: a bad option.
    """
    _check_version()
    _check_device(model, quantize)
    if sync_every is not None and (not isinstance(sync_every, int) or sync_every < 0):
        raise ValueError(f"sync_every={sync_every!r}: expected a number of tokens, or 0 for Hugging Face's own loop")
    formats = None if kv_cache is None else parse(kv_cache)
    state = _state_of(model) or ModelState()
    plans, not_replaced = _plan_layers(model, state)
    if quantize is not None:
        _pack(model, plan_formats(model, [layer for layer, _ in plans] + _fused_layers(model), quantize))
        plans, not_replaced = _plan_layers(model, state)  # specs refer to modules, and packing has replaced some
    state.quantized = state.quantized or packed_formats(model)
    inside = {id(m) for layer in [layer for layer, _ in plans] + _fused_layers(model) for m in layer.modules()}
    leaf_modules = [
        (module, mixin, mixin.plan_class(module, state))
        for module in model.modules()
        if id(module) not in inside and not is_swapped(module) and (mixin := leaf_mixin(module)) is not None
    ]
    models = [(m, _model_mixin(m)) for m in model.modules() if isinstance(m, PreTrainedModel) and not is_swapped(m)]
    leaf_ids = {id(module) for module, _, _ in leaf_modules}
    layers = [layer for layer in model.modules() if not is_swapped(layer)]
    trained = [part for layer in layers for part in trained_parts(layer, state) if id(part[0]) not in leaf_ids]

    replaced = leaf_ids | {id(module) for module, _ in plans}
    not_replaced = modules_not_replaced(model, replaced, not_replaced, {id(module): mixin for module, mixin in models})

    # from here on nothing can fail
    state.not_replaced = not_replaced
    state.sync_every = state.sync_every if sync_every is None else sync_every
    state.kv_cache = state.kv_cache if formats is None else formats
    for part, trained_mixin, part_plan in trained:
        swap(part, trained_mixin, part_plan)
    for layer, plan in plans:
        plan.watch = CallGuard(layer)  # of parts with the classes that they have now
        swap(layer, LayerMixin, plan)
    for module, mixin, leaf_plan in leaf_modules:
        swap(module, mixin, leaf_plan)
    for pretrained, model_class in models:
        swap(pretrained, model_class, Plan(state))
    compile_first_token(model, state)
    return model


def unpatch(model: Model, *, dequantize: bool = False) -> Model:
    """Give every module of `model` its own class back; returns the model.

    Packed weights stay packed: the model then runs stock code around `FoundryLinear` layers and warns about it.
    `dequantize=True` makes them dense, with the values that packing left.
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


def quantize(model: Model, formats: Formats, importance: Mapping[str, torch.Tensor] | None = None) -> Model:
    """Pack weights of `model` in place, a few rows at a time; returns it. It may be patched before or after.

    formats: one format for the whole model, "q4_0" or another of `torch_foundry.quant.PACKABLE`: packs the linear
        layers and experts of known decoder layers, the embeddings and the output layer, except where a row is not a
        whole number of blocks. Or shell patterns of module names, which work in any model:
        {"*.down_proj": "q6_k", "lm_head": None, "*": "q4_k"}. The first pattern that matches decides; None leaves a
        module dense. An output layer that shares its weight with an embedding is matched by either name.
    importance: what `torch_foundry.importance(model, tokens)` found, by which K and IQ4 formats choose their scales.
        Layers that it doesn't name are packed without.

    `save_pretrained` then writes packed weights, which AutoModelForCausalLM and `torch_foundry.load` read. Call
    `dequantize(model)` first to write a model that any transformers can read.

    ValueError: an unknown format, a pattern that matches nothing, or one that matches a module whose rows are not whole
    blocks. RuntimeError: weights that are not finite, or on the meta device.
    """
    if any(p.is_meta for p in model.parameters()):
        raise RuntimeError(f"cannot quantize {type(model).__name__}: {devices.device_problem('meta', False)}")
    _pack(model, plan_formats(model, known_layers(model), formats), importance)
    return model


def dequantize(model: Model) -> Model:
    """Make every packed weight of `model` dense, in place, with the values that packing left; returns the model."""
    _unpack(model)
    return model


def merge_adapters(model: Any, formats: str | None = SAME) -> Any:
    """Merge the active adapters (LoRA) of a peft model into its weights, packed ones too; returns the model inside.

    model: peft's; it is used up.
    formats: how layers that had adapters are stored: "same" packs them as before, None leaves them dense, and the name
        of a format packs them in that. Sums are float32; packing rounds them again.

    peft's own `merge_and_unload` raises for packed weights.
    TypeError: not a peft model. ValueError, before anything is changed: a format that can't be packed, rows that are
    not whole blocks, or a weight that another module shares (a tied output layer).
    """
    merged = merge(model, formats)
    forget(merged)
    _packed_now(merged)
    return merged


def _restore(model: nn.Module) -> None:
    for module in list(model.modules()):
        if is_swapped(module):
            restore(module)


def _pack(model: nn.Module, plan: dict[str, str], importance: Mapping[str, torch.Tensor] | None = None) -> None:
    forget(model)
    pack_model(model, plan, importance or {})
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
            # a bare plan, from which the layer makes its own again, for its new submodules
            layer.__dict__["_foundry"] = Plan(state)
    attach(model)


@contextlib.contextmanager
def patched(
    model: Model,
    *,
    quantize: Formats | None = None,
    sync_every: int | None = None,
    kv_cache: str | Mapping[str, str | None] | None = None,
) -> Iterator[Model]:
    """Context manager: `patch` inside the block; afterwards `unpatch`, and make dense what was packed for it.

    A model that was patched before stays patched.
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
    """Report of what `patch` did to `model`, and of what has run since. Print it."""
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
    """Raise RuntimeError unless some weight lies on a device where kernels can run."""
    kinds = dict.fromkeys(p.device.type for p in model.parameters())
    if "meta" in kinds and quantize is not None:
        raise RuntimeError(f"cannot quantize {type(model).__name__}: {devices.device_problem('meta', False)}")
    problems = {k: devices.device_problem(k, runtime.has_executor(k)) for k in kinds if k != "meta"}
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
    not_replaced: dict[str, str] = {}
    for name, module in model.named_modules():
        if is_swapped(module):
            continue
        if _looks_like_a_decoder_layer(type(module)):
            try:
                plans.append((module, LayerPlan(module, state)))
            except Fallback as fallback:
                not_replaced[name] = str(fallback)
    return plans, not_replaced


def _model_mixin(model: PreTrainedModel) -> type[ModelMixin]:
    """The mixin for a whole model."""
    if decoder_of(model) is not None:
        return DecoderMixin
    if wrapper_of(model) is not None:
        return WrapperMixin
    if head_of(model) is not None:
        return GeneratorMixin
    return CountingMixin if isinstance(model, GenerationMixin) else ModelMixin
