"""Images of conversations: pixels of what somebody has sent, within limits, and prompts that show them.

A message has an image as a part of the type "image" beside parts of the type "text", as chat templates know them.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # of a GIF, or another that moves, the first picture
MAX_PIXELS = 4 << 20  # of an image
MAX_BYTES = 8 << 20  # of what it comes with: a file, or a request


def shown_in(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The parts of messages that are images."""
    for message in messages:
        if isinstance(message["content"], list):
            yield from (part for part in message["content"] if part["type"] == "image")


def pixels(data: bytes, most: int = MAX_PIXELS) -> Image:
    """The image that `data` is a file of, in RGB. ValueError: it is none, or has more than `most` pixels, which its
    header has to say: it is not decoded then. Or there is no Pillow."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ValueError("images need Pillow: pip install 'torch_foundry[chat]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large ones, which are refused below, and of odd metadata
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            if image.width * image.height <= most:
                return image.convert("RGB")
    except Exception as fault:  # whatever a broken file makes its decoder raise
        raise ValueError(f"expected an image ({', '.join(FORMATS)}): {type(fault).__name__}") from fault
    raise ValueError(f"expected at most {most} pixels, got {image.width} x {image.height}")


def in_parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as the templates of models with images read them: texts are lists of parts, too."""
    found = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
        shown = [{"type": "image"} if part["type"] == "image" else part for part in parts]
        found.append({**message, "content": shown})
    return found


def inputs_of(processor: Any, text: str, images: list[Image]) -> dict[str, Any]:
    """What a model's processor makes of a rendered conversation and its images: `input_ids` [1, L], pixels and so on.

    ValueError: of these it can't.
    """
    try:
        return dict(processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt"))
    except Exception as fault:  # of sizes and shapes that it doesn't take
        why = f"{type(fault).__name__}: {fault!s:.200}"
        raise ValueError(f"the model's processor can't read the images: {why}") from fault
