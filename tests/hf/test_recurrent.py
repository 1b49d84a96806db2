"""A model with recurrent layers, added by a mixer and a row (`ripple.py`): layer by layer, captured, speculating."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

import torch_foundry
from tests.hf import ripple
from tests.hf.tiny_models import ids, padded
from torch_foundry.core.graph import captures
from torch_foundry.kvcache.recurrent import SLOTS, RecurrentLayer

SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.95}
GREEDY = {"do_sample": False}
REPEATED = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with ripple.known():
        yield


@pytest.fixture(scope="module")
def stock() -> Any:
    return ripple.build()


@pytest.fixture
def model(stock: Any) -> Any:
    return torch_foundry.patch(copy.deepcopy(stock))


def close(ours: torch.Tensor, stock: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether our error to float64 is about stock's."""
    errors = [(x.double() - exact).abs().max() for x in (ours, stock)]
    return bool(errors[0] <= 2 * errors[1] + 1e-6 * exact.abs().max())


def test_without_a_row_it_is_left_alone(stock: Any) -> None:
    for table in ripple.TABLES:
        for key in [key for key in table if key.startswith("ripple.")]:
            del table[key]
    assert torch_foundry.report(torch_foundry.patch(copy.deepcopy(stock))).layers == 0


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(1,), (9,), (17, 1, 1, 3, 8, 10, 1), (2, 2, 2), (40, 9)], ids=str)
def test_logits_are_as_exact_as_stock_ones(stock: Any, model: Any, lengths: tuple[int, ...]) -> None:
    """Prompts, captured steps of one token and of several, and later parts of a prompt."""
    exact = copy.deepcopy(stock).double()
    caches = [DynamicCache(config=m.config) for m in (model, stock, exact)]
    tokens, at = ids(2, sum(lengths)), 0
    for length in lengths:
        part = tokens[:, at : at + length]
        results = [
            m(part, past_key_values=cache).logits for m, cache in zip((model, stock, exact), caches, strict=True)
        ]
        assert close(*results), at
        at += length
    seen = torch_foundry.report(model)
    assert seen.layers == 4 and not seen.fallbacks and not seen.eager, str(seen)
    assert seen.steps == sum(length <= 8 for length in lengths[1:])
    layer: Any = caches[0].layers[0]
    assert isinstance(layer, RecurrentLayer) and layer._count == layer.position > 0


@torch.no_grad()
@pytest.mark.parametrize("every", [0, 1, 3, 16])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_tokens_are_those_of_stock_code(stock: Any, model: Any, batch: int, every: int) -> None:
    prompt = ids(batch, 11)
    tokens = model.generate(prompt, max_new_tokens=30, sync_every=every, **GREEDY)
    assert torch.equal(tokens, stock.generate(prompt, max_new_tokens=30, **GREEDY))
    seen = torch_foundry.report(model)
    assert seen.steps == 29 and not seen.fallbacks, str(seen)
    assert not every or 29 / 8 < seen.reads <= 30 / min(every, SLOTS - 1) + 2, "more in flight than states are kept"


@torch.no_grad()
def test_a_padded_batch_is_as_in_stock_code(stock: Any, model: Any) -> None:
    inputs = padded([4, 9, 7])
    tokens = model.generate(**inputs, max_new_tokens=20, **GREEDY)
    assert torch.equal(tokens, stock.generate(**inputs, max_new_tokens=20, **GREEDY))
    assert torch_foundry.report(model).steps == 19


@torch.no_grad()
def test_padding_among_new_tokens_is_not_captured(stock: Any, model: Any) -> None:
    tokens, results = ids(2, 12), []
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:10] = 0
    for m in (model, stock):
        cache = DynamicCache(config=m.config)
        m(tokens[:, :8], past_key_values=cache)
        m(tokens[:, 8:], attention_mask=mask, past_key_values=cache)
        results.append(m(tokens[:, :1], attention_mask=torch.cat([mask, mask[:, :1]], 1), past_key_values=cache).logits)
    assert torch.allclose(*results, atol=1e-5)
    assert torch_foundry.report(model).eager["padding among new tokens of recurrent layers"] == 1


@torch.no_grad()
@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}], ids=str)
def test_beams(stock: Any, model: Any, options: dict[str, Any]) -> None:
    tokens = [m.generate(ids(2, 9), max_new_tokens=12, **GREEDY, **options) for m in (model, stock)]
    assert torch.equal(*tokens)


@torch.no_grad()
def test_sampled_tokens_do_not_depend_on_what_is_in_flight(model: Any) -> None:
    draft = torch_foundry.patch(ripple.build(layers=2))
    tokens = []
    for options in ({}, {"sync_every": 1}, {"prompt_lookup_num_tokens": 5}, {"assistant_model": draft}):
        torch.manual_seed(3)
        tokens.append(model.generate(REPEATED, max_new_tokens=30, **SAMPLED, **options))
    assert all(torch.equal(tokens[0], others) for others in tokens[1:])


@torch.no_grad()
def test_a_text_that_ends_early_goes_on_from_its_end(stock: Any, model: Any) -> None:
    """Steps behind the end are in flight by then; the state must be the one before them."""
    ended = set()
    for eos in range(3, 60, 6):
        texts, options = [], {"max_new_tokens": 20, "eos_token_id": eos, "return_dict_in_generate": True, **GREEDY}
        for m in (stock, model):
            first = m.generate(ids(1, 9), **options)
            prompt = torch.cat([first.sequences, ids(1, 3, seed=5)], 1)
            texts.append(m.generate(prompt, past_key_values=first.past_key_values, **options).sequences)
            ended.add(first.sequences.shape[1] - 9)
        assert torch.equal(*texts), eos
    assert len(ended) > 2, "no text ended in the middle of a block"


