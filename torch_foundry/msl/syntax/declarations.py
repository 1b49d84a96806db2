"""The declarations of a file: namespaces, classes, functions and the rest, found by their brackets, not by types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .lexer import Tokens

# words that may stand before `(` in front of a function's name without being that name
_NOT_A_NAME = frozenset({"decltype", "alignas", "__attribute__", "noexcept", "explicit", "static_assert", "__declspec"})
_CLASS_WORDS = frozenset({"struct", "class", "union"})
_ACCESS = frozenset({"public", "private", "protected"})


@dataclass
class Scope:
    """A namespace or class body (or the file)."""

    kind: str  # "namespace" | "class"
    name: str
    parent: Scope | None = None
    declarations: list[Declaration] = field(default_factory=list)

    def qualified(self, name: str) -> str:
        """`name` with the enclosing named scopes in front."""
        scope: Scope | None = self
        while scope is not None:
            if scope.name:
                name = f"{scope.name}::{name}"
            scope = scope.parent
        return name


@dataclass
class Declaration:
    """Tokens [start, end] of one declaration."""

    kind: str  # "function" | "class" | "namespace" | "enum" | "instantiation" | "other"
    scope: Scope
    start: int
    head: int  # first token after the template headers
    end: int  # last token: `;`, or the closing brace of a body
    params: int = -1  # `(` of a function's parameters
    body: int = -1  # `{` of a body
    template: tuple[int, int] | None = None  # `<` and `>` of the (last) template header
    members: Scope | None = None

    def name(self, tokens: Tokens) -> str:
        """The function's name, template arguments left out; "" for what has none."""
        return tokens.at(self.name_at(tokens)) if self.params >= 0 else ""

    def name_at(self, tokens: Tokens) -> int:
        """Token of the function's name."""
        i = self.params - 1
        return tokens.angle_back(i) - 1 if tokens.at(i) == ">" else i


def parse(tokens: Tokens) -> Scope:
    """The file's declarations as a tree."""
    root = Scope("namespace", "")
    _Parser(tokens).scope(0, len(tokens), root)
    return root


def walk(scope: Scope) -> Iterator[Declaration]:
    """All declarations under `scope`, in the order of the text."""
    for declaration in scope.declarations:
        yield declaration
        if declaration.members is not None:
            yield from walk(declaration.members)


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def scope(self, i: int, end: int, scope: Scope) -> None:
        text = self.tokens.text
        while i < end:
            if text[i] == ";":
                i += 1
            elif text[i] in _ACCESS and self.tokens.at(i + 1) == ":":
                i += 2
            else:
                declaration = self.declaration(i, end, scope)
                scope.declarations.append(declaration)
                i = declaration.end + 1

    def declaration(self, start: int, end: int, scope: Scope) -> Declaration:
        tokens = self.tokens
        head, template = start, None
        while tokens.at(head) == "template" and tokens.at(head + 1) == "<":
            close = tokens.angle(head + 1)
            if close < 0:
                raise tokens.error(head, "template header is never closed")
            template = (head + 1, close)
            head = close + 1
        found = Declaration("other", scope, start, head, end - 1, template=template)
        if tokens.at(head) == "template":
            found.kind = "instantiation"
        self._scan(found, end)
        return found

    def _scan(self, found: Declaration, end: int) -> None:
        """Runs to the end of the declaration, noting parameters, body and kind on the way."""
        tokens, text = self.tokens, self.tokens.text
        keyword = ""
        after_equals = initialisers = False
        plain = text[found.head] in ("using", "typedef", "static_assert")
        i = found.head
        while i < end:
            t = text[i]
            if t == ";":
                found.end = i
                break
            if t == "(":
                if found.params < 0 and not after_equals and not plain and self._names_function(i):
                    found.params = i
                i = tokens.match[i]
            elif t == "[":
                i = tokens.match[i]
            elif t == "<" and not after_equals and tokens.kind[i - 1] == "id":
                close = tokens.angle(i)
                i = close if close > 0 else i
            elif t == "operator":
                i = found.params = self._operator(i)
                i = tokens.match[i]
            elif t == "=":
                after_equals = True
            elif t == ":" and found.params >= 0:
                initialisers = True
            elif t == "{":
                if self._body(found, i, keyword, after_equals, initialisers):
                    found.end = tokens.match[i]
                    break
                i = tokens.match[i]
            elif not keyword and found.params < 0 and (t in _CLASS_WORDS or t in ("enum", "namespace", "extern")):
                keyword = t
            i += 1
        if found.kind == "other" and found.params >= 0:
            found.kind = "function"

    def _names_function(self, paren: int) -> bool:
        before = paren - 1
        if self.tokens.at(before) == ">":
            return self.tokens.angle_back(before) > 0
        return self.tokens.kind[before] == "id" and self.tokens.text[before] not in _NOT_A_NAME

    def _operator(self, i: int) -> int:
        """The parameter list of the operator function named at `i`."""
        tokens = self.tokens
        if tokens.at(i + 1) in ("(", "["):
            return tokens.match[i + 1] + 1
        i += 1
        while tokens.at(i) not in ("(", ""):
            i += 1
        return i

    def _body(self, found: Declaration, brace: int, keyword: str, after_equals: bool, initialisers: bool) -> bool:
        """Whether the brace opens a body that ends the declaration; enters namespaces and classes."""
        tokens = self.tokens
        close = tokens.match[brace]
        if after_equals:
            return False
        if found.params >= 0:
            if initialisers and tokens.kind[brace - 1] == "id" and tokens.text[brace - 2] in (":", ","):
                return False
            found.kind, found.body = "function", brace
            return True
        if keyword in ("namespace", "extern"):
            name = tokens.join(found.head + 1, brace).replace(" ", "") if keyword == "namespace" else ""
            if tokens.at(found.head) == "inline":
                name = name.removeprefix("namespace")
            found.kind, found.body, found.members = "namespace", brace, Scope("namespace", name, found.scope)
            self.scope(brace + 1, close, found.members)
            return True
        if keyword in _CLASS_WORDS and found.body < 0:
            found.kind, found.body = "class", brace
            found.members = Scope("class", self._class_name(found.head, brace), found.scope)
            self.scope(brace + 1, close, found.members)
        elif keyword == "enum" and found.body < 0:
            found.kind, found.body = "enum", brace
        return False

    def _class_name(self, head: int, brace: int) -> str:
        """The identifier after the class keyword, attributes and `alignas(..)` skipped."""
        tokens = self.tokens
        i = next(k for k in range(head, brace) if tokens.text[k] in _CLASS_WORDS) + 1
        while i < brace:
            if tokens.text[i] in _NOT_A_NAME:
                i += 1
            if tokens.text[i] in "([":
                i = tokens.match[i] + 1
                continue
            break
        return tokens.text[i] if tokens.kind[i] == "id" else ""
