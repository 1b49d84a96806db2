"""Many requests at a time with one model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.core.interrupts import uninterruptible
from torch_foundry.engine.detokenizer import Detokenizer
from torch_foundry.engine.drafting import Drafting, paged_drafter
from torch_foundry.engine.forward import Forward
from torch_foundry.engine.images import Images
from torch_foundry.engine.memory import divided, step_tokens
from torch_foundry.engine.ranks import Ranks
from torch_foundry.engine.request import EngineConfig, QueueFull, SamplingParams, prompt_ids
from torch_foundry.engine.scheduler import Scheduler
from torch_foundry.engine.sequence import Sequence
from torch_foundry.engine.steps import Steps, not_embedded
from torch_foundry.engine.stream import Stream
from torch_foundry.generation.drafting import SpeculationStats
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.models.outputs import path_to_decoder, replaced_ids
from torch_foundry.sampling import Sampler

REFUSED = "an engine can't run this model"


class Engine:
    """Continuous batching with a patched model: requests arrive and finish while others are being answered.

    Nothing runs by itself: `step()`, `run()` and reading a stream do the work. Threads may share an engine, in turn.

    tokenizer: for prompts given as text and for `SamplingParams.stop`. options: fields of `EngineConfig`.

    Of a model whose weights are sharded over processes, each makes an engine with the same options at the same time.
    The first is asked; the others call `follow`.

    After changing weights, call `forget()`; otherwise later prompts may continue from what the old weights computed.
    RuntimeError: the model can't be run by an engine (the message says why).
    LoadError: `use_mtp`, and there is no MTP head that fits. DoesNotFit (a torch.OutOfMemoryError): the device has no
    room for the cache or for a step, and how many blocks fit.
    """

    @torch.inference_mode(False)
    def __init__(self, model: Any, tokenizer: Any = None, **options: Any) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, EngineConfig(**options)
        if not hasattr(model, "generator_plan"):
            raise RuntimeError(f"{REFUSED}: {type(model).__name__} is not a patched model of a known family")
        own, config = self.config, model.config.get_text_config()
        longest = int(config.max_position_embeddings)
        try:
            plan = decoder_plan(model)
            with torch.no_grad():
                plan.check()
            blocks, self.snapshots = divided(own, plan.specs, plan.dtype, longest)
            recurrent = any(isinstance(spec, RecurrentSpec) for spec in plan.specs)
            self.cache = PagedCache(
                config,
                blocks,
                block_size=own.block_size,
                kv_cache=own.kv_cache,
                states=own.state_tables(self.snapshots) if recurrent else None,
            )
            self._ranks = Ranks(plan.split, own)
            forward = Forward(model, self.cache, requests=own.requests, batch_invariant=own.batch_invariant)
        except Fallback as fallback:
            raise RuntimeError(f"{REFUSED}: {fallback}") from None
        self.limit = min(longest, blocks * own.block_size)  # tokens of a text
        self._decoder = forward.plan
        budget = max(step_tokens(own.budget, self._decoder, self._ranks.shared), own.requests)
        self.scheduler = Scheduler(self.cache.manager, running=own.requests, budget=budget)
        self._replaced = replaced_ids(path_to_decoder(model)[-2])
        device, vocabulary = self._decoder.device, model.lm_head.out_features
        sampler = Sampler.empty(own.requests, capacity=self.limit + 1, vocab_size=vocabulary, device=device)
        draft = paged_drafter(own, model, tokenizer, forward, blocks)
        self._drafting = Drafting(own.prompt_lookup_num_tokens, draft, sampler, self.scheduler.budget)
        self._steps = Steps(self.scheduler, forward, sampler, self._drafting, own.ahead, self._replaced)
        self._lock = threading.RLock()
        self._changing = False  # whether the thread that has the lock is in the middle of a change
        self._cancelled: list[Sequence] = []  # and not ended yet

    def __getstate__(self) -> object:
        """TypeError: its graphs, pages and lock are of this process."""
        raise TypeError("an engine can't be copied or pickled; its model can, for another engine")

    def submit(
        self,
        prompt: str | Iterable[int] | Tensor | Mapping[str, Any],
        params: SamplingParams | None = None,
        *,
        salt: bytes = b"",
    ) -> Stream:
        """Queue a request; the `Stream` that is returned receives the answer.

        prompt: a text, token ids, or what the model's processor returns for one text with images: `input_ids` [1, L],
            `pixel_values` and so on. Tokens up to the last image are computed together, whatever `budget` is, and
            such a request has no draft tokens.
        salt: requests share cached prefixes only with requests of the same salt; prompts with images, only with those
            of the same images.
        ValueError: an empty prompt, ids outside the vocabulary, more tokens than the model or the cache can hold, or
            images for a model that is shown none; a constraint or images, where weights are sharded. QueueFull: too
            many requests are waiting.
        """
        params, vocabulary = SamplingParams() if params is None else params, self._steps.sampler.vocab_size
        if not isinstance(params, SamplingParams) or not isinstance(salt, bytes):
            raise ValueError(f"params, salt: expected SamplingParams and bytes, got {params!r} and {salt!r}")
        told = prompt if isinstance(prompt, Mapping) else {"input_ids": prompt}
        if "input_ids" not in told:
            raise ValueError("prompt: expected input_ids among what a processor returns")
        ids = prompt_ids(told["input_ids"], self.tokenizer, vocabulary)
        if len(ids) >= self.limit:
            raise ValueError(f"prompt: expected fewer than {self.limit} tokens (model and cache), got {len(ids)}")
        if params.stop and self.tokenizer is None:
            raise ValueError("stop: texts need an engine with a tokenizer; stop_token_ids do not")
        seed = int(torch.randint(-(2**63), 2**63 - 1, ())) if params.seed is None else params.seed
        settings = params.settings(len(ids), self.model.generation_config.eos_token_id)
        settings = settings.replace(eos=tuple(i for i in settings.eos if 0 <= i < vocabulary))
        with torch.inference_mode(False), torch.no_grad():
            images = Images.of(told, ids, self.model, self._decoder)
        for token in ids[images.end if images else 0 :]:
            if token in self._replaced:
                raise ValueError(f"prompt: {not_embedded(token)}")
        self._ranks.check(params, images)
        salt += b"" if images is None else images.digest
        text = None
        if self.tokenizer is not None:
            text = Detokenizer(self.tokenizer, params.stop, skip_special_tokens=params.skip_special_tokens)
        limit = min(len(ids) + params.max_tokens, self.limit)
        sequence = Sequence(ids, len(ids), limit, salt=salt, sampling=settings, seed=seed, text=text, images=images)
        sequence.speculation, sequence.top_logprobs = SpeculationStats(), params.logprobs
        sequence.constraint, sequence.bias = params.constraint, params.bias(vocabulary, self._decoder.device)
        with self._exclusive():
            if len(self.scheduler.waiting) >= self.config.queue:
                raise QueueFull(f"{self.config.queue} requests are waiting, as many as this engine takes")
            self._ranks.tell("submit", ids, replace(params, seed=seed), salt=salt)
            self.scheduler.add(sequence)
            possible = not (settings.counts_tokens or sequence.watched or images or self._ranks.shared)
            self._drafting.begin(sequence, params, possible=possible)
        return Stream(sequence, self.step, self.cancel)

    def cancel(self, stream: Stream) -> None:
        """End a request now; what it has so far stays. Does nothing if it has ended already.

        If this thread is inside a step (a signal handler's call), the request ends after that step.
        """
        if stream._cancel != self.cancel:
            raise ValueError("stream: it is another engine's")
        self._cancelled.append(stream.sequence)
        with self._lock:
            if not self._changing:
                with self._exclusive():
                    pass

    @property
    def speculation(self) -> SpeculationStats:
        """Counts of speculative decoding, of all requests together; of one request: `Stream.speculation`."""
        return self._drafting.totals

    @property
    def idle(self) -> bool:
        """True if no request runs or waits."""
        return not (self.scheduler.running or self.scheduler.waiting)

    def forget(self) -> None:
        """Let no later prompt continue from what earlier ones left in the cache. Answers under way don't change."""
        with self._exclusive():
            self._ranks.tell("forget")
            self.cache.manager.forget()
            self._drafting.forget()

    def run(self) -> None:
        """Step until all requests are answered."""
        while not self.idle:
            self.step()

    def follow(self) -> None:
        """Do what the first of the processes that share the model's weights does with its engine, until that is closed.
        ValueError: this is the first, or there are no others."""
        if self._ranks.first:
            raise ValueError("follow: expected a process, other than the first, that has a part of the weights")

        def cancel(id: int) -> None:
            self._cancelled += [each for each in (*self.scheduler.running, *self.scheduler.waiting) if each.id == id]
            with self._exclusive():
                pass

        self._ranks.follow({"submit": self.submit, "step": self.step, "cancel": cancel, "forget": self.forget})

    def close(self) -> None:
        """Let the processes that follow this engine go on; it is of no use afterwards. Nothing, if none does."""
        self._ranks.tell("close")

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One thread at a time changes an engine, and Ctrl-C waits for the end of the change.

        Tensors that are made meanwhile are none of inference mode or autograd, whatever the caller is in.
        """
        with self._lock, uninterruptible(), torch.inference_mode(False), torch.no_grad():
            self._changing = True
            try:
                while self._cancelled:
                    sequence = self._cancelled.pop()
                    self._ranks.tell("cancel", sequence.id)
                    self._steps.end(sequence, "cancelled")
                yield
            finally:
                self._changing = False

    def step(self) -> int:
        """Compute one step; returns its number of tokens, 0 if there is nothing to do.

        After an exception each request is still queued or keeps the tokens that it has, and the next step continues.
        Ctrl-C is answered after the step. RuntimeError: the model has changed and can't be run any more; the message
        says why.
        """
        with self._exclusive():
            if self.model.lm_head.out_features != self._steps.sampler.vocab_size:
                raise RuntimeError(f"{REFUSED}: its vocabulary has changed, which needs a new engine")
            self._ranks.tell("step")
            try:
                return self._steps.take()
            except Fallback as fallback:
                raise RuntimeError(f"{REFUSED}: {fallback}") from None
