"""Whole models through llama.cpp, by llama-cpp-python, one sequence, from a GGUF file with the same weights."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp

from benchmarks.harness.record import Record
from benchmarks.models import MODELS, build
from benchmarks.peers import Job, generation_record, gguf_file, parity_of, repeat


def records(job: Job) -> Iterator[Record]:
    """One row for each model, format and prompt length."""
    cells = [cell for cell in job.cells if cell.batch == 1]
    on_gpu = bool(llama_cpp.llama_supports_gpu_offload())
    longest = max((cell.prompt + cell.tokens + 1 for cell in cells), default=1)
    for name in job.models:
        for fmt in job.formats:
            network = build(MODELS[name], fmt, job.device, seed=job.seed)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.gguf"
                gguf_file.write(path, network)
                theirs = llama_cpp.Llama(
                    str(path), n_gpu_layers=-1, n_ctx=longest, n_batch=512, flash_attn=True, verbose=False
                )
                for cell in cells:
                    ids = cell.ids(network.config.vocab_size, job.device, job.seed)
                    found = repeat(partial(_generate, theirs, ids[0].tolist()), cell, job.iterations)
                    way = f"llama.cpp by llama-cpp-python {llama_cpp.__version__}, {'gpu' if on_gpu else 'cpu'}"
                    yield generation_record(job, name, way, fmt, cell, found, parity_of(network, ids, found.tokens))
                theirs.close()


def _generate(model: Any, prompt: list[int], count: int) -> tuple[list[int], float, float]:
    """Tokens, seconds to the first, seconds from there to the last."""
    tokens: list[int] = []
    start = first = time.perf_counter()
    model.reset()
    for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True):
        tokens.append(int(token))
        if len(tokens) == 1:
            first = time.perf_counter()
        if len(tokens) == count:
            break
    return tokens, first - start, time.perf_counter() - first
