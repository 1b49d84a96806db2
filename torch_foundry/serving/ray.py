"""The server as a Ray Serve deployment: replicas behind a front that routes requests, and sends them again.

    ray start --head                                                          # on one machine; on the others
    ray start --address=FIRST:6379
    serve run torch_foundry.serving.ray:app model=PATH replicas=8             # once

A request goes to the replica that has its prefix (`routing`). One whose replica dies before the answer has begun is
sent to another; a stream that had begun ends with an error that says so. See docs/scale.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from typing import Any

import anyio
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from torch_foundry.engine import Engine
from torch_foundry.engine.warm_up import warm_up
from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.ids import new_id
from torch_foundry.serving.routing import SLACK, Router, keys_of
from torch_foundry.serving.service import ServerConfig, Service

LOG = logging.getLogger("torch_foundry.serving")
ATTEMPTS = 5  # replicas that a request is sent to, one after the other
OWN = ("content-length", "connection", "transfer-encoding", "x-request-id")  # headers that Ray's proxy sets
Start = tuple[int, list[tuple[bytes, bytes]]]  # status and headers of a response


class PrefixRouter(RequestRouter):
    """Ray Serve's choice of a replica, by `routing.Router`. A request's first argument is its keys."""

    def initialize_state(self, slack: float = SLACK) -> None:
        """See Ray."""
        self._router = Router(slack)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """See Ray."""
        free = self.select_available_replicas(candidate_replicas) or candidate_replicas
        found = {replica.replica_id.unique_id: replica for replica in free}
        keys = pending_request.args[0] if pending_request is not None else ()

        def open(name: str) -> float:
            return self.replica_queue_len_cache.get(found[name].replica_id) or 0

        name = self._router.choose(keys, found, open)
        return [[found.pop(name)], [*found.values()]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """See Ray."""
        self._router.note(pending_request.args[0], replica_id.unique_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """See Ray."""
        super().on_replica_actor_died(replica_id)
        self._router.forget(replica_id.unique_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """See Ray."""
        for gone in self.curr_replicas.keys() - {replica.replica_id for replica in replicas}:
            self._router.forget(gone.unique_id)
        super().update_replicas(replicas)


class Replica:
    """An engine behind the application that `torch-foundry serve` has, without a socket of its own."""

    def __init__(self, load: Callable[[], Engine], config: ServerConfig) -> None:
        from torch_foundry.serving.app import application, freeze_heap

        engine = load()
        warm_up(engine)
        self.service = Service(engine, config)
        self.app = application(self.service)
        freeze_heap()

    async def answer(self, keys: Sequence[bytes], scope: dict[str, Any], body: bytes) -> AsyncIterator[Start | bytes]:
        """The response: its start, then its body piece by piece. keys: for the router alone. When nobody reads any
        more, the request is cancelled."""
        sent, gone = asyncio.Queue[MutableMapping[str, Any]](), asyncio.Event()
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.put_nowait(message)

        async def run() -> None:
            try:
                await self.app({**scope, "state": {}}, receive, send)
            finally:
                await sent.put({"type": "end"})

        task = asyncio.create_task(run())
        try:
            while (message := await sent.get())["type"] != "end":
                if message["type"] == "http.response.start":
                    yield message["status"], list(message.get("headers", ()))
                else:
                    yield message.get("body", b"")
            await task
        finally:
            gone.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=self.service.config.body_timeout)

    def check_health(self) -> None:
        """Raise if requests can't be answered: Ray then replaces the replica."""
        if not self.service.thread.is_alive:
            raise RuntimeError("the engine has stopped")

    def __del__(self) -> None:
        """Let answers that run end; Ray has waited for them already."""
        if hasattr(self, "service"):
            self.service.thread.close(now=True)


