"""The environment variables: what each may be, its default and what it means. They are read nowhere else.

Imports nothing of the package, so that setup.py can use it. `python -m torch_foundry.core.environment` prints the
table of ARCHITECTURE.md.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable(ABC):
    """A variable, and what it is for."""

    name: str
    meaning: str

    def given(self) -> str:
        """Its text; empty if it isn't set."""
        return os.environ.get(self.name, "")

    @abstractmethod
    def values(self) -> str:
        """What it may be, for the documentation."""

    def error(self, expected: str) -> ValueError:
        """What is raised for another value."""
        return ValueError(f"{self.name}={self.given()!r}: expected {expected}")


@dataclass(frozen=True)
class Text(Variable):
    """Any text: a `kind` in one word."""

    kind: str

    def values(self) -> str:
        """What it may be, for the documentation."""
        return self.kind


@dataclass(frozen=True)
class Choice(Variable):
    """One of the values in `allowed`, of which the first is the default."""

    allowed: tuple[str, ...] = ("0", "1")

    def value(self) -> str:
        """The value; ValueError names what it may be."""
        value = self.given() or self.allowed[0]
        if value not in self.allowed:
            raise self.error(f"one of {', '.join(map(repr, self.allowed))}")
        return value

    def on(self) -> bool:
        """Whether it is "1"."""
        return self.value() == "1"

    def values(self) -> str:
        """What it may be, for the documentation."""
        return ", ".join(f"`{value}`" for value in self.allowed if value)


@dataclass(frozen=True)
class Count(Variable):
    """A number of `unit` below 2^31. `zero`: what 0 means."""

    unit: str
    zero: str

    def value(self) -> int | None:
        """The number; None if it isn't set. ValueError says what it may be."""
        text = self.given()
        if text and not (text.isdecimal() and int(text) < 2**31):
            raise self.error(f"0 ({self.zero}) or a number of {self.unit}")
        return int(text) if text else None

    def values(self) -> str:
        """What it may be, for the documentation."""
        return self.unit


