"""The types of devices that the package knows, each with an executor: a module here, and a folder in csrc/."""

from __future__ import annotations

import torch

from torch_foundry.core.devices.base import Device
from torch_foundry.core.devices.cuda import Cuda
from torch_foundry.core.devices.host import Host
from torch_foundry.core.devices.metal import Metal

METAL, CUDA, HOST = Metal(), Cuda(), Host()
DEVICES: dict[str, Device] = {device.kind: device for device in (METAL, CUDA, HOST)}  # the preferred one first
_OTHER = Device()


def of(device: torch.device) -> Device:
    """What is known about the type of `device`."""
    return DEVICES.get(device.type, _OTHER)


def named(device: str) -> Device:
    """The same by the name of a device, such as "cuda:1"."""
    return DEVICES.get(device.partition(":")[0], _OTHER)


def device_problem(kind: str, has_executor: bool) -> str | None:
    """Why kernels can't run on tensors of device type `kind`, in a sentence; None if they can.

    has_executor: whether this build has an executor for it.
    """
    if kind == "meta":
        return "tensors on the meta device hold no data: load the weights onto a real device first"
    if kind in DEVICES:
        return DEVICES[kind].problem(has_executor)
    return None if has_executor else f"torch_foundry runs on tensors of {', '.join(DEVICES)}, not on {kind}"
