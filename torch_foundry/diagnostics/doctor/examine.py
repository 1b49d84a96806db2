"""Runs the sections of a report one after the other, with a progress bar on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

import torch

from torch_foundry.aot import prebuild
from torch_foundry.core import devices, extension, runtime, tuning
from torch_foundry.diagnostics import golden, tune
from torch_foundry.diagnostics.doctor import machine, measure, selfcheck
from torch_foundry.diagnostics.doctor.advice import advice
from torch_foundry.diagnostics.doctor.privacy import describe
from torch_foundry.diagnostics.doctor.report import Report
from torch_foundry.testing.timing import synchronize
from torch_foundry.testing.tolerance import Mismatch, poisoned_outputs

Item = TypeVar("Item")


def unusable() -> dict[str, str]:
    """Devices that this machine has, or should have, and why they can't be used."""
    facts = {kind: device.facts() for kind, device in devices.DEVICES.items()}
    expected = [kind for kind, known in facts.items() if devices.DEVICES[kind].expected(known)]
    found = {kind: devices.DEVICES[kind].problem(runtime.has_executor(kind), facts[kind]) for kind in expected}
    return {kind: problem for kind, problem in found.items() if problem}


def examine(device: torch.device, report: Report, quick: bool, icb: bool = False) -> None:
    """Fill `report`. A section that raises is noted as a failure of its own; the others still run.

    icb: measure indirect command buffers too, when all else is done.
    """
    data = report.data
    data["emulated"] = emulated = devices.of(device).emulated
    data["device"] = describe_device(device)
    data["unusable"] = unusable()
    data["cache_bytes"] = machine.directory_size(extension.cache_dir())
    scale = measure.Scale.of(device, emulated, quick)
    _kernels(device, report, quick)
    _checks(device, report, quick)
    for name, measured in (("bandwidth", measure.bandwidth), ("dispatch", measure.dispatch)):
        report.step(name)
        try:
            data[name] = measured(device, scale)
        except Exception as error:  # of a compiler, a driver, an allocator
            report.fail(f"{name}: {describe(error)}")
    _gemv(device, report, quick, scale)
    if not quick:
        _golden(device, report)
    report.step("indirect command buffers")
    try:
        data["indirect"] = measure.indirect(device, scale, icb)
    except Exception as error:
        report.fail(f"indirect command buffers: {describe(error)}")
    data["advice"] = advice(data)


def describe_device(device: torch.device) -> dict[str, Any]:
    """The device, its executor, and which code stock torch and this package run on it."""
    known, family = devices.of(device), str(torch.ops.torch_foundry._family(str(device)))
    row = {"name": str(device), "executor": runtime.executor(device), "family": family, **known.describe(device)}
    with contextlib.suppress(tuning.TuningError, OSError):  # said where it is loaded
        row["tuned"] = len(tune.saved(device).entries)
    if known.compiles_ahead:  # Apple's GPUs, of which the table asks it
        row["subnormal_codes"] = runtime.subnormal_codes(device)
        if tensors := runtime.tensor_operations(device):
            row["tensors"] = asdict(tensors)
    return {**row, "stock": known.stock(torch.__version__), "ours": known.ours(row)}


def _bar(items: Iterable[Item], title: str) -> Iterable[Item]:
    from tqdm import tqdm

    return tqdm(list(items), desc=title, leave=False, disable=None)  # None: only on a terminal


def _kernels(device: torch.device, report: Report, quick: bool) -> None:
    calls = prebuild.of_dense_models(device) if quick else list(prebuild.calls(device))
    row: dict[str, Any] = {"all": len(calls), "compiled": 0, "seconds": 0.0, "failed": [], "slowest_s": 0.0}
    report.data["kernels"] = row
    for name, call in _bar(calls, "kernels"):
        report.step(f"compile {name}")
        start = time.perf_counter()
        try:
            call()
            synchronize(device)
            row["compiled"] += 1
        except Exception as error:
            row["failed"].append({"name": name, "error": describe(error)})
            report.fail(f"compile {name}: {describe(error)}")
        took = time.perf_counter() - start
        row["seconds"] += took
        if took > row["slowest_s"]:
            row["slowest"], row["slowest_s"] = name, took


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The checks' tensors are small: on a busy machine several torch threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _checks(device: torch.device, report: Report, quick: bool) -> None:
    suite = selfcheck.suite(quick)
    names = [check.name for check in suite]
    row: dict[str, Any] = {"all": len(suite), "passed": 0, "seconds": 0.0, "failed": [], "names": names}
    report.data["checks"] = row
    start = time.perf_counter()
    with poisoned_outputs(), _one_thread():
        for check in _bar(suite, "checks"):
            report.step(f"check {check.name}")
            try:
                check.run(device)
                row["passed"] += 1
            except Exception as error:
                words = str(error) if isinstance(error, Mismatch) else describe(error)
                row["failed"].append({"name": check.name, "error": words})
                report.fail(f"check {check.name}: {words}")
            row["seconds"] = time.perf_counter() - start


def _golden(device: torch.device, report: Report) -> None:
    rows: list[dict[str, Any]] = []
    report.data["golden"] = {"digest": golden.digest(), "families": rows}
    with _one_thread():
        for family in _bar(golden.recipes(), "golden logits"):
            report.step(f"golden logits of {family}")
            row = golden.check(family, device)
            rows.append(row.to_json())
            if row.problem and not row.skipped:
                report.fail(f"golden logits of {family}: {row.problem}")


def _gemv(device: torch.device, report: Report, quick: bool, scale: measure.Scale) -> None:
    rows = report.data["gemv"] = []
    for job in _bar(measure.gemv_jobs(quick, report.data["emulated"]), "GEMV"):
        name, n, k, fmt = job
        title = f"GEMV {name} [{n}, {k}] {fmt}"
        report.step(title)
        try:
            rows.append(measure.gemv(device, scale, job))
        except Exception as error:
            report.fail(f"{title}: {describe(error)}")
            continue
        if not rows[-1]["valid"]:
            report.fail(f"{title}: {rows[-1]['error']}")
