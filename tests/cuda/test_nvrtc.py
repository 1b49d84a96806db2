"""Every shipped kernel compiles for CUDA, without a GPU, by the code and text that the CUDA executor uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cuda import compile_only
from torch_foundry.msl.syntax.preprocess import has_tensors

pytestmark = [
    pytest.mark.tier("kernels"),
    pytest.mark.skipif(compile_only.unavailable() is not None, reason=str(compile_only.unavailable())),
]

# Each op's variants as prebuild lists them, then every format, common ones with every dtype; prints the kernels. Others
# differ in their unpacking alone, which the embedding has; some of them go through products too. If EVERY is False, a
# variant that has kernels for several dtypes is compiled for one of them, each dtype by turns.
ALL = """
import itertools, json, re, torch
from concurrent.futures import ThreadPoolExecutor
from torch_foundry import ops, quant
from torch_foundry.aot import prebuild
from torch_foundry.testing import weights as blocks
from torch_foundry.quant.kv import row_bytes
turns = itertools.count()
def some(choices):
    choices = list(choices)
    return choices if EVERY or not choices else [choices[next(turns) % len(choices)]]
variants = {}
for name, call in prebuild.calls():
    variants.setdefault(re.sub("b?float(16|32)", "", name), []).append(call)
calls = [call for same in variants.values() for call in some(same)]
def linear(dtype, name, rows):
    weight = blocks.packed(torch.zeros(32, 256), name)
    ops.linear(torch.zeros(rows, 256, dtype=dtype), weight, format=name)
    if rows > 16: ops.linear_backward_input(torch.zeros(rows, 32, dtype=dtype), weight, format=name)
def embedding(dtype, name):
    weight = blocks.packed(torch.zeros(32, 256), name)
    ops.embedding(torch.zeros(1, dtype=torch.int64), weight, format=name, dtype=dtype)
    more = dict(format=name, dtype=dtype, residual=torch.zeros(1, 256, dtype=dtype))
    if name == "f16": ops.embedding(torch.zeros(1, dtype=torch.int32), weight, **more)
names = blocks.samples()
products = {"q4_k", "iq2_xxs", *(next(n for n in names if n.startswith(family)) for family in ("affine4", "int3"))}
for name in ("f32", "f16", "bf16", *names):
    f = quant.FORMATS[name]
    common = name in prebuild.PACKED
    dtypes = prebuild.DTYPES if common else [torch.float16] if f.packed else ()
    for rows in (1, 3, 65) if common else (1, 65) if name in products else ():
        calls += [lambda d=dtype, n=name, r=rows: linear(d, n, r) for dtype in some(dtypes)]
    calls += [lambda d=dtype, n=name: embedding(d, n) for dtype in some(dtypes)]
torch.ops.torch_foundry._tuning_override("matrix_rows", 64)
for dtype, name, rows in ((torch.float16, "q8_0", 32), (torch.bfloat16, "q4_k", 64)):
    calls.append(lambda d=dtype, n=name, r=rows: linear(d, n, r))
def attend(dtype, queries, d, dv, k, v, **given):
    def cache(columns, name):
        width = columns if name is None else row_bytes(columns, name)
        return torch.zeros(4, 2, 32, width, dtype=dtype if name is None else torch.uint8)
    names = dict(k_format=k, v_format=v, block_table=torch.zeros(1, 4, dtype=torch.int32))
    q, caches = torch.zeros(1, 4, queries, d, dtype=dtype), [cache(d, k), cache(dv, v)]
    ops.attention(q, *caches, 64, scale=1.0, sinks=torch.zeros(4), softcap=9.0, **names)
    x = [torch.zeros(1, queries, h * n, dtype=dtype) for h, n in ((4, d), (2, d), (2, dv))]
    cos = torch.zeros(1, queries, d)
    for qs, ks in ((1, 1), (4, 2)):  # norms of heads, and of all at once
        norms = dict(q_norm=torch.ones(qs * d, dtype=dtype), k_norm=torch.ones(ks * d, dtype=dtype))
        ops.rope_kv(*x, cos, cos.clone(), *caches, 0, head_dim=d, v_norm=d == 512 and qs == 1, **norms, **names)
        if queries == 1: ops.rope_attention(*x, cos, cos.clone(), *caches, 64, head_dim=d, scale=1.0, **norms, **names)
