"""A family that nobody has seen is known after one row: its layers, its norms, its decoder and its head."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import torch_foundry
from tests.hf.tiny_cases import COMMON
from tests.hf.tiny_models import ids
from torch_foundry.hf.api import report
from torch_foundry.models import families
from torch_foundry.models.family import Family

TABLES = (
    families.FAMILIES,
    families.NORMS,
    families.DECODERS,
    families.HEADS,
    families.EXPERTS,
    families.EMBEDDINGS,
)


def write_copy(folder: Path, of: str, prefix: str, name: str, new_prefix: str) -> None:
    """A family of transformers under another name, as a package of its own."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    for kind in ("modeling", "configuration"):
        text = inspect.getsource(importlib.import_module(f"transformers.models.{of}.{kind}_{of}"))
        text = (
            text.replace(prefix, new_prefix).replace(f"_{of} import", f"_{name} import").replace(f'"{of}"', f'"{name}"')
        )
        (folder / name / f"{kind}_{name}.py").write_text(text)


@pytest.fixture
def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A random model of a family that no row names."""
    write_copy(tmp_path, "qwen3", "Qwen3", "late_comer", "LateComer")
    monkeypatch.setattr(transformers.models, "__path__", [*transformers.models.__path__, str(tmp_path)])
    before = [copy.copy(table) for table in TABLES]
    module = importlib.import_module("transformers.models.late_comer.modeling_late_comer")
    torch.manual_seed(0)
    model = module.LateComerForCausalLM(module.LateComerConfig(**COMMON)).eval()
    model.generation_config.eos_token_id = None
    yield model
    for table, content in zip(TABLES, before, strict=True):
        table.clear()
        table.update(content)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if ".late_comer" in name]:
        del sys.modules[name]


def test_without_a_row_it_is_left_alone(unknown: Any) -> None:
    seen = report(torch_foundry.patch(unknown))
    assert seen.layers == 0 and "not a known decoder layer" in seen.not_replaced["model.layers.0"]


@torch.no_grad()
def test_one_row_makes_it_known(unknown: Any) -> None:
    families.register(Family("late_comer", qk_norm="head", window="attention"))
    model = torch_foundry.patch(copy.deepcopy(unknown))
    prompt = ids(2, 9)
    tokens = [m.generate(prompt, max_new_tokens=24, do_sample=False).tolist() for m in (unknown, model)]
    assert tokens[0] == tokens[1]
    seen = report(model)
    assert seen.layers == len(model.model.layers) and not seen.not_replaced and not seen.fallbacks, str(seen)
    assert seen.steps and seen.captured and not seen.eager, "steps are not captured"
