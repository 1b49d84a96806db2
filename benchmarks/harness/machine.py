"""What every record says of the machine, and its bandwidth, which is measured before anything else."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_foundry.core import devices, runtime
from torch_foundry.diagnostics.doctor import machine as facts
from torch_foundry.diagnostics.doctor import measure

ROOT = Path(__file__).parents[2]
STREAM = 1 << 30  # bytes that are read and copied: many times any cache
L2_FACTOR = 2  # buffers in turn take this many times the last cache


@dataclass(frozen=True)
class Machine:
    """A device as it was found. Bandwidths in GB/s; copy counts bytes read and bytes written."""

    device: str
    device_name: str
    executor: str
    torch: str
    transformers: str
    system: str
    commit: str
    read_gb_s: float
    copy_gb_s: float

    def percent(self, gb_s: float | None) -> float | None:
        """Of the read bandwidth, as what models do is read weights."""
        return None if gb_s is None else round(100 * gb_s / self.read_gb_s, 1)

    def __str__(self) -> str:
        bandwidth = f"read {self.read_gb_s} GB/s, copy {self.copy_gb_s} GB/s"
        return f"{self.device_name}, torch {self.torch}, transformers {self.transformers}, {self.commit}: {bandwidth}"

    def as_dict(self) -> dict[str, Any]:
        """For a record."""
        return dataclasses.asdict(self)


def look(device: torch.device, *, quick: bool = False, commit: str | None = None) -> Machine:
    """The machine with its measured bandwidths. `commit` is asked from git unless it is given."""
    from transformers import __version__ as transformers

    scale = measure.Scale.of(device, devices.of(device).emulated and quick, quick)
    row = measure.bandwidth(device, scale)
    x = torch.ones((16 << 20) if quick else STREAM // 4, device=device)
    read = x.nbytes / measure.seconds(device, lambda: x.sum(), round_s=0.05) / 1e9
    copy = 2 * x.nbytes / measure.seconds(device, lambda: x.clone(), round_s=0.05) / 1e9
    if not devices.of(
        device
    ).emulated:  # the higher of torch's and of our kernels'; a CPU that plays a GPU has none of ours
        read, copy = max(read, row["read_gb_s"]), max(copy, row["copy_gb_s"], row["torch_copy_gb_s"])
    known = facts.machine()
    return Machine(
        device=device.type,
        device_name=str(devices.of(device).describe(device).get("gpu") or known["chip"] or known["machine"]),
        executor=runtime.executor(device),
        torch=torch.__version__,
        transformers=transformers,
        system=f"{known['system']} {known['machine']}",
        commit=commit or _commit(),
        read_gb_s=round(read, 1),
        copy_gb_s=round(copy, 1),
    )


def cache_bytes(device: torch.device, quick: bool = False) -> int:
    """Bytes of buffers to go through in turn so that each comes from memory; 0 where it makes no difference."""
    if quick:
        return 0
    if device.type == "cuda":
        return max(128 << 20, L2_FACTOR * _l2_bytes(device))
    return 128 << 20 if device.type == "mps" else 64 << 20


def _l2_bytes(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


@functools.cache
def _commit() -> str:
    """Short hash of the checkout, `+` if files differ from it; "unknown" outside of git."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
