"""Patched models on the `mps` device: every bit as on the CPU, through what users do with them."""

from __future__ import annotations

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

import torch_foundry
from tests.exact import InFloat64, doubled
from tests.hf.tiny_cases import ALL_FAMILIES
from tests.hf.tiny_models import PROMPT, classes, fused_all, ids, padded, shared
from tests.metal.variants import same_variants
from torch_foundry.aot import prebuild
from torch_foundry.core import environment, runtime
from torch_foundry.demo_model import demo_model_path
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report, unpatch
from torch_foundry.testing.tolerance import assert_norm

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    with runtime.host_options(threads=1):  # the models are tiny
        yield


@pytest.fixture(scope="module", autouse=True)
def _same_variants() -> Any:
    """The CPU runs the variants of kernels that the table has for the GPU: others sum in another order."""
    with same_variants(of="mps", on="cpu"):
        yield


def on_both(family: str = "llama", **options: Any) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A patched model on the CPU, and the same on mps."""
    return patch(copy.deepcopy(shared(family)), **options), patch(copy.deepcopy(shared(family)).to("mps"), **options)


def on(device: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in inputs.items()}


def run(model: PreTrainedModel, inputs: Tensor, **options: Any) -> Tensor:
    """Logits, on the CPU."""
    with torch.no_grad():
        return model(inputs.to(model.device), **options).logits.cpu()


def tokens(model: PreTrainedModel, inputs: dict[str, Tensor] | None = None, **options: Any) -> list[list[int]]:
    given = inputs or {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    options = {"max_new_tokens": 8, "do_sample": False, **options}
    return model.generate(**on(str(model.device), given), **options).tolist()


# ---------------------------------------------------------------------------------------------------------- equal bits


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_every_family(family: str) -> None:
    cpu, mps = on_both(family)
    prompt = ids(2, 20)  # more rows than the kernels for a few take
    assert torch.equal(run(mps, prompt), run(cpu, prompt))
    mock.trace()
    assert tokens(mps) == tokens(cpu)
    assert fused_all(mps)
    assert sum(event.startswith("dispatch ") for event in mock.trace()) > 8 * 2 * 5, "it ran on the device"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    cpu, mps = (model.to(dtype) for model in on_both())
    assert torch.equal(run(mps, PROMPT), run(cpu, PROMPT))
    assert tokens(mps) == tokens(cpu)


@pytest.mark.parametrize("format_", prebuild.PACKED)
def test_packed_weights(format_: str) -> None:
    cpu, mps = on_both(quantize=format_)
    assert torch.equal(run(mps, PROMPT), run(cpu, PROMPT))
    assert tokens(mps) == tokens(cpu)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("how", ["padded", "sampled", "beams", "chunks"])
def test_ways_of_generating(family: str, how: str) -> None:
    cpu, mps = on_both(family)
    inputs = padded([5, 11, 8])
    options: dict[str, Any] = {
        "padded": {},
        "sampled": {"do_sample": True, "top_k": 20, "temperature": 1.5},
        "beams": {"num_beams": 3},
        "chunks": {"prefill_chunk_size": 4},
    }[how]
    found = []
    for model in (mps, cpu):
        torch.manual_seed(1)
        found.append(tokens(model, None if how == "chunks" else inputs, **options))
    assert found[0] == found[1]


def test_the_demo_model_tells_the_same_story() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path(), local_files_only=True)
    messages = [{"role": "user", "content": "Tell me a story about a lost kite."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    stories = []
    for device in ("cpu", "mps"):
        model = AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=torch.float32, local_files_only=True)
        torch_foundry.patch(model.to(device).eval())
        stories.append(tokens(model, dict(prompt), max_new_tokens=24))
        assert fused_all(model)
    assert stories[0] == stories[1] and len(stories[0][0]) > 30


@pytest.fixture(params=environment.REPLAYS.allowed[1:])
def replays(request: pytest.FixtureRequest) -> Any:
    foundry._metal_replays(request.param)
    yield request.param
    foundry._metal_replays("serial")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "phi3"])
def test_generating_by_other_replays(family: str, replays: str) -> None:
    """Each token is a replay of a graph, on the same stream as torch's own ops."""
    cpu, mps = on_both(family)
    mock.synchronize()
    mock.trace()
    assert tokens(mps, max_new_tokens=12) == tokens(cpu, max_new_tokens=12)
    events = mock.trace()
    kind = {"indirect": "icb", "concurrent": "concurrent encoder"}[replays]
    assert sum(event.startswith(kind) for event in events) >= 8 and fused_all(mps)
    assert tokens(mps, {"input_ids": ids(3, 6, seed=3)}) == tokens(cpu, {"input_ids": ids(3, 6, seed=3)})


@pytest.mark.parametrize("replays", ["concurrent"], indirect=True)
@pytest.mark.parametrize(
    "family, launches, waits", [("llama", 15, 14), ("olmo2", 19, 18), ("qwen2_moe", 19, 16), ("qwen3_5_moe", 20, 19)]
)
def test_waits_of_a_step(family: str, launches: int, waits: int, replays: str) -> None:
    """Of two layers, the last norm with the output layer, and the sampler (docs/decisions/047)."""
    tokens(on_both(family)[1], {"input_ids": PROMPT})
    mock.synchronize()
    events = mock.trace()
    start = len(events) - events[::-1].index("concurrent encoder")  # behind the last
    step = [event.partition(" ")[0] for event in events[start:]]
    assert (step.count("dispatch"), step.count("barrier")) == (launches, waits)


# ---------------------------------------------------------------------------------------------------------- life cycle


