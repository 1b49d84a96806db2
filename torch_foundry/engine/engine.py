"""Many requests at a time with one model."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.pace import Guesses
from torch_foundry.engine.choice import Chooser
from torch_foundry.engine.draft import Draft
from torch_foundry.engine.forward import Forward
from torch_foundry.engine.groups import Part
from torch_foundry.engine.guessing import Guessing
from torch_foundry.engine.requests import Job, Params, QueueFull, check_lookup, check_whole, prompt_ids
from torch_foundry.engine.scheduler import Chunk, Scheduler
from torch_foundry.engine.seats import Seats
from torch_foundry.engine.stream import Stream
from torch_foundry.engine.turns import Turns
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.sampling import Slots
from torch_foundry.sampling.sampler import check_errors

REFUSED = "an engine can't run this model"


class Engine:
    """Continuous batching with a patched model: requests arrive and finish while others are being answered.

    Nothing runs by itself: `step()`, `run()` and reading a stream do the work. Threads may share an engine, in turn.

    tokenizer: for prompts given as text and for `Params.stop`. requests: how many are answered at a time. queue: how
        many more may wait. budget: tokens per step; longer prompts are read in pieces, beside the other requests'
        tokens.
    blocks, block_size: size of the KV cache; default: room for `requests` texts of 1024 tokens, or one of 8192.
        kv_cache: as in `patch`.
    invariant: give each answer the bits, and so the tokens, that it would have alone. Slower. Without it, many rows use
        another matrix product than few, so in float16 and bfloat16 a near-tie may go to another token.
    prompt_lookup_num_tokens: guesses per step for requests that don't set it. assistant_model: a smaller patched model
        with the same tokenizer, which guesses for the others. Guesses never change a token; their number adapts
        (`guesses`). assistant_tokenizer: its own; for models of one tokenizer that pad their vocabularies differently.
    ahead: while all requests generate and nothing is guessed, this many steps are handed to the device before their
        tokens are read. Tokens then come in groups of so many, and a request that arrives or ends waits for the group.

    After changing weights, call `cache.manager.forget()` while the engine is idle; otherwise later prompts may continue
    from what the old weights computed. RuntimeError: the model can't be run by an engine (the message says why).
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        requests: int = 32,
        budget: int = 256,
        blocks: int | None = None,
        block_size: int = 16,
        kv_cache: Any = None,
        queue: int = 256,
        invariant: bool = False,
        prompt_lookup_num_tokens: int | None = None,
        assistant_model: Any = None,
        assistant_tokenizer: Any = None,
        ahead: int = 4,
    ) -> None:
        for name, value in (("requests", requests), ("budget", budget), ("queue", queue), ("ahead", ahead)):
            check_whole(name, value, 1)
        if not hasattr(model, "generator_plan"):
            raise RuntimeError(f"{REFUSED}: {type(model).__name__} is not a patched model of a known family")
        config = model.config.get_text_config()
        self.model, self.tokenizer, self.queue, self.ahead = model, tokenizer, queue, ahead
        self.vocabulary: int = model.lm_head.out_features
        longest = int(config.max_position_embeddings)
        if blocks is None:
            blocks = max(
                math.ceil(min(tokens, longest) / block_size) * n for n, tokens in ((1, 8192), (requests, 1024))
            )
        self.limit = min(longest, blocks * block_size)  # tokens of a text
        self.cache = PagedCache(config, blocks, block_size=block_size, kv_cache=kv_cache)
        self.scheduler = Scheduler(self.cache.manager, running=requests, budget=max(budget, requests))
        try:
            self._forward = Forward(model, self.cache, requests=requests, exact=invariant)
        except Fallback as fallback:
            raise RuntimeError(f"{REFUSED}: {fallback}") from None
        self.device = self._forward.plan.device
        check_lookup(prompt_lookup_num_tokens)
        if prompt_lookup_num_tokens and assistant_model is not None:
            raise ValueError("prompt_lookup_num_tokens, assistant_model: expected one of them, got both")
        draft = None
        if assistant_model is not None:
            both = tokenizer, assistant_tokenizer
            draft = Draft(assistant_model, model, both, blocks, block_size, requests=requests, exact=invariant)
        self._guessing = Guessing(prompt_lookup_num_tokens, draft, self.scheduler.budget)
        slots = Slots(requests, capacity=self.limit + 1, vocab_size=self.vocabulary, device=self.device)
        self._seats, self._chooser = Seats(slots), Chooser(slots)
        self._streams: dict[int, Stream] = {}
        self._names = itertools.count()
        self._eos = _ends(model.generation_config.eos_token_id)
        self._change = Turns(self._start_over)
        self._unwanted: list[Stream] = []  # cancelled, and not ended yet

    # ------------------------------------------------------------------------------------------------------- requests

    def submit(
        self, prompt: str | Iterable[int] | Tensor, params: Params | None = None, *, salt: bytes = b""
    ) -> Stream:
        """Queue a request; the `Stream` that is returned receives the answer.

        prompt: a text, or token ids. salt: requests share cached prefixes only with requests of the same salt.
        ValueError: an empty prompt, ids outside the vocabulary, or more tokens than the model or the cache can hold.
        QueueFull: too many requests are waiting.
        """
        params = Params() if params is None else params
        if not isinstance(params, Params) or not isinstance(salt, bytes):
            raise ValueError(f"params, salt: expected Params and bytes, got {params!r} and {salt!r}")
        ids = prompt_ids(prompt, self.tokenizer)
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            wrong = next(i for i in ids if not 0 <= i < self.vocabulary)
            raise ValueError(f"prompt: expected tokens of a vocabulary of {self.vocabulary}, got {wrong}")
        if len(ids) >= self.limit:
            raise ValueError(f"prompt: expected fewer than {self.limit} tokens (model and cache), got {len(ids)}")
        if params.stop and self.tokenizer is None:
            raise ValueError("stop: texts need an engine with a tokenizer; stop_token_ids do not")
        seed = int(torch.randint(-(2**63), 2**63 - 1, ())) if params.seed is None else params.seed
        settings = params.settings(len(ids), self._eos)
        settings = settings.replace(eos=tuple(i for i in settings.eos if 0 <= i < self.vocabulary))
        with self._change():
            if len(self.scheduler.waiting) >= self.queue:
                raise QueueFull(f"{self.queue} requests are waiting, as many as this engine takes")
            job = Job(next(self._names), ids, len(ids), min(len(ids) + params.max_tokens, self.limit), salt)
            figures = self._guessing.begin(job, params, possible=not settings.counts_tokens)
            stream = Stream(self, job, params, settings, seed, self.tokenizer, figures)
            self.scheduler.add(job)
            self._streams[job.name] = stream
        return stream

    def cancel(self, stream: Stream) -> None:
        """End a request now; what it has so far stays. Does nothing if it has ended already.

        If this thread is inside a step (a signal handler's call), the request ends after that step.
        """
        if stream.engine is not self:
            raise ValueError("stream: it is another engine's")
        self._unwanted.append(stream)
        if not self._change.mine:
            with self._change():
                self._end_unwanted()

    def _end_unwanted(self) -> None:
        while self._unwanted:
            if not self._unwanted[-1].finish_reason:
                self._end(self._unwanted[-1].job, "cancelled")
            self._unwanted.pop()

    @property
    def guesses(self) -> Guesses:
        """What came of guessing ahead, for all requests together; for one request see `Stream.guesses`."""
        return self._guessing.totals

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._streams

    def run(self) -> None:
        """Step until all requests are answered."""
        while not self.idle:
            self.step()

    # ----------------------------------------------------------------------------------------------------------- step

    def step(self) -> int:
        """Compute one step; returns its number of tokens, 0 if there is nothing to do.

        After an exception each request is still queued or keeps the tokens that it has, and the next step continues.
        After an interrupt it reads again what they have. RuntimeError: the model has changed and can't be run any more;
        the message says why.
        """
        with self._change():
            self._end_unwanted()
            if self.model.lm_head.out_features != self.vocabulary:
                raise RuntimeError(f"{REFUSED}: its vocabulary has changed, which needs a new engine")
            try:
                return self._step()
            except Fallback as fallback:
                raise RuntimeError(f"{REFUSED}: {fallback}") from None

    def _step(self) -> int:
        began, before = time.perf_counter(), list(self.scheduler.running)
        generating = [job for job in before if job.pending == 1]
        self._guessing.guess(generating, self._seats.slots, [self._seats.of(job) for job in generating])
        chunks = self.scheduler.next()
        for job in before:
            if job not in self.scheduler.running:
                self._leave(job)
        if not chunks:
            return 0
        jobs = [chunk.job for chunk in chunks]
        self._seats.take(jobs, self._streams)
        chunks.sort(key=lambda chunk: self._seats.of(chunk.job))
        steps = self._steps(chunks)
        for chunk in chunks:
            self.cache.copy(chunk.copies)
        self._seats.doubt(jobs)
        logits = self._forward([_part(chunk) for chunk in chunks])
        if steps > 1:
            slots = [self._seats.of(chunk.job) for chunk in chunks]
            found = self._chooser.several(slots, logits, self._forward.go_on, steps)
            self._guessing.timed(len(chunks), 1, len(chunks), (time.perf_counter() - began) / steps)
            done = sum(self._done(chunks, [([token], wrong) for token, wrong in step]) for step in found)
        else:
            complete = [chunk for chunk in chunks if chunk.complete]
            new = self._chooser(complete, [self._seats.of(chunk.job) for chunk in complete], logits) if complete else []
            if [chunk.job for chunk in complete if chunk.count == 1] == [chunk.job for chunk in chunks]:  # no prompt
                length, tokens = max(chunk.size for chunk in chunks), sum(len(tokens) for tokens, _ in new)
                self._guessing.timed(len(chunks), length, tokens, time.perf_counter() - began)
            done = self._done([chunk for chunk in chunks if not chunk.complete], []) + self._done(complete, new)
        self._seats.trust(jobs)
        return done

    def _done(self, chunks: Sequence[Chunk], new: Sequence[tuple[list[int], int]]) -> int:
        """Chunks are in the cache; `new`: what was chosen for each, if it was. Of requests that have not ended by now.
        Returns the number of tokens in the cache."""
        tokens = 0
        for i, chunk in enumerate(chunks):  # one by one: an exception (an interrupt) leaves the others at one place
            if chunk.job.name in self._streams:
                self.scheduler.done([chunk])
                tokens += chunk.size
                if new:
                    self._take(chunk, *new[i])
        return tokens

    def _steps(self, chunks: Sequence[Chunk]) -> int:
        """How many steps are handed to the device before their tokens are read; there is room for them."""
        if not all(chunk.complete and chunk.size == 1 for chunk in chunks):
            return 1
        steps = min(self.ahead, max(chunk.job.limit - len(chunk.job.tokens) for chunk in chunks))
        return steps if steps > 1 and self.scheduler.room(chunks, steps) else 1

    def _take(self, chunk: Chunk, tokens: Sequence[int], wrong: int) -> None:
        job, stream = chunk.job, self._streams[chunk.job.name]
        if wrong:
            try:
                check_errors([wrong])
            except RuntimeError as error:
                stream.error = error
            self._end(job, "error")
            return
        reason, before = "", len(job.tokens)
        for token in tokens:
            job.tokens.append(token)
            if reason := stream.take(len(job.tokens) - 1):
                break
        self._guessing.note(chunk, len(job.tokens) - before)
        if not tokens:
            self._guessing.end(job)
        if reason:
            self._end(job, reason)

    def _end(self, job: Job, reason: str) -> None:
        self.scheduler.remove(job)
        if job in self._seats:
            self._leave(job)
        self._guessing.end(job)
        self._streams[job.name].end(reason)
        del self._streams[job.name]

    def _leave(self, job: Job) -> None:
        self._seats.leave(job)
        self._guessing.leave(job)

    # ------------------------------------------------------------------------------------------------------ interrupts

    def _start_over(self) -> None:
        """All that is sure of a request is its tokens: they are read again."""
        self._streams = {name: stream for name, stream in self._streams.items() if not stream.finish_reason}
        self.cache.manager.reset()
        self.scheduler.reset(stream.job for stream in self._streams.values())
        self._guessing.reset(self._streams)
        self._forward.reset()
        self._seats.reset()
        for stream in list(self._streams.values()):
            if reason := stream.again():
                self._end(stream.job, reason)


def _part(chunk: Chunk) -> Part:
    return Part(chunk.job.name, chunk.job.computed, chunk.ids, 1 + len(chunk.guesses) if chunk.complete else 0)


def _ends(eos: int | Sequence[int] | None) -> tuple[int, ...]:
    return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
