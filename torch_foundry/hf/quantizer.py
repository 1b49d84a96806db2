"""transformers' quantizer interface: FoundryConfig for from_pretrained, save_pretrained and loading again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from torch_foundry import quant
from torch_foundry.core import memory
from torch_foundry.hf.packing import (
    Formats,
    dequantize_model,
    packed_bytes,
    packed_module,
    packed_tensors,
    plan_formats,
    replace_module,
)
from torch_foundry.hf.registration import METHODS
from torch_foundry.models.spec import known_layers
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import matrices_of, names_of
from torch_foundry.nn.linear import matrix_of


class FoundryConfig(QuantizationConfigMixin):
    """Config of packed weights: `from_pretrained(..., quantization_config=FoundryConfig("q4_0"))` packs while it loads.

    formats: as in `torch_foundry.quantize`: one format, or patterns of module names. In a saved model: the format of
    each packed tensor, by name. ordered: linear layers whose columns are stored in another order (GPTQ's act-order;
    saved models only). For a folder that others have packed (MXFP4, FP8, GPTQ ...) transformers takes its own quantizer
    and raises a ValueError for this config: `torch_foundry.load` keeps such weights packed.
    """

    def __init__(self, formats: Formats = "q8_0", ordered: list[str] | None = None, **_: Any) -> None:
        self.quant_method: Any = METHODS[0]
        self.formats: Any = formats if isinstance(formats, str) else dict(formats)
        self.ordered = list(ordered or [])


class FoundryQuantizer(HfQuantizer):
    """Packs weights as they are loaded, or loads packed ones."""

    requires_calibration = False
    quantization_config: Any
    pre_quantized: bool

    def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self._plan: dict[str, str] = {}  # module -> format, while weights are loaded and packed
        self._tied: dict[str, str] = {}  # output layer -> embedding whose packed weight it shares

    def _process_model_before_weight_loading(self, model: Any, device_map: Any = None, **_: Any) -> None:
        """The model's weights are on the meta device. DoesNotFit: that for which they are meant has no room."""
        # registers mixers, without which no layer is known; not with this module, which transformers' import may bring
        from torch_foundry.models import decoder  # noqa: F401

        ties: dict[str, str] = dict(model.all_tied_weights_keys)
        if self.pre_quantized:
            self._prepare_saved(model)
        else:
            self._plan = plan_formats(model, known_layers(model), self.quantization_config.formats)
        packed = self._plan.keys() | {name.rpartition(".")[0] for name in self._saved()}
        for tied, to in ties.items():
            target, source = tied.rpartition(".")[0], to.rpartition(".")[0]
            layer = model.get_submodule(target)
            if isinstance(layer, FoundryLinear):  # saved with a weight of its own
                model.all_tied_weights_keys.pop(tied)
            elif source in packed and isinstance(layer, nn.Linear):
                # not in the state dict: it is neither missing in a checkpoint nor saved a second time
                fmt = self._plan.get(source) or self._saved()[f"{source}.weight"]
                linear = _empty(layer, fmt, False)
                linear._non_persistent_buffers_set.add("weight")
                replace_module(model, target, linear)
                model.all_tied_weights_keys.pop(tied)
                self._plan.pop(target, None)
                self._tied[target] = source
        places = set(device_map.values()) if isinstance(device_map, dict) else set()
        if len(places) == 1 and "disk" not in places:
            self._check_memory(model, torch.device(places.pop()))

    def _check_memory(self, model: Any, device: torch.device) -> None:
        """As packed, beside the largest matrix that is yet to be."""
        packed = {name: model.get_submodule(name) for name in self._plan}
        total = sum({id(t): t.nbytes for t in (*model.parameters(), *model.buffers())}.values())
        dense = [sum(m.nbytes for m in module.parameters(recurse=False)) for module in packed.values()]
        total += sum(packed_bytes(module, self._plan[name]) for name, module in packed.items())
        advice = "A smaller format needs less."
        memory.check(device, total - sum(dense) + max(dense, default=0), "the packed weights", lambda free: advice)

    def _saved(self) -> dict[str, str]:
        return self.quantization_config.formats if self.pre_quantized else {}

    def _prepare_saved(self, model: Any) -> None:
        """Modules for packed weights, without memory."""
        formats = self._saved()
        if not isinstance(formats, Mapping) or any(fmt not in quant.FORMATS for fmt in formats.values()):
            raise ValueError(f"quantization_config.formats: expected known formats of tensors by name, got {formats!r}")
        known = dict(model.named_modules())
        for name in {name.rpartition(".")[0]: None for name in formats}:
            if (module := known.get(name)) is None:  # as MTP heads: transformers reports what it doesn't ignore
                continue
            if isinstance(module, nn.Linear | Conv1D | nn.Embedding):
                new: nn.Module = _empty(module, formats[f"{name}.weight"], name in self.quantization_config.ordered)
            else:
                new = _empty_experts(module, {part: formats.get(f"{name}.{part}") for part in names_of(module)})
            replace_module(model, name, new)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        """Whether it is a matrix that is to be packed."""
        module, leaf = param_name.rpartition(".")[::2]
        return module in self._plan and leaf in ("weight", "gate_up_proj", "up_proj", "down_proj")

    def get_quantize_ops(self) -> Any:
        """The operation that packs a tensor after it has been read."""
        return _Pack(self)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        for target, source in self._tied.items():
            model.get_submodule(target)._buffers["weight"] = model.get_submodule(source)._buffers["weight"]
        for module in model.modules():
            if isinstance(module, FoundryEmbedding) and module.embed_scale is not None:  # computed, never loaded
                stock: Any = module.__dict__["_dense"]
                module.embed_scale = torch.full_like(module.embed_scale, stock.scalar_embed_scale)
        self._plan, self._tied = {}, {}
        attach(model)
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[None, dict[str, Any]]:
        """Nothing but the updated settings: what is packed may have changed since they were made."""
        attach(model)
        return None, {}

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        dequantize_model(model)
        return model

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        """save_pretrained writes the packed weights."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters on packed layers can be trained."""
        return True


