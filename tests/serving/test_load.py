"""benchmarks.bench_http finds what it is for: answers that are others than alone, and requests that fail."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from typing import Any

from benchmarks.bench_http import Case, Seen, _load
from tests.serving.conftest import address
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.serving.app import Server


def test_a_load_and_what_is_wrong_in_it(server: Server, demo: Any) -> None:
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0}
    stream = Engine(*demo, requests=1).submit("Once", SamplingParams(**options))
    stream.result()
    right = Case("Once", options, stream.text)

    def load(case: Case, leave: float = 0.0) -> Seen:
        told = argparse.Namespace(connections=2, seconds=0.1, leave=leave, slow=0.3)
        return asyncio.run(_load([case], address(server)[1], told, os.getpid()))

    seen = load(right)
    assert seen.counts.keys() == {"right"} and len(seen.memory) == 10
    seen = load(right, leave=1.0)
    assert seen.counts.keys() == {"left"} and seen.first
    assert load(replace(right, expected="no such answer")).counts.keys() == {"other answer"}
    assert load(replace(right, options={"max_tokens": -1})).counts.keys() == {"error", "error: BadRequestError"}
