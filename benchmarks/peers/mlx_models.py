"""Whole models through mlx_lm, one sequence, with the weights of the Hugging Face model that they are compared with."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import mlx_lm
import torch
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step

from benchmarks.harness.record import Record
from benchmarks.models import DTYPES, MODELS, Model, build
from benchmarks.peers import Job, generation_record, parity_of, repeat
from benchmarks.peers.mlx_ops import BITS, GROUP, dense, to_mlx
from benchmarks.ways import Network


def records(job: Job) -> Iterator[Record]:
    """One row for each model, format and prompt length."""
    for name in job.models:
        for fmt in (fmt for fmt in job.formats if fmt in DTYPES or fmt in BITS):
            network = build(MODELS[name], fmt if fmt in DTYPES else "f16", torch.device("cpu"), seed=job.seed)
            theirs = translate(MODELS[name], network, fmt)
            for cell in (cell for cell in job.cells if cell.batch == 1):
                ids = cell.ids(network.config.vocab_size, torch.device("cpu"), job.seed)
                found = repeat(partial(_generate, theirs, mx.array(ids[0].numpy())), cell, job.iterations)
                way = f"mlx_lm {mlx_lm.__version__}, {mx.default_device()}"
                label = f"{BITS[fmt]} bit, group {GROUP}" if fmt in BITS else fmt
                yield generation_record(job, name, way, label, cell, found, parity_of(network, ids, found.tokens))


def _generate(model: Any, prompt: Any, count: int) -> tuple[list[int], float, float]:
    """Tokens, seconds to the first, seconds from there to the last."""
    tokens, start = [], time.perf_counter()
    first = start
    for token, _ in generate_step(prompt, model, max_tokens=count):
        tokens.append(int(token))
        if len(tokens) == 1:
            first = time.perf_counter()
    return tokens, first - start, time.perf_counter() - first


def translate(model: Model, network: Network, fmt: str) -> Any:
    """mlx_lm's model with the weights of `network`; if they are quantised, `network` gets the dequantised ones."""
    kind = network.config.model_type
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    described = {
        "model_type": kind,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_word_embeddings,
        "rms_norm_eps": network.config.rms_norm_eps,
        "rope_theta": model.options.get("rope_theta", 1e4),
        "max_position_embeddings": network.config.max_position_embeddings,
    }
    theirs = module.Model(module.ModelArgs.from_dict(described))
    weights = {name: to_mlx(tensor) for name, tensor in network.state_dict().items()}
    theirs.load_weights(list(theirs.sanitize(weights).items()))
    if fmt in BITS:
        nn.quantize(theirs, group_size=GROUP, bits=BITS[fmt])
        _dequantize_into(network, theirs, fmt)
    mx.eval(theirs.parameters())
    return theirs


@torch.no_grad()
def _dequantize_into(network: Network, theirs: Any, fmt: str) -> None:
    named = dict(tree_flatten(theirs.parameters()))
    for name, parameter in network.named_parameters():
        stem = name.removesuffix(".weight")
        if f"{stem}.scales" in named:
            parameter.copy_(dense([named[f"{stem}.{part}"] for part in ("weight", "scales", "biases")], fmt))
