"""Prompts whose attention torch computes, as on CUDA; here on the host, where ours would be taken."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_foundry
from tests.hf.tiny_models import ids, padded, shared
from torch_foundry.core import devices, runtime
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.generation.step_graph import of_prompts
from torch_foundry.kvcache import view
from torch_foundry.kvcache.formats import PLAIN, Formats
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.kvcache.view import KVView
from torch_foundry.quant.kv import pack_rows, unpack_rows
from torch_foundry.testing import reference

pytestmark = pytest.mark.cpu_only  # on MPS ours is taken; torch's class of causal masks can't be made under a mode

LEAST = 17  # keys without a mask


@pytest.fixture(autouse=True)
def _by_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(type(devices.HOST), "prompt_keys", LEAST)
    monkeypatch.setattr(view, "MASK_COST", 1)
    yield


def _given(queries: int, capacity: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, queries, 64), (2, 2, capacity, 64), (2, 2, capacity, 64)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def _assert_right(y: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> None:
    exact = reference.attention(q.double(), k.double(), v.double(), k.shape[2], scale=0.2, **options)  # type: ignore[arg-type]
    stock = reference.attention(q, k, v, k.shape[2], scale=0.2, **options)  # type: ignore[arg-type]
    assert y.shape == exact.shape and y.is_contiguous()
    assert (y - exact).norm() <= 2 * (stock - exact).norm()


def _launched(call: object) -> tuple[torch.Tensor, int]:
    runtime.reset_counters()
    y = call()  # type: ignore[operator]
    return y, runtime.counters().launches


@pytest.mark.parametrize("window", [0, 5, 64], ids="window{}".format)
@pytest.mark.parametrize("before", [0, 23], ids="before{}".format)
def test_equals_the_reference(before: int, window: int) -> None:
    """Behind what a cache holds, and in a window; memory behind the keys may hold anything."""
    queries, keys = 19, before + 19
    q, k, v = _given(queries, 64)
    k[:, :, keys:], v[:, :, keys:] = torch.nan, torch.nan
    view = KVView(k, v, keys)
    y, launches = _launched(lambda: view.attend(q, scale=0.2, window=window))
    assert launches == 0
    _assert_right(y, q, k[:, :, :keys], v[:, :, :keys], window=window)


def test_keys_that_a_window_has_left_behind() -> None:
    q, k, v = _given(17, 40)
    view = KVView(k[:, :, 7:], v[:, :, 7:], 30)
    _assert_right(view.attend(q, scale=0.2, window=14), q, k[:, :, 7:37], v[:, :, 7:37], window=14)


@pytest.mark.parametrize("kind", [torch.bool, torch.bfloat16], ids=str)
def test_a_mask(kind: torch.dtype) -> None:
    q, k, v = _given(17, 20)
    seen = torch.rand(2, 1, 17, 20, generator=torch.Generator().manual_seed(1)) < 0.5
    seen[..., 3] = True
    mask = seen if kind == torch.bool else torch.where(seen, 0.0, torch.finfo(kind).min).to(kind)
    y, launches = _launched(lambda: KVView(k, v, 20).attend(q, mask, scale=0.2))
    assert launches == 0
    _assert_right(y, q, k, v, mask=seen, causal=False)


def test_packed_keys_and_values_are_unpacked_once() -> None:
    q, k, v = _given(17, 32, torch.float16)
    stored = pack_rows(k, "q8_0"), pack_rows(v, "q4_0")
    y, launches = _launched(lambda: KVView(*stored, 32, formats=("q8_0", "q4_0")).attend(q, scale=0.2))
    assert launches == 0
    _assert_right(y, q, *(unpack_rows(x, f, q.dtype) for x, f in zip(stored, ("q8_0", "q4_0"), strict=True)))


def _pages(x: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The first row of x [B, heads, 48, columns] in pages of 16 tokens, of which page i is number `order[i]`."""
    pages = torch.full((4, x.shape[1], 16, x.shape[3]), torch.nan).to(x.dtype)
    pages[order] = x[0].unflatten(1, (3, 16)).transpose(0, 1)
    return pages


@pytest.mark.parametrize("formats", [PLAIN, ("q8_0", "q4_0")], ids=str)
def test_a_row_in_pages_whose_length_the_host_knows(formats: Formats) -> None:
    q, k, v = (x[:1] for x in _given(19, 48, torch.float16))
    stored = [pack_rows(x, f) if f else x for x, f in zip((k, v), formats, strict=True)]
    seen = [unpack_rows(x, f, q.dtype) if f else x for x, f in zip(stored, formats, strict=True)]
    pages = [_pages(x, [2, 0, 3]) if not f else x[0].unflatten(1, (3, 16)).transpose(0, 1).contiguous()
             for x, f in zip(stored, formats, strict=True)]  # fmt: skip
    table = torch.tensor([[0, 1, 2] if formats[0] else [2, 0, 3]], dtype=torch.int32)
    rows = torch.tensor([[26, 19]], dtype=torch.int32)
    given: dict[str, Any] = {"block_table": table, "formats": formats}
    y, launches = _launched(lambda: KVView(*pages, 45, **given).attend(q, scale=0.2))
    assert launches == 0
    _assert_right(y, q, *(x[:, :, :45] for x in seen))
    same, launches = _launched(lambda: KVView(*pages, 48, rows=rows, **given).attend(q, scale=0.2))  # a bound
    assert launches > 0
    _assert_right(same, q, *(x[:, :, :45] for x in seen))
    _, launches = _launched(lambda: KVView(*pages, 45, **given).attend(q, scale=0.2, window=44))
    assert launches > 0  # ours reads no more than the window


