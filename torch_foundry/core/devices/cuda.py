"""The CUDA executor: where NVRTC, which compiles its kernels, and CUDA's headers lie; streams and graphs of torch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torch_foundry.core import environment, sources, support
from torch_foundry.core.devices.base import Device, Facts, Places

# The one in crt/, which the others include, is in a package of its own, which torch doesn't install.
HEADERS = ("cuda.h", "cuda_runtime.h", "crt/host_config.h", "nvrtc.h")


class Cuda(Device):
    """NVIDIA's GPUs."""

    kind = "cuda"
    built_from = ("cuda/*.cpp",)  # the driver and NVRTC are loaded when the first kernel is compiled
    libraries = ("c10_cuda",)
    overlaps_copies = step_scratch = multiplies_few_by_matrices = True
    measured = ("sm_90",)
    graph_budget = 4 << 30
    prompt_keys = 256
    captured_keys = 4096
    step_tokens = 2048
    prompt_tokens = 1024

    def builds(self) -> bool:
        return self.built() and not self.own_problem()

    def include_dirs(self) -> list[str]:
        candidates = [home / "include" for home in _homes()]
        return [str(c) for c in dict.fromkeys(candidates) if any((c / header).is_file() for header in HEADERS)]

    def own_problem(self) -> str:
        folders = self.include_dirs()
        missing = [name for name in HEADERS if not any(Path(folder, name).is_file() for folder in folders)]
        advice = "install the CUDA toolkit, or with pip nvidia-cuda-crt of the version of nvidia-cuda-runtime"
        return f"no {', '.join(missing)} was found: {advice}" if missing else ""

    def set_up(self, places: Places) -> None:
        if not hasattr(torch.ops.torch_foundry, "_cuda_setup"):
            return
        torch.ops.torch_foundry._cuda_setup(
            libraries(torch.version.cuda),
            str(places.csrc),
            sources.tree_digest(places.csrc / "prelude", places.csrc / "cuda" / "prelude"),
            environment.CHECKED.on(),
            list(map(str, places.ready)),
            str(places.kernels),
        )

    def built(self) -> bool:
        return torch.version.cuda is not None

    def available(self) -> bool:
        return torch.cuda.is_available()

    def problem(self, has_executor: bool, known: Facts | None = None) -> str | None:
        known = known or self.facts()
        if not known.built:
            return f"this torch was built without CUDA: install one with CUDA, then {support.REBUILD}"
        if not known.available:
            return "torch sees no NVIDIA GPU (torch.cuda.is_available() is False)"
        if has_executor:
            return None
        first = f"{known.problem}, then " if known.problem else ""
        return f"this build of torch_foundry has no CUDA executor: {first}{support.REBUILD}"

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)

    def read(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
        # The event is one of the tensor's device: the current one may be another.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(tensor.device))
        return host, event.synchronize

    def memory(self, device: torch.device) -> int:
        return torch.cuda.memory_allocated(device)

    def working_set(self, device: torch.device) -> tuple[int, int] | None:
        if not self.available() or self.capturing():
            return None
        free, total = torch.cuda.mem_get_info(device)
        # Torch's own allocator has memory that nobody uses. It is asked once, as each layer's cache asks here:
        # memory_reserved() and memory_allocated() make a flat dictionary each, in 70 us.
        known = torch.cuda.memory_stats_as_nested_dict(device)
        unused = known["reserved_bytes"]["all"]["current"] - known["allocated_bytes"]["all"]["current"] if known else 0
        return total, total - free - unused

    def graph(self, device: torch.device, launch: Callable[[], None]) -> Callable[[], object]:
        # As torch.cuda.graph does, but without collecting garbage and waiting for the device.
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()
        current.wait_stream(stream)
        replay: Callable[[], object] = graph.replay
        return replay

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def name(self, device: torch.device) -> str:
        return torch.cuda.get_device_name(device)

    def describe(self, device: torch.device) -> dict[str, Any]:
        properties = torch.cuda.get_device_properties(device)
        return {
            "gpu": properties.name,
            "gpu_cores": properties.multi_processor_count,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }

    def ours(self, description: dict[str, Any]) -> str:
        return "kernels translated to CUDA C++ and compiled by NVRTC, on torch's stream"

    def stock(self, torch_version: str) -> str:
        return "cuBLAS and its own attention kernels"

    def advice(self, torch_version: str) -> Iterator[str]:
        yield "This is an NVIDIA GPU: its figures are its own and say nothing about an Apple GPU."


def _homes() -> Iterator[Path]:
    """Directories with `include/` and `lib/` of CUDA: the toolkit's, and those of NVIDIA's Python packages."""
    for given in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if given and Path(given).is_dir():
            yield Path(given)
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        yield from sorted(path for path in Path(root).iterdir() if path.is_dir() and path.name != "__pycache__")


def libraries(cuda: str | None = None) -> list[str]:
    """Paths and names under which to look for libnvrtc, the best first.

    cuda: the version of CUDA that torch was built for ("13.0"): another one's cubins may be too new for the driver.
    """
    found = [
        path
        for home in _homes()
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
        for path in sorted((home / folder).glob("libnvrtc.so.*"))
    ]
    major = cuda.partition(".")[0] if cuda else ""
    fits = [path for path in found if path.name.removeprefix("libnvrtc.so.").partition(".")[0] == major]
    names = [f"libnvrtc.so.{version}" for version in dict.fromkeys((major, "13", "12")) if version]
    return [*dict.fromkeys(str(path) for path in (*fits, *found)), *names]
