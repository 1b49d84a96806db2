"""A process that runs cases, one a line of JSON on its input; if a kernel crashes, only it is lost.

python -m tests.air.worker METALLIB RUNTIME GLUE
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import tests.air.without_torch  # noqa: F401  (before the others: a process is there in a moment)
from tests.air import execute, launches, module, mutations, projects
from tests.air.metallib import MetalLib


def run(runtime: execute.Runtime, lib: MetalLib, glue: ctypes.CDLL, order: dict[str, Any]) -> dict[str, Any]:
    """What came of one case: `order` has its name, its library, and how it is to be run."""
    recorded = order.get("recorded")
    case = launches.read(Path(recorded)) if recorded else projects.ALL[order["project"]].case(order["name"])
    began = time.perf_counter()
    text = module.disassembled(lib.bitcode(case.name))
    mutate = mutations.ALL[order["mutation"]] if order.get("mutation") else lambda text: text
    entry, kept = execute.from_air(case, text, glue, order.get("contract", False), mutate)
    result: dict[str, Any] = {"compile": time.perf_counter() - began}
    source = execute.from_source(ctypes.CDLL(order["library"]), case.name) if case.has_source else None
    buffers = case.buffers()
    for flush in (False, True):
        runtime.flush_subnormals(flush)
        got = runtime.launch(entry, case, buffers)
        if case.wanted:
            found = execute.against(got, case.wanted(buffers), buffers)
        elif case.after:
            found = execute.differences(got, case.after(flush), buffers)
        else:
            found = execute.differences(got, runtime.launch(source, case, buffers), buffers)
        untouched = all(got[i].tobytes() == buffers[i].array.tobytes() for i in buffers)
        result["flushed" if flush else "kept"] = found | {"untouched": untouched}
    del kept
    return result


def main() -> None:
    metallib, runtime_path, glue_path = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lib, runtime, glue = MetalLib(Path(metallib)), execute.Runtime(Path(runtime_path)), ctypes.CDLL(glue_path)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            result = run(runtime, lib, glue, order)
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
