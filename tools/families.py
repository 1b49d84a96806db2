"""What `patch` does with every causal language model of transformers: writes docs/families.md.

    python -m tools.families

A model is made of its configuration class's defaults on the meta device: that takes no memory and little time, and what
`patch` looks at is all there.
"""

from __future__ import annotations

import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import torch_foundry
from torch_foundry.hf import report
from torch_foundry.hf.report import UNKNOWN, Outcome

DOCUMENT = Path(__file__).parents[1] / "docs/families.md"
# where a class's defaults make no model
SETTINGS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_key_value_heads": 32, "num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "reformer": {"is_decoder": True},
}
NOT_BUILT = UNKNOWN + 1
TITLES = (
    ("Fused whole", "Layers are fused, and steps are captured, in `generate()` and in the engine."),
    ("Layers fused", "All or some layers are fused, and launched one by one; what is left alone:"),
    ("Known, but not with the settings that are the default", "Leaf modules are replaced; why layers are not:"),
    ("Not known", "Linear layers, embeddings and norms of a known kind are replaced, one by one."),
    ("Not made", "The configuration's defaults make no model:"),
)
# What was tried and waits for a block that there is none of. It leaves the list when `patch` knows it.
MISSING = {
    "`deepseek_v32`, `glm_moe_dsa`": "an indexer chooses the keys that queries see",
    "`step3p7`": "its last layers limit gates behind the activation, and what these let through",
}


def look(model_type: str) -> Outcome:
    """What `patch` does with the causal language model of `model_type`."""
    try:
        config = CONFIG_MAPPING[model_type](**SETTINGS.get(model_type, {}))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # whatever a constructor raises at such settings
        return Outcome(NOT_BUILT, f"{type(error).__name__}: {report.short(str(error))}")
    return report.outcome(torch_foundry.report(torch_foundry.patch(model)))


def outcomes() -> dict[str, Outcome]:
    """By folder of transformers, the best outcome of its causal language models."""
    found: dict[str, Outcome] = {}
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        folder = CONFIG_MAPPING[model_type].__module__.split(".")[2]
        outcome = look(model_type)
        if folder not in found or outcome.kind < found[folder].kind:
            found[folder] = outcome
    return found


def document() -> Iterator[str]:
    """The lines of docs/families.md."""
    by_kind: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for folder, outcome in sorted(outcomes().items()):
        by_kind[outcome.kind][folder] = outcome.why
    count = sum(map(len, by_kind.values()))
    yield "# Families"
    yield ""
    yield from textwrap.wrap(
        f"What `patch` does with the causal language models of transformers {transformers.__version__}: "
        f"{count} folders, by the best of each. Written by `python -m tools.families` from models of the default "
        "configurations, which `report` says this of. A setting that a family's row does not cover is refused by name.",
        118,
    )
    for kind, (title, what) in enumerate(TITLES):
        if kind == UNKNOWN:
            yield from _missing()
        if not (folders := by_kind[kind]):
            continue
        yield from ("", f"## {title} ({len(folders)})", what, "")
        if any(folders.values()):
            yield from ("| folder | why |", "|---|---|", *(f"| `{name}` | {why} |" for name, why in folders.items()))
        else:
            yield from textwrap.wrap(", ".join(f"`{name}`" for name in folders), 118, break_on_hyphens=False)


def _missing() -> Iterator[str]:
    """The table of what waits for a block."""
    yield from ("", "## Which blocks are missing", "What keeps out some that are asked for:", "")
    yield from ("| what | why |", "|---|---|", *(f"| {what} | {why} |" for what, why in sorted(MISSING.items())))


def main() -> None:
    """Write the document."""
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    DOCUMENT.write_text("\n".join(document()) + "\n")


if __name__ == "__main__":
    main()
