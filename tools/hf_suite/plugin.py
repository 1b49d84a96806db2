"""A pytest plugin under which transformers' tests run on patched models, and which writes down their outcomes.

    HF_SUITE_PATCH=1 HF_SUITE_OUTCOMES=outcomes.json python -m pytest -p tools.hf_suite.plugin tests/models/llama

Tests make a model by its class or by `from_pretrained`, and hand it on by `.to(device)` or `.eval()`: there it is
patched. Random numbers depend on the test alone, so that both runs see the same weights and inputs.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import random
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, set_seed
from transformers.cache_utils import LinearAttentionLayer
from transformers.utils import is_datasets_available

import torch_foundry
from torch_foundry.kvcache.recurrent import RecurrentLayer

PACKAGES = ("transformers", "datasets")  # of which tests may want names that there aren't
SEED = int(os.environ.get("HF_SUITE_SEED", "0"))


class _Loading:
    depth = 0  # inside of `from_pretrained`: a model is handed over when it is complete


def _handed_over(model: Any) -> Any:
    if not _Loading.depth:
        torch_foundry.patch(model)
    return model


def patch_models() -> None:
    """From now on, patch every model of transformers when it is loaded, moved or put in eval mode."""
    load, move = PreTrainedModel.from_pretrained.__func__, PreTrainedModel.to  # type: ignore[attr-defined]

    @functools.wraps(load)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        _Loading.depth += 1
        try:
            loaded = load(cls, *args, **kwargs)
        finally:
            _Loading.depth -= 1
        _handed_over(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    @functools.wraps(move)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _handed_over(move(self, *args, **kwargs))

    @functools.wraps(nn.Module.eval)
    def evaluate(self: Any) -> Any:
        return _handed_over(nn.Module.eval(self))

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[assignment, method-assign]
    PreTrainedModel.to = to  # type: ignore[assignment, method-assign]
    PreTrainedModel.eval = evaluate  # type: ignore[method-assign]


def add_missing_names(sources: list[Path]) -> list[str]:
    """Give modules what tests import from them and they haven't, as transformers' of another version, or where there is
    no such package: functions that skip the test."""
    is_datasets_available()  # remembers, before there is something of that name
    missing = []
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith(PACKAGES):
                missing += [name for alias in node.names if (name := _add_missing(str(node.module), alias.name))]
    return missing


def _add_missing(module: str, name: str) -> str | None:
    try:
        owner = importlib.import_module(module)
    except ImportError:
        owner = sys.modules[module] = types.ModuleType(module)
    if hasattr(owner, name):
        return None

    def absent(*args: Any, **kwargs: Any) -> None:
        pytest.skip(f"there is no {module}.{name}")

    setattr(owner, name, absent)
    return f"{module}.{name}"


# helpers of tests that are of no interest here (pipelines, several processes, exporters), and need further packages
LEFT_OUT = ("test_pipeline_mixin", "test_fsdp_mixin", "test_tensor_parallel_mixin", "exporters.test_export")


def leave_out(package: str, names: tuple[str, ...]) -> None:
    """Make modules of `package` that have a class without tests for every name that is asked for."""
    for name in names:
        path = f"{package}.{name}"
        for parent in [path.rsplit(".", 1)[0]] if "." in name else []:
            sys.modules[parent] = types.ModuleType(parent)
        module = sys.modules[path] = types.ModuleType(path)
        module.__getattr__ = _empty_class  # type: ignore[method-assign]


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class Outcomes:
    """What became of each test: passed, failed or skipped, with the last line of an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            line = (report.longreprtext.strip().splitlines() or [""])[-1] if report.failed else ""
            context = getattr(report, "context", None)  # of a subtest
            part = f" {context.msg or ''}{dict(context.kwargs) or ''}" if context else ""
            self.found[report.nodeid + part] = (report.outcome, line)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.found, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tests of transformers have marks that are registered nowhere")
    leave_out("tests", LEFT_OUT)
    root = Path(config.rootpath)
    sources = [file for file in root.glob("tests/*.py") if file.stem not in LEFT_OUT]
    sources += [root / arg.partition("::")[0] for arg in (*config.args, "tests/generation/test_utils.py")]
    if missing := add_missing_names([file for file in sources if file.is_file()]):
        print("names that this transformers has no more, or not yet:", ", ".join(sorted(set(missing))))
    if outcomes := os.environ.get("HF_SUITE_OUTCOMES"):
        config.pluginmanager.register(Outcomes(Path(outcomes)), "hf-suite-outcomes")
    if os.environ.get("HF_SUITE_PATCH"):
        patch_models()


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Leave out what all models share and folders take as it is (HF_SUITE_OWN: which folders, by spaces)."""
    folders = os.environ.get("HF_SUITE_OWN", "").split()
    left_out = [item for item in items if item.path.parent.name in folders and is_shared(item.function)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def is_shared(test: Any) -> bool:
    """Whether `ModelTesterMixin` has defined a test."""
    return str(test.__module__).endswith("test_modeling_common")


def pytest_collection_finish() -> None:
    """Tests of caches ask for the very class of a layer with recurrent states: ours is one derived from it."""
    if not is_datasets_available():
        sys.modules.pop("datasets", None)  # or others would take it for the package
    generation = sys.modules.get("tests.generation.test_utils")
    if generation and os.environ.get("HF_SUITE_PATCH"):
        vars(generation)["type"] = stock_type


def stock_type(layer: Any) -> type:
    """The class of a cache's layer, that of transformers for ours with recurrent states."""
    return LinearAttentionLayer if isinstance(layer, RecurrentLayer) else type(layer)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.set_num_threads(1)
    seed = zlib.crc32(item.nodeid.encode()) % 2**31 + SEED
    set_seed(seed)
    for name, module in list(sys.modules.items()):
        if name.endswith("test_modeling_common"):
            rng: random.Random = module.global_rng
            rng.seed(seed)
