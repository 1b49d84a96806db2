"""Whether each kernel of a translation compiles for the host, and if not, with which errors.

All kernels are compiled at once, syntax and template instantiation only. An error belongs to the kernel on whose line
the compiler was working ("required from here"), or in whose text it lies, or else to those that use the function in
whose text it lies. A function template is instantiated for the first kernel that needs it and blamed on that one alone,
so what is left is compiled again until nothing fails.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..model import Kernel, MslError, Translation
from ..syntax.preprocess import find_compiler
from ..usage import users

_PLACE = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? *(?P<rest>.*)$")
_ERROR = re.compile(r"^(?:fatal )?error: (.*)$")
_REQUEST = "<kernel>"  # file name of the lines that ask for a kernel each, numbered by kernel
_ROUNDS = 4


@dataclass
class Verdict:
    """`errors` is empty if the kernel compiles."""

    kernel: Kernel
    errors: list[str] = field(default_factory=list)

    @property
    def compiles(self) -> bool:
        return not self.errors


@dataclass
class _Failure:
    file: str
    line: int
    message: str
    context: tuple[str, int] | None = None  # the line on whose behalf the compiler was working

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def find_prelude() -> Path | None:
    """The directory of the host prelude: in a checkout, or as the package was built."""
    package = Path(__file__).resolve().parents[2]
    for candidate in (package.parent / "csrc" / "host" / "prelude", package / "_built" / "host" / "prelude"):
        if (candidate / "metal_prelude.h").is_file():
            return candidate
    return None


def _includes(prelude: Path) -> list[str]:
    """The host's half of the prelude, and the half that all platforms share."""
    return [f"-I{prelude}", f"-I{prelude.parent.parent / 'prelude'}"]


def with_instances(translation: Translation, entries: Sequence[str]) -> Translation:
    """The translation with instances of its kernel templates, such as "rms_norm<half, 4>", as kernels of that name."""
    templates = {t.signature.removesuffix("_msl_args"): t for t in translation.templates}
    kernels = list(translation.kernels)
    for entry in entries:
        name, bracket, arguments = entry.partition("<")
        template = templates.get(name.strip())
        if template is None:
            raise MslError(translation.files[0] if translation.files else "<source>", 0, f"no kernel template: {entry}")
        kernels.append(replace(template, name=entry, entry=template.entry + bracket + arguments))
    return replace(translation, kernels=kernels)


def check(translation: Translation, prelude: Path, flags: Sequence[str] = ()) -> list[Verdict]:
    """A verdict on every kernel of the translation, in its order."""
    compiler = _Compiler(translation, [*_includes(prelude), *flags])
    verdicts = [Verdict(kernel) for kernel in translation.kernels]
    remaining = list(range(len(verdicts)))
    for _ in range(_ROUNDS):
        failures = compiler.run(remaining)
        blamed, common = _blame(failures, remaining, translation)
        if common:
            blamed = {k: blamed.get(k, []) + common for k in remaining}
        for k, errors in blamed.items():
            verdicts[k].errors += errors
        remaining = [k for k in remaining if not verdicts[k].errors]
        if not blamed or not remaining:
            return verdicts
    for k, errors in _bisect(compiler, remaining, translation):
        verdicts[k].errors += errors
    return verdicts


def check_text(translation: Translation, prelude: Path) -> list[str]:
    """Errors of the text itself, no kernel template instantiated."""
    return [str(f) for f in _Compiler(translation, _includes(prelude)).run([])]


