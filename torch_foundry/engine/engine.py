"""Many requests at a time with one model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_foundry.engine.forward import Forward
from torch_foundry.engine.groups import Part
from torch_foundry.engine.requests import Job, Params, QueueFull
from torch_foundry.engine.scheduler import Chunk, Scheduler
from torch_foundry.engine.stream import Stream
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.patch.state import Blocked
from torch_foundry.sampling import Slots


class Engine:
    """Continuous batching with a patched model: requests come and go while others are being answered.

    model: a patched causal language model. tokenizer: for prompts that are texts, and for texts that stop an answer.
    requests: at most in a step. budget: tokens of a step; longer prompts are read in pieces beside the others' tokens.
    blocks, block_size: memory of the KV cache; default: as many as `requests` texts of 1024 tokens take, or one text of
    8192, if the model's are as long. kv_cache: as in `patch`. queue: requests that may wait.
    invariant: each answer has the bits, and so the tokens, that it would have alone, in every dtype; slower. Without it
    matrix products of more than 16 rows go another way than those of few, so float16 and bfloat16 may choose another
    token where two are as good as equal.

    RuntimeError says why if a model can't be run so. Nothing runs by itself: `step()`, or reading a stream, does.
    """

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
    ) -> None:
        config = model.config.get_text_config()
        self.model, self.tokenizer, self.queue = model, tokenizer, queue
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
        except Blocked as blocked:
            raise RuntimeError(f"an engine can't run this model: {blocked}") from None
        self.device = self._forward.plan.device
        self._slots = Slots(requests, capacity=self.limit + 1, vocab_size=self.vocabulary, device=self.device)
        self._rows: list[Job | None] = [None] * requests  # who has which slot
        self._streams: dict[int, Stream] = {}
        self._names = itertools.count()
        self._eos = _ends(model.generation_config.eos_token_id)

    # ------------------------------------------------------------------------------------------------------- requests

    def submit(
        self, prompt: str | Sequence[int] | Tensor, params: Params | None = None, *, salt: bytes = b""
    ) -> Stream:
        """Queue a request; its `Stream` has the answer as it comes.

        prompt: a text, or token ids. salt: only requests with the same one share what is in the cache.
        ValueError: an empty prompt, ids outside the vocabulary, or more tokens than the model or the cache takes.
        QueueFull: too many are waiting.
        """
        params = params or Params()
        ids = self._ids(prompt)
        if len(self.scheduler.waiting) >= self.queue:
            raise QueueFull(f"{self.queue} requests are waiting, as many as this engine takes")
        if not ids:
            raise ValueError("prompt: expected at least one token, got none")
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
        job = Job(next(self._names), list(ids), len(ids), min(len(ids) + params.max_tokens, self.limit), salt)
        stream = Stream(self, job, params, settings, seed, self.tokenizer)
        self._streams[job.name] = stream
        self.scheduler.add(job)
        return stream

    def _ids(self, prompt: str | Sequence[int] | Tensor) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("prompt: a text needs an engine with a tokenizer; token ids do not")
            found: list[int] = self.tokenizer(prompt)["input_ids"]
            return found
        if isinstance(prompt, Tensor):
            prompt = prompt.flatten().tolist()
        return [int(i) for i in prompt]

    def cancel(self, stream: Stream) -> None:
        """End a request now; what it has stays. Nothing happens if it has ended."""
        if not stream.finish_reason:
            self._end(stream.job, "cancelled")

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.scheduler.running and not self.scheduler.waiting

    def run(self) -> None:
        """Step until all requests are answered."""
        while not self.idle:
            self.step()

    # ----------------------------------------------------------------------------------------------------------- step

    def step(self) -> int:
        """Compute one step; returns its number of tokens, 0 if there is nothing to do.

        An exception leaves every request as it was before the step, in the queue or with the tokens that it has.
        """
        before = list(self.scheduler.running)
        chunks = self.scheduler.next()
        for job in before:
            if job not in self.scheduler.running:
                self._leave(job)
        if not chunks:
            return 0
        for chunk in chunks:
            self._enter(chunk.job)
        chunks.sort(key=lambda chunk: self._slot(chunk.job))
        complete = [chunk.job for chunk in chunks if chunk.complete]
        for chunk in chunks:
            self.cache.copy(chunk.copies)
        logits = self._forward([_part(chunk) for chunk in chunks])
        new = self._choose(complete, logits) if complete else {}
        self.scheduler.done(chunks)
        for job, (token, wrong) in new.items():
            self._take(job, token, wrong)
        return sum(chunk.count for chunk in chunks)

    def _choose(self, jobs: Sequence[Job], logits: Tensor) -> dict[Job, tuple[int, int]]:
        """A token for each job, and its error bits; jobs in the order of their slots."""
        slots = [self._slot(job) for job in jobs]
        order = sorted(range(len(jobs)), key=slots.__getitem__)
        if order != list(range(len(jobs))):
            logits = logits[torch.tensor(order).to(self.device, non_blocking=True)]
        ordered = [slots[i] for i in order]
        at = 0
        while at < len(ordered):  # runs of neighbours
            end = at + 1
            while end < len(ordered) and ordered[end] == ordered[end - 1] + 1:
                end += 1
            self._slots.step(logits[at:end], first=ordered[at])
            at = end
        found = torch.cat([self._slots.token, self._slots.errors[:, None]], dim=1).tolist()
        return {job: (found[slot][0], found[slot][1]) for job, slot in zip(jobs, slots, strict=True)}

    def _take(self, job: Job, token: int, wrong: int) -> None:
        stream = self._streams[job.name]
        if wrong:
            try:
                self._slots.check(self._slot(job))
            except RuntimeError as error:
                stream.error = error
            self._end(job, "error")
            return
        job.tokens.append(token)
        if reason := stream.take(token):
            self._end(job, reason)

    def _end(self, job: Job, reason: str) -> None:
        self.scheduler.remove(job)
        if job in self._rows:
            self._leave(job)
        self._streams.pop(job.name).end(reason)

    # ---------------------------------------------------------------------------------------------------------- slots

    def _slot(self, job: Job) -> int:
        return self._rows.index(job)

    def _enter(self, job: Job) -> None:
        if job in self._rows:
            return
        slot = self._rows.index(None)
        stream = self._streams[job.name]
        self._slots.fill(slot, stream.settings, job.tokens, seed=stream.seed, prompt=job.prompt)
        self._rows[slot] = job

    def _leave(self, job: Job) -> None:
        slot = self._slot(job)
        self._rows[slot] = None
        self._slots.clear(slot)


def _part(chunk: Chunk) -> Part:
    job = chunk.job
    ids = job.tokens[job.computed : job.computed + chunk.count]
    return Part(job.name, job.computed, ids, int(chunk.complete))


def _ends(eos: int | Sequence[int] | None) -> tuple[int, ...]:
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
