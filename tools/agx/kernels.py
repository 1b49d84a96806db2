"""Which kernels are compiled, and how they are launched: what `aot/prebuild` launches on an Apple GPU, what other
models launch (`others`), and every instance that a comment in shaders/ names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch

from torch_foundry import ops
from torch_foundry.aot import prebuild
from torch_foundry.aot.metallib import FAMILY
from torch_foundry.aot.prebuild import Launched
from torch_foundry.core import sources
from torch_foundry.core.limits import SAMPLE_PARAMS
from torch_foundry.msl.lint.unit import instances
from torch_foundry.quant import kv
from torch_foundry.testing import weights

SHADERS = Path(__file__).parents[2] / "shaders"
F16 = torch.float16
SHAPE = 4096, 4096  # [n, k] of a layer of an 8B
COMMON = ("q4_k", "q6_k", "mxfp4")  # formats of weights, after those of prebuild
KV = ("q8_0", "q4_0")
KEYS = 4096  # in a cache

TUNED = {"attention_decode_matrix": "attention_decode"}  # chosen by `tune` alone: launched as the other is
# On no M1: by 8x8 matrices unless TORCH_FOUNDRY_MATRIX_ROWS says so; tensor operations, which an M5 has and Mesa lacks.
ELSEWHERE = ("linear_matrix", "linear_matrix_ahead", "linear_tensors", "moe_matrix")
BY_MATRICES = re.compile(r"(linear_rows|norm_\w+)<.*, 0>")  # nor are those, unless a table of the user's says so


def every() -> list[Launched]:
    """All of them, sorted. Meanwhile ops on CPU tensors compute nothing, as in `prebuild.launched`."""
    found = prebuild.launched(FAMILY, others())
    known = {(kernel.file, kernel.entry) for kernel in found}
    named = [
        (path.name, entry)
        for path in sources.shader_files(SHADERS)
        for entry in instances(path, include_dirs=[SHADERS])
    ]
    for file, entry in dict.fromkeys(named):
        if (file, entry) not in known and not elsewhere(entry):  # as the first launch of the kernel
            name = TUNED.get(function(entry), function(entry))
            like = next((kernel for kernel in found if function(kernel.entry) == name), None)
            if like is None:
                raise LookupError(f"{file}: nothing launches {entry}; add a call to {Path(__file__).name}")
            found.append(like._replace(file=file, entry=entry))
    return sorted(found, key=lambda kernel: (kernel.file, kernel.entry, sorted(kernel.constants.items())))


def elsewhere(entry: str) -> bool:
    """Whether no M1 is asked to launch it."""
    return function(entry) in ELSEWHERE or BY_MATRICES.fullmatch(entry) is not None


def function(entry: str) -> str:
    """The kernel's name without its template arguments."""
    return entry.partition("<")[0]


def others() -> Iterator[Callable[[], object]]:
    """A call for each kernel of models that `prebuild.calls` has not: other formats, heads, caches and mixers."""
    for sample in weights.samples():
        for rows in (1, 2, 4, 8) if sample in COMMON else (1,):
            yield partial(prebuild._linear, "cpu", F16, rows, sample, SHAPE)
    for name, op in product(COMMON, ("norm_linear", "norm_glu")):
        yield partial(prebuild._normed, "cpu", F16, op, name, SHAPE)
    yield partial(prebuild._experts, "cpu", F16, "mxfp4", (64, 4096))
    for name in ("q4_k", "q6_k"):
        yield partial(prebuild._linear, "cpu", F16, prebuild.TILED, name, SHAPE)
    for packed in (None, "q8_0", "q4_0", "q4_k"):
        weight = prebuild._weight("cpu", F16, packed, SHAPE)
        yield partial(ops.linear_backward_input, torch.zeros(512, SHAPE[0], dtype=F16), weight, format=packed)
    for head_dim, group, length in product((64, 128, 256, 512), (1, 4, 8), (1, 4)):
        yield partial(_attention, head_dim, group, length)
    for head_dim in (256, 512):
        yield partial(_attention, head_dim, 4, 64)
    for name, length in product(KV, (1, 64)):
        yield partial(_attention, 128, 4, length, name)
    yield partial(_attention, 128, 4, 1, paged=True)
    for head_dim in (64, 128, 256, 512):
        yield partial(_attention, head_dim, 1, 1, keys=2 * KEYS)  # whose splits are many
    for head_dim, group in product((64, 128, 256), (1, 4, 8)):
        yield partial(_rope_attention, head_dim, group)
    yield partial(_rope_attention, 128, 4, "q8_0", paged=True)
    yield partial(_rope, interleaved=True)
    yield partial(_rope, normed=1)
    yield partial(_rope, normed=2)
    yield partial(_rope, name="q8_0")
    yield partial(_rope, name="q4_0", normed=1)
    for prompts, tokens in ((False, 1), (False, 4), (True, 64)):
        yield partial(_gated_delta, prompts, tokens)
        yield partial(_kimi_delta, prompts, tokens)
        yield partial(_short_conv, tokens)
        yield partial(_mamba2, prompts, tokens)
    for heads in (16, 20):
        yield partial(_latents, heads)
    x = torch.zeros(2, 4096, dtype=F16)
    for dtype in prebuild.DTYPES:
        yield partial(ops.rms_norm, x.to(dtype), x[0].to(dtype), 1e-6)
    yield partial(ops.layer_norm, x, x[0], x[1], 1e-5)
    yield partial(ops.xielu, x, *(x[0, 0] for _ in range(4)))
    for tokens in (1, 64):
        yield partial(_streams, torch.zeros(4, tokens, 2048, dtype=F16))
    yield partial(ops.sparse_glu, x, x, 1.6)
    for activation in ("gelu_tanh", "clamped_swiglu"):
        yield partial(ops.glu, x, x, activation)
    yield partial(ops.rms_norm, x, x[0], 1e-6, residual=x)
    yield partial(ops.rms_norm, x, x[0], 1e-6, kind="olmo")
    yield partial(ops.permute_columns_and_norm, x, torch.zeros(4096, dtype=torch.int32), x[0])
    yield partial(ops.rms_norm_backward, x, x, x[0], 1e-6)
    yield partial(ops.rms_norm_backward_weight, x, x, torch.ones(2))
    yield partial(ops.glu_backward, x, x, x)
    yield partial(ops.rope, x.view(1, 32, 2, 128), torch.ones(1, 2, 128), torch.ones(1, 2, 128))
    yield partial(ops.moe_choose, torch.zeros(1, 256), 8, score="sigmoid", groups=8, top_groups=4)
    for truncate in (False, True):
        yield partial(_sample, truncate)


