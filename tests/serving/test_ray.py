"""Replicas on a cluster of three nodes on this machine, each with processes of its own: slow, and only where Ray is."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed: make test-ray")

import httpx  # noqa: E402
from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import torch_foundry  # noqa: E402
from torch_foundry.demo_model import draft_model_path  # noqa: E402
from torch_foundry.engine import Engine, SamplingParams  # noqa: E402
from torch_foundry.serving.ray import deployment  # noqa: E402
from torch_foundry.serving.service import ServerConfig  # noqa: E402

pytestmark = pytest.mark.tier("nightly")
PORT, NODES = 8123, 3
URL = f"http://127.0.0.1:{PORT}/v1"
SHORT = {"model": "demo", "temperature": 0, "max_tokens": 6}
WORDS = ("fox", "kite", "river", "lamp", "crow", "boat", "king", "snow", "bread", "moon", "road", "bell")


def load() -> Engine:
    """What each replica serves."""
    model, tokenizer = torch_foundry.load(draft_model_path(), device="cpu", progress=False)
    return Engine(model, tokenizer, requests=8, blocks=400)


def start(*names: str) -> None:
    """Deploy, or update what is deployed."""
    application = deployment(load, ServerConfig(names, drain=60.0), replicas=NODES, actor={"num_cpus": 1})
    serve.run(application, name="default", route_prefix="/")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Three nodes with a processor each, and a replica on each."""
    os.environ |= {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
        "RAY_enable_metrics_collection": "0",
    }
    size: Any = {"num_cpus": 1, "object_store_memory": 80 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    for _ in range(NODES - 1):
        nodes.add_node(**size)
    ray.init(address=nodes.address, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT, "location": "HeadOnly"})
    start("demo")
    yield
    serve.shutdown()
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def alone() -> Any:
    """The greedy answer to a prompt, by one engine here."""
    engine = load()

    @functools.cache
    def answer(prompt: str, tokens: int) -> str:
        stream = engine.submit(prompt, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
        stream.result()
        return stream.text

    return answer


def ask(prompt: str, tokens: int, began: threading.Semaphore | None = None) -> tuple[str, str]:
    """The text of an answer, streamed if `began` is to be told of its first piece; and the code of its error."""
    fields = {**SHORT, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": began is not None}
    text, code = "", ""
    with httpx.stream("POST", f"{URL}/completions", json=fields, timeout=300) as response:
        if began is None:
            found = json.loads(response.read())
            assert response.status_code == 200, found
            return found["choices"][0]["text"], ""
        for line in response.iter_lines():
            if line.startswith("data: {"):
                piece = json.loads(line[6:])
                code = piece.get("error", {}).get("code", code)
                if piece.get("choices") and not text and piece["choices"][0]["text"]:
                    began.release()
                text += "".join(choice["text"] for choice in piece.get("choices", ()))
    return text, code


def replicas() -> list[str]:
    """Names of the actors."""
    found = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in found if "SERVE_REPLICA" in each["name"] and "#replica#" in each["name"]]


def test_answers_are_those_of_one_engine_and_errors_are_told(cluster: None, alone: Any) -> None:
    prompts = [f"The {word}" for word in WORDS]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert [*pool.map(lambda prompt: ask(prompt, 8)[0], prompts)] == [alone(prompt, 8) for prompt in prompts]
    assert len(replicas()) == NODES
    refused = httpx.post(f"{URL}/completions", json={**SHORT, "prompt": "x", "colour": 1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "colour"
    assert httpx.get(f"{URL}/models").json()["data"][0]["id"] == "demo"
    assert httpx.post(f"{URL}/completions", content=b"x" * (9 << 20)).status_code == 413


def test_conversations_go_where_their_prefix_is(cluster: None) -> None:
    for word in WORDS[:6]:
        text, cached = f"Once upon a time there was a {word}. " * 12, []
        for _ in range(3):
            found = httpx.post(f"{URL}/completions", json={**SHORT, "prompt": text}, timeout=60).json()
            cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[0] < 32 <= min(cached[1:]), cached


def test_a_replica_that_is_killed_loses_nothing_but_streams_that_had_begun(cluster: None, alone: Any) -> None:
    prompts = [f"Here is the {word}" for word in WORDS]
    began = threading.Semaphore(0)
    with ThreadPoolExecutor(2 * len(prompts)) as pool:
        streams = [pool.submit(ask, prompt, 100, began) for prompt in prompts]
        whole = [pool.submit(ask, prompt, 60) for prompt in prompts]
        for _ in range(len(prompts) // 2):
            assert began.acquire(timeout=120)
        ray.kill(ray.get_actor(replicas()[0], namespace="serve"))
        assert [each.result()[0] for each in whole] == [alone(prompt, 60) for prompt in prompts]
        told = [each.result() for each in streams]
    for prompt, (text, code) in zip(prompts, told, strict=True):
        expected = alone(prompt, 100)
        assert code in ("", "replica_died") and (expected.startswith(text) if code else text == expected)
    assert any(code for _, code in told)
    until = time.monotonic() + 120
    while len(replicas()) < NODES and time.monotonic() < until:
        time.sleep(0.5)
    assert ask("The fox", 8) == (alone("The fox", 8), "")


def test_an_update_refuses_nobody(cluster: None, alone: Any) -> None:
    stop, answers = threading.Event(), []

    def client(word: str) -> None:
        while not stop.is_set():
            answers.append((word, ask(f"The {word}", 12)))

    before = set(replicas())
    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client, word) for word in WORDS[:3]]
        start("demo", "demo-2")
        stop.set()
        for each in clients:
            each.result()
    assert not before & set(replicas()) and len(answers) > 3
    assert all(answer == (alone(f"The {word}", 12), "") for word, answer in answers)
    assert [model["id"] for model in httpx.get(f"{URL}/models").json()["data"]] == ["demo", "demo-2"]
