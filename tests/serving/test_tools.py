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
from torch_foundry.serving.parsing import AnswerParser

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


ANSWER = '<think>Where</think><tool_call>{"name": "weather", "arguments": {"days": 2}}</tool_call>'
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


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("stream", [False, True])
def test_openai_tools(ai: openai.OpenAI, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = ask(ai.chat.completions, stream, messages=SAID, tools=TOOLS).choices[0]
    (call,) = choice.message.tool_calls or []
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
    answer = ask(claude.messages, stream, messages=SAID, tools=[ANTHROPICS], max_tokens=200)
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
    answer = ask(ai.responses, stream, input=SAID, tools=[RESPONSES])
    thought, call = answer.output
    assert thought.type == "reasoning" and thought.content and thought.content[0].text == "Where"
    assert call.type == "function_call" and (call.name, json.loads(call.arguments)) == ("weather", {"days": 2})
    monkeypatch.undo()
    items = [i.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for i in answer.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain."})
    assert ask(ai.responses, False, input=[*SAID, *items], max_output_tokens=3).status == "incomplete"
