"""Compiles the common kernels with Apple's compiler when the package is built: `python -m torch_foundry.aot.metallib`.

setup.py runs it on a Mac. It makes one metallib for each language version that the compiler knows. Without Xcode, which
has the compiler, kernels are compiled when they are first used, as are all kernels that are not common.

`--strict` makes nothing for the package: it holds every shader against Apple's compiler, and needs no built package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch_foundry.core import sources

# Level of the language -> the oldest macOS that has it.
LEVELS = {"3.1": "14.0", "3.2": "15.0", "4.0": "26.0"}
FAMILY = "apple9"  # of the GPUs whose kernels are compiled; the tuning table has the same for all of Apple's


def _xcrun(*command: str) -> tuple[bool, str]:
    """Run one of Apple's tools: whether it went well, and what it said."""
    try:
        result = subprocess.run(["xcrun", "-sdk", "macosx", *command], capture_output=True, text=True)
    except OSError as error:
        return False, str(error)
    good = result.returncode == 0
    return good, result.stderr.strip() or ("" if good else f"exit code {result.returncode}")


def _run(*command: str) -> str | None:
    """Run one of Apple's tools. None if it went well, else what it said."""
    good, said = _xcrun(*command)
    return None if good else said


def compile_command(level: str, source: Path, target: Path) -> list[str]:
    """The arguments of xcrun that compile one file. Safe math, as at run time, and nothing fused."""
    options = [f"-std=metal{level}", f"-mmacosx-version-min={LEVELS[level]}", "-O2", "-fno-fast-math"]
    options.append("-ffp-contract=off")
    return ["metal", *options, "-c", str(source), "-o", str(target)]


def library_name(entry: str) -> str:
    """What the executor looks for in a metallib (csrc/metal/library.mm): of a template's instance, an identifier."""
    return re.sub(r"\W", "_", entry) if "<" in entry else entry


def library_text(file: str, text: str, entries: Iterable[str]) -> str:
    """A shader's text with an instantiation of each template in `entries`, under `library_name`."""
    names = {entry: library_name(entry) for entry in entries if "<" in entry}
    made = [f'template [[host_name("{name}")]] [[kernel]] decltype({e}) {e};\n' for e, name in names.items()]
    return "".join([text, f'\n#line 1 "{file}: instance"\n', *made]) if made else text


