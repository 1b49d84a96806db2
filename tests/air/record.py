"""Records launches of the project's own kernels: ops are asked as a GPU would ask them, and run on the host executor.

    python -m tests.air.record FOLDER

On a Mac, that compiles every kernel that has a launch: FOLDER has then a metallib for each level of the language.

What is called is what others keep complete: `prebuild.calls`, whose kernels the package's metallib has, and tools/agx's
`kernels.others`. Numbers stand in for their zeros. A launch's buffers are copies: where tensors share memory, each has
its own, and what changed in it is written back.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from tests.air import launches
from tests.air.case import Array
from tests.air.launches import About
from tools.agx import kernels
from tools.agx.emulate import Launch, captured, storage_bytes
from torch_foundry import msl
from torch_foundry.aot import metallib, prebuild
from torch_foundry.aot.metallib import FAMILY, library_name
from torch_foundry.core import extension, runtime, sources
from torch_foundry.quant import kv
from torch_foundry.sampling import Settings
from torch_foundry.testing import step_checks, tolerance, weights

# Whose choices are launched: those of the package's metallib, then of GPUs that choose kernels which these do not.
FAMILIES = (FAMILY, "apple10", "sm_90-h200", "sm_80")
SHAPE = 512, 1024  # of weights, where kernels.others would have a layer's
SETTINGS = 64  # elements: what has fewer and is 1 is a setting, not data
THREADGROUP = 32768  # bytes of memory that Metal has for a threadgroup
KINDS = {torch.bool: "bool_"}
# Kernels without a launch, and why.
_MEMORY = "the tuning table has it for NVIDIA's GPUs alone, with more threadgroup memory than Metal has"
EXCUSED = {
    "subnormal_codes": "an executor launches it itself, in no graph, to ask what a GPU does with subnormals",
    "linear_matrix_ahead": _MEMORY,
    "moe_matrix": _MEMORY,
}


Before = dict[int, Array]  # bytes of buffers by index
After = dict[bool, Before]  # of those that are written, with subnormals kept (False) and taken for zero (True)


class Planned(NamedTuple):
    """Where a launch comes from: the call of that number, made for GPUs of a family."""

    family: str
    call: int


def _calls(family: str) -> Iterator[Callable[[], object]]:
    for settings in (Settings(), *step_checks.SETTINGS.values(), step_checks.TRUNCATED):
        yield partial(_sample, settings)
    sizes = prebuild.shapes(family) if family == FAMILY else [prebuild.SMALL]
    yield from (call for _, call in prebuild.calls("cpu", sizes))
    with mock.patch.object(kernels, "SHAPE", SHAPE):
        yield from kernels.others()
    for name in weights.samples():
        yield partial(prebuild._embedding, "cpu", kernels.F16, name)
    for name in prebuild.PACKED:  # more rows than the vector kernel takes
        yield partial(prebuild._linear, "cpu", kernels.F16, 33, name, prebuild.SMALL)


def _sample(settings: Settings) -> None:
    """A token behind a text in which pairs repeat."""
    ids = torch.tensor([[7, 8, 9, 7, 8, 7]])
    logits = tolerance.normal(tolerance.generator("sample"), 1, 200, dtype=kernels.F16, scale=3.0)
    step_checks._sampler(settings, ids, logits.shape[1], 1, "cpu").step(logits)


def _launches(family: str, call: Callable[[], object]) -> Iterator[tuple[About, Sequence[Tensor | None]]]:
    """Those of a call, none of which has run, up to one that no GPU of Apple's has the memory for."""
    for launch in captured(family, call)[1]:
        of = described(launch)
        if sum(of.threadgroup) > THREADGROUP:
            return
        yield of, launch[1]


def described(launch: Launch) -> About:
    """A launch as a graph has it."""
    name, buffers, written, grid = launch
    file, entry, constants, _ = name.split("\n")
    kinds = {str(i): _kind(b.dtype) for i, b in enumerate(buffers) if b is not None}
    return About(
        file, entry, dict(c.split("=") for c in constants.split()), tuple(grid[:3]), tuple(grid[3:6]), bool(grid[6]),
        tuple(grid[7:]), kinds, tuple(i for i, b in enumerate(buffers) if b is not None and written[i]),
    )  # fmt: skip


def _kind(dtype: torch.dtype) -> str:
    return KINDS.get(dtype, str(dtype).removeprefix("torch."))


@cache
def plan() -> dict[tuple[Any, ...], Planned]:
    """By `About.key` the first call that launches it. Nothing runs."""
    found: dict[tuple[Any, ...], Planned] = {}
    zeros, clone = torch.zeros, Tensor.clone

    # Memory that nobody reads costs nothing as long as nobody fills it.
    def reserved(*shape: Any, dtype: torch.dtype = torch.float, device: Any = None) -> Tensor:
        return (torch.empty if dtype.is_floating_point or dtype == torch.uint8 else zeros)(*shape, dtype=dtype)

    def copied(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor) if tensor.is_floating_point() or tensor.dtype == torch.uint8 else clone(tensor)

    with mock.patch.object(torch, "zeros", reserved), mock.patch.object(Tensor, "clone", copied):
        for family in FAMILIES:
            known = {(file, entry.partition("<")[0]) for file, entry, _ in found}
            for number, call in enumerate(_calls(family)):
                for of, _ in _launches(family, call):
                    if of.function not in known:
                        found.setdefault(of.key, Planned(family, number))
    return found


