"""The C++ that reads headers under AddressSanitizer and UBSan, with mutated headers cut into pieces anywhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parent.parent / "csrc"
COUNT = int(os.environ.get("HEADER_MUTANTS", "20000"))


@pytest.mark.tier("files")
def test_no_mutant_does_harm_and_pieces_make_no_difference(tmp_path: Path) -> None:
    program = tmp_path / "mutants"
    sources = [HERE / "header_mutants.cpp", CSRC / "loaders" / "json.cpp", CSRC / "loaders" / "safetensors_header.cpp"]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{CSRC}"]
    subprocess.run([os.environ.get("CXX") or "c++", *flags, *map(str, sources), "-o", str(program)], check=True)
    done = subprocess.run([program, str(COUNT), "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = re.fullmatch(r"(\d+) taken, (\d+) codes\n", done.stdout)
    assert found and COUNT // 20 < int(found[1]) < COUNT and int(found[2]) >= 12, done.stdout