KERNELS = Choice(
    "TORCH_FOUNDRY_KERNELS",
    "kernels as built, or from the checkout's `shaders/` and `csrc/host/`, translated again when a file changed",
    ("built", "src"),
)
CACHE = Text(
    "TORCH_FOUNDRY_CACHE",
    "where kernels compiled at run time are kept; one that can't be written, or that others may write, is replaced",
    "directory",
)
PROGRESS = Choice(
    "TORCH_FOUNDRY_PROGRESS",
    "a line on stderr, or a bar, when kernels have been compiled for a second; if it isn't set, on a terminal alone",
    ("1", "0"),
)
SANITIZE = Choice(
    "TORCH_FOUNDRY_SANITIZE",
    "kernels and runtime under a sanitizer (`make asan`, `make tsan`); at build time: an extension of its own",
    ("", "address", "thread"),
)
CHECKED = Choice(
    "TORCH_FOUNDRY_CHECKED",
    "host: misaligned vector access, integer division by zero and an implicit conversion out of range fail the launch; "
    "CUDA: barriers that not all threads reach are printed",
)
CXX = Text("CXX", "the C++ compiler of the host executor, such as `ccache g++`", "command")
GEMV_COLS_PER_TG = Choice(
    "TORCH_FOUNDRY_GEMV_COLS_PER_TG",
    "`linear` with few rows: outputs of a threadgroup, for every shape",
    ("", "2", "4", "8"),
)
GEMV_SPLIT_K = Choice("TORCH_FOUNDRY_GEMV_SPLIT_K", "the same: simdgroups that share K", ("", "1", "2", "4", "8", "16"))
GEMV_STEPS = Choice("TORCH_FOUNDRY_GEMV_STEPS", "the same: steps of K in flight", ("", "1", "2", "4"))
SUBNORMAL_CODES = Choice(
    "TORCH_FOUNDRY_SUBNORMAL_CODES",
    "packed codes as subnormal halves where the tuning table says so; if it isn't set, where the GPU keeps such halves",
    ("", "0", "1"),
)
TENSORS = Choice(
    "TORCH_FOUNDRY_TENSORS",
    "Metal: products of more rows by the tensor operations of an M5 where the tuning table says so; if it isn't set, "
    "where the GPU's error is small enough",
    ("", "0", "1"),
)
LINEAR_ROWS = Choice(
    "TORCH_FOUNDRY_LINEAR_ROWS",
    "rows up to which products go through the vector kernel, of any shape; `linear` itself takes 16 that way at least",
    ("", "8", "16", "32", "48", "64"),
)
MATRIX_ROWS = Choice(
    "TORCH_FOUNDRY_MATRIX_ROWS",
    "rows beyond those up to which packed weights are multiplied as 8x8 matrices without unpacking; `0`: none",
    ("", "0", "32", "64", "128"),
)
TILE_ROWS = Choice(
    "TORCH_FOUNDRY_TILE_ROWS",
    "rows beyond those up to which products go through tiles, and then through torch's own; `0`: none",
    ("", "0", "32", "64", "128", "192", "256", "512"),
)
ATTENTION_KEYS = Choice(
    "TORCH_FOUNDRY_ATTENTION_KEYS",
    "`attention` with few queries: keys of a threadgroup",
    ("", "128", "256", "512", "1024"),
)
METAL_VERSION = Choice(
    "TORCH_FOUNDRY_METAL_VERSION",
    "Metal: language that kernels are compiled as; by default the newest that macOS knows",
    ("", "3.1", "3.2", "4.0"),
)
METALLIB = Choice(
    "TORCH_FOUNDRY_METALLIB",
    "Metal: kernels that were compiled when the package was built, or all of them at run time",
    ("1", "0"),
)
METAL_ARCHIVE = Choice(
    "TORCH_FOUNDRY_METAL_ARCHIVE",
    "Metal: pipelines in the GPU's code kept in the cache (`MTLBinaryArchive`), beside macOS's own cache of them",
    ("1", "0"),
)
COMPILE_AHEAD = Choice(
    "TORCH_FOUNDRY_COMPILE_AHEAD",
    "`patch` compiles what a model's first token needs, in parallel; if it isn't set, on Metal alone",
    ("", "1", "0"),
)
METAL_IO = Choice(
    "TORCH_FOUNDRY_METAL_IO",
    "Metal: loading lets Metal read files (`MTLIOCommandQueue`), an experiment that nobody has measured",
)
COMMIT_EVERY = Count(
    "TORCH_FOUNDRY_COMMIT_EVERY",
    "Metal: launches of a thread after which work is handed to the GPU; default 100, `0`: when torch does",
    "launches",
    "never",
)
REPLAYS = Choice(
    "TORCH_FOUNDRY_REPLAYS",
    "Metal: how graphs are replayed: encoded again, each launch behind the one before; the same, but only behind those "
    "that it depends on; as indirect command buffers",
    ("serial", "concurrent", "indirect"),
)
SYNC_EVERY = Count(
    "TORCH_FOUNDRY_SYNC_EVERY",
    "`generate()`: how many are handed to the device before they are read; `0`: Hugging Face's own loop",
    "tokens",
    "Hugging Face's own loop",
)
GRAPH_MEMORY = Count(
    "TORCH_FOUNDRY_GRAPH_MEMORY",
    "captured steps of a model: what they may keep together; default 4096 on CUDA, 1024 elsewhere; `0`: none is kept",
    "MiB",
    "none is kept",
)
MEMORY_LIMIT = Count(
    "TORCH_FOUNDRY_MEMORY_LIMIT",
    "what weights, caches and workspaces may take of a GPU before they are refused; default: what Metal recommends, or "
    "all of CUDA's; `0`: nothing is refused",
    "MiB",
    "nothing is refused",
)
EXTENSION = Text(
    "TORCH_FOUNDRY_EXTENSION", "for tests: what is loaded in place of `_C`, which it brings along", "library"
)
PREBUILD = Choice(
    "TORCH_FOUNDRY_PREBUILD",
    "at build time: compile the host's common kernels; by default everywhere but on a Mac",
    ("", "0", "1"),
)
SKIP_EXTENSION = Choice(
    "TORCH_FOUNDRY_SKIP_EXTENSION", "at build time: only what is not compiled (`make` has built in place already)"
)

VARIABLES: tuple[Variable, ...] = tuple(value for value in globals().values() if isinstance(value, Variable))


def table() -> str:
    """All of them as a table in Markdown."""
    rows = [f"| `{each.name}` | {each.values()} | {each.meaning} |\n" for each in VARIABLES]
    return "".join(["| variable | values | meaning |\n|---|---|---|\n", *rows])


if __name__ == "__main__":
    print(table(), end="")
