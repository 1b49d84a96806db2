"""What doctor says about machines that this test does not run on: facts, advice, tables of what there is."""

from __future__ import annotations

import copy
import dataclasses
import json
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_foundry.core import devices, runtime
from torch_foundry.core.devices.base import Facts
from torch_foundry.core.devices.metal import Metal
from torch_foundry.diagnostics.doctor import examine, machine
from torch_foundry.diagnostics.doctor.advice import advice
from torch_foundry.diagnostics.doctor.report import Report, table
from torch_foundry.testing import timing

SYSCTL = {
    "hw.model": "Mac15,6",
    "machdep.cpu.brand_string": "Apple M3 Pro",
    "sysctl.proc_translated": "0",
    "kern.hv_vmm_present": "0",
}
PMSET = "System-wide power settings:\nCurrently in use:\n standby              1\n lowpowermode         1\n"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A process on an M3 Pro in low power mode, as the programs that doctor asks would answer."""
    sysctl = dict(SYSCTL)

    def run(command: tuple[str, ...], **options: Any) -> Any:
        if command[0] == "sysctl":
            return SimpleNamespace(stdout=sysctl[command[2]] + "\n")
        assert tuple(command) == ("pmset", "-g")
        return SimpleNamespace(stdout=PMSET)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.2", ("", "", ""), "arm64"))
    return sysctl


def test_a_mac(mac: dict[str, str]) -> None:
    facts = machine.machine()
    assert (facts["system"], facts["model"], facts["chip"]) == ("macOS 15.2", "Mac15,6", "Apple M3 Pro")
    assert facts["low_power"] is True and facts["virtual"] is False and facts["rosetta"] is False
    json.dumps(facts)


def test_programs_that_are_not_there_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (FileNotFoundError("sysctl"), subprocess.TimeoutExpired("sysctl", 10)):

        def fails(*args: Any, error: BaseException = error, **options: Any) -> Any:
            raise error

        monkeypatch.setattr(subprocess, "run", fails)
        monkeypatch.setattr(platform, "system", lambda: "Darwin")
        facts = machine.machine()
        assert facts["chip"] == "" and facts["low_power"] is None


def test_this_machine() -> None:
    facts = machine.machine()
    assert facts["torch"] == torch.__version__ and facts["cpu_cores"] and facts["memory_gib"] > 0
    assert platform.node() not in (facts["system"], facts["chip"])


def test_what_stock_torch_does_depends_on_its_version() -> None:
    paths = [devices.METAL.stock(version) for version in ("2.11.0", "2.12.1", "2.13.0", "2.14.0", "2.15.0")]
    assert paths[0] == paths[1] != paths[2] != paths[3] == paths[4]
    assert "one row" not in paths[2] and "one row" in paths[3]
    assert devices.HOST.stock("2.13.0") == "its CPU kernels"


def test_emulated() -> None:
    assert devices.METAL.emulated == (platform.system() != "Darwin")
    assert devices.HOST.emulated and not devices.CUDA.emulated


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"machine": "x86_64", "rosetta": True}, "under Rosetta"),
        ({"machine": "x86_64"}, "an Intel Mac"),
        ({"macos": (13, 6)}, "need macOS 14"),
        ({"available": False}, "torch sees no MPS device"),
    ],
)
def test_a_device_that_a_mac_should_have(changes: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = dataclasses.replace(Facts("Darwin", "arm64", (15, 0), False, True, True), **changes)
    monkeypatch.setattr(Metal, "facts", lambda self: facts)
    monkeypatch.setattr(runtime, "has_executor", lambda kind: True)
    assert words in examine.unusable()["mps"]
    assert runtime.default_device().type == "cpu"


def test_directory_size(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"12345")
    (tmp_path / "y").write_bytes(b"123")
    assert machine.directory_size(tmp_path) == 8 and machine.directory_size(tmp_path / "absent") == 0


# ------------------------------------------------------------------------------------------------------ advice, tables

M3 = {
    "system": "macOS 15.2",
    "machine": "arm64",
    "model": "Mac15,6",
    "chip": "Apple M3 Pro",
    "cpu_cores": 11,
    "memory_gib": 18.0,
    "rosetta": False,
    "virtual": False,
    "low_power": False,
    "python": "3.12.4",
    "torch": "2.15.0",
    "transformers": "5.23.0",
    "torch_foundry": "0.1.0",
    "environment": {},
}
DATA: dict[str, Any] = {
    "complete": True,
    "at": "end",
    "failures": [],
    "emulated": False,
    "machine": M3,
    "device": {
        "name": "mps",
        "executor": "metal",
        "gpu": "Apple M3 Pro",
        "gpu_cores": 14,
        "family": "apple9",
        "tuned": 9,
    },
    "bandwidth": {"bytes": 1 << 28, "read_gb_s": 133.0, "copy_gb_s": 120.0, "torch_copy_gb_s": 121.0},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(DATA)
    *parents, leaf = path.split(".")
    at = data
    for name in parents:
        at = at[name]
    at[leaf] = value
    return data


def test_a_good_machine_gets_one_fact() -> None:
    (fact,) = advice(DATA)
    assert fact == "At 133 GB/s no kernel can decode a float16 model of 0.5 B faster than 134 tokens/s."


@pytest.mark.parametrize(
    "path, value, words",
    [
        ("failures", ["check x"], "please open an issue and attach this report"),
        ("machine.torch", "2.17.0", "Torch_foundry was tested with torch 2.11 to 2.15"),
        ("machine.torch", "2.12.1", "Stock torch is faster from 2.14 on"),
        ("unusable", {"mps": "an Intel Mac has no MPS device"}, "Not used: mps: an Intel Mac has no MPS device."),
        ("machine.low_power", True, "Low power mode is on"),
        ("machine.virtual", True, "This is a virtual machine"),
        ("device.gpu", "Apple Paravirtual device", "This is a virtual machine"),
        ("device.metal", {"library": "jit"}, "with Xcode installed"),
        ("device.tuned", 0, "`torch-foundry tune MODEL` measures"),
        ("machine.environment", {"MTL_DEBUG_LAYER": "1"}, "Metal's validation is on"),
        ("machine.environment", {"TORCH_FOUNDRY_SANITIZE": "address"}, "under a sanitizer"),
        ("cache_bytes", 3 << 30, "The kernel cache holds 3.0 GiB"),
        ("bandwidth.read_gb_s", 40.0, "Reading reaches 40 of the 154 GB/s that Apple states"),
        ("device.name", "cuda", "This is an NVIDIA GPU"),
        ("emulated", True, "results count, figures don't"),
    ],
)
def test_advice(path: str, value: Any, words: str) -> None:
    given = advice(changed(path, value))
    assert any(words in text for text in given), given
    assert all((text[0].isupper() and text.endswith(".")) or text.endswith(").") or ":" in text for text in given)


def test_what_was_measured_needs_no_tuning() -> None:
    """By this project, or there: an H100's choices, those of a report from before, and an emulated GPU."""
    h100 = {"name": "cuda", "executor": "cuda", "family": "sm_90-h100-80gb-hbm3", "tuned": 0}
    a100 = {**h100, "family": "sm_80-a100"}
    said = [any("tune MODEL" in text for text in advice(changed("device", device))) for device in (h100, a100)]
    assert said == [False, True]
    old = {name: value for name, value in DATA["device"].items() if name != "tuned"}
    assert not any("tune MODEL" in text for text in advice(changed("device", old)))
    assert not any("tune MODEL" in text for text in advice({**changed("device.tuned", 0), "emulated": True}))


