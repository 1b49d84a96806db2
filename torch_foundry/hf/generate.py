"""The replaced causal language model: generate() without a wait for the device after each token."""

from __future__ import annotations

import functools
import warnings
from contextvars import ContextVar
from typing import Any

import torch
from transformers.generation.utils import GenerationMixin

from torch_foundry.core.errors import Fallback
from torch_foundry.core.load_errors import LoadError
from torch_foundry.generation.draft_history import DraftHistory
from torch_foundry.generation.draft_length import DraftLengthController
from torch_foundry.generation.draft_model import DraftModel
from torch_foundry.generation.drafting import (
    LONGEST_MATCH,
    MAX_DRAFT_TOKENS,
    Drafter,
    PromptLookup,
    SequenceDrafts,
    SpeculationStats,
    Text,
)
from torch_foundry.generation.loop import GenerationLoop
from torch_foundry.generation.mtp import MTPDrafter
from torch_foundry.generation.speculation import SpeculativeDecoder
from torch_foundry.hf import kept_cache, registration
from torch_foundry.hf.generation_request import Request, chosen_by_call, without_usual_positions
from torch_foundry.hf.pretrained import ModelMixin
from torch_foundry.models.calls import collect_hidden, generated, generation
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.models.mtp import is_head_of
from torch_foundry.models.outputs import path_to_decoder, replaced_ids
from torch_foundry.models.state import FallbackWarning, ModelPlan, ModelState
from torch_foundry.models.tensor_parallel import share_random_numbers

_alone: ContextVar[bool] = ContextVar("alone", default=False)  # whether that call made its own cache


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
    """A model of `families.HEADS`. `generate` takes `sync_every` as well (see `tokens_in_flight`), and
    `assistant_model="mtp"` for `use_mtp=True`; another string is a ValueError."""

    def _make_plan(self, state: ModelState) -> ModelPlan:
        plan = ModelPlan(state)
        plan.speculation = SpeculationStats()
        return plan

    def generator_plan(self) -> ModelPlan:
        """See `plan_of`."""
        return self.model_plan()

    def _unknown(self) -> str:
        return "a way of decoding that our loop is not known for"

    @functools.wraps(GenerationMixin.generate)
    def generate(self, *args: Any, sync_every: int | None = None, **kwargs: Any) -> Any:
        if isinstance(name := kwargs.get("assistant_model"), str):
            if name != "mtp":
                raise ValueError(
                    f'assistant_model={name!r}: expected a model, or "mtp" for the model\'s own MTP head (use_mtp=True)'
                )
            kwargs |= {"assistant_model": None, "use_mtp": True}
        share_random_numbers(self)
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
        text = self._known_text(input_ids, generation_config, model_kwargs)
        try:
            request = Request(self, plan, input_ids, *given, model_kwargs)
        except Fallback as fallback:
            if plan.state.enabled:
                plan.eager[f"generate: {fallback}"] += 1
            model_kwargs = without_usual_positions(input_ids, generation_config, model_kwargs)
            result = super()._sample(input_ids, *given, **model_kwargs)  # type: ignore[misc]
            return kept_cache.noted(result, input_ids, model_kwargs, text)
        try:
            alone = self._begin(request, generation_config)
            GenerationLoop(request.runner, request.stops, request.every, streamer).run()
        finally:
            kept_cache.end(request.cache, text, request.stops.chosen)
        if alone:
            request.runner.release()
        return request.result()

    def _known_text(self, ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]) -> kept_cache.ReadText | None:
        """As `kept_cache.begin`, where somebody may see the cache again."""
        seen = not _alone.get() or config.return_dict_in_generate
        return kept_cache.begin(ids, config, model_kwargs) if seen else None

    def _begin(self, request: Request, config: Any, hidden: list[torch.Tensor] | None = None) -> bool:
        """Take in the prompt and choose the first token, in memory of earlier generations if there is some. Returns
        whether nobody else will see the cache. hidden: gets the prompt's hidden states."""
        runner, sampler = request.runner, request.sampler()
        runner.begin(sampler, request.input_ids)
        alone = _alone.get() and not config.return_dict_in_generate and not request.cache.get_seq_length()
        if alone:
            runner.reuse(request.stops.remaining)
        with collect_hidden(hidden):
            logits = request.prefill()
        runner.sampler.step(logits)
        return alone

    def _validate_generation_mode(self, mode: Any, config: Any, given: Any) -> None:
        """As stock, but tokens are drafted for recurrent states too: where our loop can't, there are no drafts."""
        self.__dict__["_is_stateful"] = False
        try:
            super()._validate_generation_mode(mode, config, given)  # type: ignore[misc]
        finally:
            del self.__dict__["_is_stateful"]

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

        The tokens are those of `generate()` without drafts, drawn ones too.
        """
        plan = self.generator_plan()
        generated()
        given = (logits_processor, stopping_criteria, generation_config, synced_gpus, streamer)
        text = self._known_text(input_ids, generation_config, model_kwargs)
        try:
            if assistant_tokenizer is not None:
                raise Fallback("the draft has another tokenizer")
            request = Request(self, plan, input_ids, *given, model_kwargs)
            decoder = speculative(request, plan.speculation, generation_config, assistant_model)
        except Fallback as fallback:
            if plan.state.enabled:
                plan.eager[f"assisted generate: {fallback}"] += 1
            if uses_mtp(generation_config) or getattr(self, "_is_stateful", False):  # stock code can't do it
                result = self._sample(input_ids, *given, **model_kwargs)
                return kept_cache.noted(result, input_ids, model_kwargs, text)
            model_kwargs = without_usual_positions(input_ids, generation_config, model_kwargs)
            models = (inputs_tensor, assistant_model, assistant_tokenizer, tokenizer)
            if text is not None:  # it counts wrongly on a cache that has read something
                model_kwargs["past_key_values"].reset()
            result = super()._assisted_decoding(input_ids, *given, *models, **model_kwargs)  # type: ignore[misc]
            return kept_cache.noted(result, input_ids, model_kwargs, text)
        drafter, stops = decoder.controller.model, request.stops
        try:
            alone = self._begin(request, generation_config, None if drafter is None else drafter.of_prompt)
            GenerationLoop(request.runner, stops, 1, streamer).take_first()
            tokens = decoder.own.sequence.tokens
            tokens += stops.tokens[0]
            decoder.run()
            if not stops.done[0]:
                request.runner.sampler.seek([len(tokens)], tokens[-1:])
                GenerationLoop(request.runner, stops, request.every, streamer).run()
        finally:
            kept_cache.end(request.cache, text, stops.chosen)
        if alone:
            request.runner.release()
        return request.result()

    # generate() looks at the signatures
    @functools.wraps(GenerationMixin._beam_search)
    def _beam_search(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        plan = self.generator_plan()
        generated()
        if plan.state.enabled:
            plan.eager["generate: beams"] += 1
        kept_cache.begin(input_ids, kwargs.get("generation_config"), kwargs)
        kwargs = without_usual_positions(input_ids, kwargs.get("generation_config"), kwargs)
        return super()._beam_search(input_ids, *args, **kwargs)  # type: ignore[misc]


def uses_mtp(config: Any) -> bool:
    """Whether the model's own MTP head is asked for."""
    return bool(getattr(config, "use_mtp", None)) and config.prompt_lookup_num_tokens is None


