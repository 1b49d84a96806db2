"""The replaced body of a wrapper: stock code, which tells the decoder inside of it which ids a step embeds."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from torch_foundry.hf.pretrained import ModelMixin
from torch_foundry.models.outputs import replaced_ids, wrapper_of

# Features of images, videos and sounds, or what they are made from, and which tokens see each other both ways.
FEATURES = frozenset(
    {
        "input_features",
        "mm_encoder_outputs",
        "per_layer_inputs",
        "pixel_values",
        "pixel_values_videos",
        "token_type_ids",
    }
)
# What is read along with those, and what says where tokens stand, which the decoder is told as `position_ids`.
ABOUT_FEATURES = frozenset(
    {
        "batch_num_images",
        "feature_attention_mask",
        "image_grid_thw",
        "image_position_ids",
        "image_sizes",
        "image_sizes_videos",
        "input_features_mask",
        "mm_token_type_ids",
        "num_frames_per_video",
        "pixel_attention_mask",
        "second_per_grid_ts",
        "video_grid_thw",
        "video_position_ids",
        "vision_aspect_ratio",
        "vision_feature_layer",
        "vision_feature_select_strategy",
    }
)
OF_PROMPTS = FEATURES | ABOUT_FEATURES  # generate() drops them behind the prompt, or they say that new tokens are text
OF_TEXT = frozenset(
    {"attention_mask", "input_ids", "logits_to_keep", "past_key_values", "position_ids", "return_dict", "use_cache"}
)

_step: ContextVar[tuple[Any, dict[str, Any]] | None] = ContextVar("step", default=None)


class WrapperMixin(ModelMixin):
    """A model of `families.WRAPPERS`."""

    def _by_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = kwargs if not args else {"input_ids": args[0], **kwargs}
        token = _step.set(self._text(given) if len(args) < 2 else None)
        try:
            return super()._by_layers(args, kwargs)
        finally:
            _step.reset(token)

    def _text(self: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """The decoder, and its arguments in place of embeddings, if these will be those of ids alone."""
        ids, known = kwargs.get("input_ids"), wrapper_of(self)
        if known is None or ids is None or self._forward_pre_hooks or "forward" in self.__dict__:
            return None
        for name, value in kwargs.items():
            nothing = value is None or value is False or (type(value) is dict and not value)
            if not nothing and name not in OF_TEXT and name not in ABOUT_FEATURES:
                return None
        decoder = self._modules.get(known.decoder)
        if decoder is None or not embeds_all(self.config, decoder):
            return None
        replaced = frozenset() if ids.is_meta else replaced_ids(self)  # where kernels are recorded ids are of text
        if replaced and not replaced.isdisjoint(ids.flatten().tolist()):
            return None
        return decoder, {"input_ids": ids, "attention_mask": kwargs.get("attention_mask")}


def embeds_all(config: Any, decoder: Any) -> bool:
    """Whether there is an embedding of an image's token. If not, Gemma 3 gives it another id on the way."""
    return bool(getattr(config, "image_token_id", 0) < decoder.config.vocab_size)


def ids_of(decoder: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass of `decoder`, with ids where a wrapper has embedded them."""
    step = _step.get()
    if step is None or step[0] is not decoder or kwargs.get("inputs_embeds") is None:
        return kwargs
    return {**kwargs, **step[1], "inputs_embeds": None, "per_layer_inputs": None}
