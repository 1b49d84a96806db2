"""README.md: its Python runs, and its commands are ones that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import torch_foundry
from tests.io import towers
from torch_foundry import cli
from torch_foundry.demo_model import demo_model_path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)
    assert found
    return found


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


def test_every_block_of_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in one namespace; what they use, they define. The demo model, also as the GGUF file, has two
    of its layers."""
    monkeypatch.chdir(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(demo_model_path(), num_hidden_layers=2)
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    for part in (model, tokenizer):
        part.save_pretrained("demo")
    monkeypatch.setattr(torch_foundry.demo_model, "demo_model_path", lambda: tmp_path / "demo")
    torch_foundry.save_gguf(torch_foundry.patch(model, quantize="q4_k"), "model-q4_k_m.gguf", tokenizer)
    towers.write_text("qwen3_vl", tmp_path / "qwen3-vl-q4_k_m.gguf")
    towers.write_tower("qwen3_vl", tmp_path / "mmproj-f16.gguf")
    namespace: dict[str, Any] = {"torch": torch}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["stream"].finish_reason == "length"
    assert namespace["y"].tolist() == [2.0 * i for i in range(8)]


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("torch-foundry ")])
def test_commands_are_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed by the command itself, which then would begin."""
    words = shlex.split(line)[1:]
    monkeypatch.setattr(getattr(cli, words[0]), "run", lambda args: 17)
    assert cli.main(words) == 17


def test_targets_of_make_exist_and_are_listed() -> None:
    makefile = (ROOT / "Makefile").read_text()
    listed = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony and listed == set(phony[1].split())
    named = re.findall(r"^make ([a-z-]+)$", "\n".join(COMMANDS), re.M) + re.findall(r"`make ([a-z -]+)`", README)
    assert {target for words in named for target in words.split()} <= listed


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        file, _, anchor = target.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.M)
        anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target
