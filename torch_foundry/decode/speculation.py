"""Several tokens a step: guesses are read along with the newest token, and count as far as the model agrees.

The model chooses a token after each guess just as it would without guesses, with the same random numbers; a guess that
is the token chosen counts, and so does the first token chosen in place of a wrong guess. So a text is the same, token
for token, with guesses and without, whether tokens are drawn or not: there is no distribution to correct.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.decode.drafts import LONGEST, DraftModel, PromptLookup
from torch_foundry.decode.kept import KeptGuesses
from torch_foundry.decode.pace import Guesses, Pace
from torch_foundry.decode.request import Request
from torch_foundry.decode.steps import EXPECTED, Steps
from torch_foundry.decode.tape import CacheLayers, StepTape
from torch_foundry.kvcache.undo import Undo
from torch_foundry.patch.state import Blocked
from torch_foundry.sampling import Sampler, Settings

MOST = 7  # guesses in a step: with the newest token, as many rows as kernels read weights for at once


class Verifier:
    """Steps of several tokens of one row, each with the choice of what comes after every one of them."""

    def __init__(
        self, steps: Steps, cache: DynamicCache, settings: Settings, prompt: torch.Tensor, capacity: int
    ) -> None:
        """prompt: int64 [1, n]; capacity: as of the sampler of single steps."""
        if settings.counts_tokens or settings.bans_sequences:
            raise Blocked("what may come next depends on tokens that are only guessed")
        self.steps, self.cache, self.recorded = steps, cache, False
        self._settings, self._prompt, self._capacity = settings, prompt, capacity
        self._seed = 0
        self._layers: CacheLayers | None = None
        self._tapes: dict[int, StepTape] = {}
        self._samplers: dict[int, Sampler] = {}

    def resume(self, kept: KeptGuesses | None, tokens: int) -> None:
        """Go on with what an earlier generation has left, if it fits a prompt that `tokens` follow. Before the prompt
        is taken in, which will be stored in its memory."""
        steps, room = self.steps, self._prompt.shape[1] + min(tokens, EXPECTED)
        if kept is None or not kept.fits(self._settings, self._capacity, steps.mask is not None, room):
            return
        steps.output = kept.output
        if not steps.output_holds():
            steps.output = None
            return
        self._layers, self._tapes, self._samplers = kept.begin(self.cache), kept.tapes, kept.samplers
        for tape in self._tapes.values():
            if steps.mask is not None:
                tape.state.set_mask(steps.mask)

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

    def choose(self, tokens: list[int], length: int) -> list[int]:
        """What the model chooses after each of `tokens`: the newest of a text of `length` tokens, and guesses.

        Waits for the device. Nothing counts as part of the cache before `count`. Raises Blocked if no tape may do it;
        then nothing has happened.
        """
        steps = self.steps
        rows = 1 << (len(tokens) - 1).bit_length()  # few lengths, as each has a tape to be recorded
        plan = steps.ready()
        layers = self._layers
        if layers is None or not layers.belong_to(self.cache):
            layers = self._layers = CacheLayers(self.cache, len(plan.layers), plan.state.kv_cache)
            self._tapes.clear()
        starts, same = layers.place(plan, 1, rows)
        if not same:
            self._tapes.clear()
        position = steps.position
        tape = self._tapes.get(rows)
        if tape is None or not tape.fits(max(position, starts[0] + starts[1]) + rows) or not steps.output_holds():
            tape = self._record(rows, position + rows)
        self.recorded = not tape.recorded
        sampler = self._samplers[rows]
        padded = [*tokens, *tokens[-1:] * (rows - len(tokens))]
        tape.ids.copy_(torch.tensor([padded]), non_blocking=tape.ids.is_cuda)
        sampler.seek(list(range(length, length + rows)))
        tape.state.seek(starts, list(range(position, position + rows)))
        result = tape.run()
        if tape.tail is None:
            sampler.step(steps.logits(result)[0])
        else:
            steps.plan.leaves += 1
        *chosen, wrong = torch.cat([sampler.token[:, 0], sampler.errors.amax(0, keepdim=True)]).tolist()
        if wrong:
            self._check(sampler, tokens, chosen)
        return chosen[: len(tokens)]

    def count(self, tokens: int) -> None:
        """The first `tokens` of the newest step are part of the text."""
        assert self._layers is not None
        undo = Undo(self.cache)
        try:
            self._layers.count(tokens)
        except BaseException:  # an interrupt: all layers or none
            undo.run()
            raise
        self.steps.position += tokens

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
        with torch.inference_mode(False):  # inference tensors could only be written to in inference mode
            ids = torch.empty(1, rows, dtype=torch.int64, device=plan.device)
        tail = steps.tail(plan, self._samplers[rows])
        masked = steps.mask is not None
        tape = StepTape(plan, self._layers, ids, positions=positions, masked=masked, tail=tail)
        if steps.mask is not None:
            tape.state.set_mask(steps.mask)
        self._tapes[rows] = tape
        return tape

    def _check(self, sampler: Sampler, tokens: list[int], chosen: list[int]) -> None:
        """Errors behind a wrong guess are no errors."""
        right = accepted(tokens[1:], chosen)
        bits = sampler.errors.tolist()
        sampler.errors.zero_()
        if any(bits[: right + 1]):
            sampler.errors[0] = next(bit for bit in bits if bit)
            sampler.check()


def accepted(guesses: list[int], chosen: list[int]) -> int:
    """How many of the guesses are what was chosen, up to the first that isn't."""
    return next((i for i, (a, b) in enumerate(zip(guesses, chosen, strict=False)) if a != b), len(guesses))


