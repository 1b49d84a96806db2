"""Runs the C preprocessor over Metal source, with macros alone in the place of Apple's headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model import MslError
from .resolve import ERROR, resolve
from .vocabulary import UNSUPPORTED_HEADERS

Defines = Mapping[str, object]

# Before every text that Apple's compiler gets: a * b + c is rounded twice, as on the other executors, which safe math
# alone doesn't ask for. In C's words, which each clang knows, and in Metal's; what a compiler doesn't know, it skips.
HEAD = "#pragma STDC FP_CONTRACT OFF\n#pragma METAL fp contract(off)\n"

# Apple's headers of tensors and of products of them, which Metal 4.0 has.
TENSORS = r"metal_tensor|MetalPerformancePrimitives/MetalPerformancePrimitives\.h"
_TENSORS = re.compile(rf"^\s*#\s*include\s*<(?:{TENSORS})>", re.M)

# Apple's headers: what is in them has the prelude, but for macros.
_OF_APPLE = re.compile(
    rf"^(\s*#.*)<(?:{TENSORS}|metal_(?:array|atomic|command_buffer|common|compute|config|geometric|graphics|integer|limits|logging"
    r"|math|matrix|numeric|pack|packing|quadgroup|relational|simdgroup|simdgroup_matrix|stdlib|texture|type_traits|types"
    r"|uniform|vector)|simd/(?:common|math|matrix|matrix_types|simd|types|vector|vector_types)\.h)>",
    re.M,
)
_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)$", re.M)
_MISSING_HEADER = re.compile(r"^'?([^':]+)'?(?: file not found|: No such file or directory)")


@dataclass(frozen=True)
class Preprocessed:
    """Source after preprocessing; `name` is how messages call the main file, `files` its include closure.

    `msl` is the source before, with `defines` and includes in place, after `HEAD`: what Apple's compiler gets.
    """

    text: str
    name: str
    files: list[str]
    msl: str


def has_tensors(msl: str) -> bool:
    """Whether a text includes Apple's headers of tensors, so that it is one for Metal 4.0 alone."""
    return _TENSORS.search(msl) is not None


def find_compiler() -> str:
    """The system's C++ compiler: $CXX, else the first of c++, g++, clang++."""
    for candidate in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if candidate and shutil.which(candidate.split()[0]):
            return candidate
    raise RuntimeError("no C++ compiler found (looked for $CXX, c++, g++ and clang++)")


def preprocess(
    path_or_source: str | os.PathLike[str],
    *,
    defines: Defines | None = None,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    metal_version: int = 310,
    name: str = "<source>",
) -> Preprocessed:
    """Preprocessed text with line markers. `name` is used in messages for source given as text."""
    command = [*find_compiler().split(), "-E", "-x", "c++", "-undef", "-nostdinc", "-w"]
    command += ["-std=c++17" if metal_version >= 400 else "-std=c++14"]
    command += [f"-D{macro}" for macro in _predefined(metal_version)]
    command += ["-isystem", str(Path(__file__).parents[1]), "-"]
    resolved = resolve(path_or_source, include_dirs=include_dirs, name=name)
    msl = HEAD + "".join(f"#define {define}\n" for define in _definitions(defines or {})) + resolved.text
    result = subprocess.run(command, input=_OF_APPLE.sub(r"\1<msl_macros.h>", msl), capture_output=True, text=True)
    if result.returncode:
        raise _error(result.stderr, resolved.name)
    return Preprocessed(result.stdout, resolved.name, resolved.files, msl)


def _predefined(metal_version: int) -> list[str]:
    return [
        "__METAL__=1",
        f"__METAL_VERSION__={metal_version}",
        "__METAL_MACOS__=1",
        "__HAVE_BFLOAT__=1",
        "__HAVE_SIMDGROUP_MATRIX__=1",
        "__HAVE_ATOMIC_FLOAT__=1",
        "__LITTLE_ENDIAN__=1",
        "__FLT_MAX__=0x1.fffffep127f",
        "__FLT_MIN__=0x1p-126f",
        "__FLT_EPSILON__=0x1p-23f",
        "__FLT_DIG__=6",
        "__FLT_MANT_DIG__=24",
        "__INT_MAX__=2147483647",
        "__LONG_MAX__=0x7fffffffffffffffL",
        "__SCHAR_MAX__=127",
        "__SHRT_MAX__=32767",
        "__CHAR_BIT__=8",
    ]


def _definitions(defines: Defines) -> list[str]:
    out = []
    for key, value in defines.items():
        if value is None:
            out.append(f"{key} 1")
        else:
            out.append(f"{key} {int(value) if isinstance(value, bool) else value}")
    return out


def _error(stderr: str, name: str) -> MslError:
    m = _DIAGNOSTIC.search(stderr)
    if not m:
        lines = stderr.strip().splitlines()
        return MslError(name, 0, f"the preprocessor failed: {lines[-1] if lines else 'no message'}")
    message = m["message"].removeprefix(f"#error {ERROR}").removeprefix(ERROR)
    missing = _MISSING_HEADER.match(message)
    if missing:
        header = missing[1]
        feature = next((f for word, f in UNSUPPORTED_HEADERS.items() if word in header), None)
        message = f"{feature} ({header}) are not supported" if feature else f"included file '{header}' was not found"
    return MslError(m["file"], int(m["line"]), message)
