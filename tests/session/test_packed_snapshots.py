"""Sessions whose snapshots are packed: what goes on from one has the logits of float64 behind the states that its codes
stand for; everything that reads no snapshot is exact; and files know the format."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

import torch_foundry
from tests.exact import InFloat64, doubled
from tests.hf.tiny_models import ids, shared
from torch_foundry import LoadError, Session
from torch_foundry.io.container import Container
from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.snapshots import Snapshots
from torch_foundry.testing.tolerance import assert_norm, relative_error

pytestmark = pytest.mark.usefixtures("quiet")
EVERY = 16
OPTIONS: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "snapshot_every": EVERY}
PACKED = {**OPTIONS, "snapshot_format": "q8_0"}
FAMILIES = ["qwen3_5", "lfm2", "granite4"]
Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]


def build(name: str = "qwen3_5") -> Any:
    return torch_foundry.patch(copy.deepcopy(shared(name)))


@torch.no_grad()
def go_on(model: Any, text: torch.Tensor, more: torch.Tensor, states: dict[int, dict[str, torch.Tensor]]) -> Any:
    """Logits of `more` behind `text`, whose recurrent layers have `states` then, by stock code in the model's dtype."""
    cache = DynamicCache(config=model.config)
    model(text, past_key_values=cache)
    for i, layer in states.items():
        for name, state in layer.items():
            getattr(cache.layers[i], f"{name}_states")[0].copy_(state)
    return model(more, past_key_values=cache).logits


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_what_follows_is_what_float64_makes_of_the_codes(family: str) -> None:
    stock, model, more = shared(family), build(family), ids(1, 9, seed=3)
    session, text = Session(model, **PACKED), ids(1, 40)
    session.generate(text)
    exact = Session(model, **OPTIONS)
    exact.generate(text)
    for at in (39, 16):
        session.cache.snapshots.back(session.cache, at)
        exact.cache.snapshots.back(exact.cache, at)
        states = {
            i: layer.stored_tensors() for i, layer in enumerate(session.cache.layers) if session.cache.is_linear[i]
        }
        states = {i: {name: state.clone() for name, state in layer.items()} for i, layer in states.items()}
        for i, layer in states.items():
            for name, state in exact.cache.layers[i].stored_tensors().items():
                assert 0 < relative_error(layer[name], state.double()) < 0.01, "codes of 8 bits"
        ours = model(more, past_key_values=copy.deepcopy(session.cache)).logits
        theirs = go_on(stock, text[:, :at], more, states)
        with InFloat64():
            truth = go_on(doubled(stock), text[:, :at], more, states)
        assert_norm(ours, truth, theirs)


def test_what_goes_on_from_no_snapshot_is_exact() -> None:
    """Turns that go on behind what the cache holds, and saved sessions."""
    model, text = build(), ids(1, 40)
    sessions = [Session(model, **options) for options in (OPTIONS, PACKED)]
    for turn in range(3):
        first, second = (session.generate(text) for session in sessions)
        assert first.tolist() == second.tolist() and sessions[0].reused == sessions[1].reused
        text = torch.cat([first, ids(1, 5, seed=turn)], 1)


def test_memory_is_that_of_the_codes() -> None:
    model = build()
    exact, packed = (Session(model, **options) for options in (OPTIONS, PACKED))
    for session in (exact, packed):
        session.generate(ids(1, 60))
    specs = [mixer.state for mixer in model.model.decoder_plan().owners.values() if hasattr(mixer.state, "tensors")]
    for session, format in ((exact, None), (packed, "q8_0")):
        one = sum(packed_states.nbytes(spec, torch.float32, format) for spec in specs)
        assert session.cache.snapshots.nbytes == one * len(session.cache.snapshots.stored) > 0
    assert packed.cache.snapshots.nbytes < 0.3 * exact.cache.snapshots.nbytes


def test_a_cache_that_the_caller_keeps() -> None:
    model, text = build(), ids(1, 40)
    cache = DynamicCache(config=model.config)
    vars(cache)["snapshots"] = Snapshots(8, format="q8_0")
    options: dict[str, Any] = {"past_key_values": cache, "do_sample": False, "max_new_tokens": 20}
    whole = model.generate(text, attention_mask=torch.ones_like(text), **options)
    edited = torch.cat([whole[:, :50], ids(1, 4, seed=2)], 1)
    at = max(tokens for tokens in cache.snapshots.stored if tokens <= 50)
    assert at > 40 and {data.dtype for data in cache.snapshots.stored[at][0].values()} == {torch.uint8}
    found = model.generate(edited, attention_mask=torch.ones_like(edited), **options)
    assert found.shape[1] == 74 and torch.equal(found[:, :54], edited)


# ------------------------------------------------------------------------------------------------------------ in files


def saved(path: Path, model: Any, **options: Any) -> tuple[Session, torch.Tensor]:
    session = Session(model, **options)
    text = session.generate(torch.cat([session.generate(ids(1, 40)), ids(1, 12, seed=1)], 1))
    session.save(path)
    return session, text


