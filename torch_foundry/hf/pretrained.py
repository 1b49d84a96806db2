"""The class of a patched model as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torch_foundry.core import devices, memory
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.out_of_memory import Described, conclude, described, explain, is_out_of_memory
from torch_foundry.kvcache.undo import Checkpoint
from torch_foundry.models.calls import forward_pass, is_step, replayed
from torch_foundry.models.state import ModelPlan, ModelState, plan_of
from torch_foundry.models.swap import FoundryModule
from torch_foundry.nn import FoundryEmbedding, FoundryLinear
from torch_foundry.nn.linear import MAX_GEMV_ROWS


class ModelMixin(FoundryModule):
    """Methods of a swapped `PreTrainedModel`, usually an `...ForCausalLM`."""

    @property
    def dtype(self: Any) -> torch.dtype:
        """As of `PreTrainedModel`; of the embedding's rows, if weights are all packed and norms have none."""
        return next(t for t in _weights(self) if t.is_floating_point()).dtype

    @property
    def device(self: Any) -> torch.device:
        """The first parameter's; the embedding's, if there is none."""
        return next(_weights(self)).device

    def model_plan(self) -> ModelPlan:
        """See `plan_of`."""
        plan: ModelPlan = plan_of(self, type(self)._make_plan)
        return plan

    def _make_plan(self, state: ModelState) -> ModelPlan:
        return ModelPlan(state)

    # not `forward`, whose signature transformers reads
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; but a call that fails half way leaves a cache that was passed in as it was. Each is counted."""
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        if not self._foundry.state.enabled:
            return self._by_layers(args, kwargs)
        plan, why = self.model_plan(), None
        if is_step(args, kwargs):
            try:
                result = self._by_a_graph(args, kwargs)
            except Fallback as fallback:
                why = str(fallback)
            else:
                replayed()
                return result
        with forward_pass(plan, why):
            return self._by_layers(args, kwargs)

    def _by_a_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a step. Raises Fallback."""
        raise Fallback(f"{self._foundry_base.__name__} is not a decoder that graphs are known for")

    def _by_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cache = kwargs.get("past_key_values")
        undo = Checkpoint.of(cache)
        try:
            _check_logits(self, args, kwargs)
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:  # an interrupt too
            undone = undo is not None and undo.run()
            if is_out_of_memory(error):
                explain(error, self._foundry_base.__name__, _tensors(self, args, kwargs))
                conclude(error, cache.get_seq_length() if undone else None)  # type: ignore[union-attr]
            raise

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        forget(self)  # type: ignore[arg-type]
        # .to(device) copies buffers one by one; a packed weight that two modules share has to stay one
        shared = shared_packed(self)  # type: ignore[arg-type]
        result = super()._apply(fn, recurse)  # type: ignore[misc]
        for first, *others in shared:
            for other in others:
                other._buffers["weight"] = first._buffers["weight"]
        return result

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As stock, and forgets graphs: they refer to the old weights."""
        forget(self)  # type: ignore[arg-type]
        return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def tie_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; packed weights stay tied as they are."""
        if self._foundry.state.quantized:
            return None
        return super().tie_weights(*args, **kwargs)  # type: ignore[misc]

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; packed embeddings cannot be resized."""
        if self._foundry.state.quantized and args + tuple(kwargs.values()) != ():
            raise RuntimeError("packed embeddings cannot be resized; torch_foundry.dequantize(model) makes them dense")
        return super().resize_token_embeddings(*args, **kwargs)  # type: ignore[misc]


def _tensors(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Described]:
    """The large tensors of a forward pass of a whole model, by name."""
    given = {"input_ids": args[0], **kwargs} if args else kwargs
    tensors = {n: described(given[n]) for n in ("input_ids", "inputs_embeds") if isinstance(given.get(n), torch.Tensor)}
    if tensors and model.get_output_embeddings() is not None:
        (batch, tokens, *_), _ = next(iter(tensors.values()))
        keep = kwargs.get("logits_to_keep")
        rows = keep if isinstance(keep, int) and keep else tokens
        tensors["logits"] = ([batch, rows, model.config.get_text_config().vocab_size], model.dtype)
    return tensors


def _check_logits(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """DoesNotFit unless the device has room for the logits of a prompt."""
    if devices.of(model.device).host_memory:
        return
    tensors = _tensors(model, args, kwargs)
    if "logits" in tensors and tensors["logits"][0][1] > MAX_GEMV_ROWS:
        shape, dtype = tensors["logits"]
        advice = "logits_to_keep=1 computes those of the last token alone."
        memory.check(model.device, math.prod(shape) * dtype.itemsize, f"logits {shape}", lambda free: advice)


def forget(model: nn.Module) -> None:
    """Drop what models keep for the next generation, when weights are replaced: it would keep the old ones alive."""
    for module in model.modules():
        plan = module.__dict__.get("_foundry")
        if isinstance(plan, ModelPlan):
            plan.forget()


def shared_packed(model: nn.Module) -> list[list[nn.Module]]:
    """Groups of modules that share one packed weight."""
    groups: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            groups.setdefault(id(module.weight), []).append(module)
    return [group for group in groups.values() if len(group) > 1]


def _weights(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from (module.anchor for module in model.modules() if isinstance(module, FoundryLinear | FoundryEmbedding))