for dtype, d, dv, k, v in ((torch.float16, 128, 128, "q8_0", "q8_0"), (torch.float32, 80, 112, "q4_0", None),
                           (torch.bfloat16, 512, 512, None, None)):
    for queries in (1, 20):
        calls.append(lambda t=dtype, q=queries, a=(d, dv, k, v): attend(t, q, *a))
def route(dtype, correction):
    x, given = torch.zeros(1, 256, dtype=dtype), {"score": "sigmoid", "correction": torch.zeros(8, dtype=correction)}
    ops.moe_route(x, x[0], 1e-6, torch.zeros(8, 256, dtype=dtype), 2, **given)
    ops.moe_choose(x[:, :8].contiguous(), 2, **given)
    ops.moe_glu(x, torch.zeros(1, 1, dtype=torch.int32), None, torch.zeros(2, 8, 256, dtype=dtype), activation="relu2")
for dtype, correction in ((torch.bfloat16, torch.float32), (torch.float32, torch.float16)):
    calls.append(lambda t=dtype, c=correction: route(t, c))
def mix(dtype, d, dv):
    q, v, b = (torch.zeros(9, 2, *size, dtype=dtype) for size in ((d,), (2, dv), (2,)))
    channels, table = 4 * d + 4 * dv, torch.zeros(1, 9, dtype=torch.int32)
    conv, states = torch.zeros(9, channels, 4, dtype=dtype), torch.zeros(9, 4, d, dv)
    ops.gated_delta(q, q, v, v, b, b, conv[0], b[0].flatten(), b[0].flatten(), v[0, 0, 0], 1e-6, conv, states,
                    table[:, :2], table, table[:, 0], prompts=True)
    half, wide, bias = 4 * d + 2 * dv, b[0].new_zeros(2), b[0].new_zeros(2 * d)  # rows of states decay by themselves
    ops.gated_delta(q, q, v[:, :, :1], v[:, :, :1], b[..., :1], q[:, :, None], conv[0, :half], wide, bias, v[0, 0, 0],
                    1e-6, conv[:, :half].contiguous(), states[:, :2].contiguous(), table[:, :2], table, table[:, 0],
                    prompts=True)
for dtype, d, dv in ((torch.float16, 128, 128), (torch.bfloat16, 64, 64), (torch.float32, 96, 192)):
    calls.append(lambda t=dtype, a=(d, dv): mix(t, *a))
def scan(dtype, p, n):
    x, table = torch.zeros(32, 4 * p + 2 * n, dtype=dtype), torch.zeros(1, 9, dtype=torch.int32)
    conv, states = torch.zeros(9, x.shape[1], 4, dtype=dtype), torch.zeros(9, 4, p, n)
    h, z, bias = x[:, :4], x[:, :4 * p], x[0] if p == 64 else None
    ops.mamba2(x, h, z, conv[0], bias, h[0], h[0], h[0], z[0], 1e-6, conv, states, table[:, :2], table, table[:, 0],
               keep=None if p == 64 else h[:, 0].contiguous(), prompt=None if p == 64 else table[:, 0],
               bounds=(0.1, 1.0), prompts=True)
for dtype, p, n in ((torch.float16, 64, 128), (torch.bfloat16, 64, 256), (torch.float32, 128, 256)):
    calls.append(lambda t=dtype, a=(p, n): scan(t, *a))
def streams(dtype, n):
    x, h = torch.zeros(n, 1, 64, dtype=dtype), torch.zeros(64, dtype=dtype)
    coefs = x[:, 0].new_zeros(n * n, n)
    ops.altup_predict(x, h, x[:, 0].contiguous(), coefs, 1e-6, scale=0.1)
    ops.altup_correct(x, x[0], h, x[:, 0].contiguous(), coefs[:n], 1e-6, scale=0.1, own_scale=h if n > 2 else None)
    ops.altup_collapse(x[0], list(ops.altup_expand(x[0], [x[1]], 1e-5))[1:], 1e-5)
    ops.altup_add(x, x[0], h, 1e-6)
    ops.sparse_glu(x[0], x[0], 1.0)
for dtype, n in ((torch.bfloat16, 4), (torch.float16, 2), (torch.float32, 8)):
    calls.append(lambda t=dtype, a=n: streams(t, a))
