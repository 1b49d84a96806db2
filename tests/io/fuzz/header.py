"""The C++ reader of safetensors headers as a program of its own, under AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]
FLAGS = ("-std=c++20", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build(folder: Path, json: str | None = None) -> Path:
    """The program, in `folder`. json: another text in place of json.cpp."""
    sources = [ROOT / "csrc/loaders/json.cpp", ROOT / "csrc/loaders/safetensors_header.cpp"]
    if json is not None:
        sources[0] = folder / "json.cpp"
        sources[0].write_text(json)
    program = folder / "header"
    files = [*sources, Path(__file__).parent / "header_main.cpp"]
    command = [os.environ.get("CXX", "c++"), *FLAGS, f"-I{ROOT / 'csrc'}", *map(str, files), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def feed(program: Path, files: Iterable[bytes]) -> Counter[str]:
    """How many of the files end how. CalledProcessError if a sanitizer finds something."""
    text = b"".join(struct.pack("<I", len(data)) + data for data in files)
    done = subprocess.run([program], input=text, stdout=subprocess.PIPE, check=True)
    return Counter(done.stdout.decode().split("\n")[:-1])


if __name__ == "__main__":
    from .mutants import mutant

    program, count = build(Path(sys.argv[1])), int(sys.argv[2])
    total: Counter[str] = Counter()
    for first in range(0, count, 20_000):
        total += feed(program, (mutant("safetensors", i)[0] for i in range(first, min(first + 20_000, count))))
    print(f"{sum(total.values())} headers under sanitizers: {dict(total.most_common())}")
