"""Removes user names, host names and paths from error texts.

A report is meant to be attached to a public issue; what doctor itself writes holds nothing private.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
from pathlib import Path
from typing import Any

# an absolute path: all but its last part goes (Windows does not matter here)
_PATH = re.compile(r"(?<![\w.~>/])(?:/[^\s/:'\"`,;()\[\]<>]+)+/")
_SHORTEST = 3  # letters of a name that is worth looking for; shorter ones are in every text


def _names() -> list[tuple[str, str]]:
    """Private words and what stands for them."""
    found: list[tuple[str, str]] = []
    with contextlib.suppress(OSError, KeyError, ImportError):  # no such user, as in some containers
        found.append((getpass.getuser(), "<user>"))
    host = platform.node()
    found += [(host, "<host>"), (host.split(".")[0], "<host>")]
    return [(name, stand_in) for name, stand_in in found if len(name) >= _SHORTEST]


def scrub(text: str) -> str:
    """`text` without home directory, directories, user name and host name."""
    home = str(Path.home())
    if len(home) > 1:
        text = text.replace(home + os.sep, "~/").replace(home, "~")
    text = re.sub(r"~/(?:[^\s/:'\"`,;()\[\]<>]+/)+", "~/.../", text)
    text = _PATH.sub(".../", text)
    for name, stand_in in _names():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", stand_in, text)
    return text


def describe(error: BaseException) -> str:
    """An exception in words, for the report."""
    text = str(error).strip()
    return scrub(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def without_home(value: Any) -> Any:
    """A JSON structure in which no text has the home directory in it: a last line of defence."""
    home = str(Path.home())
    if isinstance(value, str):
        return value.replace(home, "~") if len(home) > 1 else value
    if isinstance(value, dict):
        return {key: without_home(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_home(each) for each in value]
    return value
