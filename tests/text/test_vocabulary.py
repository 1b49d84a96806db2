"""Vocabularies that nothing sound can be built from are refused, each with its code."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.text import corpus, sources
from torch_foundry.core.load_errors import LoadError
from torch_foundry.text import check_vocabulary, tokenizer_from_gguf
from torch_foundry.text.charsmap import LARGEST_TRIE, check_charsmap
from torch_foundry.text.pretokenizers import PRE, pre_tokenizer

Change = Callable[[dict[str, Any]], None]
BYTES = sources.byte_level_metadata(sources.byte_level(pre_tokenizer(PRE["gpt-2"]), size=400), "gpt-2")
PIECES = sources.sentence_piece_metadata(sources.sentence_piece("bpe"), "llama")
UNIGRAM = sources.sentence_piece_metadata(
    sources.sentence_piece("unigram", normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True), "t5"
)
BASES = {"gpt2": BYTES, "llama": PIECES, "t5": UNIGRAM}
N = {name: len(base["tokenizer.ggml.tokens"]) for name, base in BASES.items()}


def put(key: str, value: Any) -> Change:
    return lambda keys: keys.__setitem__(key, value)


def drop(key: str) -> Change:
    return lambda keys: keys.pop(key)


def at(key: str, index: int, value: Any) -> Change:
    def change(keys: dict[str, Any]) -> None:
        keys[key] = list(keys[key])
        keys[key][index] = value

    return change


def trie(edit: Callable[[np.ndarray], None]) -> Change:
    def change(keys: dict[str, Any]) -> None:
        data = bytearray(keys["precompiled_charsmap"])
        size = struct.unpack_from("<I", data)[0]
        edit(np.frombuffer(data, "<u4", size // 4, 4))
        keys["precompiled_charsmap"] = list(data)

    return change


def _leaf(units: np.ndarray, value: int) -> None:
    """Another value in each leaf."""
    units[(units >> 31) == 1] = 0x80000000 | value


def _far(units: np.ndarray) -> None:
    """Each inner unit points past the array."""
    units[(units >> 31) == 0] |= np.uint32(0x3FFFFF << 10)


CASES: dict[str, tuple[str, str, Change]] = {
    "tokens absent": ("gpt2", "VOCAB_MISSING", drop("tokens")),
    "tokens empty": ("gpt2", "VOCAB_MISSING", put("tokens", [])),
    "model absent": ("gpt2", "VOCAB_MISSING", drop("model")),
    "scores absent": ("llama", "VOCAB_MISSING", drop("scores")),
    "unigram scores absent": ("t5", "VOCAB_MISSING", drop("scores")),
    "model unknown": ("gpt2", "TOKENIZER", put("model", "gpt3")),
    "model bert": ("gpt2", "TOKENIZER", put("model", "bert")),
    "model a number": ("gpt2", "VOCAB_TYPE", put("model", 2)),
    "tokens of numbers": ("gpt2", "VOCAB_TYPE", put("tokens", np.arange(10, dtype=np.uint32))),
    "tokens a string": ("gpt2", "VOCAB_TYPE", put("tokens", "abc")),
    "one token a number": ("gpt2", "VOCAB_TYPE", at("tokens", 7, 7)),
    "token of half a surrogate": ("gpt2", "UTF8", at("tokens", 7, "\ud800")),
    "a token twice": ("gpt2", "VOCAB_DUP", lambda keys: at("tokens", 9, keys["tokens"][8])(keys)),
    "token_type short": ("gpt2", "VOCAB_LEN", put("token_type", [1, 1])),
    "token_type long": ("gpt2", "VOCAB_LEN", put("token_type", [1] * (N["gpt2"] + 1))),
    "token_type of floats": ("gpt2", "VOCAB_TYPE", put("token_type", np.ones(N["gpt2"], np.float32))),
    "token_type 7": ("gpt2", "TOKEN_TYPE", at("token_type", 3, 7)),
    "token_type -1": ("gpt2", "TOKEN_TYPE", at("token_type", 3, -1)),
    "scores short": ("llama", "VOCAB_LEN", put("scores", [0.0])),
    "scores of strings": ("llama", "VOCAB_TYPE", put("scores", ["1"] * N["llama"])),
    "scores ragged": ("llama", "VOCAB_TYPE", put("scores", [[1.0], [1.0, 2.0], *[[]] * (N["llama"] - 2)])),
    "scores one number": ("llama", "VOCAB_TYPE", put("scores", 3.0)),
    "a NaN score": ("llama", "NONFINITE", at("scores", 5, float("nan"))),
    "an infinite score": ("t5", "NONFINITE", at("scores", 5, float("-inf"))),
    "merges absent": ("gpt2", "MERGES", drop("merges")),
    "merges of numbers": ("gpt2", "MERGES", put("merges", [1, 2])),
    "merge without a space": ("gpt2", "MERGES", at("merges", 0, "ab")),
    "merge of three": ("gpt2", "MERGES", at("merges", 0, "a b c")),
    "merge of nothing": ("gpt2", "MERGES", at("merges", 0, " a")),
    "merge of unknown tokens": ("gpt2", "MERGES", at("merges", 0, "nowhere here")),
    "merge into no token": ("gpt2", "MERGES", at("merges", 0, "z q")),
    "eos 2^32-1": ("gpt2", "TOKEN_ID", put("eos_token_id", 2**32 - 1)),
    "bos -1": ("gpt2", "TOKEN_ID", put("bos_token_id", -1)),
    "pad just past the end": ("gpt2", "TOKEN_ID", put("padding_token_id", N["gpt2"])),
    "eot past the end": ("gpt2", "TOKEN_ID", put("eot_token_id", 10**6)),
    "unk a string": ("gpt2", "VOCAB_TYPE", put("unknown_token_id", "0")),
    "unk a bool": ("gpt2", "VOCAB_TYPE", put("unknown_token_id", True)),
    "add_bos a number": ("gpt2", "VOCAB_TYPE", put("add_bos_token", 1)),
    "pre a number": ("gpt2", "VOCAB_TYPE", put("pre", 1)),
    "a piece of a million letters": ("llama", "TOKENIZER", at("tokens", 900, "a" * 10**6)),
    "charsmap short": ("t5", "CHARSMAP", put("precompiled_charsmap", [1, 2])),
    "charsmap: trie of 2^32-4": (
        "t5",
        "CHARSMAP",
        lambda k: at("precompiled_charsmap", slice(0, 4), [252, 255, 255, 255])(k),
    ),
    "charsmap: trie of 6": ("t5", "CHARSMAP", lambda k: at("precompiled_charsmap", slice(0, 4), [6, 0, 0, 0])(k)),
    "charsmap: trie of 0": ("t5", "CHARSMAP", lambda k: at("precompiled_charsmap", slice(0, 4), [0] * 4)(k)),
    "charsmap: trie too large": (
        "t5",
        "CHARSMAP",
        put("precompiled_charsmap", struct.pack("<I", LARGEST_TRIE * 2) + bytes(LARGEST_TRIE * 2)),
    ),
    "charsmap: end cut off": ("t5", "CHARSMAP", lambda k: at("precompiled_charsmap", slice(-1, None), [])(k)),
    "charsmap: not UTF-8": ("t5", "CHARSMAP", lambda k: at("precompiled_charsmap", -2, 255)(k)),
    "charsmap: a page for a character": (
        "t5",
        "CHARSMAP",
        lambda k: at("precompiled_charsmap", slice(-1, None), list(b"\0" + b"a" * 4000 + b"\0"))(k),
    ),
    "charsmap: values too large": ("t5", "CHARSMAP", trie(lambda units: _leaf(units, 2**30))),
    "charsmap: values amid a character": ("t5", "CHARSMAP", trie(lambda units: _leaf(units, _amid(UNIGRAM)))),
    "charsmap: offsets too large": ("t5", "CHARSMAP", trie(_far)),
}


def _amid(metadata: dict[str, Any]) -> int:
    data = bytes(metadata["tokenizer.ggml.precompiled_charsmap"])
    text = data[4 + struct.unpack_from("<I", data)[0] :]
    return next(i for i, byte in enumerate(text) if byte & 0xC0 == 0x80)


def changed(base: str, change: Change) -> dict[str, Any]:
    keys = {key.removeprefix("tokenizer.ggml."): value for key, value in BASES[base].items()}
    change(keys)
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    base, code, change = CASES[name]
    with pytest.raises(LoadError) as caught:
        tokenizer_from_gguf(changed(base, change), "bad.gguf", None)
    assert caught.value.code == code and caught.value.file == "bad.gguf", caught.value
    assert caught.value.field.startswith("tokenizer.ggml.")


@pytest.mark.parametrize("base", BASES)
def test_what_the_cases_change_is_sound(base: str) -> None:
    vocabulary = check_vocabulary(BASES[base], "good.gguf", N[base])
    assert len(vocabulary.tokens) == N[base]


@pytest.mark.parametrize("rows", [-10, 10])
def test_as_many_tokens_as_the_embedding_has_rows(rows: int) -> None:
    with pytest.raises(LoadError, match="VOCAB_SIZE"):
        check_vocabulary(BYTES, "bad.gguf", N["gpt2"] + rows)
    said = {"general.architecture": "llama", "llama.vocab_size": 7}
    with pytest.raises(LoadError, match=r"llama.vocab_size.*VOCAB_SIZE"):
        check_vocabulary(BYTES | said, "bad.gguf", N["gpt2"])


class Lazy(Sequence[str]):
    """A reader's array, which makes its strings when they are asked for."""

    def __init__(self, strings: list[str]) -> None:
        self.strings = [s.encode() for s in strings]

    def __len__(self) -> int:
        return len(self.strings)

    def __getitem__(self, index: Any) -> Any:
        return self.strings[index].decode()


