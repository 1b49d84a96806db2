"""Memory that a process has without having asked for it; imports nothing, for processes whose memory is measured."""

from __future__ import annotations

import re
from pathlib import Path


def library_pages() -> int:
    """Bytes of libraries that are in memory. Where the system is short of memory it takes them, and they come back."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = ".so" in line.rpartition("/")[2]
        elif counts and line.startswith(("Rss:", "Anonymous:")):  # relocated and written pages are not the file's
            name, size, _ = line.split()
            total += int(size) * 1024 * (1 if name == "Rss:" else -1)
    return total
