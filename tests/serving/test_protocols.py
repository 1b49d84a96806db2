"""Real clients of OpenAI's and Anthropic's protocols, over a socket; answers are those of the engine alone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.serving.conftest import NAME, address
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.serving.app import Server

SAID = [{"role": "user", "content": "Tell me a story about a lost kite."}]
GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0.0}


@pytest.fixture(scope="module")
def ai(server: Server) -> openai.OpenAI:
    host, port = address(server)
    return openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(server: Server) -> anthropic.Anthropic:
    host, port = address(server)
    return anthropic.Anthropic(base_url=f"http://{host}:{port}", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def raw(server: Server) -> httpx.Client:
    host, port = address(server)
    return httpx.Client(base_url=f"http://{host}:{port}", timeout=60)


@pytest.fixture(scope="module")
def alone(demo: tuple[Any, Any]) -> Any:
    """The text of a chat, or a prompt, in an engine where nothing else runs."""
    engine, tokenizer = Engine(*demo, requests=1), demo[1]

    def answer(prompt: Any, tokens: int, **params: Any) -> str:
        ids = prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
        told = SamplingParams(**{"max_tokens": tokens, "temperature": 0, **params})
        stream = engine.submit(ids if isinstance(ids, str) else ids["input_ids"], told)
        stream.result()
        return stream.text

    return answer


def test_a_chat(ai: openai.OpenAI, alone: Any) -> None:
    answer = ai.chat.completions.create(**GREEDY, messages=SAID, max_tokens=12)
    assert answer.choices[0].message.content == alone(SAID, 12)
    assert answer.choices[0].finish_reason == "length" and answer.model == NAME
    assert answer.usage and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (13, 12)


def test_a_streamed_chat(ai: openai.OpenAI, alone: Any) -> None:
    told = {"messages": SAID, "max_completion_tokens": 12, "stream_options": {"include_usage": True}}
    *chunks, last = ai.chat.completions.create(**GREEDY, **told, stream=True)
    assert chunks[0].choices[0].delta.role == "assistant" and len(chunks) > 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == alone(SAID, 12)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert last.usage and last.usage.completion_tokens == 12 and not last.choices
    told["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    counts = [
        chunk.usage and chunk.usage.completion_tokens
        for chunk in ai.chat.completions.create(**GREEDY, **told, stream=True)
    ]
    assert None not in counts and counts == sorted(counts) and counts[0] < 12 == counts[-1]


def test_parts_of_a_message_and_an_answer_before(ai: openai.OpenAI, alone: Any) -> None:
    said = [*SAID, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Please do."}]
    parts = [*said[:2], {"role": "user", "content": [{"type": "text", "text": t} for t in ("Please", " do.")]}]
    answer = ai.chat.completions.create(**GREEDY, messages=parts, max_tokens=8)
    assert answer.choices[0].message.content == alone(said, 8)


def test_choices_have_seeds_of_their_own(ai: openai.OpenAI, alone: Any) -> None:
    told: dict[str, Any] = {"model": NAME, "messages": SAID, "temperature": 1.5, "seed": 5, "max_tokens": 8}
    answer = ai.chat.completions.create(**told, n=3)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [alone(SAID, 8, temperature=1.5, seed=5 + i) for i in range(3)] and len(set(texts)) == 3


def test_sampling_fields_reach_the_engine(ai: openai.OpenAI, alone: Any, demo: tuple[Any, Any]) -> None:
    the = demo[1]("The")["input_ids"][-1]
    fields: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "top_p": 0.9}
    extra: dict[str, Any] = {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2, "min_tokens": 3}
    told = {"messages": SAID, "temperature": 1.3, "seed": 7, "max_tokens": 10, "logit_bias": {str(the): -50}}
    answer = ai.chat.completions.create(model=NAME, **told, **fields, extra_body=extra)
    expected = alone(SAID, 10, temperature=1.3, seed=7, logit_bias={the: -50.0}, **fields, **extra)
    assert answer.choices[0].message.content == expected != alone(SAID, 10, temperature=1.3, seed=7)


def test_what_transformers_chat_asks(raw: httpx.Client, alone: Any) -> None:
    """Whether the model is loaded, and then with its settings in a field of their own."""
    assert 'data: {"status": "ready"' in raw.post("/load_model", json={"model": NAME}).text
    assert raw.post("/load_model", json={"model": "other"}).status_code == 404

    def ask(config: str) -> Any:
        told = {"model": NAME, "messages": SAID, "generation_config": config}
        return raw.post("/v1/chat/completions", json=told).json()

    told = {"do_sample": False, "max_new_tokens": 5, "transformers_version": "5.23.0"}
    assert ask(json.dumps(told))["choices"][0]["message"]["content"] == alone(SAID, 5)
    assert ask('{"num_beams": 2}')["error"]["message"] == "generation_config.num_beams: can't be met"
    assert "expected a JSON object" in ask("[1]")["error"]["message"]


def test_logprobs(ai: openai.OpenAI) -> None:
    answer = ai.chat.completions.create(**GREEDY, messages=SAID, max_tokens=6, logprobs=True, top_logprobs=2)
    found = answer.choices[0].logprobs
    assert found and found.content and "".join(t.token for t in found.content) == answer.choices[0].message.content
    assert all(t.logprob == t.top_logprobs[0].logprob > t.top_logprobs[1].logprob for t in found.content)
    assert bytes(found.content[0].bytes or []).decode() == found.content[0].token


def test_texts(ai: openai.OpenAI, alone: Any, demo: tuple[Any, Any]) -> None:
    """A stop text, several prompts, tokens as a prompt, log-probabilities of a stream."""
    first = alone("Once upon a time", 20)
    stop = first.split()[3]
    cut = ai.completions.create(**GREEDY, prompt="Once upon a time", max_tokens=20, stop=stop)
    assert cut.choices[0].text == first[: first.index(stop)] and cut.choices[0].finish_reason == "stop"
    ids = demo[1]("Once upon a time")["input_ids"]
    several = ai.completions.create(**GREEDY, prompt=[ids, demo[1]("The fox")["input_ids"]], max_tokens=9)
    assert [choice.text for choice in several.choices] == [alone(t, 9) for t in ("Once upon a time", "The fox")]
    chunks = list(ai.completions.create(**GREEDY, prompt=ids, max_tokens=5, logprobs=1, stream=True))
    assert "".join(t for chunk in chunks for t in chunk.choices[0].logprobs.tokens) == alone("Once upon a time", 5)


def test_a_schema(ai: openai.OpenAI) -> None:
    """The demo model knows no JSON: what it writes is of the schema all the same."""
    age = {"type": "integer", "minimum": 0, "maximum": 99}
    name = {"type": "string", "maxLength": 8}
    told = {"type": "object", "properties": {"name": name, "age": age}, "required": ["name", "age"]}
    schema: Any = {"name": "person", "schema": told | {"additionalProperties": False}}
    form: Any = {"type": "json_schema", "json_schema": schema}
    answer = ai.chat.completions.create(
        model=NAME, messages=SAID, max_tokens=60, seed=1, n=2, temperature=0.9, response_format=form
    )
    for choice in answer.choices:
        found = json.loads(choice.message.content or "")
        assert choice.finish_reason == "stop" and found.keys() == {"name", "age"}
        assert len(found["name"]) <= 8 and 0 <= found["age"] <= 99
    rule: Any = {"type": "regex", "regex": "(yes|no), [0-9]{3}"}
    answer = ai.chat.completions.create(**GREEDY, messages=SAID, max_tokens=30, response_format=rule)
    assert (answer.choices[0].message.content or "")[-5:-3] == ", " and answer.choices[0].finish_reason == "stop"
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError, match="response_format: "):
        ai.chat.completions.create(**GREEDY, messages=SAID, response_format=wrong)
    short: Any = {"type": "grammar", "grammar": 'start: "a"'}
    with pytest.raises(openai.BadRequestError, match="min_tokens, logit_bias and the like"):
        ai.chat.completions.create(**GREEDY, messages=SAID, response_format=short, extra_body={"min_tokens": 9})


def test_responses(ai: openai.OpenAI, alone: Any) -> None:
    text = SAID[0]["content"]
    answer = ai.responses.create(**GREEDY, input=text, max_output_tokens=9, store=False)
    assert answer.output_text == alone(SAID, 9) and answer.status == "incomplete"
    assert answer.usage and (answer.usage.input_tokens, answer.usage.output_tokens) == (13, 9)
    events = list(ai.responses.create(**GREEDY, input=text, max_output_tokens=9, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == alone(SAID, 9)
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == alone(SAID, 9)
    item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    told = ai.responses.create(**GREEDY, input=[item], instructions="Be brief.", max_output_tokens=5)
    assert told.output_text == alone([{"role": "system", "content": "Be brief."}, *SAID], 5)


def test_messages(claude: anthropic.Anthropic, alone: Any) -> None:
    cold = {"temperature": 0.0}
    said: Any = SAID
    answer = claude.messages.create(model=NAME, max_tokens=9, messages=said, extra_body=cold)
    assert answer.content[0].text == alone(SAID, 9) and answer.stop_reason == "max_tokens"  # type: ignore[union-attr]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (13, 9)
    with claude.messages.stream(model=NAME, max_tokens=9, messages=said, extra_body=cold) as stream:
        assert "".join(stream.text_stream) == alone(SAID, 9)
        assert stream.get_final_message().stop_reason == "max_tokens"
    stop = alone(SAID, 9).split()[2]
    cut = claude.messages.create(model=NAME, max_tokens=9, messages=said, stop_sequences=[stop], extra_body=cold)
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    told = claude.messages.create(model=NAME, max_tokens=5, messages=said, system=system, extra_body=cold)
    assert told.content[0].text == alone([{"role": "system", "content": "Be brief."}, *SAID], 5)  # type: ignore[union-attr]
    assert claude.messages.count_tokens(model=NAME, messages=said).input_tokens == 13


def test_cached_tokens_are_counted(ai: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "Tell me of the fox and the crow and the cheese. " * 6}]
    found = [ai.chat.completions.create(**GREEDY, messages=long, max_tokens=2).usage for _ in range(2)]
    cached = [u.prompt_tokens_details.cached_tokens for u in found]  # type: ignore[union-attr]
    assert cached[0] == 0 and cached[1] and cached[1] % 16 == 0


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("chat/completions", {"audio": {}}, "audio: this server knows no such field"),
        ("chat/completions", {"messages": []}, "messages: "),
        ("chat/completions", {"temperature": "hot"}, "temperature: "),
        ("chat/completions", {"temperature": -1}, "temperature: expected a number from 0 on"),
        ("chat/completions", {"logit_bias": {"999999": 1}}, "logit_bias: expected tokens of a vocabulary"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 50}, "logprobs: "),
        ("chat/completions", {"tool_choice": "any"}, "tool_choice"),
        ("chat/completions", {"n": 0}, "n: "),
        (
            "chat/completions",
            {"ignore_eos": True, "response_format": {"type": "json_object"}},
            "ignore_eos: can't be met beside a constraint",
        ),
        ("completions", {"prompt": "a", "n": 2, "seed": 2**64 - 1}, "seed: expected a number of 64 bits"),
        ("chat/completions", {"n": 10**12, "response_format": {"type": "json_object"}}, "n: expected 1 to 8"),
        ("completions", {"prompt": "a", "n": 10**12}, "n: expected 1 to 8"),
        ("completions", {"prompt": ["a", "b", "c"], "n": 3}, "prompt: expected at most 8 answers to all, got 9"),
        ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias: expected ids of tokens, got 'x'"),
        ("chat/completions", {"seed": 2**70}, "seed: "),
        ("chat/completions", {"messages": [{"role": "user", "content": "x " * 2000}]}, "the prompt has "),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http:"}}]}]},
            "messages[0].content[0]: expected an image as data:",
        ),
        ("completions", {"prompt": "a", "suffix": "b"}, "suffix: "),
        ("completions", {"prompt": []}, "prompt: "),
        ("completions", {"prompt": [1, -5]}, "prompt: expected tokens of a vocabulary"),
        ("responses", {"input": "a", "previous_response_id": "r"}, "previous_response_id: "),
        ("responses", {"input": [{"type": "image"}]}, "input[0]: expected an item of the type message"),
        ("messages", {"max_tokens": 5, "thinking": {"type": "what"}}, "thinking.type: "),
        ("messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0]: "),
        ("messages", {}, "max_tokens: "),
        ("completions", {"prompt": ["a", "\ud800"]}, "prompt[1]: expected Unicode text"),
        ("completions", {"prompt": "a", "stop": "\udc00"}, "stop: expected Unicode text"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
            "messages[0].content[0].text: expected Unicode text",
        ),
        (
            "messages",
            {"max_tokens": 5, "tools": [{"name": "a", "input_schema": {"properties": {"\ud800": {}}}}]},
            "tools[0].input_schema.properties: expected Unicode text",
        ),
        ("responses", {"input": "a", "instructions": "\ud83d"}, "instructions: expected Unicode text"),
    ],
    ids=str,
)
def test_what_is_refused_is_named(raw: httpx.Client, path: str, fields: dict[str, Any], said: str) -> None:
    body = {"model": NAME} | ({"messages": SAID} if path in ("chat/completions", "messages") else {}) | fields
    response = raw.post(f"/v1/{path}", content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert said in response.json()["error"]["message"]


def test_other_refusals(raw: httpx.Client) -> None:
    assert raw.post("/v1/completions", json={"model": "other", "prompt": "a"}).status_code == 404
    assert raw.get("/v1/nothing").status_code == 404
    assert raw.get("/v1/completions").status_code == 405
    assert raw.post("/v1/completions", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    form = raw.post(
        "/v1/completions", content=b'{"model": "demo", "prompt": "a"}', headers={"content-type": "text/plain"}
    )
    assert form.status_code == 415, "what any page can send"
    assert raw.get("/v1/models/demo").json()["id"] == "demo" and raw.get("/v1/models/x").status_code == 404


def test_many_at_once_get_what_each_would_alone(server: Server, alone: Any) -> None:
    host, port = address(server)
    words = ["fox", "kite", "river", "lamp", "crow", "boat", "king", "snow", "bread", "moon"]  # for eight places
    prompts = [f"Once there was a {word}" for word in words]

    def ask(prompt: str) -> str:
        with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0) as own:
            chunks = own.completions.create(**GREEDY, prompt=prompt, max_tokens=8, stream=True)
            return "".join(chunk.choices[0].text for chunk in chunks)

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == [alone(prompt, 8) for prompt in prompts]


def test_health_metrics_and_the_page(raw: httpx.Client) -> None:
    assert raw.get("/health").json() == {"status": "ok"}
    asked = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert raw.post("/v1/chat/completions", json=asked).status_code == 200
    text = raw.get("/metrics").text
    assert 'torch_foundry_responses_total{path="/v1/chat/completions",status="200"}' in text
    assert "torch_foundry_running 0.0" in text and "torch_foundry_first_token_seconds_count" in text
    assert "torch_foundry_cache_bytes " in text and "torch_foundry_state_bytes 0.0" in text
    assert "torch_foundry_snapshots 0.0" in text
    fields = raw.get("/openapi.json").json()["components"]["schemas"]["ChatBody"]
    assert "min_p" in fields["properties"] and fields["additionalProperties"] is False
