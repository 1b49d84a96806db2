"""The report: what is known so far, kept in a file while doctor works, and printed as a table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from torch_foundry.diagnostics.doctor.privacy import without_home

SCHEMA = 1  # grows when a reader would have to know
Row = dict[str, Any]


class Report:
    """What doctor found. `data` is the content of the JSON file.

    The file is rewritten at each step, so after an interrupt, a crash of the driver or a power cut it has what was
    found until then, `complete: false`, and the step that was running.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.failures: list[str] = []
        self.data: Row = {
            "schema": SCHEMA,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "complete": False,
            "at": "start",
            "failures": self.failures,
        }

    def step(self, name: str) -> None:
        """Note which step comes next, and save."""
        self.data["at"] = name
        self.save()

    def fail(self, what: str) -> None:
        """Note something that is wrong."""
        self.failures.append(what)

    def finish(self) -> None:
        """All was done."""
        self.data["complete"] = True
        self.data["at"] = "end"
        self.save()

    def save(self) -> None:
        """Write the file, in one piece."""
        if self.path is not None:
            temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
            try:
                temporary.write_text(json.dumps(without_home(self.data), indent=1) + "\n", encoding="utf-8")
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)


def default_path() -> Path:
    """A new file in the current directory, named by date and time."""
    return Path(f"torch-foundry-doctor-{time.strftime('%Y-%m-%d-%H%M%S')}.json")


# ------------------------------------------------------------------------------------------------------------- printing


def table(data: Row) -> str:
    """The report for a terminal: whatever of it there is."""
    lines = _header(data)
    sections = {
        "kernels": _kernels,
        "checks": _checks,
        "bandwidth": _bandwidth,
        "dispatch": _dispatch,
        "golden": _golden,
    }
    for name, show in (sections | {"indirect": _indirect}).items():
        if name in data:
            lines += show(data[name])
    if data.get("gemv"):
        read = None if data["emulated"] else data.get("bandwidth", {}).get("read_gb_s")
        lines += ["", *_gemv(data["gemv"], read)]
    if data["failures"]:
        lines += ["", "failed", *(f"- {_first_line(failure)}" for failure in data["failures"])]
    if data.get("advice"):
        lines += ["", "advice", *(f"- {text}" for text in data["advice"])]
    if not data["complete"]:
        lines += ["", f"NOT COMPLETE: ended at: {data['at']}"]
    return "\n".join(lines)


def _first_line(text: str) -> str:
    lines = text.splitlines()
    return lines[0] + (" [...]" if len(lines) > 1 else "")


def _line(title: str, *parts: object) -> str:
    return f"{title:<11} " + ", ".join(str(part) for part in parts if part)


def _header(data: Row) -> list[str]:
    machine, device = data["machine"], data.get("device", {})
    cores, memory = f"{machine['cpu_cores']} cores", f"{machine['memory_gib']} GiB"
    lines = [
        _line("torch-foundry", machine["torch_foundry"], f"Python {machine['python']}", f"torch {machine['torch']}")
        + f", transformers {machine['transformers']}",
        _line("machine", machine["system"], machine["model"], machine["chip"], machine["machine"], cores, memory),
    ]
    if device:
        gpu_cores = f"{device['gpu_cores']} cores" if device.get("gpu_cores") else None
        family = f"family {device['family']}" if device.get("family") else None
        executor = f"{device['executor']} executor"
        lines.append(_line("device", device["name"], executor, device.get("gpu"), gpu_cores, family))
        if data.get("emulated"):
            lines.append(_line("", "emulated on the CPU: figures say nothing about a GPU"))
        lines += [_line("stock torch", device.get("stock")), _line("ours", device.get("ours"))]
    return lines


def _kernels(row: Row) -> list[str]:
    failed = f"{len(row['failed'])} FAILED" if row["failed"] else None
    slowest = f"slowest {row['slowest_s']:.2f} s ({row['slowest']})" if row["slowest_s"] > 0.1 else None
    return [
        _line(
            "kernels",
            f"{row['compiled']} of {row['all']} compiled or loaded in {row['seconds']:.1f} s",
            failed,
            slowest,
        )
    ]


def _checks(row: Row) -> list[str]:
    failed = f"{len(row['failed'])} FAILED" if row["failed"] else None
    return [_line("checks", f"{row['passed']} of {row['all']} passed in {row['seconds']:.1f} s", failed)]


def _bandwidth(row: Row) -> list[str]:
    ours = f"read {row['read_gb_s']:.1f} GB/s, copy {row['copy_gb_s']:.1f} GB/s"
    return [_line("memory", ours, f"torch's copy {row['torch_copy_gb_s']:.1f} GB/s ({row['bytes'] >> 20} MiB)")]


def _dispatch(row: Row) -> list[str]:
    many = f"{row['from_python_us']:.1f} us in a row of {row['launches']}, {row['replayed_us']:.1f} us replayed"
    if row["concurrent_us"] is not None:
        many += f", {row['concurrent_us']:.1f} us with a concurrent encoder"
    return [_line("launch", f"{row['one_by_one_us']:.1f} us with a wait", many, f"{row['encode_us']:.1f} us to encode")]


def _golden(row: Row) -> list[str]:
    rows = row["families"]
    skipped = sum(each["skipped"] for each in rows)
    right = sum(not each["problem"] for each in rows)
    words = f"{right} of {len(rows)} families as close to float64 as stock"
    return [_line("golden", words, f"{skipped} skipped (transformers' version)" if skipped else None)]


def _indirect(row: Row) -> list[str]:
    return [_line("", row["no_indirect"] or f"{row['indirect_us']:.1f} us as an indirect command buffer")]


def _gemv(rows: list[Row], read_gb_s: float | None) -> list[str]:
    formats = list(dict.fromkeys(row["format"] for row in rows))
    dense = list(dict.fromkeys(row["format"] for row in rows if row["stock_gb_s"]))
    share = f"; share of the read bandwidth, {read_gb_s:.1f} GB/s, in brackets" if read_gb_s else ""
    lines = [f"one row of float16 times a weight [N, K] in each format: GB/s{share}"]
    heads = [*formats, *(f"stock {name}" for name in dense)]
    lines.append(f"{'weight':<17} {'N x K':>13}" + "".join(f"{head:>13}" for head in heads))
    for shape in dict.fromkeys((row["name"], row["n"], row["k"]) for row in rows):
        cells = {row["format"]: row for row in rows if (row["name"], row["n"], row["k"]) == shape}
        ours = [_cell(cells.get(name), "gb_s", read_gb_s) for name in formats]
        stock = [_cell(cells.get(name), "stock_gb_s", None) for name in dense]
        lines.append(f"{shape[0]:<17} {f'{shape[1]} x {shape[2]}':>13}" + "".join(f"{c:>13}" for c in ours + stock))
    return lines


def _cell(row: Row | None, key: str, read_gb_s: float | None) -> str:
    if row is None:
        return "-"
    if not row["valid"]:
        return "INVALID"
    return f"{row[key]:.1f}" + (f" ({row[key] / read_gb_s:.0%})" if read_gb_s else "")
