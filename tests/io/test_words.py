"""Tokenizers of folders: those of known models load and give the library's own ids; hostile ones are the corpus's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import torch_foundry
from tests.hf import tiny_models
from tests.io import words
from tests.text import corpus
from torch_foundry import LoadError
from torch_foundry.io.words.regexes import shortest_match
from torch_foundry.text.pretokenizers import GPT4O, PRE


def folder(path: Path, spec: words.Spec, rows: int, **settings: Any) -> Path:
    tiny_models.random_model(tiny_models.config("LlamaConfig", vocab_size=rows)).save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def load(path: Path) -> Any:
    return torch_foundry.load(path, device="cpu", progress=False, patch=False)[1]


def rows_of(spec: words.Spec) -> int:
    return 1000 if spec["model"]["type"] == "Unigram" else len(Tokenizer.from_str(json.dumps(spec)).get_vocab())


@pytest.mark.parametrize("name", words.KNOWN)
def test_tokenizers_of_known_models_load(name: str, tmp_path: Path) -> None:
    make, kind = words.KNOWN[name]
    spec = make()
    rows = rows_of(spec) - (name == "gemma3")
    tokenizer = load(folder(tmp_path, spec, rows, tokenizer_class=kind))
    plain = Tokenizer.from_str(json.dumps(spec))
    for text in corpus.TEXTS:
        assert tokenizer(text).input_ids == plain.encode(text).ids
    assert tokenizer.decode(tokenizer("a b c").input_ids, skip_special_tokens=True).strip()


def test_a_token_behind_the_embedding_is_no_index_into_it(tmp_path: Path) -> None:
    tokenizer = load(folder(tmp_path, words.gemma3(), 1000))
    with pytest.raises(ValueError, match=r"<image_soft_token>.* 1000 rows"):
        tokenizer("a <image_soft_token>")
    assert tokenizer(["a", "b"]).input_ids


@pytest.mark.parametrize("name", ["RagTokenizer", "CanineTokenizer", "ByT5Tokenizer"])
def test_classes_of_other_vocabularies(name: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="TOKENIZER") as caught:
        load(folder(tmp_path, words.llama3(), rows_of(words.llama3()), tokenizer_class=name))
    assert name in caught.value.found


@pytest.mark.parametrize("config", ["Qwen2Config", "LlamaConfig"])
def test_a_folder_without_a_tokenizer(config: str, tmp_path: Path) -> None:
    """transformers makes one of nothing for some models, which gives no ids for any text."""
    tiny_models.random_model(tiny_models.config(config, vocab_size=64)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"expected tokenizer\.json, .*, found none of these files \[VOCAB_MISSING\]"):
        load(tmp_path)
    model, tokenizer = torch_foundry.load(tmp_path, device="cpu", allow="VOCAB_MISSING")
    assert model.config.vocab_size == 64 and tokenizer is None


def test_the_class_changes_no_id_and_names_special_tokens(tmp_path: Path) -> None:
    """GPT-2's class makes another pre-tokenizer than this file has; T5's another vocabulary."""
    spec = words.byte_level([words.split(GPT4O)])
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": rows_of(spec), "content": "<|endoftext|>"})
    for name in ("GPT2Tokenizer", "T5Tokenizer", "BertTokenizerFast"):
        tokenizer = load(folder(tmp_path, spec, rows_of(spec), tokenizer_class=name))
        plain = Tokenizer.from_str(json.dumps(spec))
        assert [tokenizer(text).input_ids for text in corpus.TEXTS] == [plain.encode(t).ids for t in corpus.TEXTS]
        assert tokenizer.eos_token == ("</s>" if name == "T5Tokenizer" else "<|endoftext|>" if name[0] == "G" else None)


def test_patterns_of_known_models_are_taken() -> None:
    patterns = {pattern for pre in PRE.values() for pattern in pre.splits}
    assert len(patterns) == 30
    for pattern in patterns:
        assert shortest_match(pattern) >= 1
    for pattern, least in {
        r" {2,}": 2,
        "``": 2,
        r"\A +| +\z": 1,
        "(?<=x)[^\\S\r\n]*": 0,
        r"(?i)ab?+|[[a-c]&&[^b]]{3}": 1,
    }.items():
        assert shortest_match(pattern) == least, pattern


SLOW = [
    "(a+)+b",
    "(a|a)*b",
    "(a|ab)*c",
    "(a*)*b",
    r"(\w+\s?)*$",
    "a*a*b",
    r"\s*\s*x",
    "(?:a?){30}a{30}",
    "a?" * 30 + "a" * 30,
    "((a{1000}){1000}){1000}",
    "(.*),(.*),(.*)x",
    "(?:(?:a|b)+)+",
    "(?=(a+)+b)",
    "(?i:(A+)+b)",
    "a{99999}",
    "(a|a)" * 30,
    r"(?:\p{L}|\w)+!",
    "(?:a{0,15}){0,15}b",
    "a{0,15}" * 5 + "b",
    "(a|ab)" * 20 + "c",
    "x" * 5000,
    "(?:(?=a))*",
    "(a||b)+",
    "a{5000}b",
    "(?=a{6000})",
]
UNKNOWN = [
    r"(a)\1",
    r"(?<n>a)\k<n>",
    "(a",
    "a)",
    "[a",
    "*a",
    "(" * 100 + ")" * 100,
    r"\p{Foo}",
    r"\R+",
    "(?~a)",
    "(?#a)",
    "^*",
    "(?(1)a|b)",
    "a\\",
    "[b-a]",
    r"\g<0>",
    "(" * 3000,
]


@pytest.mark.parametrize("pattern", SLOW + UNKNOWN, ids=lambda pattern: pattern[:20])
def test_patterns_that_may_take_long_or_are_unknown(pattern: str) -> None:
    with pytest.raises(ValueError):
        shortest_match(pattern)
