"""Kernels of shaders/ as AIR that clang made: a metallib of our own without Apple's compiler.

tools/agx writes a kernel in C++ for OpenCL, clang compiles that, and what its module calls and is given becomes AIR's:
air.* functions, positions as arguments, threadgroup memory, function constants, the list of a kernel's arguments.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from math import prod
from pathlib import Path

import llvmlite.binding as llvm

from tests.air import container
from tests.air.launches import About
from tools.agx import opencl
from tools.agx.compile import CLANG, OPTIONS
from tools.agx.kernels import SHADERS
from torch_foundry.aot.metallib import library_name
from torch_foundry.aot.prebuild import Launched
from torch_foundry.core.sources import shader_files
from torch_foundry.msl import translate

# OpenCL's functions of a position: AIR's name for it, and the type there
POSITIONS = {
    "get_local_id": ("thread_position_in_threadgroup", "<3 x i32>"),
    "get_group_id": ("threadgroup_position_in_grid", "<3 x i32>"),
    "get_local_size": ("threads_per_threadgroup", "<3 x i32>"),
    "get_global_id": ("thread_position_in_grid", "<3 x i32>"),
    "get_sub_group_local_id": ("thread_index_in_simdgroup", "i32"),
    "get_sub_group_id": ("simdgroup_index_in_threadgroup", "i32"),
    "get_num_sub_groups": ("simdgroups_per_threadgroup", "i32"),
}
GROUPS = "threadgroups_per_grid"  # the last argument, which is memory in OpenCL
TYPES = {"f": "f32", "Dh": "f16", "i": "s.i32", "j": "u.i32"}
FUNCTIONS = {
    "sub_group_reduce_add": "simd_sum", "sub_group_reduce_max": "simd_max", "sub_group_reduce_min": "simd_min",
    "sub_group_shuffle": "simd_shuffle", "sub_group_broadcast": "simd_broadcast", "sub_group_any": "simd_any",
    "sub_group_all": "simd_all", "sub_group_non_uniform_reduce_or": "simd_or", "mul_hi": "mulhi",
    "sub_group_scan_exclusive_add": "simd_prefix_exclusive_sum",
    "sub_group_scan_inclusive_add": "simd_prefix_inclusive_sum",
}  # fmt: skip
BARRIERS = {"barrier": "@air.wg.barrier", "sub_group_barrier": "@air.simdgroup.barrier"}
FLAGS = {"1": "2", "2": "1", "3": "3"}  # OpenCL's local and global are AIR's threadgroup and device
# in place of a barrier that simdgroups of a GPU, whose lanes run together, need not make
SIMDGROUP_BARRIER = """#include "msl.h"
void sub_group_barrier(uint);
namespace metal { AGX void air_simdgroup_barrier(mem_flags flags) { ::sub_group_barrier(uint(flags)); } }
#define simdgroup_barrier air_simdgroup_barrier
"""
TARGET = 'target triple = "air64-apple-macosx14.0.0"'
MEMORY = "@memory = internal unnamed_addr addrspace(3) global [32768 x i8] undef, align 16"
IN_MEMORY = r"getelementptr (i8, ptr addrspace(3) @memory, i64 \1)"
FUNCTION_CONSTANT = r"\1internal unnamed_addr addrspace(2) externally_initialized constant i8 undef"
GROUPS_MEMORY = """
  %groups.memory = alloca <3 x i32>, align 16
  store <3 x i32> {}, ptr %groups.memory, align 16
  %groups = addrspacecast ptr %groups.memory to ptr addrspace(2)"""
_CALL = r"call (?:spir_func )?(?:noundef )?"
_COMPUTED = "|".join(POSITIONS)


def there() -> bool:
    """Whether the compiler is installed."""
    return shutil.which(CLANG) is not None


def write(path: Path, wanted: Iterable[About]) -> Path:
    """A metallib with the kernels of some launches."""
    shaders = {shader.name: shader for shader in shader_files(SHADERS)}
    return container.write(path, {library_name(of.entry): bitcode(of, shaders[of.file]) for of in wanted})


def bitcode(of: About, shader: Path) -> bytes:
    """The module of one kernel, as a metallib has it."""
    source = opencl.source(Launched(of.file, of.entry, {}, prod(of.group)), shader, SHADERS)
    options = OPTIONS.replace("-no-opaque-pointers", "-opaque-pointers").split()
    includes = [word for folder in opencl.HEADERS for word in ("-I", str(folder))]
    text = opencl.to_be_run(source.text).replace('#include "msl.h"\n', SIMDGROUP_BARRIER)
    for constant in translate(shader, include_dirs=[SHADERS]).function_constants:
        name = f"_Z{len(constant.name)}{constant.name}.MTL_FC_INIT_{constant.index}_b"
        text = re.sub(rf"static constexpr ([^;=]*\b{constant.name}) = 0;", rf'extern \1 __asm("{name}");', text)
    made = subprocess.run([CLANG, *options, *includes, "-"], input=text, capture_output=True, text=True)
    assert not made.returncode, made.stderr[:2000]
    return bytes(llvm.parse_assembly(_air(made.stdout, library_name(of.entry), source.buffers)).as_bitcode())


def _air(text: str, name: str, buffers: list[int]) -> str:
    """The module that clang made, as text of AIR."""
    for pattern, new in (
        (rf"^define (?![^\n]*@(?:{opencl.KERNEL}|_ZN\w+)\()[^\n]*\{{\n.*?^}}\n", ""),  # other kernels
        (r"^(?:target|source_filename|attributes|!)[^\n]*\n", ""),
        (r" #\d+|,? ![\w.]+ !\d+\b|dso_local |spir_kernel ", ""),
        (r'@"\\01(_Z[\w.]+)"', r"@\1"),
        (r"^(@\S+_FC_INIT_\S+ = )external [^\n]*? constant i8", FUNCTION_CONSTANT),
        (r"inttoptr \(i64 (\d+) to ptr addrspace\(3\)\)", IN_MEMORY),
        (rf"(%\d+) = (?:tail )?{_CALL}i64 @_Z\d+({_COMPUTED})j\(i32 (?:noundef )?(\d+)\)", _axis),
        (rf"(%\d+) = (?:tail )?{_CALL}i32 @_Z\d+({_COMPUTED})v\(\)", _index),
        (rf"{_CALL}void @_Z\d+(\w*barrier)j\(i32 (?:noundef )?(\d)\)", _barrier),
        (r"^declare [^@\n]*@_Z\d+(\w*barrier)j\([^\n]*", lambda m: f"declare void {BARRIERS[m[1]]}(i32, i32)"),
        (rf"^declare [^@\n]*@_Z\d+(?:{_COMPUTED})[jv]\([^\n]*\n", ""),
        (r"@_Z(\d+)(\w+)\(", _function),
        (r"\bspir_func ", ""),
    ):
        text = re.sub(pattern, new, text, flags=re.M | re.S)  # type: ignore[arg-type]
    head = re.search(rf"^define void @{opencl.KERNEL}\(([^\n]*)\)[^)\n]*\{{", text, re.M)
    assert head
    *given, (_, groups) = re.findall(r"(ptr addrspace\(\d\))[^%]*(%\d+)", head[1])
    parameters = [
        (f"{kind} {value}", _buffer(index, kind)) for index, (kind, value) in zip(buffers, given, strict=True)
    ]
    parameters.append((f"<3 x i32> {groups}", f'!"air.{GROUPS}"'))
    parameters += [(f"{kind} %{position}", f'!"air.{position}"') for position, kind in POSITIONS.values()]
    taken = ", ".join(parameter for parameter, _ in parameters)
    start = f"define void @{name}({taken}) {{{GROUPS_MEMORY.format(groups)}"
    body = re.sub(rf"{groups}\b", "%groups", text[head.end() :])
    nodes = [f"!{i + 3} = !{{i32 {i}, {kind}}}" for i, (_, kind) in enumerate(parameters)]
    listed = ", ".join(f"!{i + 3}" for i in range(len(parameters)))
    kernel = f"!air.kernel = !{{!0}}\n!0 = !{{ptr @{name}, !1, !2}}\n!1 = !{{}}\n!2 = !{{{listed}}}"
    return "\n".join([TARGET, MEMORY, text[: head.start()], start, body, kernel, *nodes])


def _buffer(index: int, kind: str) -> str:
    return f'!"air.buffer", !"air.location_index", i32 {index}, i32 1, !"air.address_space", i32 {kind[-2]}'


def _axis(found: re.Match[str]) -> str:
    value, function, axis = found.groups()
    of = f"%axis.{value[1:]}"
    return f"{of} = extractelement <3 x i32> %{POSITIONS[function][0]}, i32 {axis}\n  {value} = zext i32 {of} to i64"


def _index(found: re.Match[str]) -> str:
    return f"{found[1]} = add i32 %{POSITIONS[found[2]][0]}, 0"


def _barrier(found: re.Match[str]) -> str:
    of_group = found[1] == "barrier"  # the other one gets Metal's flags
    flags, scope = (FLAGS[found[2]], 1) if of_group else (found[2], 4)
    return f"call void {BARRIERS[found[1]]}(i32 {flags}, i32 {scope})"


def _function(found: re.Match[str]) -> str:
    """By its mangled name: a length, that many letters, types of arguments."""
    if atomic := re.match(r"atomic_(\w+)PU3AS(\d)Vii$", found[2]):
        return f"@air.atomic.{'global' if atomic[2] == '1' else 'local'}.{atomic[1]}.s.i32("
    name, types = found[2][: int(found[1])].removeprefix("native_"), found[2][int(found[1]) :]
    if name not in FUNCTIONS and name.startswith(("sub_group_", "atomic_")):
        raise NotImplementedError(f"{name}: AIR's function has other arguments")
    return f"@air.{FUNCTIONS.get(name, name)}.{TYPES['Dh' if types.startswith('Dh') else types[0]]}("
