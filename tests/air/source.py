"""The Metal text of the other side: the wheel's headers, and an instance for each kernel, named as in the metallib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.air import toolchain
from tests.air.case import Case

KERNELS = "mlx/backend/metal/kernels"
BATCH = 40  # kernels that are compiled together
# What the headers need before them.
FIRST = {"binary_ops binary": "<metal_integer> <metal_math>", "scan": "<metal_math> <metal_simdgroup>",
         "softmax": "<metal_common> <metal_simdgroup>", "logsumexp": "<metal_common> <metal_simdgroup>",
         "ternary_ops ternary": "<metal_integer> <metal_math>"}  # fmt: skip
ATEN = ("c10/metal/common.h", "c10/metal/utils.h")  # before torch's
BARE = {"gemv"}  # headers that bring utils.h themselves


def text(cases: Sequence[Case]) -> str:
    """The text with an instance for each case; they have the same headers."""
    (source,) = {case.source for case in cases}
    if cases[0].project == "torch":
        return _aten(cases)
    if source.endswith(".metal"):  # which has the instances, too
        return f'#include "{KERNELS}/{source}"\n'
    lines = [f"#include {name}" for name in FIRST.get(source, "<metal_stdlib>").split()]
    lines += ["using namespace metal;"]
    headers = source.split() if source in BARE else ["defines", "utils", *source.split()]
    lines += [f'#include "{KERNELS}/{name}.h"' for name in headers]
    for case in cases:
        function = case.instance
        lines.append(f'template [[host_name("{case.name}")]] [[kernel]] decltype({function}) {function};')
    return "\n".join(lines) + "\n"


def _aten(cases: Sequence[Case]) -> str:
    lines = [f"#include <{name}>" for name in ("metal_stdlib", *ATEN)] + ["using namespace metal;"]
    lines += [f"#include <{name}>" for name in cases[0].source.split()] + ["using namespace c10::metal;"]
    lines += dict.fromkeys([case.needs for case in cases] + [case.instance for case in cases])
    return "\n".join(lines) + "\n"


def compiled(cases: Sequence[Case], include: Path) -> Path:
    """A library with the kernels of cases of one unit, which have the same function constants."""
    (unit,) = {case.unit for case in cases}
    types = cases[0].constant_types
    constants = {
        index: str(bool(value)).lower() if types.get(index, "bool") == "bool" else str(value)
        for index, value in unit[1]
    }
    label = cases[0].source.split()[-1].split("/")[-1]
    return toolchain.kernels(label, text(cases), constants, [case.name for case in cases], include)


def there(case: Case, include: Path) -> bool:
    """Whether `include` has what the case is compared with."""
    if case.wanted:
        return True  # which needs none
    name = case.source.split()[-1]
    if case.project == "torch":
        return (include / name).exists()
    return (include / KERNELS / (name if name.endswith(".metal") else f"{name}.h")).exists()
