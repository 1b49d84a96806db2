"""tokenizer.json files as models have them, small: what has to load."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.text import sources
from torch_foundry.text.pretokenizers import DEEPSEEK_LLM, FALCON, GPT2, GPT4O, LLAMA3, QWEN2, TEKKEN

Spec = dict[str, Any]
SPLIT = {"behavior": "Isolated", "invert": False}


def small(rows: int = 120) -> PreTrainedTokenizerFast:
    """A tokenizer of ASCII characters for a model of so many rows."""
    words = {"<unk>": 0, "</s>": 1} | {chr(32 + i): i + 2 for i in range(rows - 2)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>")


def byte_level(pre: list[Spec], **parts: Any) -> Spec:
    """BPE of bytes: Llama 3, Qwen, GPT and others."""
    made = sources.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    made.add_special_tokens([AddedToken(f"<|reserved_{i}|>", special=True) for i in range(200)])
    made.add_tokens([AddedToken("<|end|>", rstrip=True, normalized=False), AddedToken("word", single_word=True)])
    spec: Spec = json.loads(made.to_str())
    own = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return spec | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pre, own]}} | parts


def split(pattern: str) -> Spec:
    return {"type": "Split", "pattern": {"Regex": pattern}, **SPLIT}


def template(begin: str, number: int) -> Spec:
    pieces = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*pieces, {"SpecialToken": {"id": begin, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    tokens = {begin: {"id": begin, "ids": [number], "tokens": [begin]}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": tokens}


def llama3() -> Spec:
    bytes_again = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    post = {"type": "Sequence", "processors": [bytes_again, template("<s>", 900)]}
    return byte_level([split(LLAMA3)], post_processor=post)


def gpt2() -> Spec:
    spec = byte_level([])
    return spec | {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}}


def pieces(**parts: Any) -> Spec:
    """SentencePiece's BPE as converted: Llama 2, Mistral, Phi-3, Gemma."""
    source = sources.sentence_piece("bpe")
    words = {source.id_to_piece(i): i for i in range(source.get_piece_size())}
    pairs = [[w[:c], w[c:]] for w in words for c in range(1, len(w)) if {w[:c], w[c:]} <= words.keys() and w[0] != "<"]
    model = {"type": "BPE", "vocab": words, "merges": pairs, "unk_token": "<unk>", "byte_fallback": True}
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    back = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    added = [{"id": i, "content": source.id_to_piece(i), "special": True, "normalized": False} for i in range(3)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [each | flags for each in added],
        "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None,
        "post_processor": template("<s>", 1), "model": model | {"fuse_unk": True},
        "decoder": {"type": "Sequence", "decoders": [*back, strip]},
    } | parts  # fmt: skip


def gemma() -> Spec:
    pattern = {"pattern": {"String": " "}}
    before = {"type": "Split", "behavior": "MergedWithPrevious", "invert": False, **pattern}
    back = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return pieces(
        normalizer={"type": "Replace", "content": "▁", **pattern}, pre_tokenizer=before,
        decoder={"type": "Sequence", "decoders": back},
    )  # fmt: skip


def gemma3() -> Spec:
    """A token of pictures behind the embedding of a model of text."""
    spec = gemma()
    beyond = {"id": 1000, "content": "<image_soft_token>", "special": True, "normalized": False}
    spec["added_tokens"].append({**spec["added_tokens"][0], **beyond})
    return spec


def metaspace() -> Spec:
    """Mistral's newer files."""
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return pieces(normalizer=None, pre_tokenizer=space)


def unigram() -> Spec:
    """T5 and XLM-R: a compiled normalisation."""
    source = sources.sentence_piece("unigram", normalization_rule_name="nmt_nfkc")
    charsmap = base64.b64encode(sources._spec(source)["charsmap"]).decode()
    words = [[source.id_to_piece(i), source.get_score(i)] for i in range(source.get_piece_size())]
    model = {"type": "Unigram", "unk_id": 0, "vocab": words, "byte_fallback": False}
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    steps = [
        {"type": "Precompiled", "precompiled_charsmap": charsmap},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    return pieces(
        model=model, decoder=space, normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
    )  # fmt: skip


def word_piece() -> Spec:
    words = ["[UNK]", "[CLS]", "[SEP]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
    model = {"type": "WordPiece", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "[UNK]"}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
    post = {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}
    return {
        "version": "1.0", "added_tokens": [], "normalizer": normalizer | {"strip_accents": None},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": post,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": model | {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    }  # fmt: skip


NFC = {"type": "NFC"}
DIGITS = {"type": "Digits", "individual_digits": True}
# name -> (tokenizer.json, tokenizer_class)
KNOWN: dict[str, tuple[Callable[[], Spec], str]] = {
    "llama3": (llama3, "PreTrainedTokenizerFast"),
    "llama3, by another name": (llama3, "LlamaTokenizerFast"),
    "qwen2": (lambda: byte_level([split(QWEN2)], normalizer=NFC), "Qwen2Tokenizer"),
    "gpt2": (gpt2, "GPT2Tokenizer"),
    "gpt4o": (lambda: byte_level([split(GPT4O)]), "PreTrainedTokenizerFast"),
    "tekken": (lambda: byte_level([split(TEKKEN)]), "PreTrainedTokenizerFast"),
    "falcon": (lambda: byte_level([{"type": "Punctuation"}, *map(split, FALCON)]), "PreTrainedTokenizerFast"),
    "starcoder": (lambda: byte_level([DIGITS, split(GPT2)]), "GPT2TokenizerFast"),
    "deepseek": (lambda: byte_level([*map(split, DEEPSEEK_LLM), DIGITS]), "LlamaTokenizerFast"),
    "llama2": (pieces, "LlamaTokenizer"),
    "mistral": (metaspace, "LlamaTokenizerFast"),
    "phi3": (pieces, "PreTrainedTokenizerFast"),
    "gemma": (gemma, "GemmaTokenizer"),
    "gemma3": (gemma3, "PreTrainedTokenizerFast"),
    "unigram": (unigram, "PreTrainedTokenizerFast"),
    "word pieces": (word_piece, "PreTrainedTokenizerFast"),
    "a class of somebody's own": (llama3, "OwnTokenizer"),
}
