"""Chat templates, which are programs from strangers, rendered under a budget.

Jinja's immutable sandbox protects the system, narrowed to what chat templates need (sandbox.py); what a template reads
and makes, and how long it takes, is limited (budget.py). This happens in the calling process: resource limits would
need a worker process for each caller, and macOS ignores memory limits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateRuntimeError, TemplateSyntaxError, UndefinedError

from torch_foundry.core.load_errors import LoadError

from .bounds import FUNCTIONS, Refusal
from .budget import Budget, OverBudget, current
from .sandbox import Counting, Sandbox, check

SOURCE = 128 << 10  # characters of a template
TOKENS = 24 << 10  # of its words, signs and spaces between them
CANARY = "Xk7 canary qZ3"


class _Fault(Exception):
    """What is wrong with a template, before it is known which file it comes from."""

    def __init__(self, code: str, expected: str, found: str) -> None:
        super().__init__(code, expected, found)


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    path: str | os.PathLike[str] = "chat template",
    field: str = "tokenizer.chat_template",
    **kwargs: Any,
) -> str:
    """The text of a chat, as transformers renders it.

    kwargs: further variables of the template; not its functions' names, nor any that begin with an underscore. All that
    is passed is turned into plain data first. Raises LoadError of code TMPL_SYNTAX, TMPL_SANDBOX (what no chat template
    needs), TMPL_INCLUDE (another template), TMPL_BUDGET (too much time, memory or output), TMPL_UNDEF (an attribute of
    something undefined) or TMPL_ERROR (any other error inside); jinja2's TemplateError if the template itself refuses
    the messages (raise_exception).
    """
    inputs: dict[str, Any] = {"messages": messages, "tools": tools, "documents": documents}
    inputs["add_generation_prompt"] = add_generation_prompt
    return render_spans(template, inputs | kwargs, path, field)[0]


def render_spans(
    template: str,
    variables: Mapping[str, Any],
    path: str | os.PathLike[str] = "chat template",
    field: str = "tokenizer.chat_template",
    share: int = 1,
) -> tuple[str, list[tuple[int, int]]]:
    """`render`, and where in the text {% generation %} blocks lie. share: as of `Budget`."""
    for name in variables:
        if not name.isidentifier() or name.startswith("_") or name in FUNCTIONS or name in ("self", "loop", "caller"):
            raise ValueError(f"{name!r} can't be a variable of a chat template")
    data = {name: plain(value) for name, value in variables.items()}
    try:
        return _run(_compiled(template), data, Budget(size_of(data), share))
    except _Fault as fault:
        code, expected, found = fault.args
    raise LoadError(code, path, field, expected=expected, found=found)


def _run(compiled: Template, variables: dict[str, Any], means: Budget) -> tuple[str, list[tuple[int, int]]]:
    token = current.set(means)
    pieces: list[str] = []
    try:
        for piece in compiled.root_render_func(compiled.new_context(variables)):
            pieces.append(piece)
            means.emitted += len(piece)
            if means.emitted > means.output:
                raise OverBudget("a longer text than any chat")
    except Refusal:
        raise
    except UndefinedError as problem:
        raise _Fault("TMPL_UNDEF", "variables that a chat has", str(problem)[:200]) from None
    except (OverBudget, RecursionError, MemoryError, OverflowError) as problem:
        raise _over(problem) from None
    except TemplateRuntimeError as problem:  # SecurityError, and filters or tests by name that aren't there
        raise _Fault("TMPL_SANDBOX", "a template that does what chat templates do", str(problem)) from None
    except Exception as problem:
        raise _Fault(
            "TMPL_ERROR", "a template that renders", f"{type(problem).__name__}: {str(problem)[:200]}"
        ) from None
    finally:
        current.reset(token)
    return "".join(pieces), means.spans


def _over(problem: Exception) -> _Fault:
    return _Fault("TMPL_BUDGET", "a template that ends within its budget", str(problem)[:200] or type(problem).__name__)


@lru_cache(maxsize=64)
def _compiled(source: str) -> Template:
    if len(source) > SOURCE:
        raise _Fault("TMPL_BUDGET", f"a template of at most {SOURCE} characters", f"{len(source)}")
    environment = _environment()
    try:
        tokens = sum(1 for _ in islice(environment.lexer.tokeniter(source, None), TOKENS + 1))
        if tokens > TOKENS:
            raise _Fault("TMPL_BUDGET", f"a template of at most {TOKENS} words and signs", "more")
        tree = environment.parse(source)
        if (problem := check(tree)) is not None:
            raise _Fault(problem[0], "what chat templates are made of", problem[1])
        code = environment.compile(Counting().visit(tree))
    except TemplateSyntaxError as problem:
        found = f"{str(problem.message)[:200]} in line {problem.lineno}"
        raise _Fault("TMPL_SYNTAX", "a Jinja template", found) from None
    except (RecursionError, MemoryError, SyntaxError) as problem:
        raise _over(problem) from None
    except ValueError as problem:  # a number of thousands of digits
        raise _Fault("TMPL_SYNTAX", "a Jinja template", str(problem)[:200]) from None
    return Template.from_code(environment, code, environment.make_globals(None))


@lru_cache(maxsize=1)
def _environment() -> Sandbox:
    return Sandbox()


def plain(value: Any) -> Any:
    """JSON's types alone; of any other object its data or its type's name, no methods for templates to find."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind.__str__(value) if kind is str else kind(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else list(map(plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if callable(getattr(value, "model_dump", None)):
        return plain(value.model_dump())
    return f"<{type(value).__name__}>"


def size_of(value: Any) -> int:
    """Characters of plain data, and a little for each part."""
    if isinstance(value, str):
        return 16 + len(value)
    if isinstance(value, dict):
        return 16 + sum(size_of(key) + size_of(item) for key, item in value.items())
    return 16 + sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 16


def _probes() -> list[list[dict[str, Any]]]:
    """Chats as models know them: a question, after a system's message, after another; plain, and in parts."""
    chats = (("user",), ("system", "user"), ("user", "assistant", "user"))
    contents: list[Any] = [CANARY, [{"type": "text", "text": CANARY}]]
    return [[{"role": role, "content": content} for role in roles] for content in contents for roles in chats]


def check_template(
    template: str, path: str | os.PathLike[str], field: str = "tokenizer.chat_template", chats: bool = True
) -> None:
    """Raise LoadError unless a template is acceptable; it is rendered on one or two messages to find out.

    chats: it must print what is said (else TMPL_OUTPUT) and know its variables (else TMPL_UNDEF). Not required of
    templates for a special purpose ("tool_use"). A template that rejects all these messages by raise_exception passes.
    """
    variables: dict[str, Any] = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad")}
    variables |= {"tools": None, "documents": None, "add_generation_prompt": True}
    faults: list[LoadError] = []
    printed = False
    probes = _probes()
    for messages in probes:
        try:
            text, _ = render_spans(template, variables | {"messages": messages}, path, field, share=len(probes))
            if CANARY in text:
                return
            printed = True
        except LoadError as fault:
            if fault.code not in ("TMPL_UNDEF", "TMPL_ERROR"):
                raise
            if not chats:
                return
            faults.append(fault)
        except TemplateError:  # it refuses such messages, and maybe takes others
            continue
    if faults:
        raise faults[0]
    if printed and chats:
        raise LoadError("TMPL_OUTPUT", path, field, expected="the messages' content", found="a text without it")
