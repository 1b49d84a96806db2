"""The swapped causal language model: generate() without a wait for the device after each token."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from contextvars import ContextVar
from typing import Any

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMixin

from torch_foundry.decode.decoder import OFF, ON, DecoderMixin
from torch_foundry.decode.kept import Kept
from torch_foundry.decode.loop import Loop
from torch_foundry.decode.state import horizon_for
from torch_foundry.decode.steps import Steps
from torch_foundry.decode.stops import Stops
from torch_foundry.patch.model import ModelMixin
from torch_foundry.patch.state import Blocked, ModelPlan, ModelState
from torch_foundry.sampling import Sampler, Settings

VARIABLE = "TORCH_FOUNDRY_SYNC_EVERY"
BY_DEFAULT = 16
KNOWN = frozenset({"attention_mask", "position_ids", "past_key_values", "logits_to_keep", "inputs_embeds", "tokenizer"})
REPLACED = {"prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill"}
RECORDED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_chosen: ContextVar[int | None] = ContextVar("sync_every", default=None)  # by the call of generate() that is running
_alone: ContextVar[bool] = ContextVar("alone", default=False)  # whether that call made its own cache


class GeneratorPlan(ModelPlan):
    """What generations leave to each other."""

    __slots__ = ("kept",)

    def __init__(self, state: ModelState) -> None:
        super().__init__(state)
        self.kept: deque[Kept] = deque(maxlen=1)  # taken out by the generation that uses it: threads may share a model

    def forget(self) -> None:
        """Let go of it."""
        self.kept.clear()

    def take(self) -> Kept | None:
        """The last one, if there is one."""
        with contextlib.suppress(IndexError):
            return self.kept.pop()
        return None


class GeneratorMixin(ModelMixin):
    """A model of `models.HEADS`. `generate` takes `sync_every` as well; see `tokens_in_flight`."""

    def generator_plan(self) -> GeneratorPlan:
        """The plan; a copy of a model makes its own."""
        plan = self._foundry
        if plan.__class__ is not GeneratorPlan:
            plan = self.__dict__["_foundry"] = GeneratorPlan(plan.state)
        return plan

    @functools.wraps(GenerationMixin.generate)
    def generate(self, *args: Any, sync_every: int | None = None, **kwargs: Any) -> Any:
        chosen, alone = _chosen.set(sync_every), _alone.set(kwargs.get("past_key_values") is None)
        try:
            return super().generate(*args, **kwargs)  # type: ignore[misc]
        finally:
            _chosen.reset(chosen)
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
        model: Any = self
        try:
            if not plan.state.enabled:
                raise Blocked("switched off")
            every = tokens_in_flight(generation_config, plan.state.sync_every, streamer)
            check_request(model, generation_config, synced_gpus, model_kwargs)
            settings, reason = Settings.from_generation_config(generation_config, logits_processor)
            if settings is None:
                raise Blocked(reason)
            pad = generation_config._pad_token_tensor
            stops = Stops(stopping_criteria, input_ids, None if pad is None else int(pad))
            assert stops.max_length is not None
            steps = Steps(model, plan, input_ids.shape[0], model_kwargs)
            cache = model_kwargs["past_key_values"]
            steps.expect(cache, stops.remaining)
        except Blocked as blocked:
            if plan.state.enabled:
                plan.eager[f"generate: {blocked}"] += 1
            return super()._sample(  # type: ignore[misc]
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus,
                streamer,
                **without_usual_positions(input_ids, generation_config, model_kwargs),
            )
        capacity = horizon_for(max(stops.max_length, input_ids.shape[1] + 1))
        steps.sampler = Sampler(
            settings,
            input_ids,
            vocab_size=model.lm_head.out_features,
            capacity=capacity,
            seed=None if settings.do_sample else 0,  # None: from torch, whose numbers greedy code leaves alone
        )
        returned = generation_config.return_dict_in_generate
        alone = _alone.get() and not returned and not cache.get_seq_length()
        if alone:
            steps.resume(plan.take(), cache, model_kwargs["position_ids"].shape[1], stops.remaining)
        first = not generation_config.is_assistant
        outputs = model._prefill(input_ids, generation_config, model_kwargs, is_first_iteration=first)
        new = Loop(steps, stops, every, streamer).run(outputs.logits[:, -1], cache)
        if alone and (left := steps.leave()) is not None:
            plan.kept.append(left)
        if streamer is not None:
            streamer.end()
        ids: Any = torch.cat([input_ids, new.to(input_ids.device)], dim=1)
        if returned:
            return GenerateDecoderOnlyOutput(sequences=ids, past_key_values=cache)
        return ids

    # generate() looks at the signatures
    @functools.wraps(GenerationMixin._beam_search)
    def _beam_search(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kwargs = without_usual_positions(input_ids, kwargs.get("generation_config"), kwargs)
        return super()._beam_search(input_ids, *args, **kwargs)  # type: ignore[misc]

    @functools.wraps(GenerationMixin._assisted_decoding)
    def _assisted_decoding(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kwargs = without_usual_positions(input_ids, kwargs.get("generation_config"), kwargs)
        return super()._assisted_decoding(input_ids, *args, **kwargs)  # type: ignore[misc]


def without_usual_positions(input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments without `position_ids`, if these are what a model counts by itself, and on the host, where a tape
    needs to know them; else they have to be read from the device at each step."""
    positions, cache = model_kwargs.get("position_ids"), model_kwargs.get("past_key_values")
    if positions is None or model_kwargs.get("attention_mask") is not None or positions.dim() != 2:
        return model_kwargs
    if cache is not None and cache.get_seq_length():
        # ids may be the whole text, or what is new in it; with a mask of ones, generate() notes the whole length here
        total = getattr(config, "_mask_length", None)
    else:
        total = input_ids.shape[1]
    if positions.shape[1] != total:
        return model_kwargs
    if not bool((positions == torch.arange(total, device=positions.device)).all()):
        return model_kwargs
    return {name: value for name, value in model_kwargs.items() if name != "position_ids"}


