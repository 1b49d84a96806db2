"""The documents: their links lead somewhere, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_foundry.models.families import FAMILIES

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "tests/*.md", "benchmarks/*.md")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(folder))
LIVING = [path for path in DOCUMENTS if "decisions" not in path.parts and path.name != "RESULTS.md"]  # true of today
PATH = re.compile(r"`([\w.*-]+/[\w./*-]*)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors that headings get: lower case, blanks as hyphens, no other punctuation."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = document.parent / path if path else document
            assert target.exists(), f"{link}: no such file"
            assert not anchor or anchor in anchors(target.read_text()), f"{link}: no such heading"


@pytest.mark.parametrize("document", LIVING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_paths(document: Path) -> None:
    """Those in backticks, from the repository, the package, its folders or the document's: x stands for any name."""
    for path in PATH.findall(document.read_text()):
        if Path(path).stem.removeprefix("test_") != "x":
            folders = [
                ROOT,
                document.parent,
                *(ROOT / folder for folder in ("torch_foundry", "torch_foundry/io", "csrc")),
            ]
            assert any(any(folder.glob(path.rstrip("/"))) for folder in folders), f"{path}: no such file"


@pytest.mark.parametrize("document", LIVING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lines_are_short(document: Path) -> None:
    """But for tables, and addresses, which can't be broken."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "![", "[!["))]
    assert not [line for line in long if " " in line.strip()], "break these lines at 120 characters"


def test_every_decision_is_listed_once() -> None:
    folder = ROOT / "docs/decisions"
    names = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name[:3] for name in names] == [f"{i:03}" for i in range(1, len(names) + 1)]
    assert LINK.findall("\n".join(re.findall(r"^- .*$", (folder / "README.md").read_text(), re.M))) == names
    for name in names:
        text = (folder / name).read_text()
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Evidence", "Consequences")), name


def test_every_family_is_listed() -> None:
    """docs/families.md is written by `python -m tools.families`; a row of a family is no reason to forget it."""
    _, _, unknown = (ROOT / "docs/families.md").read_text().partition("## Not known")
    assert unknown and not [family.name for family in FAMILIES.values() if f"`{family.name}`" in unknown]
