"""A small Llama model of our own (and a smaller draft for it), so that everything runs without a download.

`python -m torch_foundry.demo_model.train` made both from the corpus that `torch_foundry.demo_model.corpus` writes;
`metrics.json` records how, and the perplexity they reached on held-out text.
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


def metrics() -> dict[str, Any]:
    """How the two were trained and what they reached."""
    loaded: dict[str, Any] = json.loads((_HERE / "metrics.json").read_text(encoding="utf-8"))
    return loaded
