"""Tokenizer metadata of a GGUF file, checked before anything is built from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_foundry.core.load_errors import LoadError
from torch_foundry.text.charsmap import check_charsmap

MODELS = ("gpt2", "llama", "t5", "gemma4")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Keys below tokenizer.ggml, with llama.cpp's defaults for files of that model that lack them.
SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
    "sep": "seperator_token_id",
    "mask": "mask_token_id",
    "cls": "cls_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    **{f"fim_{part}": f"fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")},
}
DEFAULTS: dict[str, dict[str, int]] = {"llama": {"bos": 1, "eos": 2, "unk": 0}, "t5": {"eos": 1, "unk": 2, "pad": 0}}

# Tokens that end a turn, for files that name only one of them.
ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
    "<|end_of_text|>",
    "<|endoftext|>",
)

# Longer pieces are refused: merges are found by cutting a piece at every position.
LONGEST_PIECE = 1024


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, with their types; scores or merges by model; ids of special tokens by name ("bos", "eos", ...).

    add_bos, add_eos, prefix (a space before the text), squeeze (runs of spaces are one): None where the file leaves
    it to the model. charsmap: SentencePiece's compiled normalisation.
    """

    model: str
    pre: str | None
    architecture: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None
    merges: list[tuple[str, str]] | None
    ids: dict[str, int]
    add_bos: bool | None
    add_eos: bool | None
    prefix: bool | None
    squeeze: bool | None
    charsmap: bytes | None

    @property
    def ends(self) -> list[int]:
        """Ids that end a generation: the file's own, then control tokens that are known to end turns."""
        known = [i for i, t in enumerate(self.tokens) if self.types[i] != NORMAL and t in ENDS]
        return list(dict.fromkeys([self.ids[n] for n in ("eos", "eot", "eom") if n in self.ids] + known))


def check_vocabulary(
    metadata: Mapping[str, Any], path: str | os.PathLike[str], embedding_rows: int | None = None
) -> Vocabulary:
    """What the `tokenizer.ggml.*` keys say, or LoadError.

    metadata: a GGUF file's, arrays as any sequences. embedding_rows: of the embedding that the ids index; the
    vocabulary has as many tokens. Codes: VOCAB_MISSING, VOCAB_TYPE, VOCAB_LEN, VOCAB_SIZE, VOCAB_DUP, TOKEN_ID,
    TOKEN_TYPE, TOKENIZER (a model that isn't known, a piece too long to cut), NONFINITE, MERGES, CHARSMAP, UTF8.
    """
    keys = _Keys(metadata, path)
    model = keys.string("model")
    if model not in MODELS:
        raise keys.error("TOKENIZER", "model", f"one of {', '.join(MODELS)}", repr(str(model)[:80]))
    tokens = keys.tokens()
    n = len(tokens)
    architecture = str(metadata.get("general.architecture", ""))
    declared = metadata.get(f"{architecture}.vocab_size")
    for rows, what in ((embedding_rows, "rows of the embedding"), (declared, f"{architecture}.vocab_size")):
        if rows is not None and rows != n:
            raise keys.error("VOCAB_SIZE", "tokens", f"{rows} tokens ({what})", f"{n}")
    types = keys.types(n)
    scores = keys.scores(n)
    merges = keys.merges(tokens, model)
    if merges is None and model in ("gpt2", "gemma4"):
        raise keys.error("MERGES", "merges", "the merges of a BPE vocabulary", "none")
    if scores is None and (model == "t5" or merges is None):
        raise keys.error("VOCAB_MISSING", "scores", "a score for each token", "none")
    if model == "llama" and merges is None:
        longest = max((i for i in range(n) if types[i] == NORMAL), key=lambda i: len(tokens[i]), default=0)
        if len(tokens[longest]) > LONGEST_PIECE:
            found = f"{len(tokens[longest])} in token {longest}"
            raise keys.error("TOKENIZER", "tokens", f"at most {LONGEST_PIECE} characters", found)
    return Vocabulary(
        model=model,
        pre=keys.string("pre", optional=True),
        architecture=architecture,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=merges,
        ids=keys.ids(n, DEFAULTS.get(model, {})),
        add_bos=keys.flag("add_bos_token"),
        add_eos=keys.flag("add_eos_token"),
        prefix=keys.flag("add_space_prefix"),
        squeeze=keys.flag("remove_extra_whitespaces"),
        charsmap=keys.charsmap(),
    )


