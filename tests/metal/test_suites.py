"""Suites of the ordinary tests, run on the `mps` device of the mock: ops, formats, compile_shader, models."""

from __future__ import annotations

import pytest

from tests.metal.conftest import run_on_mock

# Not here: faults, which are in the shaders' text and not in what runs it; opcheck, which knows no device; what only
# ids on the CPU are checked for; which numbers kernels give in every variant, order of lanes or combination; buffers
# that are larger than the mock's; guesses by tapes, which are refused while `--on-mps` watches every call.
CPU_ONLY = "--deselect=tests/ops/test_embedding.py::test_bad_inputs"
SUITES = {
    "ops": [
        *("tests/ops", "--ignore=tests/ops/test_faults.py", "--ignore=tests/ops/test_attention_grid.py", CPU_ONLY),
        *("-k", "not opcheck and not variants and not company and not lane_orders and not by_codes and not 32_bits"),
    ],
    "formats": ["tests/quant/test_formats.py", "-k", "not opcheck"],
    "sampler": ["tests/sampling", "--ignore=tests/sampling/test_faults.py", "-k", "not opcheck and not oracles"],
    "shaders": ["tests/runtime/test_compile_shader.py"],
    "models": [
        *("tests/patch/test_lifecycle.py", "tests/kvcache"),
        *("-k", "not perplexity and not guesses and not (any_sequence and (-1- or -2- or -3- or -4-))"),  # one seed
    ],
}


@pytest.mark.parametrize("suite", list(SUITES))
def test_suite_on_mps(suite: str, request: pytest.FixtureRequest) -> None:
    report = run_on_mock(request.config, ["--on-mps", *SUITES[suite]])
    request.node.add_report_section("call", "mock", report)
