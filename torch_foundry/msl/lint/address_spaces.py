"""The address-space check: the source as C++ for OpenCL, where device, threadgroup, constant and thread stay real.

clang reads it, syntax only, against declarations of its own (address_space_shim.h). Host compilers have no address
spaces, so a pointer into the wrong memory passes them and fails on Apple's compiler only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..reflect import attributes, is_kernel
from ..rewrite import threadgroup
from ..rewrite.editor import Editor
from ..rewrite.qualifiers import literal, vector_constants
from ..syntax.declarations import Declaration, Scope, parse, walk
from ..syntax.integers import Integers
from ..syntax.lexer import Tokens
from ..syntax.preprocess import Defines, has_tensors, preprocess
from .unit import Comments, Finding, allowed_removed, given_text, instances

_SPACES = {"device": "__global", "threadgroup": "__local", "constant": "__constant", "thread": "__private"}
_OPENCL_WORDS = frozenset({"local", "global", "generic", "pipe", "read_only", "write_only", "read_write"})
_SHIM = Path(__file__).parent / "address_space_shim.h"
_TENSORS = Path(__file__).parent / "address_space_tensors.h"
_OPTIONS = "-x clcpp -cl-std=clc++2021 -cl-no-stdinc -target spir64-unknown-unknown -fsyntax-only -w -ferror-limit=0"
_DIAGNOSTIC = re.compile(r"^([^:\n]+):(\d+):\d+: (?:fatal )?(error|note): (.*)$", re.M)
# what the declarations above the source lack says nothing about the source
_GAP = re.compile(
    "undeclared identifier|no member named|unknown type name|no template named|no type named|use of class template"
    "|overloaded function"  # an instance that OpenCL cannot name: functions as template arguments
)
# bfloat is a class here, which converts both ways; in MSL it is a number
_NUMBER = re.compile(r"conditional expression is ambiguous; .*\bbfloat\b")
_CANDIDATE = re.compile(r"candidate .*(not viable|ignored)")
_ENTRY = "<entry>"  # file name of the uses of entries, numbered from line 1
_ABOUT_SPACES = re.compile(r"address space|__(?:global|local|constant|private|generic)\b|read-only variable")


@dataclass(frozen=True)
class Report:
    """`findings` break the rule, `gaps` are constructs the check does not know, `skipped` says why it did not run."""

    findings: list[Finding] = field(default_factory=list)
    gaps: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # kernel templates without an instance
    skipped: str = ""


def find_clang() -> str | None:
    """A clang++ that knows C++ for OpenCL: $CLANGXX, clang++ or clang++-14 .. clang++-20, the newest first."""
    named = [os.environ.get("CLANGXX", ""), "clang++", *(f"clang++-{v}" for v in range(20, 13, -1))]
    return next((c for c in named if c and shutil.which(c)), None)


def check(
    path_or_source: str | os.PathLike[str],
    *,
    entries: Sequence[str] = (),
    defines: Defines | None = None,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    metal_version: int = 310,
    name: str = "<source>",
) -> Report:
    """Checks the functions of a file, and of its templates the instances: explicit ones, and those in `entries`.

    An entry is written as in C++: "rms_norm<half, Llama, 4>". Raises MslError for source that cannot be read.
    """
    clang = find_clang()
    if clang is None:
        return Report(skipped="no clang++ was found (looked for $CLANGXX, clang++ and clang++-14 to clang++-20)")
    settings: dict[str, Any] = {
        "defines": defines,
        "include_dirs": include_dirs,
        "metal_version": metal_version,
    }
    ready = preprocess(path_or_source, name=name, **settings)
    tokens = Tokens(ready.text, ready.name)
    comments = Comments(given_text(ready.name, path_or_source))
    entries = [*entries, *instances(path_or_source, **settings)]
    root = parse(tokens)
    text = opencl_text(tokens, root, ready.name, entries)
    command = [
        clang,
        *_OPTIONS.split(),
        "-fno-caret-diagnostics",
        "-fno-color-diagnostics",
        "-include",
        str(_SHIM),
        *(["-include", str(_TENSORS)] if has_tensors(ready.msl) else []),
        "-",
    ]
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    report = _report(result.stderr, result.returncode, entries, comments)
    return replace(report, unchecked=_unchecked(tokens, root, entries))


def opencl_text(tokens: Tokens, root: Scope, name: str, entries: Sequence[str]) -> str:
    """The source in C++ for OpenCL, line markers kept, with a use of every instance."""
    editor = Editor(tokens)
    _respell(editor)
    vector_constants(editor)
    _threadgroup_variables(editor, root)
    integers = Integers(tokens, root)
    for declaration in walk(root):
        if declaration.kind == "other":
            _function_constant(editor, declaration, integers)
    for serial, declaration in enumerate(walk(root)):
        if declaration.kind == "instantiation":
            _use_instance(editor, declaration, serial)
    uses = "".join(
        f'\n# {k + 1} "{_ENTRY}"\nvoid msl_use_entry_{k}() {{ (void)&{entry}; }}' for k, entry in enumerate(entries)
    )
    return f'# 1 "{name}"\n{editor.render()}{uses}\n'


def _respell(editor: Editor) -> None:
    tokens = editor.tokens
    i = 0
    while i < len(tokens):
        t = tokens.text[i]
        if tokens.kind[i] == "num":
            editor.replace(i, literal(t))
        elif t in _SPACES and tokens.at(i - 1) not in (".", "->"):
            of_object = tokens.at(i - 1) == ")" or (tokens.at(i - 1) == "const" and tokens.at(i - 2) == ")")
            implied = " const" if t == "constant" and not of_object else ""
            editor.replace(i, _SPACES[t] + implied)
        elif t in _OPENCL_WORDS:
            editor.replace(i, f"msl_{t}")
        elif t == "kernel":
            editor.replace(i, "")
        elif t == "coherent":
            editor.blank(i, i + 4 if tokens.at(i + 1) == "(" else i + 1)
        elif t == "_Pragma" and tokens.at(i + 1) == "(":
            editor.blank(i, tokens.match[i + 1] + 1)
        elif t == "[" and tokens.is_attribute(i):
            editor.blank(i, tokens.match[i] + 1)
            i = tokens.match[i]
        i += 1


def _threadgroup_variables(editor: Editor, root: Scope) -> None:
    """OpenCL has __local variables in kernels only, and templates are none: a reference stands in."""
    tokens = editor.tokens
    for start, qualifier, end in threadgroup.variables(tokens, root):
        names = threadgroup.declarators(tokens, qualifier + 1, end)
        if not names:
            continue
        threadgroup.drop_initialisers(editor, names[0], end)
        editor.replace(qualifier, "")
        editor.before(start, "typedef ")
        for i in names:
            name = editor.text(i)
            editor.replace(i, f"{name}_msl_t")
            editor.after(end, f" __local {name}_msl_t& {name} = msl_threadgroup<{name}_msl_t>();")


def _function_constant(editor: Editor, declaration: Declaration, integers: Integers) -> None:
    """Its value comes from elsewhere."""
    tokens = editor.tokens
    if any(a.name == "function_constant" for a in attributes(tokens, declaration.start, declaration.end)):
        editor.before(declaration.head, "extern ")


def _use_instance(editor: Editor, declaration: Declaration, serial: int) -> None:
    """Turns an explicit instantiation into a use, which makes clang check the body."""
    tokens = editor.tokens
    last = declaration.end - 1
    while tokens.at(last) == "]" and tokens.is_attribute(tokens.match[last]):
        last = tokens.match[last] - 1
    if tokens.at(last) == ")":
        return  # with its parameters spelled out, C++ takes it as it is
    open_ = tokens.angle_back(last) if tokens.at(last) == ">" else last + 1
    start = open_ - 1
    while tokens.at(start - 1) == "::" and tokens.kind[start - 2] == "id" and tokens.text[start - 2] != "void":
        start -= 2
    name = editor.join(start, last + 1)
    editor.blank(declaration.start, declaration.end + 1)
    editor.before(declaration.start, f"inline void msl_use_{serial}() {{ (void)&{name}; }}")


def _unchecked(tokens: Tokens, root: Scope, entries: Sequence[str]) -> list[str]:
    used = {word for entry in entries for word in re.split(r"\W+", entry.partition("<")[0])}
    templates: dict[str, None] = {}
    for declaration in walk(root):
        if declaration.kind == "instantiation":
            used.update(tokens.text[declaration.start : declaration.end])
        elif declaration.kind == "function" and declaration.template and is_kernel(tokens, declaration):
            templates[declaration.name(tokens)] = None
    return [name for name in templates if name not in used]


def _report(stderr: str, returncode: int, entries: Sequence[str], comments: Comments) -> Report:
    errors: list[Finding] = []
    for row in stderr.splitlines():
        m = _DIAGNOSTIC.match(row)
        if not m:
            continue
        file, line, kind, message = m[1], int(m[2]), m[3], m[4]
        if file == _ENTRY:
            message = f"{message} (in the instance {entries[line - 1]})"
        if _NUMBER.match(message):
            continue
        if kind == "error":
            errors.append(Finding(file, line, "address-space", message))
        elif errors and _CANDIDATE.search(message) and _ABOUT_SPACES.search(message):
            last = errors[-1]
            errors[-1] = Finding(last.file, last.line, last.rule, f"{last.message} ({message})")
    if returncode and not errors and not _DIAGNOSTIC.search(stderr):
        return Report(skipped=f"clang failed: {(stderr.strip().splitlines() or ['no message'])[-1]}")
    gaps = [e for e in errors if _GAP.search(e.message) and e.file != _ENTRY]
    found = [
        e if _ABOUT_SPACES.search(e.message) else Finding(e.file, e.line, "type-check", e.message)
        for e in errors
        if e not in gaps
    ]
    return Report(allowed_removed(found, comments), gaps)