def _cache(heads: int, head_dim: int, name: str | None, keys: int = KEYS) -> torch.Tensor:
    if name:
        return torch.zeros(1, heads, keys, kv.row_bytes(head_dim, name), dtype=torch.uint8)
    return torch.zeros(1, heads, keys, head_dim, dtype=F16)


def _attention(
    head_dim: int, group: int, length: int, name: str | None = None, paged: bool = False, keys: int = KEYS
) -> None:
    q, cache = torch.zeros(1, group, length, head_dim, dtype=F16), _cache(1, head_dim, name, keys)
    table = torch.zeros(1, 1, dtype=torch.int32) if paged else None
    rows = torch.zeros(1, 2, dtype=torch.int32) if paged else None
    ops.attention(q, cache, cache.clone(), keys, scale=1.0, block_table=table, rows=rows, k_format=name, v_format=name)


def _rope_attention(head_dim: int, group: int, name: str | None = None, paged: bool = False) -> None:
    q, cache = torch.zeros(1, 1, group * head_dim, dtype=F16), _cache(1, head_dim, name)
    k, cos, norm = q[..., :head_dim], torch.ones(KEYS, head_dim), torch.ones(head_dim, dtype=F16)
    table = torch.zeros(1, 1, dtype=torch.int32) if paged else None
    rows = torch.zeros(1, 2, dtype=torch.int32) if paged else None
    ops.rope_attention(
        q, k, k.clone(), cos, cos, cache, cache.clone(), KEYS, head_dim=head_dim, scale=1.0, block_table=table,
        rows=rows, k_format=name, v_format=name, positions=torch.zeros(1, 1, dtype=torch.int32), q_norm=norm,
        k_norm=norm,
    )  # fmt: skip


def _rope(interleaved: bool = False, normed: int = 0, name: str | None = None) -> None:
    """normed: heads of q that pass a norm together, in each row of two; 0: none does."""
    q, table, cache = torch.zeros(1, 1, 256, dtype=F16), torch.ones(1, 1, 128), _cache(1, 128, name)
    norm = torch.ones(128 * normed, dtype=F16) if normed else None
    ops.rope_kv(
        q, q[..., :128], q[..., :128].clone(), table, table, cache, cache.clone(), 0, head_dim=128,
        interleaved=interleaved, q_norm=norm, k_norm=norm if norm is None else norm[:128], k_format=name, v_format=name,
    )  # fmt: skip


def _sequence(tokens: int) -> list[torch.Tensor]:
    """runs, table and count of a sequence: what ops of recurrent layers are told of it."""
    return [torch.tensor(x, dtype=torch.int32) for x in ([[0, tokens]], [list(range(9))], [0])]


