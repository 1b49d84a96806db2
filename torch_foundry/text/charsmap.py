"""Checks SentencePiece's compiled normalisation: the library that applies it trusts every offset in it.

Layout: uint32 size of the trie in bytes; the trie, a double array of uint32; the replacements, each ended by NUL. A
unit of the double array holds a label (bits 0 to 7), whether a leaf follows (bit 8), and an offset (bits 9 and 10 to
31); a leaf holds a value (bits 0 to 30): where its replacement begins.
"""

from __future__ import annotations

import numpy as np

LARGEST_TRIE = 1 << 21  # bytes; that of NFKC with case folding has a quarter of a million
LONGEST_REPLACEMENT = 64  # bytes, for a character; NFKC's longest has 33


def check_charsmap(data: bytes) -> tuple[str, str] | None:
    """(expected, found) of the first fault; None if everything that a text can reach is sound."""
    size = int.from_bytes(data[:4], "little")
    limit = min(max(len(data) - 4, 0), LARGEST_TRIE)
    if size == 0 or size % 1024 or size > limit:
        return f"a trie of whole blocks of 1024 bytes, at most {limit}", f"{size}"
    units = np.frombuffer(data, "<u4", size // 4, 4)
    text = data[4 + size :]
    if text and text[-1]:
        return "replacements that end with NUL", f"{text[-1]:#04x}"
    try:
        text.decode()
    except UnicodeDecodeError as problem:
        return "replacements in UTF-8", f"{problem.reason} at {problem.start}"
    if (longest := max(map(len, text.split(b"\0")))) > LONGEST_REPLACEMENT:
        return f"replacements of at most {LONGEST_REPLACEMENT} bytes", f"one of {longest}"
    return _check_trie(units, np.frombuffer(text, np.uint8))


def _check_trie(units: np.ndarray, text: np.ndarray) -> tuple[str, str] | None:
    seen = np.zeros(len(units), dtype=bool)
    waiting = [_offsets(units[:1])]  # bases of nodes whose children are yet to be visited
    labels = np.arange(1, 256)
    while waiting:
        bases = waiting.pop()
        if (bases.max() | 255) >= len(units):
            return f"offsets below {len(units)}", f"{bases.max()}"
        children = bases[:, None] ^ labels  # [nodes, 255]
        found = children[(units[children] & 0x800000FF) == labels]
        found = np.unique(found[~seen[found]])
        seen[found] = True
        bases = found ^ _offsets(units[found])
        leaves = bases[(units[found] >> 8) & 1 == 1]
        if len(leaves) and leaves.max() >= len(units):
            return f"offsets below {len(units)}", f"{leaves.max()}"
        values = (units[leaves] & 0x7FFFFFFF).astype(np.int64)
        if len(values) and values.max() >= len(text):
            return f"replacements within {len(text)} bytes", f"{values.max()}"
        if len(values) and ((text[values] & 0xC0) == 0x80).any():
            return "replacements that begin with a character", "the middle of one"
        waiting += [bases[i : i + 1024] for i in range(0, len(bases), 1024)]
    return None


def _offsets(units: np.ndarray) -> np.ndarray:
    units = units.astype(np.int64)
    return (units >> 10) << ((units & (1 << 9)) >> 6)
