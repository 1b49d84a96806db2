"""The error of every loader."""

from __future__ import annotations

import os

from torch_foundry.loaders.codes import CODES

_LONGEST = 400  # letters of a text that a message quotes


class LoadError(Exception):
    """A file that can't be loaded, and what is wrong with it.

    Attributes, which stay the same from version to version:
        code: what kind of fault it is ("TRUNCATED", "SHAPE", ... of `codes.CODES`), for programs
        file: path of the file
        field: what in the file ("n_tensors", "blk.0.attn_q.weight", a metadata key ...); "" for the file as a whole
        offset: where in the file, in bytes; None where that says nothing
        expected, found: what a good file has there, and what this one has
    """

    def __init__(
        self,
        code: str,
        file: str | os.PathLike[str],
        field: str = "",
        *,
        expected: str,
        found: str,
        offset: int | None = None,
    ) -> None:
        if code not in CODES:
            raise ValueError(f"code: {code!r} is not in torch_foundry.loaders.codes")
        self.code, self.file, self.offset = code, os.fspath(file), offset
        self.field, self.expected, self.found = _plain(field), _plain(expected), _plain(found)
        where = f"{self.field}: " if field else ""
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{_plain(self.file)}: {where}expected {self.expected}, found {self.found}{at} [{code}]")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.code, self.file, self.field, self.expected, self.found, self.offset)


def is_fault(error: BaseException) -> bool:
    """Whether something has failed, and nobody interrupted it: a panic of the tokenizers library is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _plain(text: str) -> str:
    """What of a file's text a message may show: nothing that a terminal would obey, and not without end."""
    text = text[: _LONGEST + 1]
    text = text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _rebuild(code: str, file: str, field: str, expected: str, found: str, offset: int | None) -> LoadError:
    return LoadError(code, file, field, expected=expected, found=found, offset=offset)
