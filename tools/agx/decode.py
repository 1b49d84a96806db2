"""Machine code of Apple's G13 (M1): the instructions that our kernels have, from bytes to operands.

The encoding is as Mesa's compiler writes it (agx_opcodes.py, agx_pack.c) and as https://github.com/dougallj/applegpu
documents it. Decoding is strict: a bit that no field of an instruction covers has to be as it is in `_OPCODES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

# Name; bits that are set; bytes, or short/long form; operands; fields as name=bit[:bits], + joins parts, low first.
# Operands: D destination (d of 16 bits, w of 32, Q up to 64); sources: S, F of floats, H of halves, I of integers with
# sign, X of a selection. @bit: where registers' upper bits begin, if that isn't the last two bytes.
_OPCODES = """
fadd      0x2a       4/6  D F F saturate=6
fmul      0x1a       4/6  D F F saturate=6
ffma      0x3a       6/8  D F F F saturate=6
hadd      0x26       4/6  d H H saturate=6
hmul      0x16       4/6  d H H saturate=6
hfma      0x36       6/8  d H H H saturate=6
floor     0x0000000a 4/6  D F saturate=6
srsqrt    0x1000000a 4/6  D F saturate=6
rcp       0x8000000a 4/6  D F saturate=6
rsqrt     0x9000000a 4/6  D F saturate=6
sin_pt_1  0xa000000a 4/6  D F saturate=6
log2      0xc000000a 4/6  D F saturate=6
exp2      0xd000000a 4/6  D F saturate=6
sin_pt_2  0xe000000a 4/6  D F saturate=6
ceil      0x10000000a 4/6 D F saturate=6
trunc     0x20000000a 4/6 D F saturate=6
roundeven 0x30000000a 4/6 D F saturate=6
bitrev    0x0400003e 6    D S
popcount  0x0800003e 6    D S
ffs       0x0c00003e 6    D S
mov_imm   0x062      4/6  d immediate=16:16
mov_imm   0x162      6/8  w immediate=16:32
get_sr    0x72       4    D register=16:6+26:2
iadd      0x0e       8    Q I I saturate=6 negate=27 shift=39+52:2 @32
imad      0x1e       8    Q I I I saturate=6 negate=27 shift=39+52:2
bfi       0x2e       8    D S S S mask=38:2+50:2+63
bfeil     0x802e     8    D S S S mask=38:2+50:2+63
extr      0x400002e  8    D S S S mask=38:2+50:2+63
asr       0x400802e  8    D S S
bitop     0x7e       6    D S S table=26:2+38:2
convert   0x803e     6    D S S round=26:2
icmpsel   0x12       8/10 D S S X X condition=61:3
fcmpsel   0x02       8/10 D F F X X condition=61:3
simd_reduce 0x2000806f 6  D S operation=28+38:3+47
simd_prefix 0x6000806f 6  D S operation=28+38:3+47
shuffle      0x000400006f 6 D S S
shuffle_xor  0x400400006f 6 D S S
shuffle_up   0x800400006f 6 D S S
shuffle_down 0xc00400006f 6 D S S
icmp_ballot 0x1000000000032 8 D S S condition=61:3 invert=47 @32
fcmp_ballot 0x1000000000022 8 D F F condition=61:3 invert=47 @32
if_icmp    0x052     6    S S invert=8 nest=11:2 condition=13:3
else_icmp  0x252     6    S S invert=8 nest=11:2 condition=13:3
while_icmp 0x452     6    S S invert=8 nest=11:2 condition=13:3
if_fcmp    0x042     6    F F invert=8 nest=11:2 condition=13:3
else_fcmp  0x242     6    F F invert=8 nest=11:2 condition=13:3
while_fcmp 0x442     6    F F invert=8 nest=11:2 condition=13:3
pop_exec   0x652     6    nest=11:2
jmp_exec_any  0xc000 6    offset=16:32
jmp_exec_none 0xc020 6    offset=16:32
stop       0x88      2
trap       0x08      2
wait       0x38      2    slot=8
threadgroup_barrier 0x68 2
memory_barrier      0xf5 2 kind=8:8
device_load  0xc00004000005 8 format=7:3+48 register=10:6+40:2 wide=49 base=16:4+36:4 uniform=27 \
  index=20:4+32:4+56:8 immediate=24 unsigned=25 shift=42:2 coherent=44:2 mask=52:4 slot=30
