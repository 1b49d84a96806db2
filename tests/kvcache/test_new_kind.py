"""A cache of a kind that nobody has seen: its own class, and nothing else is told of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers.cache_utils import Cache, DynamicLayer

import torch_foundry
from tests.hf.tiny_models import build, ids, padded
from torch_foundry.core.graph import captures
from torch_foundry.kvcache.base import CapturedStep, KVCache, KVLayer, KVSpec
from torch_foundry.kvcache.formats import PLAIN
from torch_foundry.kvcache.view import KVView

pytestmark = pytest.mark.cpu_only  # on the mock every call is watched, so no step is captured
GREEDY = {"do_sample": False}


class FixedLayer(KVLayer, DynamicLayer):
    """Room for `capacity` tokens, once and for all; keys and values side by side in one piece of memory."""

    capturable, formats = True, PLAIN

    def __init__(self, capacity: int) -> None:
        self._room, self.length, self._both = capacity, 0, torch.empty(0)
        super().__init__()

    def _part(self, index: int) -> torch.Tensor | None:
        return self._both[index, :, :, : self.length] if self.length else None

    keys = property(lambda self: self._part(0), lambda self, value: None)
    values = property(lambda self: self._part(1), lambda self, value: None)

    def fits(self, batch: int, spec: Any, dtype: torch.dtype, device: torch.device) -> bool:
        shape = (2, batch, spec.heads, self._room, spec.head_dim)
        have = self._both
        return not have.numel() or (have.shape, have.dtype, have.device) == (shape, dtype, device)

    def reserve(self, batch: int, spec: KVSpec, tokens: int, dtype: torch.dtype, device: torch.device) -> KVView:
        self.place(tokens)
        if not self._both.numel():
            with torch.inference_mode(False):
                self._both = torch.empty(2, batch, spec.heads, self._room, spec.head_dim, dtype=dtype, device=device)
        self.dtype, self.device, self.is_initialized = dtype, device, True
        return KVView(*self._both.unbind(), self.visible(tokens))

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        batch, heads, tokens, head_dim = key_states.shape
        view = self.reserve(batch, KVSpec(heads, head_dim), tokens, key_states.dtype, key_states.device)
        for to, new in ((view.k, key_states), (view.v, value_states)):
            to[:, :, self.length : self.length + tokens] = new
        self.commit(tokens)
        return self.keys, self.values

    def visible(self, tokens: int) -> int:
        return self.length + tokens

    def commit(self, tokens: int) -> None:
        self.length += tokens

    def checkpoint(self) -> int:
        return self.length

    def rollback(self, to: int) -> None:
        self.length = to

    def reset(self) -> None:
        self.length = 0

    def get_seq_length(self) -> int:
        return self.length

    @property
    def memory(self) -> tuple[torch.Tensor, ...]:
        return (self._both,) if self._both.numel() else ()

    seen = position = property(get_seq_length)
    capacity = property(lambda self: self._room)

    def place(self, tokens: int) -> tuple[int, int]:
        if self.length + tokens > self._room:
            raise RuntimeError(f"no room for {self.length + tokens} tokens in {self._room}")
        return self.length, 0

    def captured_view(self, batch: int, length: int, step: CapturedStep) -> KVView:
        k, v = self._both.unbind()
        return KVView(k, v, self._room, positions=step.positions, step=step.start, padding=step.padding)


class FixedCache(KVCache, Cache):
    def __init__(self, config: Any, capacity: int) -> None:
        super().__init__(layers=[FixedLayer(capacity) for _ in range(config.num_hidden_layers)])

    def cache_layer(self, index: int) -> Any:
        return self.layers[index]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def stock(request: Any) -> Any:
    return build(request.param)


@torch.no_grad()
@pytest.mark.parametrize("inputs", [{"input_ids": ids(1, 9)}, padded([4, 9, 7])], ids=["one", "padded"])
@pytest.mark.parametrize("options", [{}, {"sync_every": 1}, {"sync_every": 0}], ids=str)
def test_generate_is_captured(stock: Any, inputs: dict[str, Any], options: dict[str, Any]) -> None:
    model = torch_foundry.patch(copy.deepcopy(stock))
    want = stock.generate(**inputs, max_new_tokens=30, **GREEDY)
    cache = FixedCache(model.config, 128)
    with captures() as captured:
        assert torch.equal(
            model.generate(**inputs, max_new_tokens=30, past_key_values=cache, **GREEDY, **options), want
        )
    seen = torch_foundry.report(model)
    assert seen.steps == 29 and len(captured) == 1 and not seen.fallbacks, str(seen)
    assert cache.get_seq_length() == want.shape[1] - 1


@torch.no_grad()
def test_speculation(stock: Any) -> None:
    model, prompt = torch_foundry.patch(copy.deepcopy(stock)), torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
    tokens = model.generate(
        prompt, max_new_tokens=40, prompt_lookup_num_tokens=5, past_key_values=FixedCache(model.config, 128), **GREEDY
    )
    assert torch.equal(tokens, stock.generate(prompt, max_new_tokens=40, **GREEDY))
    assert torch_foundry.report(model).speculation.drafted


@torch.no_grad()
def test_stock_code_uses_it_as_well(stock: Any) -> None:
    tokens = stock.generate(ids(2, 9), max_new_tokens=20, past_key_values=FixedCache(stock.config, 64), **GREEDY)
    assert torch.equal(tokens, stock.generate(ids(2, 9), max_new_tokens=20, **GREEDY))


@torch.no_grad()
def test_what_does_not_fit_leaves_it_as_it_was(stock: Any) -> None:
    model = torch_foundry.patch(copy.deepcopy(stock))
    cache = FixedCache(model.config, 20)
    model(ids(1, 9), past_key_values=cache)
    with pytest.raises(RuntimeError, match="no room for 21 tokens in 20"):
        model(ids(1, 12), past_key_values=cache)
    assert cache.get_seq_length() == 9
