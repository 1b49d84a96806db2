"""What an engine does before its first request, and how many tokens its steps have."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import torch_foundry
from torch_foundry.core import devices, memory
from torch_foundry.demo_model import draft_model_path
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.engine import warm_up as module
from torch_foundry.engine.memory import LEAST_TOKENS, step_tokens
from torch_foundry.engine.warm_up import LENGTHS, warm_up
from torch_foundry.generation.step_graph import prompt_bytes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def demo() -> tuple[Any, Any]:
    return torch_foundry.load(draft_model_path(), device="cpu", progress=False)


def test_it_runs_what_a_gpu_would_compile_and_leaves_nothing(
    demo: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Engine(*demo, requests=4).submit([5, 6, 7], SamplingParams(max_tokens=6, temperature=0)).result()
    engine = Engine(*demo, requests=4, blocks=64, budget=64)
    prompts: list[int] = []
    submit = engine.submit

    def noted(ids: Any, params: SamplingParams, **more: Any) -> Any:
        prompts.append(len(ids))
        return submit(ids, params, **more)

    monkeypatch.setattr(engine, "submit", noted)
    warm_up(engine)
    assert prompts == [1]  # nothing is compiled by the host's executor
    monkeypatch.setattr(type(devices.HOST), "emulated", False)
    monkeypatch.setattr(module, "SLOW", 0.0)  # then nobody waits for steps to be captured
    prompts.clear()
    warm_up(engine)
    assert prompts == [*LENGTHS, 32, 32, 1, 32, 32]  # alone, and beside one that generates
    assert engine.idle and engine.cache.manager.used == 0
    stream = submit([5, 6, 7], SamplingParams(max_tokens=6, temperature=0))
    assert stream.result() == expected and stream.sequence.reused == 0


@pytest.mark.parametrize("requests", [1, 4])
def test_steps_that_read_prompts_are_captured(
    demo: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    """As far as the device wants that, alone and beside others that generate."""
    monkeypatch.setattr(type(devices.HOST), "emulated", False)
    monkeypatch.setattr(module, "SLOW", math.inf)
    engine = Engine(*demo, requests=requests, blocks=64)
    warm_up(engine)
    captured, forward = engine._decoder.captured, engine._steps.forward
    monkeypatch.setattr(forward, "_eager", lambda *args: pytest.fail("launched by Python"))
    first = engine.submit([5] * 100, SamplingParams(max_tokens=20, temperature=0))
    engine.step()
    for length in (30, 61, 100) if requests > 1 else ():
        engine.submit([length] * length, SamplingParams(max_tokens=1, temperature=0)).result()
    first.result()
    assert engine._decoder.captured == captured


def test_a_small_engine_is_asked_what_it_has_room_for(demo: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(devices.HOST), "emulated", False)
    engine = Engine(*demo, requests=2, blocks=3)
    warm_up(engine)
    assert engine.idle


def test_steps_are_as_the_device_wants_them_and_has_room_for(
    demo: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Engine(*demo)._decoder
    assert (
        devices.CUDA.step_tokens == 2048 and devices.HOST.step_tokens == LEAST_TOKENS == Engine(*demo).scheduler.budget
    )
    monkeypatch.setattr(type(devices.HOST), "step_tokens", 2048)
    assert step_tokens(None, decoder) == 2048 and step_tokens(300, decoder) == 300
    monkeypatch.setattr(memory, "free", lambda device: prompt_bytes(decoder, 600))
    assert step_tokens(None, decoder) == 512
    with pytest.raises(memory.DoesNotFit, match="an engine's steps of 2048 tokens"):
        step_tokens(None, decoder, shared=True)  # others may have room for more
    with pytest.raises(memory.DoesNotFit, match=r"an engine's steps of 700 tokens.* A smaller budget needs less"):
        step_tokens(700, decoder)
    monkeypatch.setattr(memory, "free", lambda device: prompt_bytes(decoder, 100))
    with pytest.raises(memory.DoesNotFit, match="an engine's steps of 256 tokens"):
        step_tokens(None, decoder)
