"""Kernels of a file and their parameters, read from tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .model import Argument
from .syntax.declarations import Declaration
from .syntax.integers import Integers
from .syntax.lexer import Tokens
from .syntax.vocabulary import ADDRESS_SPACES, BUILTINS, UNSUPPORTED_ATTRIBUTES, UNSUPPORTED_STAGES

_SPACED = re.compile(r" +([*&])")
_SIGNS = frozenset({"unsigned", "signed"})
_QUALIFIERS = ADDRESS_SPACES | _SIGNS | {"const", "volatile", "coherent", "struct", "class", "enum", "typename"}


@dataclass(frozen=True)
class Attribute:
    """One attribute of a `[[..]]` list; its arguments are tokens [lo, hi)."""

    name: str
    lo: int
    hi: int


@dataclass
class KernelFunction:
    """A kernel or kernel template with a body."""

    declaration: Declaration
    name: str
    host_name: str | None
    args: list[Argument]
    alias: str = ""  # of msl_::args<..>, in the kernel's scope
    cpp_name: str = ""  # differs from `name` for the second and later kernel of one name


def attributes(tokens: Tokens, lo: int, hi: int) -> Iterator[Attribute]:
    """The attributes between tokens `lo` and `hi`."""
    i = lo
    while i < hi:
        if tokens.text[i] == "[" and tokens.is_attribute(i):
            close = tokens.match[i + 1]
            for a, b in tokens.split(i + 2, close):
                while tokens.at(a + 1) == "::":
                    a += 2
                call = tokens.at(a + 1) == "("
                yield Attribute(tokens.text[a], a + 2 if call else b, tokens.match[a + 1] if call else b)
            i = close + 1
        i += 1


def string_value(tokens: Tokens, lo: int, hi: int) -> str:
    """The text of adjacent string literals."""
    parts = tokens.text[lo:hi]
    if not parts or any(not p.startswith('"') for p in parts):
        raise tokens.error(lo, "host_name needs a string literal")
    return "".join(p[1:-1] for p in parts)


def is_kernel(tokens: Tokens, declaration: Declaration) -> bool:
    """Whether the function is declared `kernel`, `[[kernel]]`; refuses functions of other stages."""
    lo, hi = declaration.head, declaration.params
    for i in range(lo, hi):
        word = tokens.text[i]
        if word == "kernel":
            return True
        if word in ("vertex", "fragment") and not tokens.is_attribute(i - 1) and tokens.text[i - 1] not in ("[", ","):
            raise tokens.error(i, f"{UNSUPPORTED_STAGES[word]} are not supported")
    found = False
    for attribute in attributes(tokens, lo, hi):
        if attribute.name in UNSUPPORTED_STAGES:
            raise tokens.error(lo, f"{UNSUPPORTED_STAGES[attribute.name]} are not supported")
        found = found or attribute.name == "kernel"
    return found


def kernel_function(tokens: Tokens, declaration: Declaration, integers: Integers) -> KernelFunction:
    """Reads the head of a kernel's definition."""
    name = declaration.name(tokens)
    host_name = None
    for attribute in attributes(tokens, declaration.head, declaration.body):
        if attribute.name == "host_name":
            host_name = string_value(tokens, attribute.lo, attribute.hi)
    return KernelFunction(declaration, name, host_name, kernel_arguments(tokens, declaration.params, integers))


def kernel_arguments(tokens: Tokens, params: int, integers: Integers) -> list[Argument]:
    """The parameters between the parentheses at `params`, buffers without an index numbered in order."""
    parts = tokens.split(params + 1, tokens.match[params])
    if len(parts) == 1 and tokens.text[parts[0][0] : parts[0][1]] == ["void"]:
        return []
    args = [_argument(tokens, lo, hi, integers) for lo, hi in parts]
    for kind in ("buffer", "threadgroup"):
        taken = {a.index for a in args if a.kind == kind}
        following = 0
        for k, a in enumerate(args):
            if a.kind == kind and a.index is None:
                while following in taken:
                    following += 1
                args[k] = replace(a, index=following)
                taken.add(following)
    return args


def _argument(tokens: Tokens, lo: int, hi: int, integers: Integers) -> Argument:
    end = parameter_end(tokens, lo, hi)
    type_, name = parameter(tokens, lo, end)
    type_ = _SPACED.sub(r"\1", type_)
    words = type_.replace("*", " * ").replace("&", " & ").split()
    space = next((w for w in words if w in ADDRESS_SPACES), "")
    declared = words[: next((k for k, w in enumerate(words) if w in "*&"), len(words))]
    pointer = len(declared) < len(words)
    writable = pointer and space in ("device", "threadgroup") and "const" not in declared
    found = Argument(name, "", type_, address_space=space, writable=writable)
    for attribute in attributes(tokens, end, hi):
        where = attribute.name
        if where in ("buffer", "threadgroup"):
            index = integers.value(attribute.lo, attribute.hi)
            if index is None:
                text = tokens.join(attribute.lo, attribute.hi)
                raise tokens.error(lo, f"the index of [[{where}({text})]] is no integer constant known here")
            found = replace(found, kind=where, index=index)
        elif where in BUILTINS:
            found = replace(found, kind="builtin", builtin=where, address_space="", writable=False)
        elif where == "function_constant":
            found = replace(found, optional_on=tokens.join(attribute.lo, attribute.hi))
        elif where in UNSUPPORTED_ATTRIBUTES:
            raise tokens.error(lo, f"{UNSUPPORTED_ATTRIBUTES[where]} are not supported (argument '{name}')")
        elif where not in ("maybe_unused", "user", "clang"):
            raise tokens.error(lo, f"unknown attribute [[{where}]] of argument '{name}'")
    if found.kind:
        return found
    if space in ("device", "constant"):
        return replace(found, kind="buffer")
    if space == "threadgroup":
        return replace(found, kind="threadgroup")
    raise tokens.error(lo, f"kernel argument '{name or type_}' has neither an address space nor an attribute")


def parameter_end(tokens: Tokens, lo: int, hi: int) -> int:
    """Where the attributes or the default value of the parameter in [lo, hi) start."""
    for i in range(lo, hi):
        if tokens.text[i] == "=" or (tokens.text[i] == "[" and tokens.is_attribute(i)):
            return i
    return hi


def parameter(tokens: Tokens, lo: int, hi: int) -> tuple[str, str]:
    """Type as written and name of the parameter in [lo, hi), which ends before attributes and default value."""
    text, kind = tokens.text, tokens.kind
    array = hi
    while array > lo and text[array - 1] == "]":
        array = tokens.match[array - 1]
    if array > lo and text[array - 1] == ")" and text[tokens.match[array - 1] + 1] in "*&":  # T (&name)[N]
        if kind[array - 2] == "id":
            return tokens.join(lo, array - 2) + tokens.join(array - 1, hi), text[array - 2]
        return tokens.join(lo, hi), ""
    last = array - 1
    named = (
        last > lo
        and kind[last] == "id"
        and text[last] not in _QUALIFIERS
        and text[last - 1] != "::"
        and any(kind[i] == "id" and text[i] not in _QUALIFIERS - _SIGNS for i in range(lo, last))
    )
    if not named:
        return tokens.join(lo, hi), ""
    return tokens.join(lo, last) + tokens.join(array, hi), text[last]
