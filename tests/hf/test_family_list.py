"""docs/families.md: what it says of every causal language model of transformers is so."""

from __future__ import annotations

import re

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tools import families
from torch_foundry.hf.report import UNKNOWN, WHOLE

LISTED = families.DOCUMENT.read_text()


def part(kind: int) -> set[str]:
    """Folders under the heading of that kind, which is left out if there are none."""
    title = families.TITLES[kind][0]
    found = re.search(rf"^## {title} \((\d+)\)\n.*?\n(.*?)(?=^## |\Z)", LISTED, re.M | re.S)
    if not found:
        assert title not in LISTED
        return set()
    names = re.findall(r"`([\w-]+)`" if "| folder" not in found[2] else r"^\| `([\w-]+)`", found[2], re.M)
    assert len(names) == int(found[1]) == len(set(names))
    return set(names)


def test_every_folder_is_listed_once() -> None:
    parts = [part(kind) for kind in range(len(families.TITLES))]
    folders = {CONFIG_MAPPING[name].__module__.split(".")[2] for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    assert sum(map(len, parts)) == len(folders) and set().union(*parts) == folders


@pytest.mark.parametrize("name, kind", [("llama", WHOLE), ("mamba", UNKNOWN)])
def test_a_folder_is_what_the_list_says(name: str, kind: int) -> None:
    assert families.look(name).kind == kind and name in part(kind)


@pytest.mark.tier("models")
def test_the_list_is_what_patch_does() -> None:
    kinds = {folder: outcome.kind for folder, outcome in families.outcomes().items()}
    listed = {folder: kind for kind in range(len(families.TITLES)) for folder in part(kind)}
    assert kinds == listed, "run python -m tools.families"


def test_what_waits_for_a_block_is_listed() -> None:
    assert all(f"| {what} | {why} |" in LISTED for what, why in families.MISSING.items())
