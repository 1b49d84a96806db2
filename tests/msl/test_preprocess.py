"""The preprocessor run: macros, includes, versions, errors with file and line."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from torch_foundry.msl import MslError, translate
from torch_foundry.msl.syntax.preprocess import HEAD, preprocess


def flat(text: str) -> str:
    return " ".join(" ".join(line for line in text.splitlines() if not line.startswith("#")).split())


def test_defines_and_version():
    source = "int a = N; int v = __METAL_VERSION__;\n#ifdef FLAG\nint f = FLAG;\n#endif\n"
    text = flat(preprocess(source, defines={"N": 3, "FLAG": True}, metal_version=320).text)
    assert text == "int a = 3; int v = 320; int f = 1;"
    assert "long c = 201402L;" in preprocess("long c = __cplusplus;\n").text
    assert "long c = 201703L;" in preprocess("long c = __cplusplus;\n", metal_version=400).text


def test_host_macros_are_not_defined():
    assert (
        flat(preprocess("#if defined(__x86_64__) || defined(__linux__) || defined(__GNUC__)\nhost\n#endif\nx\n").text)
        == "x"
    )


def test_standard_headers_define_their_macros():
    source = "#include <metal_stdlib>\n#include <metal_simdgroup>\n#include <metal_atomic>\n#include <simd/simd.h>\n"
    text = flat(preprocess(source + "float x = INFINITY + FLT_MAX; half h = MAXHALF; int i = INT_MAX;\n").text)
    assert "__builtin_inff()" in text and "0x1.ffcp15h" in text and "2147483647" in text


def test_include_dirs_and_closure(tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "deep.h").write_text("#pragma once\nint deep;\n")
    (tmp_path / "near.h").write_text("#include <deep.h>\nint near;\n")
    main = tmp_path / "main.metal"
    main.write_text('#include "near.h"\n#include <metal_stdlib>\nint main_;\n')
    ready = preprocess(main, include_dirs=[tmp_path / "include"])
    assert flat(ready.text) == "int deep; int near; int main_;"
    assert ready.files == [str(main), str(tmp_path / "near.h"), str(tmp_path / "include" / "deep.h")]


def test_source_text_has_a_name():
    ready = preprocess("\nint x;\n", name="inline.metal")
    assert '# 1 "inline.metal"' in ready.text and ready.files == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("int a;\n#error broken here\n", r"<source>:2: #error broken here"),
        ('\n\n#include "absent.h"\n', r"<source>:3: included file 'absent.h' was not found"),
        ("#if 1\nint a;\n", r"<source>:1: unterminated #if"),
        (
            "\n#include <metal_cooperative_tensor>\n",
            r"<source>:2: Metal 4 tensors .* are not supported",
        ),
    ],
)
def test_errors_name_file_and_line(source, message):
    with pytest.raises(MslError, match=message):
        preprocess(source)


def test_every_text_for_apples_compiler_begins_without_contraction(tmp_path):
    """a * b + c is rounded twice there, as on the other executors; lines keep their numbers."""
    file = tmp_path / "a.metal"
    file.write_text("float f(float a) { return a * a + a; }\n")
    for source, name in ((file, str(file)), (file.read_text(), "x.metal")):
        text = translate(source, defines={"N": 3}, name=name).msl
        off = "#pragma STDC FP_CONTRACT OFF\n#pragma METAL fp contract(off)\n"
        assert text == f'{off}#define N 3\n#line 1 "{name}"\n{file.read_text()}'


@pytest.mark.skipif(not shutil.which("clang"), reason="needs a clang")
def test_clang_takes_the_pragma_at_its_word():
    for text, fused in (("", True), (HEAD, False)):
        text += "float f(float a, float b, float c) { return a * b + c; }\n"
        command = ["clang", "-x", "c++", "-std=c++14", "-O2", "-ffp-contract=on", "-S", "-emit-llvm", "-o", "-", "-"]
        found = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        assert ("llvm.fmuladd" in found.stdout) == fused


def test_a_missing_file(tmp_path):
    with pytest.raises(MslError, match=r"none\.metal: no such file"):
        preprocess(tmp_path / "none.metal")
