"""Loading a GGUF file from the page cache: time compared with reading it once, and memory beyond its weights.

python -m benchmarks.bench_load --formats q4_k,q8_0,f16 --gigabytes 1

After every load the weights are compared with the file, byte by byte. Each row runs in a process of its own and reports
the minimum of --rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import torch_foundry
from benchmarks import load_file
from benchmarks.harness import machine
from torch_foundry import quant
from torch_foundry.io import open_gguf

ROW = """
import json, sys
from benchmarks.bench_load import measured
print(json.dumps(measured(*json.loads(sys.argv[1]))))
"""
HEAD = "| format | file | way | read once | load | load / read | the same, CPU time | held | peak beyond it |"
WAYS = [("read", False, False), ("mmap", True, False), ("Metal I/O", False, True)]  # a name, mmap, by Metal


def measured(file: str, fmt: str, mmap: bool, device: str, rounds: int) -> dict[str, Any]:
    """Least seconds of reading and of loading; bytes that the model holds, and that loading took beyond these (-1 where
    the system doesn't say); whether the weights are the file's."""
    path, dtype = Path(file), quant.get_format(fmt).dtype
    dtype = torch.float16 if dtype == torch.uint8 else dtype

    def load(path: Path) -> Any:
        options: dict[str, Any] = {"mmap": mmap, "progress": False, "allow": ("VOCAB_MISSING",)}
        return torch_foundry.load(path, device=device, dtype=dtype, **options)[0]

    small = path.with_name("small.gguf")
    load_file.write(small, 0, fmt)
    load(small)  # imports
    reads = [_timed(lambda: load_file.read_once(path))[1:] for _ in range(rounds)]
    times: list[tuple[float, float]] = []
    model: Any = None
    for _ in range(rounds):
        model = None
        before = forget_peak()
        model, *taken = _timed(lambda: load(path))
        times.append((taken[0], taken[1]))
    held = sum(t.nbytes for t in {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}.values())
    pages = 0 if mmap else held  # of a mapped file, pages that were touched count
    extra = status("VmHWM") - before - pages if before else -1
    (read, read_cpu), (least, cpu) = (map(min, zip(*each, strict=True)) for each in (reads, times))
    found = {"read": read, "load": least, "cpu": cpu / read_cpu, "held": held, "extra": extra}
    return found | {"right": _right(path, model)}


def _timed(what: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result of a call, its seconds, and the seconds of CPU time that it took, which say more on a busy machine."""
    start, cpu = time.perf_counter(), time.process_time()
    result = what()
    return result, time.perf_counter() - start, time.process_time() - cpu


def status(name: str) -> int:
    """Bytes that Linux counts for this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> int:
    """Give free memory back and let VmHWM begin anew; resident bytes now, 0 where there is no such thing."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        return status("VmRSS")
    except (OSError, AttributeError):
        return 0


def _right(path: Path, model: Any) -> bool:
    state = model.state_dict()
    with open_gguf(path) as container:
        names = {
            f"blk.{i}.ffn_down.weight": f"model.layers.{i}.mlp.down_proj.weight" for i in range(len(model.model.layers))
        }
        return all(torch.equal(container.read(theirs), state[ours].cpu()) for theirs, ours in names.items())


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="bench_load", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--formats", default="q4_k,q8_0,f16")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the file; default 1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)
    print(machine.look(torch.device(args.device), quick=False, commit=None))
    print(f"{HEAD}\n{'|---' * HEAD.count(' | ')}|---|")
    on_metal = torch.device(args.device).type == "mps" and hasattr(torch.ops.torch_foundry, "_metal_read")
    wrong = 0
    for fmt in args.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            size = load_file.write(path, int(args.gigabytes * 1e9), fmt)
            for way, mmap, by_metal in WAYS[: 3 if on_metal else 2]:
                job = json.dumps([str(path), fmt, mmap, args.device, args.rounds])
                environment = {**os.environ, "TORCH_FOUNDRY_METAL_IO": str(int(by_metal))}
                command = [sys.executable, "-c", ROW, job]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                row = json.loads(done.stdout)
                wrong += not row["right"]
                print(
                    f"| {fmt} | {size / 1e6:.0f} MB | {way} | {row['read']:.3f} s "
                    f"| {row['load']:.3f} s | {row['load'] / row['read']:.2f} | {row['cpu']:.2f} "
                    f"| {row['held'] / 1e6:.0f} MB | {row['extra'] / 1e6:.0f} MB |"
                    + ("" if row["right"] else " WRONG"),
                    flush=True,
                )
    if not on_metal:
        print(
            "Metal I/O (TORCH_FOUNDRY_METAL_IO=1, MTLIOCommandQueue) was not measured: it needs a Mac and --device mps"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
