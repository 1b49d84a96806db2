"""The suites of the ops and of compile_shader, run on the `mps` device of the mock."""

from __future__ import annotations

import pytest

from tests.metal.conftest import ROOT, run_on_mock

# Not here: faults, which are in the shaders' text and not in what runs it; opcheck, which the CPU has passed.
SUITES = {
    **{path.stem: [f"tests/ops/{path.name}"] for path in sorted((ROOT / "tests" / "ops").glob("test_*.py"))},
    "test_formats": ["tests/quant/test_formats.py"],
    "test_compile_shader": ["tests/runtime/test_compile_shader.py"],
}
SUITES.pop("test_faults")


@pytest.mark.parametrize("suite", list(SUITES))
def test_suite_on_mps(suite: str, request: pytest.FixtureRequest) -> None:
    options = ["--on-mps", "-k", "not opcheck"]
    request.node.add_report_section("call", "mock", run_on_mock(request.config, [*options, *SUITES[suite]]))
