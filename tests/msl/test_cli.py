"""`python -m torch_foundry.msl`: output and exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_foundry.msl.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
BREADTH = str(Path(__file__).parent / "shaders" / "breadth.metal")


@pytest.fixture
def write(tmp_path):
    def file(text: str, name: str = "a.metal") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return file


def test_runs_as_a_module_without_torch():
    code = f"import sys, runpy; sys.argv = ['msl', {BREADTH!r}]\n"
    code += "try: runpy.run_module('torch_foundry.msl', run_name='__main__')\n"
    code += "except SystemExit as e: print('exit', e.code, 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "exit 0 False", run.stderr


def test_list(capsys):
    assert main([BREADTH]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "inner::clear(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]])" in out
    assert "device const T* bias [[buffer(1)]] if has_bias" in next(
        line for line in out if line.startswith("scale_f16(")
    )
    assert next(line for line in out if line.startswith("template scale("))
    assert "function constant 11: int unroll, optional" in out


def test_list_of_several_files_names_them(capsys, write):
    other = write("kernel void g(device int* x) {}\n")
    assert main([BREADTH, other, "--list"]) == 0
    assert f"{other}:\ng(device int* x [[buffer(0)]])" in capsys.readouterr().out


def test_defines_and_include_dirs(capsys, write, tmp_path):
    write("kernel void NAME(device int* x) {}\n", "k.h")
    (tmp_path / "sub").mkdir()
    main_file = write('#include "k.h"\n', "sub/main.metal")
    assert main([main_file, "-DNAME=renamed", "-I", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "renamed(device int* x [[buffer(0)]])\n"


def test_emit(capsys, write):
    assert main([write("kernel void f(device int* x) {}\n"), "--emit"]) == 0
    assert '#include "metal_prelude.h"' in capsys.readouterr().out


def test_check(capsys, write):
    assert main([BREADTH, "--check"]) == 0
    assert "14 of 14 kernels compile" in capsys.readouterr().out
    bad = write("kernel void good(device int* x) { x[0] = 1; }\nkernel void bad(device int* x) {\n  x[0] = y;\n}\n")
    assert main([bad, "--check"]) == 1
    out = capsys.readouterr().out
    assert "ok   good" in out and f"FAIL bad\n     {bad}:3: " in out and "1 of 2 kernels compile" in out


def test_check_of_template_instances(capsys, write):
    file = write("template <typename T> kernel void f(device T* x) { x[0] = 1; }\n// foundry-lint: instance(f<int>)\n")
    assert main([file, "--check", "--entry", "f<float>"]) == 0
    out = capsys.readouterr().out
    assert "ok   f<int>" in out and "ok   f<float>" in out
    assert main([file, "--check", "--entry", "g<float>"]) == 2


def test_check_of_a_file_without_kernels(capsys, write):
    assert main([write("int f() { return 1; }\n"), "--check"]) == 0
    assert main([write("int f() { return y; }\n"), "--check"]) == 1


def test_lint(capsys, write):
    assert main([BREADTH, "--lint"]) == 0
    file = write("kernel void f(device float* x [[buffer(40)]]) {\n  double y = 1;\n}\n")
    assert main([file, file, "--lint"]) == 1
    captured = capsys.readouterr()
    assert captured.out.count(f"{file}:1: buffer-index: ") == 1 and captured.out.count(f"{file}:2: double: ") == 1
    assert "2 files, 2 findings" in captured.err


@pytest.mark.parametrize("mode", ["--list", "--check", "--emit", "--lint"])
def test_errors_take_one_line(capsys, write, mode, tmp_path):
    missing = str(tmp_path / "absent.metal")
    assert main([missing, mode]) == 2
    assert capsys.readouterr().err == f"{missing}: no such file\n"
    broken = write("\nkernel void f(\n")
    assert main([broken, mode]) == 2
    assert capsys.readouterr().err == f"{broken}:2: '(' is never closed\n"
