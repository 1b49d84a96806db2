"""A model's own MTP head drafts in the turns of a session, saved and restored ones too: no token changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.generation.test_mtp import folder, loaded, never_switched_off  # noqa: F401  (a fixture)
from tests.hf.tiny_models import ids
from torch_foundry import Session
from torch_foundry.hf.api import report

pytestmark = pytest.mark.usefixtures("quiet")
OPTIONS: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "snapshot_every": 16}


@pytest.mark.parametrize("family", ["qwen3_5", "glm4_moe"])
def test_turns_with_drafts(family: str, tmp_path: Path) -> None:
    model = loaded(folder(tmp_path, family))
    plain, drafted = Session(model, **OPTIONS), Session(model, use_mtp=True, **OPTIONS)
    text, before = ids(1, 30), 0
    for turn in range(5):
        if turn == 3:
            drafted.save(tmp_path / "session.safetensors")
            drafted = Session.restore(tmp_path / "session.safetensors", model, use_mtp=True, **OPTIONS)
        expected = plain.generate(text)
        assert drafted.generate(text).tolist() == expected.tolist(), turn
        assert (turn == 0) == (drafted.reused == 0), turn
        accepted = report(model).speculation.accepted
        assert accepted > before, turn
        before, cut = accepted, (0, 25, 3)[turn % 3]
        text = torch.cat([expected[:, : expected.shape[1] - cut], ids(1, 6, seed=turn)], 1)
    assert not report(model).eager
