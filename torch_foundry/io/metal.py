"""Loading on Metal, where CPU and GPU share memory: files are read directly to where a tensor stays, or are used in the
page cache. On other devices nothing happens here.
"""

from __future__ import annotations

import torch

from torch_foundry.core import environment, extension  # noqa: F401  (_ext loads the ops)
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.files import File

_ops = torch.ops.torch_foundry


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a new contiguous tensor, as a tensor that the CPU can write until the GPU gets work with it.

    Returns the tensor itself where there is no such view: on other devices, and before torch 2.12, where the GPU's
    memory is private.
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
    wanted = environment.METAL_IO.on()
    return wanted and device.type == "mps" and hasattr(_ops, "_metal_read")


def read(file: File, offset: int, out: torch.Tensor, field: str) -> None:
    """Fill `out`, contiguous on `mps`, with the bytes of `file` from `offset` on, read by Metal itself.

    Metal opens the path again, so callers must check afterwards that it is still the same file, as after
    File.read_into.
    """
    if problem := _ops._metal_read(str(file.path.absolute()), offset, out):
        file.check()
        raise LoadError("IO", file.path, field, expected=f"{out.nbytes} bytes", found=problem, offset=offset)