device_store 0xc00004000045 8 format=7:3+48 register=10:6+40:2 wide=49 base=16:4+36:4 uniform=27 \
  index=20:4+32:4+56:8 immediate=24 unsigned=25 shift=42:2 coherent=44:2 mask=52:4 slot=30
uniform_store 0x80003c0000c5 8 register=10:6+40:2 index=20:4+32:4+56:8 immediate=24 mask=52:4
local_load   0x8069       8 wide=8 register=9:6+60:2 base=16:6+58:2 of=22:2 format=24:4 \
  index=28:6+48:10 immediate=34 mask=36:4
local_store  0x8029       8 wide=8 register=9:6+60:2 base=16:6+58:2 of=22:2 format=24:4 \
  index=28:6+48:10 immediate=34 mask=36:4
stack_load   0xc00004000035 8 format=8:2+50 register=10:6+40:2 wide=49 index=20:4+32:4+56:8 \
  immediate=24 mask=52:4 slot=30
stack_store  0xc000040000b5 8 format=8:2+50 register=10:6+40:2 wide=49 index=20:4+32:4+56:8 \
  immediate=24 mask=52:4 slot=30
stack_adjust 0x8020050100b5 8 size=20:4+32:4+56:8
atomic       0x500084000015 8 operation=6:4 register=10:6+40:2 base=16:4+36:4 uniform=27 index=20:4+32:4+56:8 \
  immediate=24 unsigned=25 returns=47 source=48:8 slot=30
local_atomic 0x801000008019 10 wide=8 register=9:6+60:2 base=16:6+58:2 of=22:2 operation=24:4 index=28:6+48:10 \
  immediate=34 returns=38 source=64:8
"""
Parts = tuple[tuple[int, int], ...]  # bit, bits


class DecodeError(Exception):
    """Bytes that are no instruction which we know."""


@dataclass(frozen=True)
class Operand:
    """What an instruction reads or writes. `index`: the first register or uniform, in halves; an immediate's value."""

    kind: str  # register, uniform, immediate
    index: int
    bits: int = 16
    discard: bool = False  # nothing reads the register's value after this
    signed: bool = False  # widened by its sign
    absolute: bool = False
    negate: bool = False


