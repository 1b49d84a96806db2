"""A server on a real socket, of the small model that drafts for the demo model: its tokens cost a fifth."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import torch_foundry
from tests.hf.conftest import _one_thread, quiet  # noqa: F401
from torch_foundry.demo_model import draft_model_path
from torch_foundry.engine import Engine
from torch_foundry.serving.app import Server
from torch_foundry.serving.service import ServerConfig, Service

NAME = "demo"
Serve = Callable[..., AbstractContextManager[Server]]


def address(server: Server) -> tuple[str, int]:
    return server.servers[0].sockets[0].getsockname()  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def demo() -> tuple[Any, Any]:
    """The model, patched, and its tokenizer."""
    return torch_foundry.load(draft_model_path(), device="cpu", progress=False)


@pytest.fixture(scope="session")
def serve(demo: tuple[Any, Any]) -> Serve:
    """Serves while its context lasts. engine: options of the engine; seeing: a model and its processor in place of the
    demo; others are the server's."""

    @contextlib.contextmanager
    def served(engine: dict[str, Any] | None = None, seeing: Any = None, **options: Any) -> Iterator[Server]:
        model, processor = seeing or (None, None)
        told = {"requests": 8, "blocks": 200, **(engine or {})}
        made = Engine(model, processor.tokenizer, **told) if seeing else Engine(*demo, **told)
        service = Service(made, ServerConfig((NAME,), **{"drain": 5.0, **options}), processor)
        server = Server(service, host="127.0.0.1", port=0)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield server
        finally:
            server.should_exit = True
            thread.join()
            assert not service.thread.is_alive and made.idle and made.cache.manager.used == 0

    return served


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[Server]:
    """One for the tests of a module."""
    with serve() as found:
        yield found
