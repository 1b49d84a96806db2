"""This project's own kernels from a metallib: their launches are recorded, complete and repeatable, and AIR that clang
made of the same shaders runs beside them, bit for bit. Apple's metallib of them comes from CI's job on a Mac."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.air import launches, record
from torch_foundry import ops
from torch_foundry.aot.metallib import library_name

ENTRIES = (
    "rms_norm<half, Llama, 8>", "embedding<Q4_0, half, long, 8>", "short_conv<bfloat, 3>", "sample_greedy", "moe_group",
)  # fmt: skip
NAMES = [library_name(entry) for entry in ENTRIES]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return record.record(tmp_path_factory.mktemp("launches"), NAMES)


# ----------------------------------------------------------------------------------------------------------- the record


def test_every_kernel_has_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not record.missing(), "add a call to tools/agx/kernels.py, or a line to record.EXCUSED"
    functions = record.functions()
    assert {name for _, name in functions} >= set(record.EXCUSED)
    monkeypatch.setattr(record, "functions", lambda: functions | {("rms_norm.metal", "new")})
    assert record.missing() == {("rms_norm.metal", "new")}


def test_every_common_kernel_has_a_launch() -> None:
    """Those that the build on a Mac compiles."""
    from torch_foundry.aot import metallib, prebuild

    launched = {(file, entry) for file, entry, _ in record.plan()}
    assert set(prebuild.kernels(metallib.FAMILY)) <= launched


def test_launches_do_something(stored: list[Path]) -> None:
    cases = [launches.read(path) for path in stored]
    assert {case.name for case in cases} == set(NAMES)
    for path, case in zip(stored, cases, strict=True):
        about, before = launches.about(path), case.buffers()
        assert case.after and set(about.written) < set(before)
        for flush in (False, True):
            after = case.after(flush)
            changed = {i for i in before if after[i].tobytes() != before[i].array.tobytes()}
            assert changed and changed <= set(about.written)
        read = [buffer.array for i, buffer in before.items() if buffer.kind == "float16" and i not in about.written]
        assert all(np.isfinite(array).all() and np.unique(array).size > 30 for array in read)


def test_a_fresh_process_repeats_them(stored: list[Path]) -> None:
    script = "import json, pathlib, sys; from tests.air import record; " \
             "print(json.dumps(record.replayed(map(pathlib.Path, sys.argv[1:]))))"  # fmt: skip
    command = [sys.executable, "-c", script, *map(str, stored)]
    said = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == {path.name: 0 for path in stored}


def test_another_result_is_noticed(stored: list[Path], tmp_path: Path) -> None:
    of, case = launches.about(stored[0]), launches.read(stored[0])
    before = {i: buffer.array.view(np.uint8) for i, buffer in case.buffers().items()}
    after = {flush: {i: case.after(flush)[i].view(np.uint8).copy() for i in of.written} for flush in (False, True)}
    after[True][of.written[0]][3] ^= 1
    launches.write(tmp_path / "other.npz", of, before, after)
    assert record.replayed([tmp_path / "other.npz"]) == {"other.npz": 1}


def test_recording_runs_an_op_as_ever() -> None:
    """Also where tensors are parts of one storage, one of them written and one read."""

    def given() -> tuple[torch.Tensor, ...]:
        g = torch.Generator().manual_seed(0)
        qkv, caches = torch.randn(1, 1, 256, generator=g), torch.randn(2, 1, 1, 8, 64, generator=g)
        return qkv[..., :128], qkv[..., 128:192], qkv[..., 192:], caches[0], caches[1]

    table, results = torch.full((1, 1, 64), 0.6), []
    for recording in (False, True):
        q, k, v, k_cache, v_cache = given()
        found: list[torch.Tensor] = []

        def call() -> None:
            found.append(ops.rope_kv(q, k, v, table, table, k_cache, v_cache, 3, head_dim=64))  # noqa: B023

        assert len(list(record.run("host", call)) if recording else [call()]) == 1
        results.append((found[0], k_cache, v_cache))
    for mine, theirs in zip(*results, strict=True):
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()


def test_a_mac_compiles_what_has_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "xcrun").symlink_to(Path(__file__).parents[1] / "metal" / "fake_xcrun.py")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_XCRUN", json.dumps({"levels": ["3.1"], "bad": "", "log": str(tmp_path / "log")}))
    monkeypatch.setattr(sys, "argv", ["record", str(tmp_path / "made")])
    record.main()
    text = (tmp_path / "made" / "kernels-3.1.metallib").read_text()
    entries = {entry for _, entry, _ in record.plan()}
    assert len(entries) > 300
    assert all(f'host_name("{library_name(entry)}")' in text for entry in entries if "<" in entry)


# ---------------------------------------------------------------------------------------------------- beside a metallib


@pytest.fixture(scope="module")
def metallib(stored: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: make air")
    from tests.air import own_compiler

    if not own_compiler.there():
        pytest.skip(f"needs a clang: {own_compiler.CLANG}")
    place = tmp_path_factory.mktemp("metallib") / "kernels.metallib"
    return own_compiler.write(place, [launches.about(path) for path in stored])


def test_kernels_of_a_metallib_are_right(
    metallib: Path, stored: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tests.air import compare, container
    from tests.air.metallib import MetalLib

    lib = MetalLib(metallib)
    kernels = {name: lib.bitcode(name) for name in lib.functions} | {"unknown": lib.bitcode(NAMES[0])}
    kernels[NAMES[2]] = kernels[NAMES[2]][:200]  # which is no fault of the others
    container.write(tmp_path / "kernels-3.1.metallib", kernels)
    assert compare.main([str(tmp_path)]) == 1
    said = capfd.readouterr().out
    assert said.count(": right\n") == len(stored) - 1 and "unknown: no launch recorded\n" in said
    assert f"{NAMES[2]}: RuntimeError: LLVM" in said
    assert f"{len(stored)} launches, 1 kernels without one" in said


@pytest.mark.parametrize(
    ("mutation", "name"), [("max for sum", NAMES[0]), ("no barriers", NAMES[0]), ("masks cut", NAMES[1])]
)
def test_a_fault_in_one_is_noticed(metallib: Path, stored: list[Path], mutation: str, name: str) -> None:
    from tests.air import compare
    from tests.air.metallib import MetalLib

    cases = [launches.read(path) for path in stored if launches.read(path).name == name]
    outcomes = compare.compare(MetalLib(metallib), Path(), cases, mutation=mutation)
    assert any(outcome.is_fault and "differ" in outcome.verdict for outcome in outcomes)


def test_another_kernels_code_is_noticed(metallib: Path, stored: list[Path], tmp_path: Path) -> None:
    """Its arguments mean something else. That it may crash is a result too."""
    import llvmlite.binding as llvm

    from tests.air import compare, container, module
    from tests.air.metallib import MetalLib

    lib = MetalLib(metallib)
    text = module.disassembled(lib.bitcode(NAMES[0])).replace(NAMES[0], NAMES[1])
    other = container.write(tmp_path / "other.metallib", {NAMES[1]: llvm.parse_assembly(text).as_bitcode()})
    cases = [launches.read(path) for path in stored if launches.read(path).name == NAMES[1]]
    (outcome,) = compare.compare(MetalLib(other), Path(), cases)
    assert outcome.is_fault and "UnknownInAir" not in outcome.verdict


def test_without_a_metallib_there_is_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: make air")
    from tests.air import compare

    for folder in (tmp_path, tmp_path / "none"):
        assert compare.main([str(folder)]) == 0 and "skipped: no metallib" in capsys.readouterr().out