@torch.no_grad()
@pytest.mark.parametrize("wrong", [0, 2, 4], ids=lambda layers: f"a draft of {layers or 'all'} layers")
def test_rejected_drafts_leave_no_trace(stock: Any, model: Any, wrong: int) -> None:
    draft = torch_foundry.patch(ripple.build(layers=wrong) if wrong else copy.deepcopy(stock))
    if wrong == 4:  # nearly the same model: some drafts are right
        draft = torch_foundry.patch(copy.deepcopy(stock))
        draft.lm_head.weight.add_(0.02 * torch.randn(draft.lm_head.weight.shape, generator=torch.manual_seed(1)))
    want = stock.generate(REPEATED, max_new_tokens=60, **GREEDY)
    for _ in range(2):
        assert torch.equal(model.generate(REPEATED, max_new_tokens=60, assistant_model=draft, **GREEDY), want)
    drafts = torch_foundry.report(model).speculation
    assert drafts.drafted and (drafts.accepted == drafts.drafted) == (not wrong), str(drafts)
    assert wrong != 4 or drafts.accepted, str(drafts)


@torch.no_grad()
def test_prompt_lookup(stock: Any, model: Any) -> None:
    tokens = model.generate(REPEATED, max_new_tokens=60, prompt_lookup_num_tokens=7, **GREEDY)
    assert torch.equal(tokens, stock.generate(REPEATED, max_new_tokens=60, **GREEDY))
    assert torch_foundry.report(model).speculation.drafted


@torch.no_grad()
def test_the_next_generation_uses_the_same_graph_and_memory(stock: Any, model: Any) -> None:
    for count, prompt in enumerate((ids(1, 9), ids(1, 7, seed=1), ids(1, 12, seed=2))):
        with captures() as captured:
            tokens = model.generate(prompt, max_new_tokens=20, **GREEDY)
        assert torch.equal(tokens, stock.generate(prompt, max_new_tokens=20, **GREEDY))
        assert len(captured) == (count == 0)


@torch.no_grad()
def test_stock_layers_and_fused_ones_share_a_cache(stock: Any, model: Any) -> None:
    """A hook makes one recurrent layer run stock code, on the state that fused steps have left, and back."""
    tokens, caches = ids(2, 30), [DynamicCache(config=stock.config) for _ in range(2)]
    module, at = model.model.layers[2].recurrence, 0
    for length in (7, 1, 3, 9, 1, 1):
        handle = module.register_forward_hook(lambda *_: None) if length in (3, 9) else None
        part = tokens[:, at : at + length]
        ours, right = (m(part, past_key_values=c).logits for m, c in zip((model, stock), caches, strict=True))
        assert torch.allclose(ours, right, atol=1e-5), at
        at += length
        if handle is not None:
            handle.remove()
    assert torch_foundry.report(model).fallbacks["forward hook on recurrence"] == 2


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 4, 20])
@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "stock"])
def test_a_call_that_fails_leaves_the_state_as_it_was(
    stock: Any, model: Any, length: int, hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, cache = ids(1, 30), DynamicCache(config=stock.config)
    model(tokens[:, :9], past_key_values=cache)
    with monkeypatch.context() as patch:
        patch.setattr(model.model.norm, "forward", lambda x: 1 / 0)  # behind the last layer
        if hooked:
            patch.setattr(model.model.layers[0].recurrence, "forward", model.model.layers[0].recurrence.forward)
        with pytest.raises(ZeroDivisionError):
            model(tokens[:, 9 : 9 + length], past_key_values=cache)
    again = DynamicCache(config=stock.config)
    stock(tokens[:, :9], past_key_values=again)
    ours, right = (m(tokens[:, 9:14], past_key_values=c).logits for m, c in ((model, cache), (stock, again)))
    assert torch.allclose(ours, right, atol=1e-5)


@torch.no_grad()
def test_without_a_cache(stock: Any, model: Any) -> None:
    assert torch.allclose(model(ids(2, 9), use_cache=False).logits, stock(ids(2, 9), use_cache=False).logits, atol=1e-5)
    assert not torch_foundry.report(model).fallbacks


@torch.no_grad()
def test_a_session_reads_what_is_new_or_all_of_it(stock: Any, model: Any, tmp_path: Any) -> None:
    session, text = torch_foundry.Session(model, max_new_tokens=12, **GREEDY), ids(1, 9)
    for reused in (0, 20, 35):
        answered = session.generate(text)
        assert torch.equal(answered, stock.generate(text, max_new_tokens=12, **GREEDY)) and session.reused == reused
        text = torch.cat([answered, ids(1, 3, seed=reused)], 1)
    for changed, reused in ((15, 8), (3, 0)):  # back to the snapshot behind the first prompt; there is none before
        text[0, changed] += 1
        assert torch.equal(session.generate(text), stock.generate(text, max_new_tokens=12, **GREEDY))
        assert session.reused == reused
    session.save(path := tmp_path / "session.safetensors")
    restored, text = (
        torch_foundry.Session.restore(path, model, max_new_tokens=12, **GREEDY),
        torch.cat([text, ids(1, 3)], 1),
    )
    assert torch.equal(restored.generate(text), session.generate(text)) and restored.reused == session.reused > 0
