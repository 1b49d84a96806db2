"""What a request says of tools, and grammars for answers that have to be calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.grammar import JSON
from torch_foundry.serving.parsing import JSON_CALL, call_style, is_thinking

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolUse:
    """tools: that the model is told of, as chat templates read them. forced: names, of which one has to be called.
    single: there may be one call at most."""

    tools: Sequence[dict[str, Any]] = ()
    forced: Sequence[str] = ()
    single: bool = False


NO_TOOLS = ToolUse()


def tool_use(tools: Sequence[dict[str, Any]], choice: str, name: str | None, *, single: bool) -> ToolUse:
    """choice: "none", "auto", "required", or "function", which is the one called `name`. ApiError: there is none."""
    names = [tool["function"]["name"] for tool in tools]
    if choice == "none":
        return NO_TOOLS
    if choice == "function" and name not in names:
        raise ApiError(400, f"tool_choice: {name!r:.80} is not among the tools", "tool_choice")
    if choice == "required" and not names:
        raise ApiError(400, "tool_choice: a call is asked for, but there are no tools", "tool_choice")
    forced = {"required": names, "function": [str(name)]}.get(choice, [])
    return ToolUse(tools, forced, single or choice == "function")


def call_grammar(tokenizer: Any, prompt: str, use: ToolUse) -> str:
    """Lark for an answer to `prompt` that is calls of the tools that `use` forces, behind what the model thinks first.

    ApiError: how the model's chat template writes calls is not known, or a tool's parameters are no schema.
    """
    style = call_style(tokenizer)
    if style is None:
        raise ApiError(
            400, "tool_choice: how this model writes calls isn't known, so none can be forced", "tool_choice"
        )
    template = tokenizer.chat_template
    think = "thought" if is_thinking(prompt) else "think?" if "<think>" in template else ""
    more = "" if use.single else r'("\n" call)*'
    tools = [tool["function"] for tool in use.tools if tool["function"]["name"] in use.forced]
    rules = [
        f"start: {think} call {more}",
        r'think: "<think>" thought',
        r"thought: thinking /\n{0,2}/",
        'thinking[suffix="</think>"]: /(?s:.*)/',
        f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}",
    ]
    for i, tool in enumerate(tools):
        try:
            rules += _json_call(i, tool) if style is JSON_CALL else _xml_call(i, tool)
        except (AttributeError, TypeError):
            expected = "expected a JSON schema whose properties are objects"
            raise ApiError(400, f"tools: {tool['name']!r:.80}.parameters: {expected}", "tools") from None
    return "\n".join(rules)


def _json_call(i: int, tool: dict[str, Any]) -> Iterator[str]:
    head = f'<tool_call>\n{{"name": {_text(tool["name"])}, "arguments": '
    yield f"call_{i}: {_text(head)} arguments_{i} {_text('}' + chr(10) + '</tool_call>')}"
    yield f"arguments_{i}: {_json(tool.get('parameters') or NOTHING)}"


def _xml_call(i: int, tool: dict[str, Any]) -> Iterator[str]:
    """Parameters in the schema's order."""
    schema, parts = tool.get("parameters") or NOTHING, []
    for j, (name, own) in enumerate(schema.get("properties", {}).items()):
        parts.append(f"key_{i}_{j}" + ("" if name in schema.get("required", ()) else "?"))
        yield f"key_{i}_{j}: {_text(f'<parameter={name}>' + chr(10))} value_{i}_{j}"
        if own.get("type") == "string" and not own.keys() & {"enum", "const"}:
            yield f'value_{i}_{j}[suffix="\\n</parameter>\\n"]: /(?s:.*)/'
            continue
        known = [own["const"]] if "const" in own else own.get("enum", [])
        texts = [each if isinstance(each, str) else json.dumps(each) for each in known]
        defined = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        value = " | ".join(map(_text, texts)) if texts else _json(own | defined)
        yield f"value_{i}_{j}: given_{i}_{j} {_text(chr(10) + '</parameter>' + chr(10))}"
        yield f"given_{i}_{j}: {value}"
    head, end = f"<tool_call>\n<function={tool['name']}>\n", "</function>\n</tool_call>"
    yield f"call_{i}: {' '.join([_text(head), *parts, _text(end)])}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(schema | {'x-guidance': JSON})}"
