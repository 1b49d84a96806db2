"""Integer arithmetic that Apple's GPUs define and C++ leaves undefined: division by zero, and floating point that does
not fit an integer. The prelude has the arithmetic (arithmetic.h); here is what brings the text to it.

In functions, each divisor that is no literal becomes `msl_::divisor(..)`, whose type brings its own operators; casts to
integers and to template parameters become `msl_::convert<..>(..)`, also where a variable of an integer type is declared
with a value. Other implicit conversions stay as they are.
"""

from __future__ import annotations

from ..syntax.declarations import Scope
from ..syntax.lexer import Tokens
from ..syntax.vocabulary import INTEGERS, SCALARS, VECTOR_TYPES
from .editor import Editor
from .threadgroup import function_bodies

_DIVISIONS = frozenset({"/", "%"})
_ASSIGNED = frozenset({"/=", "%="})
_PREFIXES = frozenset({"+", "-", "!", "~", "*", "&", "++", "--"})
_WORDS = frozenset({"return", "case", "else", "and", "or", "not"})  # before an expression, unlike other names
_SIGNS = frozenset({"unsigned", "signed"})
_QUALIFIERS = frozenset({"const", "volatile", "device", "thread", "threadgroup", "constant"})
_TYPES = frozenset({*INTEGERS, *SCALARS, *VECTOR_TYPES, *_SIGNS, "void"})


def guard(editor: Editor, root: Scope) -> None:
    """Rewrites divisions and conversions in the functions of the file."""
    work = _Guard(editor)
    for lo, hi in _outermost(editor.tokens, function_bodies(root)):
        for i in range(lo, hi):
            work.token(i)
    work.apply()


