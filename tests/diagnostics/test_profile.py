"""profile(): its launches are those of a token, its parts add up, and what can't be profiled says why."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from transformers.generation import utils

import torch_foundry
from tests.hf.tiny_models import build, ids
from torch_foundry.cli import main
from torch_foundry.diagnostics.profiling import KernelTime, Profile
from torch_foundry.diagnostics.profiling.svg import svg


@pytest.fixture(scope="module")
def found() -> Profile:
    return torch_foundry.profile(torch_foundry.patch(build("llama")), context=20, tokens=4)


def test_every_launch_of_a_token_has_a_line(found: Profile) -> None:
    launches: dict[str, int] = {}
    for line in found.lines:
        launches[line.scope] = launches.get(line.scope, 0) + line.launches
    layers = {name: n for name, n in launches.items() if name.startswith("layers.*")}
    assert layers == {"layers.*.attention": 2 * 3, "layers.*.mlp": 2 * 2}
    assert found.launches - sum(layers.values()) == 5  # embedding, norm, output layer, choice of a token in two


def test_bytes_are_those_of_the_weights_and_the_cache(found: Profile) -> None:
    model: Any = build("llama")
    weights = sum(p.nbytes for n, p in model.named_parameters() if "embed" not in n)
    assert weights < found.bytes < 1.2 * weights + 200_000


def test_the_parts_add_up(found: Profile) -> None:
    parts = found.kernels_s + found.gaps_s + found.rest_s
    assert parts == pytest.approx(found.generate_s)
    assert found.kernels_s == pytest.approx(sum(line.seconds for line in found.lines)) and found.kernels_s > 0


FIXED = Profile(
    "Model", "mps:0", "metal", "float16", "q8_0", 1, 64, read_gb_s=100.0, generate_s=1e-3, submit_s=1e-5,
    replay_s=0.9e-3, replay_again_s=0.95e-3,
    lines=[
        KernelTime("layers.*.mlp", "norm_glu<F16, half>", 24, 50_000_000, 0.6e-3), KernelTime("", "a&b", 1, 0, 0.2e-3),
    ],
)  # fmt: skip


def test_table() -> None:
    text = str(FIXED)
    cells = [line.split() for line in text.splitlines()]
    assert ["layers.*.mlp", "norm_glu<F16,", "half>", "24", "600.0", "83.3", "83", "60.0"] in cells
    assert "between kernels" in text and "1000.0 tokens/s a row; 25 launches, 50.0 MB a token" in text
    assert text.endswith("not what it would be without them.") and not FIXED.doubts
    assert text.startswith("Model, weights q8_0, activations float16 on mps:0 (metal)")


def test_json() -> None:
    data = json.loads(json.dumps(FIXED.to_json()))
    assert data["launches"] == 25 and data["gaps_s"] == pytest.approx(1e-4) and data["lines"][0]["bytes"] == 50_000_000
    assert "timed apart" in data["attribution_only"]


def test_picture() -> None:
    root = ET.fromstring(svg(FIXED))
    texts = [e.text or "" for e in root.iter() if e.tag.endswith("text")]
    assert "layers.*.mlp norm_glu<F16, half> x24" in texts and " a&b x1" in texts
    assert texts[0] == "Model, weights q8_0, activations float16 on mps:0: 1.00 ms a token"
    bars = [e for e in root.iter() if e.tag.endswith("rect") and e.get("x")]
    key = {text: bar.get("fill") for text, bar in zip(texts[1:5], bars[:4], strict=True)}
    assert list(key) == ["MLP", "outside the layers", "between kernels", "generate() beyond replays"]
    widths = [float(e.get("width", "0")) for e in bars[4:]]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)
    assert [e.get("fill") for e in bars[4:]] == list(key.values()) and len(set(key.values())) == 4


def outside(svg: str) -> list[str]:
    """The texts that leave the picture, set in the font that most systems take for sans-serif."""
    root = ET.fromstring(svg)
    found = []
    for e in (e for e in root.iter() if e.tag.endswith("text")):
        size = float(e.get("font-size", "12"))
        font = FontProperties(family="DejaVu Sans", weight=e.get("font-weight", "normal"))
        width = TextPath((0, 0), e.text or "", size=size, prop=font).get_extents().width
        x = float(e.get("x", "0")) - (width if e.get("text-anchor") == "end" else 0)
        if x < 0 or x + width > float(root.get("width", "0")):
            found.append(e.text or "")
    return found


def test_no_text_leaves_the_picture() -> None:
    """Neither long names and figures, nor the doubts of a busy machine."""
    lines = [KernelTime("layers.*.attention", "norm_qkv" + "<Q8_0Of<bfloat>, 4>" * 4, 24, 1, 123.4), *FIXED.lines]
    slow = dataclasses.replace(FIXED, lines=lines, generate_s=100.0, replay_s=150.0, weights="affine4_g64_bf16")
    assert len(slow.doubts) == 2 or len(slow.doubts) == 3
    assert not outside(svg(slow)) and not outside(svg(FIXED))
    assert not outside((Path(__file__).parents[2] / "benchmarks" / "cache_memory.svg").read_text())


@pytest.mark.parametrize(
    "seen, words",
    [
        ({"replay_again_s": 2e-3}, "a replay took 900.0 us before its kernels were timed and 2.00 ms after"),
        ({"lines": [KernelTime("", "a", 1, 0, 4.3e-3)]}, "the kernels take 478 % of a replay"),
        ({"replay_s": 3e-3, "replay_again_s": 3e-3}, "A replay took 3.00 ms and a token of generate()"),
    ],
)
def test_figures_that_contradict_each_other_are_doubted(seen: dict[str, Any], words: str) -> None:
    found = dataclasses.replace(FIXED, **seen)
    assert [words in doubt for doubt in found.doubts] == [True]
    assert words in str(found) and found.to_json()["doubts"] == found.doubts
    assert words in "".join(ET.fromstring(svg(found)).itertext())


def test_again_and_after_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that an earlier generation has left is no reason to see none; and nobody is warned."""
    said: list[Any] = []
    for name in ("warning", "warning_once"):
        monkeypatch.setattr(utils.logger, name, lambda *text: said.append(text))
    model = torch_foundry.patch(build("llama"), quantize="q8_0")
    first, second = (torch_foundry.profile(model, context=20, tokens=2) for _ in range(2))
    model.generate(ids(1, 20), max_new_tokens=3, do_sample=False)
    third = torch_foundry.profile(model, context=20, tokens=2)
    assert [(p.launches, p.bytes) for p in (second, third)] == [(first.launches, first.bytes)] * 2
    assert first.weights == "q8_0" and first.dtype == "float32" and not said


