"""One measurement: a line of JSON. Without parity it is invalid, and nothing is concluded from it."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.clock import Times
from benchmarks.harness.machine import Machine

Kind = Literal["op", "e2e", "peer", "skipped"]
REQUIRED = ("kind", "name", "way", "format", "shape", "valid", "parity", "machine", "when")


@dataclass(frozen=True)
class Parity:
    """Whether the result that was timed is right. `ok` is None if nobody looked, which is as bad as wrong."""

    ok: bool | None = None
    criterion: str = "not checked"
    error: float | None = None  # relative L2, where the criterion has one
    detail: str = ""


@dataclass(frozen=True)
class Record:
    """A row of a benchmark.

    kind: "op", "e2e", "peer", or "skipped" with the reason in `reason`. name: op or model. way: who did it.
    format: of the weights, or the dtype of all. shape: what distinguishes the row, names to numbers.
    times, bytes, flops, launches: of one call (of one token for the whole batch); prefill: of a prompt. host_us: of the
    launches, in our launch path below Python (on the host executor that includes the kernels).
    stock: the baseline's name and times in the same run. as_stock: ours, called the way that the baseline was, if that
    is not how `times` were taken. attribution_only: times taken under a profiler.
    """

    kind: Kind
    name: str
    way: str
    format: str
    shape: dict[str, Any]
    machine: Machine
    times: Times | None = None
    prefill: Times | None = None
    bytes: int | None = None
    flops: int | None = None
    launches: float | None = None
    host_us: float | None = None
    parity: Parity = field(default_factory=Parity)
    stock: str | None = None
    stock_times: Times | None = None
    stock_bytes: int | None = None
    as_stock: Times | None = None
    flags: tuple[str, ...] = ()
    reason: str | None = None
    attribution_only: bool = False
    seed: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the figures may be used: right results, and times that are times (some are differences)."""
        timed = self.times is None or min(self.times.rounds) > 0.0
        return self.kind != "skipped" and self.parity.ok is True and timed and not self.attribution_only

    @property
    def gb_s(self) -> float | None:
        """Of the bytes that must be moved."""
        return _rate(self.bytes, self.times)

    @property
    def tflops(self) -> float | None:
        """Of the arithmetic that must be done."""
        rate = _rate(self.flops, self.times)
        return None if rate is None else rate / 1e3

    @property
    def speedup(self) -> float | None:
        """Over the baseline of the same run; None if the row is invalid."""
        if not self.valid or self.times is None or self.stock_times is None:
            return None
        return self.stock_times.median / (self.as_stock or self.times).median

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what was measured, and what follows from it."""
        row = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        row["machine"] = self.machine.as_dict()
        row["parity"] = dataclasses.asdict(self.parity)
        for name in ("times", "prefill", "stock_times", "as_stock"):
            row[f"{name}_us"] = None if row[name] is None else row[name].as_dict()
            del row[name]
        stock_gb_s = _rate(self.stock_bytes, self.stock_times)
        return {
            **row,
            "flags": list(self.flags),
            "valid": self.valid,
            "gb_s": _round(self.gb_s),
            "percent_of_bandwidth": self.machine.percent(self.gb_s),
            "stock_gb_s": _round(stock_gb_s),
            "tflops": _round(self.tflops),
            "speedup": _round(self.speedup),
            "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }


def _rate(amount: int | None, times: Times | None) -> float | None:
    return None if amount is None or times is None else amount / times.median / 1e9


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def append(path: Path, records: Iterable[Record]) -> None:
    """Write records behind those that `path` holds, a line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for record in records:
            file.write(json.dumps(record.as_dict()) + "\n")


def conclude(records: Sequence[Record], path: Path) -> int:
    """Print how many records were written to `path`; the exit code: 1 if one of them is invalid."""
    wrong = [r for r in records if not r.valid and r.kind != "skipped"]
    print(f"{len(records)} rows, {len(wrong)} invalid; records in {path}")
    return 1 if wrong else 0


def read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The rows of record files; ValueError names the file and line that is none."""
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                row = json.loads(line)
                missing = [name for name in REQUIRED if name not in row]
            except (ValueError, TypeError):
                row, missing = None, ["JSON"]
            if missing:
                raise ValueError(f"{path.name}:{number}: not a record: no {', '.join(missing)}")
            yield row
