"""Several tokens per step: drafts are read along with the newest token, and count as far as the model agrees.

The model chooses a token after each draft just as it would without drafts, with the same random numbers. A draft
counts if it is the chosen token; in place of the first rejected draft, the chosen token counts. So the text is the
same, token for token, with and without drafts, greedy or drawn, and there is no distribution to correct.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from torch_foundry.core.errors import Fallback
from torch_foundry.generation.draft_length import TIMED, DraftLengthController
from torch_foundry.generation.drafting import SequenceDrafts, accepted
from torch_foundry.generation.loop import GenerationLoop
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.generation.stopping import StoppingCriteria
from torch_foundry.models.decoder import decoder_plan


class SpeculativeDecoder:
    """The part of a generation that drafts.

    stops: of the only row, whose drafts are `own`. every: as of `GenerationLoop`, for steps without drafts.
    """

    def __init__(
        self, runner: DecodeRunner, stops: StoppingCriteria, own: SequenceDrafts, controller: DraftLengthController,
        *, every: int, streamer: Any,
    ) -> None:  # fmt: skip
        self.runner, self.stops, self.own, self.controller = runner, stops, own, controller
        self.every, self.streamer = every, streamer

    def run(self) -> None:
        """Generate, from the first new token on, until the text ends or nobody knows how to go on."""
        totals, model = self.controller.totals, self.controller.model
        totals.stopped = ""
        self._loop = GenerationLoop(self.runner, self.stops, self.every, self.streamer)
        if model is not None:
            model.begin(self.runner.sampler)
        try:
            while not self.stops.done[0]:
                self._step()
        except Fallback as fallback:
            totals.stopped = f"switched off: {fallback}"
        finally:
            self.runner.settle()
        if model is not None:
            model.leave(self.own)

    def _step(self) -> None:
        """One step with drafts, or some without."""
        runner, own, text = self.runner, self.own, self.own.sequence.tokens
        before, remaining, plan = time.perf_counter(), self.stops.remaining, decoder_plan(runner.model)
        captured, known = plan.captured, len(text)
        # no more rows than there may be tokens: each is written to the cache, where there may be no room behind the end
        self.controller.draft([own], 1, (1 << remaining.bit_length() - 1) - 1)
        drafted, num_accepted = len(own.drafts), 0
        if drafted:
            num_accepted = self._verify(remaining)
        else:
            done = len(self.stops.tokens[0])
            runner.sampler.seek([known], text[-1:])
            self._loop.run(max(own.paused, 1))
            text += self.stops.tokens[0][done:]
        kept = len(text) - known
        self.controller.note(own, drafted, num_accepted, kept)
        seconds = time.perf_counter() - before if plan.captured == captured else None
        if drafted or kept >= min(TIMED, remaining) or seconds is None:  # few steps without drafts wait too often
            self.controller.timed(1, 1 + drafted, kept, seconds, steps=1 if drafted else kept)

    def _verify(self, remaining: int) -> int:
        """One step of the newest token and its drafts; returns how many of these were accepted."""
        runner, stops, own, text = self.runner, self.stops, self.own, self.own.sequence.tokens
        proposed = own.drafts if isinstance(own.drafts, torch.Tensor) else torch.tensor(own.drafts, device="cpu")
        drafts, chosen = runner.verify(text[-1], proposed, len(text), remaining)
        num_accepted = accepted(drafts, chosen)
        chosen = chosen[: num_accepted + 1]
        kept = stops.take([chosen])
        runner.commit(kept)
        text += chosen[:kept]
        runner.plan.tokens += kept
        runner.plan.reads += 1
        if self.streamer is not None:
            runner.settle()
            for token in chosen[:kept]:
                self.streamer.put(torch.tensor([token], device="cpu"))
        return num_accepted
