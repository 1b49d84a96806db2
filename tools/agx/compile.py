"""From a kernel instance to Apple's machine code: C++ for OpenCL, LLVM IR, SPIR-V, Mesa's compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.agx import opencl, record
from tools.agx.air import Loop, main_loop
from tools.agx.kernels import SHADERS
from tools.agx.launch import Program
from torch_foundry.aot.prebuild import Launched
from torch_foundry.core.sources import digest, shader_files

CLANG, OPT, TRANSLATOR = "clang-15", "opt-15", "llvm-spirv-15"
OPTIONS = (
    "-x clcpp -cl-std=clc++2021 -cl-no-stdinc -target spir64-unknown-unknown -Xclang -no-opaque-pointers -O2"
    " -fno-vectorize -fno-slp-vectorize -fno-strict-aliasing -ffp-contract=off -mllvm -disable-loop-idiom-memcpy"
    " -mllvm -disable-loop-idiom-memset -w -emit-llvm -S -o -"
)


class CompileError(Exception):
    """A compiler refused a kernel; the text is what it said."""


class Compiler:
    """Compiles kernels with Mesa's compiler `agx_stats`, and keeps results in `cache` by content."""

    def __init__(self, agx_stats: Path, cache: Path) -> None:
        self._agx_stats, self._cache = agx_stats, cache
        self._shaders = {path.name: path for path in shader_files(SHADERS)}
        headers = [path.read_bytes() for folder in opencl.HEADERS for path in sorted(folder.glob("*.h"))]
        self._tools = digest(OPTIONS.encode(), agx_stats.read_bytes(), Path(__file__).read_bytes(), *headers)
        cache.mkdir(parents=True, exist_ok=True)

    def try_row(self, kernel: Launched) -> record.Row | str:
        """The kernel's row, or what went wrong."""
        text, label, _ = self._source(kernel)
        try:
            found = self._compiled(text)
        except CompileError as error:
            return f"{label}: {error}"
        return record.row(kernel.file, label, kernel.threads, found["stats"], Loop(**found["loop"]))

    def program(self, kernel: Launched) -> Program:
        """The kernel's machine code, to be run. Raises CompileError."""
        text, _, buffers = self._source(kernel)
        return Program.of({**self._compiled(opencl.to_be_run(text)), "buffers": buffers})

    def code(self, kernel: Launched) -> str:
        """The kernel's instructions, in Mesa's words, last form last. Raises CompileError."""
        return self._printed(self._source(kernel).text)

    def _source(self, kernel: Launched) -> opencl.Source:
        return opencl.source(kernel, self._shaders[kernel.file], SHADERS)

    def _compiled(self, text: str) -> dict[str, Any]:
        """What `agx_stats` prints of a text, and its main loop."""
        kept = self._cache / f"{digest(text.encode(), self._tools.encode())}.json"
        if not kept.exists():
            printed = self._printed(text)
            found = json.loads(printed.splitlines()[-1])
            kept.write_text(json.dumps({**found, "loop": asdict(main_loop(printed))}))
        return dict(json.loads(kept.read_text()))

    def _printed(self, text: str) -> str:
        includes = [word for folder in opencl.HEADERS for word in ("-I", str(folder))]
        ir = _run([CLANG, *OPTIONS.split(), *includes, "-"], text)
        # SPIR-V has no freeze; a bitcast to the same type is forgotten by opt.
        ir = re.sub(r"= freeze ([^%]+?) (%[\w.]+)", r"= bitcast \1 \2 to \1", ir)
        # In LLVM p->array[-1] may be within an allocation; Mesa takes indices that are in bounds as unsigned.
        ir = ir.replace("getelementptr inbounds", "getelementptr")
        with tempfile.TemporaryDirectory() as folder:
            bitcode, spirv = f"{folder}/kernel.bc", f"{folder}/kernel.spv"
            _run([OPT, "-passes=instsimplify", "-", "-o", bitcode], ir)
            _run([TRANSLATOR, "--spirv-max-version=1.3", bitcode, "-o", spirv])
            return _run([str(self._agx_stats), spirv], AGX_MESA_DEBUG="shaders")


def _run(command: list[str], text: str = "", **environment: str) -> str:
    settings = {**os.environ, **environment}
    result = subprocess.run(command, input=text, capture_output=True, text=True, env=settings)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error:" in line] or result.stderr.splitlines()[-1:]
        raise CompileError(f"{Path(command[0]).name}: {lines[0] if lines else f'exit code {result.returncode}'}")
    return result.stdout
