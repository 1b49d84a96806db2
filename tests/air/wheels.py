"""The public wheel whose metallib is run: pinned by hash, downloaded to build/air, never executed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

PLACE = Path(__file__).parents[2] / "build" / "air"
VERSION = "0.32.1"
WHEEL = f"mlx_metal-{VERSION}-py3-none-macosx_14_0_arm64.whl"
SHA256 = "3fbf7d3de783680e771818189bc734877c9b129ae91312338b5ede420cde44c9"
LIBRARY = "mlx/lib/mlx.metallib"
HEADERS = "mlx/include/mlx/backend/metal/kernels/"


class Unavailable(Exception):
    """Why the wheel can't be had."""


def mlx() -> tuple[Path, Path]:
    """MLX's metallib and the folder that its headers' paths begin in. Unavailable."""
    place = PLACE / f"mlx-{VERSION}"
    if not (place / "done").exists():
        wheel = _downloaded()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place, [n for n in archive.namelist() if n == LIBRARY or n.startswith(HEADERS)])
        (place / "done").touch()
        wheel.unlink()
    return place / LIBRARY, place / "mlx/include"


def there() -> bool:
    """Whether it has been downloaded."""
    return (PLACE / f"mlx-{VERSION}" / "done").exists()


def _downloaded() -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--platform", "macosx_14_0_arm64", "--python-version", "3.12"]
    result = subprocess.run([*command, "-d", str(PLACE), f"mlx-metal=={VERSION}"], capture_output=True, text=True)
    if result.returncode:
        raise Unavailable(f"mlx-metal {VERSION} can't be downloaded: {result.stderr.strip()[-300:]}")
    wheel = PLACE / WHEEL
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        wheel.unlink()
        raise Unavailable(f"{WHEEL} is not the one that is pinned: its SHA-256 is {found}")
    return wheel
