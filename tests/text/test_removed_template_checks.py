"""Every check of the renderer of chat templates is needed: without it, some template pays less, or ends otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tier("nightly")

# What looks at the clock, as no template may depend on it here; test_template.py measures those that do.
CLOCK = {
    "text.budget: time.thread_time() > self.deadline",
    "text.budget: spend(work=work)",
    "text.budget: look(*values)",
    "text.sandbox: look(value)",
    "text.sandbox: look(left, right)",
    "text.sandbox: look(argument)",
    "text.sandbox: look(*args)",
    "text.sandbox: spend()",
    "text.sandbox: spend() #2",
}


def test_a_removed_check_is_noticed() -> None:
    """In processes of their own, as processes without such a check may use up anything."""
    command = [sys.executable, "-m", "tests.text.template_mutation"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert {name for name, by in found.items() if not by} <= CLOCK
    assert len(found) >= 70
