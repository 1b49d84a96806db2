"""Loading on Metal, where the CPU and the GPU share their memory: files are read to where a tensor stays, or are used
where they lie in the page cache. Elsewhere there is nothing to do."""

from __future__ import annotations

import torch

from torch_foundry import _ext
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File

_ops = torch.ops.torch_foundry


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a new tensor (contiguous) as one that the CPU can write, until the GPU is given work with it.

    The tensor itself where there is no such view: off Metal, and before torch 2.12, whose memory on `mps` the GPU keeps
    to itself.
    """
    if tensor.device.type != "mps" or not tensor.numel() or not hasattr(_ops, "_metal_host_view"):
        return tensor
    found = _ops._metal_host_view(tensor)
    return tensor if found is None else found


def mapped(file: File, offset: int, nbytes: int) -> torch.Tensor | None:
    """A part of `file` where it lies in the page cache, as uint8 [nbytes] on `mps`; it can't be written. The pages stay
    mapped as long as the tensor, and the GPU, need them. None if Metal refuses them, and off Metal.
    """
    with file.opened() as fd:
        return _ops._metal_map(fd, offset, nbytes) if hasattr(_ops, "_metal_map") else None


def reads(device: torch.device) -> bool:
    """Whether files are to be read by Metal itself (TORCH_FOUNDRY_METAL_IO=1): an experiment."""
    wanted = _ext.environment("TORCH_FOUNDRY_METAL_IO", ("0", "1")) == "1"
    return wanted and device.type == "mps" and hasattr(_ops, "_metal_read")


def read(file: File, offset: int, out: torch.Tensor, field: str) -> None:
    """Fill `out`, contiguous on `mps`, with the bytes of `file` from `offset` on, by Metal's own reading of files.

    It opens the path again: as after File.read_into, callers have to make sure that it is still the same file.
    """
    if problem := _ops._metal_read(str(file.path.absolute()), offset, out):
        file.check()
        raise LoadError("IO", file.path, field, expected=f"{out.nbytes} bytes", found=problem, offset=offset)
