"""What the package asks about a type of device. The modules beside this one answer, one for each executor."""

from __future__ import annotations

import contextlib
import platform
import resource
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from torch_foundry.core import support


@dataclass(frozen=True)
class Facts:
    """What `Device.problem` depends on: a machine, and what its torch says about the device."""

    system: str  # platform.system(): "Darwin", "Linux" ...
    machine: str  # "arm64", "x86_64" ...
    macos: tuple[int, int] | None  # None: not macOS, or not known
    rosetta: bool  # an x86_64 process on Apple silicon
    built: bool  # whether torch was built for the device
    available: bool
    problem: str = ""  # why the executor can't use it or be built; empty: it can, or isn't loaded


@dataclass(frozen=True)
class Places:
    """Where executors find what they compile, and where they keep what they have compiled."""

    built: Path  # the package's own files
    csrc: Path  # the preludes and the host's runtime: a checkout's csrc, or `built`
    shaders: Path
    cache: Path  # of the user
    kernels: Path  # where new ones go
    ready: tuple[Path, ...]  # where they are looked for first


class Device:
    """A type of device: here one that has no executor, or of which nothing more is known."""

    kind: ClassVar[str] = ""  # torch's name for it
    built_from: ClassVar[tuple[str, ...]] = ()  # sources of its executor, below csrc/
    libraries: ClassVar[tuple[str, ...]] = ()
    host_memory = False  # tensors are the process's memory: values can be checked, and an op is done when it returns
    maps_files = False  # weights may stay in the page cache
    overlaps_copies = False  # a copy from pageable memory has read it when it returns, and waits for nothing else
    emulated = False  # the "GPU" is really the CPU
    half = True  # 16 bits are the dtype of choice
    float64 = True
    step_scratch = False  # a captured step has memory of its own to unpack matrices to
    measured: tuple[str, ...] = ()  # families, by how they begin, whose choices in the built-in table were measured
    multiplies_few_by_matrices = False  # `tune` tries products of few rows by matrices
    compiles_ahead = False  # what a model's first token needs is compiled when the model is patched
    graph_budget = 1 << 30  # bytes that captured steps may keep
    prompt_keys = 0  # from so many on torch's attention of a prompt is faster than ours; 0: it never is
    captured_keys = 0  # from so many on an engine's step that reads a prompt isn't captured, for torch's attention
    step_tokens = 256  # of an engine, at most, if nobody says how many
    prompt_tokens = 128  # of prompts in an engine's step, beyond which the device takes longer than Python does

    def builds(self) -> bool:
        """Whether the extension is built with the executor on this machine."""
        return True

    def include_dirs(self) -> list[str]:
        """Directories with headers that the executor's sources need."""
        return []

    def set_up(self, places: Places) -> None:
        """Tell the executor where things are, and what the environment says. In builds without it nothing happens."""

    def built(self) -> bool:
        """Whether torch was built for the device."""
        return True

    def available(self) -> bool:
        """Whether torch sees such a device."""
        return True

    def facts(self) -> Facts:
        """The facts of this process."""
        system, machine = platform.system(), platform.machine()
        rosetta = system == "Darwin" and machine == "x86_64" and support.sysctl("sysctl.proc_translated") == "1"
        return Facts(
            system, machine, support.macos_version(), rosetta, self.built(), self.available(), self.own_problem()
        )

    def own_problem(self) -> str:
        """Why the executor can't use the device, or can't be built."""
        return ""

    def expected(self, known: Facts) -> bool:
        """Whether a machine has such a device, or should have."""
        return known.available

    def problem(self, has_executor: bool, known: Facts | None = None) -> str | None:
        """Why kernels can't run on such tensors, in a sentence; None if they can. known: default: `facts()`."""
        return None if has_executor else f"this build of torch_foundry has no executor for {self.kind}"

    def synchronize(self, device: torch.device) -> None:
        """Wait until all that was launched on `device` is done."""
        torch.zeros(1, device=device).cpu()  # reading waits

    def read(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
        """Start to read: the tensor's copy on the host, and what waits until it is there."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        host.copy_(tensor, non_blocking=True)
        event = torch.Event(device=tensor.device, blocking=True)
        event.record()
        weakref.finalize(host, event.synchronize).atexit = False  # nobody else gets its memory before that is written
        return host, event.synchronize

    def memory(self, device: torch.device) -> int:
        """Bytes that tensors on `device` take; where torch doesn't count, the most that the process has had."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if platform.system() == "Darwin" else most << 10

    def working_set(self, device: torch.device) -> tuple[int, int] | None:
        """Bytes that this process may have on `device`, and those that are in use; None: nobody says."""
        return None

    def graph(self, device: torch.device, launch: Callable[[], None]) -> Callable[[], object] | None:
        """What launches again all that `launch` does, calls of torch among it; None if nothing is faster than it."""
        return None

    def capturing(self) -> bool:
        """Whether somebody captures a graph of the current stream."""
        return False

    def host_view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The memory of a new contiguous tensor, as a tensor that the CPU can write until the device gets work with it;
        the tensor itself where there is none.
        """
        return tensor

    def mapped(self, file: int, offset: int, nbytes: int) -> torch.Tensor | None:
        """A part of an open file where it lies in the page cache, as uint8 [nbytes], which can't be written. The pages
        stay as long as the tensor, and the device, need them. None if there is no such thing.
        """
        return None

    def reads_files(self) -> bool:
        """Whether the device is to fill tensors by itself, by `read_file`."""
        return False

    def read_file(self, path: Path, offset: int, out: torch.Tensor) -> str:
        """Fill contiguous `out` with a file's bytes from `offset` on. What went wrong; empty if nothing."""
        raise NotImplementedError

    @property
    def replays(self) -> tuple[str, ...]:
        """The ways in which graphs can be replayed, the plainest first: see TORCH_FOUNDRY_REPLAYS."""
        return ("serial",)

    @contextlib.contextmanager
    def replaying(self, how: str) -> Iterator[None]:
        """Graphs captured inside are replayed so: one of `replays`."""
        yield

    def name(self, device: torch.device) -> str:
        """Of the hardware, for a table of figures."""
        return f"{self.kind} {platform.machine()}"

    def describe(self, device: torch.device) -> dict[str, Any]:
        """The hardware, and the executor's own facts."""
        return {}

    def ours(self, description: dict[str, Any]) -> str:
        """How this package runs a model, on a device that `describe` has described."""
        return "unknown"

    def stock(self, torch_version: str) -> str:
        """Which code stock torch runs: known by version, not measured."""
        return "unknown"

    def advice(self, torch_version: str) -> Iterator[str]:
        """Sentences for the reader of figures."""
        yield from ()
