"""Rules about what the language and its library lack, or have from some version on."""

from __future__ import annotations

from collections.abc import Iterator

from ..reflect import attributes, is_kernel, parameter, parameter_end
from ..syntax.declarations import Declaration, walk
from ..syntax.integers import Integers
from .synchronization import Functions
from .unit import SourceUnit, Violation

_CPP17_IN_METAL = 400
_LAMBDAS_IN_METAL = 320
_ABSENT = {
    **dict.fromkeys(["throw", "try", "catch"], "exceptions"),
    **dict.fromkeys(["new", "delete"], "dynamic memory"),
    **dict.fromkeys(["virtual", "dynamic_cast", "typeid"], "run-time type information and virtual functions"),
    "thread_local": "thread_local variables",
}
_OPERATORS = frozenset({"+", "-", "*", "/", "%", "&", "|", "^", "&&", "||", "<<", "==", "!=", "<=", ">="})
_ORDERS_IN_METAL = 320  # memory orders beside relaxed, and fences
_ORDERS = frozenset(f"memory_order_{name}" for name in ("acquire", "release", "acq_rel", "consume", "seq_cst"))
_MOST_THREADS = 1024
_ABSENT_FUNCTIONS = frozenset(
    {"erf", "erff", "erfc", "expm1", "log1p", "cbrt", "hypot", "lgamma", "tgamma", "nearbyint", "remainder", "logb"}
)
_AFTER_A_NAME = frozenset({"=", ";", ",", ")", "[", "]", ".", "+", "-", "*", "/", "+=", "-=", "*=", "<", ">"})


def double(unit: SourceUnit) -> Iterator[Violation]:
    for i, t in enumerate(unit.tokens.text):
        if t.startswith("double") and t in ("double", "double2", "double3", "double4"):
            yield Violation(i, "double", "MSL has no double precision")


def goto(unit: SourceUnit) -> Iterator[Violation]:
    for i, t in enumerate(unit.tokens.text):
        if t == "goto":
            yield Violation(i, "goto", "MSL has no goto")


def absent(unit: SourceUnit) -> Iterator[Violation]:
    text = unit.tokens.text
    for i, t in enumerate(text):
        if t in _ABSENT and not (t == "delete" and text[i - 1] == "=") and text[i - 1] not in (".", "->", "operator"):
            yield Violation(i, "absent-feature", f"'{t}': MSL has no {_ABSENT[t]}")


def lambdas(unit: SourceUnit) -> Iterator[Violation]:
    if unit.metal_version >= _LAMBDAS_IN_METAL:
        return
    tokens = unit.tokens
    for i, t in enumerate(tokens.text):
        if t != "[" or i == 0 or tokens.is_attribute(i) or tokens.text[i - 1] == "[":
            continue
        expression_before = tokens.kind[i - 1] in ("id", "str") and tokens.text[i - 1] != "return"
        if expression_before or tokens.text[i - 1] in (")", "]", ">", "&", "&&"):
            continue
        if tokens.at(tokens.match[i] + 1) in ("(", "{"):
            yield Violation(i, "lambda", "lambdas need MSL 3.2")


def cpp17_statements(unit: SourceUnit) -> Iterator[Violation]:
    if unit.metal_version >= _CPP17_IN_METAL:
        return
    tokens = unit.tokens
    for i, t in enumerate(tokens.text):
        following = tokens.at(i + 1)
        if t == "if" and following == "constexpr":
            yield Violation(i, "if-constexpr", "`if constexpr` is C++17: MSL before 4.0 has C++14")
        elif t in ("if", "switch") and following == "(" and _has_semicolon(unit, i + 1):
            yield Violation(i, "if-initializer", f"an initializer in `{t}` is C++17: MSL before 4.0 has C++14")
        elif t == "auto":
            j = i + 1
            while tokens.at(j) in ("const", "&", "&&"):
                j += 1
            if tokens.at(j) == "[" and not tokens.is_attribute(j):
                yield Violation(i, "structured-binding", "structured bindings are C++17: MSL before 4.0 has C++14")
        elif t == "..." and _is_fold(unit, i):
            yield Violation(i, "fold-expression", "fold expressions are C++17: MSL before 4.0 has C++14")


