"""Compiles .metal text for the host and runs it through the runtime's C interface alone: no torch, no extension."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torch_foundry.core.sources import HostTree, compiler
from torch_foundry.msl import Translation, translate

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / "csrc" / "host"
KERNELS = Path(__file__).parent / "kernels"
ORDERS = {"forward": 0, "reverse": 1, "random": 2}

CACHE = Path(os.environ.get("TORCH_FOUNDRY_CACHE") or Path(tempfile.gettempdir()) / "torch_foundry_msl_tests")


class LaunchError(RuntimeError):
    """The runtime refused a launch or found a fault in it."""


class KernelEntry(ctypes.Structure):
    """msl_kernel_entry of csrc/host/runtime.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("nargs", ctypes.c_uint32),
        ("args", ctypes.c_void_p),
        ("used", ctypes.c_uint32),
    )


class HostModule(ctypes.Structure):
    """msl_module."""

    _fields_ = (("abi", ctypes.c_uint32), ("nkernels", ctypes.c_uint32), ("kernels", ctypes.POINTER(KernelEntry)))


class Launch(ctypes.Structure):
    """msl_launch."""

    _fields_ = (
        ("kernel", ctypes.POINTER(KernelEntry)),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("buffer_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("nbuffers", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("grid_is_threads", ctypes.c_int32),
        ("threadgroup_bytes", ctypes.POINTER(ctypes.c_uint32)),
        ("nthreadgroup", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Flavour:
    """How kernels and runtime are compiled."""

    cxx: tuple[str, ...] = ()  # default: the compiler that the package uses
    sanitizer: str = ""  # "asan", "tsan" or "checked"
    extra: tuple[str, ...] = ()

    def _command(self, *kinds: str) -> list[str]:
        flags = HostTree(HOST)
        return [*(self.cxx or compiler()), *(f for kind in kinds for f in flags.flags(kind)), *self.extra]

    def runtime_command(self) -> list[str]:
        kinds = ("runtime", f"runtime-{self.sanitizer}") if self.sanitizer in ("asan", "tsan") else ("runtime",)
        return self._command(*kinds)

    def kernel_command(self) -> list[str]:
        return self._command("kernel", *((self.sanitizer,) if self.sanitizer else ()))


def build(command: Sequence[str], text: str, suffix: str = ".so") -> Path:
    """Compiles C++ text, once per content of text, command and host sources."""
    identity = "\0".join([*command, text, HostTree(HOST).text_digest()])
    CACHE.mkdir(parents=True, exist_ok=True)
    output = CACHE / (hashlib.sha256(identity.encode()).hexdigest()[:32] + suffix)
    if not output.exists():
        temporary = output.with_suffix(f".{os.getpid()}{suffix}")
        source = temporary.with_suffix(".cpp")
        source.write_text(text)
        includes = [f"-I{directory}" for directory in HostTree(HOST).include_dirs()]
        result = subprocess.run([*command, *includes, source, "-o", temporary], capture_output=True, text=True)
        source.unlink()
        if result.returncode != 0:
            raise RuntimeError(result.stderr[:4000])
        temporary.replace(output)
    return output


def runtime_text() -> str:
    return "".join(f'#include "{source}"\n' for source in HostTree(HOST).runtime_sources())


def kernel_text(source: str | Path, extra: Sequence[str] = (), defines: Mapping[str, str] | None = None) -> str:
    """Translated source with a registration for each kernel in it; `extra` lines follow it."""
    translation: Translation = translate(source, defines=dict(defines or {}))
    lines = [f'MSL_KERNEL("{k.name}", {k.signature}, {k.entry})' for k in translation.kernels]
    return "\n".join([translation.source, *lines, *extra, ""])


class Runtime:
    """The runtime library, loaded once per flavour, and its launch function."""

    def __init__(self, flavour: Flavour) -> None:
        self.library = ctypes.CDLL(str(build(flavour.runtime_command(), runtime_text())), mode=ctypes.RTLD_GLOBAL)
        self.library.msl_rt_abi.restype = ctypes.c_uint32
        self.flavour = flavour

    def configure(self, order: str = "forward", seed: int = 0, threads: int = 0, strict: bool = True) -> None:
        self.library.msl_rt_configure(ORDERS[order], ctypes.c_uint64(seed), threads, int(strict))

    def load(self, text: str) -> dict[str, Kernel]:
        """The kernels of a translated text."""
        library = ctypes.CDLL(str(build(self.flavour.kernel_command(), text)))
        library.msl_get_module.restype = ctypes.POINTER(HostModule)
        module = library.msl_get_module().contents
        assert module.abi == self.library.msl_rt_abi()
        return {e.name.decode(): Kernel(self, e) for e in (module.kernels[i] for i in range(module.nkernels))}


@dataclass
class Kernel:
    """A compiled kernel; calling it launches it."""

    runtime: Runtime
    entry: KernelEntry

    def __call__(
        self,
        *buffers: np.ndarray | None,
        threads: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
        group_size: Sequence[int] = (32,),
        threadgroup_memory: Sequence[int] = (),
        sizes: bool = True,
    ) -> None:
        grid = threads if threads is not None else groups
        assert grid is not None
        count = max(len(buffers), 1)
        addresses = (ctypes.c_void_p * count)(*(None if b is None else b.ctypes.data for b in buffers))
        nbytes = (ctypes.c_uint64 * count)(*(0 if b is None else b.nbytes for b in buffers))
        launch = Launch(
            ctypes.pointer(self.entry),
            addresses,
            nbytes if sizes else None,
            len(buffers),
            (ctypes.c_uint32 * 3)(*_padded(grid)),
            (ctypes.c_uint32 * 3)(*_padded(group_size)),
            threads is not None,
            (ctypes.c_uint32 * max(len(threadgroup_memory), 1))(*threadgroup_memory),
            len(threadgroup_memory),
        )
        message = ctypes.create_string_buffer(1024)
        if self.runtime.library.msl_rt_launch(ctypes.byref(launch), message, ctypes.c_uint64(1024)) != 0:
            raise LaunchError(message.value.decode())


def _padded(sizes: Sequence[int]) -> list[int]:
    return [*sizes, *[1] * (3 - len(sizes))]


@functools.cache
def runtime() -> Runtime:
    """The plain runtime. A process has one: another flavour needs a process of its own."""
    return Runtime(Flavour())


@functools.cache
def kernels(file: str) -> dict[str, Kernel]:
    """The kernels of a file beside this one, or of MSL text."""
    source = KERNELS / file if file.endswith(".metal") else file
    return runtime().load(kernel_text(source))


def has_compiler_flag(flag: str, cxx: str | None = None) -> bool:
    """Whether a shared library links with this flag (that the sanitizer's library is installed, say)."""
    command = [*([cxx] if cxx else compiler()), flag, "-shared", "-fPIC", "-x", "c++", "-", "-o", os.devnull]
    return subprocess.run(command, input="void f() {}", capture_output=True, text=True).returncode == 0


def cross_tools() -> tuple[str, str] | None:
    """A compiler and an emulator for aarch64, where this machine is not one and has both."""
    cxx = shutil.which("aarch64-linux-gnu-g++")
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    return (cxx, qemu) if cxx and qemu and platform.machine() != "aarch64" else None
