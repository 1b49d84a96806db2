"""`make agx` without its compiler: what is read from it, what is an error, and the record."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.agx import __main__ as command
from tools.agx import air, compile, kernels, mesa, opencl, record
from tools.agx.kernels import Launched

STATISTICS = (
    "877 inst, 883 alu, 884 fscib, 342 ic, 6138 bytes, 175 regs, 156 uniforms, 8 scratch, 576 threads, 2 loops, "
    "1:2 spills:fills"
)
# A first form; the last one, with a loop in a loop, and one beside it; the preamble.
PRINTED = """shader: MESA_SHADER_COMPUTE
block0 {
   1 = ffma 2, 3, 4
} -> block0  from block0
block0 {
   r0l = mov_imm #0
} -> block1

block1 {
   r0 = device_load u0:u1, #0, x, #0, slot 0
   wait #0, slot 0
} -> block2

block2 {
   r1 = ffma r0, r0, r1
   r1 = imad r0, r1, #0, #0
} -> block2 block3  from block1 block2

block3 {
   while_icmp r0l, #0, #0
} -> block1 block4  from block2

block4 {
   r0 = iadd r0, #1, #0
} -> block4 block5  from block3 block4

block5 {
   stop
} from block4

block0 {
   uniform_store r0, #0, x, #0
   r0 = fmul r0, r0
} -> block0
{"stats": "none"}
"""


def test_the_main_loop_is_the_largest_of_the_last_form() -> None:
    """Two ways to count cycles: one to issue each, or four of the shared unit for the imad."""
    assert air.main_loop(PRINTED) == air.Loop(instructions=5, cycles=5, loads=1, products=1)
    assert air.Loop.of(["imad", "rcp"]).cycles == 10
    assert air.main_loop("block0 {\n   stop\n}\n") == air.Loop()


def row(kernel: str = "glu<half, Silu, 8>", **changed: int) -> record.Row:
    """One that nothing is wrong with, but for what is changed."""
    good = record.row("glu.metal", kernel, 256, STATISTICS, air.Loop(100, 100, 4, 32))
    return replace(good, **{"spills": 0, "fills": 0, **changed})


def test_statistics_are_read() -> None:
    got = record.row("a.metal", "b", 64, STATISTICS, air.Loop())
    assert got == record.Row("a.metal", "b", 64, 576, 175, 1, 2, 6138, 877, 883, air.Loop())
    with pytest.raises(ValueError, match="no spills"):
        record.row("a.metal", "b", 64, "877 inst", air.Loop())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"allowed": 255}, "256 threads are launched, registers leave room for 255"),
        ({"spills": 1}, "1 spills"),
        ({"bytes": record.CODE + 2}, "12290 bytes of code"),
    ],
)
def test_problems(changed: dict[str, int], said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "EXCUSED", {"norm_glu": "another kernel"})
    found = record.problems([row(**changed)])
    assert len(found) == (said is not None) and all(said in line for line in found if said)
    prompts = record.problems([row("linear_rows<Q4_0, half, 8, 16, 4, 1, 1>", **changed)])
    assert len(prompts) == ("allowed" in changed), "of a kernel of several rows only what can't be launched"
    monkeypatch.setattr(record, "EXCUSED", {"glu<half": "a reason"})
    assert len(record.problems([row(**changed)])) == ("allowed" in changed)


def test_excuses_that_nobody_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "EXCUSED", {"glu<half": "a reason", "glu<float": "another"})
    assert record.idle([row(spills=3)]) == ["no kernel needs the excuse glu<float"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"spills": 1}, "spills and fills, 0 before, 1 now"),
        ({"allowed": 512}, "threads that fit, fewer, 576 before, 512 now"),
        ({"bytes": 6300}, "bytes of code, 6138 before, 6300 now"),
        ({"cycles": 950}, "cycles, 883 before, 950 now"),
        ({"loop": air.Loop(100, 103, 4, 32)}, "cycles of the main loop, 100 before, 103 now"),
        ({"bytes": 6140, "cycles": 884, "allowed": 640}, None),
    ],
)
def test_what_is_worse(changed: dict[str, int], said: str | None) -> None:
    found = record.worse([row()], [row(**changed)])
    assert found == ([f"{row().kernel}: {said}"] if said else [])
    assert record.worse([row(**changed)], [row(**changed)]) == []


def test_kernels_come_and_go_by_the_record() -> None:
    assert record.worse([row("a")], [row("b")]) == ["b: not in the record", "a: in the record alone"]


def test_the_record_and_its_table() -> None:
    rows = record.load(command.ROWS.read_text())
    assert record.save(rows) == command.ROWS.read_text()
    assert record.table(rows) == command.TABLE.read_text(), "run `make agx UPDATE=1`"
    assert record.problems(rows) == record.idle(rows) == []
    assert len({each.name for each in rows}) == len(rows)


def test_an_instance_as_opencl(tmp_path: Path) -> None:
    shader = tmp_path / "double.metal"
    shader.write_text(
        "constant bool twice [[function_constant(0)]];\n"
        "template <typename T>\n[[kernel]] void scale(device T* x [[buffer(0)]], constant uint& n [[buffer(1)]],\n"
        "    threadgroup float* sums [[threadgroup(0)]], uint2 groups [[threadgroups_per_grid]],\n"
        "    uint i [[thread_position_in_grid]]) { if (i < n && twice) x[i] += x[i]; }\n"
    )
    kernel = Launched("double.metal", "scale<half>", {0: "true"}, 96)
    text, name, buffers = opencl.source(kernel, shader, tmp_path)
    assert buffers == [0, 1]
    assert name == "scale<half> twice" and "static constexpr" in text and "twice = true;" in text
    call = text[text.index("__kernel") :]
    assert "reqd_work_group_size(96, 1, 1)" in call
    assert f"void {opencl.KERNEL}(__global void* a0, __constant uint* a1, __constant uint* groups)" in call
    passed = "msl_device{a0}, *a1, (__local float*)(ulong)16, metal::uint2(uint(groups[0]), uint(groups[1]))"
    assert f"scale<half>({passed}, uint(get_global_id(0)))" in call


def test_variables_of_a_threadgroup_lie_apart_where_code_is_to_be_run() -> None:
    a, b = "msl_threadgroup<a_msl_t, 0>()", "msl_threadgroup<b_msl_t, 1>()"
    text = opencl.to_be_run(f"void f(int x) {{ {a}; {b}; }} void g() {{ {b}; }}").splitlines()
    assert text[0] == "#define MSL_GENERAL_SHUFFLES"
    first, second = (f"(*(__local {name}_msl_t*)(ulong)(64" for name in "ab")
    behind = f"{second} + (sizeof(a_msl_t) + 15) / 16 * 16))"
    assert text[1] == f"void f(int x) {{ {first})); {behind}; }} void g() {{ {second})); }}"


def test_instances_of_comments_are_launched_as_their_kernel_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.metal").write_text("// foundry-lint: instance(f<2>)\n// foundry-lint: instance(f<1>)\n")
    launched = [Launched("a.metal", "f<1>", {0: "true"}, 64)]
    monkeypatch.setattr(kernels, "SHADERS", tmp_path)
    monkeypatch.setattr(kernels.prebuild, "launched", lambda family, others: launched.copy())
    assert kernels.every() == [*launched, Launched("a.metal", "f<2>", {0: "true"}, 64)]
    (tmp_path / "a.metal").write_text("// foundry-lint: instance(g<2>)\n")
    with pytest.raises(LookupError, match="nothing launches g<2>"):
        kernels.every()


def test_without_the_compiler_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(mesa.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["agx"])
    assert command.main() == 0
    assert "skipped: missing programs: gcc" in capsys.readouterr().out


def test_the_code_of_kernels_that_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(mesa, "build", lambda place: Path(__file__))
    launched = [Launched("glu.metal", f"glu<half, {name}, 8>", {}, 256) for name in ("Silu", "Gelu")]
    monkeypatch.setattr(kernels, "every", lambda: launched)
    monkeypatch.setattr(compile.Compiler, "_printed", lambda self, text: PRINTED if "Silu" in text else "")
    monkeypatch.setattr(sys, "argv", ["agx", "--kernels", "Silu", "--code"])
    assert command.main() == 0
    assert capsys.readouterr().out == f"glu.metal: glu<half, Silu, 8>\n{PRINTED}\n"


def test_what_a_step_of_the_build_said_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mesa.shutil, "which", lambda name: name)
    monkeypatch.setattr(mesa, "_fetch", lambda place, log: (place / "mesa_25.0.7.orig.tar.xz").write_text("another"))
    with pytest.raises(mesa.Unavailable, match="not the file that was pinned"):
        mesa.build(tmp_path)
    with (tmp_path / "log").open("w") as log, pytest.raises(mesa.Unavailable, match="`false now` failed"):
        mesa._run(["false", "now"], tmp_path, log)


def test_a_kernel_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "clang"
    script.write_text("#!/bin/sh\necho 'kernel.cl:3: error: no such thing' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(compile, "CLANG", str(script))
    monkeypatch.setattr(opencl, "source", lambda *given: opencl.Source("text", "f<1>", []))
    compiler = compile.Compiler(script, tmp_path / "cache")
    refused = compiler.try_row(Launched("glu.metal", "f<1>", {}, 64))
    assert refused == "f<1>: clang: kernel.cl:3: error: no such thing"