def loaded_mtp_head(model: Any) -> Any:
    """The MTP head of `model`, patched; loaded from the model's folder when it is first asked for, and again if the
    model has another embedding or output layer since. LoadError: there is none, or it doesn't fit."""
    plan = model.generator_plan()
    if isinstance(plan.mtp, LoadError) or plan.mtp is None or not is_head_of(plan.mtp, model):
        head = None if isinstance(plan.mtp, LoadError) else plan.mtp
        registration.load_mtp(model, None if head is None else head.config.name_or_path)
    return plan.mtp


def mtp_head(model: Any) -> Any:
    """The same. Raises Fallback if there is none; the first time it warns."""
    plan = model.generator_plan()
    if isinstance(plan.mtp, LoadError):
        raise Fallback(f"no MTP head: {plan.mtp.code}")
    try:
        return loaded_mtp_head(model)
    except LoadError as error:
        plan.mtp = error
        warnings.warn(f"use_mtp: the model has no MTP head, so nothing is drafted: {error}", FallbackWarning, 3)
        raise Fallback(f"no MTP head: {error.code}") from None


def speculative(request: Request, totals: SpeculationStats, config: Any, assistant: Any) -> SpeculativeDecoder:
    """The part of a request that drafts; assistant: its draft model. Raises Fallback for what is not known."""
    if request.input_ids.shape[0] != 1:
        raise Fallback("several rows")
    if decoder_plan(request.model).split:
        raise Fallback("each process would time by itself how many drafts pay")
    if replaced_ids(path_to_decoder(request.model)[-2]):
        raise Fallback("a draft may have an image's token")
    if request.settings.counts_tokens or request.settings.bans_sequences:
        raise Fallback("what may come next depends on tokens that are only drafted")
    model: Drafter | None = None
    lookup, most, source = None, MAX_DRAFT_TOKENS, assistant
    if uses_mtp(config):
        source = mtp_head(request.model)
        model = MTPDrafter(source, request.runner, request.input_ids, request.capacity)
    elif config.prompt_lookup_num_tokens is not None:
        source, most, longest = PromptLookup, config.prompt_lookup_num_tokens, config.max_matching_ngram_size
        longest = LONGEST_MATCH if longest is None else longest
        if most < 1 or longest < 1:  # an error of stock code
            raise Fallback("no tokens are to be looked up")
        lookup = PromptLookup(longest)
    elif hasattr(assistant, "generator_plan"):
        model = DraftModel(assistant, request.input_ids, request.capacity)
        most = assistant.generation_config.num_assistant_tokens
    else:
        raise Fallback("the draft is no patched model")
    text, most = request.input_ids[0].tolist(), max(1, int(most or MAX_DRAFT_TOKENS))
    history = totals.histories.setdefault(source, DraftHistory())
    own = SequenceDrafts(Text(text, len(text) + request.stops.remaining), most, lookup, history.rates)
    controller = DraftLengthController(totals, model, history)
    return SpeculativeDecoder(
        request.runner, request.stops, own, controller, every=request.every, streamer=request.streamer
    )
