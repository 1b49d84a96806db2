"""pytest plugin of a session with the mock (`-p tests.metal.session`): rules are looked at after every test.

With --on-mps, the suites of the ops test the Metal executor as they are (tests/on_device.py).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import patch

import kit
import pytest
import torch

import torch_foundry.core.extension  # noqa: F401  (loads the mock, which TORCH_FOUNDRY_EXTENSION names)
from tests.metal.variants import same_variants
from tests.on_device import OnDevice
from torch_foundry.core import tuning

mock = torch.ops.mock_metal
KEPT = {"MockDevice", "MockQueue", "MockPipeline", "MockBuffer", "MockArchive"}  # by torch, by caches, by tensors

launched = 0  # kernels, on the GPU of the mock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-mps", action="store_true", help="run ops on the mps device that are given CPU tensors")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--on-mps"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("cpu_only")])
        items[:] = [item for item in items if not item.get_closest_marker("cpu_only")]


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    torch.ops.torch_foundry._metal_archive("")  # what is compiled doesn't depend on earlier sessions
    torch.mps.synchronize = mock.synchronize


@pytest.fixture(scope="session", autouse=True)
def _variants(request: pytest.FixtureRequest) -> Iterator[None]:
    """The suites launch the kernels that they launch on the CPU, which need not be compiled again. The GPU's own
    variants run in test_models.py. What tests choose themselves is for the CPU: here they choose nothing."""
    if request.config.getoption("--on-mps"):
        nothing = patch.object(kit, "tuned", lambda *_, **__: nullcontext())
        with same_variants(of="cpu", on="mps"), patch.object(tuning, "forget"), nothing:
            yield
    else:
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.line(f"{launched} kernels launched on mps")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A suite that was to run on mps and launched nothing there has shown nothing."""
    if session.config.getoption("--on-mps") and not launched and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.fixture(autouse=True)
def _rules(request: pytest.FixtureRequest) -> Iterator[None]:
    """No rule was broken, not even by code that swallows exceptions, and no object of a launch is left."""
    global launched
    mock.violations()
    if request.config.getoption("--on-mps"):
        with OnDevice("mps"):
            yield
    else:
        yield
    mock.synchronize()
    launched += sum(event.startswith("dispatch ") for event in mock.trace())
    assert mock.violations() == []
    if objects_left():
        gc.collect()  # a model that is gone is in a circle with its graphs
        mock.synchronize()
    left = objects_left()
    assert not left, f"objects that a launch left behind: {left}"


def objects_left() -> dict[str, int]:
    """Objects of launches that are alive, by kind."""
    return {kind: count for kind, count in mock.alive().items() if count and kind not in KEPT}
