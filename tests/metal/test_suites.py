"""Suites of the ordinary tests, run on the `mps` device of the mock: ops, formats, compile_shader, models.

Each case is a process of its own, and several run at a time. Of a test with many cases some are run: what the mock
checks is how kernels are bound, launched and kept apart, not what they compute, and it compiles a kernel for each. Not
here: tests that are marked `cpu_only` (tests/tiers.py says what that means), and those of files that are left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metal.conftest import run_on_mock

OPS = Path(__file__).parents[1] / "ops"
PARTS = {  # files of tests/ops that one process runs, so that all take about as long; None: all others
    "linear": ("linear",),
    "norm_linear": ("norm_linear", "moe", "moe_choice", "moe_many"),
    "attention": ("attention", "attention_features"),
    "other ops": None,
}
ELSEWHERE = ("faults", "attention_grid")  # faults in the shaders' text; all kernels of attention, whatever runs them
CASES = 4  # of a test, unless --cases says how many
SUITES = {
    "formats and shaders": ["tests/quant/test_formats.py", "tests/core/test_compile_shader.py"],
    "sampler": ["tests/sampling", "--ignore=tests/sampling/test_faults.py"],
    "models": ["tests/hf/test_lifecycle.py", "tests/kvcache"],
}


def files(part: str) -> list[str]:
    """The test files of a part of the ops."""
    stems = {path.stem.removeprefix("test_"): str(path) for path in sorted(OPS.glob("test_*.py"))}
    named = [*ELSEWHERE, *(name for names in PARTS.values() for name in names or ())]
    return [stems[name] for name in PARTS[part] or sorted(stems.keys() - set(named))]


@pytest.mark.parametrize("part", PARTS)
def test_ops_on_mps(part: str, request: pytest.FixtureRequest) -> None:
    on_mps(files(part), request)


@pytest.mark.parametrize("suite", SUITES)
def test_suite_on_mps(suite: str, request: pytest.FixtureRequest) -> None:
    on_mps(SUITES[suite], request)


def on_mps(arguments: list[str], request: pytest.FixtureRequest) -> None:
    cases = request.config.getoption("--cases") or CASES
    said = run_on_mock(request.config, ["--on-mps", f"--cases={cases}", *arguments])
    request.node.add_report_section("call", "mock", said)


def test_every_file_of_the_ops_is_in_one_part() -> None:
    assert len({path for part in PARTS for path in files(part)}) == len(list(OPS.glob("test_*.py"))) - len(ELSEWHERE)
