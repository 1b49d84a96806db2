"""Faults put into AIR's text, which a comparison has to notice: what a run is worth."""

from __future__ import annotations

import re
from collections.abc import Callable


def _without_barriers(text: str) -> str:
    return re.sub(r"^.*call void @air\.wg\.barrier\(.*\n", "", text, flags=re.M)


def _swapped(first: str, second: str) -> Callable[[str], str]:
    """One function's calls become the other's, which may be there already."""

    def mutate(text: str) -> str:
        lines = re.sub(rf"@air\.{first}\.", f"@air.{second}.", text).splitlines(keepends=True)
        declared = [line.partition("(")[0] if line.startswith("declare ") else "" for line in lines]
        return "".join(line for i, line in enumerate(lines) if not declared[i] or declared[i] not in declared[:i])

    return mutate


def _rounding_lost(text: str) -> str:
    """bfloat16 is cut off, not rounded."""
    cut = (
        r"\1.u = bitcast float \2 to i32\n  \1.s = lshr i32 \1.u, 16\n  \1.t = trunc i32 \1.s to i16\n"
        r"  \1 = bitcast i16 \1.t to bfloat"
    )
    return re.sub(r"(%[\w.]+) = fptrunc float (\S+) to bfloat", lambda found: found.expand(cut).replace(
        f"{found[1]}.", f"%cut{found[1][1:]}."), text)  # fmt: skip


def _next_element(text: str) -> str:
    """Constants of 4 elements a thread become 3."""
    return re.sub(r"(shl nuw nsw|shl nsw|shl) i32 (%\d+), 2\b", r"mul i32 \2, 3", text)


def _masks_cut(text: str) -> str:
    """A mask loses its lowest bit."""
    return re.sub(r"(and i\d+ %\d+, )(\d+)\b", lambda m: f"{m[1]}{int(m[2]) & int(m[2]) - 1}", text)


def _endless(text: str) -> str:
    return re.sub(r"^  ret void\n", "  br label %endless\n\nendless:\n  br label %endless\n", text, count=1, flags=re.M)


def _right_operand_turned(text: str) -> str:
    """A product's second matrix is taken for its transpose."""
    flags = r"(matmul2d_descriptor\" \{ i32 \d+, i32 \d+, i32 \d+, i8 [01], i8 )([01])"
    return re.sub(flags, lambda found: found[1] + str(1 - int(found[2])), text)


ALL: dict[str, Callable[[str], str]] = {
    "no barriers": _without_barriers,
    "max for sum": _swapped("simd_sum", "simd_max"),
    "min for max": _swapped("simd_max", "simd_min"),
    "inclusive for exclusive": _swapped("simd_prefix_exclusive_sum", "simd_prefix_inclusive_sum"),
    "lane for lane xor": _swapped("simd_shuffle_xor", "simd_shuffle"),
    "max for min": _swapped("min", "max"),
    "e for 2": _swapped("fast_exp2", "fast_exp"),
    "cos for sin": _swapped("sin", "cos"),
    "down for up": _swapped("simd_shuffle_and_fill_up", "simd_shuffle_and_fill_down"),
    "cut for rounded": _rounding_lost,
    "3 for 4": _next_element,
    "masks cut": _masks_cut,
    "right turned": _right_operand_turned,
    "crash": lambda text: re.sub(r"^  ret void\n", "  store volatile i32 1, ptr null\n  ret void\n", text, flags=re.M),
    "endless": _endless,
}
