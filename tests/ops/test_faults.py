"""The tests are tested: each seeded mistake in a shader makes the check fail that is there to notice it."""

from __future__ import annotations

import functools
import importlib
import re
import shutil
from pathlib import Path

import kit
import pytest
from kit import F32, Fault
from shader_text import SHADERS, ShaderText, shader
from torch import Tensor

from tests.sampling.test_faults import FAULTS as OF_SAMPLING
from torch_foundry import ops
from torch_foundry.core import runtime

TESTS = Path(__file__).parent
MODULES = sorted({*TESTS.glob("test_*.py"), *TESTS.glob("faults_*.py")} - {Path(__file__)})
FAULTS: list[Fault] = [f for path in MODULES for f in getattr(importlib.import_module(path.stem), "FAULTS", [])]


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    fault.check()
    with runtime.use_shaders(fault.seed(tmp_path)), pytest.raises(AssertionError):
        fault.check()


def test_there_are_enough() -> None:
    claimed = re.search(r"More than (\d+) seeded faults", (TESTS.parents[1] / "docs" / "testing.md").read_text())
    assert claimed and len(FAULTS) > int(claimed[1]) and len({f.name for f in FAULTS}) == len(FAULTS)


def renamed(text: ShaderText) -> ShaderText:
    return ShaderText(text.renamed(lambda name: f"another_{name}"))


@functools.cache
def unlike(path: Path) -> ShaderText:
    """The file with other names for its locals, other indentation and other comments."""
    text = renamed(ShaderText(path.read_text())).text
    return ShaderText(re.sub(r"^ +", "\t", text, flags=re.M).replace("// ", "// once more: "))


def plain(text: str) -> list[str]:
    return re.sub(r"//[^\n]*", "", text).split()


def test_renaming_locals_moves_no_fault() -> None:
    for fault in [*FAULTS, *OF_SAMPLING]:
        path = shader(fault.file or fault.kernel)
        before = renamed(ShaderText(ShaderText(path.read_text()).replaced(fault.old, fault.new))).text
        after = unlike(path).replaced(fault.old, fault.new)
        assert plain(before) == plain(after) != plain(unlike(path).text), fault


def test_a_place_is_the_only_one() -> None:
    text = ShaderText("void f(int a, int b) { a += b; b += a; }")
    with pytest.raises(AssertionError, match="in 2 places"):
        text.replaced("x += y;", "")
    with pytest.raises(AssertionError, match="in 0 places"):
        text.replaced("x += x;", "")
    assert text.replaced("{ x += y;", "{ x -= y;") == "void f(int a, int b) { a -= b; b += a; }"


@pytest.mark.tier("nightly")
def test_shaders_with_renamed_locals_compute_the_same(tmp_path: Path) -> None:
    """So what is taken for a local is one."""
    g = kit.generator("renamed")
    x, weight, q, kv = (kit.normal(g, *shape, dtype=F32) for shape in ((3, 96), (9, 96), (1, 4, 2, 64), (1, 2, 70, 64)))

    def results() -> list[Tensor]:
        return [
            ops.linear(x, weight),
            ops.rms_norm(x, x[0], 1e-5),
            ops.attention(q, kv, kv, 70, scale=0.1),
            ops.glu(x, x),
        ]

    expected = results()
    directory = shutil.copytree(SHADERS, tmp_path / "shaders")
    for path in directory.rglob("*.*"):
        path.write_text(renamed(ShaderText(path.read_text())).text)
    with runtime.use_shaders(directory):
        for result, same in zip(results(), expected, strict=True):
            kit.assert_equal(result, same)
