"""What a file is that isn't what its name says: broken downloads, and formats that are taken for each other."""

from __future__ import annotations

LOOK = 64  # bytes of a file's beginning that tell
_TEXTS = (
    (b"version https://git-lfs.github.com/", "a git-LFS pointer: the file itself was not downloaded (git lfs pull)"),
    (b"<!doctype html", "an HTML page, as failed downloads leave"),
    (b"<html", "an HTML page, as failed downloads leave"),
    (b"<?xml", "an XML page, as failed downloads leave"),
    (b"entry not found", "the message of a failed download, 'Entry not found'"),
    (b"invalid username or password", "the message of a failed download, 'Invalid username or password'"),
    (b"invalid credentials", "the message of a failed download, 'Invalid credentials'"),
    (b"access to model", "the message of a failed download: the model wants a login"),
    (b"repository not found", "the message of a failed download, 'Repository not found'"),
)
_OLD = "an old {} file of llama.cpp, from before GGUF: convert the model anew"
_MAGICS = (
    (b"GGUF", "a GGUF file"),
    *((magic, _OLD.format(name)) for magic, name in ((b"lmgg", "GGML"), (b"fmgg", "GGMF"), (b"tjgg", "GGJT"))),
    (b"algg", "a GGLA file, an old adapter of llama.cpp"),
    (b"PK\x03\x04", "a ZIP archive, as torch.save makes"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89HDF", "an HDF5 file, as Keras makes"),
    *((bytes((0x80, protocol)), "a pickle") for protocol in range(2, 6)),
)


def foreign(first: bytes) -> str | None:
    """What a file with this beginning (up to `LOOK` bytes) is; None if it is nothing known here."""
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for words, what in _TEXTS:
        if text.startswith(words):
            return what
    return next((what for magic, what in _MAGICS if first.startswith(magic)), None)


def is_safetensors(first: bytes) -> bool:
    """Whether a file with this beginning may be one: the length of a header, below 2^27, and a brace."""
    return first[8:9] == b"{" and int.from_bytes(first[:8], "little") < 1 << 27
