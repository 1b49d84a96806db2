"""`python -m torch_foundry.msl FILE..`: list, check, lint or translate Metal sources."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from .lint.host import check, check_text, find_prelude, with_instances
from .lint.unit import instances
from .model import Kernel, MslError, Translation
from .translate import translate


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 all well, 1 findings or kernels that do not compile, 2 a file that cannot be read or translated."""
    options = _parser().parse_args(argv)
    missing = [f for f in options.files if not os.path.isfile(f)]
    if missing:
        print(f"{missing[0]}: no such file", file=sys.stderr)
        return 2
    try:
        if options.lint:
            return _lint(options)
        return max(_one(file, options) for file in options.files)
    except MslError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_foundry.msl",
        description="Lists the kernels of Metal files, says which compile for the host, and checks MSL's own rules.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="Metal source")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="macro")
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="DIR", help="for #include")
    parser.add_argument("--metal-version", type=int, default=310, metavar="N", help="__METAL_VERSION__ (default 310)")
    parser.add_argument(
        "--entry",
        action="append",
        default=[],
        metavar="ENTRY",
        help="also check or lint this instance of a template, such as 'rms_norm<half, 4>'",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="kernels with their signatures (the default)")
    what.add_argument("--check", action="store_true", help="compile every kernel for the host, syntax only")
    what.add_argument("--emit", action="store_true", help="print the C++ text")
    what.add_argument("--lint", action="store_true", help="MSL's rules, and address spaces if clang is there")
    return parser


def _one(file: str, options: argparse.Namespace) -> int:
    translation = translate(file, **_settings(options))
    if options.emit:
        print(translation.source)
        return 0
    if options.check:
        return _check(file, with_instances(translation, [*options.entry, *instances(file, **_settings(options))]))
    _list(file, translation, several=len(options.files) > 1)
    return 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    pairs = (d.partition("=") for d in options.defines)
    return {
        "defines": {name: value if equals else None for name, equals, value in pairs},
        "include_dirs": options.include_dirs,
        "metal_version": options.metal_version,
    }


def _list(file: str, translation: Translation, several: bool) -> None:
    if several:
        print(f"{file}:")
    for kernel in translation.kernels:
        print(f"{kernel.name}({_arguments(kernel)})")
    for kernel in translation.templates:
        print(f"template {kernel.name}({_arguments(kernel)})")
    for constant in translation.function_constants:
        optional = "" if constant.required else ", optional"
        print(f"function constant {constant.index}: {constant.type} {constant.name}{optional}")


def _arguments(kernel: Kernel) -> str:
    out = []
    for a in kernel.args:
        where = a.builtin or f"{a.kind}({a.index})"
        out.append(f"{a.type} {a.name} [[{where}]]" + (f" if {a.optional_on}" if a.optional_on else ""))
    return ", ".join(out)


def _check(file: str, translation: Translation) -> int:
    prelude = find_prelude()
    if prelude is None:
        print("the host prelude (csrc/host/prelude/metal_prelude.h) was not found", file=sys.stderr)
        return 2
    if not translation.kernels:
        errors = check_text(translation, prelude)
        print("\n".join(errors) or f"{file}: no kernels to compile, the text is well formed")
        return 1 if errors else 0
    verdicts = check(translation, prelude)
    for verdict in verdicts:
        print(f"{'ok  ' if verdict.compiles else 'FAIL'} {verdict.kernel.name}")
        for error in verdict.errors[:3]:
            print(f"     {error}")
        if len(verdict.errors) > 3:
            print(f"     and {len(verdict.errors) - 3} more errors")
    good = sum(v.compiles for v in verdicts)
    instantiated = {k.signature for k in translation.kernels}
    lazy = sum(t.signature not in instantiated for t in translation.templates)
    print(f"{file}: {good} of {len(verdicts)} kernels compile" + (f", {lazy} templates without instances" * (lazy > 0)))
    return 0 if good == len(verdicts) else 1


def _lint(options: argparse.Namespace) -> int:
    from .lint import Finding, address_spaces, lint

    settings = _settings(options)
    findings: dict[Finding, None] = {}
    notes: dict[str, None] = {}
    for file in options.files:
        findings.update(dict.fromkeys(lint(file, **settings)))
        report = address_spaces.check(file, entries=options.entry, **settings)
        findings.update(dict.fromkeys(report.findings))
        if report.skipped:
            notes[f"address spaces: not checked, {report.skipped}"] = None
        elif report.gaps:
            notes[f"{file}: {len(report.gaps)} constructs unknown to the address-space check: {report.gaps[0]}"] = None
        if report.unchecked:
            names = ", ".join(report.unchecked)
            notes[f"{file}: address spaces not checked in {names}: a comment can name an instance"] = None
    for finding in findings:
        print(finding)
    for note in notes:
        print(note, file=sys.stderr)
    print(f"{len(options.files)} files, {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
