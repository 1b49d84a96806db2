"""Which parameter of a transformers model each tensor of a folder is: files have names that the models had once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import torch

from torch_foundry.models.families import WRAPPERS

# One expert's matrix, by the names of Mixtral's files and of all others': (module, index, matrix).
_EXPERT = re.compile(r"^(.*\.experts)\.([0-9]{1,5})\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$")
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
# Names of mlx's models that transformers never had, by the decoder's type: pattern, parameter, which part of that.
_BY_MLX: dict[str, tuple[tuple[str, str, int | None], ...]] = {
    "granitemoehybrid": (
        (r"\.mlp\.gate_proj\.", ".shared_mlp.input_linear.", 0),
        (r"\.mlp\.up_proj\.", ".shared_mlp.input_linear.", 1),
        (r"\.mlp\.down_proj\.", ".shared_mlp.output_linear.", None),
    ),
    "kimi_linear": (
        *((rf"\.{letter}_conv\.conv\.", ".conv1d.", part) for part, letter in enumerate("qkv")),
        (r"\.mlp\.e_score_correction_bias", ".mlp.gate.e_score_correction_bias", None),
    ),
    "laguna": ((r"\.mlp\.gate\.proj\.", ".mlp.gate.", None),),
    "lfm2_moe": (
        (r"\.feed_forward\.gate_proj\.", ".feed_forward.w1.", None),
        (r"\.feed_forward\.down_proj\.", ".feed_forward.w2.", None),
        (r"\.feed_forward\.up_proj\.", ".feed_forward.w3.", None),
    ),
    "nemotron_h": (
        (r"\.experts\.fc1$", ".experts.up_proj", None),
        (r"\.experts\.fc2$", ".experts.down_proj", None),
    ),
}
_OF_DECODER = ("model.", "lm_head.")
# mlx's models that are shown images by the same towers as transformers': what decoder and tower are called here.
TOWERS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("gemma3", "gemma4", "gemma4_unified", "internvl", "lfm2_vl"), ("language_model", "vision_tower")),
    **dict.fromkeys(("llava", "llava_next", "llava_onevision", "mistral3"), ("language_model", "vision_tower")),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), ("language_model", "visual")),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), ("language_model", "visual")),
    **dict.fromkeys(("idefics3", "smolvlm"), ("text_model", "vision_model")),
}
_IN_WRAPPERS = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.(model\.)?", "model.{decoder}."),
    (r"^vision_(tower|model)\.(vision_model\.)?", "model.{tower}."),
    (r"^(?!model\.|lm_head\.)", "model."),
)
_COMPUTED = r"rotary_emb\.inv_freq$"  # in old files; the model computes it
COUNTED = "num_batches_tracked"  # an integer of a BatchNorm, which training alone reads


class Place(NamedTuple):
    """Where a tensor belongs: the parameter, and for one of several tensors that make it, its number among them.

    stacked: they are matrices of experts, and become one in a new first dimension; otherwise rows of a matrix.
    """

    parameter: str
    part: int | None = None
    stacked: bool = False


def class_name(model_type: str, *, images: bool = False) -> str | None:
    """The class of transformers for a folder's `model_type`: a causal language model, or one that is shown images or
    hears sounds.

    images: only the latter.
    """
    from transformers.models.auto import modeling_auto

    shown: str | None = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model_type)
    if shown is None and any(key.startswith(f"{model_type}.") for key in WRAPPERS):
        hear = (
            modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
            modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        )
        shown = next((names[model_type] for names in hear if model_type in names), None)
    return shown if images else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, shown)


def is_whole(model_type: str) -> bool:
    """Whether that is a model of all that a folder has, not of the decoder alone (Qwen3.5's)."""
    import transformers

    name = class_name(model_type)
    return name is not None and getattr(transformers, name).config_class is transformers.CONFIG_MAPPING[model_type]


def has_tower(names: Iterable[str]) -> bool:
    """Whether these are tensors of mlx's of more than a decoder."""
    return any(not name.startswith((*_OF_DECODER, "language_model.")) for name in names)


class ParameterNames:
    """Names of the model of a `model_type`, by transformers' own tables for it.

    model: the model itself, as parts of it may have tables of their own. alone: the folder has one that is shown
    images, of which this is the decoder.
    """

    def __init__(self, model_type: str, model: Any = None, *, alone: bool = False) -> None:
        self.model_type, self.model, self.alone = model_type, model, alone

    @cached_property
    def _model(self) -> Any:
        import transformers

        return self.model or getattr(transformers, str(class_name(self.model_type)))

    @property
    def decoder(self) -> str:
        """The type of the decoder, where a model has more than that."""
        config = self._model.config_class if self.model is None else self.model.config.get_text_config()
        name: str = config.model_type
        return name

    @cached_property
    def _conversions(self) -> list[Any]:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping as conversions_of
        from transformers.conversion_mapping import get_model_conversion_mapping

        if self.model is not None:
            return get_model_conversion_mapping(self.model, add_legacy=False)
        return conversions_of(self._model.__name__) or conversions_of(self.decoder) or []

    @cached_property
    def _renamings(self) -> list[Any]:
        from transformers.core_model_loading import WeightRenaming

        return [each for each in self._conversions if isinstance(each, WeightRenaming)]

    @cached_property
    def _joined(self) -> list[Any]:
        """What makes one matrix of several, one below the other."""
        from transformers.core_model_loading import Concatenate, WeightConverter

        found = [each for each in self._conversions if isinstance(each, WeightConverter)]
        return [c for c in found if [(type(op), getattr(op, "dim", 0)) for op in c.operations] == [(Concatenate, 0)]]

    @cached_property
    def _turning(self) -> list[Any]:
        """What turns matrices of experts [E, K, N] if they have not the parameter's shape."""
        from transformers.core_model_loading import Transpose, WeightConverter

        found = [each for each in self._conversions if isinstance(each, WeightConverter)]
        return [c for c in found if any(isinstance(op, Transpose) and op.check_dims for op in c.operations)]

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: each.shape for name, each in self._model.named_parameters()}

    def turned(self, parameter: str, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape has rows of the matrices `parameter` as columns."""
        if len(shape) != 3 or not any(turn.rename_source_key(parameter)[1] for turn in self._turning):
            return False
        own = self._shapes.get(parameter, shape)
        return shape != own and (shape[0], shape[2], shape[1]) == own

    @cached_property
    def _names(self) -> set[str]:
        return set() if self.model is None else set(self.model.state_dict())

    @cached_property
    def _ignored(self) -> re.Pattern[str]:
        return re.compile("|".join((_COMPUTED, *(self._model._keys_to_ignore_on_load_unexpected or ()))))

    def ignored(self, name: str) -> bool:
        """Whether the model has no use for the tensor `name`, as a vision tower's."""
        outside = self.alone and not name.startswith(_OF_DECODER)
        unused = self._ignored.search(name) is not None and self.find(name).parameter not in self._names
        return outside or unused

    def of_mlx(self, name: str) -> str:
        """The name that transformers once had for what mlx calls `name`."""
        if self.alone:
            return re.sub(r"^(model\.)?language_model\.", r"\1", name)
        if self.model is not None and self.model_type in TOWERS:  # None: of an MTP head
            decoder, tower = TOWERS[self.model_type]
            for pattern, place in _IN_WRAPPERS:
                name = re.sub(pattern, place.format(decoder=decoder, tower=tower), name)
        return name

    def find(self, name: str) -> Place:
        """The parameter that the tensor `name` is, or is a part of."""
        for renaming in self._renamings:
            name, _ = renaming.rename_source_key(name)
        for pattern, parameter, part in _BY_MLX.get(self.decoder, ()):
            if re.search(pattern, name):
                return Place(re.sub(pattern, parameter, name), part)
        if match := _EXPERT.match(name):
            module, index, matrix = match.groups()
            return Place(f"{module}.{_MIXTRAL.get(matrix, matrix)}", int(index), stacked=True)
        for join in self._joined:
            parameter, source = join.rename_source_key(name)
            if source is not None:
                return Place(parameter, join.source_patterns.index(source))
        inside = f"{self._model.base_model_prefix}.{name}"  # saved without an output layer, as GPT-2 was
        return Place(inside if inside in self._names and name not in self._names else name)
