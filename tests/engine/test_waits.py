"""How often an engine's step with drafts waits for the device, and what it launches."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from tests.engine.test_drafting import answers, prompts, steps_of_a_second
from tests.generation.test_mtp import ALONE, folder, loaded
from tests.hf.tiny_models import shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.generation.draft_length import DraftLengthController

pytestmark = pytest.mark.usefixtures("quiet")
LONG = SamplingParams(max_tokens=120, temperature=0)
WAITS = "tolist", "item", "cpu", "__bool__", "__int__", "__float__"


@pytest.fixture(params=["MTP head", "draft model"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose drafts always are right."""
    steps_of_a_second(monkeypatch)
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: True)
    if request.param == "MTP head":
        return Engine(loaded(folder(tmp_path, "qwen3_5", 0.0, fc_weight=ALONE)), requests=2, use_mtp=True)
    model, same = (torch_foundry.patch(copy.deepcopy(shared("llama"))) for _ in range(2))
    return Engine(model, requests=2, assistant_model=same)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_step_with_drafts_waits_twice(run: Engine, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all its draft tokens, and for what the model says of them."""
    streams = [run.submit(prompt, LONG) for prompt in prompts(4)[1 : 1 + requests]]
    for _ in range(6):
        run.step()
    waits: list[str] = []
    real = {name: getattr(torch.Tensor, name) for name in WAITS}
    for name in WAITS:

        def counted(self: torch.Tensor, *args: Any, name: str = name) -> Any:
            waits.append(name)
            return real[name](self, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    drafter: Any = run._drafting.model
    plan, before = drafter._plan, (drafter._plan.steps, drafter._plan.captured, run.speculation.steps)
    for _ in range(4):
        run.step()
    assert waits == ["tolist"] * 8
    assert plan.captured == before[1] and run.speculation.steps == before[2] + 4 * requests
    assert plan.steps - before[0] == 4 * 7, "one replay for each draft token of all requests"
    monkeypatch.undo()
    run.run()
    assert run.speculation.accepted == run.speculation.drafted > 20
    assert [s.tokens for s in streams] == answers(
        run.model, [(s.sequence.tokens[: s.sequence.prompt], LONG) for s in streams]
    )


def test_draft_steps_that_cannot_be_captured(run: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken one by one, with the same tokens."""
    drafter: Any = run._drafting.model
    monkeypatch.setattr(drafter._forward, "_worth", lambda *_: False)
    streams = [run.submit(prompt, LONG) for prompt in prompts(3)[1:]]
    run.run()
    assert run.speculation.accepted == run.speculation.drafted > 20 and not drafter._plan.captured
    expected = answers(run.model, [(s.sequence.tokens[: s.sequence.prompt], LONG) for s in streams])
    assert [s.tokens for s in streams] == expected
