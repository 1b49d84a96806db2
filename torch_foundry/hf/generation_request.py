"""What a call of generate() asks for, checked: whatever our own loop does not do raises Fallback."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation.utils import GenerateDecoderOnlyOutput

from torch_foundry.core import environment
from torch_foundry.core.errors import Fallback
from torch_foundry.generation.loop import OVERLAPPED
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.generation.stopping import StoppingCriteria
from torch_foundry.hf.decoder import OFF, ON
from torch_foundry.hf.wrapper import OF_PROMPTS, embeds_all
from torch_foundry.kvcache.hf_cache import check_capturable, in_flight
from torch_foundry.models.outputs import path_to_decoder, replaced_ids
from torch_foundry.models.rope import horizon_for
from torch_foundry.models.state import ModelPlan
from torch_foundry.sampling import Sampler, Settings

BY_DEFAULT = OVERLAPPED  # the least that leaves no gap on the device
KNOWN = frozenset({"attention_mask", "position_ids", "past_key_values", "logits_to_keep", "inputs_embeds", "tokenizer"})
REPLACED = {"prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill"}
RECORDED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
MOST_IDS = 2**24  # of all rows, for which the sampler has memory from the beginning
chosen_by_call: ContextVar[int | None] = ContextVar("sync_every", default=None)  # of generate(), while it runs


class Request:
    """One generation that our own loop can do."""

    def __init__(
        self,
        model: Any,
        plan: ModelPlan,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        config: Any,
        synced_gpus: bool,
        streamer: Any,
        model_kwargs: dict[str, Any],
    ) -> None:
        """Arguments as of `GenerationMixin._sample`. Raises Fallback; until `prefill` nothing has happened."""
        if not plan.state.enabled:
            raise Fallback("switched off")
        self.model, self.input_ids, self.config, self.streamer = model, input_ids, config, streamer
        self._model_kwargs = model_kwargs
        self.every = tokens_in_flight(config, plan.state.sync_every, streamer)
        check_request(model, config, synced_gpus, model_kwargs)
        settings, reason = Settings.from_generation_config(config, logits_processor)
        if settings is None:
            raise Fallback(reason)
        self.settings = settings
        pad = config._pad_token_tensor
        self.stops = StoppingCriteria(stopping_criteria, input_ids, None if pad is None else int(pad))
        assert self.stops.max_length is not None
        self.capacity = horizon_for(max(self.stops.max_length, input_ids.shape[1] + 1))
        if self.capacity * input_ids.shape[0] > MOST_IDS:  # as with a length that nobody means, such as 10**9
            raise Fallback(f"no memory is set aside for {self.stops.max_length} tokens a row")
        self.cache: DynamicCache = model_kwargs["past_key_values"]
        self.runner = DecodeRunner(model, plan, self.cache, input_ids.shape[0], model_kwargs)
        if replaced_ids(path_to_decoder(model)[-2]) and (settings.counts_tokens or settings.bans_sequences):
            raise Fallback("what may come next depends on earlier tokens, one of which may be an image's")
        self.runner.reserve_hint(self.stops.remaining)
        self.every = min(self.every, in_flight(self.cache) or self.every)

    def sampler(self) -> Sampler:
        """For the rows of the request."""
        return Sampler(
            self.settings,
            self.input_ids,
            vocab_size=self.model.lm_head.out_features,
            capacity=self.capacity,
            seed=None if self.settings.do_sample else 0,  # None: from torch, whose numbers greedy code leaves alone
        )

    def prefill(self) -> torch.Tensor:
        """Take the prompt in; returns its last logits [B, V]."""
        first = not self.config.is_assistant
        outputs = self.model._prefill(self.input_ids, self.config, self._model_kwargs, is_first_iteration=first)
        logits: torch.Tensor = outputs.logits[:, -1]
        return logits

    def result(self) -> Any:
        """What generate() returns for the tokens that `stops` has taken."""
        if self.streamer is not None:
            self.streamer.end()
        new = torch.tensor(self.stops.tokens, device="cpu")
        ids: Any = torch.cat([self.input_ids, new.to(self.input_ids.device)], dim=1)
        if self.config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=ids, past_key_values=self.cache)
        return ids


def without_usual_positions(input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments without `position_ids` if these are the usual ones, which the model counts by itself on the host,
    where a graph needs them. Other positions would have to be read from the device at each step.
    """
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
    config, of `patch()` or of the environment, in this order; default: 1 with a streamer, else 4.

    ValueError: not a whole number from 0. Fallback: 0, which asks for Hugging Face's loop.
    """
    every: Any = chosen_by_call.get()
    every = getattr(config, "sync_every", None) if every is None else every
    every = chosen if every is None else every
    every = environment.SYNC_EVERY.value() if every is None else every
    if every is None:
        return BY_DEFAULT if streamer is None else 1
    if not str(every).isdecimal():
        raise ValueError(f"sync_every={every!r}: expected a number of tokens, or 0 for Hugging Face's own loop")
    if int(every) == 0:
        raise Fallback("sync_every is 0")
    return int(every)


def check_request(model: Any, config: Any, synced_gpus: bool, model_kwargs: dict[str, Any]) -> None:
    """Raise Fallback for what the loop doesn't do."""
    if synced_gpus:
        raise Fallback("synced_gpus")
    for name in RECORDED:
        if getattr(config, name, None):
            raise Fallback(name)
    *around, decoder = path_to_decoder(model)
    known = KNOWN | OF_PROMPTS if len(around) > 1 else KNOWN
    for name, value in model_kwargs.items():
        usual = name in known or value is None or (value is True and name in ON) or (value is False and name in OFF)
        if not usual:
            raise Fallback(f"argument {name}")
    check_capturable(model_kwargs.get("past_key_values"))
    if getattr(decoder.config, "use_bidirectional_attention", None) not in (None, False, "vision"):
        raise Fallback("attention is not causal")
    if REPLACED & model.__dict__.keys():  # peft puts prompts into the cache that way
        raise Fallback("methods of the model were replaced")
    if len(around) > 1 and not embeds_all(model.config, decoder):
        raise Fallback("there is no embedding of an image's token")
    plan = decoder.decoder_plan()
    plan.check()
    if not plan.rotary.constant:
        raise Fallback("rope depends on the length of the text")
