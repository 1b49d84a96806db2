"""Machine code of an M1, decoded and run: without Mesa, which made what is recorded in g13_programs.jsonl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest

from tools.agx import checks, decode, execute, recorded, registers
from tools.agx.__main__ import KEPT, PROGRAMS
from tools.agx.decode import DecodeError, Instruction
from tools.agx.emulate import Emulator
from tools.agx.execute import Simdgroup
from tools.agx.launch import Program
from tools.agx.registers import Fault
from torch_foundry.aot.metallib import FAMILY
from torch_foundry.aot.prebuild import Launched

RECORDED = recorded.load(PROGRAMS.read_text())
NOTICED = (DecodeError, Fault, AssertionError)  # the last: a result that isn't right


def rerun(name: str, program: Callable[[Launched], Program] = RECORDED) -> Emulator:
    """The check of that name. Raises what it found."""
    emulator = Emulator(FAMILY, program)
    with emulator.running(checks.OPS), checks.poisoned_outputs():
        checks.checks()[name]()
    return emulator


# ------------------------------------------------------------------------------------------------------- whole kernels


@pytest.mark.parametrize("name", ["rms_norm", "linear q4_0"])
def test_a_kernel_as_machine_code(name: str) -> None:
    """Against float64. Its text is what Mesa's compiler made when `make agx UPDATE=1` ran last."""
    checks.checks()[name]()  # on the host, whose variants are others
    ran = rerun(name).ran
    assert len(ran) == 1 and set(recorded.save(ran).splitlines()) < set(PROGRAMS.read_text().splitlines())


def test_checks_that_are_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    count, wrong = checks.run(Emulator(FAMILY, RECORDED), KEPT)
    assert (count, wrong) == (2, [])
    assert "rms_norm: rms_norm<half, Llama, 8> (" in capsys.readouterr().out
    count, wrong = checks.run(Emulator(FAMILY, lambda kernel: replace(RECORDED(kernel), preamble=-1)), "^rms_norm$")
    assert count == 1 and wrong[0].startswith("rms_norm: ")
    with pytest.raises(LookupError, match=r"no machine code of .*glu"):
        RECORDED(Launched("glu.metal", "glu<half, Silu, 8>", {}, 256))


