"""config.json and similar files, which may say anything: read, and compared with what any model can have."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.files import File
from torch_foundry.io.gguf.keys import COMMON, EPSILON, EXPERTS

LONGEST = 1 << 19  # bytes of a config that are read: as Python's objects they are twenty times as many
_MOST_OBJECTS = 10_000  # a layer's own settings are one
# What makes transformers run other code than its own, or fetch it.
_CODE = {"auto_map", "custom_pipelines"}
_IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal|_autoset)?$")
_LAYERS = "num_hidden_layers"
_DEPTHS = (_LAYERS, "depth", "num_layers", "n_layers", "encoder_layers", "conf_num_hidden_layers")  # of towers
_FLOAT = "__float__"  # transformers writes infinity as {"__float__": "Infinity"}
_NUMBERS = re.compile(r"\.([0-9]{1,5})\.")
_COUNTS = {key.field: int(key.high) for key in (*COMMON, *EXPERTS) if key.kind is int and key.field} | {
    "num_key_value_heads": 1 << 14, "head_dim": 1 << 14, "vocab_size": 1 << 31, "moe_intermediate_size": 1 << 24,
    "num_local_experts": 1 << 12,
}  # fmt: skip
_NONE_TOO = {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "intermediate_size"}
_FLOATS = {"rms_norm_eps": (EPSILON, 0.1), "layer_norm_eps": (EPSILON, 0.1), "norm_eps": (EPSILON, 0.1)}
_ROPE = {
    "rope_theta": (1.0, 1e18), "factor": (EPSILON, 1e6), "attention_factor": (EPSILON, 1e6),
    "beta_fast": (EPSILON, 1e6), "beta_slow": (EPSILON, 1e6), "low_freq_factor": (EPSILON, 1e6),
    "high_freq_factor": (EPSILON, 1e6), "original_max_position_embeddings": (1, 1 << 27),
    "partial_rotary_factor": (EPSILON, 1.0), "long_factor": (EPSILON, 1e6), "short_factor": (EPSILON, 1e6),
}  # fmt: skip


def parse(text: bytes) -> Any:
    """What JSON says. ValueError or RecursionError if it is none, or names something twice."""

    if text.count(b"{") > _MOST_OBJECTS:
        raise ValueError(f"more than {_MOST_OBJECTS} objects")

    def constant(name: str) -> float:
        if name == "NaN":
            raise ValueError("NaN")
        return float(name)

    def once(pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name twice in an object")
        if found.keys() == {_FLOAT} and found[_FLOAT] in ("Infinity", "-Infinity", "NaN"):
            return constant(found[_FLOAT])
        return found

    return json.loads(text.decode(), object_pairs_hook=once, parse_constant=constant)


def read_config(file: Path) -> dict[str, Any]:
    """A JSON object. LoadError CONFIG if it is none."""
    opened = File(file)
    try:
        if opened.size > LONGEST:
            raise LoadError("CONFIG", file, file.name, expected=f"at most {LONGEST} bytes", found=str(opened.size))
        found = parse(bytes(opened.read(opened.size, 0, file.name)))
        opened.check()
    except (ValueError, RecursionError) as error:
        raise LoadError("CONFIG", file, file.name, expected="JSON", found=str(error)[:120]) from None
    finally:
        opened.close()
    if not isinstance(found, dict):
        raise LoadError("CONFIG", file, file.name, expected="an object", found=type(found).__name__)
    return found


def read_model_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model, with what ModelOpt's `hf_quant_config.json` says where that says nothing.

    LoadError: CONFIG, QUANT_CONFIG.
    """
    settings, beside = read_config(folder / "config.json"), folder / "hf_quant_config.json"
    if settings.get("quantization_config") is not None or not os.path.lexists(beside):
        return settings
    said = read_config(beside).get("quantization")
    if not isinstance(said, dict):
        raise LoadError("QUANT_CONFIG", beside, "quantization", expected="an object", found=type(said).__name__)
    if said.get("quant_algo") is None:
        return settings
    return {**settings, "quantization_config": {"quant_method": "modelopt", **said}}


def without_code(settings: Any) -> Any:
    """Settings without those that name code: classes of the folder, kernels of a hub."""
    if isinstance(settings, list):
        return [without_code(each) for each in settings]
    if not isinstance(settings, dict):
        return settings
    return {k: without_code(v) for k, v in settings.items() if k not in _CODE and not _IMPLEMENTATION.match(str(k))}


def make_config(settings: dict[str, Any], kind: str, file: Path) -> Any:
    """transformers' config of a model of `kind`; code that it names is left out. LoadError: CONFIG, or HP_RANGE."""
    import transformers

    for part in (settings, *(value for value in settings.values() if isinstance(value, dict))):
        for name in _DEPTHS:  # before transformers counts to it
            count = part.get(name)
            if type(count) is int and count > _COUNTS[_LAYERS]:
                expected = f"at most {_COUNTS[_LAYERS]}"
                raise LoadError("HP_RANGE", file, name, expected=expected, found=reprlib.repr(count))
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(without_code(settings))
        text = config.get_text_config()
        # what differs from layer to layer, such as Gemma 4's heads, can't be had from the whole
        layers = list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else [text]
    except Exception as error:  # whatever its checks raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise LoadError("CONFIG", file, file.name, expected="what transformers takes", found=line[:200]) from error
    for each in layers:
        check_sizes(each, file)
    return config


def check_sizes(config: Any, file: Path) -> None:
    """Refuse what no model can have. config: of transformers. LoadError HP_RANGE, which names the field."""

    def fail(name: str, expected: str, value: object) -> NoReturn:
        raise LoadError("HP_RANGE", file, name, expected=expected, found=reprlib.repr(value))

    def within(name: str, value: Any, low: float, high: float) -> None:
        if type(value) not in (int, float) or not low <= value <= high:
            fail(name, f"a number from {low:g} to {high:g}", value)

    for name, most in _COUNTS.items():
        value = getattr(config, name, None)
        least = 0 if name in _NONE_TOO else 1
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            if type(each) is not int or not least <= each <= most:
                fail(name, f"a whole number from {least} to {most}", each)
    for name, bounds in _FLOATS.items():
        if (value := getattr(config, name, None)) is not None:
            within(name, value, *bounds)
    rope = getattr(config, "rope_parameters", None) or {}
    for settings in (rope, *(each for each in rope.values() if isinstance(each, dict))):
        for name, bounds in _ROPE.items():
            value = settings.get(name)
            for each in value if isinstance(value, list) else [] if value is None else [value]:
                within(f"rope_parameters.{name}", each, *bounds)


def check_layers(config: Any, names: Iterable[str], file: Path) -> None:
    """Refuse a config of more layers than names of tensors have numbers, before the layers are built."""
    _fewer(getattr(config, _LAYERS, None), names, file)


def check_towers(settings: dict[str, Any], names: Iterable[str], file: Path) -> None:
    """The same of what is beside the decoder. settings: of config.json."""
    for key, tower in settings.items():
        for name in _DEPTHS if isinstance(tower, dict) and key != "text_config" else ():
            _fewer(tower.get(name), names, file)


def _fewer(count: Any, names: Iterable[str], file: Path) -> None:
    numbers = {number for name in names for number in _NUMBERS.findall(name)}
    if type(count) is int and count > len(numbers):
        raise LoadError("TENSOR_MISSING", file, f"layer {len(numbers)}", expected=f"{count} layers", found="fewer")
