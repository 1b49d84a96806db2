"""Prompts with images: what the model's processor makes of one, checked, and how it gets into pages of a cache.

A sound is an image here. The tokens up to the end of the last one are taken in together, by the model's own forward
pass on a cache that lasts as long as that: the tower, its features among the embeddings, masks and positions are stock
code's, for any wrapper of `models.families`. What its layers keep goes to the pages, and all further tokens are as
those of a text.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from torch_foundry.kvcache.hf_cache import kv_layer
from torch_foundry.kvcache.paged import PagedCache, PagedLayer
from torch_foundry.kvcache.recurrent import RecurrentLayer
from torch_foundry.models.decoder import DecoderModel
from torch_foundry.models.outputs import path_to_decoder, replaced_ids
from torch_foundry.models.swap import base_class

FEATURES = ("input_features", "pixel_values", "pixel_values_videos")  # one of them is there
TYPES = ("token_type_ids", "mm_token_type_ids")  # of each token: nonzero for those of images
PLACEHOLDERS = tuple(f"{kind}_token_{name}" for kind in ("audio", "image", "video") for name in ("id", "index"))
# arguments of a forward pass that are the engine's to give, or show something else
NOT_TAKEN = {
    "inputs_embeds", "labels", "logits_to_keep", "mm_encoder_outputs", "past_key_values", "per_layer_inputs",
    "position_ids", "use_cache",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Images:
    """The images of a prompt, and its tokens up to the end of the last one.

    end: how many those are. shift: position of any later token, less its number: below 0 where an image has fewer
    positions than tokens. digest: SHA-256 of what the model is shown, which text behind it does not change. inputs: of
    the forward pass.
    """

    end: int
    shift: int
    digest: bytes
    inputs: Mapping[str, Any]

    @staticmethod
    def of(prompt: Mapping[str, Any], ids: Sequence[int], model: Any, decoder: DecoderModel) -> Images | None:
        """Those of what a processor has returned, whose tokens are `ids`; None if it is a text alone.

        ValueError: for this model, or with this prompt, that can't be.
        """
        given = {name: value for name, value in prompt.items() if name != "input_ids" and value is not None}
        mask = given.pop("attention_mask", None)
        if mask is not None and not bool(torch.as_tensor(mask).all()):
            raise ValueError("prompt: expected one text without padding, got an attention_mask with zeros")
        if not any(name in given for name in FEATURES):
            return None
        around = path_to_decoder(model)[:-1]
        if len(around) == 1:
            raise ValueError(f"prompt: {base_class(type(model)).__name__} is shown no images or sounds")
        stock: Any = base_class(type(model))
        known = inspect.signature(stock.forward).parameters.keys() - NOT_TAKEN
        for name in given.keys() & set(TYPES) - known:  # some tokenizers give them to all models
            del given[name]
        if unknown := given.keys() - known:
            raise ValueError(f"prompt: expected what the model's processor returns, got {min(unknown)} as well")
        tokens = torch.tensor([ids])
        end = _end(tokens, given, model.config, replaced_ids(around[-1]))
        if end == len(ids):
            raise ValueError("prompt: expected text behind the last image or sound")
        given = {
            name: value.to(decoder.device) if isinstance(value, Tensor) else value for name, value in given.items()
        }
        inputs = {"input_ids": tokens.to(decoder.device), **given}
        positions = _positions(around[-1], inputs, decoder.rotary.mrope)
        sections = decoder.rotary.sections(positions, 1)
        behind = sections[..., 0, end:] - torch.arange(end, len(ids), device=decoder.device)
        shift = int(behind.max())
        if shift > 0 or shift != int(behind.min()):
            raise ValueError("prompt: expected positions of text behind the last image, none beyond the tokens' number")
        inputs = {name: value[:, :end] if name in ("input_ids", *TYPES) else value for name, value in inputs.items()}
        return Images(end, shift, _digest(inputs), inputs | {"position_ids": positions[..., :end]})

    def read(self, name: Any, model: Any, decoder: DecoderModel, cache: PagedCache) -> None:
        """Take in the first `end` tokens of the sequence `name` of `cache`, in which there is room for them."""
        text = DynamicCache(config=decoder.config)
        # pages keep all tokens: later prompts may go on from any of them
        text.layers = [DynamicLayer() if getattr(layer, "is_sliding", False) else layer for layer in text.layers]
        given = dict(self.inputs)
        ids = given.pop("input_ids")
        options: dict[str, Any] = {"past_key_values": text, "attention_mask": torch.ones_like(ids), "use_cache": True}
        inputs = model.prepare_inputs_for_generation(ids, is_first_iteration=True, logits_to_keep=1, **options, **given)
        model(**inputs, return_dict=True)
        table = cache.tables([name], decoder.device)
        for i, paged in enumerate(cache.layers):
            layer: Any = kv_layer(text, i, decoder.state.kv_cache)
            if isinstance(paged, PagedLayer):
                for pool, stored in zip(paged.pools, (layer.keys, layer.values), strict=True):
                    pool.write(stored, table, 0)
            else:
                assert isinstance(layer, RecurrentLayer)
                at = cache.manager.states.slot(name, self.end)
                for states, newest in zip(paged.memory, layer.stored_tensors().values(), strict=True):
                    states[at].copy_(newest[0])


def _end(tokens: Tensor, given: Mapping[str, Any], config: Any, replaced: Iterable[int]) -> int:
    """How many of `tokens` [1, L] there are up to the last one of an image, or of those that steps don't embed."""
    marked = torch.zeros_like(tokens, dtype=torch.bool)
    for name in PLACEHOLDERS:
        if (placeholder := getattr(config, name, None)) is not None:
            marked |= tokens == placeholder
    if not marked.any():
        raise ValueError("prompt: expected the tokens of an image or a sound, which the model's processor puts there")
    for name in given.keys() & set(TYPES):
        if getattr(given[name], "shape", None) != tokens.shape:
            raise ValueError(f"prompt: {name}: expected a tensor {list(tokens.shape)}")
        marked |= given[name].cpu() != 0
    marked |= torch.isin(tokens, torch.tensor(sorted(replaced)))
    return 1 + int(marked[0].nonzero().max())


def _positions(wrapper: Any, inputs: Mapping[str, Any], mrope: bool) -> Tensor:
    """Of each token [1, L]; with `mrope` [4, 1, L], by its number, and by time, height and width, unless the wrapper
    knows no others than numbers."""
    ids = inputs["input_ids"]
    numbers = torch.arange(ids.shape[1], device=ids.device)[None]
    if not mrope or not hasattr(wrapper, "get_rope_index"):
        return numbers
    if "mm_token_type_ids" not in inputs:
        raise ValueError("prompt: expected mm_token_type_ids, which say where images are")
    try:
        sections, _ = wrapper.get_rope_index(attention_mask=torch.ones_like(ids), **inputs)
    except (IndexError, RuntimeError, StopIteration, TypeError) as error:
        raise ValueError(f"prompt: its images are not those that its tokens speak of: {error}") from error
    return torch.cat([numbers[None], sections])


def _digest(given: Mapping[str, Any]) -> bytes:
    """SHA-256 of names, types, shapes and values."""
    found = hashlib.sha256()
    for name, value in sorted(given.items()):
        if not isinstance(value, Tensor):
            found.update(repr((name, value)).encode())
            continue
        found.update(repr((name, value.dtype, list(value.shape))).encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.digest()
