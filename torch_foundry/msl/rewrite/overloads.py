"""Overloads that differ in address spaces only: C++ sees one signature, so the first is kept.

The bodies of such overloads are taken to be the same; MSL code writes them out once per address space.
"""

from __future__ import annotations

from ..reflect import is_kernel, parameter, parameter_end
from ..syntax.declarations import Declaration, Scope
from ..syntax.lexer import Tokens
from ..syntax.vocabulary import ADDRESS_SPACES
from .editor import Editor

_ERASED = ADDRESS_SPACES | {"static", "inline", "constexpr", "const", "typename", "METAL_FUNC"}


def merge(editor: Editor, scope: Scope) -> None:
    """Removes repeated functions, methods and partial specialisations from `scope` and the scopes in it."""
    tokens = editor.tokens
    seen: dict[tuple[str, ...], bool] = {}
    for declaration in list(scope.declarations):
        if declaration.members is not None and declaration.kind == "namespace":
            merge(editor, declaration.members)
            continue
        key = _key(tokens, declaration)
        if key:
            spaces = not ADDRESS_SPACES.isdisjoint(tokens.text[declaration.start : _head_end(declaration)])
            if is_constructor(tokens, declaration):
                _unqualify(editor, declaration)
            if key in seen and (spaces or seen[key]):
                editor.blank(declaration.start, declaration.end + 1)
                scope.declarations.remove(declaration)
                continue
            seen[key] = spaces
        if scope.kind == "class":
            _unspecialise(editor, declaration)
        if declaration.members is not None:
            merge(editor, declaration.members)


def _unspecialise(editor: Editor, declaration: Declaration) -> None:
    """Makes `template <> R f(..)` in a class a plain overload: g++ takes specialisations in namespaces only."""
    tokens = editor.tokens
    if declaration.template is None or declaration.kind != "function":
        return
    lo, hi = declaration.template
    spelled_arguments = tokens.text[declaration.params - 1] == ">"
    operator = "operator" in tokens.text[declaration.head : declaration.params]
    if hi == lo + 1 and (operator or not spelled_arguments):
        editor.blank(lo - 1, hi + 1)


def _unqualify(editor: Editor, constructor: Declaration) -> None:
    """A constructor may be written for `constant` objects, but C++ has no const constructors."""
    for i in range(editor.tokens.match[constructor.params] + 1, _head_end(constructor)):
        if editor.tokens.text[i] == "constant":
            editor.replace(i, "")
            break
        if editor.tokens.text[i] == ":":
            break


def _head_end(declaration: Declaration) -> int:
    return declaration.body if declaration.body >= 0 else declaration.end


def _key(tokens: Tokens, declaration: Declaration) -> tuple[str, ...]:
    """What C++ tells declarations of the scope apart by; empty for what cannot collide."""
    if declaration.kind == "class" and declaration.template is not None:
        names = _template_names(tokens, declaration)
        return ("class", *_words(tokens, declaration.head, declaration.body, names))
    if declaration.kind != "function" or (declaration.body < 0 and declaration.scope.kind != "class"):
        return ()
    if declaration.template is None and is_kernel(tokens, declaration):
        return ()
    names = _template_names(tokens, declaration)
    key = ["function"]
    if declaration.template is not None:
        lo, hi = declaration.template
        key += [*_words(tokens, lo, hi + 1, names), "->"]
        key += _words(tokens, declaration.head, declaration.params, names)
    else:
        key += _words(tokens, _name_start(tokens, declaration), declaration.params, names)
    close = tokens.match[declaration.params]
    for lo, hi in tokens.split(declaration.params + 1, close):
        key += [",", *_parameter_key(tokens, lo, hi, names)]
    if not is_constructor(tokens, declaration):
        key += _trailing_const(tokens, close + 1, _head_end(declaration))
    return tuple(key)


def is_constructor(tokens: Tokens, declaration: Declaration) -> bool:
    """Whether a member function bears its class's name."""
    return declaration.scope.kind == "class" and declaration.name(tokens) == declaration.scope.name


def _name_start(tokens: Tokens, declaration: Declaration) -> int:
    for i in range(declaration.params - 1, declaration.head - 1, -1):
        if tokens.text[i] == "operator":
            return _qualified_start(tokens, i)
    return _qualified_start(tokens, declaration.name_at(tokens))


def _qualified_start(tokens: Tokens, name: int) -> int:
    """Where the qualifiers of the name at `name` begin: the classes of `A::f` and `B<int>::f` tell them apart."""
    while tokens.at(name - 1) == "::":
        before = name - 2
        name = tokens.angle_back(before) - 1 if tokens.at(before) == ">" else before
    return name


def _template_names(tokens: Tokens, declaration: Declaration) -> dict[str, str]:
    """Template parameters by position, so that their names do not matter."""
    if declaration.template is None:
        return {}
    lo, hi = declaration.template
    names = {}
    for k, (a, b) in enumerate(tokens.split(lo + 1, hi)):
        equals = next((i for i in range(a, b) if tokens.text[i] == "="), b)
        if tokens.kind[equals - 1] == "id" and equals - 1 > a:
            names[tokens.text[equals - 1]] = f"${k}"
    return names


def _words(tokens: Tokens, lo: int, hi: int, names: dict[str, str]) -> list[str]:
    """Tokens of [lo, hi) without address spaces and attributes; `constant` counts as const only in types."""
    out = []
    i = lo
    while i < hi:
        t = tokens.text[i]
        if t == "[" and tokens.is_attribute(i):
            i = tokens.match[i]
        elif t == "__attribute__":
            i = tokens.match[i + 1]
        elif t == "constant":
            out.append("const")
        elif t not in _ERASED or (t == "const" and "const" not in out[-2:]):
            out.append(names.get(t, t))
        i += 1
    return out


def _parameter_key(tokens: Tokens, lo: int, hi: int, names: dict[str, str]) -> list[str]:
    type_, _ = parameter(tokens, lo, parameter_end(tokens, lo, hi))
    words = type_.replace("*", " * ").replace("&", " & ").replace("<", " < ").replace(">", " > ").replace(",", " , ")
    parts = words.split()
    first = next((k for k, w in enumerate(parts) if w in "*&"), len(parts))
    constant = first < len(parts) and ("const" in parts[:first] or "constant" in parts[:first])
    return (["const"] if constant else []) + [names.get(w, w) for w in parts if w not in _ERASED]


def _trailing_const(tokens: Tokens, lo: int, hi: int) -> list[str]:
    """`const`, or `constant`, which erases to it, after the parameter list of a method."""
    for i in range(lo, hi):
        if tokens.text[i] in (":", "->", "="):
            break
        if tokens.text[i] in ("const", "constant"):
            return ["const"]
    return []
