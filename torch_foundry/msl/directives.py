"""Comments to the checks, read from the original text: the preprocessor drops them.

`// foundry-lint: allow(rule, ..) reason` on a line, or alone on the line above it, allows the rules there; without a
reason it allows nothing. `// foundry-lint: instance(rms_norm<half, 4>)` asks to check that kernel instance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_ALLOW = re.compile(r"//\s*foundry-lint:\s*allow\(([^)]*)\)\s*(.*)")
_INSTANCE = re.compile(r"//\s*foundry-lint:\s*instance\((.*)\)\s*$", re.M)


class Comments:
    """Comments of the files that findings name; `given` holds the text of sources that are in no file."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._texts = dict(given or {})
        self._lines: dict[str, list[str]] = {}

    def text(self, file: str) -> str:
        if file not in self._texts:
            path = Path(file)
            self._texts[file] = path.read_text(errors="replace") if path.is_file() else ""
        return self._texts[file]

    def instances(self, file: str) -> list[str]:
        """The instances of kernel templates that the file wants checked."""
        return [m.strip() for m in _INSTANCE.findall(self.text(file))]

    def allows(self, file: str, line: int, rule: str) -> bool:
        """Whether a comment allows the rule on that line."""
        if file not in self._lines:
            self._lines[file] = self.text(file).split("\n")
        lines = self._lines[file]
        for number in (line, line - 1):
            text = lines[number - 1] if 0 < number <= len(lines) else ""
            m = _ALLOW.search(text)
            if m and m[2].strip() and (number == line or text.lstrip().startswith("//")):
                return rule in [name.strip() for name in m[1].split(",")]
        return False
