"""The public wheels whose metallibs are run: pinned by hash, downloaded to build/air, never executed."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

PLACE = Path(__file__).parents[2] / "build" / "air"
SEGMENT = 0x19  # LC_SEGMENT_64


class Unavailable(Exception):
    """Why a wheel can't be had."""


class Wheel(NamedTuple):
    """A wheel: what to download, and what is taken from it."""

    package: str
    version: str
    file: str
    sha256: str
    library: str  # the metallib, or the Mach-O file that has it
    section: str  # of that file; "" if it is a metallib
    include: str  # the folder that the headers' paths begin in
    headers: tuple[str, ...]  # folders in it
    macos: str = "14_0"  # that it is for

    @property
    def place(self) -> Path:
        return PLACE / f"{self.package}-{self.version}"

    def there(self) -> bool:
        """Whether it has been downloaded."""
        return (self.place / "done").exists()

    def get(self) -> tuple[Path, Path]:
        """The metallib, and the folder that the headers' paths begin in. Unavailable."""
        metallib = self.place / "kernels.metallib"
        if not self.there():
            wheel = self._downloaded()
            with zipfile.ZipFile(wheel) as archive:
                folders = tuple(self.include + folder for folder in self.headers)
                archive.extractall(self.place, [n for n in archive.namelist() if n.startswith(folders)])
                library = archive.read(self.library)
            self.place.mkdir(exist_ok=True)
            metallib.write_bytes(section(library, self.section) if self.section else library)
            (self.place / "done").touch()
            wheel.unlink()
        return metallib, self.place / self.include

    def _downloaded(self) -> Path:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--platform", f"macosx_{self.macos}_arm64", "--python-version", "3.12"]
        wanted = f"{self.package}=={self.version}"
        result = subprocess.run([*command, "-d", str(PLACE), wanted], capture_output=True, text=True)
        if result.returncode:
            raise Unavailable(f"{wanted} can't be downloaded: {result.stderr.strip()[-300:]}")
        wheel = PLACE / self.file
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != self.sha256:
            wheel.unlink()
            raise Unavailable(f"{self.file} is not the one that is pinned: its SHA-256 is {found}")
        return wheel


MLX = Wheel(
    "mlx-metal", "0.32.1", "mlx_metal-0.32.1-py3-none-macosx_14_0_arm64.whl",
    "3fbf7d3de783680e771818189bc734877c9b129ae91312338b5ede420cde44c9", "mlx/lib/mlx.metallib", "",
    "mlx/include/", ("mlx/backend/metal/kernels/",),
)  # fmt: skip
M5 = Wheel(  # whose kernels for matrix units are for macOS 26 alone
    "mlx-metal", "0.32.4", "mlx_metal-0.32.4-py3-none-macosx_26_0_arm64.whl",
    "514df92d41a286895d2564b4b18f4da45096bd7a4a0c47e1042f345ad5a7f936", "mlx/lib/mlx.metallib", "",
    "mlx/include/", (), "26_0",
)  # fmt: skip
TORCH = Wheel(
    "torch", "2.13.0", "torch-2.13.0-cp312-cp312-macosx_14_0_arm64.whl",
    "2fe228aba290d14b9f31b049be550dbd469c3fd3013d7a19705b30454da97027", "torch/lib/libtorch_cpu.dylib", "metal_basic",
    "torch/include/", ("c10/metal/", "ATen/native/mps/kernels/"),
)  # fmt: skip


def section(library: bytes, name: str) -> bytes:
    """A section of a Mach-O file. KeyError."""
    (commands,) = struct.unpack_from("<I", library, 16)
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", library, at)
        if command == SEGMENT:
            (count,) = struct.unpack_from("<I", library, at + 64)
            for number in range(count):
                title, _, _, length, offset = struct.unpack_from("<16s16s2QI", library, at + 72 + 80 * number)
                if title.rstrip(b"\0") == name.encode():
                    return library[offset : offset + length]
        at += size
    raise KeyError(name)
