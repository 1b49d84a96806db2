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
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.generation.stopping import StoppingCriteria
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.sampling.sampler import check_errors

TOGETHER = 16  # steps without drafts that are handed over together


class SpeculativeDecoder:
    """The part of a generation that drafts.

    stops: of the only row, whose drafts are `own`. every: steps without drafts that may be under way.
    """

    def __init__(
        self, runner: DecodeRunner, stops: StoppingCriteria, own: SequenceDrafts, controller: DraftLengthController,
        *, every: int, streamer: Any,
    ) -> None:  # fmt: skip
        self.runner, self.stops, self.own, self.controller = runner, stops, own, controller
        self.every, self.streamer = min(every, TOGETHER), streamer

    def run(self) -> None:
        """Generate, from the first new token on, until the text ends or nobody knows how to go on."""
        totals, model = self.controller.totals, self.controller.model
        totals.stopped = ""
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
        runner, stops, own, text = self.runner, self.stops, self.own, self.own.sequence.tokens
        before, remaining = time.perf_counter(), stops.remaining
        plan = decoder_plan(runner.model)
        captured = plan.captured
        # no more rows than there may be tokens: each is written to the cache, where there may be no room behind the end
        self.controller.draft([own], 1, (1 << remaining.bit_length() - 1) - 1)
        drafts, num_accepted, usual = list[int](), 0, True
        if len(own.drafts):
            proposed = own.drafts if isinstance(own.drafts, torch.Tensor) else torch.tensor(own.drafts, device="cpu")
            drafts, chosen = runner.verify(text[-1], proposed, len(text), remaining)
            num_accepted = accepted(drafts, chosen)
            steps, chosen = 1, chosen[: num_accepted + 1]
        else:
            most = min(self.every, remaining)
            steps = min(most, max(own.paused, 1))
            chosen, usual = self._plain(steps, remaining), steps >= min(TIMED, most)
        kept = stops.take([chosen])
        runner.commit(kept)
        text += chosen[:kept]
        runner.plan.tokens += kept
        runner.plan.reads += 1
        seconds = time.perf_counter() - before if usual and plan.captured == captured else None
        self.controller.note(own, len(drafts), num_accepted, kept)
        self.controller.timed(1, 1 + len(drafts), kept, seconds, steps=steps)
        if self.streamer is not None:
            runner.settle()
            for token in chosen[:kept]:
                self.streamer.put(torch.tensor([token], device="cpu"))

    def _plain(self, steps: int, remaining: int) -> list[int]:
        """`steps` tokens without drafts."""
        runner, text, sampler = self.runner, self.own.sequence.tokens, self.runner.sampler
        length = len(text)
        sampler.seek([length], text[-1:])
        runner.step(steps, remaining)
        *chosen, error = runner.read(torch.cat([sampler.ids[0, length : length + steps], sampler.errors]))
        check_errors([error])
        return chosen
