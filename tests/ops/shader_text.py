"""Shader text as tokens, in which places are found whatever white space, comments and the names of locals are.

Local are parameters, variables and template parameters. Names that other functions see too (functions, types, fields,
constants) are part of a place: who renames one finds it in the tests as well.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from torch_foundry.msl.syntax.declarations import Declaration, parse, walk
from torch_foundry.msl.syntax.lexer import Tokens
from torch_foundry.msl.syntax.statements import Statement, body_statement, declared

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.'])*|\"[^\"]*\"|::|->|\+\+|--|&&|\|\||<<=|<<|[-+*/%&|^=!<>]=|\S"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
# Directives, and macros without a semicolon, which would belong to the declaration after them.
_DIRECTIVE = re.compile(r"^[ \t]*(?:#(?:[^\n]*\\\n)*[^\n]*|FOUNDRY_\w+\((?:[^()]|\([^()]*\))*\)[ \t]*$)", re.M)
_MEMBER = (".", "->", "::")  # what follows is a member's name
_TYPES = ("float", "int", "uint", "ushort", "bool", "T")  # of parameters without a name


def _words(text: str) -> list[re.Match[str]]:
    return list(_TOKEN.finditer(_blank(_COMMENT, text)))


def _blank(what: re.Pattern[str], text: str) -> str:
    return what.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


SHADERS = Path(__file__).parents[2] / "shaders"


def shader(name: str) -> Path:
    """The shader file of that name, whichever its folder."""
    (path,) = SHADERS.rglob(name)
    return path


def edited_shaders(directory: Path, *edits: tuple[str, str, str], kernels: Collection[str] | None = None) -> Path:
    """A copy of the shaders below `directory`, with `edits` (file, old, new). `kernels`: its .metal files."""
    kernels = {path.name for path in SHADERS.rglob("*.metal")} if kernels is None else kernels
    others = [path.name for path in SHADERS.rglob("*.metal") if path.name not in kernels]
    folder = shutil.copytree(SHADERS, directory / "shaders", ignore=shutil.ignore_patterns(*others))
    for name, old, new in edits:
        path = folder / shader(name).relative_to(SHADERS)
        path.write_text(ShaderText(path.read_text()).replaced(old, new))
    return folder


class ShaderText:
    """A file's tokens, and which of them are names of locals."""

    def __init__(self, text: str) -> None:
        self.text = text
        code = _blank(_DIRECTIVE, _blank(_COMMENT, text))
        self._tokens = Tokens(code)
        self._places = _words(code)
        self._local = [False] * len(self._tokens)
        assert [m.group() for m in self._places] == self._tokens.text
        for declaration in walk(parse(self._tokens)):
            if declaration.kind in ("function", "class"):
                names = {*self._template(declaration), *self._parameters(declaration), *self._variables(declaration)}
                for i in range(declaration.start, declaration.end + 1):
                    if self._tokens.text[i] in names and self._tokens.at(i - 1) not in _MEMBER:
                        self._local[i] = True

    def replaced(self, old: str, new: str) -> str:
        """The text with `new` in the one place of `old`, where locals of `old` keep the names that they have here."""
        words = [m.group() for m in _words(old)]
        found = [(at, names) for at in range(len(self._places)) if (names := self._names(at, words)) is not None]
        lines = [self._tokens.where(at)[1] for at, _ in found]
        assert len(found) == 1, f"in {len(found)} places (lines {lines}): {old}"
        ((at, names),) = found
        made, end, before = "", 0, ""
        for m in _TOKEN.finditer(new):
            made += new[end : m.start()] + (m.group() if before in _MEMBER else names.get(m.group(), m.group()))
            end, before = m.end(), m.group()
        return self._edited([(at, at + len(words), made)])

    def renamed(self, rename: Callable[[str], str]) -> str:
        """The text with other names for all locals."""
        return self._edited([(i, i + 1, rename(self._tokens.text[i])) for i, local in enumerate(self._local) if local])

    def _names(self, at: int, words: list[str]) -> dict[str, str] | None:
        """What locals in `words` are called in the tokens from `at` on; None if those are others."""
        names: dict[str, str] = {}
        if at + len(words) > len(self._places):
            return None
        for i, word in enumerate(words, at):
            text = self._tokens.text[i]
            if self._local[i] and word.isidentifier():
                if names.setdefault(word, text) != text:
                    return None
            elif text != word:
                return None
        return names if len(set(names.values())) == len(names) else None

    def _edited(self, edits: list[tuple[int, int, str]]) -> str:
        out, end = [], 0
        for first, after, new in edits:
            out += [self.text[end : self._places[first].start()], new]
            end = self._places[after - 1].end()
        return "".join([*out, self.text[end:]])

    def _template(self, declaration: Declaration) -> Iterator[str]:
        lo, hi = declaration.template or (0, 0)
        for first, after in self._tokens.split(lo + 1, hi):
            words = [*self._tokens.text[first:after], "="]
            yield from words[1 : words.index("=")]  # the first is its type

    def _parameters(self, declaration: Declaration) -> Iterator[str]:
        if declaration.params >= 0:
            for first, after in self._tokens.split(declaration.params + 1, self._tokens.match[declaration.params]):
                yield from self._parameter(first, after)

    def _parameter(self, first: int, after: int) -> Iterator[str]:
        tokens, name, i = self._tokens, "", first
        while i < after and tokens.text[i] != "=":
            if tokens.text[i] == "[":
                i = tokens.match[i]
            elif tokens.text[i] == "<":
                i = tokens.angle(i)
            elif tokens.kind[i] == "id" and i > first and tokens.at(i + 1) != "(":
                name = tokens.text[i]
            elif tokens.text[i] in ("&", "*"):  # what came before is the type
                name = ""
            i += 1
        if name and name not in _TYPES:
            yield name

    def _variables(self, declaration: Declaration) -> Iterator[str]:
        def of(statement: Statement) -> Iterator[int]:
            if statement.kind in ("plain", "for"):
                ends = [i for i in range(statement.lo, statement.hi) if self._tokens.text[i] == ";"]
                yield from declared(self._tokens, statement.lo, ends[0] if ends else statement.hi)
            for body in statement.bodies:
                yield from of(body)

        if declaration.kind == "function" and declaration.body >= 0:
            for i in of(body_statement(self._tokens, declaration.body)):
                yield self._tokens.text[i]
