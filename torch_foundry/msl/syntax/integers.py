"""Integer constant expressions: indices in attributes, enumerators, `constant constexpr int` values."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from .declarations import Declaration, Scope, walk
from .lexer import Tokens

_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_SUFFIX = re.compile(r"^(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlL]*$")


class Integers:
    """Evaluates integer expressions; names resolve to the file's enumerators and integer constants."""

    def __init__(self, tokens: Tokens, root: Scope) -> None:
        self._tokens = tokens
        self._root = root
        self._names: dict[str, int] | None = None

    def value(self, lo: int, hi: int) -> int | None:
        """The value of tokens [lo, hi), or None if it is no integer constant known here."""
        words: list[str] = []
        for i in range(lo, hi):
            text, kind = self._tokens.text[i], self._tokens.kind[i]
            if kind == "num":
                m = _SUFFIX.match(text.replace("'", ""))
                if not m:
                    return None
                digits = m.group(1)
                words.append(str(int(digits, 0) if digits[:1] != "0" or not digits.isdigit() else int(digits, 8)))
            elif kind == "id":
                if self._tokens.at(i + 1) == "::":
                    continue
                known = self.names().get(text)
                if known is None:
                    return None
                words.append(f"({known})")
            elif text == ">" and words and words[-1] == ">":
                words[-1] = ">>"
            elif text != "::":
                words.append("//" if text == "/" else text)
        return _evaluate(" ".join(words))

    def names(self) -> dict[str, int]:
        """Enumerators and integer constants of the file, by unqualified name."""
        if self._names is None:
            self._names = {}
            for declaration in walk(self._root):
                if declaration.kind == "enum":
                    self._enumerators(declaration)
                elif declaration.kind == "other" and declaration.scope.kind == "namespace":
                    self._constant(declaration)
        return self._names

    def _enumerators(self, enum: Declaration) -> None:
        assert self._names is not None
        following: int | None = 0
        for lo, hi in self._tokens.split(enum.body + 1, self._tokens.match[enum.body]):
            if self._tokens.at(lo + 1) == "=":
                following = self.value(lo + 2, hi)
            if following is None:
                continue
            self._names[self._tokens.text[lo]] = following
            following += 1

    def _constant(self, declaration: Declaration) -> None:
        assert self._names is not None
        text = self._tokens.text
        words = text[declaration.start : declaration.end]
        if "=" not in words or not {"constexpr", "const", "constant"} & set(words):
            return
        equals = declaration.start + words.index("=")
        if equals > declaration.start and self._tokens.kind[equals - 1] == "id":
            value = self.value(equals + 1, declaration.end)
            if value is not None:
                self._names.setdefault(text[equals - 1], value)


def _evaluate(expression: str) -> int | None:
    try:
        return _fold(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _fold(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp):
        inner = _fold(node.operand)
        if inner is None:
            return None
        if isinstance(node.op, ast.USub):
            return -inner
        return ~inner if isinstance(node.op, ast.Invert) else inner
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _fold(node.left), _fold(node.right)
        return None if left is None or right is None else _BINARY[type(node.op)](left, right)
    return None
