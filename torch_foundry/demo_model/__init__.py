"""A small Llama model of our own (and a smaller draft for it), so that everything runs without a download.

tools/demo_model in the repository trains both, on a corpus that it writes itself; `metrics.json` records how, and the
perplexity on `held_out.json`, documents that neither has seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


def demo_model_path() -> Path:
    """Directory of the demo model, ready for `from_pretrained`."""
    return _HERE / "main"


def draft_model_path() -> Path:
    """Directory of the draft model: same tokenizer, an eighth of the weights."""
    return _HERE / "draft"


def held_out_sample(count: int | None = None) -> list[str]:
    """The first `count` held-out documents (default: all 48), special tokens included."""
    loaded: list[str] = json.loads((_HERE / "held_out.json").read_text(encoding="utf-8"))
    return loaded[:count]


def metrics() -> dict[str, Any]:
    """How the two were trained and what they reached."""
    loaded: dict[str, Any] = json.loads((_HERE / "metrics.json").read_text(encoding="utf-8"))
    return loaded
