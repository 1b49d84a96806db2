"""What a file of a session says of itself, and what is expected of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from torch_foundry.io import LoadError
from torch_foundry.io.container import Container

FORMAT = "torch_foundry.io.session/1"


def heads_of(config: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Heads and their sizes, of keys and of values, that a layer may have."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    key, value = (getattr(config, name, None) or size for name in ("qk_head_dim", "v_head_dim"))
    found = [((heads, key), (heads, value))]
    if (wide := getattr(config, "global_head_dim", None)) is not None:  # of the layers without a window
        few = getattr(config, "num_global_key_value_heads", None) or heads
        found.append(((few, wide), (few, wide)))
    return found


def _is_message(message: Any) -> bool:
    """As `apply_chat_template` takes them: a role, and text or a list of parts."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return isinstance(content, str | list | None) and all(isinstance(part, dict) for part in parts)


def about(path: Path, metadata: Any) -> dict[str, Any]:
    """The description in the metadata of a file; LoadError if it is none."""
    if metadata.get("format") != FORMAT:
        found = repr(metadata.get("format"))
        raise LoadError("SESSION", path, "__metadata__", expected=f"format {FORMAT!r}", found=found)
    try:
        said: dict[str, Any] = json.loads(metadata["session"])
        lists = [said["messages"], said["seen"]]
        good = all(isinstance(each, list) for each in lists)
        good = good and all(isinstance(seen, int) and seen >= 0 for seen in said["seen"]) and "model" in said
        good = good and all(map(_is_message, said["messages"]))
        formats, snapshots = said.get("kv_cache", [None, None]), said.get("snapshots", [])
        good = good and isinstance(formats, list) and len(formats) == 2 and isinstance(snapshots, list)
        good = good and isinstance(said.get("windows", {}), dict) and isinstance(said.get("shown", ""), str)
        good = good and isinstance(said.get("snapshot_format"), str | None)
        good = good and all(type(tokens) is int for tokens in snapshots)
    except (KeyError, TypeError, ValueError, RecursionError):
        good = False
    if not good:
        raise LoadError("SESSION", path, "__metadata__", expected="a session's description", found="something else")
    return said


def texts(file: Container, name: str, seen: list[int]) -> list[int]:
    """The tensor `name`, a number for each token. LoadError if it is none, or of others than were `seen`."""
    info, length = file.tensors.get(name), max(seen, default=0)
    if info is None:
        raise LoadError("SESSION", file.path, name, expected="a tensor", found="none")
    if info.shape != (length,) or (length and info.format != "i64"):  # an empty one may be of floats
        found = f"{info.format} {list(info.shape)}"
        raise LoadError("SESSION", file.path, name, expected=f"i64 [{length}], as in the cache", found=found)
    numbers: list[int] = file.read(name).tolist()
    return numbers


def fingerprint(model: Any) -> str:
    """SHA-256 of the shapes of a model, of its config's numbers and of a sample of each weight.

    Keys and values are worth something for the same weights only. Reads 64 elements of each from the device.
    """
    config = model.config.get_text_config().to_dict()
    numbers = {name: value for name, value in config.items() if isinstance(value, (int, float, list, dict))}
    digest = hashlib.sha256(json.dumps(numbers, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // 64)][:64].cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
