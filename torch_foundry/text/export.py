"""GGUF metadata from tokenizers: the inverse of `tokenizer.py`."""

from __future__ import annotations

import json
from typing import Any

from .pretokenizers import PRE, Pre, pre_tokenizer
from .tokenizer import tokenizer_from_gguf
from .vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

# Texts that pre-tokenizers split differently; both tokenizers must agree on all of them.
PROBES = (
    "Hello, world! It's 2026; they'LL pay $1,234,567.89 (or 42%).",
    "  two  spaces\tand a tab\n\n\nthree lines \r\n and an end   ",
    "def f(x_1, *args):\n    return {'a': [x_1**2, -3.5e-10]}  # comment\n\t\tpass",
    "Größe, naïve café, e\u0301tude, ŁÓDŹ, İstanbul, straße, ﬁn, Ⅷ",
    "Москва́ и 北京，東京タワー、서울 ١٢٣ हिन्दी ไทย עברית 👍🏽👨‍👩‍👧 \u200b\ufeff",
    "CamelCaseWORDS snake_case kebab-case http://a.b/c?d=e&f=g 12th 007 3.14 'quoted' \"double\" don't",
)


def gguf_from_tokenizer(tokenizer: Any, rows: int) -> dict[str, Any]:
    """The `tokenizer.*` keys of a GGUF file, with as many tokens as the embedding has `rows`.

    ValueError for a tokenizer that such a file can't describe: what is written here and read again has to give the same
    ids for PROBES.
    """
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    model = spec["model"]
    if model["type"] != "BPE":
        raise ValueError(f"tokenizer: expected a BPE vocabulary, got {model['type']}")
    byte_level = "ByteLevel" in json.dumps(spec["decoder"])
    tokens, types = _tokens(tokenizer, spec, rows)
    prefix = "tokenizer.ggml."
    found: dict[str, Any] = {prefix + "model": "gpt2" if byte_level else "llama"}
    found[prefix + "pre"] = _pre(tokenizer, spec) if byte_level else "default"
    found |= {prefix + "tokens": tokens, prefix + "token_type": types}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    found[prefix + "merges"] = merges
    if not byte_level:
        made = {merge.replace(" ", ""): -float(rank) for rank, merge in reversed(list(enumerate(merges)))}
        found[prefix + "scores"] = [made.get(token, 0.0) for token in tokens]
        found[prefix + "add_space_prefix"] = "Prepend" in json.dumps(spec["normalizer"])
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            found[f"{prefix}{key}_token_id"] = number
    ids = tokenizer("a").input_ids
    found[prefix + "add_bos_token"] = tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
    found[prefix + "add_eos_token"] = tokenizer.eos_token_id is not None and ids[-1] == tokenizer.eos_token_id
    found |= _templates(tokenizer)
    _compare(tokenizer, found, rows)
    return found


def _tokens(tokenizer: Any, spec: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    added = {token["id"]: token for token in spec["added_tokens"]}
    unknown = spec["model"].get("unk_token")
    tokens = [f"[PAD{i}]" for i in range(rows)]
    types = [UNUSED] * rows
    for token, i in tokenizer.get_vocab().items():
        if i >= rows:
            raise ValueError(f"tokenizer: token {token!r} has id {i}, but the embedding has {rows} rows")
        tokens[i] = token
        is_byte = len(token) == 6 and token.startswith("<0x") and spec["model"].get("byte_fallback")
        types[i] = BYTE if is_byte else UNKNOWN if token == unknown else NORMAL
        if i in added and token != unknown:
            types[i] = CONTROL if added[i]["special"] else USER_DEFINED
    return tokens, types


def _pre(tokenizer: Any, spec: dict[str, Any]) -> str:
    """The first of PRE that cuts text as the tokenizer does."""
    nfc = "NFC" in json.dumps(spec["normalizer"])
    whole = bool(spec["model"].get("ignore_merges"))
    own = tokenizer.backend_tokenizer.pre_tokenizer
    cuts = [own.pre_tokenize_str(text) for text in PROBES]
    tried: dict[Pre, bool] = {}
    for name, pre in PRE.items():
        if (pre.nfc, pre.whole) == (nfc, whole):
            if pre not in tried:
                cutter = pre_tokenizer(pre)
                tried[pre] = all(cutter.pre_tokenize_str(t) == c for t, c in zip(PROBES, cuts, strict=True))
            if tried[pre]:
                return name
    raise ValueError("tokenizer: it cuts text in a way that has no name in GGUF files")


def _templates(tokenizer: Any) -> dict[str, str]:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        named = {f"tokenizer.chat_template.{name}": text for name, text in template.items() if name != "default"}
        return ({"tokenizer.chat_template": template["default"]} if "default" in template else {}) | named
    return {} if template is None else {"tokenizer.chat_template": template}


def _compare(tokenizer: Any, metadata: dict[str, Any], rows: int) -> None:
    again = tokenizer_from_gguf(metadata, "GGUF", rows)
    specials = [t for t in (tokenizer.bos_token, tokenizer.eos_token) if t]
    for text in (*PROBES, *(f"a{token} b {token}\nc" for token in specials)):
        if (ours := again(text).input_ids) != (theirs := tokenizer(text).input_ids):
            raise ValueError(f"tokenizer: {text!r} has ids {theirs}, and {ours} as GGUF files describe it")
