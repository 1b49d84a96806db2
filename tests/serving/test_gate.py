"""Limits, keys, clients that are gone or slow, logs, and the end of a server, by raw sockets."""

from __future__ import annotations

import gc
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.serving.conftest import NAME, Serve, address
from torch_foundry.engine.sequence import Sequence
from torch_foundry.serving.app import Server

LONG = {"model": NAME, "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "temperature": 0.0}
SHORT = LONG | {"max_tokens": 3}


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with client_of(server) as found:
        yield found


def client_of(server: Server, **options: Any) -> httpx.Client:
    host, port = address(server)
    return httpx.Client(base_url=f"http://{host}:{port}", timeout=60, **options)


def send(server: Server, body: bytes, length: int | None = None, *, reads: int = 0) -> socket.socket:
    """A request on a socket of its own. length: what its header promises; reads: bytes that the client has room for."""
    found, size = socket.socket(), length or len(body)
    if reads:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, reads)
    found.connect(address(server))
    head = (
        "POST /v1/completions HTTP/1.1",
        "host: localhost:1",
        "content-type: application/json",
        f"content-length: {size}",
    )
    found.sendall("\r\n".join((*head, "", "")).encode() + body)
    return found


def status_of(found: socket.socket) -> int:
    found.settimeout(60)
    return int(found.recv(12).split()[1])


