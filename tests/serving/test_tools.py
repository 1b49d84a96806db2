"""Reasoning and tool calls: cut out of text as it comes, and as the protocols' clients get them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.serving.conftest import NAME, Serve, address
from torch_foundry.serving.app import Server
from torch_foundry.serving.engine_thread import Request, Update
from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.grammar import Grammars
from torch_foundry.serving.parsing import AnswerParser
from torch_foundry.serving.tool_calls import ToolUse, call_grammar

JSON, XML = "{# <think> <tool_call> #}", "{# <think> <tool_call><function= #}"
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}},
}
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo", "days": 2}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=place>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
GIVEN = {"place": "Oslo", "days": 2}


def tokenizer(demo: Any, head: str, **more: Any) -> Any:
    """The demo model's, with a chat template that speaks of what `head` has."""
    found = copy.copy(demo[1])
    found.chat_template = head + demo[1].chat_template
    for name, value in more.items():
        setattr(found, name, value)
    return found


def read(parser: AnswerParser, text: str, size: int) -> dict[str, Any]:
    """What comes of a text in parts of so many characters."""
    pieces = [piece for at in range(0, len(text), size) for piece in parser.feed(text[at : at + size])]
    pieces += parser.finish()
    said = {kind: "".join(p.text for p in pieces if p.kind == kind) for kind in ("reasoning", "content")}
    return said | {"calls": [(p.name, json.loads(p.text)) for p in pieces if p.kind == "tool_call"]}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("head", "call"), [(JSON, CALL), (XML, XML_CALL)], ids=["json", "xml"])
def test_an_answer_in_parts(demo: Any, head: str, call: str, size: int) -> None:
    parser = AnswerParser(tokenizer(demo, head), "prompt", TOOLS)
    found = read(parser, f"<think>Where?</think>I look.\n{call}\n{call}", size)
    assert (found["reasoning"], found["content"].strip()) == ("Where?", "I look.")
    assert found["calls"] == [("weather", GIVEN)] * 2


def test_a_prompt_that_has_begun_to_think(demo: Any) -> None:
    parser = AnswerParser(tokenizer(demo, JSON), "<|assistant|><think>\n", [])
    assert read(parser, "So.</think>Yes.", 2) == {"reasoning": "So.", "content": "Yes.", "calls": []}


@pytest.mark.parametrize("broken", ["not JSON", '{"arguments": {}}', "[1, 2]", '{"name": 3}'])
def test_calls_that_are_none_are_content(demo: Any, broken: str) -> None:
    parser = AnswerParser(tokenizer(demo, JSON), "prompt", TOOLS)
    assert read(parser, f"<tool_call>{broken}</tool_call>", 2) == {"reasoning": "", "content": broken, "calls": []}


def test_without_tools_or_a_conversation_all_is_content(demo: Any) -> None:
    for parser in (AnswerParser(tokenizer(demo, JSON), "prompt", []), AnswerParser(tokenizer(demo, JSON), "", TOOLS)):
        assert read(parser, CALL, 3)["content"] == CALL
    assert read(AnswerParser(demo[1], "prompt", TOOLS), "<think>" + CALL, 3)["content"] == "<think>" + CALL


def test_the_tokenizers_own_template_comes_first(demo: Any) -> None:
    fields = {"reasoning_content": {"open": "<a>", "close": "</a>", "content": "text"}, "content": {"content": "text"}}
    own = tokenizer(demo, JSON, response_template={"start_anchor": "<|assistant|>", "fields": fields})
    assert read(AnswerParser(own, "hi<|assistant|>", []), "<a>b</a><think>", 2) == {
        "reasoning": "b",
        "content": "<think>",
        "calls": [],
    }


@pytest.fixture(scope="module")
def server(serve: Serve, demo: Any) -> Iterator[Server]:
    """Its chat template speaks of thinking and tools."""
    with serve() as found:
        found.service.tokenizer = tokenizer(demo, JSON)
        yield found


@pytest.fixture(scope="module")
def base(server: Server) -> str:
    host, port = address(server)
    return f"http://{host}:{port}"


