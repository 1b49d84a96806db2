"""What keeps the package simple: few parameters, little state, no crumbs of modules, errors told apart by their type.

An exception has a reason, and is to be taken out when the code no longer needs it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.test_layering import MODULES, imports

PARAMETERS, ATTRIBUTES, LINES = 8, 10, 60  # at most, at most, at least

OPERANDS = "what the kernel reads and writes"
WIDE_CALLS = {
    **dict.fromkeys(
        (
            "altup_correct",
            "linear",
            "rope_attention",
            "rope_kv",
            "attention",
            "moe_glu",
            "moe_down",
            "moe_choose",
            "moe_route",
            "gated_delta",
            "mamba2",
            "norm_glu",
            "norm_qkv",
            "sample",
        ),
        OPERANDS,
    ),  # in ops, and their references
    "_assisted_decoding": "transformers' signature",
    "apply_chat_template": "transformers' signature",
    "load": "what a caller may want of a model",
    "assemble": "what load was given",
    "Request.__init__": "what generate was given",
}
FULL_OBJECTS = {
    "Engine": "scheduler, runner, sampler, cache and what is counted",
    "Forward": "shapes of a model, read once",
    "Sequence": "one object from submit to result",
    "StepGraph": "a graph, and what is checked before it is replayed",
    "Batch": "the memory that an engine's step reads",
    "RecurrentLayer": "transformers' attributes of such a layer, and ours",
    "Attention": "shapes of a layer, read once",
    "LatentAttention": "shapes of a layer, read once",
    "StepState": "the memory that a captured step reads",
    "Request": "what generate was given",
    "GgufModel": "what a file says of its model",
    "DecoderModel": "shapes of a model, read once",
    "ExpertBlock": "shapes of a block, read once",
    "FoundryEmbedding": "torch's attributes of an Embedding, and ours",
    "Sampler": "parameters of rows, each a tensor",
    "SamplingBody": "fields of a protocol",
    "ResponsesBody": "fields of a protocol",
}
TO_MERGE = "still to be put where it is used, if that stays short enough"
CRUMBS = {
    "cli.completion": "a subcommand",
    "cli.doctor": "a subcommand",
    "cli.profile": "a subcommand",
    "diagnostics.importance": "a public function",
    "io.packed.modelopt": "a layout of weights, registered by its import",
    "io.packed.mxfp4": "a layout of weights, registered by its import",
    "ops.head_linear": "an op",
    "ops.permute": "an op",
    "ops.short_conv": "an op",
    "diagnostics.perplexity.svg": "draws",
    "diagnostics.profiling.svg": "draws",
    "serving.page": "draws",
}
TEXTS = {"hf.out_of_memory": "torch's allocators raise RuntimeError on the CPU and MPS: only the text tells"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            yield name, node


def attributes(node: ast.ClassDef) -> set[str]:
    """What instances have: fields that can be assigned to, and what methods assign to `self`."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    record = any("frozen=True" in text for text in decorators) or any(
        "NamedTuple" in ast.unparse(b) for b in node.bases
    )
    fields = {x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)}
    inner = [x for method in node.body if isinstance(method, Function) for x in ast.walk(method)]
    stored = [x for x in inner if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store)]
    return (set() if record else fields) | {x.attr for x in stored if ast.unparse(x.value) == "self"}


def check(found: dict[str, str], exceptions: dict[str, str], remedy: str) -> None:
    """found: name -> what is too much of it."""
    new = {name: what for name, what in found.items() if name not in exceptions}
    assert not new, f"{remedy}: {new}"
    stale = exceptions.keys() - found.keys()
    assert not stale, f"no longer exceptions, to be taken out of this file: {stale}"


def test_calls_have_few_parameters() -> None:
    found = {}
    for module, node in nodes():
        if isinstance(node, ast.ClassDef):
            named = {f"{node.name}.__init__": x for x in node.body if isinstance(x, Function) and x.name == "__init__"}
        else:
            named = {node.name: node} if isinstance(node, Function) and node.name != "__init__" else {}
        for name, function in named.items():
            given = function.args
            count = len({x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self", "cls"})
            if count > PARAMETERS:
                found[name] = f"{count} parameters in {module}"
    check(found, WIDE_CALLS, f"more than {PARAMETERS} parameters: pass an object, or split what it does")


def test_objects_have_little_state() -> None:
    found = {}
    for module, node in nodes():
        if isinstance(node, ast.ClassDef) and (count := len(attributes(node))) > ATTRIBUTES:
            found[node.name] = f"{count} attributes in {module}"
    check(found, FULL_OBJECTS, f"more than {ATTRIBUTES} attributes: give part of the state its own class")


def test_no_module_is_a_crumb_of_another() -> None:
    """A limit on length is obeyed by simplifying, not by cutting: a small module has more than one user."""
    users: dict[str, set[str]] = {}
    for name in MODULES:
        for used in imports(name):
            users.setdefault(used, set()).add(name)
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items() if path.stem != "__init__"}
    found = {
        name: f"{count} lines, imported by {users[name]}"
        for name, count in lines.items()
        if count < LINES and len(users.get(name, ())) == 1
    }
    check(found, CRUMBS, f"under {LINES} lines with one importer: put it there")


def test_errors_are_told_apart_by_their_type() -> None:
    found = {}
    for module, node in nodes():
        caught = {node.name} if isinstance(node, ast.ExceptHandler) and node.name else set()
        if isinstance(node, Function):
            given = [x for x in (*node.args.args, *node.args.kwonlyargs) if x.annotation is not None]
            caught |= {x.arg for x in given if ast.unparse(x.annotation).endswith(("Error", "Exception"))}  # type: ignore[arg-type]
        texts = {f"str({name})" for name in caught} | {f"{name}.args" for name in caught}
        compared = [x for inner in ast.walk(node) if isinstance(inner, ast.Compare) for x in inner.comparators]
        if not module.startswith("core.") and any(text in ast.unparse(x) for x in compared for text in texts):
            found[module] = "compares an error's text"
    check(found, TEXTS, "raise an error of its own type")
