"""Machine code kept as text, so that tests run it where Mesa's compiler isn't."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from tools.agx.launch import Program
from torch_foundry.aot.prebuild import Launched

Programs = list[tuple[Launched, Program]]


def save(programs: Programs) -> str:
    """A line of JSON each, those that came more than once only once."""
    lines = [
        json.dumps({"kernel": _key(kernel)} | {k: _hex(v) for k, v in asdict(program).items()})
        for kernel, program in programs
    ]
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def load(text: str) -> Callable[[Launched], Program]:
    """What gives the program of a kernel that `save` wrote. It raises LookupError of another."""
    found = {json.dumps(row.pop("kernel")): row for row in map(json.loads, text.splitlines())}

    def program(kernel: Launched) -> Program:
        key = json.dumps(_key(kernel))
        if key not in found:
            raise LookupError(f"no machine code of {key}; `make agx UPDATE=1` records what checks run")
        return Program.of(found[key])

    return program


def _key(kernel: Launched) -> list[object]:
    return [kernel.file, kernel.entry, " ".join(f"{i}={v}" for i, v in kernel.constants.items()), kernel.threads]


def _hex(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
