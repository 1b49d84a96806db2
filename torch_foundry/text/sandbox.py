"""Jinja's immutable sandbox for chat templates, narrowed to plain data and bounded in time and memory.

Refused is what no chat template needs: other templates, attributes with underscores, unknown filters. Each operation is
charged to a budget (budget.py) for what it reads and makes, and looks whether there is time left. As its operands are
bounded, it is short, and a template outlives its deadline by one operation at most. Jinja calls the environment for
arithmetic, attributes, calls and filters; `Counting` adds loops, comparisons, literals and slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Joiner
from jinja2.visitor import NodeTransformer

from .bounds import FILTERS, FUNCTIONS, TESTS, method, percent
from .budget import DEPTH, INTEGER, ITEM, PARTS, VALUES, OverBudget, current, length, look, made, spend

NAMES = """
Template Output TemplateData For If Macro CallBlock FilterBlock With Scope Assign AssignBlock Name NSRef Const Tuple
List Dict Pair Keyword CondExpr Filter Test Call Getitem Getattr Slice Concat Compare Operand BinExpr UnaryExpr Break
Continue ExtensionAttribute
"""
NODES = tuple(getattr(nodes, name) for name in NAMES.split())
INCLUSIONS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
AMPLIFIERS = ("lipsum", "wordwrap")  # functions and filters of Jinja that mainly make large output from small input


def check(tree: nodes.Template) -> tuple[str, str] | None:
    """(error code, refused construct), or None for a template that may be compiled."""
    waiting: list[nodes.Node] = [tree]
    while waiting:
        node = waiting.pop()
        if (problem := _problem(node)) is not None:
            return problem[0], f"{problem[1]} in line {node.lineno}"
        waiting.extend(node.iter_child_nodes())
    return None


def _problem(node: nodes.Node) -> tuple[str, str] | None:
    kind, name = type(node).__name__, str(getattr(node, "name", getattr(node, "attr", getattr(node, "key", ""))))
    if isinstance(node, INCLUSIONS):
        return "TMPL_INCLUDE", kind.lower()
    if not isinstance(node, NODES):
        return "TMPL_SANDBOX", kind
    if isinstance(node, nodes.For) and node.recursive:
        return "TMPL_SANDBOX", "a recursive loop"
    if name in AMPLIFIERS:
        return "TMPL_BUDGET", name
    if name == "self" or name.startswith(
        "_" if isinstance(node, (nodes.Getattr, nodes.NSRef, nodes.Keyword)) else "__"
    ):
        return "TMPL_SANDBOX", f"the name {name[:40]!r}"
    if isinstance(node, nodes.Getitem) and str(getattr(node.arg, "value", "")).startswith("__"):
        return "TMPL_SANDBOX", f"the item {str(getattr(node.arg, 'value', ''))[:40]!r}"
    if isinstance(node, nodes.Filter) and name not in FILTERS:
        return "TMPL_SANDBOX" if name in JINJA_FILTERS else "TMPL_SYNTAX", f"the filter {name[:40]!r}"
    if isinstance(node, nodes.Test) and name not in TESTS:
        return "TMPL_SYNTAX", f"the test {name[:40]!r}"
    return None


class Counting(NodeTransformer):
    """Puts the filters `_each`, `_compare` and `_made` of the sandbox into a tree that `check` has passed."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:
        return nodes.Const(node.data, lineno=node.lineno)  # printed as expressions are

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_each")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _filter(node.expr, "_compare")
        for operand in node.ops:
            operand.expr = _filter(operand.expr, "_compare")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "join")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(node, "_made") if isinstance(node.arg, nodes.Slice) else node

    def visit_Call(self, node: Any) -> nodes.Expr:
        self.generic_visit(node)
        node.dyn_args = node.dyn_args and _filter(node.dyn_args, "list")
        return node

    def visit_literal(self, node: nodes.Literal) -> nodes.Expr:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _filter(node, "_made")

    visit_Filter = visit_Test = visit_Call
    visit_List = visit_Tuple = visit_Dict = visit_literal


def _filter(expr: Any, name: str) -> nodes.Filter:
    return nodes.Filter(expr, name, [], [], None, None, lineno=expr.lineno)


class Generation(Extension):
    """The {% generation %} tag, which marks the part of the output that is the assistant's."""

    tags = {"generation"}  # noqa: RUF012 - so declared by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_span"), [], [], body).set_lineno(line)

    def _span(self, caller: Macro) -> str:
        inside, budget = caller(), current.get()
        budget.spans.append((budget.emitted, budget.emitted + len(inside)))
        return inside


CALLED = (LoopContext, Generation)  # whose methods may be called


@pass_context  # so that nothing is computed when the template is compiled
def _print(context: Context, value: Any) -> str:
    spend(ITEM + length(value))
    return str(value)


def _each(values: Any) -> Iterator[Any]:
    for value in values:
        spend()
        yield value


def _compare(value: Any) -> Any:
    look(value)
    return value


class Sandbox(ImmutableSandboxedEnvironment):
    """The filters `_each`, `_compare` and `_made` are those that `Counting` inserts."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        extensions = [Generation, loopcontrols]
        # not optimized: constants too are computed when they are charged for
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=_print, extensions=extensions)
        self.filters = {**FILTERS, "_each": _each, "_compare": _compare, "_made": made}
        self.tests = dict(TESTS)
        self.globals = dict(FUNCTIONS)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        look(left, right)
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, (str, *PARTS)) and isinstance(times, int):
                    spend(len(value) * times * (1 if isinstance(value, str) else ITEM))
        elif operator == "%" and isinstance(left, str):
            percent(left, right)
        elif operator == "**" and type(left) is type(right) is int and left.bit_length() * right > INTEGER:
            raise OverBudget(f"an integer of more than {INTEGER} bits")
        return made(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        look(argument)
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"the attribute {attribute[:40]!r} of a {type(obj).__name__}")

    def wrap_str_format(self, value: Any) -> None:
        """Nothing: `call` bounds str.format."""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget, called, owner = current.get(), __obj, getattr(__obj, "__self__", ...)
        look(*args)
        if isinstance(__obj, Macro):
            budget.depth += 1
            if budget.depth > DEPTH:
                raise OverBudget(f"macros deeper than {DEPTH}")
        elif isinstance(owner, VALUES):
            called = partial(method, __obj)
        elif not (isinstance(owner, CALLED) or isinstance(__obj, (Joiner, Undefined)) or __obj in FUNCTIONS.values()):
            raise SecurityError(f"a call of a {type(__obj).__name__}")
        result = made(__context.call(called, *args, **kwargs))
        budget.depth -= isinstance(__obj, Macro)
        return result
