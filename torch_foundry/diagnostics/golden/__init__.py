"""Golden logits: small fixed models of every family, and what they give in float64, on any device.

Two machines that have never met are held against the same numbers: `logits.safetensors`, which `python -m tools.golden`
writes. Weights are whole numbers of 1/128, times a power of two, by a formula: no torch draws them otherwise, and no
dtype rounds them. Each model reads a prompt, then some tokens one by one, as captured steps are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from torch_foundry.diagnostics.doctor.machine import machine
from torch_foundry.diagnostics.doctor.privacy import describe, without_home
from torch_foundry.diagnostics.golden.numbers import numbers
from torch_foundry.diagnostics.golden.record import Recorded
from torch_foundry.testing.tolerance import Mismatch, assert_norm, relative_error

FILE = Path(__file__).with_name("logits.safetensors")
PROMPT, STEPS = 12, 4  # tokens
SCHEMA = 2  # of `portable`
KEPT = 4  # of the prompt's positions, the last; of the steps all
HEAD = f"{'family':20} {'error':>9} {'stock':>9}  logits beside float64"
SCALE = -3  # of matrices: a power of two


@dataclass(frozen=True)
class Recipe:
    """How a model is made: the class of its config and what that is given, the class of the model, its attention, and
    powers of two that its parameters are times, by parts of their names.
    """

    config: str
    options: dict[str, Any]
    model: str
    attention: str
    scales: dict[str, int]


@dataclass(frozen=True)
class Row:
    """A family on a device: relative L2 errors against float64, of the patched model and of stock.

    bits: a digest of the patched model's logits; where two devices have the same, their logits are the same bit for
    bit. problem: what is wrong, or why nothing could be said; skipped: whether it is the latter.
    ops: of `Recorded`, those of the prompt and the first step, then the logits; empty unless they were asked for.
    """

    family: str
    ours: float = math.nan
    stock: float = math.nan
    bits: str = ""
    problem: str = ""
    skipped: bool = False
    ops: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All fields, by name; null for a figure that there is none of, and no ops if none were recorded."""
        fields = {key: None if value != value else value for key, value in asdict(self).items()}
        return {key: value for key, value in fields.items() if key != "ops" or self.ops}


@cache
def recipes() -> dict[str, Recipe]:
    """By name of the family."""
    from safetensors import safe_open

    with safe_open(FILE, "pt") as file:
        return {name: Recipe(**each) for name, each in json.loads(file.metadata()["recipes"]).items()}


def truth(family: str) -> torch.Tensor:
    """Logits [KEPT + STEPS, vocabulary] in float64."""
    from safetensors import safe_open

    with safe_open(FILE, "pt") as file:
        kept: torch.Tensor = file.get_tensor(family)
        return kept


def digest() -> str:
    """Of the file: reports with another one speak of other models."""
    return hashlib.sha256(FILE.read_bytes()).hexdigest()[:16]


