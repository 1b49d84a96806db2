"""Saved sessions of models with recurrent layers, windows and packed caches: what is restored has the same bits, and
what a file may have instead is refused before it is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import torch_foundry
from tests.hf import ripple
from tests.hf.tiny_models import ids, shared
from torch_foundry import LoadError, Session
from torch_foundry.io.container import Container

pytestmark = pytest.mark.usefixtures("quiet")
EVERY = 16
OPTIONS: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "snapshot_every": EVERY}
KINDS = ["ripple", "qwen3_5", "lfm2", "nemotron_h", "falcon_h1", "deepseek_v3", "mistral", "gemma3"]
Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with ripple.known():
        yield


def build(name: str, kv_cache: Any = None) -> Any:
    model = ripple.build(layers=2) if name == "ripple" else copy.deepcopy(shared(name))
    return torch_foundry.patch(model, kv_cache=kv_cache)


def saved(path: Path, model: Any) -> tuple[Session, torch.Tensor]:
    """A session of two turns, and its text."""
    session = Session(model, **OPTIONS)
    text = session.generate(torch.cat([session.generate(ids(1, 40)), ids(1, 12, seed=1)], 1))
    session.save(path)
    return session, text


@torch.no_grad()
@pytest.mark.parametrize(
    "name, kv_cache",
    [*((name, None) for name in KINDS), ("qwen3_5", "q8_0"), ("mistral", {"k": "q4_0", "v": "f16"}), ("llama", "q4_0")],
)
def test_what_is_restored_has_the_same_bits(name: str, kv_cache: Any, tmp_path: Path) -> None:
    """Going on, and going back to each snapshot."""
    model, path = build(name, kv_cache), tmp_path / "session.safetensors"
    session, text = saved(path, model)
    other, more = Session.restore(path, model, **OPTIONS), ids(1, 7, seed=3)
    at = [*session.cache.snapshots.stored]
    assert other.tokens == session.tokens and [*other.cache.snapshots.stored] == at
    assert len(at) > 3 or name in ("llama", "deepseek_v3")
    for tokens in (None, *reversed(at)):
        logits = []
        for each in (session, other):
            cache = copy.deepcopy(each.cache)
            if tokens is not None:
                assert cache.snapshots.back(cache, tokens) == tokens == cache.get_seq_length()
            logits.append([model(part, past_key_values=cache).logits for part in (more[:, :1], more[:, 1:])])
        assert all(torch.equal(*each) for each in zip(*logits, strict=True)), tokens
    for cut in (0, 30):
        edited = torch.cat([text[:, : text.shape[1] - cut], ids(1, 5, seed=4)], 1)
        first, second = (each.generate(edited).tolist() for each in (session, other))
        assert first == second and session.reused == other.reused > (0 if cut else len(text))
        if name != "nemotron_h":  # which cuts off step sizes in prompts alone
            assert first == model.generate(edited, attention_mask=torch.ones_like(edited), max_new_tokens=10).tolist()
    other.save(path)
    assert Session.restore(path, model, **OPTIONS).tokens == session.tokens


@pytest.mark.parametrize("name", ["mistral", "gemma3", "qwen3_5"])
def test_edited_as_soon_as_it_is_restored(name: str, tmp_path: Path) -> None:
    """What is left is as much as of the session that was saved: windows go back too."""
    model, path = build(name), tmp_path / "session.safetensors"
    session, text = saved(path, model)
    edited = torch.cat([text[:, :-30], ids(1, 5, seed=4)], 1)
    other = Session.restore(path, model, **OPTIONS)
    assert other.generate(edited).tolist() == session.generate(edited).tolist()
    assert other.reused == session.reused > 0


def test_another_kv_cache_and_fewer_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "session.safetensors"
    saved(path, build("mistral", "q8_0"))
    for kv_cache in (None, "q4_0"):
        with pytest.raises(LoadError, match=r"kv_cache: expected \[.*\], as the model, found \['q8_0', 'q8_0'\]"):
            Session.restore(path, build("mistral", kv_cache))
    few = Session.restore(path, build("mistral", "q8_0"), snapshots=2)
    assert len(few.cache.snapshots.stored) == 2


def test_transformers_own_states_are_not_saved(tmp_path: Path) -> None:
    stock, path = ripple.build(layers=2), tmp_path / "session.safetensors"
    session = Session(stock, **{**OPTIONS, "max_new_tokens": 3})
    text = session.generate(ids(1, 9))
    with pytest.raises(TypeError, match="save: expected a patched model"):
        session.save(path)
    assert not list(tmp_path.iterdir()) and session.generate(text).shape[1] == 15
    saved(path, build("ripple"))
    with pytest.raises(LoadError, match="model: expected a patched model, as it was saved with"):
        Session.restore(path, stock)


def _without(name: str) -> Change:
    return lambda tensors, _: tensors.__delitem__(name)


def _put(name: str, change: Callable[[torch.Tensor], torch.Tensor], of: str | None = None) -> Change:
    return lambda tensors, _: tensors.__setitem__(name, change(tensors[of or name]).clone())


def _say(**words: Any) -> Change:
    return lambda _, said: said.update(words)


def _nan(x: torch.Tensor) -> torch.Tensor:
    return x.index_fill(-1, torch.tensor([1]), float("nan"))


# Layer 0 of the model is recurrent, layer 1 has attention; there are snapshots behind 16, 32, 39 ... of 71 tokens.
HOSTILE: dict[str, tuple[str, Change]] = {
    "no state": (r"0\.conv: expected a tensor, found none", _without("0.conv")),
    "no matrix": (r"0\.recurrent: expected a tensor", _without("0.recurrent")),
    "no state in a snapshot": (r"32\.0\.conv: expected a tensor", _without("32.0.conv")),
    "another layer's": (r"1\.conv: expected what the model keeps", _put("1.conv", torch.clone, "0.conv")),
    "a snapshot of keys": (r"32\.1\.keys: expected what the model", _put("32.1.keys", torch.clone, "1.keys")),
    "a snapshot unsaid": (r"7\.0\.conv: expected what the model", _put("7.0.conv", torch.clone, "0.conv")),
    "two rows": (r"0\.conv: expected f32", _put("0.conv", lambda x: x.repeat(2, 1, 1))),
    "a wider window": (r"0\.conv: expected f32", _put("0.conv", lambda x: x.repeat(1, 1, 2))),
    "turned": (
        r"0\.conv: expected f32 \[1, (\d+), (\d)\], found f32 \[1, \2, \1\]",
        _put("0.conv", lambda x: x.mT.contiguous()),
    ),
    "flat": (r"0\.recurrent: expected f32", _put("0.recurrent", torch.flatten)),
    "another type": (r"0\.conv: expected f32 .*, found f16", _put("0.conv", torch.Tensor.half)),
    "numbers of whole": (r"0\.recurrent: expected f32 .*, found i32", _put("0.recurrent", torch.Tensor.int)),
    "keys too few": (r"1\.keys: expected f32", _put("1.keys", lambda x: x[:, :, :5])),
    "NaN": (r"0\.recurrent: expected finite values", _put("0.recurrent", _nan)),
    "infinity": (r"0\.conv: expected finite values", _put("0.conv", lambda x: x / 0.0)),
    "NaN in a snapshot": (r"32\.0\.recurrent: expected finite values", _put("32.0.recurrent", _nan)),
    "snapshots that fall": ("rising numbers of tokens, up to 71", _say(snapshots=[32, 16])),
    "one twice": ("rising numbers", _say(snapshots=[16, 16])),
    "one of nothing": ("rising numbers", _say(snapshots=[0, 16])),
    "one behind the end": ("rising numbers", _say(snapshots=[16, 72])),
    "very many": ("rising numbers", _say(snapshots=[*range(1, 72)])),
    "one that isn't there": (r"17\.0\.\w+: expected a tensor", _say(snapshots=[17])),
    "no numbers": ("a session's description", _say(snapshots=["16"])),
    "no list": ("a session's description", _say(snapshots=16)),
    "a length that nobody has": (r"1\.keys: expected f32 \[1, \d, 1000000000000, ", _say(seen=[10**12] * 2)),
    "packed": ("kv_cache: expected", _say(kv_cache=["q8_0", "q8_0"])),
    "packed once": ("a session's description", _say(kv_cache=["q8_0"])),
    "packed how": ("kv_cache: expected", _say(kv_cache=[{}, [1]])),
    "the other layers": ("for each of 2 layers", _say(seen=[71])),
    "tokens of floats": (r"tokens: expected i64 \[71\]", _put("tokens", torch.Tensor.double)),
    "a mask of rows": (r"mask: expected i64 \[71\]", _put("mask", lambda x: x[None])),
}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with ripple.known():
        model, path = build("ripple"), tmp_path_factory.mktemp("saved") / "session.safetensors"
        session, text = saved(path, model)
    with safe_open(path, "pt") as file:
        return model, path, load_file(path), file.metadata(), session, text


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(case: str, hybrid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a header shows is refused before anything is read."""
    model, _, tensors, metadata, session, text = hybrid
    message, change = HOSTILE[case]
    tensors, said = dict(tensors), json.loads(metadata["session"])
    change(tensors, said)
    save_file(tensors, tmp_path / "x.safetensors", metadata={**metadata, "session": json.dumps(said)})
    if not any(word in message for word in ("finite", "i64")):
        monkeypatch.setattr(Container, "read", lambda *_: pytest.fail("read before it was known to fit"))
    with pytest.raises(LoadError, match=message):
        Session.restore(tmp_path / "x.safetensors", model)
    monkeypatch.undo()
    more = copy.deepcopy(session).generate(torch.cat([text, ids(1, 2)], 1), max_new_tokens=2)
    assert more.shape[1] == text.shape[1] + 4


