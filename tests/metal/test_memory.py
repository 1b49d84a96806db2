"""What doesn't fit into the GPU's memory is refused before anything was allocated for it, at every place that asks."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import torch_foundry
from tests.hf.tiny_models import ids, shared
from tests.io import words
from torch_foundry.core import devices
from torch_foundry.core.memory import DoesNotFit
from torch_foundry.hf.api import report
from torch_foundry.kvcache.hf_cache import new_cache
from torch_foundry.kvcache.paged import PagedCache

mock = torch.ops.mock_metal
MPS = torch.device("mps")
GIB = 1 << 30


@pytest.fixture(autouse=True)
def four() -> Iterator[None]:
    """A GPU with 4 GiB."""
    before = mock.set("memory", 4 * GIB)
    with torch.no_grad():
        yield
    mock.set("memory", before)


def leave(nbytes: int) -> None:
    """Have so much free, in place of 4 GiB."""
    gc.collect()
    mock.synchronize()
    mock.set("memory", mock.allocated() + nbytes)


def patched(**options: Any) -> Any:
    return torch_foundry.patch(copy.deepcopy(shared("llama")).to(MPS), **options)


def refused(call: Callable[[], Any], *words: str) -> str:
    """The error of a call that has to be refused, and leave nothing behind."""
    gc.collect()
    before = mock.allocated()
    with pytest.raises(DoesNotFit) as caught:
        call()
    text = str(caught.value)
    del caught  # and the frames that it came through
    gc.collect()
    mock.synchronize()
    assert "are needed on mps" in text and " free. " in text and all(word in text for word in words), text
    assert mock.allocated() == before
    return text


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder whose weights, 10 GiB of bfloat16, are holes in a file."""
    config = LlamaConfig(hidden_size=8192, intermediate_size=32768, num_hidden_layers=4, vocab_size=8192)
    config.num_attention_heads = config.num_key_value_heads = 64
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(config).state_dict()
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + 2 * tensor.numel()]}
        at += 2 * tensor.numel()
    text = json.dumps(header).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    words.small().save_pretrained(tmp_path)
    return tmp_path


def test_the_mock_says_what_is_in_use() -> None:
    most, used = devices.METAL.working_set(MPS)
    x = torch.empty(1 << 20, dtype=torch.uint8, device=MPS)
    assert most == 4 * GIB and devices.METAL.working_set(MPS) == (most, used + x.nbytes)


@pytest.mark.parametrize("mmap", [False, True])
def test_load(mmap: bool, large: Path) -> None:
    text = refused(lambda: torch_foundry.load(large, device="mps", mmap=mmap, allow=("VOCAB_MISSING",)), "weights")
    assert "10.25 GiB are needed" in text and "6.2 bits a weight would fit: a file in q5_k" in text