@torch.no_grad()
def test_what_is_restored_has_the_same_bits(tmp_path: Path) -> None:
    model, path, more = build(), tmp_path / "session.safetensors", ids(1, 7, seed=3)
    session, _ = saved(path, model, **PACKED)
    other = Session.restore(path, model, **PACKED)
    at = [*session.cache.snapshots.stored]
    assert len(at) > 3 and [*other.cache.snapshots.stored] == at
    for tokens in (None, *reversed(at)):
        logits = []
        for each in (session, other):
            cache = copy.deepcopy(each.cache)
            assert tokens is None or cache.snapshots.back(cache, tokens) == tokens
            logits.append(model(more, past_key_values=cache).logits)
        assert torch.equal(*logits), tokens
    assert other.cache.snapshots.nbytes == session.cache.snapshots.nbytes


def test_another_format_and_another_model(tmp_path: Path) -> None:
    """Nothing has changed then, and a session of its own goes on."""
    model, text = build(), ids(1, 50)
    expected = Session(model, **OPTIONS).generate(text)
    for options, found, wanted in ((PACKED, "'q8_0'", "None"), (OPTIONS, "None", "'q8_0'")):
        path = tmp_path / "session.safetensors"
        saved(path, model, **options)
        other = OPTIONS if options is PACKED else PACKED
        with pytest.raises(LoadError, match=f"snapshot_format: expected {wanted}, as the session, found {found}"):
            Session.restore(path, model, **other)
        assert Session(model, **other).generate(text).tolist() == expected.tolist()
    with pytest.raises(LoadError, match="expected the model that it was saved with, found another"):
        Session.restore(path, build("lfm2"), **OPTIONS)
    with pytest.raises(ValueError, match="snapshot_format='q3': expected None or 'q8_0'"):
        Session(model, snapshot_format="q3")


def _put(name: str, change: Callable[[torch.Tensor], torch.Tensor], of: str | None = None) -> Change:
    return lambda tensors, _: tensors.__setitem__(name, change(tensors[of or name]).clone())


def _say(**words: Any) -> Change:
    return lambda _, said: said.update(words)


def _scale(bits: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Another f16 for the first block of a row: scales are behind its 256 codes."""

    def change(x: torch.Tensor) -> torch.Tensor:
        changed = x.clone()
        changed[0, 256], changed[0, 257] = bits & 255, bits >> 8
        return changed

    return change


# Layer 0 has the delta rule; there are snapshots behind 16, 32 ... tokens.
HOSTILE: dict[str, tuple[str, Change]] = {
    "a row less": (r"32\.0\.recurrent: expected u8 \[1, \d+\], found", _put("32.0.recurrent", lambda x: x[:, 272:])),
    "a byte more": (r"32\.0\.conv: expected u8", _put("32.0.conv", lambda x: torch.cat([x, x[:, :1]], 1))),
    "two rows of a batch": (r"32\.0\.conv: expected u8", _put("32.0.conv", lambda x: x.repeat(2, 1))),
    "in rows": (r"32\.0\.recurrent: expected u8", _put("32.0.recurrent", lambda x: x.unflatten(1, (-1, 272)))),
    "of nothing": (r"32\.0\.recurrent: expected u8", _put("32.0.recurrent", lambda x: x[:, :0])),
    "floats": (r"32\.0\.recurrent: expected u8 .*, found f32", _put("32.0.recurrent", torch.Tensor.float)),
    "exact ones": (r"32\.0\.recurrent: expected u8", _put("32.0.recurrent", torch.clone, "0.recurrent")),
    "the newest packed": (r"0\.recurrent: expected f32", _put("0.recurrent", torch.clone, "32.0.recurrent")),
    "none": (r"32\.0\.conv: expected a tensor, found none", lambda tensors, _: tensors.__delitem__("32.0.conv")),
    "a scale that is NaN": (r"32\.0\.recurrent: expected finite values", _put("32.0.recurrent", _scale(0x7E01))),
    "an infinite scale": (r"32\.0\.recurrent: expected finite values", _put("32.0.recurrent", _scale(0x7C00))),
    "minus infinity": (r"16\.0\.conv: expected finite values", _put("16.0.conv", _scale(0xFC00))),
    "a format unknown": (r"snapshot_format: expected 'q8_0', as the session, found 'q9'", _say(snapshot_format="q9")),
    "no format": (r"snapshot_format: expected 'q8_0', as the session, found None", _say(snapshot_format=None)),
    "no name": ("a session's description", _say(snapshot_format=8)),
    "names": ("a session's description", _say(snapshot_format=["q8_0"])),
    "a long one": (r"snapshot_format: .*found 'q{59} \[", _say(snapshot_format="q" * 10**6)),
}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model, path = build(), tmp_path_factory.mktemp("packed") / "session.safetensors"
    session, text = saved(path, model, **PACKED)
    with safe_open(path, "pt") as file:
        return model, load_file(path), file.metadata(), session, text


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(case: str, hybrid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a header shows is refused before anything is read; the session that is there goes on."""
    model, tensors, metadata, session, text = hybrid
    message, change = HOSTILE[case]
    tensors, said = dict(tensors), json.loads(metadata["session"])
    change(tensors, said)
    save_file(tensors, tmp_path / "x.safetensors", metadata={**metadata, "session": json.dumps(said)})
    if "finite" not in message:
        monkeypatch.setattr(Container, "read", lambda *_: pytest.fail("read before it was known to fit"))
    with pytest.raises(LoadError, match=message):
        Session.restore(tmp_path / "x.safetensors", model, **PACKED)
    monkeypatch.undo()
    more = copy.deepcopy(session).generate(torch.cat([text, ids(1, 2)], 1), max_new_tokens=2)
    assert more.shape[1] == text.shape[1] + 4
