"""Runs the C preprocessor over Metal source, with macro-only stand-ins for Apple's headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import MslError
from .vocabulary import UNSUPPORTED_HEADERS

Defines = Mapping[str, object]
STUB_HEADERS = Path(__file__).parent / "include"

_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)$", re.M)
_MISSING_HEADER = re.compile(r"^'?([^':]+)'?(?: file not found|: No such file or directory)")
_MARKER = re.compile(r'^# \d+ "((?:[^"\\]|\\.)*)"', re.M)


@dataclass(frozen=True)
class Preprocessed:
    """Source after preprocessing; `name` is how messages call the main file, `files` its include closure."""

    text: str
    name: str
    files: list[str]


def find_compiler() -> str:
    """The system's C++ compiler: $CXX, else the first of c++, g++, clang++."""
    for candidate in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if candidate and shutil.which(candidate.split()[0]):
            return candidate
    raise RuntimeError("no C++ compiler found (looked for $CXX, c++, g++ and clang++)")


def is_source(path_or_source: str | os.PathLike[str]) -> bool:
    """Whether the argument is shader text and not a path: no path holds a newline or a brace."""
    return isinstance(path_or_source, str) and any(c in path_or_source for c in "\n{;")


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
    command += ["-D" + define for define in _definitions(defines or {})]
    command += [part for directory in include_dirs for part in ("-I", os.fspath(directory))]
    command += ["-isystem", str(STUB_HEADERS)]
    if is_source(path_or_source):
        text = f'# 1 "{name}"\n{path_or_source}'
        result = subprocess.run([*command, "-"], input=text, capture_output=True, text=True)
    else:
        name = os.fspath(path_or_source)
        if not os.path.isfile(name):
            raise MslError(name, 0, "no such file")
        result = subprocess.run([*command, name], capture_output=True, text=True)
    if result.returncode:
        raise _error(result.stderr, name)
    main = [] if is_source(path_or_source) else [name]
    return Preprocessed(result.stdout, name, _files(result.stdout, main, name))


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
            out.append(key)
        else:
            out.append(f"{key}={int(value) if isinstance(value, bool) else value}")
    return out


def _files(text: str, main: list[str], name: str) -> list[str]:
    """Absolute paths of the files that the line markers name, our stand-in headers left out."""
    found = {os.path.abspath(file): None for file in main}
    for file in dict.fromkeys(_MARKER.findall(text)):
        if file.startswith("<") or file == name or Path(file).parent in (STUB_HEADERS, STUB_HEADERS / "simd"):
            continue
        if os.path.isfile(file):
            found[os.path.abspath(file)] = None
    return list(found)


def _error(stderr: str, name: str) -> MslError:
    m = _DIAGNOSTIC.search(stderr)
    if not m:
        lines = stderr.strip().splitlines()
        return MslError(name, 0, f"the preprocessor failed: {lines[-1] if lines else 'no message'}")
    message = m["message"]
    missing = _MISSING_HEADER.match(message)
    if missing:
        header = missing[1]
        feature = next((f for word, f in UNSUPPORTED_HEADERS.items() if word in header), None)
        message = f"{feature} ({header}) are not supported" if feature else f"included file '{header}' was not found"
    return MslError(m["file"], int(m["line"]), message)
