"""One cache of captured steps a model, of a bounded number of bytes."""

from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import torch_foundry
from tests.hf.tiny_models import ids, shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import report
from torch_foundry.models.graph_cache import GraphCache

pytestmark = pytest.mark.usefixtures("quiet")


def patched() -> Any:
    return torch_foundry.patch(copy.deepcopy(shared("llama")))


def graphs_of(model: Any) -> GraphCache:
    return model.model._foundry.graphs


@torch.no_grad()
def step(model: Any, cache: DynamicCache, tokens: int = 1) -> None:
    model(ids(1, tokens), past_key_values=cache)


def caches(model: Any, count: int) -> list[DynamicCache]:
    made = [DynamicCache(config=model.config) for _ in range(count)]
    for cache in made:
        step(model, cache, 9)
    return made


def test_least_recently_used_steps_go_when_the_bytes_are_used_up() -> None:
    model = patched()
    first, second, third = caches(model, 3)
    step(model, first)
    each = graphs_of(model).nbytes
    assert each > 0 and report(model).graph_bytes == each
    graphs_of(model).limit = 2 * each
    step(model, second)
    step(model, first)  # is used again
    step(model, third)
    assert graphs_of(model).nbytes == 2 * each
    assert [bool(graphs_of(model).of(cache)) for cache in (first, second, third)] == [True, False, True]
    captured = report(model).captured
    step(model, first)
    assert report(model).captured == captured
    step(model, second)
    assert report(model).captured == captured + 1


def test_an_owner_takes_its_steps_along() -> None:
    model = patched()
    (cache,) = caches(model, 1)
    step(model, cache)
    engine = Engine(model, requests=1)
    engine.submit([5, 6, 7], SamplingParams(max_tokens=4, temperature=0)).result()
    assert graphs_of(model).nbytes > 0 and graphs_of(model).of(engine._steps.forward)
    del engine, cache
    gc.collect()
    assert graphs_of(model).nbytes == 0


def test_an_engine_and_generate_share_the_bytes() -> None:
    model = patched()
    engine = Engine(model, requests=1)
    engine.submit([5, 6, 7], SamplingParams(max_tokens=4, temperature=0)).result()
    model.generate(ids(1, 9), max_new_tokens=8, do_sample=False)
    assert graphs_of(model).of(engine._steps.forward) and graphs_of(model)._spares
    graphs_of(model).limit = graphs_of(model).nbytes
    (cache,) = caches(model, 1)
    step(model, cache)
    assert not graphs_of(model).of(engine._steps.forward), "the oldest"
    assert graphs_of(model).of(cache) and graphs_of(model).nbytes <= graphs_of(model).limit
    graphs_of(model).limit = 0
    step(model, cache, 2)
    assert graphs_of(model).nbytes == 0, "not even this step has room"
    step(model, cache)
    assert report(model).eager == {}


@pytest.mark.parametrize("given, expected", [("", 1 << 30), ("3", 3 << 20), ("0", 0)])
def test_the_default_number_of_bytes(given: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FOUNDRY_GRAPH_MEMORY", given)
    graphs = GraphCache()
    assert graphs.budget(torch.device("cpu")) == expected
    graphs.limit = 5
    assert graphs.budget(torch.device("cuda")) == 5


def test_generations_of_two_kinds_in_turn_capture_once() -> None:
    model = patched()
    one, two = ({"inputs": ids(rows, 9), "max_new_tokens": 8, "do_sample": False} for rows in (1, 2))
    for _ in range(3):
        model.generate(**one)
        model.generate(**two)
        model.generate(**one, prompt_lookup_num_tokens=1)
    assert report(model).captured == 3, "of one row, of two, and of a row with a draft token"


def test_a_segmented_graph_is_kept_by_its_step_and_goes_with_it() -> None:
    """A CUDA graph made of the segments does not keep the tensors that they use; nor may anything else."""
    model = patched()
    engine = Engine(model, requests=20, budget=60)
    for n in range(20):
        engine.submit([5 + n, 6, 7], SamplingParams(max_tokens=4, temperature=0))
    engine.run()
    graphs = [graph._graph for graph in graphs_of(model).of(engine._steps.forward).values()]
    assert max(len(graph._segments) for graph in graphs) > 1
    kept = weakref.ref(next(graph for graph in graphs if len(graph._segments) > 1))
    gc.disable()
    try:
        del graphs
        assert kept() is not None
        graphs_of(model).drop(engine._steps.forward)
        engine._steps.forward._last = None
        assert kept() is None, "freed at once"
    finally:
        gc.enable()


def test_threads_that_share_a_model_share_the_bytes() -> None:
    model = patched()
    (cache,) = caches(model, 1)
    step(model, cache)
    graphs_of(model).limit = 3 * graphs_of(model).nbytes

    def steps(n: int) -> int:
        for _ in range(10):
            (own,) = caches(model, 1)
            step(model, own)
            step(model, own, 2)
        return graphs_of(model).nbytes

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(steps, range(4))) <= graphs_of(model).limit
    assert not report(model).eager
