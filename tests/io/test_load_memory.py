"""What loading takes beyond the weights themselves: at most a twentieth of the file and its largest tensor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.load_file import HIDDEN, INNER, write
from torch_foundry import quant

SIZE = 140_000_000
CASES = [("q8_0", "f16", False), ("f16", "bf16", False), ("q8_0", "f16", True)]
CODE = """
import json, sys
import torch_foundry
from benchmarks.bench_load import forget_peak, status
from torch_foundry import quant
files, small, cases = json.loads(sys.argv[1])
for warm in (True, False):
    for fmt, dtype, mmap in cases:
        model = None
        before = forget_peak()
        options = dict(device="cpu", dtype=quant.get_format(dtype).dtype, mmap=mmap, progress=False)
        model, _ = torch_foundry.load(small if warm else files[fmt], allow=("VOCAB_MISSING",), **options)
        held = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        if not warm:
            print(json.dumps([status("VmHWM") - before, held]))
"""


@pytest.mark.tier("files")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux counts a peak that can be reset")
def test_peak_of_loading(tmp_path: Path) -> None:
    files = {fmt: str(tmp_path / f"{fmt}.gguf") for fmt in ("q8_0", "f16")}
    sizes = {fmt: write(Path(path), SIZE, fmt) for fmt, path in files.items()}
    write(tmp_path / "small.gguf", 0, "q8_0")
    job = json.dumps([files, str(tmp_path / "small.gguf"), CASES])
    done = subprocess.run([sys.executable, "-c", CODE, job], stdout=subprocess.PIPE, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()[-len(CASES) :]]
    for (fmt, _, mmap), (taken, held) in zip(CASES, rows, strict=True):
        known, size = quant.get_format(fmt), sizes[fmt]
        largest = known.row_size(HIDDEN) * known.dtype.itemsize * INNER
        in_cache = size if mmap else 0  # of a mapped file's pages none is this process's own, but all count
        assert held >= 0.9 * size
        assert taken - (0 if mmap else held) - in_cache <= 0.05 * size + largest
        assert mmap or taken >= 0.9 * held  # the measure works
