"""Images and sounds of conversations: pixels and samples of what somebody has sent, within limits, and prompts that
show them.

A message has them as parts of the types "image" and "audio" beside parts of the type "text", as chat templates know
them.
"""

from __future__ import annotations

import inspect
import io
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # of a GIF, or another that moves, the first picture
MAX_PIXELS = 4 << 20  # of an image
# Of sounds, and what their files begin with, without which none of libsndfile's many other formats is tried.
SOUND_FORMATS = {"wav": (b"RIFF",), "mp3": (b"ID3", b"\xff"), "flac": (b"fLaC",), "ogg": (b"OggS",)}
MIN_SECONDS = 0.1  # of a sound; of less, some models make no token
MAX_SECONDS = 300.0
MAX_SAMPLES = 1 << 25  # of a sound as it comes, in all of its channels: 128 MiB when it is decoded
MAX_BYTES = 8 << 20  # of what either comes with: a file, or a request


def shown_in(messages: Sequence[dict[str, Any]], kind: str = "image") -> list[dict[str, Any]]:
    """The parts of messages that are images, or of another type."""
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [part for content in contents for part in content if part["type"] == kind]


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


def samples(data: bytes, format: str, rate: int, longest: float = MAX_SECONDS) -> ndarray:
    """The sound that `data` is a file of, one channel, the mean of its own: float32 [n] from -1 to 1, `rate` a second.

    format: of `SOUND_FORMATS`. ValueError: it is no such file, or lasts less than `MIN_SECONDS` or more than `longest`
    seconds, or has more than `MAX_SAMPLES` samples, which its header has to say: it is not decoded then. Or there is
    no decoder.
    """
    try:
        import numpy as np
        import soundfile
        import soxr
    except (ModuleNotFoundError, OSError):  # OSError: there is no libsndfile
        raise ValueError("sounds need soundfile and soxr: pip install 'torch_foundry[serve]'") from None
    if not data.startswith(SOUND_FORMATS[format]):
        raise ValueError(f"expected a file of the format {format}, got one that begins with {data[:4]!r}")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            frames, seconds = file.frames, file.frames / file.samplerate
            if not MIN_SECONDS <= seconds <= longest:
                raise _OutOfRange(f"expected {MIN_SECONDS:g} to {longest:g} seconds, got {seconds:.6g}")
            if frames * file.channels > MAX_SAMPLES:
                raise _OutOfRange(f"expected at most {MAX_SAMPLES} samples, got {frames} in {file.channels} channels")
            found = file.read(frames, dtype="float32", always_2d=True)
            if len(found) < frames:
                raise _OutOfRange(f"expected {frames} samples, as its header says, got {len(found)}")
            if not np.isfinite(found).all():
                raise _OutOfRange("expected finite samples, got NaN or an infinity")
            mono = np.clip(found, -1, 1, out=found).mean(axis=1)
            return mono if file.samplerate == rate else np.clip(soxr.resample(mono, file.samplerate, rate), -1, 1)
    except _OutOfRange:
        raise
    except Exception as fault:  # whatever a broken file makes its decoder raise
        why = getattr(fault, "error_string", "") or type(fault).__name__
        raise ValueError(f"expected a file of the format {format}: {why}") from fault


def format_of(data: bytes) -> str:
    """Of `SOUND_FORMATS`, the one of a file, by what it begins with. ValueError: none."""
    for name, marks in SOUND_FORMATS.items():
        if data.startswith(marks):
            return name
    raise ValueError(
        f"expected a file of a format among {', '.join(SOUND_FORMATS)}, got one that begins with {data[:4]!r}"
    )


class _OutOfRange(ValueError):
    """A sound that can be read, but isn't taken."""


def sees(processor: Any) -> bool:
    """Whether a model's processor makes something of images."""
    return getattr(processor, "image_processor", None) is not None


def hears(processor: Any) -> bool:
    """Whether it makes something of sounds: it takes them as `audio`, beside a text, and knows their sampling rate."""
    taken = inspect.signature(type(processor).__call__).parameters
    return {"audio", "text"} <= taken.keys() and hasattr(_extractor(processor), "sampling_rate")


def heard_by(processor: Any) -> tuple[int, float]:
    """The sampling rate of a processor that `hears`, and the seconds of a sound behind which it would cut it off."""
    extractor, settings = _extractor(processor), getattr(processor, "audio_kwargs", None) or {}
    if seconds := getattr(processor, "max_audio_len", None):  # it splits sounds into windows, so many as are whole
        window = extractor.chunk_length
        return extractor.sampling_rate, float(seconds // window * window)
    told = {name: each.default for name, each in inspect.signature(type(extractor).__call__).parameters.items()}
    told |= settings
    longest = told.get("max_length") or getattr(extractor, "n_samples", None)
    cuts = told.get("truncation", False) is True and longest is not None
    return extractor.sampling_rate, longest / extractor.sampling_rate if cuts else math.inf


def _extractor(processor: Any) -> Any:
    return getattr(processor, "feature_extractor", None) or getattr(processor, "audio_processor", None)


def in_parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as the templates of models with images or sounds read them: texts are lists of parts, too."""
    found = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
        shown = [{"type": part["type"]} if part["type"] in ("image", "audio") else part for part in parts]
        found.append({**message, "content": shown})
    return found


def inputs_of(processor: Any, text: str, images: Sequence[Image], sounds: Sequence[ndarray] = ()) -> dict[str, Any]:
    """What a model's processor makes of a rendered conversation with images and sounds (float32 [n], at its own
    sampling rate): `input_ids` [1, L], pixels, features and so on.

    ValueError: of these it can't.
    """
    given: dict[str, Any] = {"images": [*images]} if images else {}
    if sounds:
        given |= {"audio": [*sounds], "audio_kwargs": {"sampling_rate": heard_by(processor)[0]}}
    try:
        return dict(processor(text=[text], add_special_tokens=False, return_tensors="pt", **given))
    except Exception as fault:  # of sizes and shapes that it doesn't take
        what = " and ".join(name for name, shown in (("images", images), ("sounds", sounds)) if shown)
        why = f"{type(fault).__name__}: {fault!s:.200}"
        raise ValueError(f"the model's processor can't read the {what}: {why}") from fault
