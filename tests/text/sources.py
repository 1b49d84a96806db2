"""Tokenizers trained here, and what a GGUF file's metadata would say of them."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.text import corpus

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CONTROLS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
OWN = ["<tool>", "</tool>"]


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer, normalizer: Any = None, size: int = 900, whole: bool = False
) -> Tokenizer:
    """Byte-level BPE of `size` tokens; control tokens last, as most models have them."""
    bpe = Tokenizer(models.BPE(ignore_merges=whole))
    if normalizer is not None:
        bpe.normalizer = normalizer
    bpe.pre_tokenizer = pre_tokenizer
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = corpus.LANGUAGES + corpus.CODE + corpus.NUMBERS * 3 + corpus.SPACES * 2 + corpus.RARE
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    bpe.add_special_tokens(CONTROLS)
    bpe.add_tokens([AddedToken(token, normalized=False) for token in OWN])
    return bpe


def byte_level_metadata(source: Tokenizer, pre: str, **extra: Any) -> dict[str, Any]:
    model = json.loads(source.to_str())["model"]
    tokens = [source.id_to_token(i) for i in range(source.get_vocab_size())]
    added = source.get_added_tokens_decoder()
    types = [NORMAL if i not in added else CONTROL if added[i].special else USER_DEFINED for i in range(len(tokens))]
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(pair) for pair in model["merges"]],
        "bos_token_id": source.token_to_id("<s>"),
        "eos_token_id": source.token_to_id("</s>"),
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**keys, **extra}.items()}


@functools.cache
def sentence_piece(model_type: str, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model of 1000 pieces; byte fallback, no normalisation, a prefix if nothing else is said."""
    settings: dict[str, Any] = {
        "vocab_size": 1000,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": True,
        "character_coverage": 0.98,
        "hard_vocab_limit": model_type == "bpe",
        "minloglevel": 2,
        "num_threads": 1,
    } | options
    file = io.BytesIO()
    texts = iter((corpus.LANGUAGES + corpus.CODE + corpus.NUMBERS) * 2)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=file, model_type=model_type, **settings
    )
    return sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())


def sentence_piece_metadata(source: sentencepiece.SentencePieceProcessor, model: str, **extra: Any) -> dict[str, Any]:
    types = []
    spec = _spec(source)
    for i in range(source.get_piece_size()):
        kinds = {UNKNOWN: source.is_unknown, CONTROL: source.is_control, UNUSED: source.is_unused, BYTE: source.is_byte}
        kind = next((kind for kind, holds in kinds.items() if holds(i)), NORMAL)
        types.append(USER_DEFINED if i in spec["user_defined"] else kind)
    tokens = [source.id_to_piece(i) for i in range(source.get_piece_size())]
    # converters write the spaces of user-defined pieces as they stand in a text
    tokens = [t.replace("▁", " ") if k == USER_DEFINED else t for t, k in zip(tokens, types, strict=True)]
    keys = {
        "model": model,
        "tokens": tokens,
        "token_type": types,
        "scores": [source.get_score(i) for i in range(source.get_piece_size())],
        "bos_token_id": source.bos_id(),
        "eos_token_id": source.eos_id(),
        "unknown_token_id": source.unk_id(),
        "add_bos_token": False,
        "add_eos_token": False,
        "add_space_prefix": spec["add_dummy_prefix"],
        "remove_extra_whitespaces": spec["remove_extra_whitespaces"],
    }
    if spec["charsmap"]:
        keys["precompiled_charsmap"] = list(spec["charsmap"])
    return {f"tokenizer.ggml.{key}": value for key, value in {**keys, **extra}.items()}


def _spec(source: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """What the model file says and the library has no method for: pieces are field 1, normalisation is field 3."""
    fields = list(_fields(source.serialized_model_proto()))
    pieces = [dict(_fields(value)) for number, value in fields if number == 1]
    rules = next(dict(_fields(value)) for number, value in fields if number == 3)
    return {
        "user_defined": {i for i, piece in enumerate(pieces) if piece.get(3, NORMAL) == USER_DEFINED},
        "charsmap": rules.get(2, b""),
        "add_dummy_prefix": bool(rules.get(3, True)),
        "remove_extra_whitespaces": bool(rules.get(4, True)),
    }


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protocol buffer: numbers as they are, else bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            size = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else number()
            yield key >> 3, message[at : at + size]
            at += size
