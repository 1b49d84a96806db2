"""Text of answers: made by the event loop's thread, unless stop texts are looked for."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.serving.conftest import NAME, Serve, address
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.text import StreamDecoder

PROMPT = "Once upon a time there was"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [[], ["~never~"]])
def test_it_is_what_the_engine_makes_of_it(serve: Serve, demo: Any, stream: bool, stop: list[str]) -> None:
    """An end token is none of it, wherever it is found out."""
    own = Engine(*demo, requests=1)
    plain = SamplingParams(max_tokens=24, temperature=0)
    tokens = own.submit(PROMPT, plain).result()
    for ends in ((), (tokens[9],), (tokens[0],)):
        expected = own.submit(PROMPT, SamplingParams(max_tokens=24, temperature=0, stop_token_ids=ends))
        expected.result()
        told = {"model": NAME, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stop_token_ids": list(ends)}
        with serve() as server:
            url = "http://{}:{}/v1/completions".format(*address(server))
            found = httpx.post(url, json={**told, "stop": stop, "stream": stream}, timeout=60)
        events = [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: {")]
        choices = [event["choices"][0] for event in (events if stream else [found.json()])]
        assert "".join(choice["text"] for choice in choices) == expected.text
        assert choices[-1]["finish_reason"] == expected.finish_reason


def test_an_engine_makes_no_text_unasked(demo: Any) -> None:
    engine = Engine(*demo, requests=1)
    made = engine.submit(PROMPT, SamplingParams(max_tokens=5, temperature=0))
    bare = engine.submit(PROMPT, SamplingParams(max_tokens=5, temperature=0, detokenize=False))
    assert made.result() == bare.result() and made.text and not bare.text
    with pytest.raises(ValueError, match="detokenize: stop texts are looked for in the text"):
        SamplingParams(stop=("x",), detokenize=False)


@pytest.mark.parametrize("stop", [[], ["~never~"]])
def test_tokens_that_cannot_be_made_a_text(serve: Serve, monkeypatch: pytest.MonkeyPatch, stop: list[str]) -> None:
    """The request's own trouble, by whichever thread it is noticed; others are answered."""
    push = StreamDecoder.push

    def fails(self: StreamDecoder, ids: Any) -> str:
        if found := push(self, ids):
            raise ValueError("broken")
        return found

    told = {"model": NAME, "prompt": PROMPT, "max_tokens": 400, "temperature": 0}
    with serve() as server:
        url = "http://{}:{}/v1/completions".format(*address(server))
        with monkeypatch.context() as broken:
            broken.setattr(StreamDecoder, "push", fails)
            failed = httpx.post(url, json={**told, "stop": stop}, timeout=60)
        assert failed.status_code == 500 and PROMPT not in failed.text
        assert httpx.post(url, json={**told, "max_tokens": 3}, timeout=60).json()["choices"][0]["text"]
