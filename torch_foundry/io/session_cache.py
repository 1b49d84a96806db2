"""A session's cache in a file: keys and values, recurrent states, and the snapshots that it can be taken back to.

Layer i has `i.keys` and `i.values` [1, heads, tokens, D], as they lie in memory, or its newest state: `i.conv` and so
on [1, ...]. A snapshot behind the first n tokens has the same as `n.i.keys` ..., of layers that can not be cropped;
states may be packed there, as uint8 [1, n] (`kvcache/packed_states.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from torch_foundry.core import memory
from torch_foundry.core.errors import Fallback
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import Container
from torch_foundry.io.session_file import heads_of
from torch_foundry.io.storage import TYPES
from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.base import CacheLayer, KVSpec, RecurrentSpec, StateSpec
from torch_foundry.kvcache.buffered import Buffered
from torch_foundry.kvcache.formats import PLAIN, Formats, decoded, row_width
from torch_foundry.kvcache.hf_cache import kv_layer
from torch_foundry.kvcache.layer import FoundryLayer, FoundrySlidingLayer
from torch_foundry.kvcache.recurrent import RecurrentLayer
from torch_foundry.kvcache.room import round_up
from torch_foundry.kvcache.snapshots import parts_of
from torch_foundry.kvcache.stock import DummyLayer
from torch_foundry.models.decoder import DecoderModel, decoder_plan

_NAMES = {storage.dtype: name for name, storage in reversed(TYPES.items()) if storage.block == 1}
KV = ("keys", "values")
T = TypeVar("T")
Wanted = dict[str, tuple[tuple[int, ...], torch.dtype]]  # of a layer, by the end of its tensors' names


def described(cache: Any) -> dict[str, Any]:
    """What the metadata of the file says of `cache`."""
    formats = {part.kv_cache for _, part in parts_of(cache) if isinstance(part, Buffered)}
    seen = [cache.get_seq_length()] * len(cache.layers)
    places = {
        str(i): layer.window_place() for i, layer in enumerate(cache.layers) if isinstance(layer, FoundrySlidingLayer)
    }
    known = {"kv_cache": formats.pop() if formats else PLAIN, "snapshots": [*cache.snapshots.stored]}
    return {"seen": seen, "windows": places, "snapshot_format": cache.snapshots.format, **known}


def tensors_of(cache: Any) -> dict[str, Tensor]:
    """All that is stored in `cache`, by name. TypeError: recurrent states that are transformers' own."""
    found: dict[str, Tensor] = {}
    if not cache.get_seq_length():
        return found
    for i, layer in parts_of(cache):
        if isinstance(layer, Buffered | RecurrentLayer):
            found |= {f"{i}.{name}": tensor for name, tensor in layer.stored_tensors().items()}
        elif isinstance(layer, LinearAttentionLayer):
            raise TypeError("save: expected a patched model, as transformers' own recurrent states are not written")
        elif not isinstance(layer, DummyLayer):
            found |= {f"{i}.keys": layer.keys, f"{i}.values": layer.values}
    for at, stored in cache.snapshots.stored.items():
        found |= {f"{at}.{i}.{name}": tensor for i, layer in stored.items() for name, tensor in layer.items()}
    return found


