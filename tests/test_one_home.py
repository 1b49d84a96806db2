"""What formats, families and limits are is stated once: nothing else in the package keeps a table of them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import torch_foundry
from torch_foundry.models.families import FAMILIES
from torch_foundry.quant import FORMATS, kv

PACKAGE = Path(torch_foundry.__file__).parent
PACKED = {name for name, known in FORMATS.items() if known.packed} | kv.FORMATS.keys()
HOMES = ("io/packed/",)  # modes of other libraries' files have such names


@functools.cache
def modules() -> dict[str, ast.Module]:
    paths = (path for path in sorted(PACKAGE.rglob("*.py")) if "_built" not in path.parts)
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in paths}


def keys_of(node: ast.AST) -> Iterator[str]:
    """The strings that a dict is keyed by."""
    if isinstance(node, ast.Dict):
        for key in node.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def test_no_table_is_keyed_by_formats() -> None:
    for module, tree in modules().items():
        found = {key for node in ast.walk(tree) for key in keys_of(node)} & PACKED
        assert not found or module.startswith(HOMES), f"{module}: facts about {sorted(found)}"


def test_no_table_is_keyed_by_families() -> None:
    """What a file calls its architecture is another matter: `io/gguf` reads it."""
    classes = {key.rsplit(".", 1)[1] for key in FAMILIES}
    for module, tree in modules().items():
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        named = [s for s in strings if isinstance(s, str) and (s in FAMILIES or s.rsplit(".", 1)[-1] in classes)]
        assert not named, f"{module}: facts about {named}"


def names_of(tree: ast.Module) -> set[str]:
    """What a module assigns to at its top."""
    assigned = [node for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign) for node in ast.walk(each)]
    return {node.id for node in assigned if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def test_no_limit_is_stated_again() -> None:
    """`limits` asks the extension; a number under the same name elsewhere would be a copy."""
    limits = {name for name in names_of(modules()["core/limits.py"]) if name.isupper()}
    assert "HEAD_DIMS" in limits
    for module, tree in modules().items():
        copied = names_of(tree) & limits
        assert not copied or module == "core/limits.py", f"{module}: {sorted(copied)}"
