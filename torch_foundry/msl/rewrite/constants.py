"""Function constants are fixed at compile time: `constant T x [[function_constant(3)]];` reads the macro MSL_FC_3."""

from __future__ import annotations

from ..model import FunctionConstant
from ..reflect import attributes
from ..syntax.declarations import Declaration, Scope, walk
from ..syntax.integers import Integers
from ..syntax.vocabulary import VECTOR_TYPES
from .editor import Editor

_SPECIFIERS = frozenset({"constant", "const", "constexpr", "static", "volatile", "inline"})


def define(editor: Editor, root: Scope, integers: Integers, asked: set[str]) -> list[FunctionConstant]:
    """Rewrites the declarations of function constants; whether those in `asked` are defined, the source asks."""
    found = []
    for declaration in walk(root):
        if declaration.kind == "other" and declaration.scope.kind == "namespace":
            constant = _constant(editor, declaration, integers, asked)
            if constant:
                found.append(constant)
    return found


def replace_queries(editor: Editor) -> set[str]:
    """Names in is_function_constant_defined(..), each call replaced by the constant's twin `NAME_msl_defined`."""
    tokens = editor.tokens
    asked = set()
    for i, t in enumerate(tokens.text):
        if t != "is_function_constant_defined" or tokens.at(i + 1) != "(":
            continue
        close = tokens.match[i + 1]
        name = tokens.text[close - 1]
        asked.add(name)
        start = i - 2 if tokens.at(i - 1) == "::" and tokens.at(i - 2) == "metal" else i
        editor.blank(start, i + 1)
        editor.replace(close - 1, f"{name}_msl_defined")
    return asked


def _constant(editor: Editor, declaration: Declaration, integers: Integers, asked: set[str]) -> FunctionConstant | None:
    tokens = editor.tokens
    lo, hi = declaration.start, declaration.end
    bracket = next((i for i in range(lo, hi) if tokens.text[i] == "[" and tokens.is_attribute(i)), hi)
    attribute = next((a for a in attributes(tokens, bracket, hi) if a.name == "function_constant"), None)
    if attribute is None:
        return None
    index = integers.value(attribute.lo, attribute.hi)
    if index is None:
        raise tokens.error(attribute.lo, "the index of a function constant must be an integer constant")
    name = tokens.text[bracket - 1]
    type_ = editor.join(lo, bracket - 1)
    type_ = " ".join(w for w in type_.split() if w not in _SPECIFIERS)
    storage = "static const" if type_.removeprefix("metal::") in VECTOR_TYPES else "static constexpr"
    editor.blank(lo, hi + 1)
    editor.before(
        lo,
        f"\n#ifdef MSL_FC_{index}\n"
        f"{storage} {type_} {name} = {type_}(MSL_FC_{index}); static constexpr bool {name}_msl_defined = true;\n"
        f"#else\n"
        f"{storage} {type_} {name} = {type_}(); static constexpr bool {name}_msl_defined = false;\n"
        f"#endif{editor.marker(hi)}",
    )
    return FunctionConstant(name, index, type_, required=name not in asked)
