"""The kernels that common models use; setup.py compiles them in parallel, so that a first token doesn't wait for them.

They are those that the demo model and the Llama, Qwen and LFM2 families launch. Each op is called once per variant on
tensors of a few elements, which compiles exactly the kernels that a model would ask for, so nobody maintains a list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import NamedTuple

import torch

from torch_foundry import ops
from torch_foundry.core import devices, extension
from torch_foundry.core.limits import SAMPLE_PARAMS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
COMMON_HEAD_DIMS = (64, 128)
PACKED = ("q8_0", "q4_0")
Device = torch.device | str


def _attention(device: Device, dtype: torch.dtype, head_dim: int, length: int) -> None:
    cache = torch.zeros(1, 1, 64, head_dim, dtype=dtype, device=device)
    q = torch.zeros(1, 2, length, head_dim, dtype=dtype, device=device)
    ops.attention(q, cache, cache.clone(), 48, scale=1.0)


def _rope(device: Device, dtype: torch.dtype) -> None:
    q = torch.zeros(1, 1, 128, dtype=dtype, device=device)
    k, cos = q[..., :64], torch.ones(1, 1, 64, dtype=dtype, device=device)
    k_cache = torch.zeros(1, 1, 8, 64, dtype=dtype, device=device)
    ops.rope_kv(q, k, k.clone(), cos, cos.clone(), k_cache, k_cache.clone(), 0, head_dim=64)


def _rope_attention(device: Device, dtype: torch.dtype) -> None:
    """A token whose heads pass norms."""
    q, norm = torch.zeros(1, 1, 256, dtype=dtype, device=device), torch.ones(128, dtype=dtype, device=device)
    k, cache = q[..., :128], torch.zeros(1, 1, 64, 128, dtype=dtype, device=device)
    table = torch.ones(64, 128, dtype=dtype, device=device)
    ops.rope_attention(
        q, k, k.clone(), table, table.clone(), cache, cache.clone(), 48, head_dim=128, scale=1.0, q_norm=norm,
        k_norm=norm, positions=torch.zeros(1, 1, dtype=torch.int32, device=device),
        step=torch.zeros(2, dtype=torch.int32, device=device),
    )  # fmt: skip


Shape = tuple[int, int]
SMALL = (32, 256)
TILED = 65  # rows that no built-in line of the tuning table gives another kernel than tiles


def _weight(device: Device, dtype: torch.dtype, name: str | None, shape: Shape = SMALL) -> torch.Tensor:
    from torch_foundry import quant

    columns, dtype = (quant.get_format(name).row_size(shape[1]), torch.uint8) if name else (shape[1], dtype)
    return torch.zeros(shape[0], columns, dtype=dtype, device=device)


def _linear(device: Device, dtype: torch.dtype, rows: int, name: str | None, shape: Shape) -> None:
    x = torch.zeros(rows, shape[1], dtype=dtype, device=device)
    ops.linear(x, _weight(device, dtype, name, shape), format=name)


def _normed(device: Device, dtype: torch.dtype, op: str, name: str | None, shape: Shape) -> None:
    """The ops that follow an RMSNorm in a decode step, for one token."""
    n, k = max(shape[0], 64), shape[1]
    x = torch.zeros(1, 1, k, dtype=dtype, device=device)
    gain = torch.ones(k, dtype=dtype, device=device)
    first, other = (_weight(device, dtype, name, (rows, k)) for rows in (n, 64))
    if op == "norm_glu":
        ops.norm_glu(x, gain, 1e-6, first, first.clone(), format=name)
    elif op == "norm_linear":
        ops.norm_linear(x, gain, 1e-6, [first, other, other.clone()], formats=[name] * 3)
    else:
        table = torch.ones(8, 64, dtype=dtype, device=device)
        cache = torch.zeros(1, 1, 8, 64, dtype=dtype, device=device)
        ops.norm_qkv(
            x, gain, 1e-6, [first, other, other.clone()], table, table.clone(), cache, cache.clone(), 0, head_dim=64,
            formats=[name] * 3, positions=torch.zeros(1, 1, dtype=torch.int32, device=device),
            step=torch.zeros(2, dtype=torch.int32, device=device),
        )  # fmt: skip


def _experts(device: Device, dtype: torch.dtype, name: str | None, shape: Shape) -> None:
    """A block of routed experts, for one token that has two; its tiles, for packed weights."""
    n, k = max(shape[0], 64), shape[1]
    x = torch.zeros(1, k, dtype=dtype, device=device)
    gain = torch.ones(k, dtype=dtype, device=device)
    weight = _weight(device, dtype, name, (2 * n, k)).view(2, n, -1)
    ids, weights = ops.moe_route(x, gain, 1e-6, torch.zeros(2, k, dtype=dtype, device=device), 2)
    ops.moe_glu(x, ids, weight, weight, norm_weight=gain, eps=1e-6, format=name)
    ops.moe_down(torch.zeros(1, 2, k, dtype=dtype, device=device), ids, weights, weight, format=name)
    if name:
        ops.moe_choose(torch.zeros(1, 2, dtype=dtype, device=device), 1)
        order, tiles = ops.moe_group(ids, 2)
        y = ops.moe_linear(x, order, tiles, weight, format=name)
        ops.moe_combine(y, ids, weights, 2)


def _embedding(device: Device, dtype: torch.dtype, name: str | None) -> None:
    ids = torch.zeros(1, dtype=torch.int64, device=device)
    ops.embedding(ids, _weight(device, dtype, name), format=name, dtype=dtype)


def _norm(device: Device, dtype: torch.dtype, kind: str) -> None:
    x = torch.zeros(1, 64, dtype=dtype, device=device)
    w = torch.ones(64, dtype=dtype, device=device)
    ops.rms_norm(x, w, 1e-6, kind=kind)


def _glu(device: Device, dtype: torch.dtype) -> None:
    x = torch.zeros(1, 64, dtype=dtype, device=device)
    ops.glu(x, x.clone(), "silu")


def _short_conv(device: Device, dtype: torch.dtype) -> None:
    bcx, weight = torch.zeros(1, 96, dtype=dtype, device=device), torch.zeros(32, 3, dtype=dtype, device=device)
    table = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
    ops.short_conv(bcx, weight, None, weight.repeat(2, 1, 1), table, table, table[:, 0])


def _head_linear(device: Device, dtype: torch.dtype) -> None:
    x, weight = torch.zeros(1, 2, 64, dtype=dtype, device=device), torch.zeros(2, 64, 64, dtype=dtype, device=device)
    ops.head_linear(x, weight)
    ops.head_linear(x, weight.transpose(1, 2))


def _permute_columns(device: Device, dtype: torch.dtype) -> None:
    ops.permute_columns(
        torch.zeros(1, 64, dtype=dtype, device=device), torch.arange(64, dtype=torch.int32, device=device)
    )


def _sample(device: Device, dtype: torch.dtype, draw: bool, truncate: bool) -> None:
    row = torch.zeros(1, dtype=torch.int32, device=device)
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    ops.sample(
        torch.zeros(1, 64, dtype=dtype, device=device),
        torch.ones(len(SAMPLE_PARAMS), device=device).view(torch.int32),  # a temperature of 1
        torch.zeros(64, dtype=torch.uint8, device=device),
        start=row,
        streams=ids[0].clone(),
        length=row.clone(),
        finished=row.clone(),
        errors=row.clone(),
        ids=ids,
        newest=ids.clone(),
        draw=draw,
        truncate=truncate,
    )


def calls(device: Device = "cpu", weights_of: Sequence[Shape] = (SMALL,)) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and call of every variant; a call compiles the kernels of one on `device`, if need be, and launches them.

    weights_of: [n, k] of the weights that `linear` is called with. On the host all have the same kernels.
    """
    for dtype in DTYPES:
        short = str(dtype).removeprefix("torch.")
        for kind in ("llama", "gemma"):
            yield f"rms_norm {kind} {short}", partial(_norm, device, dtype, kind)
        yield f"glu silu {short}", partial(_glu, device, dtype)
        yield f"short_conv {short}", partial(_short_conv, device, dtype)
        yield f"head_linear {short}", partial(_head_linear, device, dtype)
        yield f"permute_columns {short}", partial(_permute_columns, device, dtype)
        yield f"sample greedily {short}", partial(_sample, device, dtype, False, False)
        yield f"sample {short}", partial(_sample, device, dtype, True, False)
        yield f"sample of top-k, top-p, min-p {short}", partial(_sample, device, dtype, True, True)
        yield f"rope_kv {short}", partial(_rope, device, dtype)
        yield f"rope_attention {short}", partial(_rope_attention, device, dtype)
        for head_dim in COMMON_HEAD_DIMS:
            for length in (1, 16):
                name = f"attention head_dim {head_dim}, {length} queries, {short}"
                yield name, partial(_attention, device, dtype, head_dim, length)
        for packed in (None, *PACKED):
            weights = packed or short
            for shape, rows in product(weights_of, (1, 2, 4, 8, TILED)):
                text = f"linear {weights}, {rows} rows of {short}" + (f", {shape}" if shape != SMALL else "")
                yield text, partial(_linear, device, dtype, rows, packed, shape)
            for shape, op in product(weights_of, ("norm_linear", "norm_glu", "norm_qkv")):
                text = f"{op} {weights}, a row of {short}" + (f", {shape}" if shape != SMALL else "")
                yield text, partial(_normed, device, dtype, op, packed, shape)
            if dtype != torch.float32:  # of which mixtures have too many
                for shape in weights_of:
                    text = f"experts {weights}, a row of {short}" + (f", {shape}" if shape != SMALL else "")
                    yield text, partial(_experts, device, dtype, packed, shape)
            yield f"embedding {weights} to {short}", partial(_embedding, device, dtype, packed)


