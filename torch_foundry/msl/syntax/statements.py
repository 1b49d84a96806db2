"""A function body as statements: enough structure to follow control flow, no expressions, no types."""

from __future__ import annotations

from dataclasses import dataclass, field

from .lexer import Tokens

_LOOPS = frozenset({"for", "while", "do"})
_SPECIFIERS = frozenset(
    {"const", "constexpr", "static", "auto", "volatile", "unsigned", "signed", "struct", "typename", "alignas"}
    | {"device", "thread", "threadgroup", "constant"}
)
_NEVER_A_TYPE = frozenset({"return", "break", "continue", "goto", "delete", "new", "throw", "else", "case", "using"})


@dataclass
class Statement:
    """Tokens [lo, hi) of a plain statement, without `;`, or the head of a compound one."""

    kind: str  # "plain" | "return" | "break" | "continue" | "block" | "if" | "for" | "while" | "do" | "switch"
    lo: int
    hi: int
    at: int  # token that stands for it in messages
    bodies: list[Statement] = field(default_factory=list)  # of an `if`: then and else

    @property
    def is_loop(self) -> bool:
        return self.kind in _LOOPS


def body_statement(tokens: Tokens, brace: int) -> Statement:
    """The block that opens at `brace`."""
    statement, _ = _Reader(tokens).statement(brace)
    return statement


def declared(tokens: Tokens, lo: int, hi: int) -> list[int]:
    """Name tokens of the variables that the plain statement [lo, hi) declares."""
    first = _first_declarator(tokens, lo, hi)
    if first < 0:
        return []
    names = [first]
    for a, b in tokens.split(first, hi)[1:]:
        while a < b and tokens.text[a] in "*&":
            a += 1
        if a < b and tokens.kind[a] == "id":
            names.append(a)
    return names


def _first_declarator(tokens: Tokens, lo: int, hi: int) -> int:
    """The first declared name, or -1 for an expression: a declaration is a type followed by a name."""
    text, kind = tokens.text, tokens.kind
    if lo >= hi or text[lo] in _NEVER_A_TYPE or text[lo] in ("typedef", "static_assert"):
        return -1
    i = lo
    specified = typed = False
    while i < hi:
        t = text[i]
        if t in _SPECIFIERS:
            specified = True
            typed = typed or t in ("auto", "unsigned", "signed")
            i = tokens.match[i + 1] + 1 if t == "alignas" else i + 1
        elif t == "[" and tokens.is_attribute(i):
            i = tokens.match[i] + 1
        elif t in "*&" or t == "&&":
            if not typed:
                return -1
            i += 1
        elif kind[i] != "id":
            return -1
        elif typed and (i + 1 >= hi or text[i + 1] in ("=", ",", "[", "(", "{", ":")):
            return i
        elif typed and not specified:
            return -1
        else:
            while tokens.at(i + 1) == "::" and i + 2 < hi:
                i += 2
            if tokens.at(i + 1) == "<":
                close = tokens.angle(i + 1)
                if close < 0 or close >= hi:
                    return -1
                i = close
                while tokens.at(i + 1) == "::" and i + 2 < hi:
                    i += 2
            typed = True
            i += 1
    return -1


class _Reader:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def statement(self, i: int) -> tuple[Statement, int]:
        """The statement at token `i` and the token after it."""
        tokens, text = self.tokens, self.tokens.text
        while text[i] == "[" and tokens.is_attribute(i):
            i = tokens.match[i] + 1
        t = text[i]
        if t == "{":
            return self._block(i)
        if t in ("if", "for", "while", "switch"):
            return self._headed(i)
        if t == "do":
            inner, i_after = self.statement(i + 1)
            head = i_after + 1  # `while (`
            condition = Statement("do", head + 1, tokens.match[head], i, [inner])
            return condition, self._semicolon(tokens.match[head]) + 1
        if t in ("case", "default"):
            while text[i] != ":":
                i += 1
            return self.statement(i + 1) if text[i + 1] != "}" else (Statement("plain", i, i, i), i + 1)
        end = self._semicolon(i)
        kind = t if t in ("return", "break", "continue") else "plain"
        return Statement(kind, i, end, i), end + 1

    def _block(self, brace: int) -> tuple[Statement, int]:
        close = self.tokens.match[brace]
        block = Statement("block", brace, brace, brace)
        i = brace + 1
        while i < close:
            inner, i = self.statement(i)
            block.bodies.append(inner)
        return block, close + 1

    def _headed(self, i: int) -> tuple[Statement, int]:
        tokens = self.tokens
        head = i + 2 if tokens.at(i + 1) == "constexpr" else i + 1
        compound = Statement(tokens.text[i], head + 1, tokens.match[head], i)
        inner, after = self.statement(tokens.match[head] + 1)
        compound.bodies.append(inner)
        if compound.kind == "if" and tokens.at(after) == "else":
            other, after = self.statement(after + 1)
            compound.bodies.append(other)
        return compound, after

    def _semicolon(self, i: int) -> int:
        text = self.tokens.text
        while i < len(text) and text[i] != ";":
            if text[i] == "}":
                return i - 1
            i = self.tokens.match[i] + 1 if text[i] in "([{" else i + 1
        return i