@pytest.mark.parametrize(("fmt", "fits"), [("q8_0", False), ("q4_0", True)])
def test_from_pretrained(fmt: str, fits: bool, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the packed weights, before the first is read."""
    config = torch_foundry.FoundryConfig(fmt)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "quantization_config": config}

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(large, device_map={"": "mps"}, **options)

    if fits:  # it goes on, to what reads the weights
        monkeypatch.setattr("torch_foundry.hf.quantizer.FoundryQuantizer.update_parallel_plan", stop, raising=False)
        with pytest.raises(InterruptedError):
            load()
    else:
        refused(load, "packed weights", "smaller format")


def stop(*args: Any) -> None:
    raise InterruptedError


def test_packing() -> None:
    model = patched()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    leave(1000)
    refused(lambda: torch_foundry.quantize(model, "q8_0"), "packed as q8_0")
    refused(lambda: torch_foundry.patch(model, quantize="q4_0"), "packed as q4_0")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    leave(20_000)  # the largest module, and less than all
    assert torch_foundry.quantize(model, "q8_0") is model
    leave(1000)
    refused(lambda: torch_foundry.dequantize(model), "made dense")


def test_engine() -> None:
    model = patched()
    text = refused(lambda: torch_foundry.Engine(model, blocks=1 << 20), "the cache of an engine", "blocks=")
    blocks = int(text.split("blocks=")[1].split(" ")[0])
    assert (blocks - 1) * 16384 < 4 * GIB - mock.allocated() < (blocks + 1) * 16384
    leave(64_000)
    refused(lambda: torch_foundry.Engine(model, blocks=1), "an engine's steps of 256 tokens")
    cache = PagedCache(model.config, 16)
    refused(lambda: cache.cache_layer(0).allocate(*of_layer(model)), "keys or values")
    mock.set("memory", 4 * GIB)
    torch_foundry.Engine(model, blocks=16)


def of_layer(model: Any) -> tuple[Any, torch.dtype, torch.device]:
    return next(iter(model.model.decoder_plan().owners.values())).state, torch.float32, MPS


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_next"])
def test_prompts(family: str) -> None:
    """Of what generate() needs for a prompt, all is asked for before the first layer takes any."""
    model = torch_foundry.patch(copy.deepcopy(shared(family)).to(MPS))
    prompt = ids(1, 4000).to(MPS)
    leave(2 << 20)
    text = refused(lambda: model.generate(prompt, max_new_tokens=2), "4000 tokens of 1 row", "KV cache", "would fit")
    fits = int(text.split(" tokens a row would fit")[0].split(" ")[-1])
    assert 0 < fits < 4000 and "can be used again" in text
    leave(2 << 20)
    assert model.generate(prompt[:, : fits // 2], max_new_tokens=2).shape[1] == fits // 2 + 2


def test_logits_of_a_prompt() -> None:
    model = patched()
    prompt = ids(1, 200).to(MPS)
    leave(200 * 120 * 4 - 1)
    refused(lambda: model(prompt, use_cache=False), "logits [1, 200, 120]", "logits_to_keep=1")


@pytest.mark.parametrize("by", ["generate", "forward"])
def test_growth(by: str) -> None:
    """A cache that can't double grows by what is needed; one that can't grow is as it was."""
    model, cache = patched(), new_cache(shared("llama").config)
    text = ids(1, 600).to(MPS)
    model(text[:, :500], past_key_values=cache, logits_to_keep=1)
    each = 2 * 2 * 32 * 4  # bytes of a token's keys and values in one of two layers
    needed = 2 * 640 * each  # the old ones stay until the GPU has copied them

    def go_on() -> None:
        if by == "generate":
            model.generate(text[:, : cache.get_seq_length() + 1], past_key_values=cache, max_length=601, min_length=601)
            return
        while (length := cache.get_seq_length()) < 600:
            model(text[:, length : length + 1], past_key_values=cache)

    leave(needed - 1)
    with pytest.raises(DoesNotFit, match="would fit"):
        go_on()
    assert 500 <= cache.get_seq_length() <= 512 == cache.layers[0].capacity
    leave(needed + (350_000 if by == "forward" else 4 << 20))  # generate() itself takes some
    go_on()
    assert (cache.get_seq_length(), cache.layers[0].capacity) == (600, 640 if by == "forward" else 1024)


def test_steps_that_no_memory_is_left_for_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = patched(), new_cache(shared("llama").config)
    model(ids(1, 9).to(MPS), past_key_values=cache)
    monkeypatch.setattr(type(devices.METAL), "working_set", lambda self, device: (8000, 0))
    model(ids(1, 1).to(MPS), past_key_values=cache)
    assert report(model).eager == {"there is no memory for a captured step": 1}


def test_the_limit_may_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patched()
    monkeypatch.setenv("TORCH_FOUNDRY_MEMORY_LIMIT", "8")
    refused(lambda: torch_foundry.Engine(model, blocks=1024), "blocks=")
    monkeypatch.setenv("TORCH_FOUNDRY_MEMORY_LIMIT", "0")
    leave(0)
    with pytest.raises(RuntimeError, match="MPS backend out of memory"):  # the allocator's own
        torch_foundry.Engine(model, blocks=64)