def test_cut_off_anywhere(hybrid: Any, tmp_path: Path) -> None:
    model, path, *_ = hybrid
    whole, cut = path.read_bytes(), tmp_path / "cut.safetensors"
    for length in (*range(0, len(whole), len(whole) // 60), len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(LoadError):
            Session.restore(cut, model)
    cut.write_bytes(whole)
    assert Session.restore(cut, model).tokens


def test_windows_elsewhere(tmp_path: Path) -> None:
    path, model = tmp_path / "session.safetensors", build("mistral")
    saved(path, model)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors, stored = load_file(path), load_file(path)["1.keys"].shape[2]
    for place in ([-1, 64], [0, stored - 1], [64, 64], [0, 10**9], [0.0, 64], [0], "0", None):
        said = json.loads(metadata["session"])
        said["windows"]["1"] = place
        save_file(tensors, path, metadata={**metadata, "session": json.dumps(said)})
        with pytest.raises(LoadError, match=rf"windows\.1: expected room for {stored} to \d+ tokens"):
            Session.restore(path, model)
    for fewer in (0, 1):  # tokens than the next one sees
        save_file({**tensors, f"{fewer}.keys": tensors[f"{fewer}.keys"][:, :, :5].clone()}, path, metadata=metadata)
        with pytest.raises(LoadError, match=rf"{fewer}.keys: expected f32 \[1, 2, 11, 32\]"):
            Session.restore(path, model)


def test_nan_in_packed_rows(tmp_path: Path) -> None:
    path, model = tmp_path / "session.safetensors", build("llama", "q8_0")
    saved(path, model)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    for name in ("0.keys", "1.values"):
        changed = {**tensors, name: torch.full_like(tensors[name], 0xFF)}  # scales that are NaN
        save_file(changed, path, metadata=metadata)
        with pytest.raises(LoadError, match=f"{name}: expected finite values"):
            Session.restore(path, model)


def test_another_model(hybrid: Any, tmp_path: Path) -> None:
    _, path, *_ = hybrid
    other = build("ripple")
    with torch.no_grad():
        other.model.layers[0].recurrence.out_proj.weight.mul_(1.01)
    for each in (other, build("qwen3_5")):
        with pytest.raises(LoadError, match="expected the model that it was saved with, found another"):
            Session.restore(path, each)