def _compile_level(level: str, texts: Mapping[str, str], place: Path) -> tuple[list[str], list[str]]:
    """Write `kernels-LEVEL.metallib` into `place`: the files that are in it, and what went wrong with others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def compiled(file: str) -> str | None:
            (folder / file).write_text(texts[file])
            return _run(*compile_command(level, folder / file, folder / f"{file}.air"))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            problems = dict(zip(texts, pool.map(compiled, texts), strict=True))
        good = [file for file, problem in problems.items() if problem is None]
        bad = [f"{file} as Metal {level}: {problem}" for file, problem in problems.items() if problem is not None]
        if good:
            objects = [str(folder / f"{file}.air") for file in good]
            problem = _run("metallib", *objects, "-o", str(folder / "kernels.metallib"))
            if problem is None:
                made = (folder / "kernels.metallib").read_bytes()
                (place / f"kernels-{level}.metallib").write_bytes(made)
                sum_of = f"{hashlib.sha1(made).hexdigest()} {len(made)}\n"  # as csrc/core/disk_cache.cpp writes it
                (place / f"kernels-{level}.metallib.sum").write_text(sum_of)
            else:
                good, bad = [], [*bad, f"Metal {level}: {problem}"]
    return good, bad


def known_levels() -> list[str]:
    """Levels of the language that the compiler knows; none without a compiler."""
    with tempfile.TemporaryDirectory() as name:
        probe = Path(name) / "probe.metal"
        probe.write_text("#include <metal_stdlib>\n")
        return [level for level in LEVELS if _run(*compile_command(level, probe, probe.with_suffix(".air"))) is None]


def build(kernels: Sequence[tuple[str, str]], built: Path, place: Path | None = None) -> list[str]:
    """Compile `kernels` (shader file and instance) of the texts in `built/translated` into `place`, or `built/metal`.

    Returns the lines to print. `manifest.json` says what was made: by level, the library's name and, for each shader
    file in it, the SHA-1 of the text without instantiations. Nothing is left of an earlier build.
    """
    place = place or built / "metal"
    shutil.rmtree(place, ignore_errors=True)
    if problem := _run("metal", "--version"):
        return [f"kernels are compiled when they are first used: Apple's Metal compiler isn't here ({problem})"]
    place.mkdir(parents=True)
    plain = {file: (built / "translated" / file).read_text() for file in sorted({file for file, _ in kernels})}
    texts = {file: library_text(file, text, [e for f, e in kernels if f == file]) for file, text in plain.items()}
    manifest, lines = {}, []
    for level in known_levels():
        good, bad = _compile_level(level, texts, place)
        lines += [f"not compiled ahead of time: {line}" for line in bad]
        if good:
            hashes = {file: hashlib.sha1(plain[file].encode()).hexdigest() for file in good}
            manifest[level] = {"library": f"kernels-{level}.metallib", "texts": hashes}
            lines.append(f"kernels-{level}.metallib: {sum(file in good for file, _ in kernels)} kernels")
    (place / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return lines


def strict(shaders: Path, levels: Sequence[str]) -> bool:
    """Compile every `.metal` file of `shaders` at each level, with all instances that its comments name (as for lint);
    what has tensors, as Metal 4.0 alone.

    Prints a line for each file and what the compiler says, warnings too. Whether all compiled.
    """
    from torch_foundry.msl import translate
    from torch_foundry.msl.lint.unit import instances
    from torch_foundry.msl.syntax.preprocess import has_tensors

    work = []
    for shader in sources.shader_files(shaders):
        entries = sorted(set(instances(shader, include_dirs=[shaders])))
        text = library_text(shader.name, translate(shader, include_dirs=[shaders]).msl, entries)
        known = [level for level in levels if level == "4.0" or not has_tensors(text)]
        work += [(level, shader.name, text, len(entries)) for level in known]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compiled(job: tuple[str, str, str, int]) -> bool:
            level, file, text, count = job
            place = Path(name, level)
            place.mkdir(exist_ok=True)
            (place / file).write_text(text)
            good, said = _xcrun(*compile_command(level, place / file, place / f"{file}.air"), "-Wall")
            verdict = f"{'compiles' if good else 'FAILED'} as Metal {level} with {count} instances"
            print(f"{file}: {verdict}" + (f"\n{said}" if said else ""), flush=True)
            return good

        verdicts = list(pool.map(compiled, work))
    print(f"{sum(verdicts)} of {len(verdicts)} compile")
    return all(verdicts) and bool(verdicts)


def main() -> int:
    """Compile the kernels of `prebuild.calls` into the package; with --strict, exit code 1 if a shader fails."""
    package = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(prog="python -m torch_foundry.aot.metallib", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the kernels and compile nothing")
    parser.add_argument("--built", type=Path, default=package / "_built", help="where translated/ is and metal/ goes")
    parser.add_argument("--strict", action="store_true", help="only compile all shaders; exit code 1 on any error")
    parser.add_argument(
        "--levels", nargs="+", choices=LEVELS, default=list(LEVELS), help="of the language, for --strict"
    )
    parser.add_argument("--shaders", type=Path, default=package.parent / "shaders", help="for --strict")
    options = parser.parse_args()
    if options.strict:
        return 0 if strict(options.shaders, options.levels) else 1
    from torch_foundry.aot import prebuild

    kernels = prebuild.kernels(FAMILY)
    lines = [f"{file}: {entry}" for file, entry in kernels] if options.list else build(kernels, options.built)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
