"""The files of a folder's tokenizer, checked before anything is built from them; and what is built, checked again.

Taken is what transformers makes a fast tokenizer of: tokenizer.json, or (where its packages for that are installed) a
SentencePiece model, or vocab.json with merges.txt.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from torch_foundry.core.load_errors import AllowedFaults, LoadError, is_fault
from torch_foundry.io.files import LOOK, File, foreign, names_in
from torch_foundry.io.words.pipeline import STEPS, check_pipeline
from torch_foundry.io.words.skim import Skim

LONGEST_FILE = 1 << 28  # bytes; the largest have a tenth
LONGEST_TOKEN = 1024  # characters, as in GGUF
MOST_ADDED = 100_000  # added tokens; models of speech have 65,000
LONGEST_PART = 1 << 19  # bytes of what is kept of a file: a normalizer with a table has 400 KB
_LONGEST_ENTRY = 1 << 14  # bytes of one of them
BEYOND = 64  # control tokens that may lie behind the embedding (Gemma 3 has one, of pictures, in its models of text)
_TEXTS = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_VOCABULARY = re.compile(r"(tokenizer(\..+)?|vocab|tekken)\.json|vocab\.txt|.+\.(model|tiktoken)")
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Settings that would go around what is checked, or read other files.
_NOT_TAKEN = {"gguf_file", "tokenizer_object", "vocab", "merges", "post_processor", "init_inputs"}
_NOT_TAKEN |= {"tokenizer_padding", "tokenizer_truncation", "_json_padding", "_json_truncation"}
_LISTS = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")
_SIZES = ("Fixed", "pad_to_multiple_of", "max_input_chars_per_word", "model_max_length_of_padding")
_LARGEST_SIZE = 1 << 16


def check_words(folder: Path, rows: int) -> str | None:
    """Refuse what costs too much to build, or can't be of this model. rows: of the embedding. Returns the class named.

    LoadError TOKENIZER, TOKEN_ID, VOCAB_DUP, and what opening a file raises.
    """
    kind = None
    for name in names_in(folder):
        if not name.endswith(_TEXTS):
            continue
        file = File(folder / name)
        try:
            if file.size > LONGEST_FILE:
                expected = f"at most {LONGEST_FILE} bytes"
                raise LoadError("TOKENIZER", file.path, name, expected=expected, found=f"{file.size}")
            checked = _File(file, rows)
            if name in _SETTINGS:
                kind = checked.settings(plain=name == "added_tokens.json") or kind
            elif re.fullmatch(r"tokenizer(\..+)?\.json", name):
                checked.tokenizer()
            elif name in ("vocab.json", "tekken.json"):
                checked.skim.skip()
        finally:
            file.close()
    return kind


class _File:
    """One of them. rows: of the embedding."""

    def __init__(self, file: File, rows: int) -> None:
        self.skim, self.rows = Skim(file), rows
        begin = bytes(file.read(min(LOOK, file.size), 0, file.path.name)) if file.path.suffix == ".json" else b""
        if (what := foreign(begin)) is not None:
            self.skim.refuse("JSON", what)

    def tokenizer(self) -> None:
        found: dict[str, Any] = {}
        for name in self.skim.members():
            if name == "added_tokens" and self.skim.at_container():
                self._list(name)
            elif name == "model" and self.skim.at_container():
                self._model()
            else:
                found[name] = self.skim.value(LONGEST_PART)
        check_pipeline(found, self.skim.refuse)
        self._sizes(found)

    def _model(self) -> None:
        for name in self.skim.members():
            if self.skim.at_container():
                self.skim.skip()
            else:
                self._sizes({name: self.skim.value(LONGEST_TOKEN)})

    def settings(self, plain: bool) -> str | None:
        """tokenizer_config.json and the like; returns the class that it names. plain: ids by token."""
        found: dict[str, Any] = {}
        if plain:
            self._list("added_tokens.json")
            return None
        for name in self.skim.members():
            if name in _NOT_TAKEN:
                self.skim.refuse("settings of a tokenizer", f"{name}, which is none", name)
            if name in _LISTS and self.skim.at_container():
                self._list(name)
            else:
                found[name] = self.skim.value(LONGEST_PART * 4 if name == "chat_template" else LONGEST_PART)
        if any(isinstance(v, str) and len(v) > LONGEST_TOKEN for k, v in found.items() if k.endswith("_token")):
            self.skim.refuse(f"tokens of at most {LONGEST_TOKEN} characters", "a longer one")
        self._sizes(found)
        _check_class(found.get("tokenizer_class"), "auto_map" in found, self.skim)
        return found.get("tokenizer_class")

    def _list(self, name: str) -> None:
        """Tokens that stand in a text as they are; those without an id get one of the vocabulary's, or the next."""
        count, names, ids = 0, set[str](), set[int]()
        for batch in self.skim.batches(_LONGEST_ENTRY):
            contents, numbers = _tokens(name, batch)
            count += len(contents)
            if set(map(type, contents)) - {str} or not all(contents) or max(map(len, contents)) > LONGEST_TOKEN:
                self.skim.refuse(f"added tokens of 1 to {LONGEST_TOKEN} characters", "others", name)
            if count > MOST_ADDED:
                self.skim.refuse(f"at most {MOST_ADDED} added tokens", "more", name)
            if numbers is None:
                continue
            odd = [i for i in numbers if i.__class__ is not int or i < 0 or i >= self.rows + BEYOND]
            odd += [each["id"] for each in batch if each.__class__ is dict and _behind(each, self.rows)]
            if odd:
                self._refuse("TOKEN_ID", name, f"ids below {self.rows}, the rows of the embedding", f"{odd[0]!r:.80}")
            names.update(contents)
            ids.update(numbers)
            if len(names) < count or len(ids) < count:
                self._refuse("VOCAB_DUP", name, "each added token and each id once", "one of them again")

    def _refuse(self, code: str, field: str, expected: str, found: str) -> None:
        raise LoadError(code, self.skim.file.path, field, expected=expected, found=found)

    def _sizes(self, part: Any) -> None:
        """Numbers that say how much memory is wanted, wherever they stand."""
        for name, value in part.items() if isinstance(part, dict) else ():
            if name in _SIZES and type(value) is int and value > _LARGEST_SIZE:
                self.skim.refuse(f"at most {_LARGEST_SIZE}", f"{value}", name)
            self._sizes(value)


