"""Imports go one way, from the command line down to the extension; files are short; executors stay apart."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_foundry
from torch_foundry.core import devices

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torch_foundry"

# Packages, from what stands on the others to what stands on none: each may import those of its own line and below.
ORDER: list[set[str]] = [
    {"__init__", "__main__"},
    {"cli"},
    {"chat", "serving"},
    {"diagnostics"},
    {"aot"},  # kernels compiled when the package is built
    {"testing"},
    {"engine", "io"},
    {"hf"},
    {"generation"},
    {"models"},
    {"kvcache", "nn", "sampling"},
    {"ops", "quant"},
    {"text"},
    {"core", "demo_model"},
    {"msl"},
]
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}

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


def test_imports_go_down() -> None:
    upward = set()
    for name in MODULES:
        package = name.partition(".")[0]
        assert package in LEVEL, f"{package} has no place in the order: add it here and to ARCHITECTURE.md"
        used = {module.partition(".")[0] for module in imports(name)} - {package, "__init__"}
        upward |= {f"{name} imports {other}" for other in used if LEVEL[other] < LEVEL[package]}
    assert not upward


def test_no_module_is_imported_by_a_name_that_is_not_to_be_seen() -> None:
    """But by the package itself, which stands above all others: what they need of each other, it hands in."""
    found = set()
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if called in ("import_module", "__import__") and not isinstance(node.args[0], ast.Constant):
                found.add(name)
    assert found == {"__init__"}


def test_the_package_has_no_loose_modules() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__"}


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
    assert not circles()


def test_the_scheduler_knows_no_tensors() -> None:
    """It and what it imports, that is sequences and the block manager, import the standard library only."""
    reached, todo = set(), {"engine.scheduler"}
    while todo:
        name = todo.pop()
        reached.add(name)
        todo |= imports(name) - reached
    statements = [node for name in reached for node in ast.walk(ast.parse(MODULES[name].read_text()))]
    used = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    used |= {str(node.module) for node in statements if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in used} <= sys.stdlib_module_names | {"torch_foundry"}
    assert len(reached) == 5


# What tells one type of device from another. Tensors of the host's own are asked for by device="cpu", which is no test.
DEVICE_WORDS = re.compile(r"\bis_(?:cuda|mps)\b|\btorch\.(?:cuda|mps|backends)\b|\._(?:cuda|metal|host)_\w+")


def test_what_differs_between_devices_is_said_in_one_place() -> None:
    """A device is one module in core/devices and one folder in csrc: no other asks which one it is."""
    found = set()
    for name, path in MODULES.items():
        if name.startswith("core.devices"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            kinds = {x.value for part in compared for x in ast.walk(part) if isinstance(x, ast.Constant)}
            named = {node.value} if isinstance(node, ast.Constant) else set()
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if kinds & set(devices.DEVICES) or named & (set(devices.DEVICES) - {"cpu"}) or DEVICE_WORDS.search(text):
                found.add(f"{name}:{getattr(node, 'lineno', 0)}")
    assert not found, "let core/devices answer"
    executors = {device.built_from[0].partition("/")[0] for device in devices.DEVICES.values()}
    assert {p.name for p in (ROOT / "csrc").iterdir()} == {"core", "ops", "loaders", "prelude", *executors}


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
    public = {name: getattr(torch_foundry, name) for name in torch_foundry._HOMES}
    for name, kind in [(name, kind) for name, kind in public.items() if isinstance(kind, type)]:
        public |= {
            f"{name}.{method}": x for method, x in vars(kind).items() if method[0] != "_" and hasattr(x, "__doc__")
        }
    first = {name: (inspect.getdoc(x) or "").partition("\n")[0] for name, x in public.items()}
    assert [name for name, line in first.items() if not line.endswith((".", ":"))] == [], "one line says what it is"
    clauses = ("As", "How", "If", "See", "This", "What", "When", "Where", "Whether", "Which", "Why", "With")
    assert [name for name, line in first.items() if line.split()[0] in clauses] == [], "a verb or a noun comes first"


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