def test_unpatch_gives_back_the_stock_model() -> None:
    _, mps = on_both()
    tokens(mps)
    unpatch(mps)
    assert classes(mps) == classes(shared("llama"))
    stock = copy.deepcopy(shared("llama"))
    assert tokens(mps) == tokens(stock)


def test_the_model_may_move() -> None:
    cpu, model = on_both()
    expected = tokens(cpu)
    for device in ("cpu", "mps"):
        model.to(device)
        assert tokens(model) == expected
    assert fused_all(model)


def test_copies_and_files(tmp_path: Path) -> None:
    cpu, mps = on_both()
    expected = tokens(cpu)
    twin = copy.deepcopy(mps)
    assert twin.device.type == "mps" and tokens(twin) == expected
    file = io.BytesIO()
    torch.save(mps.state_dict(), file)
    file.seek(0)
    state = torch.load(file, map_location="cpu")
    assert all(torch.equal(state[name], value) for name, value in cpu.state_dict().items())
    mps.save_pretrained(tmp_path)
    assert tokens(AutoModelForCausalLM.from_pretrained(tmp_path).eval()) == expected


def test_weights_may_change_at_any_time() -> None:
    pair = on_both()
    for model in pair:
        tokens(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert tokens(pair[1]) == tokens(pair[0])


def test_training_mode_runs_stock_code_and_eval_the_kernels_again() -> None:
    cpu, mps = on_both()
    logits = []
    with pytest.warns(UserWarning, match="stock code"):
        for model in (cpu, mps):
            logits.append(model.train()(PROMPT.to(model.device)).logits.detach().cpu())
            model.eval()
    with InFloat64():  # torch's attention differs from device to device
        exact = doubled(shared("llama")).train()(PROMPT).logits.detach()
    assert_norm(logits[1], exact, logits[0])
    assert report(mps).fallbacks["training"]
    assert tokens(mps) == tokens(cpu)


# -------------------------------------------------------------------------------------------------------------- memory


def cache_of(model: PreTrainedModel, length: int) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    run(model, ids(1, length, seed=1), past_key_values=cache)
    return cache


def contents(cache: DynamicCache) -> list[Tensor]:
    return [tensor.cpu().clone() for layer in cache.layers for tensor in (layer.keys, layer.values)]


def test_out_of_memory_in_a_prompt_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator's own error, where nothing was refused before."""
    monkeypatch.setenv("TORCH_FOUNDRY_MEMORY_LIMIT", "0")
    _, mps = on_both()
    prompt = ids(1, 200, seed=2).to("mps")
    cache = cache_of(mps, 5)
    expected = run(mps, prompt, past_key_values=copy.deepcopy(cache))
    before, failures = contents(cache), 0
    limit = mock.set("memory", 0)
    try:
        for room in range(0, 1 << 20, 40_000):
            mock.set("memory", mock.allocated() + room)
            try:
                got = run(mps, prompt, past_key_values=cache)
                break
            except RuntimeError as error:
                failures += 1
                words = str(error)
                assert "MPS backend out of memory" in words and "torch_foundry: out of memory in" in words
                assert "[1, 200" in words and "can be used again" in words
                assert all(torch.equal(a, b) for a, b in zip(contents(cache), before, strict=True))
    finally:
        mock.set("memory", limit)
    assert failures > 3, "it failed at several places"
    assert torch.equal(got, expected)
    assert report(mps).fused and not report(mps).fallbacks


def test_generate_goes_on_after_out_of_memory() -> None:
    cpu, mps = on_both()
    limit = mock.set("memory", mock.allocated() + 20_000)
    try:
        with pytest.raises(RuntimeError, match="torch_foundry: out of memory in"):
            tokens(mps, {"input_ids": ids(1, 200)})
    finally:
        mock.set("memory", limit)
    assert tokens(mps) == tokens(cpu)


def test_memory_is_given_back() -> None:
    _, mps = on_both()
    tokens(mps)
    mock.synchronize()
    before, objects = mock.allocated(), mock.alive()
    for _ in range(3):
        tokens(mps)
    mock.synchronize()
    assert mock.allocated() == before
    assert mock.alive() == objects


# ------------------------------------------------------------------------------------------------------------- encoding


def test_threads_share_the_stream() -> None:
    cpu, mps = on_both()
    prompts = [ids(1, 6, seed=seed) for seed in range(4)]
    expected = [run(cpu, prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, right in zip(pool.map(lambda prompt: run(mps, prompt), prompts), expected, strict=True):
                assert torch.equal(got, right)


def test_launches_share_encoders_and_nothing_is_compiled_twice() -> None:
    _, mps = on_both()
    cache = cache_of(mps, 5)
    run(mps, ids(1, 1), past_key_values=cache)
    mock.synchronize()
    mock.trace()
    with torch.no_grad():
        mps(ids(1, 1).to("mps"), past_key_values=cache)
    mock.synchronize()
    events = mock.trace()
    assert not [event for event in events if event.startswith(("compile", "pipeline"))]
    assert sum(event.startswith("dispatch ") for event in events) >= 2 * 5


@pytest.mark.parametrize("requests", [3, 18])
def test_an_engine(requests: int) -> None:
    """Steps on graphs; those of more rows have torch's products between them."""
    texts = [ids(1, 5 + i, seed=i)[0].tolist() for i in range(requests)]
    found = []
    for model in on_both("qwen2"):
        engine = Engine(model, requests=requests)
        streams = [engine.submit(text, SamplingParams(max_tokens=12, temperature=0)) for text in texts]
        engine.run()
        assert report(model).captured == 1 and not report(model).eager
        found.append([stream.tokens for stream in streams])
    assert found[0] == found[1]