def functions() -> set[tuple[str, str]]:
    """File and name of every kernel of shaders/."""
    files = sources.shader_files(kernels.SHADERS)
    shaders = ((path.name, msl.translate(path, include_dirs=[kernels.SHADERS])) for path in files)
    return {(file, kernel.name) for file, of in shaders for kernel in (*of.kernels, *of.templates)}


def missing() -> set[tuple[str, str]]:
    """Those that nothing launches, without an excuse."""
    launched = {(file, entry.partition("<")[0]) for file, entry, _ in plan()}
    return {(file, name) for file, name in functions() - launched if name not in EXCUSED}


@contextmanager
def numbers() -> Iterator[None]:
    """In this block tensors that calls make of zeros and ones are full of numbers, each time the same."""
    zeros, ones = torch.zeros, torch.ones
    count = 0

    def made(tensor: Tensor, offset: float) -> Tensor:
        nonlocal count
        if not tensor.is_floating_point() or (offset and tensor.numel() < SETTINGS):
            return tensor
        count += 1
        g = torch.Generator().manual_seed(count)
        return (torch.randn(tensor.shape, generator=g) * (0.25 if offset else 1.0) + offset).to(tensor.dtype)

    def weight(device: Any, dtype: torch.dtype, name: str | None, shape: tuple[int, int] = prebuild.SMALL) -> Tensor:
        dense = made(zeros(shape), 0.0) * shape[1] ** -0.5
        return weights.packed(dense, name) if name else dense.to(dtype)

    def kv_cache(heads: int, head_dim: int, name: str | None, keys: int = kernels.KEYS) -> Tensor:
        dense = made(zeros(1, heads, keys, head_dim, dtype=kernels.F16), 0.0)
        return kv.pack_rows(dense, name) if name else dense

    with ExitStack() as stack:
        for of, name, other in (
            (torch, "zeros", lambda *args, **given: made(zeros(*args, **given), 0.0)),
            (torch, "ones", lambda *args, **given: made(ones(*args, **given), 1.0)),
            (prebuild, "_weight", weight),
            (kernels, "_cache", kv_cache),
        ):
            stack.enter_context(mock.patch.object(of, name, other))
        stack.enter_context(tolerance.poisoned_outputs())
        yield


def record(place: Path, names: Collection[str] | None = None) -> list[Path]:
    """Writes a launch of each kernel into `place`, or of those that a metallib has under `names`: their files."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    left = {key: at for key, at in plan().items() if names is None or library_name(key[1]) in names}
    wanted = set(left.values())
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # kernels are compiled side by side
        list(pool.map(_pipeline, left))
    paths = []
    with numbers():
        for family in FAMILIES:
            for number, call in enumerate(_calls(family)):
                for of, before, after in run(family, call) if Planned(family, number) in wanted else ():
                    if left.pop(of.key, None):
                        paths.append(place / f"{len(paths):04}-{library_name(of.entry)[:80]}.npz")
                        launches.write(paths[-1], of, before, after)
    return paths


def run(family: str, call: Callable[[], object]) -> Iterator[tuple[About, Before, After]]:
    """Runs a call as GPUs of `family` are asked to: each launch, its buffers before, and what it wrote (`_run`)."""
    for of, buffers in _launches(family, call):
        yield of, *_run(of, buffers)


def _run(of: About, buffers: Sequence[Tensor | None]) -> tuple[Before, After]:
    """The bytes from where each buffer begins, and what they became; tensors get those with subnormals kept."""
    memory = {i: storage_bytes(b)[_start(b) :] for i, b in enumerate(buffers) if b is not None}
    before = {i: data.copy() for i, data in memory.items()}
    after = {flush: host(of, before, flush) for flush in (True, False)}
    for i in of.written:
        changed = after[False][i] != before[i]
        memory[i][changed] = after[False][i][changed]
    return before, {flush: {i: found[i] for i in of.written} for flush, found in after.items()}


def _start(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def host(of: About, before: Before, flush: bool) -> Before:
    """What the host executor makes of buffers."""
    copies = {i: torch.from_numpy(data.copy()) for i, data in before.items()}
    given = [copies.get(i) for i in range(1 + max(copies))]
    with runtime.host_options(flush_subnormals=flush):
        torch.ops.torch_foundry._shader_launch(
            _pipeline(of.key), given, [False] * len(given), of.grid, of.group, of.threads, of.threadgroup
        )
    return {i: copy.numpy() for i, copy in copies.items()}


@cache
def _pipeline(key: tuple[str, str, tuple[tuple[str, str], ...]]) -> int:
    file, entry, constants = key
    signature = f"{entry.partition('<')[0]}_msl_args"
    indices, values = [int(i) for i, _ in constants], [value for _, value in constants]
    return int(
        torch.ops.torch_foundry._shader_pipeline(
            "cpu", file, entry, signature, "", indices, ["bool"] * len(indices), values
        )
    )


def replayed(paths: Iterable[Path]) -> dict[str, int]:
    """By file the bytes in which the host executor leaves something else than what is stored."""
    found = {}
    for path in paths:
        case = launches.read(path)
        before = {i: buffer.array.view("uint8") for i, buffer in case.buffers().items()}
        found[path.name] = 0
        for flush in (False, True):
            got, wanted = host(launches.about(path), before, flush), case.after(flush)  # type: ignore[misc]
            found[path.name] += sum(int((got[i] != wanted[i].view("uint8")).sum()) for i in got)
    return found


def main() -> None:
    """Compiles what has a launch. The compiler's words are printed, and are no failure: the build says the same."""
    entries = dict.fromkeys((file, entry) for file, entry, _ in plan())
    print("\n".join(metallib.build(list(entries), extension.BUILT, Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
