"""`torch-foundry doctor`: is this machine all right, are the results right, and how fast is it?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import UserError, add_device_option, find_device
from torch_foundry.core.errors import first_line


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("doctor", help="check this machine and write a report", description=__doc__)
    add_device_option(parser)
    parser.add_argument("--quick", action="store_true", help="fewer checks and shapes")
    parser.add_argument("--icb", action="store_true", help="measure Metal's indirect command buffers, too")
    parser.add_argument(
        "--json", metavar="PATH", type=Path, help="where to write the report (default: a new file in this directory)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine, print, write. 0: all right, 1: something is wrong, 2: can't run here, 130: interrupted."""
    from torch_foundry.diagnostics.doctor.machine import machine
    from torch_foundry.diagnostics.doctor.report import Report, default_path, table

    report = Report(args.json or default_path())
    report.data["machine"] = machine()
    try:
        report.save()
    except OSError as error:
        raise UserError(f"{report.path}: cannot be written: {error.strerror}") from error
    code = _examine(args, report)
    print(table(report.data))
    print(f"\nreport: {report.path}")
    return code


def _examine(args: argparse.Namespace, report: Any) -> int:
    from torch_foundry.diagnostics.doctor.privacy import scrub

    try:
        from torch_foundry.diagnostics.doctor.examine import examine

        device = find_device(args.device)
        examine(device, report, args.quick, args.icb)
    except (UserError, ImportError) as error:
        report.fail(f"cannot run: {scrub(first_line(error))}")
        report.save()
        return 2
    except KeyboardInterrupt:
        report.data["interrupted"] = True
        report.save()
        return 130
    report.finish()
    return 1 if report.failures else 0
