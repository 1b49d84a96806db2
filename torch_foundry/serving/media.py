"""Images and sounds in requests: parts of messages in each protocol, and what they hold (`text.media`), within limits.

An image comes as a data URL or as base64, a sound as base64. Addresses are never followed: a server that does would ask
on behalf of strangers what only its own network may.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch_foundry.serving.errors import ApiError
from torch_foundry.text.media import SOUND_FORMATS, heard_by, pixels, samples

DATA_URL = re.compile(r"data:image/[a-z]+;base64,", re.IGNORECASE)
KINDS = ("image_url", "input_image", "image")  # of parts, in OpenAI's chats and responses, and in Anthropic's protocol
SOUND = "input_audio"  # in OpenAI's chats and responses


def parts_of(content: Any, field: str, kinds: Sequence[str] = ("text",)) -> str | list[dict[str, Any]]:
    """What a user says: a text, or, with images or sounds, parts that chat templates know, {"type": "text", "text":
    ...}, {"type": "image"} and {"type": "audio"}; the latter two have base64 as "data" and say in which "field" they
    came, and a sound its "format". ApiError names a part of another kind.

    kinds: what parts that are texts are called.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{field}: expected a text or a list of parts", field)
    return joined([part_of(part, f"{field}[{i}]", kinds) for i, part in enumerate(content)])


def joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Parts as `parts_of` returns them: a text if all of them are."""
    shown = any(part["type"] != "text" for part in parts)
    return parts if shown else "".join(part["text"] for part in parts)


def part_of(part: Any, where: str, kinds: Sequence[str] = ("text",)) -> dict[str, Any]:
    """One of them."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in kinds and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == SOUND:
        return _sound(part, where)
    if kind not in KINDS:
        known = " or ".join((*kinds, "image_url", SOUND))
        raise ApiError(400, f"{where}: expected a part of the type {known}, got {kind!r:.60}", where)
    given: Any = part.get("source" if kind == "image" else "image_url")
    given = given if isinstance(given, dict) else {"url": given}
    if kind == "image":
        data = given.get("data") if given.get("type") == "base64" else None
    else:
        url = given.get("url")
        found = DATA_URL.match(url) if isinstance(url, str) else None
        data = None if found is None else url[found.end() :]
    if not isinstance(data, str):
        raise ApiError(400, f"{where}: expected an image as data:image/...;base64,... (no address is followed)", where)
    return {"type": "image", "data": data, "field": where}


def _sound(part: dict[str, Any], where: str) -> dict[str, Any]:
    given: Any = part.get(SOUND)
    data, format = (given.get("data"), given.get("format")) if isinstance(given, dict) else (None, None)
    if not isinstance(data, str):
        raise ApiError(400, f'{where}: expected {SOUND}: {{"data": base64, "format": ...}}', where)
    if not isinstance(format, str) or format not in SOUND_FORMATS:
        place, known = f"{where}.{SOUND}.format", ", ".join(SOUND_FORMATS)
        raise ApiError(400, f"{place}: expected one of {known}, got {format!r:.60}", place)
    return {"type": "audio", "data": data, "format": format, "field": where}


def pixels_of(part: dict[str, Any], most: int) -> Any:
    """The image of a part, in RGB. ApiError: it is none, or has more than `most` pixels; it is not decoded then."""
    return _decoded(part, lambda data: pixels(data, most))


def samples_of(part: dict[str, Any], processor: Any, longest: float) -> Any:
    """The sound of a part as a processor that hears takes it: float32 [n], one channel. ApiError: it is none, or lasts
    longer than `longest` seconds, or than the processor takes in; it is not decoded then."""
    return _decoded(part, lambda data: heard(data, part["format"], processor, longest))


def heard(data: bytes, format: str, processor: Any, longest: float) -> Any:
    """That of a file. ValueError: as there."""
    rate, whole = heard_by(processor)
    return samples(data, format, rate, min(longest, whole))


def _decoded(part: dict[str, Any], decode: Callable[[bytes], Any]) -> Any:
    where = part["field"]
    try:
        return decode(base64.b64decode(part["data"], validate=True))
    except binascii.Error:
        raise ApiError(400, f"{where}: expected base64 (no address is followed)", where) from None
    except ValueError as fault:
        raise ApiError(400, f"{where}: {fault}", where) from fault