class _Pack:
    """Packs one matrix while a model is loaded, instead of writing it to its module."""

    def __init__(self, quantizer: FoundryQuantizer) -> None:
        self.quantizer = quantizer

    def convert(
        self, tensors: Mapping[str, Any], *, model: Any, full_layer_name: str, missing_keys: Any = None, **_: Any
    ) -> dict[str, torch.Tensor]:
        """`full_layer_name`: the parameter. Gives nothing back to be written."""
        value: Any = next(iter(tensors.values()))
        value = value[0] if isinstance(value, list) else value
        path, leaf = full_layer_name.rpartition(".")[::2]
        module = model.get_submodule(path)
        if leaf == "weight" and value.shape[-1] != module.weight.shape[-1]:
            return {full_layer_name: value}  # transformers says what is wrong with it
        module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
        if not any(p is not None and p.is_meta for name, p in module._parameters.items() if not name.endswith("bias")):
            new = packed_module(module, self.quantizer._plan[path])
            for name, buffer in list(new._buffers.items()):
                if buffer is None or name in new._non_persistent_buffers_set:
                    continue
                buffer._is_hf_initialized = True  # type: ignore[attr-defined]
                if missing_keys is not None:
                    missing_keys.discard(f"{path}.{name}")
            new._is_hf_initialized = True  # type: ignore[assignment]
            replace_module(model, path, new)
        if missing_keys is not None:
            missing_keys.discard(full_layer_name)
        return {}


def _empty(module: Any, fmt: str, ordered: bool) -> nn.Module:
    """The packed module for a dense one on the meta device, with a weight there."""
    rows, columns = matrix_of(module).shape
    weight = torch.empty(rows, quant.get_format(fmt).row_size(columns), dtype=torch.uint8, device="meta")
    new: nn.Module
    if isinstance(module, nn.Linear | Conv1D):
        order = torch.empty(columns, dtype=torch.int32, device="meta") if ordered else None
        new = FoundryLinear.from_linear(module, fmt, weight, order)
    else:
        new = FoundryEmbedding.from_embedding(module, fmt, weight)
    new._is_hf_initialized = True  # type: ignore[assignment]
    return new


def _empty_experts(module: Any, formats: Mapping[str, str | None]) -> nn.Module:
    tensors, names = [], []
    for part, matrix in zip(names_of(module), matrices_of(module), strict=True):
        experts, rows, columns = matrix.shape
        name = formats[part] or quant.DENSE_NAMES[matrix.dtype]
        known = quant.get_format(name)
        tensors.append(torch.empty(experts, rows, known.row_size(columns), dtype=known.dtype, device="meta"))
        names.append(name)
    new = FoundryExperts(module, tensors, names)
    new._is_hf_initialized = True  # type: ignore[assignment]
    return new


def attach(model: Any) -> None:
    """Tell `save_pretrained` what is packed in `model`, so that it writes that; or that nothing is any more."""
    if not hasattr(model, "config"):
        return
    formats = packed_tensors(model)
    quantizer = getattr(model, "hf_quantizer", None)
    if not formats:
        if isinstance(quantizer, FoundryQuantizer):
            quantizer.remove_quantization_config(model)
        return
    ordered = [
        name for name, m in model.named_modules() if isinstance(m, FoundryLinear) and m._buffers["order"] is not None
    ]
    state = model.state_dict()
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    pairs = [(name, of) for name, of in ties.items() if name in state and of in state]
    again = {name for name, of in pairs if state[name].data_ptr() == state[of].data_ptr()}  # saved once
    written = {name: fmt for name, fmt in formats.items() if name in state and name not in again}
    config = FoundryConfig(written, ordered)
    if not isinstance(quantizer, FoundryQuantizer):
        model.hf_quantizer = FoundryQuantizer(config, pre_quantized=True)
    model.hf_quantizer.quantization_config = config
    model.config.quantization_config = config
    model.quantization_method = METHODS[0]
    model.is_quantized = False  # transformers would refuse .half() and .float(), which change the other weights


for method in METHODS:
    if method not in AUTO_QUANTIZER_MAPPING:
        register_quantization_config(method)(FoundryConfig)
        register_quantizer(method)(FoundryQuantizer)
