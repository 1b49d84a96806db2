"""From Metal source to C++ text and signatures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from .model import FunctionConstant, Kernel, MslError, Translation
from .reflect import KernelFunction, is_kernel, kernel_function
from .rewrite import arithmetic, constants, expressions, overloads, threadgroup
from .rewrite.editor import Editor
from .rewrite.qualifiers import rewrite_qualifiers, vector_constants
from .rewrite.templates import read_instantiation
from .syntax.declarations import Declaration, Scope, parse, walk
from .syntax.integers import Integers
from .syntax.lexer import Tokens
from .syntax.library import METAL_NAMES
from .syntax.preprocess import Defines, has_tensors, preprocess

PRELUDE = "metal_prelude.h"
TENSORS = "metal_tensor.h"  # of the host's prelude alone: a header whose names other sources may use


def translate(
    path_or_source: str | os.PathLike[str],
    *,
    defines: Defines | None = None,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    metal_version: int = 310,
    name: str = "<source>",
) -> Translation:
    """Translates a Metal file, or source text (then `name` stands for the file in messages).

    Raises MslError, which names file and line, for source that the preprocessor rejects and for what the host
    cannot run.
    """
    ready = preprocess(
        path_or_source, defines=defines, include_dirs=include_dirs, metal_version=metal_version, name=name
    )
    tokens = Tokens(ready.text, ready.name)
    unit = _Unit(Editor(tokens), parse(tokens))
    constants = unit.rewrite()
    tensors = f'#include "{TENSORS}"\n' if has_tensors(ready.msl) else ""
    source = f'#include "{PRELUDE}"\n{tensors}# 1 "{ready.name}"\n{unit.editor.render()}'
    return Translation(source, unit.kernels, unit.templates, constants, ready.files, ready.msl)


class _Unit:
    """One file on its way: the order of the rewrites is the order of the calls in `rewrite`."""

    def __init__(self, editor: Editor, root: Scope) -> None:
        self.editor = editor
        self.tokens = editor.tokens
        self.root = root
        self.integers = Integers(editor.tokens, root)
        self.functions: dict[str, list[KernelFunction]] = {}
        self.kernels: list[Kernel] = []
        self.templates: list[Kernel] = []
        self._aliases: set[str] = set()
        self._names: dict[str, Kernel] = {}

    def rewrite(self) -> list[FunctionConstant]:
        rewrite_qualifiers(self.editor)
        vector_constants(self.editor)
        asked = constants.replace_queries(self.editor)
        expressions.rewrite_conditionals(self.editor, self.root)
        arithmetic.guard(self.editor, self.root)
        expressions.expand_designators(self.editor)
        threadgroup.hoist(self.editor, self.root)
        overloads.merge(self.editor, self.root)
        defined = constants.define(self.editor, self.root, self.integers, asked)
        declarations = list(walk(self.root))
        for declaration in declarations:
            if declaration.kind == "function" and is_kernel(self.tokens, declaration):
                self._kernel(declaration)
        for serial, declaration in enumerate(declarations):
            if declaration.kind == "instantiation":
                self._instantiation(declaration, serial)
        return defined

    def _kernel(self, declaration: Declaration) -> None:
        """Makes a kernel a plain function, followed by the alias that says how its arguments are bound."""
        editor, tokens = self.editor, self.tokens
        specifiers = range(declaration.head, declaration.params)
        for i in specifiers:
            if tokens.text[i] in ("kernel", "extern") or tokens.text[i].startswith('"'):
                editor.replace(i, "")
        if declaration.template is None and not {"static", "inline"} & {tokens.text[i] for i in specifiers}:
            editor.before(declaration.head, "static ")
        if declaration.body < 0:
            return
        kernel = kernel_function(tokens, declaration, self.integers)
        same = self.functions.setdefault(kernel.name, [])
        same.append(kernel)
        scope = declaration.scope
        suffix = ""
        while scope.qualified(f"{kernel.name}{suffix}_msl_args") in self._aliases:
            suffix = f"_{int(suffix[1:] or 1) + 1}"
        kernel.alias, kernel.cpp_name = f"{kernel.name}{suffix}_msl_args", kernel.name
        self._aliases.add(scope.qualified(kernel.alias))
        overloaded = suffix and declaration.template is not None
        if overloaded or kernel.name in METAL_NAMES:  # no expression would name one function
            kernel.cpp_name = f"{kernel.name}_msl{suffix or '_1'}"
            editor.replace(declaration.name_at(tokens), kernel.cpp_name)
            if not overloaded:
                self._rename_types(kernel)
        words = set(tokens.text[declaration.body : declaration.end])
        tags = ", ".join(a.tag(named=a.name in words) for a in kernel.args)
        editor.after(declaration.end, f" using {kernel.alias} = msl_::args<{tags}>;")
        entry = scope.qualified(kernel.cpp_name)
        if declaration.template is not None:
            self.templates.append(self._described(kernel, kernel.name, entry))
        else:
            self._add(self._described(kernel, kernel.host_name or scope.qualified(kernel.name), entry))

    def _rename_types(self, kernel: KernelFunction) -> None:
        """Lets `decltype(dot<float>)` name the kernel, as `decltype(dot(a, b))` does not."""
        tokens = self.tokens
        for i, text in enumerate(tokens.text):
            if text == kernel.name and tokens.at(i + 1) in ("<", ")"):
                start = i
                while tokens.at(start - 1) == "::":
                    start -= 2
                if tokens.at(start - 1) == "(" and tokens.at(start - 2) == "decltype":
                    self.editor.replace(i, kernel.cpp_name)

    def _instantiation(self, declaration: Declaration, serial: int) -> None:
        found = read_instantiation(self.editor, declaration, self.functions, self.integers, serial)
        if found is None:
            return
        described = self._described(found.kernel, found.host_name or found.entry, found.entry)
        file, line = self.tokens.where(found.at)
        self._add(replace(described, file=file, line=line, end_line=0))

    def _described(self, kernel: KernelFunction, name: str, entry: str) -> Kernel:
        scope = kernel.declaration.scope
        file, line = self.tokens.where(kernel.declaration.name_at(self.tokens))
        _, end_line = self.tokens.where(kernel.declaration.end)
        return Kernel(name, entry, scope.qualified(kernel.alias), kernel.args, file, line, end_line)

    def _add(self, kernel: Kernel) -> None:
        first = self._names.setdefault(kernel.name, kernel)
        if first is not kernel:
            message = f"a kernel named '{kernel.name}' exists already, from {first.file}:{first.line}"
            raise MslError(kernel.file, kernel.line, message)
        self.kernels.append(kernel)
