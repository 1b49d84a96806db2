"""The Metal executor's compiler options, names, limits and settings, on the mock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from torch_foundry import compile_shader

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry

# What the compiler was asked for is what the kernel writes.
VERSION = "kernel void k(device int* y [[buffer(0)]]) { y[0] = __METAL_VERSION__; }\n"


@pytest.fixture
def language() -> Iterator[None]:
    yield
    foundry._metal_language(0)


@pytest.mark.parametrize("version, name", [(310, "3.1"), (320, "3.2"), (400, "4.0")])
def test_language_version(version: int, name: str, language: None) -> None:
    foundry._metal_language(version)
    assert foundry._metal_info()["language"] == name
    y = torch.zeros(1, dtype=torch.int32, device="mps")
    compile_shader(VERSION + f"// {name}: a text of its own, or the pipeline of another version is found\n").k(y)
    assert y.item() == version


def test_a_version_that_is_none(language: None) -> None:
    with pytest.raises(ValueError, match="expected 310, 320, 400 or 0 for the newest, got 330"):
        foundry._metal_language(330)


def test_errors_say_what_the_text_was_compiled_as(language: None) -> None:
    foundry._metal_language(310)
    library = compile_shader("kernel void k(device int* y [[buffer(0)]]) {\n  y[0] = of_no_metal;\n}\n")
    with pytest.raises(RuntimeError, match=r"does not compile as Metal 3\.1:\n.*:2:\d+: error: .*of_no_metal"):
        library.k(torch.zeros(1, dtype=torch.int32, device="mps"))


OLD = '#if __METAL_VERSION__ < {}\n#error "this kernel needs Metal {}"\n#endif\n'
BODY = "kernel void k(device int* y [[buffer(0)]]) {{ y[0] = {}; }}\n"


@pytest.mark.parametrize(
    "text, version, needed",
    [
        (OLD.format(320, "3.2") + BODY.format(1), 310, "3.2, which macOS 15 has"),
        (OLD.format(400, "4.0") + BODY.format(1), 320, "4.0, which macOS 26 has"),
        (BODY.format("os_log"), 310, "3.2, which macOS 15 has"),
        (BODY.format("cooperative_tensor"), 320, "4.0, which macOS 26 has"),
        ("#include <metal_tensor>\n" + BODY.format(1), 310, "4.0, which macOS 26 has"),
        (f"#if __METAL_VERSION__ >= 320\n{BODY.format(1)}#endif\n", 310, "3.2, which macOS 15 has"),
    ],
    ids=["error 3.2", "error 4.0", "word 3.2", "word 4.0", "header 4.0", "left out"],
)
def test_a_kernel_that_needs_a_newer_language(text: str, version: int, needed: str, language: None) -> None:
    """One sentence, before the compiler's messages: what it needs, which macOS has that, and what it was given."""
    foundry._metal_language(version)
    foundry._add_source("newer.metal", text, "")
    with pytest.raises(RuntimeError) as error:
        foundry._shader_pipeline("mps", "newer.metal", "k", "k_msl_args", "k", [], [], [])
    first, *messages = str(error.value).splitlines()
    given = f"TORCH_FOUNDRY_METAL_VERSION asks for Metal {version / 100}"
    assert first == f"torch_foundry: newer.metal: kernel k needs Metal {needed}, and {given}:"
    assert messages


def test_what_a_newer_language_would_not_mend(language: None) -> None:
    foundry._metal_language(400)
    foundry._add_source("newer.metal", OLD.format(400, "4.0") + BODY.format("os_log"), "")
    with pytest.raises(RuntimeError, match=r"kernel k does not compile as Metal 4\.0:\n.*os_log"):
        foundry._shader_pipeline("mps", "newer.metal", "k", "k_msl_args", "k", [], [], [])
    foundry._add_source("newer.metal", BODY.format(1), "")
    with pytest.raises(RuntimeError, match=r"kernel other: Function other was not found"):
        foundry._shader_pipeline("mps", "newer.metal", "other", "k_msl_args", "other", [], [], [])


CONSTANTS = [
    ("bool", "int", True, 1), ("int", "int", -7, -7), ("uint", "uint", 2**32 - 1, -1), ("short", "int", -3, -3),
    ("ushort", "int", 65535, 65535), ("char", "int", -128, -128), ("uchar", "int", 255, 255),
    ("long", "int", -5, -5), ("float", "float", 0.1, 0.1), ("half", "float", 0.5, 0.5), ("bfloat", "float", -3.0, -3.0),
]  # fmt: skip


