"""Includes in place: one text that says of each line where it is from, the same for every executor."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from torch_foundry.core import extension, sources
from torch_foundry.msl import MslError, Translation, translate
from torch_foundry.msl.syntax.preprocess import HEAD, _predefined, find_compiler, preprocess
from torch_foundry.msl.syntax.resolve import resolve

ROOT = Path(__file__).parents[2]
SHADERS = sorted((ROOT / "shaders").rglob("*.metal"))
INCLUDES = [ROOT / "shaders"]
MACROS = ROOT / "torch_foundry" / "msl" / "msl_macros.h"


def write(directory: Path, **files: str) -> Path:
    """Files by name, `__` for a slash and a header's dot left out; returns main.metal."""
    for name, text in files.items():
        path = directory / (name.replace("__", "/") + (".metal" if name == "main" else ".h"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / "main.metal"


def body(text: str) -> list[str]:
    """The lines that are neither empty nor directives."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def apple(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Apple's headers, which have our macros in them."""
    folder = tmp_path_factory.mktemp("apple")
    texts = [path.read_text() for path in (ROOT / "shaders").rglob("*.*")]
    for name in {name for text in texts for name in re.findall(r"#include <(metal_\w+|Metal[\w/]+\.h)>", text)}:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f'#include "{MACROS}"\n')
    return folder


def through_cpp(command: list[str], text: str | None = None) -> str:
    compiler = [*find_compiler().split(), "-E", "-P", "-x", "c++", "-undef", "-nostdinc", "-w", "-std=c++14"]
    compiler += [f"-D{macro}" for macro in _predefined(310)]
    return subprocess.run([*compiler, *command], input=text, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shader", SHADERS, ids=lambda p: p.name)
def test_every_shader_is_what_the_preprocessor_makes_of_its_files(shader: Path, apple: Path) -> None:
    """The compiler's own way to find includes is the reference."""
    resolved = resolve(shader, include_dirs=INCLUDES)
    assert '#include "' not in resolved.text and "#pragma once" not in resolved.text
    expected = through_cpp(["-isystem", str(apple), "-I", str(ROOT / "shaders"), str(shader)])
    assert through_cpp(["-isystem", str(apple), "-"], resolved.text).split() == expected.split() and expected.split()


@pytest.mark.parametrize("shader", SHADERS, ids=lambda p: p.name)
def test_executors_see_one_text(shader: Path, tmp_path: Path) -> None:
    """What the translator reads is what Apple's compiler gets, from a checkout as from a built package."""
    text = HEAD + resolve(shader, include_dirs=INCLUDES).text
    assert preprocess(shader, include_dirs=INCLUDES).msl == translate(shader, include_dirs=INCLUDES).msl == text
    for _ in range(2):
        assert sources.translate_cached(shader, ROOT / "shaders", tmp_path)[0] == text
    built = (extension.BUILT / "translated" / shader.name).read_text()
    folder = extension.BUILT / "shaders"
    shipped = HEAD + resolve(folder / shader.relative_to(ROOT / "shaders"), include_dirs=[folder]).text
    assert body(built) == body(shipped)


def test_a_translation_keeps_its_text_through_json() -> None:
    translation = translate("kernel void f(device int* x) { x[0] = N; }\n", defines={"N": 3})
    assert translation.msl.startswith(HEAD + '#define N 3\n#line 1 "<source>"\n')
    assert Translation.from_json(translation.to_json()).msl == translation.msl


def test_lines_are_said(tmp_path: Path) -> None:
    main = write(tmp_path, main='int a;\n#include "x.h"\nint b;\n', x="#pragma once\n\nint x;\n")
    x = tmp_path / "x.h"
    guard = f"MSL_FILE_{hashlib.sha1(x.read_bytes()).hexdigest()[:16]}"
    assert resolve(main).text == (
        f'#line 1 "{main}"\nint a;\n#ifndef {guard}\n#define {guard}\n#line 1 "{x}"\n\n\nint x;\n#endif\n'
        f'#line 3 "{main}"\nint b;\n'
    )


def test_texts_one_behind_the_other_have_a_header_once(tmp_path: Path) -> None:
    """Each comes with what it includes; a compiler that reads both meets the header's text in the first only."""
    write(tmp_path, x="#pragma once\nint x;\n", **{n: f'#include "x.h"\nint {n};\n' for n in ("first", "second")})
    texts = [resolve(tmp_path / f"{name}.h").text for name in ("first", "second")]
    whole = preprocess("".join(texts), name="both.metal").text
    assert body(whole) == ["int x;", "int first;", "int second;"]


def test_once_means_once(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='#include "a.h"\n#include "b.h"\n#include "sub/../a.h"\n',
        a='#pragma once\n#include "common.h"\nint a;\n',
        b='#pragma once\n#include "common.h"\nint b;\n',
        common="#pragma once\nint common;\n",
        sub__x="",
    )
    resolved = resolve(main)
    assert body(resolved.text) == ["int common;", "int a;", "int b;"]
    assert [Path(f).name for f in resolved.files] == ["main.metal", "a.h", "common.h", "b.h"]


def test_a_header_that_is_meant_to_come_often_does(tmp_path: Path) -> None:
    main = write(
        tmp_path, main='#define X 1\n#include "x.h"\n#define X 2\n#include "x.h"\n', x="int v = X;\n#undef X\n"
    )
    assert body(resolve(main).text) == ["int v = X;", "int v = X;"]


def test_once_in_a_branch_that_is_not_taken_does_not_count(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='#ifdef NEVER\n#include "x.h"\n#endif\n#include "y.h"\n#include "x.h"\nint end;\n',
        x="#pragma once\nint x;\n",
        y='#pragma once\n#if 1\n#include "x.h"\n#endif\n',
    )
    text = resolve(main).text
    assert through_cpp(["-"], text).split() == through_cpp([str(main)]).split() == ["int", "x;", "int", "end;"]


def test_include_guards(tmp_path: Path) -> None:
    guarded = "#ifndef {0}_H\n#define {0}_H\n{1}\nint {0};\n#endif\n"
    main = write(
        tmp_path,
        main='#include "a.h"\n#include "b.h"\n#include "a.h"\nint end;\n',
        a=guarded.format("a", '#include "b.h"'),
        b=guarded.format("b", '#include "a.h"'),  # a cycle, which guards make harmless
    )
    text = resolve(main).text
    assert through_cpp(["-"], text).split() == through_cpp([str(main)]).split()


def test_where_files_are_looked_for(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='#include "sub/x.h"\n#include <far.h>\n#include <metal_stdlib>\n#include "far.h"\n',
        sub__x='#include "near.h"\n#include "../top.h"\n',
        sub__near="int near;\n",
        near="int wrong;\n",
        top="int top;\n",
        lib__far="#pragma once\nint far;\n",
    )
    text = resolve(main, include_dirs=[tmp_path / "lib"]).text
    assert body(text) == ["int near;", "int top;", "int far;"]
    assert "#include <metal_stdlib>\n" in text
    assert "#include <far.h>\n" in resolve(main).text  # a header of the compiler's, for all that is known


@pytest.mark.parametrize(
    "files, line, message",
    [
        ({"main": 'int a;\n#include "no.h"\n'}, "main.metal:2", "included file 'no.h' was not found"),
        (
            {"main": '#include "a.h"\n', "a": '\n\n#include "no.h"\n'},
            "a.h:3",
            "included file 'no.h' was not found (main.metal:1 includes a.h:3 includes no.h)",
        ),
        (
            {"main": '\n#include "a.h"\n', "a": '#include "b.h"\n', "b": 'int x;\n#include "no.h"\n'},
            "b.h:2",
            "included file 'no.h' was not found (main.metal:2 includes a.h:1 includes b.h:2 includes no.h)",
        ),
        (
            {"main": '#include "a.h"\n', "a": '#include "b.h"\n', "b": '\n#include "a.h"\n'},
            "b.h:2",
            "a file includes itself: a.h includes b.h includes a.h",
        ),
        ({"main": '#include "main.metal"\n'}, "main.metal:1", "a file includes itself: main.metal includes main.metal"),
        ({"main": '#define H "a.h"\n#include H\n'}, "main.metal:2", "#include takes the name of a file, not a macro"),
    ],
)
def test_errors_name_file_and_line(files: dict[str, str], line: str, message: str, tmp_path: Path) -> None:
    main = write(tmp_path, **files)
    with pytest.raises(MslError) as error:
        preprocess(main)
    assert f"{tmp_path}/{line}: {message}" in str(error.value)
    assert f"#error msl: {message}\n" in resolve(main).text  # Apple's compiler says the same


def test_what_no_compiler_looks_at_may_be_missing(tmp_path: Path) -> None:
    main = write(tmp_path, main='#ifndef __METAL_VERSION__\n#include "host_only.h"\n#endif\nint x;\n')
    assert preprocess(main).text.split()[-2:] == ["int", "x;"]


def test_comments_and_strings_hide_directives(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='// #include "x.h"\n/* #include "x.h"\n#include "x.h"\n*/ int a; /**/ #define no\n'
        'constant char* s = "/*";\n#include "x.h" // yes\n#define M \\\n#include "x.h"\n  #  include   "x.h"\n',
        x="int x;\n",
    )
    assert body(resolve(main).text).count("int x;") == 2


def test_files_that_are_no_text(tmp_path: Path) -> None:
    main = write(tmp_path, main='#include "x.h"\n')
    (tmp_path / "x.h").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MslError, match=r"x\.h: cannot be read"):
        resolve(main)
    with pytest.raises(MslError, match=r"absent\.metal: no such file"):
        resolve(tmp_path / "absent.metal")


def test_names_with_spaces_and_quotes(tmp_path: Path) -> None:
    main = write(tmp_path / 'a "b" c', main='#include "x.h"\nint a;\n#error here\n', x="int x;\n")
    with pytest.raises(MslError, match=r"a .*b.* c/main\.metal:3: #error here"):
        preprocess(main)


def test_moving_a_checkout_changes_names_only(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "shaders", tmp_path / "shaders")
    for shader in SHADERS:
        moved = resolve(folder / shader.relative_to(ROOT / "shaders"), include_dirs=[folder])
        assert body(moved.text) == body(resolve(shader, include_dirs=INCLUDES).text)


def test_two_shaders_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "k.metal").write_text("")
    with pytest.raises(ValueError, match=r"a/k\.metal and .*b/k\.metal: kernels are known by"):
        sources.shader_files(tmp_path)