@dataclass(frozen=True)
class Instruction:
    """One, at byte `at` of the code."""

    name: str
    at: int
    length: int
    target: Operand | None
    sources: tuple[Operand, ...]
    fields: dict[str, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.at + self.length


@dataclass(frozen=True)
class _Opcode:
    name: str
    exact: int
    short: int  # bytes
    long: int
    operands: str  # a letter each
    extension: int  # the bit where registers' upper bits begin
    fields: dict[str, Parts]

    def operand_parts(self) -> list[dict[str, Parts]]:
        """The bits of each operand."""
        found: list[dict[str, Parts]] = []
        for letter in self.operands:
            if letter in "DdwQ":
                found.append({"cache": ((7, 1),), "index": ((9, 6), (self.extension + 12, 2))})
                if letter in "DQ":
                    found[-1]["wide"] = ((8, 1),)
                continue
            slot = len(found) - (self.operands[0] in "DdwQ")
            at = 16 + 12 * slot
            flags = 3 if letter in "HX" else 4
            found.append({"index": ((at, 6), (self.extension + 10 - 2 * slot, 2)), "flags": ((at + 6, flags),)})
            if letter in "FH":
                found[-1]["sign"] = ((at + 6 + flags, 2),)
            elif letter == "I":
                found[-1]["sign"] = ((at + 10, 1),)
        return found

    @property
    def fixed(self) -> int:
        """The bits that have to be as in `exact`."""
        fields = [parts for each in (self.fields, *self.operand_parts()) for parts in each.values()]
        free = sum(((1 << bits) - 1) << at for parts in fields for at, bits in parts)
        return ~(free | (self.short != self.long) << 15) & ((1 << 8 * self.long) - 1)


@cache
def decode(code: bytes, start: int = 0) -> tuple[Instruction, ...]:
    """The instructions from `start` up to the first trap. Raises DecodeError."""
    found: list[Instruction] = []
    while start < len(code):
        instruction = _instruction(code, start)
        if instruction.name == "trap":
            return tuple(found)
        found.append(instruction)
        start = instruction.end
    raise DecodeError(f"code ends at {start:#x} without a trap")


def _instruction(code: bytes, at: int) -> Instruction:
    raw = int.from_bytes(code[at : at + 10], "little")
    for opcode, fixed, parts in _opcodes():
        length = opcode.long if raw >> 15 & 1 or opcode.short == opcode.long else opcode.short
        bits = raw & ((1 << 8 * length) - 1)  # what a short form leaves out is zero
        if bits & fixed == opcode.exact and at + length <= len(code):
            values = [{name: _value(bits, found) for name, found in each.items()} for each in parts]
            operands = [_operand(letter, value, at) for letter, value in zip(opcode.operands, values, strict=True)]
            if operands and opcode.operands[-1] == "X":
                operands = [*operands[:3], *(_selected(operands[0], value) for value in values[3:])]
            fields = {name: _value(bits, found) for name, found in opcode.fields.items()}
            target = operands.pop(0) if opcode.operands[:1] in tuple("DdwQ") else None
            return Instruction(opcode.name, at, length, target, tuple(operands), fields)
    raise DecodeError(f"unknown instruction at {at:#x}: {code[at : at + 10].hex(' ')}")


def _value(raw: int, parts: Parts) -> int:
    value = shift = 0
    for at, bits in parts:
        value |= (raw >> at & ((1 << bits) - 1)) << shift
        shift += bits
    return value


def _operand(letter: str, value: dict[str, int], at: int) -> Operand:
    index = value["index"]
    if letter in "DdwQ":
        wide = value.get("wide", letter == "w")
        if letter == "Q" and wide and index & 1:
            return Operand("register", index - 1, 64)
        return Operand("register", index, 32 if wide else 16)
    flags, sign = value["flags"], value.get("sign", 0)
    signs = {"signed": bool(sign)} if letter == "I" else {"absolute": bool(sign & 1), "negate": bool(sign & 2)}
    if flags == 0:
        return Operand("immediate", index, **signs)
    if flags >> 2 == 1:
        return Operand("uniform", index | (flags & 1) << 8, 32 if flags & 2 else 16, **signs)
    sizes = {0: 16, 2: 32, 3: 64}
    if letter != "X" and (not flags & 3 or (flags >> 2 == 3 and letter != "I")):
        raise DecodeError(f"operand of unknown kind {flags:#x} at {at:#x}")
    return Operand("register", index, sizes.get(flags >> 2, 16), discard=flags & 3 == 3, **signs)


def _selected(destination: Operand, value: dict[str, int]) -> Operand:
    """A value that is chosen: as large as the destination."""
    index, flags = value["index"], value["flags"]
    if flags == 4:
        return Operand("immediate", index)
    if flags >> 1 == 3:
        return Operand("uniform", index | (flags & 1) << 8, destination.bits)
    return Operand("register", index, destination.bits, discard=flags == 3)


@cache
def _opcodes() -> list[tuple[_Opcode, int, list[dict[str, Parts]]]]:
    found: list[tuple[_Opcode, int, list[dict[str, Parts]]]] = []
    for line in _OPCODES.strip().splitlines():
        name, exact, lengths, *words = line.split()
        short, long = (int(n) for n in (lengths if "/" in lengths else f"{lengths}/{lengths}").split("/"))
        fields = {
            word.split("=")[0]: tuple((int(at), int(bits or 1)) for at, bits in re.findall(r"(\d+):?(\d*)", word))
            for word in words
            if "=" in word
        }
        extension = next((int(word[1:]) for word in words if word[0] == "@"), 8 * long - 16)
        operands = "".join(word for word in words if "=" not in word and word[0] != "@")
        opcode = _Opcode(name, int(exact, 16), short, long, operands, extension, fields)
        found.append((opcode, opcode.fixed, opcode.operand_parts()))
    return found
