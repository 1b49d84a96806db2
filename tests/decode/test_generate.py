"""Our generation loop: tokens, streams, stops and cache are those of Hugging Face's own, whatever is in flight."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, PreTrainedTokenizerFast, StoppingCriteria

import torch_foundry
from tests.patch.zoo import FAMILIES, VOCAB, assert_close, build, config, ids, padded, random_model, shared
from torch_foundry import counters
from torch_foundry.kvcache.layer import FoundryLayer
from torch_foundry.patch import report

pytestmark = pytest.mark.usefixtures("quiet")
EVERY = (1, 3, 16, 64)


def patched(family: str = "llama") -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(family)))


def generate(model: Any, inputs: Any = None, *, every: int | None = None, **options: Any) -> Any:
    """Greedy, 30 tokens, with other options of the generation config as given."""
    inputs = inputs or {"input_ids": ids(1, 9), "attention_mask": torch.ones(1, 9, dtype=torch.long)}
    extra = {k: options.pop(k) for k in list(options) if k in CALL}
    settings = copy.deepcopy(model.generation_config)
    settings.update(**{"max_new_tokens": 30, "do_sample": False, **options})
    if every is not None:
        settings.sync_every = every
    return model.generate(**inputs, generation_config=settings, **extra)


CALL = {"sync_every", "streamer", "past_key_values", "logits_processor", "stopping_criteria", "tokenizer"}


class Collect:
    """A streamer that keeps what it gets."""

    def __init__(self, fail_at: int = -1) -> None:
        self.got: list[list[int]] = []
        self.ended, self.fail_at = 0, fail_at

    def put(self, value: torch.Tensor) -> None:
        if len(self.got) == self.fail_at:
            raise KeyboardInterrupt
        assert value.device.type == "cpu"
        self.got.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


# ----------------------------------------------------------------------------------------------------- how much is read


@pytest.mark.parametrize("every", EVERY)
def test_reads_and_launches(every: int) -> None:
    model = patched()
    generate(model, every=every, max_new_tokens=64)
    seen = report(model)
    assert (seen.tokens, seen.reads, seen.steps, seen.recorded) == (64, -(-64 // every), 63, 1), str(seen)
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
    assert reads(model) == 2
    assert reads(model, streamer=Collect()) == 32
    assert reads(model, streamer=Collect(), every=8) == 4
    monkeypatch.setenv("TORCH_FOUNDRY_SYNC_EVERY", "32")
    assert reads(model) == 1 and reads(model, streamer=Collect()) == 1 and reads(model, every=16) == 2
    torch_foundry.patch(model, sync_every=4)
    assert reads(model) == 8
    assert reads(model, every=0) == 0
    assert reads(model, every=16, sync_every=32) == 1 and reads(model, sync_every=8) == 4
    assert report(model).eager == {"generate: sync_every is 0": 1}
    for bad in ("a few", "-1", "1.5"):
        monkeypatch.setenv("TORCH_FOUNDRY_SYNC_EVERY", bad)
        with pytest.raises(ValueError, match="sync_every"):
            generate(patched())
    with pytest.raises(ValueError, match="sync_every"):
        torch_foundry.patch(model, sync_every=-1)


# ------------------------------------------------------------------------------------------------------------- stopping


def reference(family: str, inputs: Any = None, **options: Any) -> Any:
    return generate(copy.deepcopy(shared(family)), inputs, **options)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_end_of_text(family: str, every: int) -> None:
    """At every place of a block, and the cache holds no more than stock's."""
    plain = reference(family)[0, 9:].tolist()
    stock, model = copy.deepcopy(shared(family)), patched(family)
    for place in (0, 1, 2, 5, 15, 16, 17, 29):
        eos = plain[place]
        caches = [DynamicCache(config=model.config) for _ in range(2)]
        theirs, ours = (
            generate(m, every=every, eos_token_id=[eos, 1], pad_token_id=0, past_key_values=c)
            for m, c in zip((stock, model), caches, strict=True)
        )
        assert ours.tolist() == theirs.tolist()
        assert [x.get_seq_length() for x in caches[1].layers] == [x.get_seq_length() for x in caches[0].layers]
        for mine, yours in zip(caches[1].layers, caches[0].layers, strict=True):
            assert_close(mine.keys, yours.keys)
            assert_close(mine.values, yours.values)
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


# ------------------------------------------------------------------------------------------------------------- sampling


SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.95}
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
            """Lets tapes stop in the middle of a text."""

            def put(self, value: torch.Tensor, model: Any = model, change: bool = change) -> None:
                super().put(value)
                if change and len(self.got) == 10:
                    model.model.register_forward_hook(lambda *_: None)

        torch.manual_seed(3)
        found.append(generate(model, streamer=Change(), **SAMPLED).tolist())
    assert found[0] == found[1]
    seen = report(model)
    assert 5 < seen.steps < 12 and seen.tokens == 30 and seen.eager["step of generate: forward hook on Gemma2Model"]


