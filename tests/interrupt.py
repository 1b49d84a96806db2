"""Ctrl-C at a chosen line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch_foundry


class Interrupt:
    """For sys.settrace: Ctrl-C at the n-th line that is run of some files of the package, and of those of
    others that enter and leave contexts."""

    def __init__(self, lines: int, files: Sequence[str]) -> None:
        """files: parts of their names."""
        self._left, self._files, self._package = lines, files, torch_foundry.__path__[0]

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        ours = name.startswith(self._package) and any(part in name for part in self._files)
        return self._line if ours or name.endswith(("contextlib.py", "_python_dispatch.py")) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._left -= event == "line"
        if not self._left:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return self._line