@pytest.mark.parametrize(
    "why", ["few queries", "few keys", "float32", "softcap", "sinks", "wide", "values", "step", "mask too large"]
)
def test_ours_is_taken_where_torchs_is_not_faster_or_not_able(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.float32 if why == "float32" else torch.bfloat16
    queries, keys = 17 - (why == "few queries"), 32
    q, k, v = _given(queries, keys, dtype)
    options: dict[str, object] = {"window": 5}
    if why == "few keys":
        monkeypatch.setattr(view, "MASK_COST", 2)
    if why == "softcap":
        options["softcap"] = 30.0
    if why == "sinks":
        options["sinks"] = torch.zeros(4)
    if why == "wide":
        q, k, v = (torch.cat([x] * 5, -1) for x in (q, k, v))
    if why == "values":
        v = v[..., :32].contiguous()
    if why == "mask too large":
        monkeypatch.setattr(view, "MASKED", queries * keys - 1)
    step = torch.tensor([15, 0], dtype=torch.int32) if why == "step" else None
    _, launches = _launched(lambda: KVView(k, v, keys, step=step).attend(q, scale=0.2, **options))  # type: ignore[arg-type]
    assert launches > 0


@pytest.mark.parametrize("family", ["llama", "mistral"])
@torch.no_grad()
def test_whole_models(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With padding on the left, whose mask stock code makes."""
    by_torch, calls = view.torch_attention, []
    monkeypatch.setattr(view, "torch_attention", lambda *given, **more: calls.append(1) or by_torch(*given, **more))
    stock = copy.deepcopy(shared(family))
    given = padded([30, 19])
    exact = stock.double()(**given).logits
    rounded = stock.bfloat16()(**given).logits
    model = torch_foundry.patch(stock)
    found = model(**given)
    assert len(calls) == 2
    real = given["attention_mask"].bool()
    assert (found.logits - exact)[real].norm() <= 2 * (rounded - exact)[real].norm()


@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_a_prompt_in_a_paged_cache(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row is read as in a contiguous cache; of several, only kernels read pages."""
    by_torch, calls = view.torch_attention, []
    monkeypatch.setattr(view, "torch_attention", lambda *given, **more: calls.append(1) or by_torch(*given, **more))
    model = torch_foundry.patch(copy.deepcopy(shared("llama")).to(torch.bfloat16))
    text = ids(rows, 40)
    found = model(text, past_key_values=PagedCache(model.config, 16)).logits
    assert len(calls) == (2 if rows == 1 else 0)
    expected = model(text).logits
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max() and (rows > 1 or torch.equal(found, expected))


@torch.no_grad()
def test_prompts_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that read long texts aren't captured, so the host knows how long they are."""
    by_torch, calls = view.torch_attention, []
    monkeypatch.setattr(view, "torch_attention", lambda *given, **more: calls.append(1) or by_torch(*given, **more))
    model = torch_foundry.patch(copy.deepcopy(shared("llama")).to(torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(3, model.config.vocab_size, (6, 90), generator=generator).tolist()

    def answers() -> list[list[int]]:
        engine = Engine(model, requests=1, blocks=16, budget=32)
        streams = [engine.submit(text, SamplingParams(max_tokens=3, temperature=0)) for text in texts]
        engine.run()
        return [stream.tokens for stream in streams]

    assert len(answers()) == len(texts) and 0 < len(calls) < len(texts) * 3 * 2, "as such steps come often"
    calls.clear()
    monkeypatch.setattr(type(devices.HOST), "captured_keys", 32)
    for text, answer in zip(texts, answers(), strict=True):
        ids = torch.tensor([text])
        logits = model(ids).logits[0, -1].float()
        assert logits[answer[0]] >= logits.max() - 0.1 * logits.std()
    assert len(calls) >= len(texts) * 2 * 2  # of each text's steps all but the first, in two layers


@torch.no_grad()
def test_only_who_reads_a_long_text_is_read_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at once, as long as each other; a short prompt beside a long text that generates is captured."""
    by_torch, calls = view.torch_attention, []
    monkeypatch.setattr(view, "torch_attention", lambda *given, **more: calls.append(1) or by_torch(*given, **more))
    monkeypatch.setattr(type(devices.HOST), "captured_keys", 64)
    model = torch_foundry.patch(copy.deepcopy(shared("llama")).to(torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(3, model.config.vocab_size, (2, 96), generator=generator).tolist()
    engine = Engine(model, requests=4, blocks=32, budget=256)
    both = [engine.submit(text, SamplingParams(max_tokens=30, temperature=0)) for text in texts]
    engine.step()
    assert len(calls) == 2 * 2 and all(stream.tokens for stream in both), "both in one step, in two layers"
    for stream, text in zip(both, texts, strict=True):
        logits = model(torch.tensor([text])).logits[0, -1].float()
        assert logits[stream.tokens[0]] >= logits.max() - 0.1 * logits.std()
    calls.clear()
    for start in range(3, 8):  # the fourth of its kind is captured
        engine.submit(range(start, start + 30), SamplingParams(max_tokens=1, temperature=0)).result()
    forward = engine._steps.forward
    assert any(of_prompts(sizes) for sizes in forward.graphs.of(forward))
