"""Instructions of an M1 on their own: from bytes, and what each does to registers and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tools.agx import arithmetic, decode, launch
from tools.agx.decode import DecodeError, Instruction, Operand
from tools.agx.execute import Place, Simdgroup
from tools.agx.memory import Memory
from tools.agx.registers import LANES, UNIFORMS, Fault, Words, as_bits, as_reals

# -------------------------------------------------------------------------------------------------------------- decoder


def test_encodings_that_others_have_run_on_an_m1() -> None:
    """From applegpu's tests of rounding (hwtest.py): fmadd32 twice, fadd32, fmul32, fmadd16."""
    code = bytes.fromhex("3a8c402224440200 3a0c40200444 2a8c40422400 1a8c40222400 360c40200444 8800 0800")
    found = decode.decode(code)
    assert [i.name for i in found] == ["ffma", "ffma", "fadd", "fmul", "hfma", "stop"]
    assert all(i.target == Operand("register", 6) for i in found[:5])  # r3l
    words, halves = ([Operand("register", 2 * n, bits) for n in range(3)] for bits in (32, 16))
    assert [list(i.sources) for i in found[:5]] == [words, halves, [words[0], words[2]], words[:2], halves]
    assert found[-1].end == len(code) - 2


def test_no_bits_are_two_instructions() -> None:
    opcodes = decode._opcodes()
    for opcode, fixed, parts in opcodes:
        assert opcode.exact & ~fixed == 0, opcode.name
        fields = [part for each in (opcode.fields, *parts) for found in each.values() for part in found]
        covered = [at + i for at, bits in fields for i in range(bits)]
        assert len(set(covered)) == len(covered), f"{opcode.name}: fields that overlap"
        for other, other_fixed, _ in opcodes:
            assert other is opcode or (opcode.exact ^ other.exact) & fixed & other_fixed, f"{opcode.name}, {other.name}"


def test_unknown_bits_are_named() -> None:
    with pytest.raises(DecodeError, match="unknown instruction at 0x2: 38 10 08 00"):
        decode.decode(bytes.fromhex("8800 3810 0800"))  # a wait with a bit that nobody knows
    with pytest.raises(DecodeError, match="code ends at 0x2 without a trap"):
        decode.decode(bytes.fromhex("8800"))
    with pytest.raises(DecodeError, match="operand of unknown kind 0x8 at 0x0"):
        decode.decode(bytes.fromhex("7e0c0002220000000800"))


# ------------------------------------------------------------------------------------------------------------- executor

LANE = ("get_sr", Operand("register", 2, 32), (), {"register": 52})  # r1
R1, R2, R3 = (Operand("register", n, 32) for n in (2, 4, 6))
H1 = Operand("register", 2)
Step = tuple[str, Operand | None, Sequence[Operand], dict[str, int]]


def immediate(value: int) -> Operand:
    return Operand("immediate", value)


def run(*steps: Step, launched: int = LANES, memory: Memory | None = None) -> Simdgroup:
    """A simdgroup after these, each taken to be two bytes long. Uniform 0 has the address of `memory`."""
    uniforms = Words(UNIFORMS, 1)
    for i in range(4):
        uniforms.half(i)[:] = (memory.base if memory else 0) >> 16 * i & 0xFFFF
    local = Memory("threadgroup")
    local.reserve(64)
    special = {52: np.arange(LANES)}
    place = Place(memory or Memory("device"), local, uniforms, special, np.arange(LANES) < launched)
    code = {2 * n: Instruction(name, 2 * n, 2, *rest) for n, (name, *rest) in enumerate((*steps, STOP))}
    simdgroup = Simdgroup(place)
    for _ in simdgroup.run(code, 0):
        pass
    return simdgroup


STOP: Step = ("stop", None, (), {})


def set_to(target: Operand, value: int) -> Step:
    return "mov_imm", target, (), {"immediate": value}


def values(simdgroup: Simdgroup, register: Operand) -> list[int]:
    found: list[int] = (
        simdgroup.registers.integers(register, simdgroup.place.launched) + np.zeros(LANES, int)
    ).tolist()
    return found


