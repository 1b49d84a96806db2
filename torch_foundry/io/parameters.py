"""Which parameter of a transformers model each tensor of a folder is: files have names that the models had once."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, NamedTuple

# One expert's matrix, by the names of Mixtral's files and of all others': (module, index, matrix).
_EXPERT = re.compile(r"^(.*\.experts)\.([0-9]{1,5})\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$")
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_COMPUTED = r"rotary_emb\.inv_freq$"  # in old files; the model computes it


class Place(NamedTuple):
    """Where a tensor belongs: the parameter, and for one of several tensors that make it, its number among them.

    stacked: they are matrices of experts, and become one in a new first dimension; otherwise rows of a matrix.
    """

    parameter: str
    part: int | None = None
    stacked: bool = False


class ParameterNames:
    """Names of the causal language model of a `model_type`, by transformers' own tables for it."""

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type

    @cached_property
    def _model(self) -> Any:
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.model_type])

    @property
    def decoder(self) -> str:
        """The type of the model that is made: of the decoder, where a folder has more than that."""
        name: str = self._model.config_class.model_type
        return name

    @property
    def inside(self) -> bool:
        """Whether a folder has more than the decoder."""
        return self.decoder != self.model_type

    @cached_property
    def _conversions(self) -> list[Any]:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        return get_checkpoint_conversion_mapping(self.decoder) or []

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
    def _ignored(self) -> re.Pattern[str]:
        return re.compile("|".join((_COMPUTED, *(self._model._keys_to_ignore_on_load_unexpected or ()))))

    def ignored(self, name: str) -> bool:
        """Whether the model has no use for the tensor `name`, as a vision tower's."""
        return self._ignored.search(name) is not None

    def find(self, name: str) -> Place:
        """The parameter that the tensor `name` is, or is a part of."""
        for renaming in self._renamings:
            name, _ = renaming.rename_source_key(name)
        if match := _EXPERT.match(name):
            module, index, matrix = match.groups()
            return Place(f"{module}.{_MIXTRAL.get(matrix, matrix)}", int(index), stacked=True)
        for join in self._joined:
            parameter, source = join.rename_source_key(name)
            if source is not None:
                return Place(parameter, join.source_patterns.index(source))
        return Place(name)
