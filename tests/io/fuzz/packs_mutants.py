"""Small folders of packed weights as one text of bytes, and what is done to their settings and tensors."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from tests.io.corpus import packed_compressed as compressed
from tests.io.corpus import packed_modelopt as modelopt
from tests.io.corpus.packed_bytes import (
    LAYER,
    STATE,
    Folder,
    affine,
    awq,
    bitsandbytes,
    f16,
    f32,
    filled,
    floats,
    fp8,
    fp8_rows,
    gptq,
    own,
    safetensors,
    text,
)  # fmt: skip

from .integers import EDGES

BASE = LAYER + "self_attn.k_proj"  # 64 outputs, 128 inputs
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 4, 8, 16, 32, 64, 128, 4.0, "4", "nf4", "mxfp4", "gemm", "", [], [4], {},
    {"bits": 8}, [64, 64], [32, 32], float("nan"), float("inf"), -64, *EDGES[-8:],
)  # fmt: skip
KEYS = (
    "bits", "group_size", "mode", "quant_method", "desc_act", "checkpoint_format", "version", "dynamic", "load_in_4bit",
    "load_in_8bit", "bnb_4bit_quant_type", "formats", "w_bit", "q_group_size", BASE, "lm_head",
    "weight_block_size", "activation_scheme", "format", "config_groups",
)  # fmt: skip
LEAVES = (
    "weight", "scales", "biases", "qweight", "qzeros", "g_idx", "order", "weight.absmax", "weight.quant_map", "evil",
    "weight.nested_absmax", "weight.nested_quant_map", "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4", "weight_scale_inv", "weight_scale",
    "weight_packed", "weight_shape", "weight_zero_point", "weight_global_scale",
)  # fmt: skip
DTYPES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1}
SOUND: tuple[Callable[[], Folder], ...] = (
    affine, lambda: affine(3, 32), lambda: affine(8, 64), lambda: floats("mxfp4"), lambda: floats("mxfp8"),
    lambda: floats("nvfp4"), gptq, lambda: gptq(8, 64), lambda: gptq(3, 64), lambda: gptq(2, 128), awq, bitsandbytes,
    lambda: bitsandbytes(False), own, lambda: own("affine4_g64_f16", 64, 36, f16(0.01, -0.1)),
    lambda: own("int4_g64", 64, 36, f16(0.01, 0)), lambda: own("nf4", 64, 36, f32(0.01)),
    fp8, lambda: fp8(32), fp8_rows,
    compressed.words, lambda: compressed.words(3), lambda: compressed.words(8, zeros=True),
    compressed.bytes_, lambda: compressed.bytes_(zeros=True), lambda: compressed.floats("nvfp4"),
    lambda: compressed.floats("mxfp4"), modelopt.nvfp4, modelopt.squares,
)  # fmt: skip
Change = Callable[[random.Random, Folder], None]
STRATEGIES: dict[str, Change] = {}
_made: dict[int, Folder] = {}


class Mutant(Folder):
    """Its settings and its tensors are one text of bytes."""

    def bytes(self) -> bytes:
        settings = json.dumps(self.config).encode()
        return struct.pack("<I", len(settings)) + settings + safetensors(self.tensors)


def sound(rng: random.Random) -> Mutant:
    """One matrix of each kind, beside a norm."""
    which = rng.randrange(len(SOUND))
    if which not in _made:
        whole = SOUND[which]()
        kept = {name: t for name, t in whole.tensors.items() if name.startswith((f"{BASE}.", "model.norm"))}
        if "formats" in whole.quantization:
            whole.quantization["formats"] = {f"{BASE}.weight": whole.quantization["formats"][f"{BASE}.weight"]}
        _made[which] = Folder({"quantization_config": whole.quantization}, kept)
    made = _made[which]
    return Mutant(json.loads(json.dumps(made.config)), dict(made.tensors))


def change(function: Change) -> Change:
    STRATEGIES["pack: " + function.__name__.strip("_").replace("_", " ")] = function
    return function


def _odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(ODD))


def _any(rng: random.Random, folder: Folder) -> str:
    return rng.choice(list(folder.tensors) or [""])


def _settings(folder: Folder) -> dict[str, Any]:
    found = folder.config.get("quantization_config")
    return found if isinstance(found, dict) else {}


@change
def _setting(rng: random.Random, folder: Folder) -> None:
    settings = _settings(folder)
    if settings:
        settings[rng.choice(list(settings))] = _odd(rng)


@change
def _setting_of_another_kind(rng: random.Random, folder: Folder) -> None:
    _settings(folder)[rng.choice(KEYS)] = _odd(rng)


@change
def _setting_away(rng: random.Random, folder: Folder) -> None:
    settings = _settings(folder)
    settings.pop(rng.choice(list(settings) or [""]), None)


@change
def _method(rng: random.Random, folder: Folder) -> None:
    _settings(folder)["quant_method"] = rng.choice(("mlx", "awq", "gptq", "bitsandbytes", "foundry", "hqq", None, 4))


@change
def _settings_of_another(rng: random.Random, folder: Folder) -> None:
    folder.config["quantization_config"] = sound(rng).quantization


@change
def _settings_twice(rng: random.Random, folder: Folder) -> None:
    folder.config["quantization"] = rng.choice((sound(rng).quantization, folder.config.get("quantization_config")))


@change
def _settings_odd(rng: random.Random, folder: Folder) -> None:
    folder.config["quantization_config"] = _odd(rng)


@change
def _own_settings(rng: random.Random, folder: Folder) -> None:
    name = rng.choice((BASE, "other", "model.norm"))
    _settings(folder)[name] = rng.choice(({"bits": _odd(rng), "group_size": rng.choice((32, 64, 128))}, True, False))


@change
def _format(rng: random.Random, folder: Folder) -> None:
    formats = _settings(folder).get("formats")
    if isinstance(formats, dict):
        name = rng.choice((f"{BASE}.weight", "model.norm.weight", "other"))
        formats[name] = rng.choice(("q8_0", "q4_0", "q4_1", "f16", "mxfp8", "q6_k", "affine8_g32_f32", "Q4_0", 4, None))


@change
def _away(rng: random.Random, folder: Folder) -> None:
    folder.tensors.pop(_any(rng, folder), None)


@change
def _another_name(rng: random.Random, folder: Folder) -> None:
    name = _any(rng, folder)
    if name:
        folder.tensors[f"{BASE}.{rng.choice(LEAVES)}"] = folder.tensors.pop(name)


@change
def _twice(rng: random.Random, folder: Folder) -> None:
    name = _any(rng, folder)
    if name:
        folder.tensors[rng.choice((BASE, "other", "model.norm")) + "." + rng.choice(LEAVES)] = folder.tensors[name]


@change
def _of_another(rng: random.Random, folder: Folder) -> None:
    other = sound(rng)
    name = _any(rng, other)
    folder.tensors[name] = other.tensors[name]


@change
def _swap(rng: random.Random, folder: Folder) -> None:
    one, two = _any(rng, folder), _any(rng, folder)
    if one:
        folder.tensors[one], folder.tensors[two] = folder.tensors[two], folder.tensors[one]


@change
def _type(rng: random.Random, folder: Folder) -> None:
    """The same bytes, of another type."""
    name = _any(rng, folder)
    if name:
        dtype, shape, data = folder.tensors[name]
        other = rng.choice(list(DTYPES))
        if shape and shape[-1] * DTYPES[dtype] % DTYPES[other] == 0:
            folder.tensors[name] = other, [*shape[:-1], shape[-1] * DTYPES[dtype] // DTYPES[other]], data


@change
def _shape(rng: random.Random, folder: Folder) -> None:
    """The same bytes, in other rows."""
    name = _any(rng, folder)
    if name:
        dtype, shape, data = folder.tensors[name]
        count, first = len(data) // DTYPES[dtype], rng.choice((1, 2, 16, 32, 63, 64, 128))
        if count % first == 0:
            forms = ([count], [first, count // first], [count // first, first], [1, first, count // first], shape[::-1])
            folder.tensors[name] = dtype, rng.choice(forms), data


@change
def _size(rng: random.Random, folder: Folder) -> None:
    name = _any(rng, folder)
    if name:
        dtype, shape, _ = folder.tensors[name]
        if shape:
            at = rng.randrange(len(shape))
            size = max(0, rng.choice((shape[at] - 1, shape[at] + 1, shape[at] * 2, shape[at] // 2, 0, 1)))
            folder.tensors[name] = filled(dtype, [*shape[:at], size, *shape[at + 1 :]])


@change
def _dimension(rng: random.Random, folder: Folder) -> None:
    name = _any(rng, folder)
    if name:
        dtype, shape, data = folder.tensors[name]
        folder.tensors[name] = dtype, rng.choice(([1, *shape], [*shape, 1])), data


@change
def _element(rng: random.Random, folder: Folder) -> None:
    """Another value in one place, of the kind that floats and indices are wrong by."""
    name = _any(rng, folder)
    if name and folder.tensors[name][2]:
        data, width = folder.tensors[name][2], DTYPES[folder.tensors[name][0]]
        at = rng.randrange(len(data) // width) * width
        value = rng.choice(
            (b"\xff" * 8, bytes(8), b"\x00\x00\x80\x7f" * 2, b"\x00\x7c" * 4, b"\x7f" * 8, rng.randbytes(8))
        )
        folder.first(name, value[:width], at)


@change
def _bytes(rng: random.Random, folder: Folder) -> None:
    name = _any(rng, folder)
    if name:
        dtype, shape, data = folder.tensors[name]
        folder.tensors[name] = dtype, shape, rng.randbytes(len(data))


@change
def _order(rng: random.Random, folder: Folder) -> None:
    """Columns in an order, good or not."""
    values = rng.sample(range(128), 128)
    if rng.random() < 0.5:
        values[rng.randrange(128)] = rng.choice((-1, 0, 127, 128, 1 << 30))
    group = rng.choice((1, 32, 64, 128))
    data = struct.pack("<128i", *(value // group for value in values))
    folder.tensors[f"{BASE}.{rng.choice(('g_idx', 'order'))}"] = "I32", [128], data


@change
def _state(rng: random.Random, folder: Folder) -> None:
    name = BASE + STATE
    if name in folder.tensors:
        try:
            state = json.loads(folder.tensors[name][2])
        except (ValueError, RecursionError):
            return
        if isinstance(state, dict):
            key = rng.choice((*state, "nested_offset", "nested_blocksize", "shape"))
            shapes = (
                [64, 128],
                [128, 64],
                [8192, 1],
                [1, 8192],
                [64.0, 128],
                [0, 8192],
                [-64, -128],
                [1 << 40, 1 << 40],
            )
            state[key] = rng.choice((_odd(rng), *shapes, 0.5, 256))
            folder.tensors[name] = text(json.dumps(state))


@change
def _state_text(rng: random.Random, folder: Folder) -> None:
    name = BASE + STATE
    if name in folder.tensors:
        data = bytearray(folder.tensors[name][2])
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randrange(3)] = rng.choice(
                (b"{", b"}", b"[", b'"', b",", b"0", b"\xff", b"[" * 900, b"NaN")
            )
        folder.tensors[name] = text(bytes(data))
