"""Tokenizers from GGUF metadata."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from torch_foundry.core.load_errors import LoadError, is_fault

from .chat import guard
from .pretokenizers import FIRST, PRE, Pre, pre_tokenizer
from .template import check_template
from .vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    check_vocabulary,
    respelled,
)

# Phi-3's control tokens swallow the white space that follows, which only its name tells. These don't:
PHI3_KEEPS = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_from_gguf(
    metadata: Mapping[str, Any],
    path: str | os.PathLike[str],
    embedding_rows: int | None = None,
    vocabulary: Vocabulary | None = None,
    named: Mapping[str, str] | None = None,
) -> PreTrainedTokenizerFast:
    """The tokenizer that a GGUF file's metadata describes, chat template included; it saves and loads like any other.

    Ids are those of the tokenizer that the file was made from: no id is past the vocabulary, none is added. Control
    tokens in a text are tokens, as everywhere in Hugging Face. `chat.guard` says how it renders. LoadError as
    `check_vocabulary` and `check_template` say, and TOKENIZER for a way to split text that isn't in `PRE`.
    vocabulary: what `check_vocabulary` has made of this metadata, if it has. named: tokens that a processor looks for
    under a name, as image_token; those that the vocabulary hasn't are left out.
    """
    if vocabulary is None:
        vocabulary = check_vocabulary(metadata, path, embedding_rows)
    templates = _templates(metadata, path)
    pre = _pre(vocabulary, path) if vocabulary.model == "gpt2" else Pre(())
    try:
        backend = _BUILDERS[vocabulary.model](vocabulary, pre)
        _add_tokens(backend, vocabulary)
    except BaseException as problem:
        if not is_fault(problem):
            raise
        raise LoadError("TOKENIZER", path, "tokenizer.ggml", expected="a vocabulary", found=str(problem)) from problem
    if backend.get_vocab_size() != len(vocabulary.tokens):
        size = f"{backend.get_vocab_size()} once built"
        raise LoadError("VOCAB_SIZE", path, "tokenizer.ggml.tokens", expected=f"{len(vocabulary.tokens)}", found=size)
    names = {f"{name}_token": vocabulary.tokens[i] for name, i in _named(vocabulary).items()}
    known = set(vocabulary.tokens) if named else set()
    names |= {name: token for name, token in (named or {}).items() if token in known}
    length = metadata.get(f"{vocabulary.architecture}.context_length")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_Handed(backend),
        **names,
        **_adds(vocabulary, pre),
        **({"model_max_length": length} if isinstance(length, int) and length > 0 else {}),
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = templates
    return guard(tokenizer, path)


class _Handed:
    """Returns the backend itself where transformers would copy it, which takes a second for 256 k tokens."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend

    def __deepcopy__(self, memo: Any) -> Tokenizer:
        return self._backend


_HF_NAMES = ("bos", "eos", "unk", "pad", "sep", "mask", "cls")


def _named(vocabulary: Vocabulary) -> dict[str, int]:
    """Ids of special tokens. Files may name ids that make no sense, such as 0 for padding, and a word that became a
    special token would be cut out of texts. So only the end of text may be a normal token, unless the file has no token
    types.
    """
    typed = any(kind != NORMAL for kind in vocabulary.types)
    ids = {name: i for name, i in vocabulary.ids.items() if name in _HF_NAMES}
    return {n: i for n, i in ids.items() if n == "eos" or not typed or vocabulary.types[i] != NORMAL}


def _pre(vocabulary: Vocabulary, path: str | os.PathLike[str]) -> Pre:
    if vocabulary.pre is None:
        warnings.warn(f"{path}: tokenizer.ggml.pre is absent; text is split as by old converters", stacklevel=3)
        return PRE["default"]
    if vocabulary.pre not in PRE:
        known = f"{', '.join(FIRST)} or another name of one of these"
        found = repr(vocabulary.pre[:80])
        raise LoadError("TOKENIZER", path, "tokenizer.ggml.pre", expected=known, found=found)
    return PRE[vocabulary.pre]


def _adds(vocabulary: Vocabulary, pre: Pre) -> dict[str, bool]:
    """Whether begin and end are added to a text: as the file says, else as the model does; never without the token."""
    bos, eos = vocabulary.add_bos, vocabulary.add_eos
    if vocabulary.model == "gemma4":
        bos = False  # the flag is set, but the model's tokenizer adds none: its template writes it
    bos = (vocabulary.model == "llama" or pre.bos) if bos is None else bos
    eos = vocabulary.model == "t5" if eos is None else eos
    named = _named(vocabulary)
    return {"add_bos_token": bos and "bos" in named, "add_eos_token": eos and "eos" in named}


