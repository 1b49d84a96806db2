"""Runs one kernel of sanitizers.metal under a sanitizer: `python -m tests.msl.sanitized SANITIZER [KERNEL ORDER]`.

A process of its own, because the sanitizer's library must be loaded first and a fault ends it. Without a kernel it only
compiles, which needs no sanitizer.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.msl.host_kit import KERNELS, Flavour, LaunchError, Runtime, build, kernel_text, runtime_text


def main(sanitizer: str, kernel: str = "", order: str = "forward") -> None:
    flavour = Flavour(sanitizer=sanitizer)
    text = kernel_text(KERNELS / ("runtime.metal" if sanitizer == "checked" else "sanitizers.metal"))
    if not kernel:
        build(flavour.runtime_command(), runtime_text())
        build(flavour.kernel_command(), text)
        return
    runtime = Runtime(flavour)
    kernels = runtime.load(text)
    runtime.configure(order=order, seed=5, threads=2)
    y = np.ones(64 if sanitizer != "checked" else 260, np.float32)
    memory = [256] if kernel == "write_past_argument" else []
    try:
        if "past_buffer" in kernel:
            kernels[kernel](y, threads=(65,), group_size=(65,), threadgroup_memory=memory)
        else:
            kernels[kernel](y, groups=(1,), group_size=(64,), threadgroup_memory=memory)
    except LaunchError as error:
        print(error)
    print("finished", y[0], y[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