def _tokens(name: str, batch: list[Any]) -> tuple[list[Any], list[Any] | None]:
    """Texts and ids of entries of a list of that name; None: they have no ids."""
    if name == "added_tokens.json":
        return [text for text, _ in batch], [number for _, number in batch]
    pairs = batch and batch[0].__class__ is tuple
    values = [value for _, value in batch] if pairs else batch
    contents = [value.get("content") if value.__class__ is dict else value for value in values]
    if name == "added_tokens":
        return contents, [value.get("id") if value.__class__ is dict else None for value in values]
    if name == "added_tokens_decoder":
        texts = [each[0] if pairs else "" for each in batch]
        return contents, [int(each) if each.isdecimal() and len(each) < 12 else each for each in texts]
    return contents, None


def _behind(token: dict[str, Any], rows: int) -> bool:
    """Whether it is a word behind the embedding: control tokens may be there."""
    return not token.get("special") and token.get("id", 0) >= rows


def _check_class(name: Any, has_code: bool, skim: Skim) -> None:
    """The class has to be that of a fast tokenizer, or one that nothing is known of, not even code."""
    known = _class(name) if isinstance(name, str | None) and len(name or "") < 100 else object
    fast = isinstance(known, type) and issubclass(known, PreTrainedTokenizerFast)
    if not fast and (known is not None or has_code):
        skim.refuse("the class of a fast tokenizer", repr(name)[:80], "tokenizer_class")


def _class(name: str | None) -> Any:
    return None if name is None else tokenizer_class_from_name(name)


def load_tokenizer(folder: Path, rows: int, name: str | None, permits: AllowedFaults) -> Any:
    """The folder's tokenizer, by transformers. rows: of the embedding. name: of its class. None: allowed to be absent.

    tokenizer.json is taken as it is, whatever class the folder names: transformers' own classes make some steps anew,
    by rules of theirs, and give other ids then. The class adds names of special tokens that no file has.
    """
    options: Any = {"local_files_only": True, "trust_remote_code": False}
    if not any(map(_VOCABULARY.fullmatch, names_in(folder))):  # of nothing, some classes make one that knows no words
        if permits("VOCAB_MISSING", folder.name):
            return None
        expected = "tokenizer.json, a SentencePiece model, or vocab.json with merges.txt"
        raise LoadError("VOCAB_MISSING", folder, "tokenizer", expected=expected, found="none of these files")
    whole = (folder / "tokenizer.json").exists()
    kind = PreTrainedTokenizerFast if whole else AutoTokenizer
    made = _or_refuse(folder, lambda: kind.from_pretrained(folder, **options))
    _check_built(made, folder, rows)
    if whole:
        named = _or_refuse(folder, lambda: _class(name))
        for each in inspect.signature(named.__init__).parameters.values() if named else ():
            special = each.name in made.SPECIAL_TOKENS_ATTRIBUTES and isinstance(each.default, str)
            if special and getattr(made, each.name) is None and each.default in made.get_vocab():
                setattr(made, each.name, each.default)
    return made


def _or_refuse(folder: Path, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:  # whatever a broken folder makes transformers raise
        if not is_fault(error):
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LoadError("TOKENIZER", folder, "tokenizer", expected="a tokenizer", found=line[:200]) from error


def _check_built(made: Any, folder: Path, rows: int) -> None:
    def fail(expected: str, found: str, field: str = "tokenizer", code: str = "TOKENIZER") -> Any:
        raise LoadError(code, folder, field, expected=expected, found=found)

    if not isinstance(made, PreTrainedTokenizerFast):
        fail("a fast tokenizer, as made from tokenizer.json", type(made).__name__)
    backend = made.backend_tokenizer
    parts = {name: _state(getattr(backend, name)) for name in STEPS}
    check_pipeline(parts, fail)
    vocabulary = backend.get_vocab()
    if max(map(len, vocabulary), default=0) > LONGEST_TOKEN:
        fail(f"tokens of at most {LONGEST_TOKEN} characters", "a longer one")
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    beyond = {i for i in vocabulary.values() if i >= rows}
    beyond |= {i for i in _or_refuse(folder, lambda: backend.encode("a b", "a").ids) if i >= rows}
    if beyond - special or len(beyond) > BEYOND:
        fail(f"ids below {rows}, the rows of the embedding", f"{max(beyond)}", "tokenizer", "TOKEN_ID")
    made.beyond = {i: f"{backend.id_to_token(i)!r}, for which the embedding of {rows} rows has none" for i in beyond}


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())
