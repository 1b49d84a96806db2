"""What the preludes declare where a shader's text sees it: in `metal` the names that MSL has, elsewhere `msl_...`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from torch_foundry.core.sources import compiler
from torch_foundry.msl.syntax.declarations import Declaration, parse, walk
from torch_foundry.msl.syntax.lexer import Tokens
from torch_foundry.msl.syntax.library import GLOBAL_NAMES, METAL_NAMES

CSRC = Path(__file__).resolve().parents[2] / "csrc"
SHARED = CSRC / "prelude"
PLATFORMS = {
    "host": ([CSRC / "host" / "prelude"], []),
    "cuda": (
        [CSRC / "cuda" / "prelude", CSRC / "cuda" / "prelude" / "std"],
        ["-nostdinc", "-nostdinc++", "-D__CUDA_ARCH__=900", "-DMSL_PERMUTED", "-D__forceinline__=inline"],
    ),
}
# The shaders' own functions, which the CUDA prelude overloads (matrix_pairs.h, loader.h, vec.h, staging.h, format.h).
OVERLOADED = {
    "multiply_accumulate_2x2",
    "multiply_accumulate_2x2_transposed",
    "multiply_accumulate_near",
    "multiply_accumulate_near_2x1",
}
OVERLOADED |= {"chunk_at", "write_whole", "copy_ahead", "end_group_of_copies", "wait_for_copies", "read_halves"}
OVERLOADED |= {"read_odd_bytes", "word_behind", "kept", "next_unit"}


# Those of Apple's headers of tensors, which a shader has to include.
OF_TENSORS = {
    "metal": {"cooperative_tensor", "dextents", "execution_simdgroups", "tensor", "tensor_inline"},
    "mpp": {"tensor_ops"},
    "mpp::tensor_ops": {"matmul2d", "matmul2d_descriptor"},
}


def declared(platform: str, checked: bool = False, header: str = "metal_prelude.h") -> dict[str, set[str]]:
    """The names that the prelude's files declare, by namespace."""
    directories, flags = PLATFORMS[platform]
    command = [*compiler(), "-E", "-x", "c++", "-std=c++17", *flags, *(f"-I{d}" for d in (*directories, SHARED))]
    command += ["-DMSL_CHECKED"] if checked else []
    text = f'#include "{directories[0] / header}"\n'
    result = subprocess.run([*command, "-"], input=text, capture_output=True, text=True, check=True)
    return names_by_namespace(result.stdout, lambda file: file.startswith(str(CSRC)) and "/prelude/std/" not in file)


def names_by_namespace(text: str, ours=lambda file: True) -> dict[str, set[str]]:
    tokens = Tokens(text)
    found: dict[str, set[str]] = {}
    for declaration in walk(parse(tokens)):
        if declaration.scope.kind == "namespace" and ours(tokens.where(declaration.start)[0]):
            found.setdefault(declaration.scope.qualified("").removesuffix("::"), set()).update(
                names(tokens, declaration)
            )
    return found