@pytest.mark.parametrize("missing", ["device", "bandwidth", None])
def test_a_table_of_whatever_there_is(missing: str | None) -> None:
    data = copy.deepcopy(DATA)
    if missing:
        del data[missing]
    data["complete"] = False
    text = table(data)
    assert "Apple M3 Pro" in text and text.endswith("NOT COMPLETE: ended at: end")
    assert ("133.0 GB/s" in text) == (missing != "bandwidth")


def test_the_gemv_table_has_shares_of_the_bandwidth() -> None:
    row = {"name": "o_proj", "n": 896, "k": 896, "valid": True}
    data = changed("gemv", [])
    data["gemv"] = [
        {**row, "format": "f16", "gb_s": 100.0, "stock_gb_s": 50.0},
        {**row, "format": "q8_0", "gb_s": 66.5, "stock_gb_s": None},
        {**row, "name": "other", "format": "f16", "gb_s": 1.0, "stock_gb_s": 1.0, "valid": False},
    ]
    lines = [line.split() for line in table(data).splitlines()]
    assert ["o_proj", "896", "x", "896", "100.0", "(75%)", "66.5", "(50%)", "50.0"] in lines
    assert ["other", "896", "x", "896", "INVALID", "-", "INVALID"] in lines


def test_a_report_without_a_file() -> None:
    report = Report(None)
    report.step("x")
    report.finish()
    assert report.data["complete"]


# -------------------------------------------------------------------------------------------------------------- timing


def test_seconds_waits_for_the_device_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only launches and waits move: 3 s to launch, 5 s to wait."""
    now, log = [0.0], []

    def spend(name: str, duration: float) -> None:
        now[0] += duration
        log.append(name)

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(timing, "synchronize", lambda device: spend("wait", 5.0))
    call = lambda: spend("call", 3.0)  # noqa: E731
    assert timing.seconds(torch.device("cpu"), call, round_s=80.0, rounds=3) == pytest.approx((10 * 3 + 5) / 10)
    assert log == ["call", "wait"] * 2 + (["call"] * 10 + ["wait"]) * 3


def test_a_stand_in_for_mps_is_waited_for_by_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    fake = SimpleNamespace(cpu=lambda: read.append(1))
    monkeypatch.setattr(torch, "zeros", lambda *args, **options: fake)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    timing.synchronize(torch.device("mps"))
    timing.synchronize(torch.device("cpu"))
    assert read == [1]


def test_nothing_heavy_is_imported_for_the_command_line() -> None:
    code = "import sys, torch_foundry.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_our_path() -> None:
    assert devices.METAL.ours({}) == "kernels on torch's MPS stream"
    full = devices.METAL.ours({"metal": {"language": "3.2", "library": "jit"}})
    assert full == "kernels in Metal 3.2 on torch's MPS stream, compiled from source at first use"
    assert "fiber" in devices.HOST.ours({}) and "NVRTC" in devices.CUDA.ours({})
