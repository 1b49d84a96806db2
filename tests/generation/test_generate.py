"""Our generation loop gives the tokens of Hugging Face's own, in every way of calling it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import torch_foundry
from tests.generation.generation import SAMPLED, Collect, generate, patched, reference
from tests.hf.tiny_cases import ALL_FAMILIES
from tests.hf.tiny_models import build, ids, padded, shared
from torch_foundry import counters
from torch_foundry.hf.api import report

pytestmark = pytest.mark.usefixtures("quiet")
EVERY = (1, 3, 16, 64)


# ----------------------------------------------------------------------------------------------------- how much is read


@pytest.mark.parametrize("every", EVERY)
def test_reads_and_launches(every: int) -> None:
    model = patched()
    generate(model, every=every, max_new_tokens=64)
    seen = report(model)
    assert (seen.tokens, seen.reads, seen.steps, seen.captured) == (64, -(-64 // every), 63, 1), str(seen)
    launches = []
    for tokens in (32, 64):
        before = counters()
        generate(model, every=every, max_new_tokens=tokens)
        launches.append(counters().launches - before.launches)
    per_token = 5 * 2 + 5  # layers; embedding, norm, output layer, two of the sampler
    assert launches[1] - launches[0] == 32 * per_token


def test_choosing_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(model: Any, **options: Any) -> int:
        before = report(model).reads
        generate(model, max_new_tokens=32, **options)
        return report(model).reads - before

    model = patched()
    assert reads(model) == 8
    assert reads(model, streamer=Collect()) == 32
    assert reads(model, streamer=Collect(), every=8) == 4
    monkeypatch.setenv("TORCH_FOUNDRY_SYNC_EVERY", "32")
    assert reads(model) == 1 and reads(model, streamer=Collect()) == 1 and reads(model, every=16) == 2
    torch_foundry.patch(model, sync_every=2)
    assert reads(model) == 16
    assert reads(model, every=0) == 0
    assert reads(model, every=16, sync_every=32) == 1 and reads(model, sync_every=8) == 4
    assert report(model).eager == {"generate: sync_every is 0": 1}
    for bad in ("a few", "-1", "1.5"):
        monkeypatch.setenv("TORCH_FOUNDRY_SYNC_EVERY", bad)
        with pytest.raises(ValueError, match=f"TORCH_FOUNDRY_SYNC_EVERY='{bad}': expected 0 .* or a number of tokens"):
            generate(patched())
    with pytest.raises(ValueError, match="sync_every"):
        torch_foundry.patch(model, sync_every=-1)


# ------------------------------------------------------------------------------------------------------------- sampling


PROCESSORS: dict[str, dict[str, Any]] = {
    "plain": {"do_sample": True},
    "warpers": SAMPLED,
    "min-p": {"do_sample": True, "min_p": 0.05, "top_k": 0},
    "penalties": {**SAMPLED, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    "greedy penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[5], [6, 7]]},
    "lengths": {"min_new_tokens": 12, "eos_token_id": list(range(3, 60)), "pad_token_id": 0},
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_seed_decides_not_what_is_in_flight(name: str) -> None:
    options, model = PROCESSORS[name], patched()
    for inputs in (None, padded([9, 4, 7])):
        found = []
        for every in (1, 5, 16, 64):
            torch.manual_seed(11)
            found.append(generate(model, inputs, every=every, **options).tolist())
        assert all(f == found[0] for f in found)
        if options.get("do_sample"):
            torch.manual_seed(12)
            assert generate(model, inputs, **options).tolist() != found[0]
        else:
            assert found[0] == reference("llama", inputs, **options).tolist()
    assert not report(model).eager, str(report(model))


def test_draws_are_the_same_layer_by_layer() -> None:
    found = []
    for change in (False, True):
        model = patched("gemma2")

        class Change(Collect):
            """Lets graphs stop in the middle of a text."""

            def put(self, value: torch.Tensor, model: Any = model, change: bool = change) -> None:
                super().put(value)
                if change and len(self.got) == 10:
                    model.model.register_forward_hook(lambda *_: None)

        torch.manual_seed(3)
        found.append(generate(model, streamer=Change(), **SAMPLED).tolist())
    assert found[0] == found[1]
    seen = report(model)
    assert 5 < seen.steps < 12 and seen.tokens == 30 and seen.eager["step of generate: forward hook on Gemma2Model"]


# --------------------------------------------------------------------------------------------------- ways of calling it


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_results_as_a_dict(family: str) -> None:
    for model in (copy.deepcopy(shared(family)), patched(family)):
        found = generate(model, return_dict_in_generate=True, max_new_tokens=5)
        assert type(found).__name__ == "GenerateDecoderOnlyOutput"
        assert found.sequences.shape == (1, 14) and found.past_key_values.get_seq_length() == 13
        assert found.scores is None


def test_embeddings_as_prompt() -> None:
    stock, model = copy.deepcopy(shared("llama")), patched()
    embeds = stock.get_input_embeddings()(ids(1, 9)).detach()
    inputs = {"inputs_embeds": embeds, "attention_mask": torch.ones(1, 9, dtype=torch.long)}
    assert generate(model, inputs).tolist() == generate(stock, inputs).tolist()
    assert report(model).tokens == 30


@pytest.mark.parametrize("bans", [{"no_repeat_ngram_size": 2}, {"bad_words_ids": [[5], [7, 8]]}])
def test_embeddings_as_prompt_and_banned_sequences(bans: dict[str, Any]) -> None:
    stock, model = copy.deepcopy(shared("llama")), patched()
    inputs = {"inputs_embeds": stock.get_input_embeddings()(ids(2, 9)).detach()}
    assert generate(model, inputs, **bans).tolist() == generate(stock, inputs, **bans).tolist()
    assert not report(model).eager


def test_greedy_code_takes_no_random_numbers() -> None:
    state = torch.get_rng_state()
    generate(patched())
    assert torch.equal(state, torch.get_rng_state())


def test_several_texts_of_one_prompt() -> None:
    model = patched()
    found = generate(model, num_return_sequences=4, **SAMPLED).tolist()
    assert len({tuple(row) for row in found}) == 4
    assert report(model).tokens == 30 and not report(model).eager


def test_inference_mode() -> None:
    model = patched()
    with torch.inference_mode():
        inside = generate(model)
    assert generate(model).tolist() == inside.tolist() == reference("llama").tolist()


def test_generation_config_is_not_touched() -> None:
    model = patched()
    before = model.generation_config.to_dict()
    generate(model)
    assert model.generation_config.to_dict() == before
    assert isinstance(model.generation_config, GenerationConfig)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "granite"])
def test_narrow_dtypes(family: str, dtype: torch.dtype) -> None:
    """The loop gives what Hugging Face's loop gives on the same graphs."""
    model = torch_foundry.patch(build(family, dtype))
    inputs = padded([9, 4])
    assert generate(model, inputs).tolist() == generate(model, inputs, every=0).tolist()
    assert report(model).tokens == 30