def tokens_in_flight(config: Any, chosen: int | None, streamer: Any) -> int:
    """How many tokens are handed to the device before they are read: `sync_every` of generate(), of the generation
    config, of `patch()`, or of the environment, or the default: 1 where a streamer waits for them, else 16.

    ValueError for what is not a number from 0; Blocked for 0, which asks for Hugging Face's loop.
    """
    every: Any = _chosen.get()
    every = getattr(config, "sync_every", None) if every is None else every
    every = chosen if every is None else every
    every = os.environ.get(VARIABLE) or None if every is None else every
    if every is None:
        return BY_DEFAULT if streamer is None else 1
    if not str(every).isdecimal():
        raise ValueError(f"sync_every={every!r}: expected a number of tokens, or 0 for Hugging Face's own loop")
    if int(every) == 0:
        raise Blocked("sync_every is 0")
    return int(every)


def check_request(model: Any, config: Any, synced_gpus: bool, model_kwargs: dict[str, Any]) -> None:
    """Raise Blocked for what the loop doesn't do."""
    if synced_gpus:
        raise Blocked("synced_gpus")
    for name in RECORDED:
        if getattr(config, name, None):
            raise Blocked(name)
    for name, value in model_kwargs.items():
        usual = name in KNOWN or value is None or (value is True and name in ON) or (value is False and name in OFF)
        if not usual:
            raise Blocked(f"argument {name}")
    if type(model_kwargs.get("past_key_values")) is not DynamicCache:
        raise Blocked(f"cache is {type(model_kwargs.get('past_key_values')).__name__}")
    if getattr(model.config, "use_bidirectional_attention", False):
        raise Blocked("attention is not causal")
    if REPLACED & model.__dict__.keys():  # peft puts prompts into the cache that way
        raise Blocked("methods of the model were replaced")
    if not isinstance(getattr(model, "model", None), DecoderMixin):
        raise Blocked("the decoder is not a known one")
    plan = model.model.decoder_plan()
    plan.check()
    if not plan.rotary.constant:
        raise Blocked("rope depends on the length of the text")
