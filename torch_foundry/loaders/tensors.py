"""What containers hold and what models are made of; the interfaces between readers, architectures and assembly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as a container describes it.

    shape: rows first, as torch has it (GGUF lists dimensions the other way round). format: a name of
    `torch_foundry.quant.FORMATS`, or of a plain type that is no weight format ("i8", "i16", "i32", "i64", "u8", "u16",
    "u32", "f64", "bool", "f8_e4m3", "f8_e5m2"). offset: of its first byte in the file `path`.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    path: Path
    offset: int
    nbytes: int


class Container(Protocol):
    """One or several open files that belong together, whose headers have been read and checked."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Rows `start:stop` (of the first dimension) on the CPU: uint8 [..., row bytes] if packed, else of its dtype.

        LoadError if the file has changed since it was opened, or can't be read.
        """

    def read_into(self, name: str, out: torch.Tensor, start: int = 0, on_metal: torch.Tensor | None = None) -> None:
        """The rows from `start` on that `out` (contiguous, of the dtype that `read` returns) has room for. on_metal:
        the tensor on `mps` whose memory `out` is, into which Metal reads by itself."""

    def mapped(self, name: str, device: torch.device = CPU) -> torch.Tensor:
        """The whole tensor where it lies in the page cache, without a copy, on the CPU or `mps`. Whoever truncates the
        file then ends the process (SIGBUS), and whoever rewrites it changes the weights."""

    def close(self) -> None:
        """Close the files; mapped tensors stay."""


@dataclass(frozen=True)
class Weight:
    """A parameter that a model is to get, still in its file.

    shape: of the dense parameter ([out_features, in_features] of a matrix). format: in `quant.FORMATS`. source: name of
    the tensor in its file (the first, if there are several), for messages. load: reads it to a device: uint8
    [out_features, row bytes] if packed, else of the format's dtype. order: for a matrix whose columns are stored in
    another order (GPTQ's g_idx), integers [in_features] on the CPU: column j of the packed matrix multiplies input
    element order[j]. load_as: `load` of a dense one in another dtype, converted in row chunks; without it, as a whole.
    """

    shape: tuple[int, ...]
    format: str
    source: str
    load: Callable[[torch.device], torch.Tensor]
    order: torch.Tensor | None = None
    load_as: Callable[[torch.device, torch.dtype], torch.Tensor] | None = None
