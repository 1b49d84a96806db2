"""Imports go one way: cli -> engine -> {patch, kvcache, loaders} -> nn -> {quant, ops} -> _C; msl stands apart."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_foundry

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torch_foundry"

# What the modules of a layer may import from torch_foundry, beside their own layer.
BASE = {"_ext", "environment", "limits", "runtime", "sources"}
OPS = BASE | {"ops", "reference", "reference_moe", "quant"}
MODELS = OPS | {"core", "nn", "kvcache"}
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "msl": set(),
    "environment": set(),
    "sources": {"environment", "msl"},
    "nvrtc": set(),
    "support": set(),
    "_ext": {"environment", "nvrtc", "sources", "support"},
    "limits": {"_ext"},
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
    "kvcache": OPS | {"core"},
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


# Files that import one another today; a file that joins them is refused.
CIRCLES = [
    {"patch.quantizer", "registration"},
    {"decode.plan", "decode.tape"},
    {"engine.forward", "engine.tapes"},
    {"engine.engine", "engine.seats", "engine.stream"},
]

DETOURS = {"patch.api imports decode", "registration imports patch"}  # until the API has a place above both

FILES = sorted(p for p in PACKAGE.rglob("*.py") if "_built" not in p.parts)
MODULES = {".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}


def imports(name: str) -> set[str]:
    """Modules of the package that a module imports: under TYPE_CHECKING too, and those that importlib is given."""
    path, found = MODULES[name], set()
    package = ("torch_foundry", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            base = base if node.level else str(node.module)
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name != "__init__.py":
            found |= {node.value}
    named = {module.removeprefix("torch_foundry.") for module in found if module.startswith("torch_foundry.")}
    return {module for module in named & MODULES.keys() if not name.startswith(f"{module}.")} - {name}


def test_imports_follow_the_layers() -> None:
    wrong = []
    for name in MODULES:
        layer = name.partition(".")[0]
        assert layer in ALLOWED, f"{layer} has no place in the layering: add it here and to ARCHITECTURE.md"
        used = {module.partition(".")[0] for module in imports(name)} - {layer}
        wrong += [f"{name} imports {other}" for other in sorted(used - ALLOWED[layer])]
    assert set(wrong) <= DETOURS


def circles() -> list[set[str]]:
    """Sets of modules that all reach one another by imports."""
    graph = {name: imports(name) for name in MODULES}

    def reached(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    reach = {name: reached(name) for name in MODULES}
    return [{other for other in reach[name] if name in reach[other]} for name in MODULES if name in reach[name]]


def test_no_files_import_one_another() -> None:
    unknown = [sorted(circle) for circle in circles() if not any(circle <= known for known in CIRCLES)]
    assert not unknown, unknown


def includes(path: Path) -> list[str]:
    lines = [line.split('"')[1] for line in path.read_text().splitlines() if line.startswith('#include "')]
    return lines


@pytest.mark.parametrize("path", sorted((ROOT / "csrc" / "ops").glob("*")), ids=lambda p: p.name)
def test_ops_do_not_know_which_executor_runs(path: Path) -> None:
    wrong = [name for name in includes(path) if name.startswith(("host/", "metal/", "cuda/"))]
    assert not wrong


def test_ops_take_their_grids_from_presets() -> None:
    """core/grid.h is the one place that says how work is divided into threadgroups."""
    texts = {path.name: path.read_text() for path in (ROOT / "csrc" / "ops").glob("*")}
    assert not [name for name, text in texts.items() if re.search(r"\bGrid\s*\w*\s*(=\s*)?\{|\.run\(\s*\{", text)]


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