def test_no_token_ends_the_text_early() -> None:
    model = torch_foundry.patch(build("llama"))
    model.generation_config.eos_token_id = list(range(model.config.vocab_size))
    torch_foundry.profile(model, context=8, tokens=4)
    assert torch_foundry.report(model).tokens == 4 * 5 + 3 * 1


def test_what_cannot_be_profiled() -> None:
    with pytest.raises(RuntimeError, match=r"LlamaForCausalLM can't be profiled.*: the model is not patched"):
        torch_foundry.profile(build("llama"), context=4, tokens=2)
    patched = torch_foundry.patch(build("llama"))
    with pytest.raises(ValueError, match="expected at least 1, got 0, 1 and 64"):
        torch_foundry.profile(patched, context=0)
    with pytest.raises(ValueError, match="beyond the model's 256 positions"):
        torch_foundry.profile(patched, context=250)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, svg = tmp_path / "p.json", tmp_path / "p.svg"
    arguments = ["profile", "--context", "16", "--tokens", "2", "--json", str(report), "--picture", str(svg)]
    assert main(arguments) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out
    assert json.loads(report.read_text())["context"] == 16 and ET.parse(svg)
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "--picture", "p.png"])
    assert main(["profile", "--context", "16", "--tokens", "2", "--json", str(tmp_path / "no" / "p.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["profile", "--quantize", "q9"]) == 2
    assert "q9" in capsys.readouterr().err
