"""Imports go one way: cli -> engine -> {patch, kvcache, loaders} -> nn -> {quant, ops} -> _C; msl stands apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torch_foundry

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torch_foundry"

# What the modules of a layer may import from torch_foundry, beside their own layer.
BASE = {"_ext", "environment", "runtime", "sources"}
OPS = BASE | {"ops", "reference", "reference_moe", "quant"}
MODELS = OPS | {"nn", "kvcache"}
ALLOWED: dict[str, set[str]] = {
    "msl": set(),
    "environment": set(),
    "sources": {"environment", "msl"},
    "nvrtc": set(),
    "support": set(),
    "_ext": {"environment", "nvrtc", "sources", "support"},
    "runtime": {"_ext", "support"},
    "tape": {"_ext"},
    "shader": {"_ext", "msl", "sources"},
    "reference": {"quant"},
    "reference_moe": {"reference"},
    "tuning": {"_ext", "environment", "sources"},
    "tuner": OPS | {"doctor", "tape", "tuning"},
    "ops": BASE | {"quant", "tuning"},
    "quant": BASE | {"ops"},
    "sampling": OPS,
    "prebuild": OPS,
    "metallib": {"msl", "prebuild"},
    "nn": OPS,
    "kvcache": OPS,
    "loaders": MODELS | {"registration"},
    "loading": MODELS | {"loaders", "patch", "text"},
    "save": MODELS | {"loaders", "text"},
    "text": {"loaders"},
    "engine": MODELS | {"decode", "loaders", "patch", "sampling", "tape", "text"},
    "session": {"loaders"},
    "patch": MODELS | {"registration", "support"},
    "decode": MODELS | {"patch", "sampling", "tape"},
    "profiling": MODELS | {"chart", "decode", "doctor", "patch", "sampling", "tape"},
    "demo_model": set(),
    "chart": set(),
    "quality": {"chart"},
    "cli": MODELS
    | {
        "loading",
        "loaders",
        "patch",
        "compare",
        "demo_model",
        "doctor",
        "profiling",
        "quality",
        "support",
        "text",
        "tuner",
        "tuning",
        "__init__",
    },
    "__main__": {"cli"},
    "registration": set(),
    "__init__": {
        "compare",
        "engine",
        "loading",
        "loaders",
        "patch",
        "profiling",
        "registration",
        "runtime",
        "save",
        "session",
        "shader",
        "tape",
    },
    "compare": MODELS | {"decode", "patch"},
    "doctor": MODELS | {"__init__", "demo_model", "patch", "prebuild", "sampling", "shader", "support", "tape"},
}


def imports(path: Path) -> set[str]:
    """First components, below torch_foundry, of what a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module] if node.module != "torch_foundry" else [f"torch_foundry.{a.name}" for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            package = ["torch_foundry", *path.relative_to(PACKAGE).parent.parts]
            base = ".".join(package[: len(package) - node.level + 1])
            names = [f"{base}.{node.module}"] if node.module else [f"{base}.{a.name}" for a in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "torch_foundry":
                found.add(parts[1] if len(parts) > 1 else "__init__")
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "_built" not in p.parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert layer in ALLOWED, f"{layer} has no place in the layering: add it here and to ARCHITECTURE.md"
    submodules = {p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir()}
    used = {name for name in imports(path) if name in submodules} - {layer}
    assert used <= ALLOWED[layer], f"{path.name} ({layer}) must not import {sorted(used - ALLOWED[layer])}"


def includes(path: Path) -> list[str]:
    lines = [line.split('"')[1] for line in path.read_text().splitlines() if line.startswith('#include "')]
    return lines


@pytest.mark.parametrize("path", sorted((ROOT / "csrc" / "ops").glob("*")), ids=lambda p: p.name)
def test_ops_do_not_know_which_executor_runs(path: Path) -> None:
    wrong = [name for name in includes(path) if name.startswith(("host/", "metal/", "cuda/"))]
    assert not wrong


@pytest.mark.parametrize("path", sorted((ROOT / "csrc" / "core").glob("*")), ids=lambda p: p.name)
def test_core_does_not_know_ops_or_executors(path: Path) -> None:
    wrong = [name for name in includes(path) if name.startswith(("host/", "metal/", "cuda/", "ops/"))]
    assert not wrong


def test_metal_stays_in_its_folder() -> None:
    """Objective-C objects are csrc/metal's; torch's private MPS headers one file's of it."""
    files = [p for p in (ROOT / "csrc").rglob("*") if p.is_file()]
    metal = ROOT / "csrc" / "metal"
    assert [p.name for p in files if metal not in p.parents and "id<MTL" in p.read_text()] == []
    private = {p.name for p in files if "<ATen/mps/" in p.read_text() or "<ATen/native/mps/" in p.read_text()}
    assert private <= {"stream.mm"}


C_HEADERS = """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg
stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath threads time uchar wchar wctype"""


def test_no_header_of_ours_hides_one_of_the_c_library() -> None:
    """libc++ stops in <cmath> if <math.h> is not its own, and these folders are looked at first."""
    folders = [ROOT / "csrc", ROOT / "shaders", ROOT / "csrc" / "prelude"]
    folders += [ROOT / "csrc" / executor / "prelude" for executor in ("host", "cuda")]
    reserved = {f"{name}.h" for name in C_HEADERS.split()}
    assert not [str(p.relative_to(ROOT)) for f in folders for p in f.iterdir() if p.name.lower() in reserved]


def test_files_are_short_enough_to_read_in_one_sitting() -> None:
    limits = {".py": 300, ".cpp": 400, ".h": 400, ".metal": 400, ".mm": 400}
    roots = [PACKAGE, ROOT / "csrc", ROOT / "shaders"]
    files = [(p, limits[p.suffix]) for r in roots for p in r.rglob("*") if p.suffix in limits]
    files = [(p, limit) for p, limit in files if "_built" not in p.parts]
    files += [(p, 450) for p in (ROOT / "tests").rglob("*.py")]
    assert not {str(p.relative_to(ROOT)): n for p, limit in files if (n := len(p.read_text().splitlines())) > limit}


def test_public_names_are_listed_and_described() -> None:
    assert sorted(torch_foundry.__all__) == sorted([*torch_foundry._HOMES, "__version__"])
    assert [name for name in torch_foundry._HOMES if not getattr(torch_foundry, name).__doc__] == []


def test_completion_offers_the_public_names() -> None:
    import torch_foundry

    assert dir(torch_foundry) == sorted(torch_foundry.__all__)


def test_public_names_are_not_hidden_by_modules_of_their_name() -> None:
    """A submodule that is imported becomes an attribute of the package, in place of a function that is called alike."""
    script = (
        "import importlib, torch_foundry\n"
        "for name in set(torch_foundry._HOMES.values()): importlib.import_module(f'torch_foundry.{name}')\n"
        "print([name for name in torch_foundry._HOMES if not callable(getattr(torch_foundry, name))])"
    )
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stdout + found.stderr
