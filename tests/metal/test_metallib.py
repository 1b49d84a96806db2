"""Kernels compiled when the package is built: the commands that a Mac would run, and what the executor makes of the
files. Xcode's tools are fake_xcrun.py."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_foundry import compile_shader
from torch_foundry.aot import metallib
from torch_foundry.core import extension
from torch_foundry.core.devices import metal
from torch_foundry.core.shader import ShaderLibrary
from torch_foundry.msl.lint.unit import instances

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry
HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SOURCE = """#include <metal_stdlib>
using namespace metal;
constant int factor [[function_constant(0)]];
kernel void version(device int* y [[buffer(0)]]) { y[0] = __METAL_VERSION__; }
kernel void scale(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = factor * i; }
"""


@pytest.fixture
def xcode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Puts tools that know some levels of the language onto the path; the second call returns the commands so far."""
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    log.touch()
    (tools / "xcrun").symlink_to(HERE / "fake_xcrun.py")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools), os.environ["PATH"]]))

    def settings(*levels: str, bad: str = "") -> list[list[str]]:
        monkeypatch.setenv("FAKE_XCRUN", json.dumps({"levels": levels, "bad": bad, "log": str(log)}))
        return [json.loads(line) for line in log.read_text().splitlines()]

    return settings


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    foundry._metal_language(0)
    for version in (310, 320, 400):
        foundry._metal_library(version, "", [], [])


def events(*kinds: str) -> list[str]:
    return [event for event in mock.trace() if event.startswith(kinds)]


def shader(name: str) -> ShaderLibrary:
    """Kernels in a text of their own."""
    return compile_shader(f"{SOURCE}struct of_{name} {{}};\n")


def built(library: ShaderLibrary, place: Path, change: str = "") -> list[str]:
    """Compile a library's kernels, or a text with a change, into `place`, and make them known."""
    translated = place / "translated"
    translated.mkdir(parents=True, exist_ok=True)
    (translated / library._label).write_text(library._translation.msl + change)
    lines = metallib.build([(library._label, name) for name in library.names], place)
    metal.add_metallibs(place)
    return lines


def version_of(library: ShaderLibrary) -> int:
    y = torch.zeros(1, dtype=torch.int32, device="mps")
    library.version(y, threads=1)
    return int(y.item())


# --------------------------------------------------------------------------------------------------------- the build


def test_commands(tmp_path: Path, xcode: Callable[..., Any]) -> None:
    xcode("3.1", "3.2")
    library = shader("commands")
    lines = built(library, tmp_path)
    assert lines == ["kernels-3.1.metallib: 2 kernels", "kernels-3.2.metallib: 2 kernels"]
    commands = xcode()
    assert commands[0] == ["metal", "--version"]
    compiled = [c for c in commands if c[0] == "metal" and library._label in " ".join(c)]
    assert [c[1:6] for c in compiled] == [
        ["-std=metal3.1", "-mmacosx-version-min=14.0", "-O2", "-fno-fast-math", "-ffp-contract=off"],
        ["-std=metal3.2", "-mmacosx-version-min=15.0", "-O2", "-fno-fast-math", "-ffp-contract=off"],
    ]
    linked = [c for c in commands if c[0] == "metallib"]
    assert len(linked) == 2 and all(c[-3].endswith(".air") and c[-2] == "-o" for c in linked)
    made = sorted(path.name for path in (tmp_path / "metal").iterdir())
    files = ["kernels-3.1.metallib", "kernels-3.2.metallib"]
    assert made == sorted([*files, *(f"{file}.sum" for file in files), "manifest.json"])


def test_without_xcode(tmp_path: Path, xcode: Callable[..., Any]) -> None:
    xcode()
    library = shader("no_compiler")
    (tmp_path / "metal").mkdir()
    (tmp_path / "metal" / "manifest.json").write_text("of an earlier build")
    (line,) = built(library, tmp_path)
    assert "compiled when they are first used: Apple's Metal compiler isn't here (xcrun: error: unable to find" in line
    assert not (tmp_path / "metal").exists()
    mock.trace()
    assert version_of(library) == 400
    assert events("compile", "load") == ["compile"]


def test_without_xcrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = shader("no_xcrun")
    monkeypatch.setenv("PATH", str(tmp_path))
    (line,) = built(library, tmp_path)
    assert "Apple's Metal compiler isn't here" in line and "xcrun" in line


