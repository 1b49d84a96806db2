"""Images in requests: parts of messages in each protocol, and what they hold (`text.images`), within limits.

An image comes as a data URL or as base64. Addresses are never followed: a server that does would ask on behalf of
strangers what only its own network may.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from PIL import Image

from torch_foundry.serving.errors import ApiError
from torch_foundry.text.images import pixels

DATA_URL = re.compile(r"data:image/[a-z]+;base64,", re.IGNORECASE)
KINDS = ("image_url", "input_image", "image")  # of parts, in OpenAI's chats and responses, and in Anthropic's protocol


def parts_of(content: Any, field: str, kinds: Sequence[str] = ("text",)) -> str | list[dict[str, Any]]:
    """What a user says: a text, or, with images, parts that chat templates know, {"type": "text", "text": ...} and
    {"type": "image"}; the latter has base64 as "data" and says in which "field" it came. ApiError names a part of
    another kind.

    kinds: what parts that are texts are called.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{field}: expected a text or a list of parts", field)
    return joined([part_of(part, f"{field}[{i}]", kinds) for i, part in enumerate(content)])


def joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Parts as `parts_of` returns them: a text if all of them are."""
    shown = any(part["type"] == "image" for part in parts)
    return parts if shown else "".join(part["text"] for part in parts)


def part_of(part: Any, where: str, kinds: Sequence[str] = ("text",)) -> dict[str, Any]:
    """One of them."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in kinds and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind not in KINDS:
        known = " or ".join((*kinds, "image_url"))
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


def pixels_of(part: dict[str, Any], most: int) -> Image.Image:
    """The image of a part, in RGB. ApiError: it is none, or has more than `most` pixels; it is not decoded then."""
    where = part["field"]
    try:
        return pixels(base64.b64decode(part["data"], validate=True), most)
    except binascii.Error:
        raise ApiError(400, f"{where}: expected base64", where) from None
    except ValueError as fault:
        raise ApiError(400, f"{where}: {fault}", where) from fault