_LINEAR = tuple(f"linear float16, {rows} " for rows in (1, 8, 32))
_NORMED = tuple(f"{op} float16" for op in ("norm_linear", "norm_glu", "norm_qkv"))
DENSE = ("rms_norm llama", "glu", "rope_kv", "embedding float16", *_LINEAR, *_NORMED)


def of_dense_models(device: Device) -> list[tuple[str, Callable[[], object]]]:
    """Those of `calls` without which no dense model runs, of float16 alone."""
    return [(name, call) for name, call in calls(device) if name.startswith(DENSE) and name.endswith(" float16")]


class Launched(NamedTuple):
    """A kernel as a GPU would be given it."""

    file: str  # of shaders/
    entry: str  # with its template arguments
    constants: dict[int, str]  # function constants by index: "true"
    threads: int  # of its largest threadgroup


def shapes(family: str) -> list[Shape]:
    """[n, k] of weights, the smallest that get other kernels from the tuning table of GPUs of `family`."""
    choose = torch.ops.torch_foundry._tuning_choice
    smallest: dict[tuple[int, ...], Shape] = {}
    for n, k in sorted(product((32, *(2**i for i in range(9, 15))), (256, *(2**i for i in range(10, 13))))):
        keys = product(("linear", "norm_linear"), ("f32", "f16", "bf16", *PACKED), (1, 2, 4, 8))
        found = [choose(family, op, weights, rows, n, k) for op, weights, rows in keys]
        smallest.setdefault(tuple(v for values in found for v in values), (n, k))
    return list(smallest.values())