calls.append(lambda: ops.glu(torch.zeros(1, 8), torch.zeros(1, 8), "clamped_swiglu"))
def differentiate(dtype, n):
    x, table = torch.zeros(2, n, dtype=dtype), torch.zeros(1, 2, n)
    for activation in ("silu", "gelu", "gelu_tanh", "clamped_swiglu"): ops.glu_backward(x, x, x, activation)
    for kind in ("llama", "gemma"):
        found, inverse = ops.rms_norm_backward(x, x, x[0], 1e-6, kind=kind)
    ops.rms_norm_backward_weight(x, x, inverse)
    for cos in (table, table.to(dtype)): ops.rope(x[None, None], cos, cos)
for dtype, n in ((torch.float16, 64), (torch.bfloat16, 64), (torch.float32, 10)):
    calls.append(lambda a=(dtype, n): differentiate(*a))
def latents(dtype, n):
    x, w = torch.zeros(1, 4, n, dtype=dtype), torch.zeros(4, n, n, dtype=dtype)
    for weight in (w, w.transpose(1, 2)): ops.head_linear(x, weight)
    keys, values = torch.zeros(1, 1, 32, 64, dtype=dtype), torch.zeros(1, 1, 32, 512, dtype=dtype)
    q, u = (torch.zeros(1, 16, 1, d, dtype=dtype) for d in (64, 512))
    ops.attention(q, keys, values, 32, scale=1.0, value_queries=u)
for dtype, n in ((torch.float16, 64), (torch.bfloat16, 64), (torch.float32, 9)):
    calls.append(lambda a=(dtype, n): latents(*a))
for row in (torch.zeros(1, 64, dtype=torch.bfloat16), torch.zeros(1, 9)):
    calls.append(lambda x=row: ops.layer_norm(x, x[0], x[0]))
    calls.append(lambda x=row: ops.xielu(x, *x[0, :4].unbind()))
with ThreadPoolExecutor(4) as pool:
    for job in [pool.submit(call) for call in calls]: job.result()
print(json.dumps(dict(torch.ops.compile_only.compiled())))
"""


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.tier("nightly"))])
def test_every_shipped_kernel_compiles(every: bool) -> None:
    compiled = json.loads(compile_only.run(f"EVERY = {every}\n{ALL}"))
    files = {kernel.split()[0] for kernel in compiled}
    texts = {path.name: path.read_text() for path in (compile_only.ROOT / "shaders").rglob("*.metal")}
    others = {name for name, text in texts.items() if has_tensors(text)}  # Metal's own
    shaders = texts.keys() - others - {"subnormals.metal"}  # test_subnormal_codes
    assert files == shaders, f"no kernel of {sorted(shaders - files)} was compiled"
    assert len(compiled) > 60
    assert all(size > 1000 for size in compiled.values())


# A kernel's machine code in the folder FOLDER.
CODE = """
import json, pathlib, struct, tempfile, torch
from torch_foundry import ops
from torch_foundry.core.devices import cuda
from torch_foundry.testing import weights as blocks
def instructions(elf):  # of its kernels: 16 bytes each, of a 64-bit ELF file's sections of code
    at, size, count = struct.unpack_from("<Q10xHH", elf, 40)
    for i in range(count):
        kind, flags, _, offset, length = struct.unpack_from("<4xIQQQQ", elf, at + i * size)
        if kind == 1 and flags & 4:
            yield from struct.iter_unpack("<QQ", elf[offset : offset + length])
def code_of(call):
    cache = tempfile.mkdtemp(dir=FOLDER)
    torch.ops.compile_only.setup(cuda.libraries("13"), ROOT + "/csrc", "", False, cache, "sm_90")
    call()
    (file,) = pathlib.Path(cache).glob("*.cubin")
    return list(instructions(file.read_bytes()))
"""

STORES = """
found = {}
for name in ("q4_0", "q6_k"):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        weight = blocks.packed(torch.zeros(32, 256), name)
        code = code_of(lambda: ops.embedding(torch.zeros(1, dtype=torch.int32), weight, format=name, dtype=dtype))
        sizes = [high >> 9 & 7 for low, high in code if low & 0x1FF == 0x186]  # STG
        found[f"{name} {dtype}"] = [{4: 4, 5: 8, 6: 16}.get(size, 1) for size in sizes]
