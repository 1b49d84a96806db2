"""What the oldest transformers that we run with doesn't have is done without."""

from __future__ import annotations

import importlib

import pytest
from transformers import cache_utils

from torch_foundry.kvcache import stock


def test_where_no_layer_keeps_nothing_none_is_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = cache_utils.DynamicLayer(), getattr(cache_utils, "DummyLayer", object)()
    monkeypatch.delattr(cache_utils, "DummyLayer", raising=False)
    try:
        importlib.reload(stock)
        assert not any(isinstance(layer, stock.DummyLayer) for layer in layers)
    finally:
        monkeypatch.undo()
        importlib.reload(stock)