def test_a_file_that_does_not_compile_leaves_the_others(tmp_path: Path, xcode: Callable[..., Any]) -> None:
    good, bad = shader("good"), shader("bad")
    xcode("3.1", bad=bad._label)
    built(bad, tmp_path)
    (tmp_path / "translated" / good._label).write_text(good._translation.msl)
    lines = metallib.build([(bad._label, "scale"), (good._label, "version")], tmp_path)
    assert lines == [
        f"not compiled ahead of time: {bad._label} as Metal 3.1: {bad._label}:7:1: error: expected expression",
        "kernels-3.1.metallib: 1 kernels",
    ]
    metal.add_metallibs(tmp_path)
    mock.trace()
    assert [version_of(library) for library in (good, bad)] == [310, 400]
    assert events("compile", "load") == ["load metallib", "compile"]


def test_every_kernel_of_common_models_is_found(tmp_path: Path, xcode: Callable[..., Any]) -> None:
    """As a Mac does it: the list, the commands, then the calls, none of which compiles anything (their numbers are
    doctor's). In processes of their own: listing takes the CPU's executor away, and kernels of this process may be
    loaded already."""
    xcode("3.1", "4.0")
    shutil.copytree(extension.BUILT / "translated", tmp_path / "translated")
    command = [sys.executable, "-m", "torch_foundry.aot.metallib", "--built", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = re.findall(r'host_name\("(.*?)"\)', (tmp_path / "metal" / "kernels-4.0.metallib").read_text())
    assert len(set(names)) == len(names) > 80 and all(name.isidentifier() for name in names)
    count = len(subprocess.run([*command, "--list"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines())
    assert result.stdout == f"kernels-3.1.metallib: {count} kernels\nkernels-4.0.metallib: {count} kernels\n", result
    assert count > 80
    code = f"""
import torch
from pathlib import Path
from torch_foundry.aot import prebuild
from torch_foundry.core.devices import metal
metal.add_metallibs(Path({str(tmp_path)!r}))
torch.ops.mock_metal.set("run", 0)
for name, call in prebuild.calls("mps", [(32, 256), (2048, 256), (4096, 256)]):
    call()
torch.ops.mock_metal.synchronize()
trace = torch.ops.mock_metal.trace()
print([e for e in trace if e.startswith(("compile", "load"))], len({{e for e in trace if e.startswith("pipeline")}}))
"""
    # What other processes made has events of its own; nothing runs here, so the GPU can't say that it keeps subnormals.
    own = {**os.environ, "TORCH_FOUNDRY_METAL_ARCHIVE": "0", "TORCH_FOUNDRY_SUBNORMAL_CODES": "1"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=own, capture_output=True, text=True)
    assert result.stdout.strip() == f"['load metallib'] {count}", result


def strict(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_foundry.aot.metallib", "--strict", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_strict_compiles_every_instance_that_lint_checks(xcode: Callable[..., Any], tmp_path: Path) -> None:
    xcode("3.1", "3.2", "4.0")
    result = strict()
    shaders = sorted((ROOT / "shaders").rglob("*.metal"))
    assert "linear_tensors.metal: compiles as Metal 4.0" in result.stdout and result.stdout.count("linear_tensors") == 1
    count = 3 * len(shaders) - 2  # which Metal 3 has not
    assert result.returncode == 0 and f"{count} of {count} compile" in result.stdout, result
    for path in shaders:
        count = len(set(instances(path, include_dirs=[ROOT / "shaders"])))
        assert f"{path.name}: compiles as Metal 4.0 with {count} instances" in result.stdout
    assert len(xcode("3.1")) == 3 * len(shaders) - 2 and all("-Wall" in command for command in xcode("3.1"))


def test_strict_fails_on_one_error(xcode: Callable[..., Any]) -> None:
    xcode("3.1", "3.2", bad="linear.metal")
    result = strict("--levels", "3.1")
    assert result.returncode == 1 and "linear.metal:7:1: error: expected expression" in result.stdout, result
    assert "rms_norm.metal: compiles as Metal 3.1" in result.stdout
    xcode("3.1")  # a compiler that does not know a level that was asked for
    assert strict("--levels", "3.1", "4.0").returncode == 1


def test_setup_compiles_them_on_a_mac() -> None:
    """setup.py with the facts of a Mac, as far as its last step: for one processor, and a crash is not passed over."""
    code = """
import os, platform, runpy, subprocess, sys
import setuptools, torch
from torch.utils import cpp_extension
ran, given = [], {}
platform.system, platform.machine, platform.mac_ver = lambda: "Darwin", lambda: "arm64", lambda: ("15.0", 0, "arm64")
torch.backends.mps.is_built = lambda: True
setuptools.setup = lambda **arguments: given.update(arguments)
cpp_extension.BuildExtension.run = lambda self: None
namespace = runpy.run_path("setup.py")
namespace["sources"].build_tree = namespace["support"].record_torch = lambda *arguments: None
def run(command, **how):
    ran.append((command[-1].split("runpy.")[1], how.get("check", False)))
    return subprocess.CompletedProcess(command, 0)
subprocess.run = run
build = namespace["Build"].__new__(namespace["Build"])
build.inplace = True
build.run()
print(ran, os.environ["ARCHFLAGS"], os.environ.get("_PYTHON_HOST_PLATFORM"))
"""
    run = "run_module('torch_foundry.{}', run_name='__main__', alter_sys=True)"
    children = [(run.format("core.runtime"), False), (run.format("aot.metallib"), True)]
    for given, flags in (("", "-arch arm64 macosx-14.0-arm64"), ("-arch x86_64", "-arch x86_64 None")):
        environment = os.environ | ({"ARCHFLAGS": given} if given else {})
        result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)
        assert result.stdout.strip() == f"{children} {flags}", result


# ----------------------------------------------------------------------------------------------------------- its use


def test_kernels_of_a_metallib(tmp_path: Path, xcode: Callable[..., Any]) -> None:
    xcode("3.1", "3.2", "4.0")
    library = shader("loaded")
    assert foundry._metal_info()["library"] == "jit"
    built(library, tmp_path)
    assert foundry._metal_info()["library"] == "metallib"
    mock.trace()
    assert version_of(library) == 400
    y = torch.zeros(4, dtype=torch.int32, device="mps")
    for factor in (2, -3):
        library.scale(y, constants={"factor": factor})
        assert y.tolist() == [factor * i for i in range(4)]
    assert events("compile", "load") == ["load metallib"]


def test_the_newest_level_that_is_there(tmp_path: Path, xcode: Callable[..., Any]) -> None:
    """By default; a level that was asked for is used or compiled."""
    xcode("3.1")
    library = shader("old_compiler")
    built(library, tmp_path)
    assert version_of(library) == 310
    foundry._metal_language(320)
    other = shader("old_compiler_and_newer_wanted")
    built(other, tmp_path)
    mock.trace()
    assert version_of(other) == 320
    assert events("compile", "load") == ["compile"]


def test_a_metallib_of_another_text_is_not_used(tmp_path: Path, xcode: Callable[..., Any]) -> None:
    xcode("4.0")
    library = shader("edited")
    built(library, tmp_path, change="// as it was when the package was built\n")
    mock.trace()
    assert version_of(library) == 400
    assert events("compile", "load") == ["compile"]


@pytest.mark.parametrize("damage", ["missing", "changed", "foreign"])
def test_a_metallib_that_does_not_load(
    damage: str, tmp_path: Path, xcode: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    xcode("4.0")
    library = shader(f"a_file_{damage}")
    built(library, tmp_path)
    file = tmp_path / "metal" / "kernels-4.0.metallib"
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("damaged")
    if damage == "foreign":
        Path(f"{file}.sum").write_text(f"{hashlib.sha1(b'damaged').hexdigest()} 7\n")
    reason = "Invalid library file" if damage == "foreign" else "kernels-4.0.metallib is not as it was built"
    assert version_of(library) == 400
    library.scale(torch.zeros(4, dtype=torch.int32, device="mps"), constants={"factor": 1})
    (warning,) = (line for line in capfd.readouterr().err.splitlines() if "Warning" in line)
    assert "do not load, and are compiled when they are used" in warning and reason in warning


def test_it_can_be_switched_off(tmp_path: Path, xcode: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    xcode("4.0")
    monkeypatch.setenv("TORCH_FOUNDRY_METALLIB", "0")
    built(shader("off"), tmp_path)
    assert foundry._metal_info()["library"] == "jit"