@pytest.fixture(scope="module")
def ai(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(base: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)


ANSWER = "<think>Where</think>" + 2 * '<tool_call>{"name": "weather", "arguments": {"days": 2}}</tool_call>'
SAID: list[Any] = [{"role": "user", "content": "How is the weather?"}]
BACK: list[Any] = [{"role": "tool", "tool_call_id": "call_1", "content": "Rain."}]
ANTHROPICS: Any = {"name": WEATHER["name"], "input_schema": WEATHER["parameters"]}
RESPONSES: Any = {"type": "function", **WEATHER}


@pytest.fixture
def scripted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model says ANSWER, in tokens of two characters, until the test undoes it."""

    def submit(request: Request) -> None:
        for at in range(0, len(ANSWER), 2):
            request.tell(Update(ANSWER[at : at + 2], tokens=[5]))
        request.tell(Update(finish_reason="stop"))

    monkeypatch.setattr(server.service.thread, "submit", submit)


def ask(resource: Any, stream: bool, **told: Any) -> Any:
    """An answer as a client has it, or makes it of a stream's events."""
    if not stream:
        return resource.create(model=NAME, **told)
    with resource.stream(model=NAME, **told) as events:
        names = ("get_final_completion", "get_final_message", "get_final_response")
        return next(getattr(events, name) for name in names if hasattr(events, name))()


NOW = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "additionalProperties": False}
TIME: dict[str, Any] = {"name": "time", "parameters": NOW}
BOTH = [*TOOLS, {"type": "function", "function": TIME}]


@pytest.mark.parametrize(
    ("head", "prompt", "single", "right", "wrong"),
    [
        (JSON, "", False, f"<think>Hm.</think>\n\n{CALL}\n{CALL}", "I look."),
        (JSON, "", True, CALL, f"{CALL}\n<tool"),
        (JSON, "<think>\n", True, f"So.</think>{CALL}", "</think>I"),
        (JSON, "</think>\n", True, CALL, "<think>"),
        (JSON, "", True, CALL, CALL.replace("2", '"two"')),
        (JSON, "", True, CALL, CALL.replace("weather", "time")),
        (XML, "", True, XML_CALL, XML_CALL.replace("2\n", "two\n")),
        (XML, "", True, XML_CALL, XML_CALL.replace("weather", "time")),
    ],
)
def test_grammars_of_calls(demo: Any, head: str, prompt: str, single: bool, right: str, wrong: str) -> None:
    known = tokenizer(demo, head)
    text = call_grammar(known, f"hi{prompt}", ToolUse(BOTH, ["weather"], single))

    def follows(answer: str) -> bool:
        """Whether all of it may be written, and the answer end with it."""
        matcher, ids = Grammars(known, len(known), [2]).constraint("grammar", text, "x"), known(answer)["input_ids"][1:]
        return all(matcher.allowed(ids[:at])[token] for at, token in enumerate([*ids, 2]))

    assert follows(right) and not follows(wrong)


def test_what_a_grammar_cannot_follow_is_its_fields_fault(demo: Any) -> None:
    matcher = Grammars(demo[1], len(demo[1]), [2]).constraint("grammar", 'start: "a"', "response_format")
    with pytest.raises(ValueError, match=r"^response_format: \S"):
        matcher.allowed(demo[1]("zzz")["input_ids"][1:])


