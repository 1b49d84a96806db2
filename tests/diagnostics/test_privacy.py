"""A report is attached to public issues: nothing in it tells whose machine it is from."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from torch_foundry.aot import prebuild
from torch_foundry.cli import main
from torch_foundry.diagnostics.doctor import examine, measure, privacy, selfcheck

PRIVATE = ("gwendolyn", "gwens-macbook", "/Users/", "SecretProject", "/Volumes/Work")


@pytest.fixture(autouse=True)
def _somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "gwendolyn")
    monkeypatch.setattr(platform, "node", lambda: "gwens-macbook.local")
    monkeypatch.setattr(Path, "home", lambda: Path("/Users/gwendolyn"))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("/Users/gwendolyn/SecretProject/x.metal:3: error: no", "~/.../x.metal:3: error: no"),
        ("in '/Volumes/Work/SecretProject/linear.metal', line 7", "in '.../linear.metal', line 7"),
        ("from /private/var/folders/zz/T/torch_foundry/a.cpp", "from .../a.cpp"),
        ("user gwendolyn on gwens-macbook.local", "user <user> on <host>"),
        ("gwens-macbook: no device", "<host>: no device"),
        ("/Users/gwendolyn", "~"),
        ("expected [tokens, hidden=896], got [3, 897]", "expected [tokens, hidden=896], got [3, 897]"),
        ("1.5 GB/s and a/b, 3 / 4", "1.5 GB/s and a/b, 3 / 4"),
        ("/usr/bin/c++: error", ".../c++: error"),
    ],
)
def test_scrub(text: str, expected: str) -> None:
    assert privacy.scrub(text) == expected


def test_short_names_do_not_eat_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "al")
    monkeypatch.setattr(platform, "node", lambda: "")
    assert privacy.scrub("al and metal are not equal") == "al and metal are not equal"
    monkeypatch.setattr(getpass, "getuser", lambda: "metal")
    assert privacy.scrub("metal, metallib") == "<user>, metallib"


def test_nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 501")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert privacy.scrub("x") == "x"


def test_a_report_full_of_private_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Every place into which words of others come: kernels, checks, figures, the environment."""

    def fails(*args: Any) -> Any:
        raise RuntimeError(
            "/Users/gwendolyn/SecretProject/torch_foundry/linear.metal:3: error\n"
            "  in /Volumes/Work/SecretProject/include/half.h\n  gwendolyn@gwens-macbook.local"
        )

    monkeypatch.setattr(prebuild, "calls", lambda device: iter([("a kernel", fails)]))
    monkeypatch.setattr(selfcheck, "suite", lambda quick: [selfcheck.Check("a check", fails)])
    for name in ("bandwidth", "dispatch", "gemv"):
        monkeypatch.setattr(measure, name, fails)
    monkeypatch.setenv("TORCH_FOUNDRY_CACHE", "/Volumes/Work/SecretProject/cache")
    monkeypatch.setenv("CXX", "gwendolyn-c++")
    monkeypatch.setenv("PYTORCH_MPS_LOG_PATH", "/Users/gwendolyn/log")
    path = tmp_path / "report.json"
    assert main(["doctor", "--device", "cpu", "--quick", "--json", str(path)]) == 1
    text = path.read_text()
    report = json.loads(text)
    assert len(report["failures"]) > 5
    assert report["machine"]["environment"]["TORCH_FOUNDRY_CACHE"] == "set"
    for word in PRIVATE:
        assert word not in text, word
    printed = capsys.readouterr().out.replace(str(path), "")
    assert not any(word in printed for word in PRIVATE)


def test_the_reason_why_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise ImportError("does not load (dlopen(/Users/gwendolyn/SecretProject/_C.abi3.so): no such symbol)")

    monkeypatch.setattr(examine, "examine", fails)
    path = tmp_path / "report.json"
    assert main(["doctor", "--device", "cpu", "--json", str(path)]) == 2
    assert "dlopen(~/.../_C.abi3.so): no such symbol" in path.read_text()


def test_the_home_directory_is_taken_out_of_everything_at_last() -> None:
    data = {"a": ["/Users/gwendolyn/x", 3], "b": {"c": "see /Users/gwendolyn"}, "d": None}
    assert privacy.without_home(data) == {"a": ["~/x", 3], "b": {"c": "see ~"}, "d": None}