@pytest.mark.parametrize("declared, written, value, expected", CONSTANTS, ids=[c[0] for c in CONSTANTS])
def test_function_constants_of_every_type(declared: str, written: str, value: float, expected: float) -> None:
    library = compile_shader(
        f"#include <metal_stdlib>\nusing namespace metal;\nconstant {declared} c [[function_constant(3)]];\n"
        f"kernel void k(device {written}* y [[buffer(0)]]) {{ y[0] = {written}(c); }}\n"
    )
    y = torch.zeros(1, dtype=torch.float32 if written == "float" else torch.int32, device="mps")
    library.k(y, constants={"c": value})
    assert torch.equal(y.cpu(), torch.tensor([expected], dtype=y.dtype))


def test_one_compilation_for_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    library = compile_shader(
        "kernel void threads_k(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = i; }\n"
    )
    given = [torch.zeros(4, dtype=torch.int32, device="mps") for _ in range(8)]
    mock.trace()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(library.threads_k, given))
    assert len([event for event in mock.trace() if event.startswith("compile")]) == 1
    assert all(y.tolist() == [0, 1, 2, 3] for y in given)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("TORCH_FOUNDRY_METAL_VERSION", "3.0", "TORCH_FOUNDRY_METAL_VERSION='3.0': expected one of '', '3.1'"),
        ("TORCH_FOUNDRY_REPLAYS", "1", "TORCH_FOUNDRY_REPLAYS='1': expected one of 'serial', 'concurrent', 'indirect'"),
        ("TORCH_FOUNDRY_COMMIT_EVERY", "-1", "TORCH_FOUNDRY_COMMIT_EVERY='-1': expected 0 (never) or a number"),
        ("TORCH_FOUNDRY_METAL_VERSION", "3.1", ""),
        ("TORCH_FOUNDRY_REPLAYS", "indirect", ""),
        ("TORCH_FOUNDRY_COMMIT_EVERY", "17", ""),
    ],
)
def test_settings_from_the_environment(name: str, value: str, message: str) -> None:
    program = (
        "import torch_foundry.core.extension, torch; ops = torch.ops.torch_foundry; print(ops._metal_info()); "
        "print('interval', ops._metal_commit_interval(1))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env={**os.environ, name: value}, capture_output=True, text=True)
    assert (result.returncode != 0) == bool(message) and message in result.stderr
    if not message:
        assert f"interval {value if 'COMMIT' in name else 100}\n" in result.stdout


GPU = """
import torch, warnings
import torch_foundry.core.extension
from torch_foundry import ops
from torch_foundry.core import devices
warnings.simplefilter("always")
torch.ops.mock_metal.set({setting!r}, {value})
print(devices.device_problem("mps", True))
try:
    print(ops.rms_norm(torch.ones(1, 64, device="mps"), torch.ones(64, device="mps"), 0.0).sum().item())
except RuntimeError as error:
    print(error)
"""
NONE = (
    "torch_foundry's Metal kernels need the GPU of an M1 or later (Metal's family Apple7), and this one, Mock GPU, is "
    'none: use device "cpu"'
)


@pytest.mark.parametrize(
    ("setting", "value", "expected", "warning"),
    [
        ("family", 1007, "None\n64.0\n", ""),
        ("family", 1006, f"{NONE}\n{NONE}\n", ""),
        ("paravirtual", 1, "None\n64.0\n", "this is the GPU of a virtual machine, on which kernels may fail"),
    ],
    ids=["M1", "older", "virtual"],
)
def test_gpus_that_the_kernels_are_not_for(setting: str, value: int, expected: str, warning: str) -> None:
    command = [sys.executable, "-c", GPU.format(setting=setting, value=value)]
    result = subprocess.run(command, capture_output=True, text=True)
    said = "".join(line + "\n" for line in result.stdout.splitlines() if not line.startswith("Exception raised"))
    assert said.startswith(expected), result.stdout + result.stderr
    assert warning in result.stderr and bool(warning) == ("virtual machine" in result.stderr)


def test_a_torch_that_keeps_tensors_in_another_way() -> None:
    """The pointer of a storage is the buffer object: where it isn't, the first kernel says so and nothing crashes."""
    code = GPU.format(setting="plain_pointers", value=1)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "keeps tensors on mps in another way than those that torch_foundry was tested with" in result.stdout
