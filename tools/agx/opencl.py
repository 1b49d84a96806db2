"""A kernel instance as C++ for OpenCL: the shader's text as the address-space check has it, and a kernel that calls the
instance."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

from torch_foundry.aot.prebuild import Launched
from torch_foundry.msl import Argument, Kernel, Translation, lint, translate
from torch_foundry.msl.lint.address_spaces import opencl_text
from torch_foundry.msl.syntax.declarations import parse
from torch_foundry.msl.syntax.lexer import Tokens
from torch_foundry.msl.syntax.preprocess import preprocess

KERNEL = "instance"  # its name in the module
HEADERS = (Path(lint.__file__).parent, Path(__file__).parent)  # where the text's includes are
_GROUPS = "groups"  # of the grid, from memory: Mesa's compiler leaves them to its driver
_VECTORS = {
    "thread_position_in_threadgroup": "get_local_id",
    "threadgroup_position_in_grid": "get_group_id",
    "threads_per_threadgroup": "get_local_size",
    "thread_position_in_grid": "get_global_id",
}
_SCALARS = {
    "thread_index_in_threadgroup": "get_local_id(0)",
    "thread_index_in_simdgroup": "get_sub_group_local_id()",
    "simdgroup_index_in_threadgroup": "get_sub_group_id()",
    "simdgroups_per_threadgroup": "get_num_sub_groups()",
    "threads_per_simdgroup": "32",
}


class Source(NamedTuple):
    """A module with one kernel: an instance at its launch size."""

    text: str
    name: str  # the instance's entry, and the function constants that are true
    buffers: list[int]  # which buffer each argument of the kernel is; another argument follows: groups of the grid


def source(kernel: Launched, shader: Path, shaders: Path) -> Source:
    """The kernel's. `shaders`: where includes are."""
    text, translation = _shader(shader, shaders)
    for constant in translation.function_constants:
        value = kernel.constants.get(constant.index, "0")
        text = re.sub(rf"extern\s+(__constant[^;]*\b{constant.name})\s*;", rf"static constexpr \1 = {value};", text)
    name = kernel.entry.partition("<")[0]
    found = next(k for k in (*translation.templates, *translation.kernels) if k.name == name)
    on = [c.name for c in translation.function_constants if kernel.constants.get(c.index, "false") != "false"]
    buffers = [argument.index for argument in found.args if argument.kind == "buffer" and argument.index is not None]
    return Source(f'#include "msl.h"\n{text}{_call(found, kernel)}', " ".join([kernel.entry, *on]), buffers)


def to_be_run(text: str) -> str:
    """A module for results rather than for costs: shuffles are general, and variables in threadgroup memory, which may
    be larger than 8 KiB, lie behind those that their function declared before."""
    before: list[str] = []

    def placed(found: re.Match[str]) -> str:
        if found[1] is None:  # another function
            before.clear()
            return found[0]
        at = " + ".join(["64", *(f"(sizeof({name}) + 15) / 16 * 16" for name in before)])
        before.append(found[1])
        return f"(*(__local {found[1]}*)(ulong)({at}))"

    return "#define MSL_GENERAL_SHUFFLES\n" + re.sub(r"msl_threadgroup<(\w+), \d+>\(\)|\bvoid \w+\s*\(", placed, text)


@functools.cache
def _shader(shader: Path, shaders: Path) -> tuple[str, Translation]:
    ready = preprocess(shader, include_dirs=[shaders])
    tokens = Tokens(ready.text, ready.name)
    numbers = iter(range(100))
    text = opencl_text(tokens, parse(tokens), ready.name, [])
    text = re.sub(r"msl_threadgroup<(\w+)>\(\)", lambda m: f"msl_threadgroup<{m[1]}, {next(numbers)}>()", text)
    return text, translate(shader, include_dirs=[shaders])


def _call(found: Kernel, kernel: Launched) -> str:
    """Flattened, so that nothing is left to be called."""
    pairs = [_argument(argument, f"a{i}") for i, argument in enumerate(found.args)]
    pairs.append((f"__constant uint* {_GROUPS}", ""))
    size = f"reqd_work_group_size({kernel.threads}, 1, 1)"
    parameters, passed = (", ".join(filter(None, column)) for column in zip(*pairs, strict=True))
    return (
        f"\n__kernel __attribute__((flatten, {size})) void {KERNEL}({parameters}) {{\n  {kernel.entry}({passed});\n}}\n"
    )


def _argument(argument: Argument, name: str) -> tuple[str, str]:
    """The parameter of the kernel ("": none), and what it passes on."""
    pointed = re.sub(r"\b(constant|const|device|threadgroup)\b|[&*]", "", argument.type).strip()
    if argument.kind == "builtin":
        return "", _builtin(argument)
    if argument.kind == "threadgroup":  # at an address; such kernels have no variables in that memory
        return "", f"(__local {pointed}*)(ulong){16 + 16384 * (argument.index or 0)}"
    star = "*" if "&" in argument.type else ""
    if argument.address_space == "constant":
        return f"__constant {pointed}* {name}", star + name
    return (f"__global {pointed}* {name}", f"*{name}") if star else (f"__global void* {name}", f"msl_device{{{name}}}")


def _builtin(argument: Argument) -> str:
    assert argument.builtin is not None
    if argument.builtin in _SCALARS:
        return f"{argument.type}({_SCALARS[argument.builtin]})"
    size = int(argument.type[-1]) if argument.type[-1].isdigit() else 1
    scalar = argument.type.rstrip("234")
    if argument.builtin == "threadgroups_per_grid":
        parts = ", ".join(f"{scalar}({_GROUPS}[{i}])" for i in range(size))
    else:
        parts = ", ".join(f"{scalar}({_VECTORS[argument.builtin]}({i}))" for i in range(size))
    return f"metal::{argument.type}({parts})" if size > 1 else parts
