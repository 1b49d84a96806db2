"""Two kernels that differ in source, constants, options or compiler never share a cache entry; equal ones do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_foundry
from torch_foundry.core import devices, extension, sources

pytestmark = pytest.mark.tier("kernels")

FILL = (
    "#include <metal_stdlib>\nkernel void fill(device float* y, uint i [[thread_position_in_grid]]) {{ y[i] = {}; }}\n"
)
ROOT = Path(__file__).parent.parent.parent


def run(code: str, **environment: str) -> str:
    """Output of a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip()


def test_two_versions_of_one_name() -> None:
    first, second = (torch_foundry.compile_shader(FILL.format(v)) for v in ("1.0f", "2.0f"))
    y = torch.zeros(2)
    first.fill(y)
    assert y.tolist() == [1.0, 1.0]
    second.fill(y)
    assert y.tolist() == [2.0, 2.0]
    first.fill(y)
    assert y.tolist() == [1.0, 1.0]


def test_formats_of_one_template_are_kernels_of_their_own() -> None:
    from torch_foundry import ops, quant

    torch.manual_seed(0)
    weight, x = torch.randn(8, 64), torch.randn(1, 64)
    dense = ops.linear(x.half(), weight.half())
    packed = ops.linear(x.half(), quant.quantize(weight, "q8_0"), format="q8_0")
    reference = x.half().float() @ weight.half().float().T
    decoded = x.half().float() @ quant.dequantize(quant.quantize(weight, "q8_0"), "q8_0", 64, torch.float32).T
    assert (dense.float() - reference).abs().max() < 2e-2
    assert (packed.float() - decoded).abs().max() < 2e-2
    assert not torch.equal(dense, packed)


CACHED = """
import torch, torch_foundry
y = torch.zeros(1)
torch_foundry.compile_shader({source!r}, constants={constants!r}).fill(y)
print(y.item())
"""
CONSTANT = (
    "#include <metal_stdlib>\nconstant float v [[function_constant(0)]];\n"
    "kernel void fill(device float* y, uint i [[thread_position_in_grid]]) { y[i] = v; }\n"
)


def entries(cache: Path) -> set[str]:
    return {p.name for p in (cache / "kernels").glob("*.so")}


def test_entries_on_disk_differ_by_source_constants_options_and_compiler(tmp_path: Path) -> None:
    cache = {"TORCH_FOUNDRY_CACHE": str(tmp_path)}
    seen: set[str] = set()

    def grows(by: int, code: str, **environment: str) -> str:
        nonlocal seen
        out = run(code, **cache, **environment)
        now = entries(tmp_path)
        assert len(now) == len(seen) + by, now - seen
        seen = now
        return out

    one = CACHED.format(source=CONSTANT, constants={"v": 1.0})
    assert grows(1, one) == "1.0"
    assert grows(0, one) == "1.0"  # the same kernel: found on disk
    assert grows(1, CACHED.format(source=CONSTANT, constants={"v": 2.0})) == "2.0"
    assert grows(1, CACHED.format(source=FILL.format("3.0f"), constants={})) == "3.0"
    assert grows(1, one, TORCH_FOUNDRY_CHECKED="1") == "1.0"  # other options
    # another compiler: the same one by another name and version line; runtime and kernel are compiled again
    real = shutil.which(sources.compiler()[0])
    wrapper = tmp_path / "other-c++"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "other 1.0"; exit 0; }}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    assert grows(2, one, CXX=str(wrapper)) == "1.0"


def test_edited_shader_is_seen_without_rebuild_in_src_mode(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "torch_foundry", checkout / "torch_foundry", ignore=shutil.ignore_patterns("demo_model"))
    for folder in ("shaders", "csrc"):
        shutil.copytree(ROOT / folder, checkout / folder)
    code = f"import sys; sys.path.insert(0, {str(checkout)!r})\n" + (
        "import torch; from torch_foundry import ops\n"
        "print(ops.rms_norm(torch.ones(1, 4), torch.ones(4), 0.0).tolist())"
    )
    environment = {"TORCH_FOUNDRY_CACHE": str(tmp_path / "cache")}
    src = environment | {"TORCH_FOUNDRY_KERNELS": "src"}
    assert run(code, **src) == "[[1.0, 1.0, 1.0, 1.0]]"
    shader = checkout / "shaders" / "norm" / "rms_norm.metal"
    text = shader.read_text()
    assert text.count("rsqrt(") >= 1
    shader.write_text(text.replace("rsqrt(", "2.0f * rsqrt("))
    assert run(code, **src) == "[[2.0, 2.0, 2.0, 2.0]]"
    assert run(code, **environment) == "[[1.0, 1.0, 1.0, 1.0]]"  # built: as it was built