def build(recipe: Recipe) -> Any:
    """The stock model, float32, on the CPU, in eval mode."""
    import transformers

    kind, model_class = getattr(transformers, recipe.config), getattr(transformers, recipe.model)
    given = {key: value for key, value in recipe.options.items() if not isinstance(getattr(kind, key, 0), property)}
    make = getattr(model_class, "from_config", None) or model_class._from_config
    model = make(kind(**given), attn_implementation=recipe.attention, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("layer_scalar"):
                tensor.fill_(0.75)
            elif any(part in name for part in ("norm", "bias", "ln_1", "ln_2")):
                same = bool((tensor == tensor.flatten()[0]).all())  # ones or zeros, or something that torch has drawn
                start = float(tensor.flatten()[0].round()) if same else 0.0
                tensor.copy_(start + (numbers(name, tensor.shape) * 38.4).round() / 128)
            elif isinstance(tensor, torch.nn.Parameter):
                power = next((power for part, power in recipe.scales.items() if part in name), SCALE)
                tensor.copy_(numbers(name, tensor.shape) * 2.0**power)
    model.generation_config.eos_token_id = None
    return model


def ids(vocabulary: int) -> torch.Tensor:
    """Tokens [1, PROMPT + STEPS], none of them special."""
    count = PROMPT + STEPS
    return 3 + (torch.arange(count) * 29 + 7 * torch.arange(count) ** 2).remainder(vocabulary - 3)[None]


@torch.no_grad()
def logits(model: Any, steps: int = STEPS, recorded: Recorded | None = None) -> torch.Tensor:
    """Of `model`: [KEPT + steps, vocabulary], in its dtype, on the CPU. recorded: is told which part runs."""
    from transformers import DynamicCache

    tokens = ids(model.config.get_text_config().vocab_size).to(model.device)
    positions = torch.arange(tokens.shape[1], device=model.device)[None]  # stock's Bamba counts none of its own
    kept, found = DynamicCache(config=model.config), []
    for start, stop in ((0, PROMPT), *((step, step + 1) for step in range(PROMPT, PROMPT + steps))):
        part = slice(start, stop)
        if recorded is not None:
            recorded.part = "step" if start else "prompt"
        found.append(model(tokens[:, part], position_ids=positions[:, part], past_key_values=kept).logits[0, -KEPT:])
    return torch.cat(found).cpu()


def check(family: str, device: torch.device, *, record: bool = False) -> Row:
    """Run `family`, stock and patched, in float32 on `device`. Whatever goes wrong is in the row.

    record: fill its `ops` as well.
    """
    try:
        return _check(family, device, record)
    except Exception as error:  # of a compiler, a driver, an allocator
        return Row(family, problem=describe(error))


def _check(family: str, device: torch.device, record: bool) -> Row:
    from torch_foundry.hf.api import patch, report

    try:
        model = build(recipes()[family])
    except Exception as error:  # whatever an older transformers raises
        return Row(family, problem=f"transformers doesn't make it: {describe(error)}", skipped=True)
    exact, stock = truth(family), logits(model.to(device))
    ours = logits(patch(model))
    seen, problem = report(model), ""
    try:
        assert_norm(ours, exact, stock)
    except Mismatch as mismatch:
        problem = str(mismatch)
    if not problem and (others := (*seen.fallbacks, *seen.eager)):
        problem = f"stock code, or no graph: {', '.join(others)}"
    bits = hashlib.sha256(ours.contiguous().numpy().tobytes()).hexdigest()[:16]
    errors = relative_error(ours, exact), relative_error(stock, exact)
    return Row(family, *errors, bits, problem, ops=_ops(model, ours) if record else [])


def _ops(model: Any, ours: torch.Tensor) -> list[dict[str, Any]]:
    """Those of a run that no graph replays, and `ours`: logits that graphs gave."""
    with Recorded() as recorded:
        logits(model, 1, recorded)
    for at, row in enumerate(ours):
        recorded.part = f"prompt, token {PROMPT - KEPT + at + 1}" if at < KEPT else f"replayed step {at - KEPT + 1}"
        recorded.note("logits", f"{len(row)} tokens", [row])
    return recorded.ops


def portable(rows: Iterable[Row], device: dict[str, Any]) -> dict[str, Any]:
    """A report for others: the machine, the device as doctor describes it, every row. Two with one `golden` compare."""
    about = {"schema": SCHEMA, "golden": digest(), "machine": machine(), "device": device}
    return without_home(about | {"families": [row.to_json() for row in rows]})


def line(row: Row) -> str:
    """For a terminal, under HEAD."""
    figures = f"{row.ours:9.1e} {row.stock:9.1e}" if row.bits else f"{'-':>9} {'-':>9}"
    verdict = f"{'skipped' if row.skipped else 'WRONG'}: {row.problem}" if row.problem else "right"
    return f"{row.family:20} {figures}  {verdict}"
