"""What run_gpu.sh runs is collected on a machine that has torch, transformers and pytest, and nothing else of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "tests/cuda/run_gpu.sh").read_text()
SUITES = sorted(set(re.findall(r"\btests/(?:[\w/]*test_\w+\.py|[a-z]+(?=[ ;])|cuda/on_gpu\.py)", SCRIPT)))
WITHOUT = """
import importlib.machinery as machinery, sys

class Bare(machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        bare = name.split(".")[0] in {"gguf", "peft", "accelerate", "sentencepiece", "matplotlib", "xdist"}
        return None if bare else machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(machinery.PathFinder)] = Bare
"""


@pytest.mark.tier("kernels")
def test_all_suites_are_collected(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *SUITES]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    for suite in SUITES:
        assert f"\n{suite}" in f"\n{found.stdout}", suite
    assert len(SUITES) >= 8, SUITES
