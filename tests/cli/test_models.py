"""torch-foundry models: what is on disk, what patch would do with it, and what is broken, each in a line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from tests.hf import tiny_models, tiny_wrappers
from tests.io.gguf_models import make, write
from torch_foundry.cli import main
from torch_foundry.cli.loading import find_model
from torch_foundry.core import memory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub's."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(cache: Path, name: str, source: Path | None = None, ref: str = "main") -> Path:
    """The folder of a model that the Hub's client has fetched, its files links to blobs."""
    repo, revision = cache / f"models--{name.replace('/', '--')}", "a" * 40
    snapshot = repo / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "refs").mkdir()
    (repo / "refs" / ref).write_text(revision)
    for number, file in enumerate(sorted(source.iterdir()) if source else ()):
        shutil.copy(file, repo / "blobs" / f"{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return snapshot


def listed(capsys: pytest.CaptureFixture, *paths: Path | str) -> dict[str, dict[str, Any]]:
    """Entries by name."""
    assert main(["models", "--json", "--device", "cpu", *map(str, paths)]) == 0
    return {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["models"]}


def folder_of(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def test_names_resolve_and_figures_are_the_loaded_models(
    cache: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    cached(cache, "Somebody/Some-Model", tiny_model)
    files = cached(cache, "Somebody/Files-GGUF")
    (files / "q4").mkdir()
    write(files / "q4" / "small.gguf", "qwen3", make("qwen3"))
    found = listed(capsys)
    assert list(found) == ["Somebody/Files-GGUF/q4/small.gguf", "Somebody/Some-Model"]
    asked: list[int] = []
    monkeypatch.setattr(memory, "check", lambda device, nbytes, *_: asked.append(nbytes))
    for name, entry in found.items():
        path = find_model(Path(name))
        assert path.exists() and str(path) == entry["path"] and not entry["problem"]
        model, _ = torch_foundry.load(path, device="cpu", patch=False)
        assert entry["architecture"] == type(model).__name__ and entry["needed"] == asked[-1]
        assert entry["nbytes"] >= sum(entry["formats"].values())
        assert entry["patch"] == "whole" and not torch_foundry.report(torch_foundry.patch(model)).not_replaced
    llama = found["Somebody/Some-Model"]
    stock, _ = torch_foundry.load(tiny_model, device="cpu", patch=False)
    assert llama["format"] == "safetensors f32" and llama["parameters"] == sum(p.numel() for p in stock.parameters())
    assert found["Somebody/Files-GGUF/q4/small.gguf"]["format"].startswith("gguf ")


def test_local_folders_formats_and_what_patch_would_do(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from transformers import MambaConfig, MambaForCausalLM, T5Config, T5ForConditionalGeneration

    local = tmp_path / "local"
    odd = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=8)
    folder_of(MambaForCausalLM(odd).to(torch.bfloat16), local / "one" / "mamba")
    folder_of(tiny_models.build("llama"), local / "mlx")
    config = json.loads((local / "mlx" / "config.json").read_text())
    (local / "mlx" / "config.json").write_text(json.dumps(config | {"quantization": {"bits": 4, "group_size": 32}}))
    folder_of(tiny_wrappers.build("gemma3"), local / "images")
    translator = T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
    folder_of(T5ForConditionalGeneration(translator), local / "translator")
    partly = tiny_models.build("falcon", num_attention_heads=2)
    partly.config.alibi = True
    folder_of(partly, local / "refused")
    found = {name.removeprefix(f"{local}/"): entry for name, entry in listed(capsys, local).items()}
    assert set(found) == {"one/mamba", "mlx", "images", "translator", "refused"}
    assert found["one/mamba"]["patch"] == "leaves" and found["one/mamba"]["why"] == "not a known family"
    assert found["one/mamba"]["format"] == "safetensors bf16" and found["mlx"]["format"] == "mlx 4-bit"
    assert found["images"]["patch"] == "layers" and "Siglip" in found["images"]["why"]
    assert found["images"]["loader"] == "load" and found["translator"]["loader"] == "from_pretrained"
    assert found["images"]["architecture"] == "Gemma3ForConditionalGeneration"
    assert found["refused"]["patch"] == "leaves" and "alibi" in found["refused"]["why"].lower()
    assert main(["models", str(local)]) == 0
    table = capsys.readouterr().out
    assert "leaves only (by from_pretrained alone): " in table and "leaves only: config.alibi is set" in table
    assert "leaves only: not a known family" in table and "fused whole" in table and "fits: the weights alone" in table


def test_a_device_without_room(
    cache: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    needed = listed(capsys, tiny_model)[str(tiny_model)]["needed"]
    for free, fits, says in ((needed, True, "yes"), (needed - 1, False, f"no: {memory.size(needed)}")):
        monkeypatch.setattr(memory, "free", lambda device, free=free: free)
        assert listed(capsys, tiny_model)[str(tiny_model)]["fits"] is fits
        assert main(["models", str(tiny_model)]) == 0
        assert says in capsys.readouterr().out


def _unlink(name: str) -> Callable[[Path], object]:
    return lambda snapshot: (snapshot / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], object]:
    def write_text(snapshot: Path) -> None:
        (snapshot / name).unlink(missing_ok=True)
        (snapshot / name).write_text(text)

    return write_text


def _pickles(snapshot: Path) -> None:
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")


def _half(snapshot: Path) -> None:
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}')


BROKEN = {
    "config": (_write("config.json", "{"), "JSON"),
    "a-list": (_write("config.json", "[]"), "an object"),
    "no-config": (_unlink("config.json"), "config.json"),
    "own-code": (_write("config.json", '{"model_type": "of_its_own"}'), "ARCH_UNKNOWN"),
    "layers": (_write("config.json", '{"model_type": "llama", "num_hidden_layers": 1000000000}'), ""),
    "weights": (_write("model.safetensors", "no safetensors"), "ST_"),
    "no-weights": (_unlink("model.safetensors"), "NOT_MODEL"),
    "pickles": (_pickles, "PICKLE"),
    "half": (_half, "IDX_FILE"),
    "blob": (lambda snapshot: (snapshot / "model.safetensors").resolve().unlink(), "broken symlink"),
    "snapshots": (lambda snapshot: shutil.rmtree(snapshot.parent), "Snapshots dir"),
    "gguf": (_write("part.gguf", "GGUF"), "TRUNCATED"),
}


def test_what_is_broken_has_a_line(cache: Path, tiny_model: Path, capsys: pytest.CaptureFixture) -> None:
    cached(cache, "Good/Model", tiny_model)
    cached(cache, "Other/Revision", tiny_model, ref="v2")
    for name, (damage, _) in BROKEN.items():
        damage(cached(cache, f"Broken/{name}", tiny_model))
    found = listed(capsys, "/nowhere", cache.parent / "hub" / ".none")
    assert not found["Good/Model"]["problem"] and "main" in found["Other/Revision"]["problem"]
    assert "no such file" in found["/nowhere"]["problem"]
    for name, (_, reason) in BROKEN.items():
        entry = found[f"Broken/{name}/part.gguf" if name == "gguf" else f"Broken/{name}"]
        assert entry["problem"] and reason in entry["problem"] and "\n" not in entry["problem"], entry
    assert main(["models"]) == 0
    out, err = capsys.readouterr()
    assert out.count("not loaded: ") == len(BROKEN) + 1 and not err


def test_an_empty_cache(cache: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["models"]) == 0 and "torch-foundry models FOLDER" in capsys.readouterr().out
    cache.write_text("a file in its place")
    assert listed(capsys) == {}
