"""Mutants by number: the same number is the same file, everywhere."""

from __future__ import annotations

import random
from typing import Any

from . import byte_mutants, gguf_fields, gguf_mutants, packs_mutants, safetensors_mutants, text_mutants

STRATEGIES: dict[str, list[str]] = {
    "gguf": [*gguf_mutants.STRATEGIES, *byte_mutants.STRATEGIES],
    "safetensors": [*safetensors_mutants.STRATEGIES, *text_mutants.TEXTS, *byte_mutants.STRATEGIES],
    "packs": [*packs_mutants.STRATEGIES, *byte_mutants.STRATEGIES],
}
KINDS = tuple(STRATEGIES)
MODULES: dict[str, Any] = {"gguf": gguf_fields, "safetensors": safetensors_mutants, "packs": packs_mutants}
TREES: dict[str, Any] = {"gguf": gguf_mutants, "safetensors": safetensors_mutants, "packs": packs_mutants}


def mutant(kind: str, number: int) -> tuple[bytes, list[str]]:
    """The file, and what was done to it: one to four things, in an order in which all of them can be seen."""
    rng = random.Random(f"{kind} {number}")
    chosen = rng.sample(STRATEGIES[kind], rng.choice((1, 1, 1, 2, 2, 3, 4)))
    return apply(kind, rng, chosen), chosen


def apply(kind: str, rng: random.Random, chosen: list[str]) -> bytes:
    """A sound file to which this was done."""
    module, tree = MODULES[kind], TREES[kind].STRATEGIES
    file = module.sound(rng)
    for name in chosen:
        if name in tree:
            tree[name](rng, file)
    if kind == "safetensors":
        text = file.text()
        for name in chosen:
            if name in text_mutants.TEXTS:
                text = text_mutants.TEXTS[name](rng, text)
        data = file.bytes(text)
    else:
        data = file.bytes()
    for name in chosen:
        if name in byte_mutants.STRATEGIES:
            data = byte_mutants.STRATEGIES[name](rng, data, module.sound(rng).bytes())
    return data