def test_sums_are_rounded_once() -> None:
    """Products and sums that no float64 has: against fractions."""
    random = np.random.default_rng(0)
    a, b, c = (random.standard_normal(3000).astype(np.float32).astype(np.float64) for _ in range(3))
    c *= 2.0 ** random.integers(-40, 40, 3000)
    got = as_reals(as_bits(arithmetic.fused(a, b, c), 32), 32)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        near = np.float32(float(exact))  # one of those beside it
        around = [np.nextafter(near, np.float32(to)) for to in (-np.inf, np.inf)]
        assert abs(exact - Fraction(result)) <= min(abs(exact - Fraction(float(each))) for each in (near, *around))


def test_what_becomes_of_subnormals_and_halves() -> None:
    """Halves keep subnormals, also as operands of 32 bits; floats don't. A sum of floats is one before it is a half."""
    got = run(set_to(H1, 255), ("fadd", R2, (H1, immediate(0)), KEPT_AS_IS))
    assert values(got, R2) == [bits_of(255 * 2.0**-24)] * LANES
    got = run(set_to(R1, 0x807FFFFF), ("fadd", R2, (R1, immediate(0x80)), KEPT_AS_IS))
    assert values(got, R2) == [0x80000000] * LANES
    halves = tuple(Operand("register", n) for n in (4, 5, 6))  # of 1 * (1 + 2^-10) + 2^-11
    given = [set_to(half, code) for half, code in zip(halves, (0x3C00, 0x3C01, 0x1000), strict=True)]
    assert values(run(*given, ("hfma", H1, halves, KEPT_AS_IS)), H1) == [0x3C02] * LANES, "a tie, to even"
    for small, expected in ((2.0**-11, 0x3C00), (2.0**-11 + 2.0**-22, 0x3C01), (2.0**-11 + 2.0**-31, 0x3C00)):
        given = [set_to(R2, bits_of(1.0)), set_to(R3, bits_of(small))]
        got = run(*given, ("fadd", H1, (R2, R3), KEPT_AS_IS))
        assert values(got, H1) == [expected] * LANES, "the last: a tie after the first rounding alone"


KEPT_AS_IS = {"saturate": 0}


