"""transformers' own tests on patched models: what is a defect, which models are patched, and the document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from tests.hf.tiny_models import ALL_FAMILIES, KIN, settings
from tools.hf_suite import __main__ as suite
from tools.hf_suite import plugin
from torch_foundry.kvcache.recurrent import RecurrentLayer
from torch_foundry.models.swap import is_swapped


def test_what_passes_on_stock_alone_is_a_defect() -> None:
    stock = {name: ["passed", ""] for name in "abc"} | {"d": ["failed", "E x"], "e": ["skipped", ""]}
    patched = {"a": ["passed", ""], "b": ["failed", "E y"], "d": ["failed", "E x"], "e": ["failed", "E z"]}
    assert suite.defects(stock, patched) == {"b": "failed E y"}, "parts that a patched model does not have are none"
    assert suite.defects(stock, patched | {"a": ["skipped", ""]}) == {"a": "skipped ", "b": "failed E y"}


def test_models_are_patched_where_tests_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("from_pretrained", "to", "eval"):
        monkeypatch.setattr(PreTrainedModel, name, PreTrainedModel.__dict__.get(name, nn.Module.eval), raising=False)
    plugin.patch_models()
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(settings("llama"))
    assert not is_swapped(model)
    assert model.to("cpu") is model and is_swapped(model)
    model.save_pretrained(tmp_path)
    assert is_swapped(LlamaForCausalLM.from_pretrained(tmp_path))
    assert is_swapped(LlamaForCausalLM(settings("llama")).eval())


def test_names_that_a_version_lacks_skip_the_test(tmp_path: Path) -> None:
    source = tmp_path / "test_x.py"
    source.write_text("from transformers.utils import logging, no_such_name\nfrom .own import other\n")
    from transformers import utils

    try:
        assert plugin.add_missing_names([source]) == ["transformers.utils.no_such_name"]
        with pytest.raises(pytest.skip.Exception, match=r"no transformers\.utils\.no_such_name"):
            utils.no_such_name()  # type: ignore[attr-defined]
    finally:
        del utils.no_such_name  # type: ignore[attr-defined]


def test_layers_with_recurrent_states_are_those_that_tests_know() -> None:
    assert plugin.stock_type(RecurrentLayer()) is LinearAttentionLayer
    assert plugin.stock_type(LinearAttentionLayer()) is LinearAttentionLayer
    assert plugin.stock_type(DynamicLayer()) is DynamicLayer


def test_the_document_is_what_was_counted() -> None:
    record = json.loads(suite.RECORD.read_text())
    assert suite.DOCUMENT.read_text() == suite.document(record)
    assert record.keys() <= {*ALL_FAMILIES, *KIN}, "python -m tools.hf_suite --update"
    assert all(row["stock"] >= 100 and row["stock"] <= row["patched"] for row in record.values())
