"""Control flow against barriers: threads that leave early, and barriers that only some threads reach.

Every variable has a level: 2 if all threads of a threadgroup have the same value, 1 if all of a simdgroup have, 0
otherwise. Levels start at 2 and only fall, by assignments (also under a condition of lower level) and by the arguments
that calls pass to helpers, until nothing changes. A pointer counts by the address it holds: all threads that read one
address see one value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..syntax.declarations import Scope
from ..syntax.lexer import Tokens
from ..syntax.statements import Statement, declared
from .synchronization import SIMDGROUP, THREADGROUP, Function, Functions, Need
from .unit import SourceUnit, Violation

_REDUCTIONS = frozenset(
    f"simd_{name}"
    for name in ("sum", "product", "min", "max", "and", "or", "xor", "any", "all", "ballot", "broadcast_first")
)
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<="})


@dataclass(frozen=True)
class Hazard:
    """Something wrong at token `at`; `sync` is the operation it keeps threads from."""

    at: int
    sync: int
    kind: str  # "return" | "barrier" | "leave"


def hazards(tokens: Tokens, root: Scope) -> list[Hazard]:
    """All hazards in the functions of the file."""
    analysis = _Analysis(tokens, Functions(tokens, root))
    walks = [_Walk(analysis, function) for function in analysis.functions]
    for _ in range(20):
        analysis.changed = False
        for one in walks:
            one.visit()
        if not analysis.changed:
            break
    return list(dict.fromkeys(hazard for one in walks for hazard in one.hazards()))


@dataclass
class _Analysis:
    tokens: Tokens
    functions: Functions
    changed: bool = False

    def pass_arguments(self, functions: list[Function], levels: list[int]) -> None:
        """Lowers the parameters of called helpers to the levels of the arguments."""
        for function in functions:
            for k, level in enumerate(levels):
                if not function.kernel and level < function.levels[k]:
                    function.levels[k] = level
                    self.changed = True


class _Walk:
    """One function, visited until the levels of its variables are stable."""

    def __init__(self, analysis: _Analysis, function: Function) -> None:
        self.analysis = analysis
        self.tokens = analysis.tokens
        self.function = function
        self.levels: dict[tuple[str, int], int] = {}  # by name and declaring token
        self.pointers = {(name, -1) for name in function.pointers}
        self.scopes: list[dict[str, int]] = []
        self.exits: list[tuple[int, int]] = []  # return, control level there
        self.syncs: list[tuple[int, Need, int]] = []  # call, need, control level there
        self.leaves: list[tuple[int, int, int, int]] = []  # break or continue, control level, reach in tokens
        self.loops: list[tuple[int, int, int]] = []  # tokens of the enclosing loops, control level outside

    def visit(self) -> None:
        self.exits, self.syncs, self.leaves = [], [], []
        self.scopes = [dict.fromkeys(self.function.parameters, -1)]
        for name, level in zip(self.function.parameters, self.function.levels, strict=True):
            self._lower((name, -1), level)
        self._statement(self.function.body, THREADGROUP)

    def hazards(self) -> Iterator[Hazard]:
        for at, control in self.exits:
            sync = next((s for s, need, _ in self.syncs if s > at and need.returns > control), None)
            if sync is not None:
                yield Hazard(at, sync, "return")
        for sync, need, control in self.syncs:
            if need.control > control:
                yield Hazard(sync, sync, "barrier")
        for at, control, lo, hi in self.leaves:
            sync = next((s for s, need, _ in self.syncs if lo <= s < hi and need.control > control), None)
            if sync is not None:
                yield Hazard(at, sync, "leave")

    def _statement(self, s: Statement, control: int) -> None:
        if s.kind == "block":
            self.scopes.append({})
            for inner in s.bodies:
                self._statement(inner, control)
            self.scopes.pop()
        elif s.kind in ("if", "switch"):
            inside = min(control, self._expression(s.lo, s.hi, control))
            if s.kind == "switch":
                self.loops.append((s.at, s.at, inside))  # a break ends the switch only
            for inner in s.bodies:
                self._statement(inner, inside)
            if s.kind == "switch":
                self.loops.pop()
        elif s.is_loop:
            self._loop(s, control)
        else:
            self._plain(s, control)

    def _loop(self, s: Statement, control: int) -> None:
        self.scopes.append({})
        if s.kind == "for":
            first = next((i for i in self._top(s.lo, s.hi) if self.tokens.text[i] == ";"), s.hi)
            second = next((i for i in self._top(first + 1, s.hi) if self.tokens.text[i] == ";"), s.hi)
            self._simple(s.lo, first, control)
            inside = min(control, self._expression(first + 1, second, control))
            self._simple(second + 1, s.hi, inside)
        else:
            inside = min(control, self._expression(s.lo, s.hi, control))
        body = s.bodies[0]
        end = max(s.hi, self._last(body))
        self.loops.append((s.at, end, control))
        self._statement(body, inside)
        self.loops.pop()
        self.scopes.pop()

    def _last(self, s: Statement) -> int:
        return max([s.hi, *(self._last(b) for b in s.bodies)])

    def _plain(self, s: Statement, control: int) -> None:
        if s.kind == "return":
            self._expression(s.lo + 1, s.hi, control)
            self.exits.append((s.at, control))
        elif s.kind in ("break", "continue"):
            if self.loops:
                start, end, _ = self.loops[-1]
                self.leaves.append((s.at, control, start if s.kind == "break" else s.at, end))
        else:
            self._simple(s.lo, s.hi, control)

    def _simple(self, lo: int, hi: int, control: int) -> None:
        """A declaration or an expression statement."""
        names = declared(self.tokens, lo, hi)
        shared = {"device", "constant", "threadgroup"} & set(self.tokens.text[lo : names[0]]) if names else set()
        for name in names:
            self.scopes[-1][self.tokens.text[name]] = name
            if shared:
                self.pointers.add((self.tokens.text[name], name))
        for a, b in self.tokens.split(names[0] if names else lo, hi):
            self._part(a, b, control, declaration=bool(names))

    def _part(self, lo: int, hi: int, control: int, declaration: bool) -> None:
        text = self.tokens.text
        assign = next((i for i in self._top(lo, hi) if text[i] in _ASSIGNMENTS), -1)
        target = self._target(lo, assign if assign >= 0 else hi)
        level = min(control, self._expression(lo if assign < 0 else assign + 1, hi, control))
        if target is None:
            return
        if assign >= 0:
            level = min(level, self._expression(lo, assign, control, skip=target))
            through = any(text[i] in ("[", "*", "->") for i in range(lo, assign))
            if not (self._key(target) in self.pointers and through):
                self._lower(self._key(target), level)
            return
        key = self._key(target)
        if declaration or {"++", "--"} & {text[lo], text[hi - 1]}:
            self._lower(key, level)
            return
        for name, paren in self.analysis.functions.calls(lo, hi):
            self._outputs(name, paren, control)

    def _outputs(self, name: int, paren: int, control: int) -> None:
        """Lowers what the call statement f(x, out) or object.method(x) can change."""
        close = self.tokens.match[paren]
        level = min(control, self._level(paren + 1, close))
        if self.tokens.text[name - 1] == "." and self._known(name - 2):
            self._lower(self._key(name - 2), level)
        parts = self.tokens.split(paren + 1, close)
        for function in self.analysis.functions.called(self.tokens.text[name], len(parts)):
            for (a, b), out in zip(parts, function.outs, strict=False):
                if out and b == a + 1 and self._known(a):
                    self._lower(self._key(a), level)

    def _top(self, lo: int, hi: int) -> Iterator[int]:
        """Tokens of [lo, hi) outside inner brackets."""
        i = lo
        while i < hi:
            yield i
            i = self.tokens.match[i] + 1 if self.tokens.text[i] in "([{" else i + 1

    def _target(self, lo: int, hi: int) -> int | None:
        """The variable at the root of the left-hand side."""
        for i in self._top(lo, hi):
            if self.tokens.kind[i] == "id" and self._known(i):
                return i
        return None

    def _known(self, i: int) -> bool:
        if self.tokens.text[i - 1] in (".", "->", "::") or self.tokens.at(i + 1) == "::":
            return False
        return any(self.tokens.text[i] in scope for scope in self.scopes)

    def _key(self, i: int) -> tuple[str, int]:
        name = self.tokens.text[i]
        for scope in reversed(self.scopes):
            if name in scope:
                return name, scope[name]
        return name, -2

    def _lower(self, key: tuple[str, int], level: int) -> None:
        if level < self.levels.get(key, THREADGROUP):
            self.levels[key] = level
            self.analysis.changed = True

    def _expression(self, lo: int, hi: int, control: int, skip: int = -1) -> int:
        """The level of an expression; notes the calls in it."""
        for name, paren in self.analysis.functions.calls(lo, hi):
            self._call(name, paren, control)
        return self._level(lo, hi, skip)

    def _call(self, name: int, paren: int, control: int) -> None:
        need = self.analysis.functions.need(name, paren)
        if need and not self._known(name) and (need.returns or need.control):
            self.syncs.append((name, need, control))
        parts = self.tokens.split(paren + 1, self.tokens.match[paren])
        helpers = self.analysis.functions.called(self.tokens.text[name], len(parts))
        if helpers:
            self.analysis.pass_arguments(helpers, [min(control, self._level(a, b)) for a, b in parts])

    def _level(self, lo: int, hi: int, skip: int = -1) -> int:
        level = THREADGROUP
        i = lo
        while i < hi:
            if self.tokens.kind[i] == "id" and i != skip:
                if self.tokens.text[i] in _REDUCTIONS and self.tokens.at(i + 1) == "(":
                    level = min(level, SIMDGROUP)
                    i = self.tokens.match[i + 1]
                elif self._known(i):
                    level = min(level, self.levels.get(self._key(i), THREADGROUP))
            i += 1
        return level


def control_flow(unit: SourceUnit) -> Iterator[Violation]:
    """Returns before barriers, and barriers that not all threads reach."""
    for hazard in hazards(unit.tokens, unit.root):
        name = unit.tokens.text[hazard.sync]
        line = unit.tokens.where(hazard.sync)[1]
        if hazard.kind == "return":
            message = (
                f"threads that return here never reach '{name}' on line {line}; the condition may differ between them"
            )
            yield Violation(hazard.at, "return-before-barrier", message)
        elif hazard.kind == "leave":
            message = f"threads that leave the loop's round here miss '{name}' on line {line}"
            yield Violation(hazard.at, "divergent-barrier", message)
        else:
            yield Violation(
                hazard.at, "divergent-barrier", f"'{name}' stands under a condition that may differ between threads"
            )


RULES = (control_flow,)
