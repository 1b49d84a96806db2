"""transformers' tests that all its models share, on a tiny model of each family of ours (HF_SUITE_FAMILIES, by spaces).

The tests come from transformers' source distribution (HF_SUITE_SDIST: its folder), which has them, but neither those of
`generate()` nor what the folders of models add.
"""

from __future__ import annotations

import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.hf import tiny_models
from tools.hf_suite.plugin import LEFT_OUT, leave_out

PACKAGE = "hf_common"  # the folder `tests` of the distribution, which has a name that ours has too
_package = sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
_package.__path__ = [str(Path(os.environ["HF_SUITE_SDIST"]) / "tests")]
leave_out(PACKAGE, (*LEFT_OUT, "generation.test_utils"))
from hf_common import test_modeling_common as common  # noqa: E402


class ModelTester:
    """What the tests ask of a model's family: its config, inputs, and sizes."""

    batch_size, seq_length, is_training = 3, 7, True

    def __init__(self, family: str) -> None:
        self.family = family
        config = self.get_config()
        self.num_hidden_layers = config.num_hidden_layers
        self.num_attention_heads = config.num_attention_heads
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size

    def get_config(self) -> Any:
        return tiny_models.settings(self.family)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        ids = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size - 3) + 3  # none is special
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _test_case(family: str) -> type:
    config = tiny_models.settings(family)
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    classes = (getattr(transformers, names.get(config.model_type, tiny_models.case(family).model)),)

    def set_up(self: Any) -> None:
        self.model_tester = ModelTester(family)

    body = {"setUp": set_up, "all_model_classes": classes, "has_attentions": True, "__module__": __name__}
    return type(f"Test_{family}", (common.ModelTesterMixin, unittest.TestCase), body)


for _family in os.environ["HF_SUITE_FAMILIES"].split():
    globals()[f"Test_{_family}"] = _test_case(_family)