def test_values_of_calls(demo: Any) -> None:
    """Enums, constants and definitions, in calls of XML; a call without parameters in JSON."""
    kinds = {"a": {"enum": ["x", 3]}, "b": {"$ref": "#/$defs/B"}, "c": {"const": None}}
    schema = {"type": "object", "properties": kinds, "required": ["a"], "$defs": {"B": {"type": "boolean"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    text = call_grammar(tokenizer(demo, XML), "", ToolUse(tools, ["f"], True))
    assert 'given_0_0: "x" | "3"' in text and "key_0_0 key_0_1? key_0_2?" in text and 'given_0_2: "null"' in text
    Grammars(demo[1], 4096, [2]).constraint("grammar", text, "x")
    text = call_grammar(tokenizer(demo, JSON), "", ToolUse([{"function": {"name": "g"}}], ["g"]))
    assert '"additionalProperties": false' in text


def test_a_schema_that_is_too_deep(demo: Any) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(3000):
        schema = {"anyOf": [schema]}
    with pytest.raises(ApiError, match=r"response_format: .*recursion"):
        Grammars(demo[1], 4096, [2]).constraint("json_schema", schema, "response_format")


FORCED: dict[str, Any] = {"type": "function", "function": {"name": "time"}}


@pytest.fixture
def thoughtless(server: Server, demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat template that speaks of tools alone: nobody knows how long a small model would think."""
    monkeypatch.setattr(server.service, "tokenizer", tokenizer(demo, "{# <tool_call> #}"))


@pytest.mark.usefixtures("thoughtless")
def test_calls_are_certain(ai: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """Of a model that never calls a tool by itself; parsers read what grammars make it write."""
    told: dict[str, Any] = {"messages": SAID, "tools": [BOTH[1]], "temperature": 0.0, "parallel_tool_calls": False}
    for choice in ("required", FORCED):
        (call,) = ask(ai.chat.completions, False, **told, tool_choice=choice).choices[0].message.tool_calls
        assert call.function.name == "time" and json.loads(call.function.arguments).keys() <= {"zone"}
    told = {"input": SAID, "tools": [RESPONSES, {"type": "function", **TIME}], "temperature": 0.0}
    (call,) = ask(ai.responses, False, **told, tool_choice={"type": "function", "name": "time"}).output
    assert call.type == "function_call" and call.name == "time"
    told = {"messages": SAID, "tools": [ANTHROPICS, {"name": "time", "input_schema": NOW}], "max_tokens": 60}
    answer = ask(claude.messages, False, **told, tool_choice={"type": "tool", "name": "time"})
    assert answer.stop_reason == "tool_use" and [block.name for block in answer.content] == ["time"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tool_choice": "required"}, "tool_choice: a call is asked for, but there are no tools"),
        ({"tool_choice": FORCED, "tools": TOOLS}, "tool_choice: 'time' is not among the tools"),
        (
            {"tool_choice": "required", "tools": TOOLS, "response_format": {"type": "json_object"}},
            "response_format: can't be met beside a tool_choice",
        ),
    ],
)
def test_calls_that_cannot_be_forced(ai: openai.OpenAI, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        ask(ai.chat.completions, False, messages=SAID, **fields)


@pytest.mark.parametrize(
    "schema", [{"properties": ["a"]}, {"properties": {"a": True}}, {"properties": {"a": {"enum": 1}}}]
)
def test_parameters_that_are_no_schema(demo: Any, schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=r"tools: 'f'.parameters: expected a JSON schema"):
        call_grammar(tokenizer(demo, XML), "", ToolUse([{"function": {"name": "f", "parameters": schema}}], ["f"]))


def test_a_model_whose_calls_are_not_known(demo: Any) -> None:
    with pytest.raises(ApiError, match="how this model writes calls isn't known"):
        call_grammar(demo[1], "hi", ToolUse(TOOLS, ["weather"]))


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("stream", [False, True])
def test_openai_tools(ai: openai.OpenAI, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {"messages": SAID, "tools": TOOLS}
    assert len(ask(ai.chat.completions, stream, **told).choices[0].message.tool_calls) == 2
    answer = ask(ai.chat.completions, stream, **told, parallel_tool_calls=False)
    choice = answer.choices[0]
    (call,) = choice.message.tool_calls or []
    assert stream or 0 < answer.usage.completion_tokens_details.reasoning_tokens <= len("Where")
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"days": 2})
    assert choice.message.model_extra and choice.message.model_extra["reasoning_content"] == "Where"
    turn = choice.message.model_dump(exclude_none=True, include={"role", "tool_calls", "content"})
    turn["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in turn["tool_calls"]]
    monkeypatch.undo()
    back = ask(ai.chat.completions, False, messages=[*SAID, {"content": "", **turn}, *BACK], max_tokens=3)
    assert back.choices[0].finish_reason == "length"


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_tools(claude: anthropic.Anthropic, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    single: Any = {"type": "auto", "disable_parallel_tool_use": True}
    answer = ask(claude.messages, stream, messages=SAID, tools=[ANTHROPICS], tool_choice=single, max_tokens=200)
    thinking, use = answer.content
    assert thinking.type == "thinking" and thinking.thinking == "Where" and answer.stop_reason == "tool_use"
    assert use.type == "tool_use" and (use.name, use.input) == ("weather", {"days": 2})
    monkeypatch.undo()
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Rain."}]}
    turns: Any = [*SAID, {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]}]
    turns.append({"role": "user", "content": [result]})
    assert ask(claude.messages, False, messages=turns, tools=[ANTHROPICS], max_tokens=3).stop_reason == "max_tokens"


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("stream", [False, True])
def test_responses_tools(ai: openai.OpenAI, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(ai.responses, stream, input=SAID, tools=[RESPONSES], parallel_tool_calls=False)
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens <= len("Where")
    thought, call = answer.output
    assert thought.type == "reasoning" and thought.content and thought.content[0].text == "Where"
    assert call.type == "function_call" and (call.name, json.loads(call.arguments)) == ("weather", {"days": 2})
    monkeypatch.undo()
    items = [i.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for i in answer.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain."})
    assert ask(ai.responses, False, input=[*SAID, *items], max_output_tokens=3).status == "incomplete"
