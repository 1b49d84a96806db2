"""Checks removed from the renderer of chat templates, one at a time: python -m tests.text.template_mutation [modules].

Each runs in a process of its own with bounded memory and time, as a template without its budget may use up anything.
Prints the name of the check, and the template that notices (or nothing).
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.io.check_mutation import Check, Readers, checks
from tests.text.hostile import HOSTILE
from torch_foundry.core.load_errors import LoadError

MODULES = ("text.budget", "text.bounds", "text.sandbox", "text.template")
MEMORY = 1 << 27  # bytes beyond those of the process
LONG = 0.1  # seconds of a template that is left out
SECONDS = 3  # of CPU time for a template


def outcome(check_template: Any, template: str) -> str:
    try:
        check_template(template, "bad.gguf")
    except LoadError as error:
        return f"{error.code}: {error.found}"
    except BaseException as problem:
        return repr(problem)[:80]
    return ""


def noticed(check: Check, sound: dict[str, str]) -> str:
    """The hostile template that ends otherwise without this check; "" if there is none. sound: how, with all checks."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        found = ""
        try:
            template_check = Readers(check, MODULES).modules["text.template"].check_template
            for name, end in sound.items():
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # the signal's default is to end the process
                os.write(writing, b"\0" + name.encode())  # whoever ends the process is known
                if (other := outcome(template_check, HOSTILE[name][1])) != end:
                    found = f"{name}: {other or 'accepted'}"
                    break
                os.write(writing, b"\0")
        finally:
            os.write(writing, b"\0" + found.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        last = pipe.read().rpartition(b"\0")[2].decode()
    os.waitpid(child, 0)
    return last


def sound_ends() -> dict[str, str]:
    """How each template ends that ends soon and not by the clock."""
    check_template, found = Readers(None, MODULES).modules["text.template"].check_template, {}
    for name, (code, template) in HOSTILE.items():
        start = time.process_time()
        end = outcome(check_template, template)
        assert end.startswith(code), name
        found[name] = time.process_time() - start, end
    soon = sorted((seconds, name) for name, (seconds, end) in found.items() if not end.endswith(" s"))
    return {name: found[name][1] for seconds, name in soon if seconds < LONG}


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sound = sound_ends()
    for module in sys.argv[1:] or MODULES:
        for check in checks(module):
            print(f"{check.name}\t{noticed(check, sound)}", flush=True)


if __name__ == "__main__":
    main()
