"""What every request passes: its id, key, size and number are checked, its end is noticed and logged."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import time
from collections import Counter
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torch_foundry.serving.errors import LOG, ApiError, api_error, log_fault
from torch_foundry.serving.ids import new_id
from torch_foundry.serving.metrics import Exchange
from torch_foundry.serving.service import Service

HOST = re.compile(r":\d+$")  # a port
ID = re.compile(r"[\w.-]{1,64}")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN = ("/health",)  # asked by supervisors, which have no key
FORMS = ("/v1/audio/transcriptions",)  # whose bodies have files


class Gate:
    """ASGI middleware. A request is read whole, within a time, before anything else sees it; when its client is gone,
    what works on it is cancelled, and its answers with it. Nothing of prompts and answers is logged."""

    def __init__(self, app: ASGIApp, service: Service, paths: set[str]) -> None:
        self.app, self.service, self.paths = app, service, paths
        self._active: Counter[bytes] = Counter()  # requests at a time, by key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        exchange = Exchange(given if ID.fullmatch(given) else new_id("req"))
        scope.setdefault("state", {})["exchange"] = exchange
        response = _Response(send, exchange, self.service.config.body_timeout)
        known = False
        try:
            exchange.salt = self._key(scope, headers)
            self._count(exchange.salt)
            known = True
            await self._run(scope, receive, response)
        except Exception as error:
            if not isinstance(error, ApiError):
                log_fault(exchange.id, error)
            if not response.status:
                await response.refuse(api_error(error), scope["path"])
        finally:
            self._active[exchange.salt] -= known
            self.service.end(exchange)
            self._note(scope, exchange, response.status)

    def _key(self, scope: Scope, headers: dict[bytes, bytes]) -> bytes:
        """What shares nothing with other keys' requests; ApiError for one that has no key, or is a strange page's."""
        keys = self.service.config.api_keys
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not keys and scope["server"][0] in LOOPBACK and HOST.sub("", host).strip("[]") not in LOOPBACK:
            # a page's own name, made to lead here (DNS rebinding)
            raise ApiError(403, f"host: expected {', '.join(LOOPBACK)} where there are no API keys, got {host!r:.60}")
        if not keys or scope["path"] in OPEN:
            return b""
        given = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not sum(hmac.compare_digest(given, key.encode()) for key in keys):  # each is looked at
            raise ApiError(401, "expected an API key: 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        return hashlib.sha256(given).digest()

    def _count(self, key: bytes) -> None:
        config = self.service.config
        if sum(self._active.values()) >= config.concurrent:
            raise ApiError(429, f"{config.concurrent} requests at a time are what this server takes")
        if config.per_key is not None and self._active[key] >= config.per_key:
            raise ApiError(429, f"{config.per_key} requests at a time are what it takes of one key")
        self._active[key] += 1

    async def _run(self, scope: Scope, receive: Receive, response: _Response) -> None:
        body = await self._body(scope, receive)
        scope["asgi"] = {**scope["asgi"], "spec_version": "2.4"}  # responses leave it to the gate to watch the client
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def wait_until_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            async def replay() -> Message:
                if not given:
                    given.append(True)
                    return {"type": "http.request", "body": body, "more_body": False}
                await anyio.sleep_forever()
                raise AssertionError

            async def wait_until_stuck() -> None:
                nonlocal failed
                await response.until_stuck()
                failed = TimeoutError("the client reads nothing")
                tasks.cancel_scope.cancel()

            given: list[bool] = []
            tasks.start_soon(wait_until_gone)
            tasks.start_soon(wait_until_stuck)
            try:
                await self.app(scope, replay, response)
            except Exception as error:
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        config, parts, size = self.service.config, [], 0
        try:
            with anyio.fail_after(config.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the client has left")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > config.max_body:
                        raise ApiError(413, f"body: expected at most {config.max_body} bytes")
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise ApiError(408, f"body: not here within {config.body_timeout} seconds") from None
        if size:
            self._check_kind(scope["path"], dict(scope["headers"]))
        return b"".join(parts)

    def _check_kind(self, path: str, headers: dict[bytes, bytes]) -> None:
        """ApiError for a body that is none of this path's, or that a form of another page can have sent unasked."""
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        wanted = "multipart/form-data" if path in FORMS else "application/json"
        if kind != wanted:
            raise ApiError(415, f"content-type: expected {wanted}, got {kind!r:.60}")
        origin, allowed = headers.get(b"origin", b"").decode("latin-1"), self.service.config.origins
        if path in FORMS and origin and origin not in allowed and "*" not in allowed:  # JSON is not sent unasked
            raise ApiError(403, f"origin: expected one that the server allows, got {origin!r:.60}")

    def _note(self, scope: Scope, exchange: Exchange, status: int) -> None:
        seconds = time.perf_counter() - exchange.began
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.service.metrics.responses.labels(path, status or 499).inc()
        self.service.metrics.seconds.labels(path).observe(seconds)
        if LOG.isEnabledFor(logging.INFO):
            told: dict[str, Any] = {
                "id": exchange.id,
                "path": path,
                "status": status or 499,
                "seconds": round(seconds, 4),
            }
            if exchange.requests:
                told |= vars(exchange.usage) | {"finish_reasons": exchange.finish_reasons}
            LOG.info("%s", json.dumps(told))


class _Response:
    """Sends a response. status: 0 before it has begun."""

    def __init__(self, send: Send, exchange: Exchange, timeout: float) -> None:
        self._send, self._exchange, self._timeout = send, exchange, timeout
        self._since: float | None = None  # when the part that is being sent was begun
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            id = self._exchange.id.encode()
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", id)]}
        self._since = time.monotonic()
        try:
            await self._send(message)
        finally:
            self._since = None

    async def until_stuck(self) -> None:
        """Wait until the client has taken no part for too long. One timer for all parts: there are many."""
        while (left := self._timeout - (time.monotonic() - (self._since or time.monotonic()))) > 0:
            await anyio.sleep(left)

    async def refuse(self, error: ApiError, path: str) -> None:
        """Answer with an error."""
        body = json.dumps(error.body(path, self._exchange.id)).encode()
        told = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        headers = [(name.encode(), value.encode()) for name, value in (told | error.headers).items()]
        with anyio.move_on_after(self._timeout):
            await self({"type": "http.response.start", "status": error.status, "headers": headers})
            await self({"type": "http.response.body", "body": body})
