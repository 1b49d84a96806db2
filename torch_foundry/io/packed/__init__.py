"""Models in safetensors that other packages quantised: which method it is, and what its tensors become."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from torch_foundry.core.load_errors import LoadError
from torch_foundry.hf import registration
from torch_foundry.io.container import Container
from torch_foundry.io.packed import bitsandbytes, compressed_tensors, foundry, fp8, gptq_awq, mlx, modelopt, mxfp4
from torch_foundry.io.packed.blocks import Parts, Settings
from torch_foundry.io.parameters import ParameterNames
from torch_foundry.io.weights import Weight, WeightReader

Reader = Callable[[Parts, Settings], dict[str, Weight]]
METHODS: dict[str, Reader] = {
    "mlx": mlx.weights,
    "awq": gptq_awq.awq,
    "gptq": gptq_awq.gptq,
    "bitsandbytes": bitsandbytes.weights,
    "mxfp4": mxfp4.weights,
    "fp8": fp8.weights,
    "fbgemm_fp8": fp8.weights,
    "compressed-tensors": compressed_tensors.weights,
    "modelopt": modelopt.weights,
    **dict.fromkeys(registration.METHODS, foundry.weights),
}


_PLACES = ("quantization_config", "quantization")  # in config.json; mlx writes both


def without_quantization(settings: dict[str, Any]) -> dict[str, Any]:
    """A config.json without what it says about quantisation."""
    return {name: value for name, value in settings.items() if name not in _PLACES}


def by_mlx(settings: dict[str, Any], container: Container) -> bool:
    """Whether mlx saved the folder, whose names and layouts are its own."""
    values: Any = next((settings[place] for place in _PLACES if settings.get(place) is not None), {})
    if container.metadata.get("format") == "mlx" and not values:
        return True
    return isinstance(values, dict) and values.get("quant_method", "mlx" if "group_size" in values else None) == "mlx"


def read_weights(source: WeightReader, config: dict[str, Any], file: str, names: ParameterNames) -> dict[str, Weight]:
    """All weights by their tensors' names. config: of a config.json, with what it says about quantisation.

    file: the config.json, which errors name. mlx writes no `quant_method`, and its settings twice. Nothing of the
    weights is read yet, but small tensors that say how others are laid out.

    LoadError: QUANT_METHOD, QUANT_CONFIG, PACK_*, TENSOR_TYPE.
    """
    given, of_mlx = (config.get(place) for place in _PLACES)
    where = _PLACES[given is None]
    if given is not None and of_mlx is not None and given != of_mlx:
        raise LoadError("QUANT_CONFIG", file, where, expected="the same as in quantization", found="something else")
    values = of_mlx if given is None else given
    parts = Parts(source, names)
    if by_mlx(config, source.container):
        return mlx.weights(parts, Settings(file, values or {}, where))
    if values is None:
        return {name: parts.dense(name) for name in source.container.tensors}
    if not isinstance(values, dict):
        raise LoadError("QUANT_CONFIG", file, where, expected="an object", found=type(values).__name__)
    method = values.get("quant_method")
    reader = METHODS.get(method) if isinstance(method, str) else None
    if reader is None:
        found = "none" if method is None else reprlib.repr(method)
        raise LoadError("QUANT_METHOD", file, f"{where}.quant_method", expected=", ".join(METHODS), found=found)
    return reader(parts, Settings(file, values, where))