@pytest.mark.parametrize(
    "name, value",
    [("TORCH_FOUNDRY_KERNELS", "source"), ("TORCH_FOUNDRY_SANITIZE", "x"), ("TORCH_FOUNDRY_CHECKED", "y")],
)
def test_bad_environment_values_raise(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}': expected one of"):
        extension.kernels_from()
        devices.HOST.set_up(extension.places())


def test_a_failure_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, y = torch_foundry.compile_shader(FILL.format("41.25f")), torch.zeros(1)
    monkeypatch.setenv("CXX", "no-such-compiler")
    try:
        devices.HOST.set_up(extension.places(tmp_path))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no-such-compiler"):
                library.fill(y)
    finally:
        monkeypatch.undo()
        devices.HOST.set_up(extension.places())
    library.fill(y)
    assert y.item() == 41.25


@pytest.mark.parametrize("command", ["no-such-compiler", "env no-such-compiler", "no-such-launcher g++"])
def test_a_missing_compiler_is_named(command: str) -> None:
    code = CACHED.format(source=FILL.format("41.5f"), constants={})
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"CXX": command}
    )
    assert result.returncode != 0
    assert command.replace("env ", "") in result.stderr


def test_a_compiler_that_is_several_words(tmp_path: Path) -> None:
    """As a shell splits them; and it is started when a kernel is used, not by the import."""
    launcher, log = tmp_path / "a launcher", tmp_path / "log"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec "$@"\n')
    launcher.chmod(0o755)
    log.touch()
    real = sources.compiler()[0]
    environment = {"CXX": f"'{launcher}' {real}", "TORCH_FOUNDRY_CACHE": str(tmp_path)}
    assert run("from torch_foundry import ops; print('imported')", **environment) == "imported"
    assert log.read_text() == ""
    assert run(CACHED.format(source=FILL.format("4.5f"), constants={}), **environment) == "4.5"
    lines = log.read_text().splitlines()
    assert lines.count(f"{real} --version") == 1 and lines[0].endswith("--version")
    assert lines[1:] and all(line.startswith(f"{real} -std=") for line in lines[1:])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere kernels are linked as ever")
def test_kernels_are_linked_with_what_they_use(tmp_path: Path) -> None:
    """And with libstdc++ as well by a compiler that can't do without."""
    refusing = tmp_path / "refusing"
    refusing.write_text(f'#!/bin/sh\ncase "$*" in *-nodefaultlibs*) exit 1;; esac\nexec {sources.compiler()[0]} "$@"\n')
    refusing.chmod(0o755)
    code = CACHED.format(source=FILL.format("metal::exp(y[i])"), constants={})
    for name, environment in {"able": {}, "unable": {"CXX": str(refusing)}}.items():
        cache = tmp_path / name
        assert run(code, TORCH_FOUNDRY_CACHE=str(cache), **environment) == "1.0"
        kernel, *_ = [e for path in cache.rglob("*.so") if b"msl_rt_launch" not in (e := path.read_bytes())]
        assert (b"libstdc++.so" in kernel) == (name == "unable") and b"libm.so" in kernel


def test_a_command_that_no_shell_can_split_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache 'g++")
    with pytest.raises(ValueError, match=r"CXX=.*ccache 'g\+\+.*expected the command of a C\+\+ compiler"):
        sources.compiler()


@pytest.mark.parametrize("sanitizer, library", [("address", "libasan"), ("thread", "libtsan")])
def test_a_sanitizer_that_is_not_loaded_says_how(sanitizer: str, library: str) -> None:
    """Before any kernel is linked, whose error would be an undefined symbol."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [sys.executable, "-c", "import torch_foundry.ops"],
        env=environment | {"TORCH_FOUNDRY_SANITIZE": sanitizer},
        capture_output=True,
        text=True,
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: TORCH_FOUNDRY_SANITIZE") and library in last
    assert "LD_PRELOAD" in last