# ------------------------------------------------------------------------------------------ what the loop doesn't do


class Nothing(LogitsProcessor):
    """Changes nothing."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


class Never(StoppingCriteria):
    """Never stops."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


REASONS: dict[str, dict[str, Any]] = {
    "Nothing is not known": {"logits_processor": [Nothing()]},
    "Never is not known": {"stopping_criteria": [Never()]},
    "MaxTimeCriteria is not known": {"max_time": 1000.0},
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "cache is StaticCache": {"cache_implementation": "static", "disable_compile": True},
    "argument use_cache": {"use_cache": False},
}


@pytest.mark.parametrize("reason", REASONS)
def test_hugging_faces_loop(reason: str) -> None:
    model, theirs = patched(), reference("llama", **REASONS[reason])
    ours = generate(model, **REASONS[reason])
    if "output_scores" in reason:
        assert len(ours.scores) == 30
        for a, b in zip(ours.scores, theirs.scores, strict=True):
            assert_close(a, b)
        ours, theirs = ours.sequences, theirs.sequences
    assert ours.tolist() == theirs.tolist()
    seen = report(model)
    assert next(r for r in seen.eager if r.startswith("generate: ")).startswith(f"generate: {reason}"), str(seen)
    assert seen.tokens == 0
    assert "no tape:" in str(seen)


def test_hugging_faces_loop_runs_on_tapes() -> None:
    for family in ("llama", "mistral", "gemma3"):
        model = patched(family)
        for options in ({}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 4}):
            inputs = {"input_ids": ids(1, 6).repeat(1, 4), "attention_mask": torch.ones(1, 24, dtype=torch.long)}
            before = report(model)
            ours = generate(model, inputs, every=0, **options)
            assert ours.tolist() == reference(family, inputs, **options).tolist()
            steps = report(model).steps - before.steps
            assert steps > 5
            assert report(model).recorded - before.recorded <= 6
        inputs = padded([9, 4, 7])
        assert generate(model, inputs, every=0).tolist() == reference(family, inputs).tolist()
        found = set(report(model).eager)
        assert found == {"generate: sync_every is 0", "assisted generate: sync_every is 0"}, str(report(model))


@pytest.mark.parametrize("every", [0, 16])
@pytest.mark.parametrize("whole", [True, False], ids=["whole text", "new tokens"])
@pytest.mark.parametrize("start", [0, 9, 3])
def test_positions_of_the_callers_own(every: int, whole: bool, start: int) -> None:
    """For a second turn, whose positions go on from the first, or don't."""
    new = ids(1, 12, seed=8)
    found = []
    for model in (copy.deepcopy(shared("llama")), patched()):
        cache = filled(model)
        inputs = {
            "input_ids": torch.cat([ids(1, 9), new], dim=1) if whole else new,
            "attention_mask": torch.ones(1, 21, dtype=torch.long),
        }
        count = inputs["input_ids"].shape[1]
        inputs["position_ids"] = (start - (9 if whole and start else 0) + torch.arange(count))[None].clamp(min=0)
        found.append(generate(model, inputs, every=every, past_key_values=cache).tolist())
    assert found[0] == found[1]


def filled(model: Any) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids(1, 9), past_key_values=cache)
    return cache


