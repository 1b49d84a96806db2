"""Steps of an engine before its first request, so that nobody waits for kernels to be compiled or steps captured."""

from __future__ import annotations

import time
from typing import Any

from torch_foundry.core import devices
from torch_foundry.engine.engine import Engine
from torch_foundry.engine.forward import OFTEN, PIECE
from torch_foundry.engine.request import SamplingParams

# Tokens of prompts: each number of queries that attention has a kernel for, ends of prompts, a block, several steps.
LENGTHS = (1, 2, 3, 5, 9, 17, 40, 130, 300)
SLOW = 0.05  # seconds of a step, of which what Python needs for its launches is a small part
DRAWN: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}


def warm_up(engine: Engine) -> None:
    """Answer made-up prompts of many lengths together, greedily and not, by an engine with a tokenizer that is idle;
    then prompts alone and beside an answer, until their steps are captured.

    Nothing of them stays in the cache. Where no kernel is compiled by a first use, one short prompt will do.
    """
    ids = engine.tokenizer("Hello")["input_ids"]
    emulated = devices.of(engine.model.device).emulated
    lengths = LENGTHS[:1] if emulated else LENGTHS
    for i, length in enumerate(n for n in lengths if n < engine.limit):  # the last ones are answered alone
        how: dict[str, Any] = {"temperature": 0.0} if i % 2 == 0 else {**DRAWN, "seed": i}
        params = SamplingParams(max_tokens=8 + 4 * i, **how)
        engine.submit((ids * length)[:length], params, salt=bytes([i]))  # none goes on from another's prompt
    engine.run()
    if not emulated:
        _read(engine, ids, beside=0)
        if engine.config.requests > 1:
            other = engine.submit(ids[:1], SamplingParams(max_tokens=engine.limit, temperature=0.0, ignore_eos=True))
            _read(engine, ids, beside=1)
            other.cancel()
    engine.forget()


def _read(engine: Engine, ids: list[int], beside: int) -> None:
    """Prompts of each size of step that may be captured, as often as that takes, while steps wait for Python.

    beside: tokens that the same steps generate.
    """
    most = min(devices.of(engine.model.device).prompt_tokens, engine.limit, engine.scheduler.budget - beside)
    for length in (PIECE << i for i in range(most.bit_length()) if PIECE << i <= most):
        for turn in range(OFTEN):
            began = time.perf_counter()
            salt, params = b"%d %d %d" % (beside, length, turn), SamplingParams(max_tokens=1, temperature=0.0)
            stream = engine.submit((ids * length)[: min(length, engine.limit - 1)], params, salt=salt)
            while not stream.finish_reason:
                engine.step()
            if turn == 1 and time.perf_counter() - began > SLOW:  # the first may have compiled a kernel
                return
