"""The steps that text takes to tokens and back: only known ones, and none that makes much out of little."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch_foundry.io.words.regexes import shortest_match
from torch_foundry.text.charsmap import check_charsmap

STEPS = {  # part of a tokenizer -> its steps
    "normalizer": "NFC NFD NFKC NFKD Nmt Lowercase Strip StripAccents BertNormalizer Precompiled Replace Prepend"
    " ByteLevel",
    "pre_tokenizer": "ByteLevel Metaspace Split Digits Punctuation Whitespace WhitespaceSplit BertPreTokenizer"
    " CharDelimiterSplit UnicodeScripts",
    "post_processor": "TemplateProcessing ByteLevel RobertaProcessing BertProcessing",
    "decoder": "ByteLevel Metaspace Replace ByteFallback Fuse Strip WordPiece BPEDecoder CTC",
}  # fmt: skip
_WITHIN = ("normalizers", "pretokenizers", "processors", "decoders")  # of a Sequence
MOST_STEPS = 32  # of one part
MOST_ADDED = 64  # tokens around a text
LONGEST_TEXT = 1024  # characters of a setting
LONGEST_PREFIX = 16  # characters before each piece of text
GROWTH = 16  # times as many characters, by all replacements together
Fail = Callable[..., NoReturn]


def check_pipeline(spec: dict[str, Any], fail: Fail) -> None:
    """spec: the parts by name, as in tokenizer.json; None for one that isn't there. fail(expected, found, field)."""
    for name, known in STEPS.items():
        if spec.get(name) is not None:
            _check_part(name, spec[name], known.split(), fail)


def _steps(part: Any, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of sequences within sequences, too; what is no step, as one of an unknown type."""
    if not isinstance(part, dict):
        return [*found, {"type": type(part).__name__}]
    if part.get("type") != "Sequence":
        return [*found, part]
    lists = [part[name] for name in _WITHIN if isinstance(part.get(name), list)]
    for step in lists[0] if lists else [None]:
        if len(found) <= MOST_STEPS:
            found = _steps(step, found)
    return found


def _check_part(name: str, part: Any, known: list[str], fail: Fail) -> None:
    steps = _steps(part, [])
    if len(steps) > MOST_STEPS:
        fail(f"at most {MOST_STEPS} steps", "more", name)
    growth, added = 1.0, 0
    for step in steps:
        kind = step.get("type")
        if kind not in known:
            fail(f"one of {', '.join(known)}", repr(kind)[:60], name)
        if any(len(text) > LONGEST_TEXT for text in _texts(step)):
            fail(f"texts of at most {LONGEST_TEXT} characters", "a longer one", f"{name}.{kind}")
        growth *= _growth(step, name, fail)
        added += _added(step, name, fail)
    if sum(step.get("type") == "ByteLevel" for step in steps) > 1:
        fail("ByteLevel once: it makes two characters of one", "it twice", name)
    if growth > GROWTH:
        fail(f"a text that grows at most {GROWTH} times", f"{growth:g} times", name)
    if added > MOST_ADDED:
        fail(f"at most {MOST_ADDED} tokens added", f"{added}", name)


def _growth(step: dict[str, Any], name: str, fail: Fail) -> float:
    """How many characters a step makes of one."""
    field = f"{name}.{step['type']}"
    if step["type"] == "Precompiled":
        try:
            data = base64.b64decode(step.get("precompiled_charsmap") or "", validate=True)
            problem = check_charsmap(data)
        except (TypeError, ValueError):
            problem = "base64", "another thing"
        if problem is not None:
            fail(*problem, field)
    if step["type"] == "Prepend" and len(str(step.get("prepend"))) > LONGEST_PREFIX:
        fail(f"at most {LONGEST_PREFIX} characters before a text", f"{len(str(step.get('prepend')))}", field)
    pattern = step.get("pattern")
    if step["type"] not in ("Replace", "Split") or not isinstance(pattern, dict):
        return 1
    least = len(str(pattern.get("String", "")))
    if "Regex" in pattern:
        try:
            least = shortest_match(str(pattern["Regex"]))
        except ValueError as problem:
            fail("a pattern whose time is bounded", str(problem), f"{field}.pattern")
    if step["type"] == "Split":
        return 1
    if not least:
        fail("a pattern that matches something", "one that matches the empty text", f"{field}.pattern")
    return max(1, len(str(step.get("content"))) / least)


def _added(step: dict[str, Any], name: str, fail: Fail) -> int:
    """Tokens that a step puts around a text, or around two."""
    if step["type"] != "TemplateProcessing":
        return 2
    tokens = step.get("special_tokens")
    ids = {key: len(each.get("ids", ())) for key, each in tokens.items()} if isinstance(tokens, dict) else {}
    total = 0
    for each in ("single", "pair"):
        pieces = step.get(each)
        pieces = pieces if isinstance(pieces, list) else []
        texts = [str(piece.get("Sequence", {}).get("id")) for piece in pieces if "Sequence" in piece]
        if len(texts) != len(set(texts)):
            fail("each text once", "one that is repeated", f"{name}.TemplateProcessing.{each}")
        total += sum(ids.get(piece.get("SpecialToken", {}).get("id"), 1) for piece in pieces)
    return total


def _texts(step: dict[str, Any]) -> Iterator[str]:
    """All texts of a step, but for those that have checks of their own."""
    for key, value in step.items():
        if key == "precompiled_charsmap" or key == "Regex":
            continue
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _texts(value)
        elif isinstance(value, list):
            yield from _texts({str(i): each for i, each in enumerate(value)})
