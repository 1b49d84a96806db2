"""Streams: joined they are what decoding all at once gives, and none of it has to be taken back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.text import corpus, sources
from torch_foundry.text import StreamDecoder, TextStreamer, tokenizer_from_gguf
from torch_foundry.text.pretokenizers import PRE, pre_tokenizer
from torch_foundry.text.stream import BYTE_OF

DEMO = Path(__file__).parents[2] / "torch_foundry" / "demo_model" / "main"


def from_metadata(metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    return tokenizer_from_gguf(metadata, "model.gguf")


def metaspace() -> PreTrainedTokenizerFast:
    tokens = ["<unk>", "▁", "▁a", "b▁c", "▁▁", "ü", "<s>"]
    backend = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=0))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


TOKENIZERS = {
    "byte level": lambda: from_metadata(
        sources.byte_level_metadata(sources.byte_level(pre_tokenizer(PRE["gpt-2"])), "gpt-2")
    ),
    "demo": lambda: AutoTokenizer.from_pretrained(DEMO),
    "llama": lambda: from_metadata(sources.sentence_piece_metadata(sources.sentence_piece("bpe"), "llama")),
    "gemma": lambda: from_metadata(
        sources.sentence_piece_metadata(
            sources.sentence_piece("bpe", add_dummy_prefix=False, user_defined_symbols="▁▁,▁▁▁"), "llama"
        )
    ),
    "unigram": lambda: from_metadata(sources.sentence_piece_metadata(sources.sentence_piece("unigram"), "t5")),
    "metaspace": metaspace,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


def sequences(tokenizer: Any, rng: random.Random) -> list[list[int]]:
    """Texts; texts cut anywhere and joined; random ids; byte tokens alone, of broken characters too; ids of nothing."""
    n = len(tokenizer)
    texts = [tokenizer(text)["input_ids"] for text in corpus.TEXTS]
    cut = []
    for _ in range(100):
        some, other = rng.choice(texts), rng.choice(texts)
        cut.append(some[rng.randint(0, len(some)) :] + other[: rng.randint(0, len(other))])
    vocabulary = tokenizer.get_vocab()
    raw = [i for token, i in vocabulary.items() if len(token) == 1 or token.startswith("<0x")] or [1]
    noise = [[rng.choice(raw) for _ in range(rng.randint(0, 12))] for _ in range(300)]
    mixed = [[rng.choice(raw) if rng.random() < 0.7 else rng.randrange(n + 3) for _ in range(20)] for _ in range(300)]
    return texts + cut + noise + mixed + [[rng.randrange(n) for _ in range(30)] for _ in range(200)]


@pytest.mark.parametrize("skip", [False, True])
def test_joined_it_is_the_whole_text(tokenizer: Any, skip: bool) -> None:
    rng = random.Random(0)
    stream = StreamDecoder(tokenizer, skip_special_tokens=skip)
    for ids in sequences(tokenizer, rng):
        want = tokenizer.decode(ids, skip_special_tokens=skip)
        out, at = [], 0
        while at < len(ids):  # one token at a time, or some
            size = rng.choice((1, 1, 1, 3))
            out.append(stream.push(ids[at] if size == 1 else ids[at : at + size]))
            at += size
            assert want.startswith("".join(out))
        assert "".join(out) + stream.finish() == want


def test_characters_are_whole(tokenizer: Any) -> None:
    """No replacement character anywhere, though most characters are several tokens."""
    stream = StreamDecoder(tokenizer)
    for text in corpus.LANGUAGES + corpus.RARE[:1]:
        ids = tokenizer(text)["input_ids"]
        if "\ufffd" in tokenizer.decode(ids):
            continue
        assert not any("\ufffd" in stream.push(i) for i in ids)
        stream.finish()


def test_text_comes_as_soon_as_it_is_sure(tokenizer: Any) -> None:
    ids = tokenizer(corpus.LANGUAGES[0])["input_ids"]
    stream = StreamDecoder(tokenizer)
    parts = [stream.push(i) for i in ids]
    assert sum(map(bool, parts)) >= len(ids) - 2  # nothing is held back of plain English but a leading space


def test_an_incomplete_character_waits_and_is_replaced_in_the_end() -> None:
    tokenizer = TOKENIZERS["byte level"]()
    letters = {byte: letter for letter, byte in BYTE_OF.items()}
    ids = [tokenizer.convert_tokens_to_ids(letters[byte]) for byte in "é👍".encode()]
    stream = StreamDecoder(tokenizer)
    assert [stream.push(i) for i in ids] == ["", "é", "", "", "", "👍"]
    assert stream.push(ids[2:5]) == "" and stream.finish() == "\ufffd"
    assert stream.push(ids[:2]) + stream.finish() == "é"  # it has started anew


def test_letters_of_bytes_are_those_of_the_library() -> None:
    assert set(BYTE_OF) == set(ByteLevel.alphabet()) and sorted(BYTE_OF.values()) == list(range(256))


def test_decoders_that_are_not_known() -> None:
    backend = Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}))
    for decoder in (decoders.WordPiece(), None):
        if decoder is not None:
            backend.decoder = decoder
        else:
            backend = Tokenizer(models.WordPiece({"a": 0}))
        with pytest.raises(ValueError, match=r"WordPiece|without a decoder"):
            StreamDecoder(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_a_streamer_for_generate(skip_prompt: bool, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = TOKENIZERS["demo"]()
    prompt, answer = tokenizer("Hello")["input_ids"], tokenizer(" wörld 👍!")["input_ids"][1:]
    parts: list[str] = []
    streamer = TextStreamer(tokenizer, skip_prompt=skip_prompt, emit=parts.append, skip_special_tokens=True)
    for _ in range(2):  # it can be used again
        parts.clear()
        streamer.put(torch.tensor([prompt]))
        for i in answer:
            streamer.put(torch.tensor([i]))
        streamer.end()
        assert "".join(parts) == ("" if skip_prompt else "Hello") + " wörld 👍!"
    with pytest.raises(ValueError, match="one sequence"):
        streamer.put(torch.zeros(2, 3))
    printing = TextStreamer(tokenizer, skip_special_tokens=True)
    printing.put(torch.tensor([prompt]))
    printing.end()
    assert capsys.readouterr().out == "Hello"