def restore(file: Container, said: dict[str, Any], cache: Any, model: Any) -> None:
    """Fill `cache`, an empty one for `model`, from a file whose metadata are `said`. LoadError unless all that it has
    fits the model, which is seen before anything of it is read."""
    layers, seen = cache.layers, said["seen"]
    if len(seen) != len(layers) or len(set(seen)) > 1:
        expected = f"the same number for each of {len(layers)} layers"
        raise LoadError("SESSION", file.path, "seen", expected=expected, found=str(seen)[:60])
    length, plan = max(seen, default=0), _plan(model)
    formats: Formats = PLAIN if plan is None else plan.state.kv_cache
    if length and tuple(said.get("kv_cache", PLAIN)) != formats:
        found = str(said["kv_cache"])[:60]
        raise LoadError("SESSION", file.path, "kv_cache", expected=f"{list(formats)}, as the model", found=found)
    at, format = said.get("snapshots", []), cache.snapshots.format
    if at and said.get("snapshot_format") != format:
        expected, found = f"{format!r}, as the session", repr(said.get("snapshot_format"))[:60]
        raise LoadError("SESSION", file.path, "snapshot_format", expected=expected, found=found)
    if any(b <= a for a, b in zip([0, *at], [*at, length + 1], strict=True)) or len(at) > len(file.tensors):
        expected = f"rising numbers of tokens, up to {length}, with tensors for each"
        raise LoadError("SESSION", file.path, "snapshots", expected=expected, found=str(at)[:60])
    if plan is None and (at or any(cache.is_linear)):
        expected = "a patched model, as it was saved with"
        raise LoadError("SESSION", file.path, "model", expected=expected, found="one that isn't")
    wanted = dict(_wanted(file, cache, model, plan, length)) if length else {}
    cut = {i for i in wanted if not at or isinstance(layers[i], FoundryLayer)}  # which cropping takes back
    own = {i: _uncropped(layers[i], spec) for i, spec in wanted.items() if i not in cut}
    whole = {f"{i}.{name}": each for i, spec in wanted.items() for name, each in spec.items()}
    for tokens in at:
        for i, spec in own.items():
            window = min(tokens, getattr(layers[i], "sliding_window", 1) - 1)
            fits = {name: _kept_as(name, *each, window, format) for name, each in spec.items()}
            whole |= {f"{tokens}.{i}.{name}": each for name, each in fits.items()}
    _check(file, whole)
    windows = {i: layers[i] for i in wanted if isinstance(layers[i], FoundrySlidingLayer)}
    places = {i: _checked(file, i, layer, said, wanted[i]["keys"][0][2]) for i, layer in windows.items()}
    memory.check(model.device, sum(file.tensors[name].nbytes for name in whole), "a restored session")
    read = {name: _read(file, name, formats, format).to(model.device) for name in whole}
    for i, spec in wanted.items():
        of_layer = {name: read[f"{i}.{name}"] for name in spec}
        for part, of_part in _split(layers[i], of_layer):
            _fill(part, of_part, length, plan, places.get(i))
    for tokens in at[-cache.snapshots.most :]:
        stored = {i: {name: read[f"{tokens}.{i}.{name}"] for name in spec} for i, spec in own.items()}
        cache.snapshots.stored[tokens] = stored


def _split(layer: Any, named: dict[str, T]) -> Iterator[tuple[Any, dict[str, T]]]:
    """What is of each part of `layer`: keys and values, or states."""
    parts = layer.parts if isinstance(layer, CacheLayer) else (layer,)
    for part in parts:
        yield part, {n: x for n, x in named.items() if len(parts) == 1 or isinstance(part, Buffered) == (n in KV)}


def _uncropped(layer: Any, named: dict[str, T]) -> dict[str, T]:
    """What snapshots have of it."""
    return next(of_part for part, of_part in _split(layer, named) if not isinstance(part, FoundryLayer))


def _checked(file: Container, i: int, layer: Any, said: dict[str, Any], stored: int) -> tuple[int, int]:
    """Where `stored` tokens of a window are to lie, as `window_place` has it. LoadError: there is no such place."""
    found, most = said.get("windows", {}).get(str(i)), 2 * round_up(2 * max(stored, layer.sliding_window))
    if type(found) is list and [type(each) for each in found] == [int, int]:
        first, capacity = found
        if 0 <= first <= capacity - stored <= most - stored:
            return first, capacity
    expected = f"room for {stored} to {most} tokens, and where {stored} begin"
    raise LoadError("SESSION", file.path, f"windows.{i}", expected=expected, found=str(found)[:60])


def _plan(model: Any) -> DecoderModel | None:
    """Of a patched model whose layers are all known."""
    try:
        plan = decoder_plan(model)
        with torch.no_grad():
            plan.check()
    except (AttributeError, Fallback):
        return None
    return plan