def until(true: Callable[[], Any]) -> None:
    """Waits for what another thread does; the time only ends a test that fails."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it didn't come")


def idle(server: Server) -> Callable[[], bool]:
    return lambda: server.service.engine.idle and not server.service.thread._live


def test_a_body_that_does_not_come(serve: Serve) -> None:
    with serve(body_timeout=0.2) as server:
        assert status_of(send(server, b'{"model":', 100)) == 408
        gone = send(server, b'{"model":', 100)
        gone.close()
        with client_of(server) as client:
            assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_limits(serve: Serve) -> None:
    with serve(max_body=1000, max_prompt=20, max_tokens=10) as server, client_of(server) as client:

        def refused(**fields: Any) -> tuple[int, str]:
            answer = client.post("/v1/completions", json=SHORT | fields)
            return answer.status_code, answer.json()["error"]["message"]

        assert refused(prompt="x" * 2000) == (413, "body: expected at most 1000 bytes")
        assert refused(prompt=[5] * 21) == (400, "the prompt has 21 tokens, of 20 that this server takes")
        assert refused(max_tokens=11) == (400, "max_tokens: expected at most 10, got 11")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_is_gone(server: Server, stream: bool) -> None:
    """Its request is cancelled, whether the answer was to be streamed or not; far from its 900 tokens."""
    found = send(server, json.dumps(LONG | {"stream": stream}).encode())
    until(lambda: server.service.engine.scheduler.running)
    (sequence,) = server.service.engine.scheduler.running
    if stream:
        assert found.recv(1)
    found.close()
    until(idle(server))
    assert sequence.finish_reason == "cancelled" and len(sequence.tokens) < 900


def test_many_clients_that_are_gone_leave_nothing(server: Server) -> None:
    for _ in range(3):
        for found in [send(server, json.dumps(LONG | {"stream": True}).encode()) for _ in range(12)]:
            found.close()
        until(idle(server))

    def nothing_is_left() -> bool:
        gc.collect()
        return not [each for each in gc.get_objects() if type(each) is Sequence and each.limit > 900]

    until(nothing_is_left)  # handlers end behind the engine


def test_who_reads_nothing_is_left(serve: Serve) -> None:
    """The answer is more than sockets and buffers hold; others are answered meanwhile."""
    with serve(body_timeout=0.5) as server, client_of(server) as client:
        server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        told = LONG | {"stream": True, "n": 2, "logprobs": 20, "max_tokens": 80}
        slow = send(server, json.dumps(told).encode(), reads=1)
        until(lambda: server.service.engine.scheduler.running)
        assert client.post("/v1/completions", json=SHORT).status_code == 200
        until(lambda: server.service.metrics.responses.labels("/v1/completions", 200)._value.get() == 2)
        slow.settimeout(60)
        text = b"".join(iter(lambda: slow.recv(1 << 16), b""))
        assert text.startswith(b"HTTP/1.1 200") and b"[DONE]" not in text


def test_keys(serve: Serve) -> None:
    with serve(api_keys=("one", "two"), per_key=1) as server, client_of(server) as client:
        assert client.post("/v1/completions", json=SHORT).status_code == 401
        assert (
            client.get("/v1/models", headers={"x-api-key": "three"}).json()["error"]["type"] == "authentication_error"
        )
        assert client.get("/health").status_code == 200
        one, two = {"authorization": "Bearer one"}, {"x-api-key": "two"}
        with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}, headers=one) as busy:
            assert busy.status_code == 200
            refused = client.post("/v1/completions", json=SHORT, headers=one)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
            assert client.post("/v1/completions", json=SHORT, headers=two).status_code == 200


def test_keys_share_no_prefixes(serve: Serve) -> None:
    """How fast a prompt is read would tell what others have asked."""
    with serve(api_keys=("one", "two")) as server, client_of(server) as client:
        told = SHORT | {"prompt": list(range(100, 164))}
        cached = [
            client.post("/v1/completions", json=told, headers={"x-api-key": key}).json()["usage"]
            for key in ("one", "two", "two")
        ]
        found = [usage["prompt_tokens_details"]["cached_tokens"] for usage in cached]
        assert found[:2] == [0, 0] and found[2] > 0


@pytest.mark.parametrize("limit", ["queue", "concurrent"])
def test_too_many_requests(serve: Serve, limit: str) -> None:
    options: dict[str, Any] = {"concurrent": 3} if limit == "concurrent" else {"engine": {"requests": 1, "queue": 2}}
    with serve(**options) as server, client_of(server) as client:
        busy = [send(server, json.dumps(LONG | {"stream": True}).encode()) for _ in range(3)]
        scheduler = server.service.engine.scheduler
        until(lambda: len(scheduler.running) + len(scheduler.waiting) == 3)
        refused = client.post("/v1/completions", json=SHORT)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["type"] == "rate_limit_error"
        for each in busy:
            each.close()
        until(idle(server))
        assert client.post("/v1/completions", json=SHORT).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long(serve: Serve, stream: bool) -> None:
    with serve(timeout=0.3) as server, client_of(server) as client:
        answer = client.post("/v1/completions", json=LONG | {"stream": stream})
        assert answer.status_code == (200 if stream else 504)
        assert "no answer within 0.3 seconds" in answer.text
        until(idle(server))


@pytest.mark.parametrize("drain", [60.0, 0.1])
def test_the_end_of_a_server(serve: Serve, drain: float) -> None:
    """Running answers end, or are returned as far as they are; new requests are refused."""
    with serve(drain=drain) as server, client_of(server) as client:
        tokens = 60 if drain > 1 else 900
        wanted = LONG | {"stream": True, "max_tokens": tokens, "stream_options": {"include_usage": True}}
        with client.stream("POST", "/v1/completions", json=wanted) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.should_exit = True
            until(lambda: server.service.thread._closing)
            *_, last, totals = (json.loads(line[6:]) for line in lines if line.startswith("data: {"))
    assert last["choices"][0]["finish_reason"] == "length"
    assert (totals["usage"]["completion_tokens"] == tokens) == (drain > 1)


def test_a_step_that_fails(
    server: Server, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with the id by which the log has it; the next request is answered."""
    engine = server.service.engine
    step = engine.step

    def failing() -> int:
        if engine.scheduler.waiting:
            monkeypatch.setattr(engine, "step", step)
            raise MemoryError("of a prompt: secret")
        return step()

    monkeypatch.setattr(engine, "step", failing)
    answer = client.post("/v1/completions", json=SHORT)
    assert answer.status_code == 500 and "secret" not in answer.text and "secret" not in caplog.text
    (fault,) = [json.loads(record.message) for record in caplog.records if record.levelno == logging.ERROR]
    assert fault["id"] == answer.headers["x-request-id"] and fault["error"] == "MemoryError" and fault["where"]
    assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_logs_have_nothing_of_a_prompt(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_foundry.serving")
    for told in ({}, {"temperature": "secret"}, {"secret": 1}):
        client.post("/v1/completions", json=SHORT | {"prompt": "secret"} | told, headers={"x-request-id": "mine"})
    until(lambda: len(caplog.records) >= 3)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "torch_foundry.serving"]
    assert [line["status"] for line in lines] == [200, 400, 400] and {line["id"] for line in lines} == {"mine"}
    assert lines[0]["new"] == 3 and lines[0]["path"] == "/v1/completions"
    assert "secret" not in caplog.text


def test_pages_of_other_origins(serve: Serve, client: httpx.Client) -> None:
    asked = {"origin": "http://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v1/completions", headers=asked).headers
    with serve(origins=("http://a.example",)) as server, client_of(server) as own:
        assert own.options("/v1/completions", headers=asked).headers["access-control-allow-origin"] == asked["origin"]


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("[::1]:80", 200), ("LOCALHOST", 200), ("", 403)])
def test_names_that_are_made_to_lead_here(client: httpx.Client, host: str, status: int) -> None:
    assert client.get("/v1/models", headers={"host": host}).status_code == status


def test_no_thread_is_left() -> None:
    """By the servers of the tests before, but for the module's."""
    assert sum(thread.name == "engine" for thread in threading.enumerate()) <= 1
