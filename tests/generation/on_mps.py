"""Run by test_on_mps.py where a mock stands for Metal: the loop on the `mps` device gives the tokens of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import torch_foundry
from tests.hf.tiny_models import ids, padded, shared
from tests.metal.variants import same_variants
from torch_foundry.hf.api import report

INPUTS = {
    "one row": lambda: {"input_ids": ids(1, 9), "attention_mask": torch.ones(1, 9, dtype=torch.long)},
    "left padding": lambda: padded([9, 4]),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 20, "repetition_penalty": 1.2},
}


@pytest.fixture(scope="module", autouse=True)
def _same_variants() -> Iterator[None]:
    with same_variants(of="cpu", on="mps"):
        yield


class Collect:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[list[int]] = []

    def put(self, value: torch.Tensor) -> None:
        self.got.append(value.flatten().tolist())

    def end(self) -> None: ...


def models(family: str) -> list[Any]:
    """A patched model on the CPU, and the same on mps."""
    return [torch_foundry.patch(copy.deepcopy(shared(family)).to(device)) for device in ("cpu", "mps")]


def generate(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> list[list[int]]:
    torch.manual_seed(1)
    given = {name: value.to(model.device) for name, value in inputs.items()}
    return model.generate(**given, max_new_tokens=20, **options).tolist()


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("every", [1, 3, 16])
def test_tokens(family: str, every: int) -> None:
    cpu, mps = models(family)
    for inputs in INPUTS.values():
        for options in OPTIONS.values():
            for _ in range(2):  # the second one on what the first has left
                assert generate(mps, inputs(), **options, sync_every=every) == generate(
                    cpu, inputs(), **options, sync_every=every
                )
    seen = report(mps)
    assert seen.tokens == 160 and not seen.eager, str(seen)


def test_hugging_faces_loop_on_graphs() -> None:
    cpu, mps = models("llama")
    for options in ({"do_sample": False}, {"num_beams": 2, "do_sample": False}):
        for inputs in INPUTS.values():
            found = generate(mps, inputs(), **options, sync_every=0)
            assert found == generate(cpu, inputs(), **options, sync_every=0)
    assert report(mps).steps > 60


@pytest.mark.parametrize("every", [1, 4])
def test_streams_that_end_early(every: int) -> None:
    cpu, mps = models("gemma3")
    inputs = INPUTS["one row"]()
    eos = generate(cpu, inputs, do_sample=False)[0][-6]
    found = []
    for model in (cpu, mps):
        streamer, cache = Collect(), DynamicCache(config=model.config)
        options = {"eos_token_id": eos, "pad_token_id": 0, "streamer": streamer, "past_key_values": cache}
        text = generate(model, inputs, do_sample=False, sync_every=every, **options)
        found.append((text, streamer.got, [layer.get_seq_length() for layer in cache.layers]))
    assert found[0] == found[1]
