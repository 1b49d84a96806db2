"""What loading takes beyond the weights themselves: at most a twentieth of the file and its largest tensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.load_file import HIDDEN, INNER, write
from tests.io import words
from torch_foundry import quant

SIZE = 140_000_000
# What is freed is the system's at once. By default large tensors soon come from malloc's heap, and how large its holes
# are depends on where it lies.
WITHOUT_HOLES = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
CASES = [("q8_0", "f16", False), ("f16", "bf16", False), ("q8_0", "f16", True)]
PACKING = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
import torch_foundry
from benchmarks.bench_load import forget_peak, status
from tests.io.memory import library_pages
*folders, fmt = sys.argv[1:]
for folder in folders:
    before = forget_peak() - library_pages()
    config = torch_foundry.FoundryConfig(fmt)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=config)
    held = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    print(json.dumps([status("VmHWM") - library_pages() - before, held]))
"""
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CODE = """
import json, sys
import torch_foundry
from benchmarks.bench_load import forget_peak, status
from tests.io.memory import library_pages
from torch_foundry import quant
files, small, cases = json.loads(sys.argv[1])
for warm in (True, False):
    for fmt, dtype, mmap in cases:
        model = None
        before = forget_peak() - library_pages()
        options = dict(device="cpu", dtype=quant.get_format(dtype).dtype, mmap=mmap, progress=False)
        model, _ = torch_foundry.load(small if warm else files[fmt], allow=("VOCAB_MISSING",), **options)
        held = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        if not warm:
            print(json.dumps([status("VmHWM") - library_pages() - before, held]))
"""


pytestmark = [
    pytest.mark.tier("files"),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux counts a peak that can be reset"),
]


def test_peak_of_loading(tmp_path: Path) -> None:
    files = {fmt: str(tmp_path / f"{fmt}.gguf") for fmt in ("q8_0", "f16")}
    sizes = {fmt: write(Path(path), SIZE, fmt) for fmt, path in files.items()}
    write(tmp_path / "small.gguf", 0, "q8_0")
    rows = measured(files, tmp_path / "small.gguf", CASES)
    for (fmt, _, mmap), (taken, held) in zip(CASES, rows, strict=True):
        known, size = quant.get_format(fmt), sizes[fmt]
        largest = known.row_size(HIDDEN) * known.dtype.itemsize * INNER
        in_cache = size if mmap else 0  # of a mapped file's pages none is this process's own, but all count
        assert held >= 0.9 * size
        assert taken - (0 if mmap else held) - in_cache <= 0.05 * size + largest
        assert mmap or taken >= 0.9 * held  # the measure works


def test_peak_of_fp8(tmp_path: Path) -> None:
    """Which is made into blocks on the way: scales are copied, so the model is a little larger than its file."""
    size = write_fp8(tmp_path / "model", 2048, 8192)
    write_fp8(tmp_path / "small", 256, 256)
    ((taken, held),) = measured(
        {"fp8_g128": str(tmp_path / "model")}, tmp_path / "small", [("fp8_g128", "bf16", False)]
    )
    assert size < held <= 1.05 * size
    assert 0.9 * held <= taken <= held + 0.05 * size + 2048 * 8192


def test_peak_of_packing_while_loading(tmp_path: Path) -> None:
    """from_pretrained with a FoundryConfig has what is packed, and two matrices: as they are, and on their way. In a
    process that has imported the package alone."""
    size = write_dense(tmp_path / "model", 2048, 6144)
    write_dense(tmp_path / "small", 256, 256)
    job = [sys.executable, "-c", PACKING, str(tmp_path / "small"), str(tmp_path / "model"), "q8_0"]
    done = subprocess.run(job, stdout=subprocess.PIPE, text=True, check=True, env=WITHOUT_HOLES)
    taken, held = json.loads(done.stdout.splitlines()[-1])
    own = taken - size  # transformers maps the file, whose pages are the system's but count
    assert held <= own <= held + 2 * (2 * 2048 * 6144) + 0.05 * size <= 1.05 * size


def write_dense(folder: Path, hidden: int, inner: int) -> int:
    """A folder with a Llama of two layers in bfloat16; bytes of its tensors' file."""
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 2, "vocab_size": 512}
    config = LlamaConfig(**sizes, num_attention_heads=hidden // 128, num_key_value_heads=hidden // 128)
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict()
    config.save_pretrained(folder)
    save_file({name: torch.ones_like(t, device="cpu") for name, t in tensors.items()}, folder / "model.safetensors")
    return (folder / "model.safetensors").stat().st_size


def measured(files: dict[str, str], small: Path, cases: list[tuple[str, str, bool]]) -> list[list[int]]:
    """Bytes that loading took at its peak and that a model holds, for each case."""
    job = json.dumps([files, str(small), cases])
    command = [sys.executable, "-c", CODE, job]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=WITHOUT_HOLES)
    return [json.loads(line) for line in done.stdout.splitlines()[-len(cases) :]]


def write_fp8(folder: Path, hidden: int, inner: int) -> int:
    """A folder of two layers in squares of 128 x 128; bytes of its tensors' file."""
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 2, "vocab_size": 512}
    config = LlamaConfig(**sizes, num_attention_heads=hidden // 128, num_key_value_heads=hidden // 128)
    config.quantization_config = FP8
    config.save_pretrained(folder)
    norms = ["norm", *(f"layers.{i}.{kind}_layernorm" for i in range(2) for kind in ("input", "post_attention"))]
    tensors = {f"model.{name}.weight": torch.ones(hidden, dtype=torch.bfloat16) for name in norms}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.zeros(512, hidden, dtype=torch.bfloat16)
    shapes = {f"self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"} | {"mlp.down_proj": (hidden, inner)}
    for name, (rows, columns) in (shapes | dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (inner, hidden))).items():
        for i in range(2):
            path = f"model.layers.{i}.{name}.weight"
            tensors[path] = torch.zeros(rows, columns, dtype=torch.uint8).view(torch.float8_e4m3fn)
            tensors[f"{path}_scale_inv"] = torch.ones(rows // 128, columns // 128)
    save_file(tensors, folder / "model.safetensors")
    words.small().save_pretrained(folder)
    return (folder / "model.safetensors").stat().st_size
