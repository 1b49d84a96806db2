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
from torch_foundry.generation.draft_length import MAX_DRAFT_TOKENS, DraftLengthController, SpeculationStats
from torch_foundry.generation.drafting import DraftModel, PromptLookup, accepted
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.generation.stopping import StoppingCriteria
from torch_foundry.sampling.sampler import check_errors


class SpeculativeDecoder:
    """The part of a generation that drafts.

    stops: of the only row. every: steps without drafts that may be under way. totals: what came of drafting so far.
    """

    def __init__(
        self, runner: DecodeRunner, stops: StoppingCriteria, draft: PromptLookup | DraftModel,
        max_draft_tokens: int | None, *, every: int, totals: SpeculationStats, streamer: Any,
    ) -> None:  # fmt: skip
        self.runner, self.stops, self.draft, self.every = runner, stops, draft, every
        self.max_draft_tokens = max(1, min(int(max_draft_tokens or MAX_DRAFT_TOKENS), MAX_DRAFT_TOKENS))
        self.totals, self.streamer = totals, streamer

    def run(self, text: list[int]) -> None:
        """Generate, from `text` (prompt and first new token) on, until the text ends or nobody knows how to go on."""
        self.totals.stopped = ""
        if isinstance(self.draft, DraftModel):
            self.draft.begin(self.runner.sampler)
        controller = DraftLengthController(
            self.max_draft_tokens, self.totals, together=self.every, watched=isinstance(self.draft, PromptLookup)
        )
        try:
            while not self.stops.done[0]:
                self._step(text, controller)
        except Fallback as fallback:
            self.totals.stopped = f"switched off: {fallback}"
        finally:
            self.runner.settle()

    def _step(self, text: list[int], controller: DraftLengthController) -> None:
        """One step with drafts, or some without."""
        runner, stops = self.runner, self.stops
        before, remaining = time.perf_counter(), stops.remaining
        # no more rows than there may be tokens: each is written to the cache, where there may be no room behind the end
        kind, proposed = self._draft(text, controller, (1 << remaining.bit_length() - 1) - 1)
        drafts: list[int] = []
        usual = True  # nothing was done that other steps don't have to do
        if proposed is not None:
            drafts, chosen = runner.verify(text[-1], proposed, len(text), remaining)
            if isinstance(self.draft, DraftModel):
                self.draft.proposed(drafts)
                usual = self.draft.usual
            num_accepted = accepted(drafts, chosen)
        else:
            chosen = self._plain(text, min(controller.plain_steps(), remaining), remaining)
            num_accepted = len(chosen) - 1
        kept = stops.take([chosen[: num_accepted + 1]])
        runner.commit(kept)
        text += chosen[:kept]
        runner.plan.tokens += kept
        runner.plan.reads += 1
        seconds = time.perf_counter() - before if usual and not runner.captured else None
        if drafts:
            controller.note(kind, len(drafts), num_accepted, kept, seconds)
        else:
            if isinstance(self.draft, PromptLookup):
                for seen in self.draft.look_back(text, len(text) - kept, self.max_draft_tokens):
                    controller.update(*seen)
            controller.note_plain(len(chosen), kept, seconds)
        if self.streamer is not None:
            runner.settle()
            for token in chosen[:kept]:
                self.streamer.put(torch.tensor([token], device="cpu"))

    def _plain(self, text: list[int], steps: int, remaining: int) -> list[int]:
        """`steps` tokens after `text`, without drafts."""
        runner, length, sampler = self.runner, len(text), self.runner.sampler
        sampler.seek([length], text[-1:])
        runner.step(steps, remaining)
        *chosen, error = runner.read(torch.cat([sampler.ids[0, length : length + steps], sampler.errors]))
        check_errors([error])
        return chosen

    def _draft(
        self, text: list[int], controller: DraftLengthController, max_draft_tokens: int
    ) -> tuple[int, torch.Tensor | None]:
        """The kind of drafts for the next step, and the drafts, int64 [`most` at most]; None: no drafts."""
        if max_draft_tokens < 1:
            return 0, None
        if isinstance(self.draft, DraftModel):
            wanted = min(controller.drafts(0), max_draft_tokens)
            return 0, self.draft.propose(text, wanted) if wanted else None
        length, found = self.draft.propose(text, min(self.max_draft_tokens, max_draft_tokens))
        found = found[: controller.drafts(length or None)]
        return length, torch.tensor(found, device="cpu") if found else None