class _Keys:
    """Access to the keys below `tokenizer.ggml`, each with its checks."""

    def __init__(self, metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        self.metadata, self.path = metadata, path

    def error(self, code: str, key: str, expected: str, found: str) -> LoadError:
        return LoadError(code, self.path, f"tokenizer.ggml.{key}", expected=expected, found=found)

    def get(self, key: str) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}")

    def string(self, key: str, optional: bool = False) -> Any:
        value = self.get(key)
        if value is None and not optional:
            raise self.error("VOCAB_MISSING", key, "a string", "none")
        if value is not None and not isinstance(value, str):
            raise self.error("VOCAB_TYPE", key, "a string", type(value).__name__)
        return value

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, (bool, np.bool_)):
            raise self.error("VOCAB_TYPE", key, "a bool", type(value).__name__)
        return None if value is None else bool(value)

    def strings(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise self.error("VOCAB_TYPE", key, "an array of strings", type(value).__name__)
        strings = list(value)
        if (odd := next((i for i, s in enumerate(strings) if type(s) is not str), None)) is not None:
            raise self.error("VOCAB_TYPE", f"{key}[{odd}]", "a string", type(strings[odd]).__name__)
        try:
            "".join(strings).encode()
        except UnicodeEncodeError as problem:
            raise self.error("UTF8", key, "UTF-8", repr(problem.object[problem.start : problem.end])) from None
        return strings

    def numbers(self, key: str, n: int, kinds: str, value: Any = None) -> np.ndarray | None:
        """[n], of dtype kinds as numpy has them ("iu", "iuf"). value: if it isn't the one of the key."""
        value = self.get(key) if value is None else value
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            raise self.error("VOCAB_TYPE", key, "an array of numbers", type(value).__name__)
        if len(value) != n:
            raise self.error("VOCAB_LEN", key, f"{n} elements, one for each token", f"{len(value)}")
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            array = np.empty(n, dtype=object)
        if array.ndim != 1 or (n and array.dtype.kind not in kinds):
            raise self.error("VOCAB_TYPE", key, "an array of numbers", f"{array.dtype} elements")
        return array

    def tokens(self) -> list[str]:
        if self.get("tokens") is None:
            raise self.error("VOCAB_MISSING", "tokens", "an array of strings", "none")
        tokens = self.strings("tokens")
        if not tokens:
            raise self.error("VOCAB_MISSING", "tokens", "at least one token", "none")
        if "" in tokens:  # some converters leave holes; a name that nothing spells keeps them apart
            tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
        if len(set(tokens)) != len(tokens):
            seen: dict[str, int] = {}
            for i, token in enumerate(tokens):
                if seen.setdefault(token, i) != i:
                    raise self.error(
                        "VOCAB_DUP", f"tokens[{i}]", "every token once", f"{token[:80]!r}, as {seen[token]}"
                    )
        return tokens

    def types(self, n: int) -> list[int]:
        types = self.numbers("token_type", n, "iu")
        if types is None:
            return [NORMAL] * n
        if ((types < 0) | (types > BYTE)).any():
            odd = int(np.argmax((types < 0) | (types > BYTE)))
            raise self.error("TOKEN_TYPE", f"token_type[{odd}]", f"0 to {BYTE}", f"{types[odd]}")
        return types.tolist()

    def scores(self, n: int) -> list[float] | None:
        scores = self.numbers("scores", n, "iuf")
        if scores is None:
            return None
        if not np.isfinite(scores).all():
            odd = int(np.argmin(np.isfinite(scores)))
            raise self.error("NONFINITE", f"scores[{odd}]", "a finite number", f"{scores[odd]}")
        return scores.astype(float).tolist()

    def merges(self, tokens: list[str], model: str) -> list[tuple[str, str]] | None:
        if self.get("merges") is None or model == "t5":
            return None
        try:
            merges = self.strings("merges")
        except LoadError as problem:
            raise self.error("MERGES", "merges", problem.expected, problem.found) from None
        known = set(respelled(tokens) if model == "gemma4" else tokens)
        pairs = []
        for i, merge in enumerate(merges):
            left, _, right = merge.partition(" ")
            if left not in known or right not in known or left + right not in known:
                raise self.error("MERGES", f"merges[{i}]", "two tokens that join to a third", repr(merge[:80]))
            pairs.append((left, right))
        return pairs

    def ids(self, n: int, defaults: dict[str, int]) -> dict[str, int]:
        ids = {name: i for name, i in defaults.items() if i < n}
        for name, key in SPECIAL.items():
            value = self.get(key)
            if value is None:
                continue
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                raise self.error("VOCAB_TYPE", key, "an integer", type(value).__name__)
            if not 0 <= value < n:
                raise self.error("TOKEN_ID", key, f"an id below {n}", f"{value}")
            ids[name] = int(value)
        return ids

    def charsmap(self) -> bytes | None:
        value = self.get("precompiled_charsmap")
        if value is None:
            return None
        if isinstance(value, (bytes, bytearray)):
            value = np.frombuffer(value, np.uint8)
        numbers = self.numbers("precompiled_charsmap", _length(value), "iu", value)
        if numbers is None or len(numbers) == 0:
            return None
        data = numbers.astype(np.uint8).tobytes()
        if (problem := check_charsmap(data)) is not None:
            raise self.error("CHARSMAP", "precompiled_charsmap", *problem)
        return data


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def respelled(tokens: Sequence[str]) -> list[str]:
    """Gemma's runs of spaces, which files spell literally, in the spelling of its merges."""
    return ["▁" * len(t) if t.strip(" ") == "" else t for t in tokens]
