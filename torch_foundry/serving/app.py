"""The application: routes of all protocols behind the gate, and uvicorn to run it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from torch_foundry import __version__
from torch_foundry.serving import chat_completions, completions, messages, responses, transcriptions
from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.gate import Gate
from torch_foundry.serving.page import HEADERS, page
from torch_foundry.serving.protocol import exchange_of, now
from torch_foundry.serving.service import Service

UNION = (
    "str",
    "list[str]",
    "list[int]",
    "list[list[int]]",
    "list[dict[str,any]]",
    "literal['none','auto','required']",
)  # no fields: pydantic's alternatives
PROTOCOLS = (chat_completions.router, completions.router, responses.router, messages.router, transcriptions.router)


def application(service: Service) -> ASGIApp:
    """The ASGI application of a service, whose thread it ends when it is shut down."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.thread.close(now=True)
        await asyncio.to_thread(service.thread.join, service.config.body_timeout)

    told: dict[str, Any] = {"docs_url": None, "redoc_url": None}  # their scripts are a CDN's
    app = FastAPI(title="torch_foundry", version=__version__, lifespan=lifespan, **told)
    app.state.service = service
    for router in PROTOCOLS:
        app.include_router(router)
    began = now()

    @app.get("/health")
    async def health() -> Response:
        """200 while requests can be answered."""
        alive = service.thread.is_alive
        return JSONResponse({"status": "ok" if alive else "the engine has stopped"}, 200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters and gauges, as Prometheus reads them."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(page(app.openapi()), media_type="text/html; charset=utf-8", headers=HEADERS)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The names of the model."""
        return {"object": "list", "data": [model(name) for name in service.config.names]}

    @app.get("/v1/models/{name:path}")
    async def model_of(name: str) -> dict[str, Any]:
        """The model of a name."""
        service.check_model(name)
        return model(name)

    def model(name: str) -> dict[str, Any]:
        limit = service.engine.limit
        told = {"object": "model", "created": began, "owned_by": "torch_foundry", "max_model_len": limit}
        return {"id": name, **told, "type": "model", "display_name": name}

    @app.exception_handler(RequestValidationError)
    async def wrong(http: HttpRequest, error: RequestValidationError) -> Response:
        return await refused(http, invalid(error))

    @app.exception_handler(HTTPException)
    async def unknown(http: HttpRequest, error: HTTPException) -> Response:
        return await refused(http, ApiError(error.status_code, f"{http.method} {http.url.path}: {error.detail}"))

    @app.exception_handler(ApiError)
    async def refused(http: HttpRequest, error: ApiError) -> Response:
        body = error.body(http.url.path, exchange_of(http).id)
        return JSONResponse(body, error.status, headers=error.headers)

    known = [route for routes in (app.routes, *(router.routes for router in PROTOCOLS)) for route in routes]
    paths = {path for route in known if isinstance(path := getattr(route, "path", None), str)}
    gated: ASGIApp = Gate(app, service, paths)
    if service.config.origins:
        allowed: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
        gated = CORSMiddleware(gated, allow_origins=service.config.origins, **allowed)
    return gated


def invalid(error: RequestValidationError) -> ApiError:
    """What is wrong with a body, by the field's name. The value isn't told: it may be long."""
    first = error.errors()[0]
    place = [part for part in first["loc"][1:] if first["type"] != "json_invalid" and part not in UNION]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    message = "this server knows no such field" if first["type"] == "extra_forbidden" else first["msg"]
    return ApiError(400, f"{field or 'body'}: {message}", field or None)


def freeze_heap() -> None:
    """Leave what the process has now out of Python's search for garbage, which stops all threads: with torch and
    transformers loaded, for a tenth of a second each time that some hundred requests have come."""
    gc.collect()
    gc.freeze()


class Server(uvicorn.Server):
    """uvicorn, which lets running answers end for a while when it is stopped, and then returns what they have."""

    def __init__(self, service: Service, *, host: str, port: int, **options: Any) -> None:
        self.service = service
        drain = service.config.drain
        told: dict[str, Any] = {
            "access_log": False,
            "log_level": "warning",
            "timeout_graceful_shutdown": int(drain) + 5,
        }
        super().__init__(uvicorn.Config(application(service), host=host, port=port, **told, **options))

    async def shutdown(self, sockets: Any = None) -> None:
        """See uvicorn."""
        self.service.thread.close()
        asyncio.get_running_loop().call_later(self.service.config.drain, lambda: self.service.thread.close(now=True))
        await super().shutdown(sockets)
