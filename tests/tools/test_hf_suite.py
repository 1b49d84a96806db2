"""transformers' own tests on patched models: what is a defect, which models are patched, and the document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from tests.hf.tiny_cases import ALL_FAMILIES, KIN
from tests.hf.tiny_models import settings
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
    source.write_text(
        "from transformers.utils import logging, no_such_name\nfrom .own import other\nfrom no_such_package import x\n"
    )
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


def test_an_excuse_is_for_one_test_of_one_family() -> None:
    test = "test_load_contiguous_weights"
    assert suite.excuse("gpt_oss", f"Test_gpt_oss::{test}")
    assert suite.excuse("gpt_oss", f"GptOssModelTest::{test} model{{'model': 'GptOssModel'}}"), "a part of one"
    assert suite.excuse("llama", f"Test_llama::{test}") is None
    assert suite.excuse("gpt_oss", f"Test_gpt_oss::{test}_too") is None


def test_folders_leave_out_what_all_models_share() -> None:
    def test() -> None: ...

    assert not plugin.is_shared(test)
    test.__module__ = "tests.test_modeling_common"
    assert plugin.is_shared(test)


def test_folders_of_a_checkout_are_those_of_our_configs(tmp_path: Path) -> None:
    for folder in ("granitemoehybrid", "llama", "qwen2_vl", "bert", "rwkv"):
        (tmp_path / "tests/models" / folder).mkdir(parents=True)
        (tmp_path / "tests/models" / folder / f"test_modeling_{folder}.py").touch()
    assert suite.families(tmp_path) == ["bert", "granitemoehybrid", "llama", "qwen2_vl"]


def test_a_checkout_says_its_version(tmp_path: Path) -> None:
    assert suite.version_of(tmp_path) == "unknown"
    (tmp_path / "src/transformers").mkdir(parents=True)
    (tmp_path / "src/transformers/__init__.py").write_text('x = 1\n__version__ = "5.16.0.dev0"\n')
    assert suite.version_of(tmp_path) == "5.16.0.dev0"


def test_the_document_is_what_was_counted() -> None:
    record, folders = (json.loads(path.read_text()) for path in (suite.RECORD, suite.FOLDERS))
    assert suite.DOCUMENT.read_text() == suite.document(record, folders)
    assert record.keys() == {*ALL_FAMILIES, *KIN}, "make test-hf UPDATE=1 FAMILIES=..."
    for rows, least in ((record, 100), (folders, 20)):
        assert all(least <= row["stock"] <= row["patched"] + row.get("excused", 0) for row in rows.values())
