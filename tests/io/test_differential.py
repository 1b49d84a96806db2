"""Our readers and those of the gguf and safetensors packages agree on mutants, but where a rule says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.fuzz import differential, target


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_disagreements_are_explained(kind: str) -> None:
    agreed, rules, unexplained = differential.compare(kind, 0, 1500)
    assert not unexplained
    assert agreed + sum(rules.values()) == 1500 and agreed > 1200
    assert len(rules) >= 5  # were nothing compared, nothing would be explained


def test_what_no_rule_explains_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that take everything, and readers that refuse everything."""
    for answer in ("", "ALWAYS"):
        monkeypatch.setattr(target, "probe", lambda kind, data, answer=answer: answer)
        assert differential.compare("safetensors", 0, 200)[2]


def test_an_oracle_that_dies_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "oracle"
    program.write_text("#!/bin/sh\n[ $5 = 3 ] && exit 1\necho $5 fine; echo 1 fine; echo 2 fine\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(differential.sys, "executable", str(program))
    assert list(differential.oracles("gguf", 0, 4)) == [(0, "fine"), (1, "fine"), (2, "fine"), (3, "died")]