def bits_of(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@pytest.mark.parametrize(
    ("name", "sources", "fields", "expected"),
    [
        ("iadd", (R2, immediate(3)), {"shift": 2, "negate": 1, "saturate": 0}, 0xF0F0F0F0 - 12),
        ("iadd", (immediate(3), R2), {"shift": 0, "negate": 1, "saturate": 1}, 0),
        ("bfi", (R2, immediate(0xFF), immediate(8)), {"mask": 4}, 0xF0F0FFF0),
        ("bfeil", (R2, R2, immediate(12)), {"mask": 8}, 0xF0F0F00F),
        ("bfeil", (immediate(0), R2, immediate(4)), {"mask": 0}, 0x0F0F0F0F),
        ("extr", (R2, immediate(0xA), immediate(4)), {"mask": 0}, 0xAF0F0F0F),
        ("asr", (R2, immediate(8)), {}, 0xFFF0F0F0),
        ("bitop", (R2, immediate(0xFF)), {"table": 0b0010}, 0xF0F0F000),
        ("bitop", (R2, immediate(0xFF)), {"table": 0b0110}, 0xF0F0F00F),
        ("ffs", (R2,), {}, 31),
        ("popcount", (R2,), {}, 16),
        ("bitrev", (R2,), {}, 0x0F0F0F0F),
        ("icmpsel", (R2, immediate(1), immediate(7), R2), {"condition": 5}, 7),
        ("icmpsel", (R2, immediate(1), immediate(7), R2), {"condition": 1}, 0xF0F0F0F0),
        ("convert", (immediate(9), immediate(0xB8)), {"round": 0}, 0xFFFFFFFF),
        ("convert", (immediate(9), immediate(0xB8)), {"round": 1}, 0xFFFFFFFE),
        ("convert", (immediate(8), immediate(0xB8)), {"round": 0}, 0),
        ("convert", (immediate(1), R2), {"round": 0}, 0xC1800000),
    ],
)  # fmt: skip
def test_integers(name: str, sources: tuple[Operand, ...], fields: dict[str, int], expected: int) -> None:
    """Of 0xf0f0f0f0."""
    assert values(run(set_to(R2, 0xF0F0F0F0), (name, R3, sources, fields)), R3) == [expected] * LANES


def test_products_of_64_bits() -> None:
    wide, signed = Operand("register", 8, 64), replace(R2, signed=True)
    code = run(LANE, set_to(R2, 0xFFFFFFFF), ("imad", wide, (R1, signed, immediate(5)), {**SUM, "negate": 0}))
    assert values(code, wide) == [5 - n for n in range(LANES)]


SUM = {"shift": 0, "saturate": 0}


def test_lanes_leave_a_loop_one_by_one() -> None:
    """r2 counts up to each lane's number, at least to 1; then odd lanes get 100, others 200."""
    nothing, condition = {"nest": 1, "invert": 0}, {"nest": 1, "invert": 0, "condition": 1}
    equal = {**condition, "condition": 0}
    loop: list[Step] = [
        LANE, set_to(Operand("register", 0), 0), set_to(R2, 0), ("if_icmp", None, (immediate(0), immediate(0)), equal),
        ("iadd", R2, (R2, immediate(1)), {**SUM, "negate": 0}), ("while_icmp", None, (R2, R1), condition),
        ("jmp_exec_any", None, (), {"offset": 2**32 - 4}), ("pop_exec", None, (), nothing),
        ("bitop", R3, (R1, immediate(1)), {"table": 8}), ("if_icmp", None, (R3, immediate(1)), equal),
        set_to(R3, 100), ("else_icmp", None, (immediate(0), immediate(0)), equal), set_to(R3, 200),
        ("pop_exec", None, (), nothing),
    ]  # fmt: skip
    got = run(*loop)
    assert values(got, R2) == [max(1, n) for n in range(LANES)]
    assert values(got, R3) == [100 if n % 2 else 200 for n in range(LANES)]
    assert got.registers.on.all()


def test_lanes_of_a_simdgroup() -> None:
    index, flip = Operand("register", 8), {"table": 6}
    got = run(LANE, ("bitop", index, (R1, immediate(28)), {"table": 8}), ("shuffle", R2, (R1, index), {}))
    assert values(got, R2) == [n & 28 for n in range(LANES)]
    with pytest.raises(Fault, match="shuffle at 0x4: a shuffle whose lanes of a quad ask for different lanes"):
        run(LANE, ("bitop", index, (R1, immediate(1)), flip), ("shuffle", R2, (R1, index), {}))
    with pytest.raises(Fault, match="a shuffle from a lane that isn't running"):
        run(LANE, set_to(index, 20), ("shuffle", R2, (R1, index), {}), launched=16)
    reduced = run(LANE, ("simd_reduce", R2, (R1,), {"operation": 0b10000}), launched=20)
    assert values(reduced, R2)[:20] == [190] * 20
    prefixes = run(LANE, ("simd_prefix", R2, (R1,), {"operation": 0b10000}))
    assert values(prefixes, R2) == [n * (n - 1) // 2 for n in range(LANES)]
    ballot = run(LANE, ("icmp_ballot", R2, (R1, immediate(3)), {"condition": 1, "invert": 1}))
    assert values(ballot, R2) == [0xFFFFFFF8] * LANES
    greatest = ("simd_reduce", R2, (replace(R1, signed=False),), {"operation": 7})
    assert values(run(set_to(R1, bits_of(2.5)), greatest), R2) == [bits_of(2.5)] * LANES


WORDS = {"format": 2, "wide": 1, "mask": 1}
AT_LANE = {"base": 0, "uniform": 1, "index": 2, "immediate": 0, "unsigned": 1, "shift": 0, "slot": 0}
LOAD, STORE = {**WORDS, **AT_LANE, "register": 4}, {**WORDS, **AT_LANE, "register": 2}
LOCAL = {**WORDS, "base": 0, "of": 2, "index": 0, "immediate": 1, "register": 4}
STACK = {**WORDS, "index": 0, "immediate": 1, "register": 4, "slot": 0}
GROW: Step = ("stack_adjust", None, (), {"size": 2})
BARRIER: Step = ("threadgroup_barrier", None, (), {})
WAIT: Step = ("wait", None, (), {"slot": 0})


def device(numbers: int = LANES, writable: bool = True, base: int = 0x1_FFFF_FFC0) -> Memory:
    memory = Memory("device", base)
    memory.add(np.arange(numbers, dtype=np.uint32).view(np.uint8) * 2, writable)
    return memory


def test_memory_of_the_device() -> None:
    memory = device()
    got = run(LANE, ("device_load", None, (), LOAD), WAIT, ("device_store", None, (), STORE), memory=memory)
    assert values(got, R2) == [2 * n for n in range(LANES)]
    assert memory.content(memory.base, 4 * LANES).view(np.uint32).tolist() == list(range(LANES))
    wide = {**LOAD, "mask": 0b101, "index": 1, "immediate": 1}  # the second and the fourth number, for all
    got = run(("device_load", None, (), wide), WAIT, memory=memory)
    assert (values(got, R2)[0], values(got, R3)[0]) == (1, 3)
    address = {"format": 2, "register": 4, "base": 0, "uniform": 1, "index": 0, "immediate": 1, "unsigned": 0}
    add = ("atomic", None, (), {**address, "operation": 0, "source": 2, "returns": 1, "slot": 0})
    got = run(LANE, add, WAIT, memory=memory)
    assert values(got, R2) == [n * (n - 1) // 2 for n in range(LANES)]


@pytest.mark.parametrize(
    ("said", "memory", "steps"),
    [
        ("device_load at 0x2: 4 bytes at 0x20000003c of device memory can't be read", device(31),
         [LANE, ("device_load", None, (), LOAD)]),
        ("can't be written", device(32, writable=False), [LANE, ("device_store", None, (), STORE)]),
        ("4 bytes at 0x1ffffffc1 of device memory: not aligned", device(base=0x1_FFFF_FFC1),
         [LANE, ("device_load", None, (), LOAD)]),
        ("r2l is read while a load writes it: no wait", device(),
         [LANE, ("device_load", None, (), LOAD), ("iadd", R1, (R2, R1), {"shift": 0, "saturate": 0, "negate": 0})]),
        ("r2h is written while a load writes it", device(),
         [LANE, ("device_load", None, (), LOAD), ("mov_imm", Operand("register", 5), (), {"immediate": 0})]),
        ("r1l is read, but nothing wrote it", device(), [("device_load", None, (), LOAD)]),
        ("r1l is read, but nothing wrote it, or its value was discarded", device(),
         [LANE, ("popcount", R2, (replace(R1, discard=True),), {}), ("popcount", R2, (R1,), {})]),
        ("format 3", device(), [LANE, ("device_load", None, (), {**LOAD, "format": 3})]),
        ("no room", device(), [LANE, ("device_load", None, (), {**LOAD, "wide": 0})]),
        ("special register 99", device(), [("get_sr", R1, (), {"register": 99})]),
        ("no instruction begins at 0x64", device(), [LANE, ("jmp_exec_any", None, (), {"offset": 98})]),
        ("4 bytes at 0x0 of threadgroup memory can't be read", device(), [("local_load", None, (), LOCAL)]),
        ("an address that isn't on the stack", device(), [GROW, ("stack_load", None, (), {**STACK, "index": 8})]),
        ("4 bytes at 0x0 of stack memory can't be read", device(), [GROW, ("stack_load", None, (), STACK)]),
        ("not all threads of the simdgroup are at the barrier", device(),
         [LANE, set_to(Operand("register", 0), 0),
          ("if_icmp", None, (R1, immediate(3)), {"nest": 1, "invert": 0, "condition": 1}), BARRIER]),
    ],
)  # fmt: skip
def test_what_has_no_defined_result(said: str, memory: Memory, steps: list[Step]) -> None:
    with pytest.raises(Fault, match=said):
        run(*steps, memory=memory)


def test_other_memories() -> None:
    own, shared = {**STACK, "register": 2}, {**LOCAL, "register": 2, "of": 0, "base": 8}  # r1; at r4l
    store, load = ("stack_store", None, (), own), ("stack_load", None, (), STACK)
    assert values(run(GROW, LANE, store, load, WAIT), R2) == list(range(LANES))
    place = ("bfi", Operand("register", 8), (immediate(0), R1, immediate(2)), {"mask": 0})
    steps = [LANE, place, ("local_store", None, (), shared), ("local_load", None, (), {**LOCAL, "index": 12})]
    assert values(run(*steps, launched=16), R2)[:16] == [3] * 16


def test_simdgroups_meet_at_barriers() -> None:
    with pytest.raises(Fault, match="not all simdgroups of a threadgroup came to a barrier"):
        launch._take_turns([iter([None, None]), iter([None])])
    launch._take_turns([iter([None]), iter([None])])


def test_a_grid_of_threads_ends_within_a_group() -> None:
    grid = launch.Grid((70, 1, 1), (64, 1, 1), threads=True)
    assert grid.groups() == (2, 1, 1)
    special, exist = launch._threads(grid, (1, 0, 0), 0)
    assert exist.tolist() == [n < 6 for n in range(LANES)] and special[80].tolist() == [64 + n for n in range(LANES)]
