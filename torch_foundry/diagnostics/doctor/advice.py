"""Advice for the user, drawn from a report: one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_foundry.core import devices, environment, support
from torch_foundry.diagnostics.doctor.machine import APPLE_GB_S

LARGE_CACHE = 2**30  # bytes
MODEL_GB = 0.99  # of a model of 0.5 B parameters in float16: what each token reads


def advice(data: dict[str, Any]) -> list[str]:
    """Sentences about `data`, the more important ones first."""
    devices = [_sentence(f"not used: {kind}: {problem}") for kind, problem in data.get("unusable", {}).items()]
    return [*_results(data), *devices, *_machine(data["machine"]), *_device(data), *_figures(data)]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _results(data: dict[str, Any]) -> Iterator[str]:
    if data["failures"]:
        yield "Something is wrong: please open an issue and attach this report."


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    if warning := support.torch_warning(machine["torch"]):
        yield _sentence(warning)
    if machine.get("low_power"):
        yield "Low power mode is on: figures are lower than this Mac's best (System Settings, Battery)."
    for name, value in machine["environment"].items():
        if name == environment.SANITIZE.name:
            yield f"{name}={value}: kernels run under a sanitizer, many times slower."
        elif name.startswith("MTL_") and value != "0":
            yield f"{name}={value}: Metal's validation is on, which costs speed."


def _device(data: dict[str, Any]) -> Iterator[str]:
    machine, device = data["machine"], data.get("device", {})
    if data.get("emulated"):
        yield "The kernels ran on the CPU: results count, figures don't."
    yield from devices.named(device.get("name", "")).advice(machine["torch"])
    if machine.get("virtual") or "paravirtual" in str(device.get("gpu", "")).lower():
        yield "This is a virtual machine: its GPU is slower than the chip's, and indirect command buffers are off."
    if device.get("metal", {}).get("library") == "jit":
        yield (
            "Kernels are compiled from source when first used; with Xcode installed, building torch_foundry again "
            "compiles them ahead of time."
        )
    measured = str(device.get("family", "")).startswith(devices.named(device.get("name", "")).measured)
    if not (measured or data.get("emulated") or device.get("tuned", 1)):
        yield (
            "No choice of kernels was measured on a GPU of this kind: `torch-foundry tune MODEL` measures those that a "
            "model depends on."
        )
    if (size := data.get("cache_bytes", 0)) > LARGE_CACHE:
        yield f"The kernel cache holds {size / 2**30:.1f} GiB; it can be deleted at any time."


def _figures(data: dict[str, Any]) -> Iterator[str]:
    if data.get("emulated") or "bandwidth" not in data:
        return
    read = data["bandwidth"]["read_gb_s"]
    stated = APPLE_GB_S.get(str(data["machine"]["chip"]).removeprefix("Apple "))
    if stated and read < 0.6 * stated:
        yield f"Reading reaches {read:.0f} of the {stated} GB/s that Apple states: is something else using the GPU?"
    limit = read / MODEL_GB
    yield f"At {read:.0f} GB/s no kernel can decode a float16 model of 0.5 B faster than {limit:.0f} tokens/s."