def test_arrays_may_be_any_sequences() -> None:
    lazy = dict(PIECES)
    lazy["tokenizer.ggml.tokens"] = Lazy(PIECES["tokenizer.ggml.tokens"])
    lazy["tokenizer.ggml.scores"] = np.array(PIECES["tokenizer.ggml.scores"], np.float32)
    lazy["tokenizer.ggml.token_type"] = np.array(PIECES["tokenizer.ggml.token_type"], np.int32)
    assert check_vocabulary(lazy, "a.gguf") == check_vocabulary(PIECES, "a.gguf")


def test_holes_in_a_vocabulary_keep_their_ids() -> None:
    keys = changed("gpt2", at("tokens", 300, ""))
    keys["tokenizer.ggml.tokens"][301] = ""
    keys["tokenizer.ggml.merges"] = []
    tokenizer = tokenizer_from_gguf(keys, "a.gguf", N["gpt2"])
    assert len(tokenizer) == N["gpt2"] and tokenizer.convert_ids_to_tokens(301) == "[EMPTY_301]"


def test_ends_are_those_named_and_those_known() -> None:
    vocabulary = check_vocabulary(BYTES, "a.gguf")
    assert [vocabulary.tokens[i] for i in vocabulary.ends] == ["</s>", "<|im_end|>"]


