"""What is counted: of each request, and of all in Prometheus' form."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from torch_foundry.engine import Engine
from torch_foundry.engine.memory import memory_of
from torch_foundry.serving.engine_thread import Request

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


@dataclass
class Usage:
    """Tokens of a request: of its prompt, of these in the cache, new ones of all choices, and of what they thought, as
    the tokenizer counts its text."""

    prompt: int = 0
    cached: int = 0
    new: int = 0
    reasoning: int = 0


@dataclass
class Exchange:
    """A request from its first byte to the last of its response: what the gate's log says of it, and what it ends."""

    id: str
    salt: bytes = b""
    began: float = field(default_factory=time.perf_counter)
    requests: list[Request] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    finish_reasons: list[str] = field(default_factory=list)


class Metrics:
    """Counters, gauges and histograms of one server, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self.registry = registry = CollectorRegistry()
        self.responses = Counter(
            "torch_foundry_responses", "Responses that have ended", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "torch_foundry_response_seconds", "From request to end", ["path"], buckets=SECONDS, registry=registry
        )
        self.first_token = Histogram(
            "torch_foundry_first_token_seconds", "From request to first token", buckets=SECONDS, registry=registry
        )
        self._prompt_tokens = Counter("torch_foundry_prompt_tokens", "Tokens of prompts", registry=registry)
        self._cached_tokens = Counter("torch_foundry_cached_tokens", "Of these, in the cache", registry=registry)
        self.new_tokens = Counter("torch_foundry_new_tokens", "Tokens of answers", registry=registry)
        for name, what, value in (
            ("running", "Requests that are being computed", lambda: len(engine.scheduler.running)),
            ("waiting", "Requests that wait for a place", lambda: len(engine.scheduler.waiting)),
            ("cache_blocks", "Blocks of the KV cache", lambda: engine.cache.manager.blocks),
            ("cache_blocks_used", "Blocks that running requests have", lambda: engine.cache.manager.used),
            ("cache_bytes", "Memory of the KV cache's blocks", lambda: memory_of(engine.cache)[0]),
            ("state_bytes", "Memory of recurrent states, with snapshots", lambda: memory_of(engine.cache)[1]),
            ("snapshots", "Snapshots of recurrent states", lambda: engine.cache.manager.states.snapshots),
        ):
            Gauge(f"torch_foundry_{name}", what, registry=registry).set_function(value)

    def count_prompt(self, tokens: int, cached: int) -> None:
        """A prompt has been read."""
        self._prompt_tokens.inc(tokens)
        self._cached_tokens.inc(cached)

    def text(self) -> bytes:
        """All of them, for `/metrics`."""
        return generate_latest(self.registry)
