"""Cases of the corpus: a file (or a folder of files), what is put into it, and what a loader has to do with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sparse:
    """A file of `size` bytes, zero behind `head` but for `tail` at its end."""

    head: bytes
    size: int
    tail: bytes = b""


@dataclass(frozen=True)
class Node:
    """What is no file: "pipe", "folder", or a link to `target`."""

    kind: str
    target: str = ""


Content = bytes | Sparse | Node
Files = Content | Mapping[str, Content]  # by name within a folder


@dataclass(frozen=True)
class Case:
    """want: the codes of which one must be raised; empty if the file is to be accepted.

    policy: a format's specification leaves it open, or other readers decide otherwise.
    says: must be part of the error's message.
    """

    id: str
    what: str
    want: tuple[str, ...]
    build: Callable[[], Files]
    policy: bool = False
    says: str = ""

    def write(self, folder: Path) -> Path:
        """The file, or the folder, that is to be opened."""
        files = self.build()
        if not isinstance(files, Mapping):
            path = folder / f"{self.id}{'.safetensors' if self.id[0] == 'S' else '.gguf'}"
            write(path, files)
            return path
        root = folder / self.id
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write(root / name, content)
        return root

    def digest(self) -> str:
        """Of all that it writes."""
        files = self.build()
        named = files if isinstance(files, Mapping) else {"": files}
        sha = hashlib.sha256()
        for name, content in named.items():
            if isinstance(content, Node):
                content = repr(content).encode()
            if isinstance(content, Sparse):
                content = content.head + b"|%d|" % content.size + content.tail
            sha.update(b"%d %s %d " % (len(name), name.encode(errors="surrogatepass"), len(content)) + content)
        return sha.hexdigest()[:16]


def write(path: Path, content: Content) -> None:
    """The bytes at `path`; sparse ones take no room on the disk. An old file: loaders wait a little with new ones."""
    if isinstance(content, Node):
        if content.kind == "link":
            path.symlink_to(content.target)
        else:
            (os.mkfifo if content.kind == "pipe" else os.mkdir)(path)
        return
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.head)
        if isinstance(content, Sparse):
            file.truncate(content.size)
            file.seek(-len(content.tail), os.SEEK_END)
            file.write(content.tail)
    os.utime(path, (0, 0))


class Table:
    """Collects the cases of a module: `reject(id, what, codes, build)`, `accept(id, what, build)`."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def reject(
        self, id: str, what: str, codes: str, build: Callable[[], Files], says: str = "", policy: bool = False
    ) -> None:
        """codes: one, or several that all are right, with | between them."""
        self.cases.append(Case(id, what, tuple(codes.split("|")), build, policy, says))

    def accept(self, id: str, what: str, build: Callable[[], Files], policy: bool = False) -> None:
        self.cases.append(Case(id, what, (), build, policy))
