"""The generation loop on the mock of Metal, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metal.conftest import IN_SESSION, run_on_mock

pytestmark = pytest.mark.tier("metal")


@pytest.mark.skipif(IN_SESSION, reason="starts the mock itself")
def test_generation_on_mps(request: pytest.FixtureRequest) -> None:
    report = run_on_mock(request.config, [str(Path(__file__).with_name("on_mps.py"))])
    request.node.add_report_section("call", "mock", report)