def _gated_delta(prompts: bool, tokens: int) -> None:
    """A layer of Qwen3-Next."""
    heads, per_key, dim, width = 16, 2, 128, 4
    q, v = torch.zeros(tokens, heads, dim, dtype=F16), torch.zeros(tokens, heads, per_key, dim, dtype=F16)
    gates, all_heads = v[..., 0], heads * per_key
    channels = (2 * heads + all_heads) * dim
    ops.gated_delta(
        q, q.clone(), v, v.clone(), gates.contiguous(), gates.contiguous(), torch.zeros(channels, width, dtype=F16),
        torch.zeros(all_heads), torch.zeros(all_heads), torch.ones(dim, dtype=F16), 1e-6,
        torch.zeros(9, channels, width, dtype=F16), torch.zeros(9, all_heads, dim, dim), 
        *_sequence(tokens), prompts=prompts,
    )  # fmt: skip


def _kimi_delta(prompts: bool, tokens: int) -> None:
    """A layer of Kimi Linear."""
    heads, dim, width = 32, 128, 4
    q = torch.zeros(tokens, heads, dim, dtype=F16)
    v, channels, each = q[:, :, None], 3 * heads * dim, torch.zeros(heads * dim)
    ops.gated_delta(
        q, q.clone(), v, v.clone(), v[..., 0].contiguous(), v.clone(), torch.zeros(channels, width, dtype=F16),
        each[:heads], each, torch.ones(dim, dtype=F16), 1e-6, torch.zeros(9, channels, width, dtype=F16),
        torch.zeros(9, heads, dim, dim), *_sequence(tokens), sigmoid_gate=True, prompts=prompts,
    )  # fmt: skip


def _streams(x: torch.Tensor) -> None:
    norm, router = x[0, 0], x[:, 0].contiguous()
    coefs = x.new_zeros(16, 4)
    ops.altup_predict(x, norm, router, coefs, 1e-6, scale=1.0)
    ops.altup_correct(x, x[0], norm, router, coefs[:4], 1e-6, scale=1.0, own_scale=norm)
    ops.altup_add(x, x[0], norm, 1e-6)
    ops.altup_collapse(x[0], list(ops.altup_expand(x[0], [x[1], x[2], x[3]], 1e-5)[1:]), 1e-5)


def _short_conv(tokens: int) -> None:
    """A layer of LFM2."""
    channels, width = 2048, 3
    ops.short_conv(
        torch.zeros(tokens, 3 * channels, dtype=F16), torch.zeros(channels, width, dtype=F16), None,
        torch.zeros(9, channels, width, dtype=F16), *_sequence(tokens),
    )  # fmt: skip


def _latents(heads: int) -> None:
    """A layer of DeepSeek-V2-Lite or GLM-4.7-Flash."""
    plain, value = (128, 128) if heads == 16 else (192, 256)
    matrix = torch.zeros(heads, plain + value, 512, dtype=F16)
    q, latents = torch.zeros(1, heads, plain + 64, dtype=F16), _cache(1, 512, None)
    queries = ops.head_linear(q[..., :plain], matrix[:, :plain].transpose(1, 2)).unsqueeze(2)
    ops.head_linear(queries[:, :, 0], matrix[:, plain:])
    ends = q[:, :, None, plain:]
    ops.attention(ends, _cache(1, 64, None), latents, KEYS, scale=1.0, value_queries=queries)


def _mamba2(prompts: bool, tokens: int) -> None:
    """A layer of Bamba 9B."""
    heads, dim, state, width = 128, 64, 128, 4
    inner, channels = heads * dim, heads * dim + 2 * state
    of_heads, x = torch.zeros(heads, dtype=F16), torch.zeros(tokens, inner + channels + heads, dtype=F16)
    z, x, dt = x.split([inner, channels, heads], -1)
    ops.mamba2(
        x, dt, z, torch.zeros(channels, width, dtype=F16), torch.zeros(channels, dtype=F16), of_heads, of_heads.clone(),
        of_heads.clone(), torch.ones(inner, dtype=F16), 1e-5, torch.zeros(9, channels, width, dtype=F16),
        torch.zeros(9, heads, dim, state), *_sequence(tokens), prompts=prompts,
    )  # fmt: skip


def _sample(truncate: bool) -> None:
    """A draw with all processors."""
    row, ids, vocabulary = torch.zeros(1, dtype=torch.int32), torch.zeros(1, 8, dtype=torch.int64), 151936
    ops.sample(
        torch.zeros(1, vocabulary, dtype=F16), torch.ones(len(SAMPLE_PARAMS)).view(torch.int32),
        torch.zeros(vocabulary, dtype=torch.uint8), start=row, streams=ids[0, :1].clone(), length=row.clone(),
        finished=row.clone(), errors=row.clone(), ids=ids, newest=ids[:, :1].clone(), sequences=row.clone(),
        counts=torch.zeros(1, vocabulary, dtype=torch.int32), banned=torch.zeros(1, vocabulary, dtype=torch.int32),
        use_rules=True, draw=True, truncate=truncate,
    )  # fmt: skip
    ops.sample_count_prompt(ids, row, 4, torch.zeros(1, vocabulary, dtype=torch.int32))
