"""Which functions synchronize threads: barriers, simd operations, and helpers that contain them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..reflect import attributes, is_kernel, parameter, parameter_end
from ..syntax.declarations import Declaration, Scope, walk
from ..syntax.lexer import Tokens
from ..syntax.statements import Statement, body_statement

# how far a value, or the flow of control, is the same: in the whole threadgroup, in a simdgroup, in one thread
THREADGROUP, SIMDGROUP, THREAD = 2, 1, 0

_BUILTIN_LEVELS = {
    "thread_position_in_grid": THREAD,
    "thread_position_in_threadgroup": THREAD,
    "thread_index_in_threadgroup": THREAD,
    "thread_index_in_simdgroup": THREAD,
    "thread_index_in_quadgroup": THREAD,
    "quadgroup_index_in_threadgroup": THREAD,
    "simdgroup_index_in_threadgroup": SIMDGROUP,
}


@dataclass(frozen=True)
class Need:
    """What an operation asks of the threads: level of earlier returns, level of the control flow around it."""

    returns: int
    control: int


def builtin_need(name: str) -> Need | None:
    """The need of a function of the standard library, if it synchronizes."""
    if name == "threadgroup_barrier":
        return Need(THREADGROUP, THREADGROUP)
    if name == "simdgroup_barrier" or name in ("simdgroup_load", "simdgroup_store") or name.startswith("simdgroup_mul"):
        return Need(SIMDGROUP, SIMDGROUP)
    if name.startswith(("simd_", "quad_")) and name not in ("simd_vote", "simd_active_threads_mask"):
        return Need(SIMDGROUP, THREAD)
    return None


@dataclass
class Function:
    """A function with a body, as the analysis of control flow sees it."""

    declaration: Declaration
    name: str
    body: Statement
    parameters: list[str]
    kernel: bool
    levels: list[int]  # of the parameters
    pointers: set[str]  # parameters that point to memory that threads share
    outs: list[bool]  # parameters through which the function can change a thread's variable
    required: int  # parameters without default value
    need: Need = field(default=Need(THREAD, THREAD))

    def takes(self, count: int) -> bool:
        return self.required <= count <= len(self.parameters)


class Functions:
    """The functions of a file, found by name and number of arguments."""

    def __init__(self, tokens: Tokens, root: Scope) -> None:
        self._tokens = tokens
        self._multiplies = "matmul2d" in tokens.text
        self._by_name: dict[str, list[Function]] = {}
        for declaration in walk(root):
            if declaration.kind == "function" and declaration.body >= 0:
                function = self._function(declaration)
                self._by_name.setdefault(function.name, []).append(function)
        self._spread_needs()

    def __iter__(self) -> Iterator[Function]:
        return (function for functions in self._by_name.values() for function in functions)

    def called(self, name: str, count: int) -> list[Function]:
        """The functions that a call with `count` arguments can mean."""
        return [f for f in self._by_name.get(name, []) if f.takes(count)]

    def calls(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """(name, opening parenthesis) of each call in [lo, hi)."""
        text, kind = self._tokens.text, self._tokens.kind
        for i in range(lo + 1, hi):
            if text[i] != "(":
                continue
            name = i - 1
            if text[name] == ">":
                name = self._tokens.angle_back(name) - 1
            if name >= lo and kind[name] == "id":
                yield name, i

    def need(self, name: int, paren: int) -> Need | None:
        """What the call at token `name` asks for."""
        builtin = builtin_need(self._tokens.text[name])
        if builtin:
            return builtin
        if self._multiplies and self._tokens.text[name - 1 : name + 1] == [".", "run"]:
            return Need(THREADGROUP, THREADGROUP)  # a product of all simdgroups
        count = len(self._tokens.split(paren + 1, self._tokens.match[paren]))
        return _strictest([f.need for f in self.called(self._tokens.text[name], count)])

    def _function(self, declaration: Declaration) -> Function:
        tokens = self._tokens
        name = declaration.name(tokens)
        body = body_statement(tokens, declaration.body)
        function = Function(declaration, name, body, [], is_kernel(tokens, declaration), [], set(), [], 0)
        for lo, hi in tokens.split(declaration.params + 1, tokens.match[declaration.params]):
            end = parameter_end(tokens, lo, hi)
            type_, parameter_name = parameter(tokens, lo, end)
            function.parameters.append(parameter_name)
            levels = [_BUILTIN_LEVELS.get(a.name, THREADGROUP) for a in attributes(tokens, end, hi)]
            function.levels.append(min(levels, default=THREADGROUP))
            shared = any(space in type_.split() for space in ("device", "constant", "threadgroup"))
            if shared:
                function.pointers.add(parameter_name)
            function.outs.append(not shared and any(mark in type_ for mark in "*&["))
            function.required += tokens.at(end) != "="
        return function

    def _spread_needs(self) -> None:
        """Lets the needs of what a function calls be its own, until nothing changes."""
        calls = [(f, list(self.calls(f.body.lo, self._tokens.match[f.declaration.body]))) for f in self]
        changed = True
        while changed:
            changed = False
            for function, called in calls:
                need = _strictest([n for n in (self.need(*call) for call in called) if n])
                if need and need != function.need:
                    function.need = need
                    changed = True


def _strictest(needs: list[Need]) -> Need | None:
    if not needs:
        return None
    return Need(max(n.returns for n in needs), max(n.control for n in needs))
