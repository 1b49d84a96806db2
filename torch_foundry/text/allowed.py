"""What a chat template may consist of, and the counting that is inserted into it.

`check` refuses what no chat template needs: other templates, attributes with underscores, unknown filters. `meter` then
rewrites the syntax tree: loops and macros count their steps, text and concatenations their characters, comparisons the
size of their operands.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.visitor import NodeTransformer

from .filters import FILTERS, TESTS

NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.For,
    nodes.If,
    nodes.Macro,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.With,
    nodes.Scope,
    nodes.Assign,
    nodes.AssignBlock,
    nodes.Name,
    nodes.NSRef,
    nodes.Const,
    nodes.Tuple,
    nodes.List,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.CondExpr,
    nodes.Filter,
    nodes.Test,
    nodes.Call,
    nodes.Getitem,
    nodes.Getattr,
    nodes.Slice,
    nodes.Concat,
    nodes.Compare,
    nodes.Operand,
    nodes.BinExpr,
    nodes.UnaryExpr,
    nodes.Break,
    nodes.Continue,
    nodes.ExtensionAttribute,
)
INCLUSIONS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
# Filters and tests of Jinja that mainly produce large output from small input.
AMPLIFIERS = {"lipsum", "wordwrap"}


def check(tree: nodes.Template) -> tuple[str, str] | None:
    """Code of what isn't allowed, and what it is; None for a template that may be compiled."""
    waiting: list[nodes.Node] = [tree]
    while waiting:
        node = waiting.pop()
        if (problem := _problem(node)) is not None:
            return problem[0], f"{problem[1]} in line {node.lineno}"
        waiting.extend(node.iter_child_nodes())
    return None


def _problem(node: nodes.Node) -> tuple[str, str] | None:
    if isinstance(node, INCLUSIONS):
        return "TMPL_INCLUDE", f"{type(node).__name__.lower()}"
    if not isinstance(node, NODES):
        return "TMPL_SANDBOX", f"{type(node).__name__}"
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        return "TMPL_SANDBOX", f"the attribute {node.attr[:40]!r}"
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and str(node.arg.value).startswith("__"):
        return "TMPL_SANDBOX", f"the item {str(node.arg.value)[:40]!r}"
    if isinstance(node, nodes.Name):
        if node.name in AMPLIFIERS:
            return "TMPL_BUDGET", f"{node.name}"
        if node.name == "self" or node.name.startswith("__"):
            return "TMPL_SANDBOX", f"the name {node.name[:40]!r}"
    if isinstance(node, nodes.For) and node.recursive:
        return "TMPL_SANDBOX", "a recursive loop"
    if isinstance(node, nodes.Filter) and node.name not in FILTERS:
        if node.name in AMPLIFIERS:
            return "TMPL_BUDGET", f"the filter {node.name!r}"
        code = "TMPL_SANDBOX" if node.name in JINJA_FILTERS else "TMPL_SYNTAX"
        return code, f"the filter {node.name[:40]!r}"
    if isinstance(node, nodes.Test) and node.name not in TESTS:
        return "TMPL_SYNTAX", f"the test {node.name[:40]!r}"
    return None


def _counted(expr: nodes.Node, by: str, *args: object) -> nodes.Filter:
    constants: list[nodes.Expr] = [nodes.Const(arg, lineno=expr.lineno) for arg in args]
    return nodes.Filter(expr, by, constants, [], None, None, lineno=expr.lineno)


def _size(body: list[nodes.Node]) -> int:
    """Steps of running these once, loops and macros inside apart."""
    return 1 + sum(1 + sum(1 for _ in node.find_all(nodes.Node)) for node in body) // 4


class Meter(NodeTransformer):
    """Puts the counting filters of `sandbox` into a tree that `check` has passed."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        cost = _size([*node.body, *([node.test] if node.test else [])])
        self.generic_visit(node)
        node.iter = _counted(node.iter, "_each", cost)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        cost = nodes.Const(_size(node.body), lineno=node.lineno)
        self.generic_visit(node)
        node.body.insert(0, nodes.Output([_counted(cost, "_step")], lineno=node.lineno))
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:
        return _counted(nodes.Const(node.data, lineno=node.lineno), "_text")

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _counted(nodes.List(node.nodes, lineno=node.lineno), "_concatenate")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _counted(node.expr, "_sized")
        for operand in node.ops:
            operand.expr = _counted(operand.expr, "_sized")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _counted(node, "_copied") if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return _counted(node, "_made")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _counted(node, "_made") if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _counted(pair.key, "_sized")
        return _counted(node, "_made")


def meter(tree: nodes.Template) -> nodes.Template:
    """The same template, counting. The tree is changed in place."""
    return Meter().visit(tree)
