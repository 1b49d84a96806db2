"""Greedy generation by stock and patched models, for the tests of our generation loop."""

from __future__ import annotations

import copy
from typing import Any

import torch

import torch_foundry
from tests.hf.tiny_models import ids, shared

SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.95}
# what generate() takes as an argument, not as a setting of the generation config
CALL = {"sync_every", "streamer", "past_key_values", "logits_processor", "stopping_criteria", "tokenizer"}


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


def reference(family: str, inputs: Any = None, **options: Any) -> Any:
    return generate(copy.deepcopy(shared(family)), inputs, **options)
