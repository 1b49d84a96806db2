"""Guided by coverage of torch_foundry.io: atheris changes what has led somewhere new, or takes one of our mutants.

python -m tests.io.fuzz.guided KIND [libFuzzer's options], for instance -runs=100000 -max_len=4096.
"""

from __future__ import annotations

import sys

import atheris
import torch  # noqa: F401  (before the others, so that it is not instrumented)

with atheris.instrument_imports(include=["torch_foundry.io"], enable_loader_override=False):
    from torch_foundry.io import container, files, safetensors, storage  # noqa: F401
    from torch_foundry.io.gguf import reader, values  # noqa: F401
    from torch_foundry.io.packed import blocks, gptq_awq, read_weights  # noqa: F401

from .mutants import mutant
from .target import KINDS, probe


def main() -> None:
    kind = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if kind not in KINDS:
        raise SystemExit(f"kind: expected {' or '.join(KINDS)}, got {kind!r}")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if seed % 2 or not data:
            return mutant(kind, seed)[0][:most]
        return atheris.Mutate(data, most)

    atheris.Setup(sys.argv, lambda data: probe(kind, data) and None, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
