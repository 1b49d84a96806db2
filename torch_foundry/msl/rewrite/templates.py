"""Explicit instantiations `template [[host_name("..")]] .. f<..>..;`: read into kernels and taken out of the text.

Where no expression at the end of the file could name the instance, a reference to it stays behind, as a variable
template, so that it costs nothing until it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model import Argument
from ..reflect import KernelFunction, attributes, kernel_arguments, string_value
from ..syntax.declarations import Declaration
from ..syntax.integers import Integers
from ..syntax.lexer import Tokens
from ..syntax.vocabulary import SCALARS
from .editor import Editor

_SPELLED_OUT = frozenset({*SCALARS, "true", "false", "const", "unsigned", "signed", "metal"})


@dataclass
class Instantiation:
    """What an explicit instantiation says."""

    host_name: str | None
    kernel: KernelFunction
    entry: str  # "f<half>", qualified by the enclosing scopes
    at: int


def read_instantiation(
    editor: Editor, declaration: Declaration, kernels: dict[str, list[KernelFunction]], integers: Integers, serial: int
) -> Instantiation | None:
    """Reads and removes an instantiation of a kernel template; None if it instantiates something else."""
    tokens = editor.tokens
    host_name = None
    is_kernel = "kernel" in tokens.text[declaration.head : declaration.end]
    for attribute in attributes(tokens, declaration.head, declaration.end):
        if attribute.name == "host_name":
            host_name = string_value(tokens, attribute.lo, attribute.hi)
    last = declaration.end - 1
    while tokens.at(last) == "]" and tokens.is_attribute(tokens.match[last]):
        last = tokens.match[last] - 1
    params = tokens.match[last] if tokens.at(last) == ")" else -1
    close = params - 1 if params >= 0 else last
    open_ = tokens.angle_back(close) if tokens.at(close) == ">" else -1
    name_at = open_ - 1 if open_ >= 0 else close
    name = tokens.text[name_at]
    if name not in kernels:
        if host_name is not None or is_kernel:
            raise tokens.error(name_at, f"explicit instantiation of the unknown kernel template '{name}'")
        return None
    start = name_at
    while tokens.at(start - 1) == "::" and tokens.kind[start - 2] == "id" and tokens.text[start - 2] != "void":
        start -= 2
    kernel = _choose(kernels[name], tokens, params, integers)
    qualifier = "".join(tokens.text[start:name_at])
    local = f"{qualifier}{kernel.cpp_name}{editor.join(open_, close + 1) if open_ >= 0 else ''}"
    entry = local if qualifier else declaration.scope.qualified(local)
    reference = ""
    if open_ < 0 and params >= 0:  # template arguments are left to be deduced from the parameters
        reference = f"static_cast<void (&)({editor.join(params + 1, tokens.match[params])})>({local})"
    elif declaration.scope.qualified("") and _names_something(editor, open_, close):
        reference = local  # the arguments may name what only this namespace sees
    editor.blank(declaration.start, declaration.end + 1)
    if reference:
        instance = f"msl_instance_{serial}"
        editor.before(declaration.start, f"template <class = void> static constexpr auto& {instance} = {reference};")
        entry = declaration.scope.qualified(instance) + "<>"
    return Instantiation(host_name, kernel, entry, name_at)


def _choose(candidates: list[KernelFunction], tokens: Tokens, params: int, integers: Integers) -> KernelFunction:
    """The kernel template, of several with one name, whose parameters the instantiation repeats."""
    if len(candidates) > 1 and params >= 0:
        args = kernel_arguments(tokens, params, integers)
        for attempt in (_exact, _tags, len):
            same = [c for c in candidates if attempt(c.args) == attempt(args)]
            if len(same) == 1:
                return same[0]
    return candidates[0]


def _exact(args: list[Argument]) -> list[tuple[str, str]]:
    return [(a.name, a.tag()) for a in args]


def _tags(args: list[Argument]) -> list[str]:
    return [a.tag() for a in args]


def _names_something(editor: Editor, lo: int, hi: int) -> bool:
    tokens = editor.tokens
    return lo >= 0 and any(tokens.kind[i] == "id" and tokens.text[i] not in _SPELLED_OUT for i in range(lo, hi))
