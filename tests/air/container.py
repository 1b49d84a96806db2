"""Writes a metallib: the container that metallib.py reads, around bitcode of one's own."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from tests.air.metallib import HEADER


def write(path: Path, functions: Mapping[str, bytes], version: tuple[int, int] = (2, 6)) -> Path:
    """A metallib with the functions' modules."""
    listed, code = struct.pack("<I", len(functions)), b""
    for name, bitcode in functions.items():
        tags = {
            b"NAME": name.encode() + b"\0",
            b"MDSZ": struct.pack("<Q", len(bitcode)),
            b"OFFT": struct.pack("<3Q", 0, 0, len(code)),
            b"VERS": struct.pack("<4H", *version, 3, 1),
        }
        entry = b"".join(tag + struct.pack("<H", len(data)) + data for tag, data in tags.items()) + b"ENDT"
        listed += struct.pack("<I", 4 + len(entry)) + entry
        code += bitcode
    start = HEADER.size
    sections = (start, len(listed), 0, 0, 0, 0, start + len(listed), len(code))
    path.write_bytes(HEADER.pack(b"MTLB", *sections) + listed + code)
    return path
