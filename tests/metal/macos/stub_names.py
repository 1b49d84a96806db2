"""Holds the stub of Metal against PyObjC's table of the real framework: names of methods and values of constants.

The table has every method of a protocol, but of a class only those whose types need a remark (BOOL, errors, blocks).
So a protocol's methods must all be there, a class's BOOL properties must, and its others can't be compared.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

Node = dict[str, Any]


def methods(tree: Node) -> Iterator[tuple[str, str, bool, str]]:
    """(protocol or class, selector, is a protocol, type of the value) of all of Metal that the stub declares."""
    for node in tree["inner"]:
        protocol = node["kind"] == "ObjCProtocolDecl"
        if protocol or node["kind"] == "ObjCInterfaceDecl":
            if not node["name"].startswith("MTL"):
                continue
            for member in node.get("inner", []):
                if member["kind"] == "ObjCMethodDecl":
                    last = next((p for p in reversed(member.get("inner", [])) if p["kind"] == "ParmVarDecl"), None)
                    kind = (last or {}).get("type", member["returnType"])["qualType"]
                    yield node["name"], member["name"], protocol, kind


def constants(tree: Node) -> Iterator[tuple[str, int]]:
    """(name, value) of Metal's constants in the stub."""
    for node in tree["inner"]:
        if node["kind"] != "EnumDecl":
            continue
        following = 0
        for member in node.get("inner", []):
            if member["kind"] != "EnumConstantDecl":
                continue
            value = next((v for v in values(member)), None)
            following = int(value) if value is not None else following
            if member["name"].startswith("MTL"):
                yield member["name"], following
            following += 1


def values(node: Node) -> Iterator[str]:
    """Values of constant expressions in `node`."""
    for inner in node.get("inner", []):
        if inner["kind"] == "ConstantExpr" and "value" in inner:
            yield inner["value"]


def compare(tree: Node, table: str) -> tuple[list[str], int, int]:
    """(what differs, selectors compared, selectors of which the table says nothing)."""
    known = set(re.findall(r'\br\(\s*b"(\w+)",\s*b"([\w:]+)"', table))
    numbers = {name: int(value) for name, value in re.findall(r"\$(MTL\w+)@(-?\d+)", table)}
    problems, compared, unknown = [], 0, 0
    for owner, selector, protocol, kind in methods(tree):
        if protocol or "BOOL" in kind or "NSError" in kind:
            compared += 1
            if ("NSObject" if protocol else owner, selector) not in known:
                problems.append(f"{owner} has no method {selector}")
        else:
            unknown += 1
    for name, value in constants(tree):
        if numbers.get(name) != value:
            problems.append(f"{name} is {numbers.get(name, 'unknown')}, not {value}")
    return problems, compared, unknown


def syntax_tree(command: Sequence[str]) -> Node:
    """clang's syntax tree of what `command` compiles."""
    result = subprocess.run([*command, "-fsyntax-only", "-Xclang", "-ast-dump=json"], capture_output=True, text=True)
    tree: Node = json.loads(result.stdout)
    return tree