class Guesser:
    """The part of a generation that guesses."""

    def __init__(self, request: Request, totals: Guesses, config: Any, assistant: Any) -> None:
        """config: of the generation; assistant: its draft model, or None. Raises Blocked for what is not known."""
        if request.input_ids.shape[0] != 1:
            raise Blocked("several rows")
        self.request, self.totals = request, totals
        self.draft: PromptLookup | DraftModel
        if config.prompt_lookup_num_tokens is not None:
            self.draft = PromptLookup(config.max_matching_ngram_size or LONGEST)
            most = config.prompt_lookup_num_tokens
        elif hasattr(assistant, "generator_plan"):
            self.draft = DraftModel(assistant, request.input_ids, request.capacity)
            most = assistant.generation_config.num_assistant_tokens
        else:
            raise Blocked("the draft is no patched model")
        self.most = max(1, min(int(most or MOST), MOST))
        self.verifier = Verifier(request.steps, request.cache, request.settings, request.input_ids, request.capacity)

    def run(self, text: list[int], seed: int) -> None:
        """Generate, from `text` (prompt and first new token) on, until the text ends or guessing is given up.

        seed: of the sampler that chose that token.
        """
        stops, totals, plan, streamer = self.request.stops, self.totals, self.request.steps.plan, self.request.streamer
        self.verifier.begin(seed)
        if isinstance(self.draft, DraftModel):
            self.draft.begin(self.request.settings, seed)
        pace = Pace(self.most, totals)
        totals.stopped = ""
        while not stops.done[0]:
            if not pace.pays():
                totals.stopped = "switched off, as it did not pay"
                return
            before = time.perf_counter()
            wanted = min(pace.guesses(), stops.remaining - 1)
            try:
                guesses = self.draft.propose(text, wanted) if wanted > 0 else []
                chosen = self.verifier.choose([text[-1], *guesses], len(text))
            except Blocked as blocked:
                totals.stopped = f"switched off: {blocked}"
                return
            right = accepted(guesses, chosen)
            new = chosen[: right + 1]
            kept = stops.take([new])
            self.verifier.count(kept)
            text += new[:kept]
            plan.tokens += kept
            plan.reads += 1
            pace.note(len(guesses), right, kept, None if self.verifier.recorded else time.perf_counter() - before)
            if streamer is not None:
                for token in new[:kept]:
                    streamer.put(torch.tensor([token], device="cpu"))
