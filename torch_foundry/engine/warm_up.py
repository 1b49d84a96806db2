"""Steps of an engine before its first request, so that nobody waits for their kernels to be compiled."""

from __future__ import annotations

from typing import Any

from torch_foundry.core import devices
from torch_foundry.engine.engine import Engine
from torch_foundry.engine.request import SamplingParams

# Tokens of prompts: each number of queries that attention has a kernel for, ends of prompts, a block, several steps.
LENGTHS = (1, 2, 3, 5, 9, 17, 40, 130, 300)
DRAWN: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}


def warm_up(engine: Engine) -> None:
    """Answer made-up prompts of many lengths together, greedily and not, by an engine with a tokenizer that is idle.

    Nothing of them stays in the cache. Where no kernel is compiled by a first use, one short prompt will do.
    """
    ids = engine.tokenizer("Hello")["input_ids"]
    lengths = LENGTHS[:1] if devices.of(engine.model.device).emulated else LENGTHS
    for i, length in enumerate(n for n in lengths if n < engine.limit):  # the last ones are answered alone
        how: dict[str, Any] = {"temperature": 0.0} if i % 2 == 0 else {**DRAWN, "seed": i}
        params = SamplingParams(max_tokens=8 + 4 * i, **how)
        engine.submit((ids * length)[:length], params, salt=bytes([i]))  # none goes on from another's prompt
    engine.run()
    engine.forget()