def _wanted(
    file: Container, cache: Any, model: Any, plan: DecoderModel | None, length: int
) -> Iterator[tuple[int, Wanted]]:
    """What each layer has behind `length` tokens, by its number; `cache` gets layers of ours where the model has."""
    if plan is not None:
        for i, mixer in plan.owners.items():
            layer, spec = kv_layer(cache, i, plan.state.kv_cache), mixer.state
            yield i, _of_spec(spec, plan, _stored(file, i, layer, length))
        return
    known = heads_of(model.config.get_text_config())
    for i, layer in enumerate(cache.layers):
        if isinstance(layer, DummyLayer):
            continue
        stored, name = _stored(file, i, layer, length), f"{i}.keys"
        has = file.tensors[name].shape if name in file.tensors else ()
        pair = next((pair for pair in known if has == (1, pair[0][0], stored, pair[0][1])), known[0])
        shapes = ((1, heads, stored, size) for heads, size in pair)
        yield i, {name: (shape, model.dtype) for name, shape in zip(("keys", "values"), shapes, strict=True)}


def _of_spec(spec: StateSpec, plan: DecoderModel, tokens: int) -> Wanted:
    if isinstance(spec, tuple):
        return {name: each for part in spec for name, each in _of_spec(part, plan, tokens).items()}
    if isinstance(spec, RecurrentSpec):
        return {name: ((1, *shape), kind) for name, shape, kind in spec.of(plan.dtype)}
    assert isinstance(spec, KVSpec)
    rows = [row_width(size, name, plan.dtype) for size, name in zip(spec.head_dims, plan.state.kv_cache, strict=True)]
    names = zip(KV, rows, strict=True)
    return {name: ((1, spec.heads, tokens, width), kind) for name, (width, kind) in names}


def _stored(file: Container, index: int, layer: Any, length: int) -> int:
    """Tokens that the file may have of a layer: all, or of a sliding window at least those that the next one sees."""
    if not getattr(layer, "is_sliding", False):
        return length
    name = f"{index}.keys"
    shape = file.tensors[name].shape if name in file.tensors else ()
    least = min(length, layer.sliding_window - 1)
    return min(max(shape[2], least), length) if len(shape) == 4 else least


def _kept_as(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, window: int, format: str | None
) -> tuple[tuple[int, ...], torch.dtype]:
    """What a snapshot has of a tensor of a layer: of keys and values a window, of states their `format`."""
    if name in KV:
        return (*shape[:2], window, shape[3]), dtype
    of_one, kind = packed_states.kept_as(shape[1:], dtype, format)
    return (shape[0], *of_one), kind


def _check(file: Container, wanted: Wanted) -> None:
    """LoadError unless the file has these tensors and, beside text and mask, no others."""
    for name, (shape, dtype) in wanted.items():
        if (info := file.tensors.get(name)) is None:
            raise LoadError("SESSION", file.path, name, expected="a tensor", found="none")
        if (info.shape, info.format) != (shape, _NAMES[dtype]):
            found = f"{info.format} {list(info.shape)}"
            raise LoadError("SESSION", file.path, name, expected=f"{_NAMES[dtype]} {list(shape)}", found=found)
    for name in file.tensors:
        if name not in wanted and name not in ("tokens", "mask"):
            raise LoadError("SESSION", file.path, name, expected="what the model keeps of a text", found="a tensor")


def _read(file: Container, name: str, formats: Formats, snapshot_format: str | None) -> Tensor:
    """A tensor, which is finite: of floats the file says so, of rows of codes what they stand for."""
    data, last = file.read(name), name.rpartition(".")[2]
    if data.dtype == torch.uint8:
        if last in KV:
            stands_for = decoded(data, formats[last == "values"], torch.float32)
        else:
            assert snapshot_format is not None
            stands_for = packed_states.rows_of(data, snapshot_format)
        if not bool(stands_for.isfinite().all()):
            raise LoadError("NONFINITE", file.path, name, expected="finite values", found="NaN or infinity")
    return data


def _fill(
    layer: Any, stored: dict[str, Tensor], length: int, plan: DecoderModel | None, place: tuple[int, int] | None
) -> None:
    """place: of a window in its memory."""
    if isinstance(layer, RecurrentLayer):
        return layer.restore(stored)
    like = stored["keys"] if plan is None else torch.empty(0, dtype=plan.dtype, device=plan.device)
    layer.lazy_initialization(like, like)
    if plan is not None:
        return layer.restore(stored, length, place)
    layer.keys, layer.values = stored["keys"], stored["values"]
    if layer.is_sliding:
        layer.cumulative_length = length
