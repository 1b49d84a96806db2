"""The one exception of the front end."""

from __future__ import annotations


class MslError(Exception):
    """The source cannot be translated; the message starts with `file:line:`."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}" if line else f"{file}: {message}")
        self.file = file
        self.line = line
        self.message = message
