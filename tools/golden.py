"""Writes torch_foundry/diagnostics/golden/logits.safetensors: what small fixed models give in float64.

    python -m tools.golden                      writes the file
    python -m tools.golden --differences llama  how far logits of these families are from the file's, as JSON

Every family of tests/hf/tiny_cases.py has a model. What is float32 in stock's code whatever the dtype (norms, softmax,
tables of angles) is float64 here; a model whose stock float32 is far off that is refused, as something else than
rounding would be between them. Frequencies are powers of float32, made by scalar code: torch's for AVX2 rounds some of
them otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os

if __name__ == "__main__":
    os.environ["ATEN_CPU_CAPABILITY"] = "default"  # read when torch is loaded

import torch
from safetensors.torch import save_file

from tests.exact import MOST, InFloat64, doubled
from tests.hf.tiny_cases import ALL_FAMILIES, KIN, SIZES
from tests.hf.tiny_models import case, options
from torch_foundry.diagnostics import golden
from torch_foundry.testing.tolerance import UNIT, relative_error

VOCABULARY = 64


def recipe(family: str) -> golden.Recipe:
    """The tests' tiny model, with a smaller vocabulary and weights by a formula."""
    of, given = case(family), options(family, vocab_size=VOCABULARY)
    scales = {part: round(math.log2(2 * size)) for part, size in SIZES.items()}  # of uniform numbers
    return golden.Recipe(of.config, given, of.model, of.attention, scales)


def truth(made_of: golden.Recipe) -> torch.Tensor:
    """Logits in float64. AssertionError if stock's in float32 are those of another computation."""
    model = golden.build(made_of)
    with InFloat64():
        exact = golden.logits(doubled(model))
    error = relative_error(golden.logits(model), exact)
    assert exact.dtype == torch.float64 and exact.isfinite().all()
    assert error <= MOST * UNIT[torch.float32], f"{made_of.config}: stock's error is {error:.1e}"
    return exact


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.golden", description=__doc__)
    parser.add_argument("--differences", nargs="+", metavar="FAMILY", help="compare these with the file, write nothing")
    parser.add_argument("--new", action="store_true", help="compute those alone that the file has not")
    args, kept = parser.parse_args(), golden.recipes()
    if args.differences:
        print(json.dumps({name: relative_error(truth(kept[name]), golden.truth(name)) for name in args.differences}))
        return
    made = {family: recipe(family) for family in sorted(ALL_FAMILIES | KIN)}
    same = {family for family, each in made.items() if args.new and kept.get(family) == each}
    found = {family: golden.truth(family) if family in same else truth(each) for family, each in made.items()}
    found = {family: logits.contiguous() for family, logits in found.items()}
    metadata = {"recipes": json.dumps({family: dataclasses.asdict(each) for family, each in made.items()})}
    save_file(found, golden.FILE, metadata)
    print(f"{len(found)} families, {golden.FILE.stat().st_size} bytes, digest {golden.digest()}")


if __name__ == "__main__":
    main()
