"""GGUF files of architectures that differ little from others: what makes them another model is refused."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import torch_foundry
from tests.io.gguf_models import CASES, contents, make, write_file
from torch_foundry import LoadError

stock = functools.cache(make)


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("qwen2vl", "rope.dimension_sections", None, "HP_MISSING"),
        ("qwen3vl", "rope.dimension_sections", [6, 5, 4, 0], "HP_RANGE"),
        ("qwen3vlmoe", "rope.dimension_sections", [4, 4, 4, 4], "HP_RANGE"),  # whose fourth is 0 in a text
    ],
)
def test_settings_of_others_are_refused(name: str, key: str, value: Any, code: str, tmp_path: Path) -> None:
    keys, tensors = contents(name, stock(name), lambda _: "f32")
    full = f"{CASES[name].arch}.{key}"
    keys[full] = value
    write_file(tmp_path / "a.gguf", CASES[name].arch, {k: v for k, v in keys.items() if v is not None}, tensors)
    with pytest.raises(LoadError) as caught:
        torch_foundry.load(tmp_path / "a.gguf", device="cpu", progress=False, patch=False)
    assert (caught.value.code, caught.value.field) == (code, full)