def cpp17_declarations(unit: SourceUnit) -> Iterator[Violation]:
    if unit.metal_version >= _CPP17_IN_METAL:
        return
    tokens = unit.tokens
    for declaration in walk(unit.root):
        if declaration.kind == "namespace" and declaration.members and "::" in declaration.members.name:
            message = "`namespace a::b` is C++17: MSL before 4.0 has C++14"
            yield Violation(declaration.head, "nested-namespace", message)
        elif declaration.kind == "other":
            words = tokens.text[declaration.head : declaration.end]
            words = words[: words.index("=")] if "=" in words else words
            if "inline" in words and words[0] not in ("using", "typedef"):
                message = "inline variables are C++17: MSL before 4.0 has C++14"
                yield Violation(declaration.head, "inline-variable", message)


def _has_semicolon(unit: SourceUnit, paren: int) -> bool:
    i, close = paren + 1, unit.tokens.match[paren]
    while i < close:
        if unit.tokens.text[i] == ";":
            return True
        i = unit.tokens.match[i] + 1 if unit.tokens.text[i] in "([{" else i + 1
    return False


def _is_fold(unit: SourceUnit, i: int) -> bool:
    before, after = unit.tokens.at(i - 1), unit.tokens.at(i + 1)
    if before == "(" and after in _OPERATORS | {",", "<", ">"}:
        return True
    return (before in _OPERATORS and after in ("+", "-", "*", ")")) or (before == "," and after == ")")


def derived_classes(unit: SourceUnit) -> Iterator[Violation]:
    for declaration in walk(unit.root):
        if declaration.kind == "class":
            colon = next((i for i in range(declaration.head, declaration.body) if unit.tokens.text[i] == ":"), -1)
            if colon >= 0:
                message = "MSL has no derived classes: make the other class a member"
                yield Violation(declaration.head, "derived-class", message)


def functions_of_cpp(unit: SourceUnit) -> Iterator[Violation]:
    """Functions of C++'s library that Metal's doesn't have, unless the file has one of that name."""
    tokens = unit.tokens
    own = {d.name(tokens) for d in walk(unit.root) if d.kind == "function"}
    for i, t in enumerate(tokens.text):
        if t == "std" and tokens.at(i + 1) == "::":
            yield Violation(i, "absent-function", "MSL has no namespace std: its library is `metal`")
        elif (
            t in _ABSENT_FUNCTIONS and t not in own and tokens.at(i + 1) == "(" and tokens.at(i - 1) not in (".", "->")
        ):
            yield Violation(i, "absent-function", f"Metal's library has no {t}")


def words(unit: SourceUnit) -> Iterator[Violation]:
    tokens = unit.tokens
    for i, t in enumerate(tokens.text):
        following = tokens.at(i + 1)
        if t in ("vertex", "fragment") and following in _AFTER_A_NAME and not tokens.is_attribute(i - 2):
            yield Violation(i, "reserved-name", f"'{t}' is a keyword of MSL")
        elif t == "noexcept":
            yield Violation(i, "absent-feature", "'noexcept': MSL has no exceptions")
        elif unit.metal_version < _ORDERS_IN_METAL and (t in _ORDERS or t == "atomic_thread_fence"):
            yield Violation(i, "memory-order", f"'{t}' needs MSL 3.2: before, atomic operations are relaxed")


def local_statics(unit: SourceUnit) -> Iterator[Violation]:
    tokens = unit.tokens
    for declaration in walk(unit.root):
        if declaration.kind != "function" or declaration.body < 0:
            continue
        i, end = declaration.body + 1, tokens.match[declaration.body]
        while i < end:
            if tokens.text[i] in ("struct", "class"):  # whose members may be static
                while i < end and tokens.text[i] not in ("{", ";"):
                    i += 1
                i = tokens.match[i] if tokens.at(i) == "{" else i
            elif tokens.text[i] == "static" and "constant" not in (tokens.at(i + 1), tokens.at(i + 2)):
                message = "MSL has no static variables in functions, but in constant memory"
                yield Violation(i, "local-static", message)
            i += 1


