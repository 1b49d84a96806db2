"""Runs G13 machine code: a simdgroup is 32 lanes of numpy arrays.

What instructions do is as https://github.com/dougallj/applegpu documents it from tests on an M1, and Mesa's compiler
relies on. Functions that hardware approximates (rcp, rsqrt, exp2, log2, sine) are exact here, up to their rounding;
sums of a simdgroup are made in pairs, as nobody has documented their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tools.agx import arithmetic
from tools.agx.decode import Instruction, Operand
from tools.agx.memory import Memory
from tools.agx.registers import LANES, UNIFORMS, Fault, Integers, Lanes, Registers, Words

_ALL = np.zeros(LANES, np.int64)  # added to a value of one lane, it is all lanes'
LIMIT = 1 << 22  # instructions of a simdgroup: more, and it is taken to be in a loop without end
_EXECUTION = Operand("register", 0)  # r0l: how many levels of control flow keep a lane from running


@dataclass
class Place:
    """Where a simdgroup runs."""

    device: Memory
    threadgroup: Memory
    uniforms: Words
    special: dict[int, Integers]  # special registers by number: positions and indices
    launched: Lanes  # threads that exist


class Simdgroup:
    """One, from its start to its stop."""

    def __init__(self, place: Place) -> None:
        self.place, self.registers = place, Registers(place.uniforms)
        self.registers.on = place.launched.copy()
        self.stack, self._stack_size = Memory("stack"), 0
        self.at: int | None = 0  # the byte of the code that is next; None: it has stopped

    def run(self, code: dict[int, Instruction], start: int) -> Iterator[None]:
        """Up to the next barrier of the threadgroup, each time; then to the end. Raises Fault, which says where."""
        self.at = start
        for _ in range(LIMIT):
            if self.at not in code:
                raise Fault(f"no instruction begins at {self.at:#x}")
            i = code[self.at]
            self.at = i.end
            try:
                _DO[i.name](self, i)
            except Fault as fault:
                raise Fault(f"{i.name} at {i.at:#x}: {fault}") from None
            self.registers.discard(i)
            if i.name == "threadgroup_barrier":
                yield
            if self.at is None:
                return
        raise Fault(f"{LIMIT} instructions, and no end")

    # ---- arithmetic
    def integers(self, i: Instruction) -> None:
        sources = [self.registers.integers(operand) for operand in i.sources]
        self.registers.write(_target(i), arithmetic.INTEGERS[i.name](i, *sources))

    def reals(self, i: Instruction) -> None:
        sources = [self.registers.reals(operand) for operand in i.sources]
        value = arithmetic.REALS[i.name](*sources)
        if i.name[0] != "h":  # rounded to 32 bits first, whatever the destination
            value = arithmetic.single(value)
        if i.fields["saturate"]:
            value = np.nan_to_num(np.clip(value, 0, 1), nan=0.0)
        self.registers.write_reals(_target(i), value)

    def convert(self, i: Instruction) -> None:
        target, (how, source) = _target(i), i.sources
        bits, signed, to_real = arithmetic.CONVERSIONS[how.index]
        if to_real:
            value = arithmetic.extended(self.registers.integers(source), bits, signed)
            self.registers.write_reals(target, value.astype(np.float64))
        else:
            real = self.registers.reals(source)
            self.registers.write(target, arithmetic.whole(real, bits, signed, bool(i.fields["round"])))

    def select(self, i: Instruction) -> None:
        values = [self.registers.integers(operand) for operand in i.sources[2:]]
        self.registers.write(_target(i), np.where(self._holds(i), *values))

    def special(self, i: Instruction) -> None:
        if i.fields["register"] not in self.place.special:
            raise Fault(f"special register {i.fields['register']}, which no kernel has had")
        self.registers.write(_target(i), self.place.special[i.fields["register"]])

    def _holds(self, i: Instruction) -> Lanes:
        """Whether the condition on the first two sources does, by lane."""
        a, b = i.sources[:2]
        if i.name[0] == "f" or i.name.endswith("fcmp"):
            holds = arithmetic.compare_reals(i.fields["condition"], self.registers.reals(a), self.registers.reals(b))
        else:
            values = [self.registers.integers(x) for x in (a, b)]
            if i.fields["condition"] & 4:
                values = [arithmetic.extended(v, x.bits, True) for v, x in zip(values, (a, b), strict=True)]
            holds = arithmetic.compare(i.fields["condition"], *values)
        return ~holds if i.fields.get("invert") else holds

    # ---- control flow
    def branch(self, i: Instruction) -> None:
        """r0l counts, by lane, what has to end before it runs again."""
        r, launched, nest = self.registers, self.place.launched, i.fields["nest"]
        count = r.integers(_EXECUTION, launched)
        kind = i.name.split("_")[0]
        if kind == "pop":
            count = np.maximum(count - nest, 0)
        else:
            holds = self._holds(i)
            inner = np.where(holds, 0, nest if kind == "while" else 1)
            if kind == "if":
                count = np.where(count != 0, count + nest, inner)
            elif kind == "else":
                count = np.where(count == 0, nest, np.where(count == 1, inner, count))
            else:
                count = np.where(count < nest, inner, count)
        r.write(_EXECUTION, count, launched)
        r.on = (count == 0) & launched

    def jump(self, i: Instruction) -> None:
        if self.registers.on.any() == (i.name == "jmp_exec_any"):
            self.at = i.at + ((i.fields["offset"] ^ 1 << 31) - (1 << 31))

    def stop(self, i: Instruction) -> None:
        self.at = None

    def barrier(self, i: Instruction) -> None:
        """Of all threads, or, where code is passed that no thread runs, of none."""
        on = self.registers.on
        if on.any() and (on != self.place.launched).any():
            raise Fault("not all threads of the simdgroup are at the barrier")

    def nothing(self, i: Instruction) -> None:
        """Memory is written at once here."""

    def wait(self, i: Instruction) -> None:
        self.registers.wait(i.fields["slot"])

    # ---- lanes of a simdgroup
    def reduce(self, i: Instruction) -> None:
        """Over lanes that are on; of simd_prefix, over those below."""
        source = i.sources[0]
        on, operation = self.registers.on, i.fields["operation"]
        values = self.registers.integers(source) + _ALL
        fold = arithmetic.prefix if i.name == "simd_prefix" else arithmetic.reduce
        self.registers.write(_target(i), fold(operation, values, on, source.bits))

    def ballot(self, i: Instruction) -> None:
        holds = self._holds(i) & self.registers.on
        self.registers.write(_target(i), np.array([int(sum(1 << lane for lane in np.flatnonzero(holds)))]))

    def shuffle(self, i: Instruction) -> None:
        """A quad gives the value of one of its lanes, whichever lanes ask: lane bits of all four are or-ed."""
        source, index = i.sources
        on = self.registers.on
        index_of = self.registers.integers(index, self.place.launched) + _ALL
        of_quad = np.bitwise_or.reduce((index_of & 3).reshape(-1, 4), axis=1)
        quad = index_of >> 2 & 7
        lane = quad * 4 + of_quad[quad]
        asked = np.isin(np.arange(LANES), lane[on & (index_of < LANES)])
        if (asked & ~on).any():
            raise Fault("a shuffle from a lane that isn't running")
        if (lane != index_of)[on & (index_of < LANES)].any():
            raise Fault("a shuffle whose lanes of a quad ask for different lanes of a quad")
        values = self.registers.integers(source, asked) + _ALL
        self.registers.write(_target(i), values[lane], on & (index_of < LANES))

    # ---- memory
    def device(self, i: Instruction) -> None:
        self._transfer(i, self.place.device, self._device_addresses(i, _size(i)))

    def local(self, i: Instruction) -> None:
        self._transfer(i, self.place.threadgroup, self._local_addresses(i))

    def private(self, i: Instruction) -> None:
        offsets = self._index(i) + _ALL
        if ((offsets < 0) | (offsets >= self._stack_size))[self.registers.on].any():
            raise Fault("an address that isn't on the stack")
        self._transfer(i, self.stack, np.arange(LANES) * self._stack_size + offsets)

    def grow_stack(self, i: Instruction) -> None:
        self._stack_size = 4 * i.fields["size"]
        self.stack.reserve(LANES * self._stack_size)

    def store_uniform(self, i: Instruction) -> None:
        """Only a preamble does, whose one thread runs before all others; unless it has turned elsewhere."""
        if not self.registers.on.any():
            return
        lane = np.flatnonzero(self.registers.on)[0]
        first = int((self._index(i) + _ALL)[lane])
        if not 0 <= first <= UNIFORMS - 4:
            raise Fault(f"uniform {first}")
        for half in range(i.fields["mask"].bit_count()):
            value = self.registers.integers(Operand("register", i.fields["register"] + half))
            self.place.uniforms.half(first + half)[:] = value[lane]

    def atomic(self, i: Instruction) -> None:
        """Lane by lane, from the first."""
        f = i.fields
        memory = self.place.device if i.name == "atomic" else self.place.threadgroup
        addresses = self._device_addresses(i, 4) if i.name == "atomic" else self._local_addresses(i)
        values, found = self.registers.integers(Operand("register", f["source"], 32)), np.zeros(LANES, np.int64)
        for lane in np.flatnonzero(self.registers.on):
            at, given = (addresses + _ALL)[lane : lane + 1], values[lane : lane + 1]
            found[lane : lane + 1] = before = memory.load(at, 4)
            memory.store(at, 4, arithmetic.ATOMICS[f["operation"]](before, given))
        if f["returns"]:
            self.registers.write(Operand("register", f["register"], 32), found)
            if i.name == "atomic":
                self.registers.issue_load(f["register"], 2, f["slot"])

    def _index(self, i: Instruction) -> Integers:
        f = i.fields
        if f["immediate"]:
            return np.array([f["index"] if f.get("unsigned") else (f["index"] ^ 1 << 15) - (1 << 15)])
        return self.registers.integers(Operand("register", f["index"], 32, signed=not f.get("unsigned", 1)))

    def _device_addresses(self, i: Instruction, size: int) -> Integers:
        f = i.fields
        base = self.registers.integers(Operand("uniform" if f["uniform"] else "register", f["base"], 64))
        return base + (self._index(i) << f.get("shift", 0)) * size

    def _local_addresses(self, i: Instruction) -> Integers:
        f = i.fields
        kind, index = {0: ("register", f["base"]), 2: ("immediate", f["base"])}.get(
            f["of"], ("uniform", f["base"] | (f["of"] >> 1) << 8)
        )
        offset = Operand("immediate" if f["immediate"] else "register", f["index"])
        return self.registers.integers(Operand(kind, index)) + self.registers.integers(offset) & 0xFFFF

    def _transfer(self, i: Instruction, memory: Memory, addresses: Integers) -> None:
        """Elements of `mask` in memory, one after the other in registers."""
        f, on, r = i.fields, self.registers.on, self.registers
        size, bits = _size(i), 32 if f["wide"] else 16
        if 8 * size > bits:
            raise Fault("a number that its register has no room for")
        if not on.any():
            return
        addresses = (addresses + _ALL)[on]
        used = [n for n in range(4) if f["mask"] >> n & 1]
        for place, n in enumerate(used):
            operand = Operand("register", f["register"] + place * bits // 16, bits)
            if i.name.endswith("store"):
                memory.store(addresses + n * size, size, (r.integers(operand) + _ALL)[on])
            else:
                value = np.zeros(LANES, np.int64)
                value[on] = memory.load(addresses + n * size, size)
                r.write(operand, value)
        if i.name.endswith("load") and "slot" in f:
            r.issue_load(f["register"], len(used) * bits // 16, f["slot"])


def _size(i: Instruction) -> int:
    """Bytes of an element in memory."""
    if i.fields["format"] > 2:  # of other formats numbers are converted
        raise Fault(f"format {i.fields['format']}, which no kernel has had")
    return 1 << i.fields["format"]


def _target(i: Instruction) -> Operand:
    assert i.target
    return i.target


_DO: dict[str, Callable[[Simdgroup, Instruction], None]] = {
    **dict.fromkeys(arithmetic.INTEGERS, Simdgroup.integers),
    **dict.fromkeys(arithmetic.REALS, Simdgroup.reals),
    **dict.fromkeys(("icmpsel", "fcmpsel"), Simdgroup.select),
    **dict.fromkeys(("icmp_ballot", "fcmp_ballot"), Simdgroup.ballot),
    **{f"{kind}_{t}cmp": Simdgroup.branch for kind in ("if", "else", "while") for t in "if"},
    "pop_exec": Simdgroup.branch,
    **dict.fromkeys(("jmp_exec_any", "jmp_exec_none"), Simdgroup.jump),
    **dict.fromkeys(("simd_reduce", "simd_prefix"), Simdgroup.reduce),
    **dict.fromkeys(("device_load", "device_store"), Simdgroup.device),
    **dict.fromkeys(("local_load", "local_store"), Simdgroup.local),
    **dict.fromkeys(("stack_load", "stack_store"), Simdgroup.private),
    **dict.fromkeys(("atomic", "local_atomic"), Simdgroup.atomic),
    "convert": Simdgroup.convert,
    "get_sr": Simdgroup.special,
    "shuffle": Simdgroup.shuffle,
    "stack_adjust": Simdgroup.grow_stack,
    "uniform_store": Simdgroup.store_uniform,
    "threadgroup_barrier": Simdgroup.barrier,
    "memory_barrier": Simdgroup.nothing,
    "wait": Simdgroup.wait,
    "stop": Simdgroup.stop,
}