def _outermost(tokens: Tokens, bodies: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for brace in bodies:
        if not found or brace > found[-1][1]:
            found.append((brace + 1, tokens.match[brace]))
    return found


class _Guard:
    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.tokens = editor.tokens
        self.wraps: list[tuple[int, int, str]] = []  # first and last token, what opens
        self.casts: set[int] = set()  # tokens that close the type of a cast
        self.parameters = _template_types(editor.tokens)

    def token(self, i: int) -> None:
        text = self.tokens.text[i]
        if text in _DIVISIONS:
            self._division(i + 1, self._operand_end(i + 1))
        elif text in _ASSIGNED:
            self._division(i + 1, self._expression_end(i + 1))
        elif text == "static_cast":
            self._static_cast(i)
        elif text == "(":
            self._cast(i)
        elif text in INTEGERS or text in self.parameters:
            self._named(i)

    def apply(self) -> None:
        """Inserts the wraps, outer ones first: those that begin at one token nest in this order."""
        for lo, hi, opening in sorted(self.wraps, key=lambda w: (w[0], -w[1])):
            self.editor.before(lo, opening)
            self.editor.after(hi, ")")

    def _division(self, i: int, end: int) -> None:
        if end >= 0 and not (end == i and self.tokens.kind[i] == "num"):
            self.wraps.append((i, end, "msl_::divisor("))

    def _static_cast(self, i: int) -> None:
        close = self.tokens.angle(i + 1) if self.tokens.at(i + 1) == "<" else -1
        if close > 0 and self._is_number_type(i + 2, close) and self.tokens.at(close + 1) == "(":
            self.editor.replace(i, "msl_::convert")

    def _cast(self, i: int) -> None:
        """`(int)x`: the parentheses become the template's brackets."""
        tokens, close = self.tokens, self.tokens.match[i]
        before = tokens.at(i - 1)
        if (before in (")", "]") and i - 1 not in self.casts) or (tokens.kind[i - 1] == "id" and before not in _WORDS):
            return
        sure = self._names_type(i + 1, close)
        if not self._is_number_type(i + 1, close) or not self._starts_operand(close + 1, sure):
            return
        end = self._operand_end(close + 1)
        if end < 0 or (end == close + 1 and tokens.kind[end] == "num"):
            return
        self.casts.add(close)
        self.editor.replace(i, "msl_::convert<")
        self.editor.replace(close, ">(")
        self.wraps.append((i, end, ""))

    def _named(self, i: int) -> None:
        """A type's name: `int(x)`, or the beginning of `int n = x`."""
        tokens = self.tokens
        before = tokens.at(i - 1)
        if tokens.at(i + 1) == "(":
            lo, close = i + 2, tokens.match[i + 1]
            named = i > 0 and tokens.kind[i - 1] == "id" and before not in _WORDS
            if named or before in (".", "->", "::", ";", "}") or tokens.at(close + 1) in ("(", "["):
                return
            only = close == lo + 1 and (tokens.kind[lo] == "num" or tokens.text[lo] in _TYPES)
            if lo < close and not only and len(tokens.split(lo, close)) == 1 and tokens.at(lo) not in ("*", "{"):
                self.editor.replace(i, f"msl_::convert<{tokens.text[i]}>")
        elif (
            tokens.text[i] in INTEGERS
            and tokens.at(i + 2) == "="
            and tokens.kind[i + 1] == "id"
            and (before in "{};():" or before in _QUALIFIERS | {"constexpr", "static"})
        ):
            self._declaration(i)

    def _declaration(self, i: int) -> None:
        """Wraps the initialisers of `int a = x, b = y;`."""
        tokens, text = self.tokens, self.tokens.text
        end = i + 1
        while end < len(text) and text[end] not in (";", ")", "}", ":"):
            if text[end] == "?":
                end = self._after_conditional(end)
                continue
            end = tokens.match[end] + 1 if text[end] in "([{" else end + 1
        for lo, hi in tokens.split(i + 1, end):
            value = range(lo + 2, hi)
            plain = len(value) > 0 and tokens.kind[lo] == "id" and text[lo + 1] == "=" and text[lo + 2] != "{"
            literal = len(value) == 1 and tokens.kind[lo + 2] == "num"
            if plain and not literal and not any(text[k] == "[" and text[k - 1] in ("=", ",", "(") for k in value):
                self.wraps.append((lo + 2, hi - 1, f"msl_::convert<{text[i]}>("))

    def _after_conditional(self, i: int) -> int:
        """One past the `:` that belongs to the `?` at `i`."""
        text, depth = self.tokens.text, 0
        while i < len(text) and text[i] not in (";", ")", "}"):
            depth += (text[i] == "?") - (text[i] == ":")
            i = self.tokens.match[i] + 1 if text[i] in "([{" else i + 1
            if depth == 0:
                break
        return i

    def _is_number_type(self, lo: int, hi: int) -> bool:
        """Whether [lo, hi) names an integer type or a template parameter, by itself."""
        words = [t for t in self.tokens.text[lo:hi] if t not in ("const", "metal", "::")]
        if len(words) > 1 and words[0] in _SIGNS:
            words = words[1:]
        return len(words) == 1 and (words[0] in INTEGERS or words[0] in _SIGNS or words[0] in self.parameters)

    def _names_type(self, lo: int, hi: int) -> bool:
        """Whether [lo, hi) is a type that is known here, maybe a pointer to it."""
        words = [t for t in self.tokens.text[lo:hi] if t not in _QUALIFIERS | {"metal", "::", "*", "&"} | _SIGNS]
        return len(words) <= 1 and all(t in _TYPES for t in words)

    def _starts_operand(self, i: int, sure: bool) -> bool:
        """Whether an operand of a cast begins at `i`; what may be a binary operator counts if the cast is sure."""
        text = self.tokens.at(i)
        if i >= len(self.tokens) or (self.tokens.kind[i] == "id" and text in ("and", "or", "const")):
            return False
        return self.tokens.kind[i] in ("id", "num") or text in ("(", "!", "~", "::") or (sure and text in _PREFIXES)

    def _operand_end(self, i: int) -> int:
        """The last token of the operand of a unary operator, cast or division that begins at `i`; -1 if unknown."""
        tokens = self.tokens
        while tokens.at(i) in _PREFIXES:
            i += 1
        if tokens.at(i) in ("sizeof", "alignof"):
            return tokens.match[i + 1] if tokens.at(i + 1) == "(" else -1
        if tokens.at(i) == "(":
            close = tokens.match[i]
            if self._starts_operand(close + 1, sure=self._names_type(i + 1, close)) and tokens.at(close + 1) != "(":
                return self._operand_end(close + 1)
            i = close
        elif i < len(tokens) and (tokens.kind[i] in ("id", "num") or tokens.at(i) == "::"):
            i = self._name_end(i + (tokens.at(i) == "::"))
        else:
            return -1
        while tokens.at(i + 1) in ("(", "[", ".", "->", "++", "--"):
            step = tokens.at(i + 1)
            if step in "([":
                i = tokens.match[i + 1]
            else:
                i = i + 1 if step in ("++", "--") else self._name_end(i + 2 + (tokens.at(i + 2) == "template"))
        return i

    def _expression_end(self, i: int) -> int:
        """The last token of what is assigned from `i` on: all of `bits == 4 ? a : b`."""
        tokens, end = self.tokens, i
        while end < len(tokens) and tokens.text[end] not in (";", ",", ")", "]", "}"):
            close = tokens.angle(end) if tokens.text[end] == "<" and not tokens.lead[end] else -1
            if close > 0 and self._ends_arguments(end + 1, close):
                end = close
            end = tokens.match[end] + 1 if tokens.text[end] in "([{" else end + 1
        return end - 1

    def _name_end(self, i: int) -> int:
        """The last token of a name with its qualifiers, template arguments and an initialiser in braces."""
        tokens = self.tokens
        while tokens.kind[i] == "id":
            if tokens.at(i + 1) == "<" and not tokens.lead[i + 1]:
                close = tokens.angle(i + 1)
                if close > 0 and self._ends_arguments(i + 2, close):
                    i = close
            if tokens.at(i + 1) == "::":
                i += 2 + (tokens.at(i + 2) == "template")
                continue
            return tokens.match[i + 1] if tokens.at(i + 1) == "{" else i
        return i

    def _ends_arguments(self, lo: int, close: int) -> bool:
        """Whether the `>` at `close` ends template arguments, which begin at `lo`, and doesn't compare two values."""
        after = self.tokens.at(close + 1)
        if after in ("(", "::", "{") or self._is_number_type(lo, close):
            return True
        return self.tokens.kind[close + 1] not in ("id", "num") and after not in (*_PREFIXES, "(")


def _template_types(tokens: Tokens) -> set[str]:
    """Names of the file's template type parameters, packs left out."""
    return {
        tokens.text[i + 1]
        for i, t in enumerate(tokens.text)
        if t in ("typename", "class") and tokens.at(i - 1) in ("<", ",") and tokens.kind[i + 1] == "id"
        if tokens.at(i + 2) in (",", ">", "=")
    }
