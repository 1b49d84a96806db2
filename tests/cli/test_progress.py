"""Bars of what takes long: on a terminal with the time that is left, elsewhere nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

import torch_foundry
from torch_foundry.cli import main
from torch_foundry.core.tuning import Entry


class Written(io.StringIO):
    """A stream that is a terminal, or isn't."""

    terminal = True

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_say_how_long_on_a_terminal_alone(
    terminal: bool, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading, packing, tuning; without colours, whatever NO_COLOR is."""
    whole = tqdm.__init__

    def at_once(self: Any, *args: Any, **options: Any) -> None:
        whole(self, *args, **{**options, "delay": 0, "mininterval": 0})

    monkeypatch.setattr(tqdm, "__init__", at_once)
    monkeypatch.setattr(Written, "terminal", terminal)
    transformers_logging.enable_progress_bar()
    seen = Written()
    monkeypatch.setattr("sys.stderr", seen)
    model, _ = torch_foundry.load(tiny_model, device="cpu")
    torch_foundry.patch(model, quantize="q8_0")
    monkeypatch.setattr("torch_foundry.diagnostics.tune.tune", lambda key, device: Entry(key, {}, 1.0, 1.0))
    monkeypatch.setattr("torch_foundry.core.tuning.apply", lambda table: None)
    monkeypatch.setattr("torch_foundry.core.tuning.write", lambda table: tmp_path)
    assert main(["tune", "--device", "cpu", "--again", "--formats", "f16", "--shapes", "64x64", "--rows", "1"]) == 0
    text = seen.getvalue()
    for title in ("Loading weights", "Packing weights", "Tuning"):
        assert (f"{title}:" in text) == terminal
    assert ("<" in text) == terminal and "\x1b[3" not in text  # "00:01<00:04": what is left
