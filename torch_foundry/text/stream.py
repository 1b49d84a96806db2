"""Text while its tokens arrive.

A token may end inside a character, and decoders look at neighbouring tokens, so only text that no later token can
change is handed out. All pieces joined are what `tokenizer.decode` makes of all tokens.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer


class _Decoder(Protocol):
    """Takes tokens as the vocabulary spells them; both hand out text that is final."""

    def push(self, token: str) -> str: ...

    def finish(self) -> str: ...


class StreamDecoder:
    """`push` tokens as they come, `finish` when there are no more.

    No character is split, and no replacement character stands for one that may still be completed. Time is constant for
    each token. Joined, the texts are `tokenizer.decode(ids, skip_special_tokens, clean_up_tokenization_spaces=False)`.
    With SentencePiece's byte tokens a run of them is handed out when it ends, because `decode` replaces every
    character of a run in which one is broken. ValueError for decoders that aren't known (WordPiece and the like).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = False) -> None:
        backend = tokenizer.backend_tokenizer
        self._token = backend.id_to_token
        added = backend.get_added_tokens_decoder() if skip_special_tokens else {}
        self._skipped = {token.content for token in added.values() if token.special}
        self._make = _decoder(backend.decoder)
        self._decoder = self._make()

    def push(self, ids: int | Iterable[int]) -> str:
        """The text that is final once these have come; ids that no token has are passed over, as by `decode`."""
        out = []
        for i in [ids] if isinstance(ids, int) else ids:
            token = self._token(int(i)) if i >= 0 else None
            if token is not None and token not in self._skipped:
                out.append(self._decoder.push(token))
        return "".join(out)

    def finish(self) -> str:
        """The rest; what is incomplete becomes replacement characters. Then it starts anew."""
        rest, self._decoder = self._decoder.finish(), self._make()
        return rest


class TextStreamer(BaseStreamer):
    """For `generate(streamer=...)`: hands text to `emit` (printed, if it isn't given) as it becomes final."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        skip_prompt: bool = False,
        emit: Callable[[str], Any] | None = None,
        skip_special_tokens: bool = False,
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, skip_special_tokens)
        self._emit = emit or (lambda text: print(text, end="", flush=True))
        self._skip_prompt, self._at_prompt = skip_prompt, True

    def put(self, value: Any) -> None:
        """value: ids of one sequence, [tokens] or [1, tokens]."""
        if value.ndim > 1 and value.shape[0] != 1:
            raise ValueError("a stream is of one sequence")
        skip, self._at_prompt = self._at_prompt and self._skip_prompt, False
        if not skip and (text := self._decoder.push(value.flatten().tolist())):
            self._emit(text)

    def end(self) -> None:
        self._at_prompt = True
        if text := self._decoder.finish():
            self._emit(text)


class _Bytes:
    """Byte-level vocabularies: each letter is a byte."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: str) -> str:
        try:
            data = bytes(map(BYTE_OF.__getitem__, token))
        except KeyError:  # an added token, in letters of its own
            data = token.encode()
        return self._utf8.decode(data)

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


def _byte_of() -> dict[str, int]:
    """Printable bytes of Latin-1 are themselves; the others, in order, are the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_of()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")


class _Pieces:
    """SentencePiece: replacements, bytes in tokens <0xXX>, and one space less at the beginning."""

    def __init__(self, replace: list[tuple[str, str]], fallback: bool, strip: tuple[str, int]) -> None:
        self._replace, self._fallback, (self._stripped, self._to_strip) = replace, fallback, strip
        self._run = bytearray()

    def push(self, token: str) -> str:
        for old, new in self._replace:
            token = token.replace(old, new)
        if self._fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            self._run.append(int(byte[1], 16))
            return ""
        return self._strip(self._ended() + token)

    def finish(self) -> str:
        return self._strip(self._ended())

    def _ended(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _strip(self, text: str) -> str:
        while self._to_strip and text:
            if not text.startswith(self._stripped):
                self._to_strip = 0
                break
            text, self._to_strip = text[len(self._stripped) :], self._to_strip - 1
        return text


class _Metaspace:
    """A space is a letter, which the first token loses."""

    def __init__(self, letter: str, prefixed: bool) -> None:
        self._letter, self._first = letter, prefixed

    def push(self, token: str) -> str:
        first, self._first = self._first, False
        return token.replace(self._letter, "" if first else " ")

    def finish(self) -> str:
        return ""


def _decoder(decoder: Any) -> Callable[[], _Decoder]:
    """What makes our counterpart of a decoder of the tokenizers library, read from its description."""
    if decoder is None:
        raise ValueError("a tokenizer without a decoder can't be streamed")
    state = json.loads(decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _Bytes
    if kinds == ["Metaspace"]:
        letter = steps[0]["replacement"]
        prefixed = steps[0].get("prepend_scheme", "always") != "never"
        return lambda: _Metaspace(letter, prefixed)
    replace = []
    while kinds[:1] == ["Replace"] and "String" in steps[0]["pattern"]:
        replace.append((steps[0]["pattern"]["String"], steps[0]["content"]))
        kinds, steps = kinds[1:], steps[1:]
    strip = ("", 0)
    if kinds[-2:] == ["Fuse", "Strip"] and steps[-1]["stop"] == 0:
        strip = (steps[-1]["content"], steps[-1]["start"])
        kinds = kinds[:-1]
    if kinds not in (["ByteFallback", "Fuse"], ["ByteFallback"], ["Fuse"]):
        raise ValueError(f"no stream for a decoder of {', '.join(s['type'] for s in steps)}")
    fallback = "ByteFallback" in kinds
    return lambda: _Pieces(replace, fallback, strip)
