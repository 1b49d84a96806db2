"""The replaced causal language model: generate() without a wait for the device after each token."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from contextvars import ContextVar
from typing import Any

import torch
from transformers.generation.utils import GenerationMixin

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.kept import Kept, KeptGuesses
from torch_foundry.decode.loop import Loop
from torch_foundry.decode.pace import Guesses
from torch_foundry.decode.request import Request, chosen_by_call, without_usual_positions
from torch_foundry.decode.speculation import Guesser
from torch_foundry.patch.calls import generated, generation
from torch_foundry.patch.model import ModelMixin
from torch_foundry.patch.state import ModelPlan, ModelState

_alone: ContextVar[bool] = ContextVar("alone", default=False)  # whether that call made its own cache


class GeneratorPlan(ModelPlan):
    """What a generation leaves for the next one."""

    __slots__ = ("kept", "kept_guesses")

    def __init__(self, state: ModelState) -> None:
        super().__init__(state)
        self.guesses = Guesses()
        # taken out by the generation that uses it: threads may share a model
        self.kept: deque[Kept] = deque(maxlen=1)
        self.kept_guesses: deque[KeptGuesses] = deque(maxlen=1)

    def forget(self) -> None:
        """Let go of it."""
        self.kept.clear()
        self.kept_guesses.clear()


def take(kept: deque[Any]) -> Any:
    """The last one, if there is one."""
    with contextlib.suppress(IndexError):
        return kept.pop()
    return None


class CountingMixin(ModelMixin):
    """A model with a generate() that our own loop is not known to do."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As stock, and counted: a loop of ours, of a model inside, says so; otherwise Hugging Face's ran."""
        if not self._foundry.state.enabled:
            return super().generate(*args, **kwargs)  # type: ignore[misc]
        with generation(self.model_plan(), f"generate: {self._unknown()}"):
            return super().generate(*args, **kwargs)  # type: ignore[misc]

    def _unknown(self) -> str:
        return f"{self._foundry_base.__name__} is not a model that our loop is known for"


class GeneratorMixin(CountingMixin):
    """A model of `families.HEADS`. `generate` takes `sync_every` as well; see `tokens_in_flight`."""

    def _make_plan(self, state: ModelState) -> GeneratorPlan:
        return GeneratorPlan(state)

    def generator_plan(self) -> GeneratorPlan:
        """The plan; a copy of a model makes its own."""
        return self.model_plan()  # type: ignore[return-value]

    def _unknown(self) -> str:
        return "a way of decoding that our loop is not known for"

    @functools.wraps(GenerationMixin.generate)
    def generate(self, *args: Any, sync_every: int | None = None, **kwargs: Any) -> Any:
        chosen, alone = chosen_by_call.set(sync_every), _alone.set(kwargs.get("past_key_values") is None)
        try:
            return super().generate(*args, **kwargs)
        finally:
            chosen_by_call.reset(chosen)
            _alone.reset(alone)

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """As stock: greedy decoding and sampling, by our own loop if everything that was asked for is known to it.

        Draws are the sampler's own (see `torch_foundry.sampling`): the same for the same seed, but not torch's.
        """
        plan = self.generator_plan()
        generated()
        given = (logits_processor, stopping_criteria, generation_config, synced_gpus, streamer)
        try:
            request = Request(self, plan, input_ids, *given, model_kwargs)
        except Fallback as fallback:
            if plan.state.enabled:
                plan.eager[f"generate: {fallback}"] += 1
            model_kwargs = without_usual_positions(input_ids, generation_config, model_kwargs)
            return super()._sample(input_ids, *given, **model_kwargs)  # type: ignore[misc]
        steps, stops, cache = request.steps, request.stops, request.cache
        steps.sampler = request.sampler()
        alone = _alone.get() and not generation_config.return_dict_in_generate and not cache.get_seq_length()
        kept = take(plan.kept) if alone else None
        if steps.resume(kept, cache, model_kwargs["position_ids"].shape[1], stops.remaining):
            kept = None
        steps.sampler.step(request.prefill())
        Loop(steps, stops, request.every, streamer).run(cache)
        if alone and (left := steps.leave() or kept) is not None:
            plan.kept.append(left)
        return request.result()

    @functools.wraps(GenerationMixin._assisted_decoding)
    def _assisted_decoding(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        inputs_tensor: Any = None,
        assistant_model: Any = None,
        assistant_tokenizer: Any = None,
        tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """As stock: prompt lookup and draft models, by `speculation` if everything that was asked for is known to it.

        The tokens are those of `generate()` without guesses, drawn ones too.
        """
        plan = self.generator_plan()
        generated()
        given = (logits_processor, stopping_criteria, generation_config, synced_gpus, streamer)
        try:
            if assistant_tokenizer is not None:
                raise Fallback("the draft has another tokenizer")
            request = Request(self, plan, input_ids, *given, model_kwargs)
            guesser = Guesser(request, plan.guesses, generation_config, assistant_model)
        except Fallback as fallback:
            if plan.state.enabled:
                plan.eager[f"assisted generate: {fallback}"] += 1
            model_kwargs = without_usual_positions(input_ids, generation_config, model_kwargs)
            models = (inputs_tensor, assistant_model, assistant_tokenizer, tokenizer)
            return super()._assisted_decoding(input_ids, *given, *models, **model_kwargs)  # type: ignore[misc]
        steps, stops, cache = request.steps, request.stops, request.cache
        sampler = steps.sampler = request.sampler()
        alone = _alone.get() and not generation_config.return_dict_in_generate and not cache.get_seq_length()
        kept = take(plan.kept_guesses) if alone else None
        if guesser.verifier.resume(kept, stops.remaining):
            kept = None
        sampler.step(request.prefill())
        Loop(steps, stops, 1, streamer).take_first()
        text = input_ids[0].tolist() + stops.tokens[0]
        guesser.run(text, sampler.seed)
        if not stops.done[0]:
            sampler.seek([len(text)], text[-1:])
            Loop(steps, stops, request.every, streamer).run(cache)
        if alone and (left := guesser.verifier.leave() or kept) is not None:
            plan.kept_guesses.append(left)
        return request.result()

    # generate() looks at the signatures
    @functools.wraps(GenerationMixin._beam_search)
    def _beam_search(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        plan = self.generator_plan()
        generated()
        if plan.state.enabled:
            plan.eager["generate: beams"] += 1
        kwargs = without_usual_positions(input_ids, kwargs.get("generation_config"), kwargs)
        return super()._beam_search(input_ids, *args, **kwargs)  # type: ignore[misc]