print(json.dumps(found))
"""


def test_weights_are_unpacked_in_writes_of_16_bytes(tmp_path: Path) -> None:
    """Eight weights of a thread: one of 16 bits each, two of float32."""
    script = f"FOLDER, ROOT = {str(tmp_path)!r}, {str(compile_only.ROOT)!r}\n{CODE}{STORES}"
    for what, writes in json.loads(compile_only.run(script)).items():
        assert writes == ([16, 16] if "float32" in what else [16]), what


def test_the_cache_is_asked_for_weights_before_a_kernel_waits(tmp_path: Path) -> None:
    """The next kernel may start, weights are asked for, the one before has finished, and only then is memory read."""
    script = """
weight = blocks.packed(torch.zeros(32, 256), "q8_0")
code = code_of(lambda: ops.linear(torch.zeros(1, 256, dtype=torch.float16), weight, format="q8_0"))
print(json.dumps([low & 0xFFF for low, _ in code]))
"""
    script = f"FOLDER, ROOT = {str(tmp_path)!r}, {str(compile_only.ROOT)!r}\n{CODE}{script}"
    code = json.loads(compile_only.run(script))
    # launch_dependents, bulk prefetch, wait, the first load from global memory
    places = [code.index(which) for which in (0x82D, 0x3BC, 0x82E, 0x981)]
    assert places == sorted(places)


HMMA, LDGSTS, LDL, STL = 0x23C, 0xFAE, 0x983, 0x387


def test_few_rows_by_matrices_are_copied_ahead_and_stay_in_registers(tmp_path: Path) -> None:
    """Asynchronous copies of 16 bytes, tensor cores' products of 16x8x16, and nothing in a thread's own memory."""
    script = """
import kit
from torch_foundry.core import tuning
family, found = tuning.family(torch.device("cpu")), {}
choice = dict(outputs=16, steps=3, split=1, simdgroups=1, groups=132)
with kit.tuned(family, "matrices", **choice), kit.tuned(family, "norm_matrices", **choice):
    for name in ("q4_0", "q8_0", "q4_k", None):
        for norm in (False, True):
            dense = torch.zeros(32, 256)
            weight = blocks.packed(dense, name) if name else dense.half()
            x = torch.zeros(1, 256, dtype=torch.float16)
            run = lambda: ops.norm_linear(x, x[0], 1e-5, [weight] * 4, formats=[name] * 4)
            code = code_of(run if norm else lambda: ops.linear(x, weight, format=name))
            found[f"{name} {norm}"] = [low & 0xFFF for low, _ in code]
        code = code_of(lambda: ops.norm_glu(x, x[0], 1e-5, weight, weight, format=name))
        found[f"{name}, gate and up"] = [low & 0xFFF for low, _ in code]
x = torch.zeros(32, 256, dtype=torch.float16)
with kit.tuned(family, "linear_matrix", outputs=16, steps=2, split=2, simdgroups=8, blocks=4):
    for name in ("q4_0", "q8_0", "q4_k", "mxfp4"):
        weight = blocks.packed(torch.zeros(32, 256), name)
        code = code_of(lambda: ops.linear(x, weight, format=name))
        found[f"{name}, 32 rows"] = [low & 0xFFF for low, _ in code]
with kit.tuned(family, "moe_matrix", outputs=16, steps=2, split=1, simdgroups=4, blocks=4):
    for name, k in (("q4_0", 256), ("q8_0", 256), ("q4_k", 256), ("mxfp4", 256), ("mxfp4", 96)):
        weight = blocks.packed(torch.zeros(32, k), name)[None]
        groups = ops.moe_group(torch.zeros(32, 1, dtype=torch.int32), 1)
        code = code_of(lambda: ops.moe_linear(torch.zeros(32, k, dtype=torch.float16), *groups, weight, format=name))
        found[f"{name} of experts, 32 rows of {k}"] = [low & 0xFFF for low, _ in code]