def cpp17(unit: SourceUnit) -> Iterator[Violation]:
    if unit.metal_version >= _CPP17_IN_METAL:
        return
    tokens, text = unit.tokens, unit.tokens.text
    templates = {
        d.members.name: d for d in walk(unit.root) if d.kind == "class" and d.members and d.template is not None
    }
    for i, t in enumerate(text):
        if t == "static_assert" and tokens.at(i + 1) == "(":
            parts = tokens.split(i + 2, tokens.match[i + 1])
            if not text[parts[-1][0]].startswith('"'):
                message = "static_assert without a message is C++17: MSL before 4.0 has C++14"
                yield Violation(i, "static-assert", message)
        elif t == "template" and tokens.at(i + 1) == "<":
            for lo, _ in tokens.split(i + 2, max(tokens.angle(i + 1), i + 2)):
                if tokens.at(lo) == "auto":
                    yield Violation(lo, "template-auto", "`template <auto>` is C++17: MSL before 4.0 has C++14")
        elif t in templates and _deduces(unit, i, templates[t]):
            message = f"arguments of the class template '{t}' left out: that is C++17, and MSL before 4.0 has C++14"
            yield Violation(i, "deduced-class", message)


def _deduces(unit: SourceUnit, i: int, template: Declaration) -> bool:
    """Whether token `i`, a class template's name, declares a variable without template arguments."""
    tokens = unit.tokens
    if template.start <= i <= tokens.match[template.body] or tokens.at(i - 1) in ("struct", "class", "typename", "::"):
        return False
    return tokens.kind[i + 1] == "id" and tokens.at(i + 2) in ("=", "(", "{", ";")


def kernels(unit: SourceUnit) -> Iterator[Violation]:
    """Overloads, threads that no GPU has, pointers to pointers."""
    tokens, integers = unit.tokens, Integers(unit.tokens, unit.root)
    seen: dict[tuple[int, str], Declaration] = {}
    for declaration in walk(unit.root):
        if declaration.kind != "function" or declaration.body < 0 or not is_kernel(tokens, declaration):
            continue
        name = declaration.name(tokens)
        if seen.setdefault((id(declaration.scope), name), declaration) is not declaration:
            yield Violation(
                declaration.head, "kernel-overload", f"there is another kernel '{name}': kernels have one name"
            )
        for attribute in attributes(tokens, declaration.head, declaration.body):
            threads = (
                integers.value(attribute.lo, attribute.hi) if attribute.name.startswith("max_total_threads") else 0
            )
            if threads is not None and threads > _MOST_THREADS:
                message = f"{threads} threads: a threadgroup has at most {_MOST_THREADS} on any GPU"
                yield Violation(declaration.head, "too-many-threads", message)
        for lo, hi in tokens.split(declaration.params + 1, tokens.match[declaration.params]):
            type_, _ = parameter(tokens, lo, parameter_end(tokens, lo, hi))
            if type_.count("*") > 1:
                yield Violation(lo, "pointer-to-pointer", "a kernel's argument can't be a pointer to pointers")


def recursion(unit: SourceUnit) -> Iterator[Violation]:
    """Functions that come back to themselves, where it is plain which function a call means."""
    tokens, functions = unit.tokens, Functions(unit.tokens, unit.root)
    callees: dict[int, list[int]] = {}
    by_body = {f.declaration.body: f for f in functions if f.declaration.template is None}
    for body, function in by_body.items():
        callees[body] = []
        for name, paren in functions.calls(body, tokens.match[body]):
            count = len(tokens.split(paren + 1, tokens.match[paren]))
            found = functions.called(tokens.text[name], count)
            member = tokens.at(name - 1) in (".", "->", "::")
            if len(found) == 1 and not member and function.declaration.scope.kind != "class":
                callees[body].append(found[0].declaration.body)
    for body, function in by_body.items():
        reached, todo = set[int](), list(callees[body])
        while todo:
            at = todo.pop()
            if at not in reached:
                reached.add(at)
                todo += callees.get(at, [])
        if body in reached:
            message = f"'{function.name}' comes back to itself: MSL has no recursion"
            yield Violation(function.declaration.head, "recursion", message)


RULES = (
    double, goto, absent, lambdas, cpp17_statements, cpp17_declarations, derived_classes, functions_of_cpp, words,
    local_statics, cpp17, kernels, recursion,
)  # fmt: skip