def _bytes(vocabulary: Vocabulary, pre: Pre) -> Tokenizer:
    """Byte-level BPE."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=vocabulary.merges, ignore_merges=pre.whole))
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pieces(vocabulary: Vocabulary, pre: Pre) -> Tokenizer:
    """SentencePiece's BPE: spaces are a letter, characters that are no token are bytes."""
    merges = vocabulary.merges if vocabulary.merges is not None else derived_merges(vocabulary)
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.tokens[vocabulary.ids["unk"]] if "unk" in vocabulary.ids else None
    bpe = models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in vocabulary.types)
    prefix = vocabulary.prefix is not False
    return _with_spaces(Tokenizer(bpe), vocabulary, prefix, squeeze=bool(vocabulary.squeeze))


def _gemma(vocabulary: Vocabulary, pre: Pre) -> Tokenizer:
    """Gemma 4's BPE: as SentencePiece's, with merges listed and runs of spaces among the tokens."""
    ids = {token: i for i, token in enumerate(respelled(vocabulary.tokens))}
    unknown = vocabulary.tokens[vocabulary.ids["unk"]] if "unk" in vocabulary.ids else None
    fallback = BYTE in vocabulary.types or "<0x00>" in ids
    bpe = models.BPE(vocab=ids, merges=vocabulary.merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
    return _with_spaces(Tokenizer(bpe), vocabulary, prefix=False, squeeze=False)


def _unigram(vocabulary: Vocabulary, pre: Pre) -> Tokenizer:
    """SentencePiece's unigram model."""
    assert vocabulary.scores is not None
    pairs = list(zip(_t5_names(vocabulary), vocabulary.scores, strict=True))
    unigram = models.Unigram(pairs, unk_id=vocabulary.ids.get("unk"), byte_fallback=BYTE in vocabulary.types)
    squeeze = vocabulary.squeeze is not False
    return _with_spaces(Tokenizer(unigram), vocabulary, vocabulary.prefix is not False, squeeze)


_BUILDERS = {"gpt2": _bytes, "llama": _pieces, "gemma4": _gemma, "t5": _unigram}


def _with_spaces(backend: Tokenizer, vocabulary: Vocabulary, prefix: bool, squeeze: bool) -> Tokenizer:
    """SentencePiece's normalisation, and back. A prefix is added after each control token too, as llama.cpp does."""
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap is not None:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    if squeeze:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if prefix:
        steps.append(normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    if vocabulary.model == "t5" and squeeze:  # pieces don't cross spaces; cut there, long texts take linear time
        backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend


def derived_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """SentencePiece's merges: any two neighbours that form a piece, best score first. Returns those pairs in that
    order.

    Files made from a tokenizer.json have one score for all pieces; then the order of the pieces is that of the merges.
    """
    scores = vocabulary.scores
    assert scores is not None
    pieces = {t: i for i, t in enumerate(vocabulary.tokens) if vocabulary.types[i] == NORMAL}
    if len({scores[i] for i in pieces.values()}) == 1:
        scores = [-float(i) for i in range(len(scores))]
    found = []
    for piece, i in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                found.append((-scores[i], cut, left, right))
    found.sort(key=lambda pair: pair[:2])
    return [pair[2:] for pair in found]


def _t5_names(vocabulary: Vocabulary) -> list[str]:
    """T5's blanks <extra_id_0> ... are what the file pads its vocabulary with, the last first."""
    tokens = list(vocabulary.tokens)
    blanks = [i for i, t in enumerate(tokens) if vocabulary.types[i] == UNUSED and t.startswith("[PAD")]
    if vocabulary.architecture in ("t5", "t5encoder") and not any(t.startswith("<extra_id_") for t in tokens):
        for i, blank in enumerate(blanks[:100]):
            tokens[blank] = f"<extra_id_{99 - i}>"
    return tokens


def _add_tokens(backend: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that stand in a text as they are: control tokens, which decoding can skip, and the file's own others."""
    tokens = respelled(vocabulary.tokens) if vocabulary.model == "gemma4" else _t5_names(vocabulary)
    strips = vocabulary.architecture == "phi3" and vocabulary.model == "llama"
    added = []
    for token, kind in zip(tokens, vocabulary.types, strict=True):
        control = kind in (CONTROL, UNKNOWN) or token.startswith("<extra_id_")
        if not control and kind != USER_DEFINED:
            continue
        if vocabulary.model == "gemma4" and token.strip("▁") == "":
            continue  # merges make these
        rstrip = strips and control and token not in PHI3_KEEPS
        added.append(AddedToken(token, normalized=False, special=control, rstrip=rstrip))
    backend.add_tokens(added)


def _templates(metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> Any:
    """None, the one chat template, or templates by name; each checked."""
    prefix = "tokenizer.chat_template"
    found = {
        k.removeprefix(prefix).lstrip(".") or "default": k
        for k in metadata
        if k == prefix or k.startswith(prefix + ".")
    }
    templates = {}
    for name, key in found.items():
        template = metadata[key]
        if not isinstance(template, str):
            raise LoadError("VOCAB_TYPE", path, key, expected="a string", found=type(template).__name__)
        check_template(template, path, key, chats=name == "default")
        templates[name] = template
    return templates.get("default") if set(templates) <= {"default"} else templates