class _Compiler:
    def __init__(self, translation: Translation, flags: Sequence[str]) -> None:
        self._translation = translation
        command = find_compiler().split()
        version = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
        self._clang = "clang" in version
        own = ["-ferror-limit=0", "-fno-caret-diagnostics", "-fno-color-diagnostics"]
        if not self._clang:
            own = ["-fmax-errors=0", "-fno-diagnostics-show-caret", "-fdiagnostics-color=never"]
        self._command = [*command, "-x", "c++", "-std=c++17", "-fsyntax-only", "-w", *own, *flags]
        self._command += ["-ftemplate-backtrace-limit=0"]

    def run(self, chosen: Sequence[int]) -> list[_Failure]:
        """Compiles the text with the chosen kernels."""
        kernels = self._translation.kernels
        requests = [
            f'# {k + 1} "{_REQUEST}"\nMSL_KERNEL("{kernels[k].name}", {kernels[k].signature}, {kernels[k].entry})\n'
            for k in chosen
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
            file.write(f"{self._translation.source}\n{''.join(requests)}")
            file.flush()
            result = subprocess.run([*self._command, file.name], capture_output=True, text=True)
        if not result.returncode:
            return []
        failures = list(_failures(result.stderr))
        if self._clang:
            _inherit(failures)
        if not failures:
            raise RuntimeError(f"{self._command[0]} failed: {result.stderr.strip() or result.returncode}")
        return failures


def _failures(stderr: str) -> Iterator[_Failure]:
    """The errors in a compiler's output, each with the kernel in its context.

    g++ prints the context before the error and leaves it out where it stays the same; clang prints it after.
    """
    context: tuple[str, int] | None = None
    last: _Failure | None = None
    for row in stderr.splitlines():
        m = _PLACE.match(row)
        if not m:
            if "In instantiation of" not in row and "required" not in row:
                context = None  # "In function f:", and no instantiation on the way to it
            continue
        place = m["file"], int(m["line"])
        error = _ERROR.match(m["rest"])
        if error:
            if last:
                yield last
            last = _Failure(*place, error[1], place if place[0] == _REQUEST else context)
        elif m["rest"].startswith("note:"):
            asks = "instantiation" in m["rest"] or (place[0] == _REQUEST and "expansion of macro" in m["rest"])
            if last and asks and (last.context is None or last.context[0] != _REQUEST):
                last.context = place  # the outermost comes last
        elif "required from" in m["rest"]:
            context = place
    if last:
        yield last


def _inherit(failures: list[_Failure]) -> None:
    """clang leaves the context out where it stays the same; it instantiates after it has read the whole text."""
    for earlier, later in itertools.pairwise(failures):
        if later.context is None:
            later.context = earlier.context


def _blame(
    failures: list[_Failure], chosen: Sequence[int], translation: Translation
) -> tuple[dict[int, list[str]], list[str]]:
    """Errors by kernel, and those of the text that all kernels share."""
    blamed: dict[int, list[str]] = {}
    common: list[str] = []
    for failure in failures:
        guilty = _guilty(failure, translation)
        if guilty is None:
            common.append(str(failure))
            continue
        for k in guilty & set(chosen):
            errors = blamed.setdefault(k, [])
            if str(failure) not in errors:
                errors.append(str(failure))
    return blamed, common


def _guilty(failure: _Failure, translation: Translation) -> set[int] | None:
    """Indices of the kernels that an error belongs to; None if it belongs to all or to none."""
    if failure.context is not None and failure.context[0] == _REQUEST:
        return {failure.context[1] - 1}
    places = [place for place in (failure.context, (failure.file, failure.line)) if place is not None]
    signatures = next((found for place in places if (found := _enclosing(place, translation))), None)
    if signatures is None:
        signatures = next((found for place in places if (found := users(translation, *place))), None)
    if signatures is None:
        return None
    return {k for k, kernel in enumerate(translation.kernels) if kernel.signature in signatures}


def _enclosing(place: tuple[str, int], translation: Translation) -> set[str] | None:
    """The signature of the kernel function in whose text a line lies."""
    for kernel in (*translation.kernels, *translation.templates):
        if kernel.file == place[0] and kernel.line <= place[1] <= kernel.end_line:
            return {kernel.signature}
    return None


def _bisect(compiler: _Compiler, chosen: list[int], translation: Translation) -> Iterator[tuple[int, list[str]]]:
    """Failing kernels among the chosen, found by compiling ever smaller groups."""
    failures = compiler.run(chosen)
    if not failures:
        return
    if len(chosen) == 1:
        yield chosen[0], [str(f) for f in failures]
        return
    blamed, _ = _blame(failures, chosen, translation)
    yield from blamed.items()
    rest = [k for k in chosen if k not in blamed]
    half = len(rest) // 2
    for part in (rest[:half], rest[half:]):
        if part:
            yield from _bisect(compiler, part, translation)