class Ran(NamedTuple):
    """A check's program, and which of its instructions ran, in the order of the code."""

    program: Program
    instructions: list[Instruction]

    def broken(self, name: str, bit: int, nth: int = 0) -> Program:
        """With a bit flipped of the nth of that name that ran."""
        place = [i.at for i in self.instructions if i.name == name][nth]
        code = bytearray(self.program.code)
        code[place + bit // 8] ^= 1 << bit % 8
        return replace(self.program, code=bytes(code))


def noted(do: Callable[[Simdgroup, Instruction], None], seen: set[int]) -> Callable[[Simdgroup, Instruction], None]:
    """`do`, which also adds the place of what some lane runs to `seen`."""

    def call(simdgroup: Simdgroup, i: Instruction) -> None:
        if simdgroup.registers.on.any():
            seen.add(i.at)
        do(simdgroup, i)

    return call


@pytest.fixture(scope="module")
def ran() -> dict[str, Ran]:
    found = {}
    for name in ("rms_norm", "linear q4_0"):
        seen: set[int] = set()
        with mock.patch.dict(execute._DO, {word: noted(do, seen) for word, do in execute._DO.items()}):
            program = rerun(name).ran[0][1]
        both = [*decode.decode(program.code, program.preamble), *decode.decode(program.code, program.main)]
        found[name] = Ran(program, [i for i in both if i.at in seen])
    return found


# Of each kind of instruction a bit: of its opcode, an operand's modifier, a number, a register, a condition. The nth
# that runs, as not all matter: where rows are contiguous, most of the arithmetic of their addresses comes to nothing.
@pytest.mark.tier("nightly", quick=8)
@pytest.mark.parametrize(
    ("name", "instruction", "bit", "nth"),
    [
        ("rms_norm", "fmul", 0, 0), ("rms_norm", "ffma", 27, 4), ("rms_norm", "fadd", 9, 0),
        ("rms_norm", "iadd", 27, 17), ("rms_norm", "imad", 27, 10), ("rms_norm", "icmpsel", 61, 0),
        ("rms_norm", "bfeil", 38, 4), ("rms_norm", "bitop", 26, 1), ("rms_norm", "mov_imm", 17, 1),
        ("rms_norm", "get_sr", 17, 0), ("rms_norm", "if_icmp", 8, 0), ("rms_norm", "while_icmp", 8, 0),
        ("rms_norm", "simd_reduce", 38, 0), ("rms_norm", "local_store", 10, 0), ("rms_norm", "local_load", 24, 0),
        ("rms_norm", "device_load", 53, 0), ("rms_norm", "device_store", 11, 0), ("rms_norm", "rsqrt", 28, 0),
        ("rms_norm", "jmp_exec_any", 17, 0), ("rms_norm", "uniform_store", 21, 8), ("rms_norm", "rcp", 28, 2),
        ("rms_norm", "threadgroup_barrier", 0, 0), ("linear q4_0", "bfeil", 38, 0), ("linear q4_0", "hadd", 9, 0),
        ("linear q4_0", "bitop", 26, 1), ("linear q4_0", "simd_reduce", 28, 0),
    ],
)  # fmt: skip
def test_a_flipped_bit_is_noticed(ran: dict[str, Ran], name: str, instruction: str, bit: int, nth: int) -> None:
    changed = ran[name].broken(instruction, bit, nth)
    with pytest.raises(NOTICED):
        rerun(name, lambda kernel: changed)


def test_a_missing_barrier_is_noticed(ran: dict[str, Ran]) -> None:
    program = ran["rms_norm"].program
    (place,) = (i.at for i in ran["rms_norm"].instructions if i.name == "threadgroup_barrier")
    changed = replace(program, code=program.code[:place] + b"\xf5\x96" + program.code[place + 2 :])  # one of memory
    with pytest.raises(Fault, match="of threadgroup memory can't be read"):
        rerun("rms_norm", lambda kernel: changed)


def test_each_missing_wait_is_noticed(ran: dict[str, Ran]) -> None:
    """Of loads; behind a store it keeps no number from being read."""
    names = [i.name for i in ran["rms_norm"].instructions]
    waits = [at for at, name in enumerate(names) if name == "wait"]
    loads = [nth for nth, (last, at) in enumerate(pairwise([0, *waits])) if "device_load" in names[last:at]]
    for nth in loads:
        with pytest.raises(Fault, match="no wait"):
            changed = ran["rms_norm"].broken("wait", 8, nth)  # for the other slot
            rerun("rms_norm", lambda kernel, changed=changed: changed)
    assert len(loads) == len(waits) - 1 == 7


def test_a_wrong_constant_is_noticed(ran: dict[str, Ran]) -> None:
    """The zero of codes that are subnormal halves, -8 / 2^24; and all that the preamble keeps in uniforms."""
    program = ran["linear q4_0"].program
    assert program.constants[:2] == np.float16(-8 / 2**24).tobytes()
    wrong = np.float16(-7 / 2**24).tobytes() + program.constants[2:]
    for changed in (replace(program, constants=wrong), replace(program, preamble=-1)):
        with pytest.raises(NOTICED):
            rerun("linear q4_0", lambda kernel, changed=changed: changed)


def test_codes_need_subnormal_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that took them for zeros decision 050 would be wrong."""
    kept = registers.as_reals
    flushed = lambda bits, size: np.where((bits & 0x7C00 == 0) & (size == 16), 0.0, kept(bits, size))  # noqa: E731
    monkeypatch.setattr(registers, "as_reals", flushed)
    with pytest.raises(AssertionError):
        rerun("linear q4_0")