print(json.dumps(found))
"""
    folders = f"import sys\nsys.path.insert(0, {str(compile_only.ROOT / 'tests' / 'ops')!r})\n"
    script = f"FOLDER, ROOT = {str(tmp_path)!r}, {str(compile_only.ROOT)!r}\n{folders}{CODE}{script}"
    for what, code in json.loads(compile_only.run(script)).items():
        least = 2 if "experts" in what else 6 if "rows" in what else 8
        assert code.count(HMMA) >= 8 and code.count(LDGSTS) >= least, what
        assert not {LDL, STL} & set(code), what


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_100"])
def test_other_architectures(arch: str) -> None:
    """Matrix products have a way without the tensor core's bfloat, conversions one without the instruction."""
    script = """
import torch
from torch_foundry import ops
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    ops.linear(torch.zeros(32, 256, dtype=dtype), torch.zeros(32, 256, dtype=dtype))
print(len(torch.ops.compile_only.compiled()))
"""
    assert int(compile_only.run(script, arch=arch)) == 3


def test_a_family_is_the_architecture_and_the_model() -> None:
    """As a driver names models."""
    names = {
        "NVIDIA H200": "sm_90-h200",
        "NVIDIA H100 80GB HBM3": "sm_90-h100-80gb-hbm3",
        "NVIDIA GH200 480GB": "sm_90-gh200-480gb",
        " RTX (TM) 6000 ": "sm_90-rtx-tm-6000",
        "": "sm_90",
    }
    script = f"""
import torch
for model in {list(names)!r}: print(torch.ops.compile_only.family("sm_90", model))
"""
    assert compile_only.run(script).split("\n")[:-1] == list(names.values())


STDLIB = """
import torch
from torch_foundry import msl
for path in {files!r}:
    translation = msl.translate(path)
    torch.ops.torch_foundry._add_source(path, "", translation.source)
    for kernel in translation.kernels:
        torch.ops.torch_foundry._shader_pipeline(
            "cpu", path, kernel.entry, kernel.signature, kernel.name, [], [], [])
        print(kernel.name)
"""


@pytest.mark.parametrize("checked", [False, True])
def test_the_standard_library_compiles(checked: bool) -> None:
    files = [str(compile_only.ROOT / "tests" / "msl" / "kernels" / f"stdlib_{part}.metal") for part in ("simd", "math")]
    if not checked:
        files.append(str(compile_only.ROOT / "tests" / "msl" / "kernels" / "stdlib_types.metal"))
    printed = compile_only.run(STDLIB.format(files=files), checked=checked)
    assert len(printed.split()) >= 10