class Front:
    """Takes requests whole, and passes them and their answers on."""

    def __init__(self, replicas: DeploymentHandle, config: ServerConfig) -> None:
        self.replicas, self.config = replicas.options(stream=True), config

    async def __call__(self, request: HttpRequest) -> Response:
        """The answer of a replica, of another one if that dies before the answer has begun."""
        scope = _scope(request)
        try:
            body = await self._body(request)
            return await self._answer(scope, body)
        except ApiError as error:
            return JSONResponse(error.body(scope["path"], new_id("req")), error.status, headers=error.headers)

    async def _body(self, request: HttpRequest) -> bytes:
        parts, size = [], 0
        try:
            with anyio.fail_after(self.config.body_timeout):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > self.config.max_body:
                        raise ApiError(413, f"body: expected at most {self.config.max_body} bytes")
        except TimeoutError:
            raise ApiError(408, f"body: not here within {self.config.body_timeout} seconds") from None
        return b"".join(parts)

    async def _answer(self, scope: dict[str, Any], body: bytes) -> Response:
        headers = dict(scope["headers"])
        keys = keys_of(body, headers.get(b"x-api-key", b"") or headers.get(b"authorization", b""))
        for attempt in range(ATTEMPTS):
            pieces = self.replicas.answer.remote(keys, scope, body)
            try:
                status, told = await anext(pieces)
                first = await anext(pieces, b"")
            except BackPressureError as error:
                raise ApiError(429, "as many requests wait as this server takes", code="queue_full") from error
            except RayActorError:
                LOG.warning("a replica has died before an answer began: attempt %d of %d", attempt + 1, ATTEMPTS)
                continue
            except asyncio.CancelledError:
                pieces.cancel()
                raise
            found = {name.decode(): value.decode("latin-1") for name, value in told}
            rest = self._rest(scope["path"], found.get("x-request-id", ""), first, pieces)
            return StreamingResponse(rest, status, {name: found[name] for name in found if name not in OWN})
        raise ApiError(503, f"{ATTEMPTS} replicas have died with this request")

    async def _rest(self, path: str, id: str, first: bytes, pieces: Any) -> AsyncIterator[bytes]:
        try:
            yield first
            async for piece in pieces:
                yield piece
        except RayActorError:
            error = ApiError(503, "the replica has died in the middle of this answer", code="replica_died")
            told, named = error.body(path, id), path.startswith(("/v1/messages", "/v1/responses"))
            if path.startswith("/v1/responses"):
                told = {"type": "error", **told["error"]}
            event = "event: error\n" if named else ""
            yield f"\n\n{event}data: {json.dumps(told)}\n\n".encode()
        finally:
            pieces.cancel()


def _scope(request: HttpRequest) -> dict[str, Any]:
    """What a replica is told of a request; all of it can be pickled."""
    names = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client")
    scope = {name: request.scope[name] for name in names if name in request.scope}
    return {**scope, "root_path": "", "server": request.scope.get("server"), "asgi": {"version": "3.0"}}


def deployment(
    load: Callable[[], Engine],
    config: ServerConfig,
    *,
    replicas: int = 1,
    slack: float = SLACK,
    actor: dict[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """An application of Ray Serve with so many `replicas`, each with the engine that `load` returns there.

    slack: as of `routing.Router`. actor: resources of a replica, as Ray's `ray_actor_options`. options: further ones of
    the replicas' deployment, such as `max_replicas_per_node` or `autoscaling_config`.
    """
    router = RequestRouterConfig(request_router_class=PrefixRouter, request_router_kwargs={"slack": slack})
    told: dict[str, Any] = {"num_replicas": replicas, "max_ongoing_requests": config.concurrent, **options}
    told |= {"ray_actor_options": actor or {}, "graceful_shutdown_timeout_s": config.drain}
    engines = serve.deployment(Replica, name="replica", request_router_config=router, **told)
    entrance = serve.deployment(Front, name="front", max_ongoing_requests=1 << 14)
    return entrance.options(ray_actor_options={"num_cpus": 0}).bind(engines.bind(load, config), config)


def app(arguments: dict[str, str]) -> serve.Application:
    """For `serve run torch_foundry.serving.ray:app`: model=PATH, and if need be name, replicas, quantize, device,
    requests, queue, blocks, slack, and api_keys, a file with a key a line. One replica a machine.

    ValueError: an unknown argument, or none for model.
    """
    numbers = {name: int(arguments[name]) for name in ("requests", "queue", "blocks") if name in arguments}
    known = {"model", "name", "replicas", "quantize", "device", "slack", "api_keys", *numbers}
    if "model" not in arguments or (wrong := arguments.keys() - known):
        raise ValueError(f"expected model=PATH, and some of {', '.join(sorted(known))}; got {sorted(wrong)}")
    path, device, quantize = arguments["model"], arguments.get("device"), arguments.get("quantize")

    def load() -> Engine:
        import torch_foundry

        model, tokenizer = torch_foundry.load(path, device=device, progress=False)
        if quantize is not None:
            torch_foundry.patch(model, quantize=quantize)
        return Engine(model, tokenizer, **numbers)

    keys: tuple[str, ...] = ()
    if "api_keys" in arguments:
        with open(arguments["api_keys"], encoding="utf-8") as file:
            keys = tuple(line.strip() for line in file if line.strip())
    config = ServerConfig((arguments.get("name") or os.path.basename(path),), keys)
    count, slack = int(arguments.get("replicas", 1)), float(arguments.get("slack", SLACK))
    return deployment(load, config, replicas=count, slack=slack, max_replicas_per_node=1)
