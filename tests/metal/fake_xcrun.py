#!/usr/bin/env python3
"""Stands for Xcode's tools in tests: `xcrun -sdk macosx metal ...` and `... metallib ...`, whose files are the mock's.

FAKE_XCRUN: JSON with `levels` (of the language that it knows), `bad` (a file that does not compile) and `log`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    sdk, macosx, program, *arguments = sys.argv[1:]
    settings = json.loads(os.environ["FAKE_XCRUN"])
    with open(settings["log"], "a") as log:
        log.write(json.dumps([program, *arguments]) + "\n")
    assert (sdk, macosx) == ("-sdk", "macosx")
    if not settings["levels"]:
        print(f'xcrun: error: unable to find utility "{program}", not a developer tool or in PATH', file=sys.stderr)
        return 72
    if arguments == ["--version"]:
        return 0
    target = Path(arguments[arguments.index("-o") + 1])
    if program == "metallib":
        sources = [Path(argument) for argument in arguments[: arguments.index("-o")]]
        target.write_text("".join(source.read_text() for source in sources))
        return 0
    (standard,) = (a.removeprefix("-std=metal") for a in arguments if a.startswith("-std="))
    source = Path(arguments[arguments.index("-c") + 1])
    if standard not in settings["levels"]:
        print(f"error: invalid value 'metal{standard}' in '-std=metal{standard}'", file=sys.stderr)
        return 1
    if source.name == settings.get("bad"):
        print(f"{source.name}:7:1: error: expected expression", file=sys.stderr)
        return 1
    text = source.read_text()
    target.write_text(f"MockMetallib {standard.replace('.', '')}0\n{text}" + ("" if text.endswith("\n") else "\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