def launched(family: str, others: Iterable[Callable[[], object]] = ()) -> list[Launched]:
    """The kernels that `calls`, and `others`, launch on GPUs of `family`. No such GPU is needed.

    Meanwhile ops on CPU tensors compute nothing, in the whole process.
    """
    torch.ops.torch_foundry._list_kernels(family)
    try:
        for call in (*(call for _, call in calls("cpu", shapes(family))), *others):
            call()
    finally:
        torch.ops.torch_foundry._stop_listing()
    lines = [kernel.split("\n") for kernel in torch.ops.torch_foundry._listed_kernels()]
    return [
        Launched(file, entry, {int(i): value for i, value in (c.split("=") for c in constants.split())}, int(threads))
        for file, entry, constants, threads in lines
    ]


def kernels(family: str) -> list[tuple[str, str]]:
    """Shader file and instance of every kernel that `calls` launches on GPUs of `family`, as `launched` finds them."""
    return list(dict.fromkeys((kernel.file, kernel.entry) for kernel in launched(family)))


def main() -> None:
    """Fill the package's own kernel cache."""
    devices.HOST.set_up(extension.places(extension.BUILT / "kernels"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job in [pool.submit(call) for _, call in calls()]:
            job.result()
    for file in (extension.BUILT / "kernels").glob("*.h*"):
        file.unlink()  # the precompiled prelude: 25 MB, made in a second


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
