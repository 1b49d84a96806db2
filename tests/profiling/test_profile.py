"""profile(): its launches are those of a token, its parts add up, and what can't be profiled says why."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import torch_foundry
from tests.patch.zoo import build
from torch_foundry.cli import main
from torch_foundry.profiling import Line, Profile
from torch_foundry.profiling.picture import svg


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
    "Model", "mps:0", "metal", "float16", 1, 64, read_gb_s=100.0, generate_s=1e-3, submit_s=1e-5, replay_s=0.9e-3,
    lines=[Line("layers.*.mlp", "norm_glu<F16, half>", 24, 50_000_000, 0.6e-3), Line("", "a&b", 1, 0, 0.2e-3)],
)  # fmt: skip


def test_table() -> None:
    text = str(FIXED)
    cells = [line.split() for line in text.splitlines()]
    assert ["layers.*.mlp", "norm_glu<F16,", "half>", "24", "600.0", "83.3", "83", "60.0"] in cells
    assert "between kernels" in text and "1000.0 tokens/s a row; 25 launches, 50.0 MB a token" in text
    assert text.endswith("not what it would be without them.")


def test_json() -> None:
    data = json.loads(json.dumps(FIXED.to_json()))
    assert data["launches"] == 25 and data["gaps_s"] == pytest.approx(1e-4) and data["lines"][0]["bytes"] == 50_000_000
    assert "timed apart" in data["attribution_only"]


def test_picture() -> None:
    root = ET.fromstring(svg(FIXED))
    texts = [e.text or "" for e in root.iter() if e.tag.endswith("text")]
    assert "layers.*.mlp norm_glu<F16, half> x24" in texts and " a&b x1" in texts
    bars = [float(e.get("width", "0")) for e in root.iter() if e.tag.endswith("rect") and e.get("x")]
    assert bars[0] == pytest.approx(3 * bars[1], rel=0.01)


def test_what_cannot_be_profiled() -> None:
    with pytest.raises(RuntimeError, match=r"LlamaForCausalLM can't be profiled.*: the model is not patched"):
        torch_foundry.profile(build("llama"), context=4, tokens=2)
    patched = torch_foundry.patch(build("llama"))
    with pytest.raises(ValueError, match="expected at least 1, got 0, 1 and 64"):
        torch_foundry.profile(patched, context=0)
    with pytest.raises(ValueError, match="beyond the model's 256 positions"):
        torch_foundry.profile(patched, context=250)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, picture = tmp_path / "p.json", tmp_path / "p.svg"
    arguments = ["profile", "--context", "16", "--tokens", "2", "--json", str(report), "--picture", str(picture)]
    assert main(arguments) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out
    assert json.loads(report.read_text())["context"] == 16 and ET.parse(picture)
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "--picture", "p.png"])
    assert main(["profile", "--context", "16", "--tokens", "2", "--json", str(tmp_path / "no" / "p.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["profile", "--quantize", "q9"]) == 2
    assert "q9" in capsys.readouterr().err
