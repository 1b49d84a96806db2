"""The replaced decoder model: forward passes of a few tokens on a filled cache replay a graph."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core import devices
from torch_foundry.core.errors import Fallback
from torch_foundry.core.interrupts import uninterruptible
from torch_foundry.generation.step_graph import StepGraph, prompt_bytes
from torch_foundry.generation.step_state import CacheLayers, StepState, contiguous_step
from torch_foundry.hf import kept_cache
from torch_foundry.hf.pretrained import ModelMixin
from torch_foundry.hf.wrapper import ids_of
from torch_foundry.kvcache.hf_cache import check_capturable, kv_layer
from torch_foundry.kvcache.room import check_growth
from torch_foundry.models.calls import computed
from torch_foundry.models.decoder import DecoderModel
from torch_foundry.models.outputs import decoder_of
from torch_foundry.models.state import ModelState
from torch_foundry.nn.linear import MAX_GEMV_ROWS

# `tokenizer` and `logits_to_keep` are passed down by `transformers serve` and LLaVA-OneVision, without meaning here
USED = frozenset({"input_ids", "attention_mask", "position_ids", "past_key_values", "tokenizer", "logits_to_keep"})
OFF = frozenset({"output_attentions", "output_hidden_states", "output_router_logits"})
ON = frozenset({"use_cache", "return_dict", "is_causal"})
MASKS = frozenset({torch.int64, torch.int32, torch.bool, torch.uint8})


class DecoderMixin(ModelMixin):
    """A model of `families.DECODERS`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of `ModelMixin`; its result goes to `collect_hidden`."""
        if not torch.compiler.is_compiling():
            kept_cache.forget(kwargs.get("past_key_values"))
        result = super().__call__(*args, **kwargs)
        if not torch.compiler.is_compiling():
            computed(result[0])
        return result

    def _by_a_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Up to eight tokens on a filled `DynamicCache`."""
        cache = kwargs.get("past_key_values")
        if cache is None:
            raise Fallback("no cache that is known")
        check_capturable(cache)
        given = ids_of(self, kwargs) if not args else {"input_ids": args[0], **kwargs}
        if len(args) > 1 or (args and "input_ids" in kwargs):
            raise Fallback("positional arguments")
        ids = given.get("input_ids")
        if ids is None:
            raise Fallback("the caller embeds the tokens (inputs_embeds)")
        if type(ids) is not torch.Tensor or ids.dim() != 2:
            raise Fallback("ids are not a tensor of [batch, tokens]")
        plan = self.decoder_plan()
        check_arguments(self, given)
        seen = cache.get_seq_length()
        hidden = step(plan, cache, ids, given.get("attention_mask"), given.get("position_ids"), seen)
        # the graph's own memory has the next token's values before long
        return plan.decoder.output(last_hidden_state=hidden.clone(), past_key_values=cache)

    def _by_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = kwargs if not args else {"input_ids": args[0], **kwargs}
        tokens = given.get("input_ids", given.get("inputs_embeds"))
        if isinstance(tokens, torch.Tensor) and not devices.of(tokens.device).host_memory:
            with contextlib.suppress(Fallback):  # then each layer looks for itself
                check_prompt(self.decoder_plan(), given.get("past_key_values"), *tokens.shape[:2])
        cache, known = given.get("past_key_values"), decoder_of(self)  # type: ignore[arg-type]
        untold = len(args) < 2 and given.get("position_ids") is None and known is not None and not known.counts
        if untold and cache is not None and isinstance(tokens, torch.Tensor):
            seen = cache.get_seq_length()  # as a graph counts them
            kwargs = {**kwargs, "position_ids": torch.arange(seen, seen + tokens.shape[1], device=tokens.device)[None]}
        return super()._by_layers(args, kwargs)

    def _make_plan(self, state: ModelState) -> DecoderModel:
        return DecoderModel(self, state)

    def decoder_plan(self) -> DecoderModel:
        """See `plan_of`."""
        return self.model_plan()  # type: ignore[return-value]


def check_arguments(module: Any, kwargs: dict[str, Any]) -> None:
    """Raise Fallback for what only the layers, one by one, can do."""
    for name, value in kwargs.items():
        if name in USED or value is None or (value is False and name in OFF) or (value is True and name in ON):
            continue
        raise Fallback(f"argument {name}")
    settings = object.__getattribute__(module.config, "__dict__")  # the config's own __getattribute__ is slow
    if kwargs.get("use_cache") is None and not settings.get("use_cache", True):
        raise Fallback("use_cache is off")
    if settings.get("use_bidirectional_attention") not in (None, False, "vision"):  # that is only seen by images
        raise Fallback("attention is not causal")
    if any(map(settings.get, ("output_hidden_states", "_output_attentions", "output_router_logits"))):
        raise Fallback("outputs of layers are asked for")


