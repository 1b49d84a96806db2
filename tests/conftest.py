"""Options of the whole suite: which tests run, in which order, and which skips CI accepts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import tiers

os.environ.setdefault("TORCH_FOUNDRY_PROGRESS", "0")  # what tests read on stderr doesn't depend on the compiler's speed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skips-allowed",
        metavar="FILE",
        help="fail if a test is skipped whose reason contains none of the lines of FILE",
    )
    tiers.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script's shell has it for what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    tiers.configure(config)
    if config.getoption("numprocesses", default=None):  # before xdist's threads, which can import half of torch
        import torch_foundry.models.state  # noqa: F401
    if path := config.getoption("--skips-allowed"):
        config.pluginmanager.register(AllowedSkips(Path(path)), "allowed-skips")


# Files whose tests take longest come first, so that all processes end at about the same time; the ops before what
# launches the same kernels on the mock of Metal, where one process compiles them one after the other.
SLOW = ("tests/ops/", "tests/cuda/", "tests/metal/test_suites", "tests/diagnostics/test_on_mock", "tests/metal/",
        "tests/sampling/test_faults", "tests/generation/test_on_mps")  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.select(config, items)

    def place(item: pytest.Item) -> int:
        return next((i for i, part in enumerate(SLOW) if part in item.path.as_posix()), len(SLOW))

    items.sort(key=place)


# Files whose tests take too long for one process: a unit of work is one of their functions, or one case of it.
FUNCTIONS = ("tests/ops/test_linear.py", "tests/tuning/test_choices.py")
CASES = ("tests/metal/test_suites.py", "tests/diagnostics/test_on_mock.py")


def unit_of_work(nodeid: str) -> str:
    """What one process runs as a whole; as a rule a file, so that it makes fixtures and compiles kernels once."""
    file = nodeid.partition("::")[0]
    return nodeid if file in CASES else nodeid.partition("[")[0] if file in FUNCTIONS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For --dist loadfile: as ever, but for the files above."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of_work(nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


class AllowedSkips:
    """Turns a skip that nobody has agreed to into a failure of the run."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines()
        self.allowed = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        self.unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2])
            if not any(allowed in reason for allowed in self.allowed):
                self.unexpected.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unexpected:
            terminalreporter.section("skips that .ci/allowed-skips does not list", red=True)
            for line in self.unexpected:
                terminalreporter.line(line)
