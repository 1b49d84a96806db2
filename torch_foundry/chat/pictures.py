"""Images in a chat: files, read once and within limits, and what a conversation says of them."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.files import File
from torch_foundry.text.media import FORMATS, MAX_BYTES, pixels, shown_in

SUFFIXES = {f".{name.lower()}" for name in FORMATS} | {".jpg"}


class Pictures:
    """Images of a conversation: pixels, by the SHA-256 of their files, as a file may change, or go; and what is
    attached to the next question.

    processor: of a model that is shown images; or, in words, why it is shown none.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.attached: list[dict[str, Any]] = []  # parts of a message
        self._pixels: dict[str, Any] = {}

    def check(self, name: str) -> None:
        """ValueError if the model, called `name`, is shown none."""
        if isinstance(self.processor, str):
            raise ValueError(f"{name} is shown no images: {self.processor}")

    def moved_to(self, processor: Any) -> Pictures:
        """The same, for another model."""
        other = Pictures(processor)
        other.attached, other._pixels = self.attached, self._pixels
        return other

    def add(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The part of a message that shows the file `path`. ValueError: it is no image, or has more bytes or pixels
        than a request to a server may have."""
        path = Path(path).expanduser()
        try:
            file = File(path)
            try:
                if file.size > MAX_BYTES:
                    raise ValueError(f"{path}: expected at most {MAX_BYTES} bytes, got {file.size}")
                data = bytes(file.read(file.size, 0, "image"))
            finally:
                file.close()
        except LoadError as error:
            raise ValueError(f"{path}: expected an image, got {error.found}") from None
        try:
            image = pixels(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        digest = hashlib.sha256(data).hexdigest()
        self._pixels[digest] = image
        size = {"width": image.width, "height": image.height, "bytes": len(data)}
        return {"type": "image", "path": str(path.absolute()), "sha256": digest, **size}

    def gone(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        """Files of images of `messages` that are not known, and of which there is no file with the same content any
        more; the others are known from then on."""
        return list(dict.fromkeys(part["path"] for part in shown_in(messages) if not self._known(part)))

    def of(self, messages: Sequence[dict[str, Any]]) -> list[Any]:
        """Pixels of all images of `messages`, in order. ValueError names what is gone."""
        if gone := self.gone(messages):
            what = "is an image of this conversation, and the file is gone or another one by now"
            raise ValueError(f"{gone[0]}: {what}; put it back, or take its question back with /edit")
        return [self._pixels[part["sha256"]] for part in shown_in(messages)]

    def _known(self, part: dict[str, Any]) -> bool:
        if part["sha256"] in self._pixels:
            return True
        try:
            return bool(self.add(part["path"])["sha256"] == part["sha256"])
        except ValueError:
            return False


def described(part: dict[str, Any]) -> str:
    """A line for an image: name and size."""
    name, size = Path(part["path"]).name, f"{part['width']} x {part['height']}"
    return f"image {name}, {size}, {max(1, round(part['bytes'] / 1024))} KiB"


def text_of(message: dict[str, Any]) -> str:
    """What somebody has written."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def told(message: dict[str, Any]) -> str:
    """A message to be shown: a line for each image, and the text."""
    return "\n".join([*map(described, shown_in([message])), text_of(message)])


def files_in(text: str) -> list[str]:
    """The files that `text` names: one, or several as shells and terminals write them, quoted, with backslashes, or as
    file:// addresses. ValueError: a quotation has no end."""
    if _is_file(text.strip()):
        return [text.strip()]
    return [unquote(urlparse(word).path) if word.startswith("file://") else word for word in shlex.split(text)]


def are_dropped(text: str) -> bool:
    """Whether a text that was pasted is what a terminal makes of images that somebody drops on it."""
    try:
        paths = files_in(text)
    except ValueError:
        return False
    return bool(paths) and all(Path(path).suffix.lower() in SUFFIXES and _is_file(path) for path in paths)


def _is_file(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # a name that none can have
        return False
