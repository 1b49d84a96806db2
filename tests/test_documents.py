"""The documents: their links lead somewhere, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "tests/*.md", "benchmarks/*.md")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(folder))
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


def test_every_decision_is_listed_once() -> None:
    folder = ROOT / "docs/decisions"
    names = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name[:3] for name in names] == [f"{i:03}" for i in range(1, len(names) + 1)]
    assert LINK.findall("\n".join(re.findall(r"^- .*$", (folder / "README.md").read_text(), re.M))) == names
    for name in names:
        text = (folder / name).read_text()
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Evidence", "Consequences")), name