def check_prompt(plan: DecoderModel, cache: Any, batch: int, tokens: int) -> None:
    """DoesNotFit unless the device has room for these tokens in `cache` and for what computes them. Raises Fallback for
    a model or a cache that isn't known."""
    plan.check()
    found = [] if cache is None else [kv_layer(cache, i, plan.state.kv_cache) for i in plan.owners]
    parts = [part for layer in found for part in layer.parts]
    layers = list(zip(parts, plan.specs[: len(parts)], strict=True))
    check_growth(layers, batch, tokens, plan.dtype, plan.device, lambda n: prompt_bytes(plan, batch * n))


def check_positions(plan: DecoderModel, positions: torch.Tensor | None, tokens: int) -> None:
    """Raise Fallback if a model that learned its positions lacks one of these, or of as many tokens. Positions that lie
    on a device are not read: the rows of others are NaN."""
    if (most := plan.most_positions) is None:
        return
    beyond = tokens > most
    if positions is not None and not positions.is_meta and devices.of(plan.device).host_memory:
        beyond = beyond or not 0 <= int(positions.min()) <= int(positions.max()) < most
    if beyond:
        raise Fallback(f"positions beyond the {most} that the model has")


@uninterruptible()
def step(
    plan: DecoderModel,
    cache: DynamicCache,
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor | None,
    seen: int,
) -> torch.Tensor:
    """The last norm's result [B, L, hidden] for `ids` behind the `seen` tokens of `cache`. Raises Fallback."""
    batch, length = ids.shape
    plan.check()
    if batch * length > MAX_GEMV_ROWS:
        raise Fallback(f"more than {MAX_GEMV_ROWS} tokens in a step")
    device = plan.device
    if ids.device != device or ids.is_floating_point():
        raise Fallback("ids are not integers on the model's device")
    if devices.of(device).host_memory and not 0 <= int(ids.min()) <= int(ids.max()) < plan.vocabulary:
        raise Fallback("ids outside the vocabulary")  # refused by the op: a graph looks at no values
    if mask is not None and (
        type(mask) is not torch.Tensor or mask.dtype not in MASKS or mask.shape != (batch, seen + length)
    ):
        raise Fallback("mask is not one of [batch, tokens]")
    if mask is not None and length > 1 and plan.recurrent and not bool(mask[:, seen:].all()):
        raise Fallback("padding among new tokens of recurrent layers")
    if length > 1 and plan.prompts_differ:
        raise Fallback("several tokens, of a prompt, in which step sizes have bounds")
    if positions is None and mask is not None and plan.decoder.mask_counts:
        if not bool(mask[:, seen:].all()):
            raise Fallback("padding among new tokens, whose positions the mask counts")
        positions = mask.cumsum(1)[:, seen:] - 1
    if positions is not None:
        positions = plan.rotary.sections(positions, batch)
        if positions.shape[-1] != length:
            raise Fallback("positions are not [batch, tokens]")
    elif not plan.rotary.constant:
        raise Fallback("rope depends on the length of the text")
    check_positions(plan, positions, seen + length)

    owned = plan.graphs.of(cache)
    layers = owned.memory
    if layers is None or not layers.belong_to(cache):
        layers = owned.memory = CacheLayers(cache, plan.owners, plan.state.kv_cache)
        owned.clear()
    if not layers.place(plan, batch, length):
        owned.clear()
    key = (batch, length, mask is not None, positions is not None)
    graph: StepGraph[StepState] | None = owned.find(key, seen + length)
    if graph is None:
        with torch.inference_mode(False):  # inference tensors could only be written to in inference mode
            own = torch.empty(batch, length, dtype=torch.int64, device=device)
        given: dict[str, Any] = {"masked": mask is not None, "given": positions is not None}
        graph = contiguous_step(plan, layers, own, positions=seen + length, **given)
        plan.graphs.put(cache, key, graph)
    state = graph.inputs
    state.ids.copy_(ids)
    if positions is None:
        state.seek(layers.starts, list(range(seen, seen + length)) * batch)
    else:
        state.follow(layers.starts, positions)
    if mask is not None:
        state.set_mask(mask)
    hidden = graph.run()
    layers.count(length)
    return hidden
