"""Continuous batching: many requests at a time with one model, over one paged cache.

engine = Engine(torch_foundry.patch(model), tokenizer)
stream = engine.submit("Once upon a time", SamplingParams(max_tokens=64, temperature=0))
for text in stream.texts(): ...
"""

from torch_foundry.engine.engine import Engine
from torch_foundry.engine.next_tokens import Constraint, TokenLogprobs
from torch_foundry.engine.request import EngineConfig, QueueFull, SamplingParams
from torch_foundry.engine.stream import Stream

__all__ = ["Constraint", "Engine", "EngineConfig", "QueueFull", "SamplingParams", "Stream", "TokenLogprobs"]
