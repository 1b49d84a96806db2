"""Our generation loop stops where Hugging Face's does, at every place of a block of tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import DynamicCache, PreTrainedTokenizerFast

from tests.exact import InFloat64, doubled
from tests.generation.generation import Collect, generate, patched, reference
from tests.hf.tiny_cases import VOCAB
from tests.hf.tiny_models import padded, shared
from torch_foundry.hf.api import report
from torch_foundry.testing.tolerance import assert_norm

pytestmark = pytest.mark.usefixtures("quiet")
EVERY = (1, 3, 16, 64)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_end_of_text(family: str, every: int) -> None:
    """At every place of a block, and the cache holds no more than stock's."""
    plain = reference(family)[0, 9:].tolist()
    stock, model, exact = copy.deepcopy(shared(family)), patched(family), doubled(shared(family))
    for place in (0, 1, 2, 5, 15, 16, 17, 29):
        eos = plain[place]
        caches = [DynamicCache(config=model.config) for _ in range(2)]
        theirs, ours = (
            generate(m, every=every, eos_token_id=[eos, 1], pad_token_id=0, past_key_values=c)
            for m, c in zip((stock, model), caches, strict=True)
        )
        assert ours.tolist() == theirs.tolist()
        assert [x.get_seq_length() for x in caches[1].layers] == [x.get_seq_length() for x in caches[0].layers]
        held = DynamicCache(config=model.config)
        with torch.no_grad(), InFloat64():
            exact(ours[:, : caches[0].get_seq_length()], past_key_values=held)
        for mine, yours, truth in zip(caches[1].layers, caches[0].layers, held.layers, strict=True):
            assert_norm(mine.keys, truth.keys, yours.keys)
            assert_norm(mine.values, truth.values, yours.values)
    assert not report(model).eager


@pytest.mark.parametrize("every", EVERY)
def test_rows_that_end_at_different_times(every: int) -> None:
    inputs = padded([9, 4, 7, 1])
    plain = reference("llama", inputs)[:, 9:].tolist()
    options = {"eos_token_id": [plain[0][3], plain[1][20], plain[2][11]], "pad_token_id": 0}
    stock = reference("llama", inputs, **options)
    model, streams = patched(), [Collect(), Collect()]
    assert generate(model, inputs, every=every, **options).tolist() == stock.tolist()
    assert not report(model).eager
    # streamers take one row
    generate(model, every=every, streamer=streams[0], eos_token_id=reference("llama")[0, 20].item(), pad_token_id=0)
    reference("llama", streamer=streams[1], eos_token_id=reference("llama")[0, 20].item(), pad_token_id=0)
    assert streams[0].got == streams[1].got and streams[0].ended == 1


LETTERS = "".join(filter(str.isalpha, map(chr, range(97, 400))))[:VOCAB]


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """A letter for each token."""
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="a")


@pytest.mark.parametrize("every", EVERY)
def test_stop_strings(every: int) -> None:
    tokenizer, model = letter_tokenizer(), patched()
    text = "".join(LETTERS[t] for t in reference("llama")[0, 9:].tolist())
    cases: list[dict[str, Any]] = [
        {"stop_strings": [text[4:7]]},
        {"stop_strings": [text[12:14], text[20]], "eos_token_id": LETTERS.index(text[25]), "pad_token_id": 0},
    ]
    for options in cases:
        stock = reference("llama", tokenizer=tokenizer, **options)
        assert generate(model, every=every, tokenizer=tokenizer, **options).tolist() == stock.tolist()
        assert 9 < stock.shape[1] < 39
    inputs = padded([9, 4])
    rows = ["".join(LETTERS[t] for t in row) for row in reference("llama", inputs)[:, 9:].tolist()]
    options = {"stop_strings": [rows[0][5:7], rows[1][14:16]], "eos_token_id": 2, "pad_token_id": 0}
    stock = reference("llama", inputs, tokenizer=tokenizer, **options)
    assert generate(model, inputs, every=every, tokenizer=tokenizer, **options).tolist() == stock.tolist()
    assert not report(model).eager, str(report(model))
