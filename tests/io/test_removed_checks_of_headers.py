"""As test_removed_checks.py, for the reader of safetensors headers, which is C++."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from tests.io.corpus.manifest import CASES
from tests.io.fuzz.header import ROOT

pytestmark = pytest.mark.tier("nightly")

# In C++: a condition and what it leads to, on one line or two; what has to stand at a place.
FAILS = re.compile(r"if \((.+)\)(\s+)((?:in\.)?fail(?:_json)?\(|throw Fault\{|return true;)")
NEEDS = re.compile(r"in\.need\((.+)\);")
REDUNDANT_HERE = {"safetensors_header.cpp: left > kLongestEntry"}  # its file is too large to be read so often


def _with_switches(folder: Path) -> tuple[Path, list[str]]:
    """The reader of headers with a switch at each check, as a program; the checks."""
    sites: list[str] = []

    def site(text: str) -> str:
        sites.append(text)
        return f"on({len(sites) - 1})"

    for name in ("json.h", "json.cpp", "safetensors_header.h", "safetensors_header.cpp", "utf8.h"):
        text, at = (ROOT / "csrc/loaders" / name).read_text(), f"{name}: "
        text = FAILS.sub(lambda m, at=at: f"if ({site(at + m[1])} && ({m[1]})){m[2]}{m[3]}", text)
        text = NEEDS.sub(
            lambda m, at=at: f"{{ if ({site(f'{at}need({m[1]})')}) in.need({m[1]}); else in.take({m[1]}); }}", text
        )
        (folder / "loaders").mkdir(exist_ok=True)
        (folder / "loaders" / name).write_text(text)
    switch = folder / "switch.h"
    switch.write_text(
        "#pragma once\n#include <cstdlib>\n"
        'inline bool on(int site) { static const int off = std::atoi(std::getenv("OFF")); return site != off; }\n'
    )
    sources = [*(folder / "loaders").glob("*.cpp"), ROOT / "tests/io/fuzz/header_main.cpp"]
    program = folder / "header"
    flags = ["-std=c++20", "-w", f"-I{folder}", "-include", str(switch)]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, *map(str, sources), "-o", str(program)], check=True)
    return program, sites


def test_a_check_removed_from_the_reader_of_headers_is_noticed(tmp_path: Path) -> None:
    program, sites = _with_switches(tmp_path)
    built = [(case, case.build()) for case in CASES if case.id[0] == "S"]
    small = [(case, data) for case, data in built if isinstance(data, bytes) and len(data) <= 1 << 18]
    files = b"".join(struct.pack("<I", len(data)) + data for _, data in small)

    def outcomes(off: int) -> list[str]:
        environment = {**os.environ, "OFF": str(off)}
        try:
            done = subprocess.run([program], input=files, stdout=subprocess.PIPE, env=environment, timeout=20)
        except subprocess.TimeoutExpired:
            return ["without end"]
        return done.stdout.decode().split("\n")[:-1]

    sound = outcomes(-1)
    assert len(sound) == len(small)
    missed = set()
    for number, text in enumerate(sites):
        found = outcomes(number)
        changed = [
            case.id
            for (case, _), before, after in zip(small, sound, found, strict=False)
            if before != after and after not in case.want
        ]
        if len(found) == len(small) and not changed:
            missed.add(text)
    assert len(sites) >= 45
    assert missed == REDUNDANT_HERE