def names(tokens: Tokens, declaration: Declaration) -> set[str]:
    """What a declaration at namespace scope declares."""
    text, lo, hi = tokens.text, declaration.head, declaration.end
    first = text[lo]
    if declaration.kind == "namespace":
        return {declaration.members.name} - {""} if declaration.members else set()
    if declaration.kind == "function":
        return set() if "operator" in text[lo : declaration.params] else {declaration.name(tokens)}
    if first in ("static_assert", ";") or (first == "using" and text[lo + 1] == "namespace"):
        return set()
    if first == "using":
        return {text[lo + 1] if "=" in text[lo:hi] else text[hi - 1]}
    found = set()
    keyword = next((i for i in range(lo, hi) if text[i] in ("struct", "class", "union", "enum")), -1)
    if keyword >= 0:
        i = keyword + 1
        while text[i] == "class" or (text[i] == "alignas" and tokens.at(i + 1) == "("):
            i = tokens.match[i + 1] + 1 if text[i] == "alignas" else i + 1
        found |= {text[i]} if tokens.kind[i] == "id" else set()
        if text[keyword] == "enum" and text[keyword + 1] not in ("class", "struct") and declaration.body >= 0:
            inside = tokens.split(declaration.body + 1, tokens.match[declaration.body])
            found |= {text[a] for a, _ in inside}
        if declaration.body < 0 and keyword == lo and i + 1 == hi:
            return found
    if declaration.kind in ("class", "enum") and first != "typedef":
        return found
    if "(" in text[lo:hi] and first == "typedef" and text[text.index("(", lo) + 1] == "*":
        return found | {text[text.index("(", lo) + 2]}
    lo = tokens.match[declaration.body] + 1 if declaration.body >= 0 else lo
    end = next((i for i in range(lo, hi) if text[i] in ("=", "[") and not tokens.is_attribute(i)), hi)
    if text[end - 1] == "}":
        end = tokens.match[end - 1]
    while text[end - 1] == ">":
        end = tokens.angle_back(end - 1)
    return found | ({text[end - 1]} if tokens.kind[end - 1] == "id" else set())


def test_the_names_of_a_text() -> None:
    text = """
    namespace a { template <class T> struct box; struct open { int hidden; }; enum class strict { inside }; }
    namespace a::b { using c = int; using a::box; constexpr int d[2] = {1, 2}; inline int e(int f) { return f; } }
    enum loose { g = 1, h }; typedef unsigned int i; typedef void (*j)(int); extern "C" { int k(void); }
    template <class T> constexpr bool l = false; template <> constexpr bool l<int> = true;
    typedef struct { int hidden[2]; } m; int operator+(m, m); static int n; using namespace a; struct alignas(8) o {};
    """
    assert names_by_namespace(text) == {
        "a": {"box", "open", "strict"},
        "a::b": {"c", "box", "d", "e"},
        "": {"a", "a::b", "loose", "g", "h", "i", "j", "k", "l", "m", "n", "o"},
    }


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_shaders_see_only_what_msl_has(platform: str, checked: bool) -> None:
    found = declared(platform, checked)
    assert {"dot", "simd_sum", "threadgroup_barrier", "numeric_limits"} <= found["metal"]
    assert found.pop("metal") - OVERLOADED <= METAL_NAMES
    assert {name for name in found.pop("") if not name.startswith(("msl_", "MSL_"))} <= GLOBAL_NAMES
    seen = {space for space in found if not space.startswith("msl_") and space != "simd"}
    assert seen == {"metal::fast", "metal::precise"}
    assert all(found[space] <= METAL_NAMES for space in seen)
    assert found.pop("msl_shader", set()) <= GLOBAL_NAMES | METAL_NAMES


def test_tensors_bring_what_apples_headers_have() -> None:
    plain, tensors = declared("host"), declared("host", header="metal_tensor.h")
    brought = {space: found - plain.get(space, set()) for space, found in tensors.items() if space[:4] != "msl_"}
    assert brought.pop("") == {"mpp"}
    assert {space: found for space, found in brought.items() if found} == OF_TENSORS


def test_what_lies_beside_a_type_is_operators() -> None:
    """Functions there would be found by their names in whatever a shader calls with a vector or a number."""
    for platform in PLATFORMS:
        found = declared(platform)
        assert found["msl_::vectors"] <= {"vec", "packed_vec", "swizzle", "storage"} | OVERLOADED
        assert found["msl_::numbers"] <= {"Float16", "BrainFormat", "HalfFormat"}
        assert found.get("msl_::divisors", set()) <= {"Divisor"}  # not on CUDA, which divides as the GPU does


def test_macros_have_a_prefix() -> None:
    files = [f for part in ("prelude", "host", "cuda/prelude") for f in (CSRC / part).rglob("*") if f.is_file()]
    macros = {m for f in files for m in re.findall(r"^\s*#\s*define\s+(\w+)", f.read_text(), re.M)}
    assert {m for m in macros if not m.startswith(("MSL_", "__builtin_"))} == set()
