"""The reader of metallibs, on files made here."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.air import container, wheels
from tests.air.metallib import WRAPPED, MetalLib, MetalLibError

BITCODE = struct.pack("<I", 0xDEC04342) + b"text of a module"


def test_functions_are_found_by_name(tmp_path: Path) -> None:
    wrapped = struct.pack("<5I", WRAPPED, 0, 20, len(BITCODE), 7) + BITCODE + b"padding"
    lib = MetalLib(container.write(tmp_path / "a.metallib", {"first": BITCODE, "second": wrapped}, (2, 8)))
    assert list(lib.functions) == ["first", "second"]
    assert lib.functions["first"].air_version == (2, 8)
    assert lib.bitcode("first") == lib.bitcode("second") == BITCODE
    with pytest.raises(KeyError):
        lib.bitcode("third")


def test_what_is_no_metallib_is_said(tmp_path: Path) -> None:
    for data, said in (
        (b"MTLB", "too short"),
        (b"ZIP!" + bytes(200), "not a metallib: it begins with b'ZIP!'"),
        (b"MTLB" + bytes(20) + struct.pack("<8Q", 1 << 40, *[0] * 7), "a damaged metallib"),
    ):
        path = tmp_path / "b.metallib"
        path.write_bytes(data)
        with pytest.raises(MetalLibError, match=said):
            MetalLib(path)


def test_a_damaged_list_and_other_bitcode_are_said(tmp_path: Path) -> None:
    whole = container.write(tmp_path / "a.metallib", {"first": BITCODE, "second": b"none of it, by far"})
    data = whole.read_bytes()
    cut = tmp_path / "cut.metallib"
    cut.write_bytes(data[:120])
    with pytest.raises(MetalLibError, match="damaged"):
        MetalLib(cut)
    with pytest.raises(MetalLibError, match="second is no LLVM bitcode: it begins with 0x656e6f6e"):
        MetalLib(whole).bitcode("second")


def test_a_section_of_a_library_is_found() -> None:
    """Mach-O: a header of 32 bytes, commands, among them segments of 72 bytes and sections of 80."""
    other = struct.pack("<2I8x", 0x1B, 16)
    sections = b"".join(
        struct.pack("<16s16s2QI28x", name, b"__TEXT", 0, len(data), at)
        for name, data, at in ((b"__text", b"code", 280), (b"metal_basic", b"MTLB!", 284))
    )
    segment = struct.pack("<2I56xI4x", 0x19, 72 + len(sections), 2) + sections
    library = struct.pack("<8I", 0xFEEDFACF, 0, 0, 6, 2, 0, 0, 0) + other + segment + b"codeMTLB!"
    assert wheels.section(library, "metal_basic") == b"MTLB!"
    with pytest.raises(KeyError, match="metal_31"):
        wheels.section(library, "metal_31")
