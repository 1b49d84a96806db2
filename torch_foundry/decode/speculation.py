"""Several tokens per step: guesses are read along with the newest token, and count as far as the model agrees.

The model chooses a token after each guess just as it would without guesses, with the same random numbers. A guess
counts if it is the chosen token; in place of the first wrong guess, the chosen token counts. So the text is the same,
token for token, with and without guesses, greedy or drawn, and there is no distribution to correct.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.drafts import LONGEST, DraftModel, PromptLookup, accepted
from torch_foundry.decode.kept import KeptGuesses
from torch_foundry.decode.pace import Guesses, Pace, rows_of
from torch_foundry.decode.plan import DecoderPlan
from torch_foundry.decode.request import Request
from torch_foundry.decode.steps import EXPECTED, ROOM, Steps
from torch_foundry.decode.tape import CacheLayers, StepTape
from torch_foundry.kvcache.undo import Undo
from torch_foundry.patch.calls import LONGEST_STEP
from torch_foundry.sampling import Sampler, Settings
from torch_foundry.sampling.sampler import check_errors

MOST = LONGEST_STEP - 1  # guesses in a step, beside the newest token


class Verifier:
    """Steps of one sequence: of several tokens, with a choice after each of them, or of one.

    `count` declares tokens part of the text; `settle` counts them in the cache. Until then nobody else may use the
    cache.
    """

    def __init__(
        self, steps: Steps, cache: DynamicCache, settings: Settings, prompt: torch.Tensor, capacity: int
    ) -> None:
        """prompt: int64 [1, n]; capacity: as of the sampler of single steps."""
        if settings.counts_tokens or settings.bans_sequences:
            raise Fallback("what may come next depends on tokens that are only guessed")
        self.steps, self.cache, self.recorded = steps, cache, False
        self._settings, self._prompt, self._capacity = settings, prompt, capacity
        self._seed = 0
        self._layers: CacheLayers | None = None
        self._tapes: dict[int, StepTape] = {}
        self._samplers: dict[int, Sampler] = {}
        self._plan: DecoderPlan | None = None  # once it is known to be as it was
        self._starts: list[int] = []  # where the room begins
        self._room = self._used = 0  # tokens that there is room for, that are in it and part of the text

    def resume(self, kept: KeptGuesses | None, tokens: int) -> bool:
        """Go on with what an earlier generation has left, if it fits a prompt that `tokens` follow, which is the
        result. Before the prompt is taken in, which will be stored in its memory."""
        steps, room = self.steps, self._prompt.shape[1] + min(tokens, EXPECTED)
        if kept is None or not kept.fits(self._settings, self._capacity, steps.mask is not None, room):
            return False
        steps.output = kept.output
        if not steps.output_holds():
            steps.output = None
            return False
        self._layers, self._tapes, self._samplers = kept.begin(self.cache), kept.tapes, kept.samplers
        for tape in self._tapes.values():
            if steps.mask is not None:
                tape.state.set_mask(steps.mask)
        return True

    def begin(self, seed: int) -> None:
        """Before the first step: the seed of the draws."""
        self._seed = seed
        for rows, sampler in self._samplers.items():
            prompt = self._prompt.expand(rows, -1)
            sampler.begin(prompt, settings=self._settings, seed=seed, streams=[0] * rows)

    def leave(self) -> KeptGuesses | None:
        """What the next generation can use; the cache, which nobody else knows, is empty then."""
        if self._layers is None or not self.steps.output_holds():
            return None
        return KeptGuesses.of(self._samplers, self._tapes, self.steps.output, self._layers)

    def choose(self, newest: int, guesses: torch.Tensor, length: int, remaining: int) -> tuple[list[int], list[int]]:
        """`guesses`, and what the model chooses after `newest`, of a text of `length` tokens, and after each of them.

        guesses: int64 [n], of which the host may know nothing yet. remaining: tokens that there may be yet. Waits for
        the device, once. Nothing is part of the text before `count`. Raises Fallback if no tape may do it; then nothing
        has happened.
        """
        count = len(guesses)
        rows = rows_of(count)
        tape, sampler = self._at(rows, rows, remaining)
        guesses = guesses.to(tape.ids.device, non_blocking=tape.ids.is_cuda)
        tape.ids.fill_(newest)
        tape.ids[0, 1 : 1 + count].copy_(guesses)
        sampler.seek(list(range(length, length + rows)))
        self._run(tape, sampler, 1)
        found = self._read(torch.cat([guesses, sampler.token[:, 0], sampler.errors]))
        if any(found[count + rows :]):
            # a guess may be what gave no scores, also for the tokens before it: 0 times infinity is NaN in attention
            sampler.errors.zero_()
            raise Fallback("no token could be chosen behind a guess")
        return found[:count], found[count : 2 * count + 1]

    def go_on(self, token: int, length: int, steps: int, remaining: int) -> list[int]:
        """`steps` tokens after `token`, the newest of `length`, without guesses. The rest as of `choose`."""
        tape, sampler = self._at(1, steps, remaining)
        sampler.seek([length], [token])
        self._run(tape, sampler, steps)
        *chosen, error = self._read(torch.cat([sampler.ids[0, length : length + steps], sampler.errors]))
        check_errors([error])
        return chosen

    def count(self, tokens: int) -> None:
        """The first `tokens` of the newest step, or the newest steps, are part of the text."""
        self._used += tokens
        self.steps.position += tokens

    def settle(self) -> None:
        """Count the tokens of the text in the cache, which others may change from now on, like the model."""
        used, self._room, self._used, self._plan = self._used, 0, 0, None
        if not used:
            return
        assert self._layers is not None
        undo = Undo(self.cache)
        try:
            self._layers.count(used)
        except BaseException:  # an interrupt: all layers or none
            undo.run()
            raise

    def _at(self, rows: int, tokens: int, remaining: int) -> tuple[StepTape, Sampler]:
        """The tape of a step of `rows` rows, and its sampler, with room for `tokens` tokens."""
        steps = self.steps
        plan = self._plan or steps.ready()
        self._plan = None
        layers = self._layers
        if layers is None or not layers.belong_to(self.cache):
            layers = self._layers = CacheLayers(self.cache, len(plan.layers), plan.state.kv_cache)
            self._tapes.clear()
        if self._used + tokens > self._room:
            self.settle()
            room = max(tokens, min(ROOM, remaining))
            self._starts, same = layers.place(plan, 1, room)
            self._room = room
            if not same:
                self._tapes.clear()
        position = max(steps.position, self._starts[0] + self._used + self._starts[1])
        tape = self._tapes.get(rows)
        if tape is None or not tape.fits(position + tokens) or not steps.output_holds():
            tape = self._record(rows, position + tokens)
        self.recorded = not tape.recorded
        return tape, self._samplers[rows]

    def _run(self, tape: StepTape, sampler: Sampler, steps: int) -> None:
        own, position = self.steps, self.steps.position
        starts = [s if i % 2 else s + self._used for i, s in enumerate(self._starts)]
        tape.state.seek(starts, list(range(position, position + tape.length)))
        for i in range(steps):
            if i:
                tape.state.move_on()
            result = tape.run()
            if tape.tail is None:
                sampler.step(own.logits(result)[0])
        own.plan.leaves += steps if tape.tail is not None else 0

    def _read(self, found: torch.Tensor) -> list[int]:
        """Wait for what the device has found; meanwhile look whether the next step can go the same way."""
        with contextlib.suppress(Fallback):  # that step will say so
            self._plan = self.steps.ready()
        values: list[int] = found.tolist()
        return values

    def _record(self, rows: int, positions: int) -> StepTape:
        steps, plan = self.steps, self.steps.decoder.decoder_plan()
        assert self._layers is not None
        if rows not in self._samplers:
            prompt = self._prompt.expand(rows, -1)
            streams = [0] * rows
            self._samplers[rows] = Sampler(
                self._settings,
                prompt,
                vocab_size=steps.model.lm_head.out_features,
                capacity=self._capacity,
                seed=self._seed,
                streams=streams,
            )
        ids = self._samplers[rows].token  # a single step reads what the one before has chosen
        if rows > 1:
            with torch.inference_mode(False):  # inference tensors could only be written to in inference mode
                ids = torch.empty(1, rows, dtype=torch.int64, device=plan.device)
        tail = steps.tail(plan, self._samplers[rows])
        masked = steps.mask is not None
        tape = StepTape(plan, self._layers, ids, positions=positions, masked=masked, tail=tail)
        if steps.mask is not None:
            tape.state.set_mask(steps.mask)
        self._tapes[rows] = tape
        return tape


class Guesser:
    """The part of a generation that guesses."""

    def __init__(self, request: Request, totals: Guesses, config: Any, assistant: Any) -> None:
        """config: of the generation; assistant: its draft model, or None. Raises Fallback for what is not known."""
        if request.input_ids.shape[0] != 1:
            raise Fallback("several rows")
        self.request, self.totals = request, totals
        self.draft: PromptLookup | DraftModel
        if config.prompt_lookup_num_tokens is not None:
            self.draft = PromptLookup(config.max_matching_ngram_size or LONGEST)
            most = config.prompt_lookup_num_tokens
        elif hasattr(assistant, "generator_plan"):
            self.draft = DraftModel(assistant, request.input_ids, request.capacity)
            most = assistant.generation_config.num_assistant_tokens
        else:
            raise Fallback("the draft is no patched model")
        self.most = max(1, min(int(most or MOST), MOST))
        self.verifier = Verifier(request.steps, request.cache, request.settings, request.input_ids, request.capacity)

    def run(self, text: list[int], seed: int) -> None:
        """Generate, from `text` (prompt and first new token) on, until the text ends or nobody knows how to go on.

        seed: of the sampler that chose that token.
        """
        self.totals.stopped = ""
        self.verifier.begin(seed)
        if isinstance(self.draft, DraftModel):
            self.draft.begin(self.request.settings, seed)
        together = self.request.every
        pace = Pace(self.most, self.totals, together=together, watched=isinstance(self.draft, PromptLookup))
        try:
            while not self.request.stops.done[0]:
                self._step(text, pace)
        except Fallback as fallback:
            self.totals.stopped = f"switched off: {fallback}"
        finally:
            self.verifier.settle()

    def _step(self, text: list[int], pace: Pace) -> None:
        """One step with guesses, or some without."""
        request, verifier = self.request, self.verifier
        stops, plan, streamer = request.stops, request.steps.plan, request.streamer
        before, remaining = time.perf_counter(), stops.remaining
        # no more rows than there may be tokens: each is written to the cache, where there may be no room behind the end
        kind, proposed = self._guess(text, pace, (1 << remaining.bit_length() - 1) - 1)
        guesses: list[int] = []
        usual = True  # nothing was done that other steps don't have to do
        if proposed is not None:
            guesses, chosen = verifier.choose(text[-1], proposed, len(text), remaining)
            if isinstance(self.draft, DraftModel):
                self.draft.proposed(guesses)
                usual = self.draft.usual
            right = accepted(guesses, chosen)
        else:
            chosen = verifier.go_on(text[-1], len(text), min(pace.stretch(), remaining), remaining)
            right = len(chosen) - 1
        kept = stops.take([chosen[: right + 1]])
        verifier.count(kept)
        text += chosen[:kept]
        plan.tokens += kept
        plan.reads += 1
        seconds = time.perf_counter() - before if usual and not verifier.recorded else None
        if guesses:
            pace.note(kind, len(guesses), right, kept, seconds)
        else:
            if isinstance(self.draft, PromptLookup):
                for seen in self.draft.look_back(text, len(text) - kept, self.most):
                    pace.seen(*seen)
            pace.note_plain(len(chosen), kept, seconds)
        if streamer is not None:
            verifier.settle()
            for token in chosen[:kept]:
                streamer.put(torch.tensor([token], device="cpu"))

    def _guess(self, text: list[int], pace: Pace, most: int) -> tuple[int, torch.Tensor | None]:
        """The kind of guesses for the next step, and the guesses, int64 [`most` at most]; None: no guesses."""
        if most < 1:
            return 0, None
        if isinstance(self.draft, DraftModel):
            wanted = min(pace.guesses(0), most)
            return 0, self.draft.propose(text, wanted) if wanted else None
        length, found = self.draft.propose(text, min(self.most, most))
        found = found[: pace.guesses(length or None)]
        return length, torch.tensor(found, device="cpu") if found else None
