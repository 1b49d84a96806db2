"""Every check of the renderer of chat templates is needed: without it, some template pays less, or ends otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tier("nightly")

# What no template shows, and why.
REDUNDANT = {
    "text.budget: time.thread_time() > self._deadline": "the clock: no template may depend on it here",
}


def test_a_removed_check_is_noticed() -> None:
    """In processes of their own, as processes without such a check may use up anything."""
    command = [sys.executable, "-m", "tests.text.removal"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert {name for name, by in found.items() if not by} == REDUNDANT.keys()
    assert len(found) >= 110
