"""Tokenizers of folders (PT): tokenizer.json and what lies beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from .case import Content, Sparse, Table
from .packed_bytes import VOCABULARY, Folder, changed, dense

P = Table()
LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
Spec = dict[str, Any]


def spec() -> Spec:
    """A BPE tokenizer of letters, with one step of each kind."""
    words = {"<unk>": 0, "</s>": 1} | {letter: i + 2 for i, letter in enumerate(LETTERS)} | {"ab": 31}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    replace = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    split = {"type": "Split", "pattern": {"Regex": " ?[a-z]+| +"}, "behavior": "Isolated", "invert": False}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    sequences = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": name, **flags} for i, name in enumerate(("<unk>", "</s>"))],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, replace]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split]},
        "post_processor": {
            "type": "TemplateProcessing", "single": [sequences[0], end], "pair": [*sequences, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": words, "merges": [["a", "b"]], "unk_token": "<unk>"},
    }  # fmt: skip


def file(name: str, content: Content) -> Callable[[Folder], object]:
    return lambda folder: folder.files.update({"tokenizer.json": json.dumps(spec()).encode(), name: content})


def case(id: str, what: str, codes: str, change: Callable[[Spec], Any], says: str = "") -> None:
    """change: of the spec, or what stands in the file instead."""

    def build(folder: Folder) -> None:
        made = spec()
        other = change(made)
        content = other if isinstance(other, bytes) else json.dumps(made, ensure_ascii=False).encode()
        folder.files.update({"tokenizer.json": content})

    if codes:
        P.reject(f"PT{id}", what, codes, changed(build, dense), says)
    else:
        P.accept(f"PT{id}", what, changed(build, dense))


def settings(
    id: str, what: str, codes: str, name: str = "tokenizer_config.json", says: str = "", **values: Any
) -> None:
    build = file(name, json.dumps(values).encode())
    if codes:
        P.reject(f"PT{id}", what, codes, changed(build, dense), says)
    else:
        P.accept(f"PT{id}", what, changed(build, dense))


def put(place: str, value: Any) -> Callable[[Spec], None]:
    """place: of names and numbers with dots between."""

    def change(made: Any) -> None:
        *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
        for part in path:
            made = made[part]
        made[last] = value

    return change


def token(number: int, content: Any, **more: Any) -> Callable[[Spec], None]:
    return lambda made: made["added_tokens"].append(
        {**made["added_tokens"][0], "id": number, "content": content, **more}
    )


def steps(part: str, *kinds: Any) -> Callable[[Spec], None]:
    within = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
    return put(part, {"type": "Sequence", within.get(part, "decoders"): list(kinds)})


def replace(pattern: Any, content: str) -> Spec:
    return {
        "type": "Replace",
        "pattern": pattern if isinstance(pattern, dict) else {"String": pattern},
        "content": content,
    }


def split(pattern: str) -> Spec:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def nested(depth: int) -> Spec:
    return {"type": "NFC"} if not depth else {"type": "Sequence", "normalizers": [nested(depth - 1)]}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
T = "tokenizer.json"
case("00", "sound", "", lambda made: None)
case("02", "white space everywhere", "", lambda made: json.dumps(spec(), indent=8).replace(":", " : \n").encode())
case("04", "letters as escapes", "", lambda made: json.dumps(spec()).replace('"model"', '"\\u006dodel"').encode())
case("06", "a token behind the embedding, of control", "", token(VOCABULARY, "<image>"))
case(
    "01",
    "a git-LFS pointer",
    "TOKENIZER",
    lambda made: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "LFS",
)
case("03", "cut", "TOKENIZER", lambda made: json.dumps(spec()).encode()[:-40], T)
case(
    "05", "cut within the vocabulary", "TOKENIZER", lambda made: json.dumps(spec()).split('"j"')[0].encode(), "the end"
)
case("07", "a list", "TOKENIZER", lambda made: b"[]", "JSON")
case(
    "09",
    "a name twice",
    "TOKENIZER",
    lambda made: (
        json.dumps(spec())
        .replace('"model"', '"decoder": null, "model"', 1)
        .replace('"version"', '"decoder": null, "version"')
        .encode()
    ),
    "once",
)
case(
    "11", "a vocabulary with a token of 300 KB", "TOKENIZER", put("model.vocab", {"<unk>": 0, "a" * 300_000: 1}), "1024"
)
case(
    "13",
    "a vocabulary 100 deep",
    "TOKENIZER",
    lambda made: json.dumps(spec()).replace('"vocab": {', '"vocab": {"x": ' + "[" * 100 + "]" * 100 + ", ").encode(),
    "levels",
)
case("15", "a normalizer of 600 KB", "TOKENIZER", steps("normalizer", *[{"type": "NFC"}] * 40_000), "bytes")
case("17", "a merge that is a number of 300 digits", "TOKENIZER", put("model.merges", 10**300), "JSON")
case("19", "an unknown setting of 60 KB", "TOKENIZER", put("model.unk_token", "u" * 60_000), "bytes")
case(
    "1A",
    "a normalizer that is no JSON",
    "TOKENIZER",
    lambda made: json.dumps(spec()).replace("null", "{nul}").encode(),
    "JSON",
)
case(
    "1E",
    "an added token that is no JSON",
    "TOKENIZER",
    lambda made: json.dumps(spec()).replace('[{"id"', '[{"id" "x"', 1).encode(),
    "JSON",
)
case(
    "1G",
    "a semicolon for a colon",
    "TOKENIZER",
    lambda made: json.dumps(spec()).replace('"version":', '"version";').encode(),
    "JSON: ':'",
)
case(
    "1C",
    "a string of the vocabulary without an end",
    "TOKENIZER",
    lambda made: json.dumps(spec()).split('"j"')[0].encode() + b'"' + b"j" * 500_000,
    "1024",
)
case(
    "21",
    "600 added tokens of 100 KB",
    "TOKENIZER",
    lambda made: [token(i, f"{i}" * 30_000)(made) for i in range(600)][:0],
    "at most",
)
case("23", "an added token of 1025 letters", "TOKENIZER", token(30, "a" * 1025), "added tokens of 1 to 1024")
case("25", "an added token without a letter", "TOKENIZER", token(30, ""), "added tokens of 1 to 1024")
case("27", "an added token that is a number", "TOKENIZER", token(30, 7), "added tokens of 1 to 1024")
case("29", "an added token's id 2^31", "TOKEN_ID", token(1 << 31, "<x>"), "ids below 32")
case("31", "an added token's id -1", "TOKEN_ID", token(-1, "<x>"), "ids below 32")
case("33", "an added token's id a text", "TOKEN_ID", token("30", "<x>"), "ids below 32")  # type: ignore[arg-type]
case(
    "35",
    "an added token behind the embedding, of text",
    "TOKEN_ID",
    token(VOCABULARY, "<x>", special=False),
    "ids below 32",
)
case("37", "a token under two ids", "VOCAB_DUP", lambda made: (token(30, "<x>")(made), token(31, "<x>")(made)), "once")
case("39", "an id for two tokens", "VOCAB_DUP", lambda made: (token(30, "<x>")(made), token(30, "<y>")(made)), "once")
case("41", "ids of the vocabulary behind the embedding", "TOKEN_ID", put("model.vocab.z", 60_000), "ids below 32")
case(
    "43",
    "a token of the vocabulary of 2000 letters",
    "TOKENIZER",
    put("model.vocab", spec()["model"]["vocab"] | {"y" * 2000: 31}),
    "1024",
)
case("51", "a -> 10 a, twelve times", "TOKENIZER", steps("normalizer", *[replace("a", "a" * 10)] * 12), "grows")
case("53", "Prepend of 1 MB", "TOKENIZER", steps("normalizer", {"type": "Prepend", "prepend": "a" * 300_000}), "1024")
case(
    "55",
    "Prepend of 17 letters",
    "TOKENIZER",
    steps("normalizer", {"type": "Prepend", "prepend": "a" * 17}),
    "before a text",
)
case("57", "an unknown normalizer", "TOKENIZER", steps("normalizer", {"type": "Script"}), "one of")
case("59", "a normalizer that is a text", "TOKENIZER", put("normalizer", "NFC"), "one of")
case("61", "40 normalizers", "TOKENIZER", steps("normalizer", *[{"type": "NFC"}] * 40), "steps")
case("63", "normalizers 60 deep", "TOKENIZER", put("normalizer", nested(40)), "levels")
case("65", "ByteLevel twice", "TOKENIZER", steps("normalizer", {"type": "ByteLevel"}, {"type": "ByteLevel"}), "once")
case("67", "a replacement of nothing", "TOKENIZER", steps("normalizer", replace("", "a")), "empty text")
case(
    "69",
    "a replacement of what may be empty",
    "TOKENIZER",
    steps("normalizer", replace({"Regex": "x*"}, "a")),
    "empty text",
)
case("71", "a replacement by 20 letters", "TOKENIZER", steps("normalizer", replace("a", "b" * 20)), "grows")
case(
    "73",
    "a charsmap that is no base64",
    "TOKENIZER",
    steps("normalizer", {"type": "Precompiled", "precompiled_charsmap": "%"}),
    "base64",
)
case(
    "75",
    "a charsmap cut short",
    "TOKENIZER",
    steps("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAQAAA=="}),
    "trie",
)
LONG = base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + b"a" * 100 + b"\0").decode()
case(
    "79",
    "a charsmap that makes 100 letters of one",
    "TOKENIZER",
    steps("normalizer", {"type": "Precompiled", "precompiled_charsmap": LONG}),
    "replacements",
)
case(
    "77",
    "a replacement in a pattern that takes for ever",
    "TOKENIZER",
    steps("normalizer", replace({"Regex": "(a+)+b"}, "a")),
    "bounded",
)
for i, pattern in enumerate(
    (
        "(a+)+b",
        "(a|a)*b",
        "(?:a|b|)*c",
        "a*a*b",
        "(a|ab)" * 20 + "c",
        "((a{1000}){1000}){1000}",
        "(a)\\1",
        "(a",
        "a)",
        "[a",
        "a**(?~b)",
        "^*",
        "(" * 30 + ")" * 30,
        "x" * 5000,
        "\\p{None}",
        "(?=(a+)+b)",
        "(?=(a{3000}){3000})",
        "(?:(?=a))*b",
        "(?<a~b)",
        "(" * 2000,
    )
):
    case(f"R{i:02}", f"a pattern {pattern:.20}", "TOKENIZER", steps("pre_tokenizer", split(pattern)), "bounded")
case(
    "81",
    "an unknown pre-tokenizer",
    "TOKENIZER",
    steps("pre_tokenizer", {"type": "FixedLength", "length": 0}),
    "one of",
)
case("83", "ByteLevel twice", "TOKENIZER", steps("pre_tokenizer", BYTES, BYTES), "once")
case("85", "an unknown post-processor", "TOKENIZER", steps("post_processor", {"type": "Own"}), "one of")
case(
    "87",
    "10^5 tokens around a text",
    "TOKENIZER",
    put("post_processor.special_tokens.</s>", {"id": "</s>", "ids": [1] * 100_000, "tokens": ["</s>"] * 100_000}),
)
case(
    "89",
    "100 tokens around a text",
    "TOKENIZER",
    put("post_processor.special_tokens.</s>", {"id": "</s>", "ids": [1] * 100, "tokens": ["</s>"] * 100}),
    "added",
)
case(
    "91",
    "a text three times",
    "TOKENIZER",
    put("post_processor.single", [{"Sequence": {"id": "A", "type_id": 0}}] * 3),
    "each text once",
)
case(
    "93",
    "a post-processor's id behind the embedding",
    "TOKEN_ID",
    put("post_processor.special_tokens.</s>.ids", [70_000]),
    "ids below 32",
)
case("95", "an unknown decoder", "TOKENIZER", steps("decoder", {"type": "Own"}), "one of")
case("97", "a decoder that makes much of little", "TOKENIZER", steps("decoder", replace("a", "a" * 99)), "grows")
case(
    "99",
    "padding to 2^17",
    "TOKENIZER",
    put(
        "padding",
        {
            "strategy": {"Fixed": 1 << 17},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<unk>",
        },
    ),
    "Fixed",
)
case(
    "A1",
    "words of 2^30 letters",
    "TOKENIZER",
    put(
        "model",
        {
            "type": "WordPiece",
            "vocab": {"a": 0, "<unk>": 1},
            "unk_token": "<unk>",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 1 << 30,
        },
    ),
    "max_input",
)
case("A5", "a merge of what is no token", "TOKENIZER", put("model.merges", [["a", "zz"]]), "a tokenizer")
case("A3", "a setting of the model of 2 KB", "TOKENIZER", put("model.end_of_word_suffix", "w" * 2000), "1024")
settings("C1", "a class of another kind", "TOKENIZER", tokenizer_class="RagTokenizer", says="fast")
settings("C3", "a class that needs no vocabulary", "TOKENIZER", tokenizer_class="CanineTokenizer", says="fast")
settings("C5", "a class of bytes", "TOKENIZER", tokenizer_class="ByT5Tokenizer", says="fast")
settings("C7", "a class that is a list", "TOKENIZER", tokenizer_class=["LlamaTokenizer"], says="fast")
settings("C9", "another file named", "TOKENIZER", gguf_file="/etc/passwd", says="gguf_file")
settings("D1", "an added token of 100 KB", "TOKENIZER", additional_special_tokens=["a" * 100_000], says="at most")
settings(
    "D3",
    "100 001 tokens of control",
    "TOKENIZER",
    extra_special_tokens=[f"<{i}>" for i in range(100_001)],
    says="100000",
)
settings(
    "D5", "a token's id 2^40", "TOKEN_ID", added_tokens_decoder={str(1 << 40): {"content": "<x>", "special": True}}
)
settings("D7", "a token's id a word", "TOKEN_ID", added_tokens_decoder={"one": {"content": "<x>", "special": True}})
settings("D9", "an end of text of 100 KB", "TOKENIZER", eos_token="e" * 100_000, says="1024")
settings("E1", "33 tokens of control more than rows", "TOKEN_ID", extra_special_tokens=[f"<{i}>" for i in range(99)])
settings("E3", "padded to a multiple of 2^40", "TOKENIZER", pad_to_multiple_of=1 << 40, says="pad_to_multiple_of")
settings("E5", "ids of tokens behind the embedding", "TOKEN_ID", "added_tokens.json", **{"<x>": 70_000})
settings("E7", "an end of text of 100 KB", "TOKENIZER", "special_tokens_map.json", eos_token="e" * 100_000, says="1024")
settings(
    "E0",
    "a sound one",
    "",
    tokenizer_class="LlamaTokenizer",
    eos_token="</s>",
    chat_template="{{ messages[0].content }}",
    added_tokens_decoder={"1": {"content": "</s>", "special": True}},
    additional_special_tokens=["</s>"],
)
P.reject(
    "PTF1", "tokenizer.json of 1 GiB (sparse)", "TOKENIZER", changed(file(T, Sparse(b"{", 1 << 30)), dense), "at most"
)