def test_hooks_on_the_whole_model_run_for_each_token() -> None:
    model, calls = patched(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert generate(model).tolist() == reference("llama").tolist()
    assert len(calls) == 30
    assert report(model).tokens == 30 and report(model).reads == 30


@pytest.mark.parametrize("rope", ["dynamic", "longrope", "yarn", "linear"])
def test_rope_that_depends_on_the_length(rope: str) -> None:
    settings: dict[str, Any] = {"rope_type": rope, "rope_theta": 1e4, "factor": 4.0}
    if rope == "longrope":
        settings |= {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "original_max_position_embeddings": 24}
    if rope == "yarn":
        settings |= {"original_max_position_embeddings": 24}
    extra = {"max_position_embeddings": 24} if rope == "dynamic" else {}
    stock = random_model(config("LlamaConfig", rope_parameters=settings, **extra))
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.mul_(3)
    stock.generation_config.eos_token_id = None
    model = torch_foundry.patch(copy.deepcopy(stock))
    for inputs in (None, padded([9, 4])):
        assert (
            generate(model, inputs, max_new_tokens=40).tolist() == generate(stock, inputs, max_new_tokens=40).tolist()
        )
    constant = rope in ("yarn", "linear")
    assert bool(report(model).tokens) == constant, str(report(model))
    assert report(model).steps or not constant


# ------------------------------------------------------------------------------------------------------------ the cache


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_chat_goes_on_with_the_cache(family: str) -> None:
    texts = []
    for model in (copy.deepcopy(shared(family)), patched(family)):
        cache, text = DynamicCache(config=model.config), ids(1, 9)
        for turn in range(4):
            text = generate(model, {"input_ids": text}, past_key_values=cache, max_new_tokens=25)
            assert cache.get_seq_length() == text.shape[1] - 1
            text = torch.cat([text, ids(1, 5, seed=turn)], dim=1)
        texts.append(text.tolist())
    assert texts[0] == texts[1]


def test_stock_code_goes_on_with_the_cache() -> None:
    for family in ("llama", "mistral"):
        stock, model = copy.deepcopy(shared(family)), patched(family)
        found = []
        for first, second in ((stock, stock), (model, stock), (stock, model)):
            cache = DynamicCache(config=model.config)
            text = generate(first, past_key_values=cache)
            found.append(generate(second, {"input_ids": text}, past_key_values=cache).tolist())
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("every", [7, 64])
def test_long_texts(family: str, every: int) -> None:
    """Across three capacities of a cache, and many times around a window."""
    inputs = padded([100, 93])
    model = patched(family)
    ours = generate(model, inputs, every=every, max_new_tokens=330)
    assert ours.tolist() == reference(family, inputs, max_new_tokens=330).tolist()
    assert report(model).recorded <= 4 and not report(model).eager, str(report(model))


def test_memory_is_set_aside_for_what_was_asked_for() -> None:
    model = patched()
    for prompt, new in ((100, 150), (9, 40), (120, 8)):
        before = report(model).recorded
        found = generate(model, {"input_ids": ids(1, prompt)}, max_new_tokens=new, return_dict_in_generate=True)
        capacity = found.past_key_values.layers[0].buffers[0].shape[2]
        assert capacity == -(-(prompt + new) // 128) * 128
        assert report(model).recorded - before == 1


@pytest.mark.parametrize("place", [1, 2, 9, 16])
def test_an_interrupt_leaves_a_cache_that_can_be_used(place: int) -> None:
    for family in ("llama", "mistral"):
        model, cache, streamer = patched(family), DynamicCache(config=shared(family).config), Collect(place)
        with pytest.raises(KeyboardInterrupt):
            generate(model, every=4, past_key_values=cache, streamer=streamer)
        lengths = {layer.get_seq_length() for layer in cache.layers}
        assert len(lengths) == 1
        full = reference(family)
        seen = lengths.pop()
        rest = generate(model, {"input_ids": full[:, : seen + 1]}, past_key_values=cache, max_new_tokens=38 - seen)
        assert rest.tolist() == full.tolist()


def test_an_interrupt_while_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = patched("gemma3"), DynamicCache(config=shared("gemma3").config)
    count, calls = FoundryLayer.count, []

    def interrupted(layer: FoundryLayer, tokens: int) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        count(layer, tokens)

    monkeypatch.setattr(FoundryLayer, "count", interrupted)  # the second layer; the first one has a window
    with pytest.raises(KeyboardInterrupt):
        generate(model, past_key_values=cache)
    assert [layer.get_seq_length() for layer in cache.layers] == [9 + 15, 9 + 15]


def test_an_error_of_a_step_leaves_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_foundry.decode.tape import StepTape

    model, cache = patched(), DynamicCache(config=shared("llama").config)
    run, calls = StepTape.run, []

    def failing(tape: StepTape) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 22:
            raise RuntimeError("no")
        return run(tape)

    monkeypatch.setattr(StepTape, "run", failing)
    with pytest.raises(RuntimeError, match=r"^no$"):
        generate(model, past_key_values=cache)
    assert [layer.get_seq_length() for layer in cache.layers] == [9 + 15, 9 + 15], "what the first read told"


@pytest.mark.parametrize("family", FAMILIES)
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


def test_many_rows() -> None:
    """For those there is torch's own matrix product, layer by layer."""
    inputs = padded([9, 4, 7] * 7)
    model = patched()
    assert generate(model, inputs, max_new_tokens=3).tolist() == reference("llama", inputs, max_new_tokens=3).tolist()
    assert report(model).eager == {"generate: more than 16 rows": 1, "more than 16 tokens in a step": 2}
    assert generate(model, padded([9, 4] * 8)).shape == (16, 39) and report(model).tokens == 30
    found = []
    for each in (copy.deepcopy(shared("llama")), model):
        torch.manual_seed(5)
        found.append(generate(each, inputs, max_new_tokens=3, **SAMPLED).tolist())
    assert found[0] == found[1], "torch's random numbers, from the first on"


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
    """The loop gives what Hugging Face's loop gives on the same tapes."""
    model = torch_foundry.patch(build(family, dtype))
    inputs = padded([9, 4])
    assert generate(model, inputs).tolist() == generate(model, inputs, every=0).tolist()
    assert report(model).tokens == 30