def shader(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "example.metal"
    path.write_text("#include <metal_stdlib>\nusing namespace metal;\n" + text)
    return [str(path)]


def test_errors_name_the_metal_line(tmp_path: Path) -> None:
    files = shader(tmp_path, "kernel void f(device float* y [[buffer(0)]]) {\n  y[0] = nothing;\n}\n")
    with pytest.raises(RuntimeError, match=r"example\.metal\(4\): error: .*nothing"):
        compile_only.run(STDLIB.format(files=files))


def test_divisors_have_no_guard(tmp_path: Path) -> None:
    """A guard costs every launch of a small kernel 0.3 us on an H200: only checked builds have it."""
    files = shader(
        tmp_path, "kernel void f(device int* y [[buffer(0)]]) { int n = y[1]; int m = msl_::divisor(n); y[0] /= m; }\n"
    )
    assert compile_only.run(STDLIB.format(files=files)).split() == ["f"]
    with pytest.raises(RuntimeError, match="Divisor"):
        compile_only.run(STDLIB.format(files=files), checked=True)


def test_what_cuda_has_under_the_same_names(tmp_path: Path) -> None:
    """Vector types, functions, threadgroup initialisers, constants in memory, a kernel in a namespace; names that the
    prelude uses and a shader may."""
    text = """
namespace detail { template <typename T> T most(T a, T b) { return a > b ? a : b; } }
template <typename T> T element(T x) { return x; }
kernel void dot(device int* y [[buffer(0)]], device const float4* x [[buffer(1)]],
                uint i [[thread_position_in_grid]]) {
  int n = element(x[i]).x;
  y[i] = detail::most(y[i] / n, (int)x[i].y % n) + (int4(x[i]) / int4(n)).z + int(half(x[i].w));
}
struct Args { float4 scale; int n; };
constant float table[3] = {1.0f, 2.0f, 3.0f};
template <typename T> T twice(T x) { return x + x; }
namespace inner {
kernel void f(device float4* y [[buffer(0)]], constant Args& a [[buffer(1)]], constant float* more [[buffer(2)]],
              threadgroup float* t [[threadgroup(0)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup float4 local[2] = {float4(0.0f), float4(1.0f)};
  local[i % 2] = max(min(exp(y[i]), a.scale), fma(y[i], y[i], y[i])) + float4(uint4(i)) + abs(sin(y[i]));
  t[i] = rsqrt(local[0].x) + twice(half(table[i % 3])) + (i > 2 ? 0 : half(1));
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = local[1] * t[0] * more[a.n];
}
}
"""
    assert compile_only.run(STDLIB.format(files=shader(tmp_path, text))).split() == ["dot", "inner::f"]
    script = STDLIB.format(files=shader(tmp_path, text)) + (
        "print(torch.ops.compile_only.variant(path, 'inner::f', 2, [], 0))\n"
        "print(torch.ops.compile_only.variant(path, 'inner::f', 0, [2, 64], 0))\n"
        "print(torch.ops.compile_only.variant(path, 'inner::f', 2, [2, 64], 1024))\n"
    )
    assert all(int(size) > 1000 for size in compile_only.run(script).split()[2:])


def test_the_cache_is_used(tmp_path: Path) -> None:
    """A second process compiles nothing: it works without a compiler."""
    files = shader(tmp_path, "kernel void f(device float* y [[buffer(0)]]) { y[0] = 41; }")
    before = {path.name for path in (compile_only.BUILD / "kernels").glob("*.cubin")}
    compile_only.run(STDLIB.format(files=files))
    after = {path: path.stat().st_mtime_ns for path in (compile_only.BUILD / "kernels").glob("*.cubin")}
    assert len(after) >= len(before)
    compile_only.run(STDLIB.format(files=files))
    assert {path: path.stat().st_mtime_ns for path in (compile_only.BUILD / "kernels").glob("*.cubin")} == after


DAMAGED = """
import hashlib, pathlib
from torch_foundry.core.devices import cuda
cache = pathlib.Path({cache!r})
torch.ops.compile_only.setup(cuda.libraries("13"), {root!r} + "/csrc", "", False, str(cache), "sm_90")
def size(): return torch.ops.compile_only.variant(path, "f", 0, [], 0)
whole = size()
(file,) = cache.glob("*.cubin")
content = file.read_bytes()
for wrong in (content[:-1], content[:-1] + b"?", b""):
    file.write_bytes(wrong)
    print(size() == whole, file.read_bytes() == content)
file.write_bytes(b"x" * 10)
pathlib.Path(f"{{file}}.sum").write_text(hashlib.sha1(b"x" * 10).hexdigest() + " 10\\n")
print(size())
"""


def test_a_damaged_cubin_is_compiled_again(tmp_path: Path) -> None:
    """A whole one is read: what lies there with a sum of its own is taken for the kernel."""
    files = shader(tmp_path, "kernel void f(device float* y [[buffer(0)]]) { y[0] = 40; }")
    script = STDLIB.format(files=files) + DAMAGED.format(cache=str(tmp_path / "cache"), root=str(compile_only.ROOT))
    assert compile_only.run(script).split()[-7:] == [*["True"] * 6, "10"]


SUBNORMALS = """
import torch
from torch_foundry import ops
from torch_foundry.core import tuning
from torch_foundry.testing import weights as blocks
assert torch.ops.compile_only.variant("subnormals.metal", "subnormal_codes", 0, [], 1024) > 0
torch.ops.torch_foundry._tuning_override("subnormals", 1)
for name in ("q8_0", "q4_k"):
    key = tuning.Key("linear", name, 1, 64, 512)
    wanted = {"chains": 2, "outputs": 2, "steps": 1, "split": 1, "simdgroups": 4}
    tuning.use("sm_90", key, {**tuning.choice("sm_90", key), **wanted})
    ops.linear(torch.zeros(1, 512, dtype=torch.float16), blocks.packed(torch.zeros(64, 512), name), format=name)
print(*torch.ops.compile_only.compiled(), sep="\\n")
"""


def test_subnormal_codes() -> None:
    """Apple's way of products with packed weights, and the kernel that asks a GPU for it, compile here as well."""
    found = compile_only.run(SUBNORMALS).splitlines()
    assert len(found) == 2 and all(kernel.endswith("1, 2>") for kernel in found)