@pytest.mark.parametrize("leaf", [0, 1])
def test_a_charsmap_that_leads_out_of_itself(leaf: int) -> None:
    """The root's only child has its children, or its leaf, far away."""
    units = np.zeros(256, dtype=np.uint32)
    units[1] = 1 | leaf << 8 | 99_999 << 10
    problem = check_charsmap(struct.pack("<I", 1024) + units.tobytes() + b"\0")
    assert problem is not None and problem[0] == "offsets below 256"


def test_a_loop_in_a_charsmap_ends() -> None:
    """The root's children all lead back to the root."""
    units = np.arange(256, dtype=np.uint32)
    units[0] = 0
    assert check_charsmap(struct.pack("<I", 1024) + units.tobytes() + b"\0") is None


ODDITIES = [None, 0, -1, 2**64, 1.5, float("nan"), True, "", "x" * 999, "\ud800", b"\xff", [], [1], ["a"], [[]], {}]


@pytest.mark.parametrize("seed", range(6))
def test_metadata_changed_at_random_is_refused_with_a_code_or_makes_a_tokenizer_that_works(seed: int) -> None:
    rng, built = random.Random(seed), 0
    for _ in range(60):
        base = rng.choice(sorted(BASES))
        keys = changed(base, lambda keys: None)
        for _ in range(rng.choice((1, 1, 2, 3))):
            key = rng.choice(sorted(keys))
            value, change = keys[key], rng.random()
            if change < 0.3:
                keys[key] = rng.choice(ODDITIES)
            elif change < 0.4:
                del keys[key]
            elif isinstance(value, list) and value:
                value = keys[key] = list(value)
                places = [rng.randrange(len(value)) for _ in range(rng.choice((1, 5, 50)))]
                for place in places:
                    value[place] = rng.choice(
                        (value[rng.randrange(len(value))], rng.choice(ODDITIES), rng.randrange(7))
                    )
            elif isinstance(value, int):
                keys[key] = rng.choice((rng.randrange(1000), 2 ** rng.randrange(70)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # .pre absent
                tokenizer = tokenizer_from_gguf(keys, "bad.gguf")
        except LoadError as fault:
            assert len(str(fault)) < 2000
        else:
            built += 1
            for text in corpus.TEXTS[::7]:
                ids = tokenizer(text)["input_ids"]
                assert isinstance(tokenizer.decode(ids), str) and max(ids, default=0) < len(tokenizer)
    assert built
