"""What can't work ends in one sentence that says what to do: on platforms that this test need not run on."""

from __future__ import annotations

import dataclasses
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torch_foundry
from tests.exact import assert_as_exact
from torch_foundry.cli.loading import UserError, find_device
from torch_foundry.core import devices, runtime, support
from torch_foundry.core.devices import cuda
from torch_foundry.core.devices.base import Facts
from torch_foundry.hf import api
from torch_foundry.ops.fake import fake

MAC = Facts("Darwin", "arm64", (15, 2), False, True, True)
LINUX = Facts("Linux", "x86_64", None, False, False, False)


def one_sentence(text: str | None) -> str:
    assert text is not None and "\n" not in text and len(text) < 300
    return text


def test_an_extension_that_crashes_when_it_is_loaded_is_said_to(tmp_path: Path) -> None:
    """With a libstdc++ of its own the first stream crashes: the build runs this in a process, and reads its status."""
    (tmp_path / "crashing.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "failing.py").write_text("raise ImportError('undefined symbol')\n")
    (tmp_path / "sound.py").write_text("")

    def problem(module: str) -> str | None:
        child = subprocess.run(support.module_command(module, tmp_path), stderr=subprocess.DEVNULL)
        return support.load_problem(child.returncode, "/opt/gcc/bin/g++")

    assert problem("sound") is None
    assert re.search(r"/opt/gcc/bin/g\+\+ .*signal 11.*CXX", one_sentence(problem("crashing")))
    assert "does not load" in one_sentence(problem("failing"))


@pytest.mark.parametrize(
    "version, numbers",
    [("2.13.0+cpu", (2, 13)), ("2.11", (2, 11)), ("3", (3, 0)), ("2.16.0a0+git12", (2, 16)), ("", (0, 0))],
)
def test_versions(version: str, numbers: tuple[int, int]) -> None:
    assert support.version_pair(version) == numbers


@pytest.mark.parametrize("minor", range(11, 16))
def test_every_supported_torch_passes_in_silence(minor: int) -> None:
    version = f"2.{minor}.1"
    assert support.torch_problem(version, None) is None
    assert support.torch_problem(version, f"2.{minor}.0+cpu") is None  # patch releases keep the interface
    assert support.torch_warning(version) is None


def test_a_torch_that_is_too_old() -> None:
    text = one_sentence(support.torch_problem("2.10.1", None))
    assert "needs torch 2.11 or later and this is torch 2.10.1" in text and "pip install" in text
    assert support.torch_problem("1.13.0", None) is not None


def test_a_torch_that_nobody_has_tried_warns() -> None:
    assert support.torch_problem("2.16.0", "2.16.0") is None
    text = one_sentence(support.torch_warning("2.16.0"))
    assert "tested with torch 2.11 to 2.15" in text and "2.16.0" in text and "torch-foundry doctor" in text


def test_an_extension_of_another_torch_is_refused_before_the_linker_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.record_torch(tmp_path, "2.11.0")
    monkeypatch.setattr(torch.ops, "load_library", lambda path: pytest.fail("loaded"))
    with pytest.raises(ImportError, match=r"built for torch 2.11.0 and torch .* is installed: build it again") as error:
        support.load_library(tmp_path / "_C.abi3.so", tmp_path)
    assert "--no-build-isolation" in one_sentence(str(error.value))


def test_a_library_that_does_not_link_says_how_to_rebuild(tmp_path: Path) -> None:
    library = tmp_path / "_C.abi3.so"
    library.write_bytes(b"not a library")
    with pytest.raises(ImportError, match=r"does not load: build it again .* --force-reinstall"):
        support.load_library(library, tmp_path)


def test_a_newer_torch_warns_once_it_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(torch, "__version__", "2.19.0")
    with pytest.warns(UserWarning, match="tested with torch 2.11 to 2.15"):
        support.load_library(tmp_path / "_C.abi3.so", tmp_path)


def test_the_build_records_its_torch() -> None:
    from torch_foundry.core import extension

    recorded = support.recorded_torch(extension.BUILT)
    assert recorded is not None and support.version_pair(recorded) == support.version_pair(torch.__version__)


def test_importing_an_extension_of_another_torch_ends_in_one_sentence() -> None:
    """A whole process, with torch's version changed under a package that is built."""
    code = (
        "import torch; torch.__version__ = '2.14.0'\n"
        "from torch_foundry.core import support; support.recorded_torch = lambda built: '2.12.1'\n"
        "import torch_foundry; torch_foundry.counters()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: torch_foundry was built for torch 2.12.1 and torch 2.14.0 is installed")
    assert "symbol" not in result.stderr


# -------------------------------------------------------------------------------------------------------------- devices


def changed(facts: Facts, **changes: object) -> Facts:
    return dataclasses.replace(facts, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "facts, has_executor, message",
    [
        (LINUX, False, "Metal needs macOS and this is Linux"),
        (changed(MAC, macos=(13, 6)), True, "need macOS 14 or later and this is macOS 13.6: update macOS"),
        (changed(MAC, machine="x86_64", macos=(14, 1)), False, "an Intel Mac has no MPS device"),
        (changed(MAC, machine="x86_64", rosetta=True), False, "under Rosetta.*install Python for arm64"),
        (changed(MAC, available=False), True, "torch sees no MPS device .* virtual machine"),
        (changed(MAC, built=False, available=False), False, "this torch was built without MPS"),
        (MAC, False, "no Metal executor: build it again"),
    ],
    ids=["linux", "macos13", "intel", "rosetta", "vm", "torch-without-mps", "no-executor"],
)
def test_no_mps_device(facts: Facts, has_executor: bool, message: str) -> None:
    text = one_sentence(devices.METAL.problem(has_executor, facts))
    assert re.search(message, text), text


@pytest.mark.tier("metal", quick=1)
@pytest.mark.parametrize(
    "macos, machine, mps_built, message",
    [
        (
            "13.6",
            "arm64",
            True,
            "torch_foundry's Metal kernels need macOS 14 or later and this is macOS 13.6: update macOS",
        ),
        ("14.1", "x86_64", True, "an Intel Mac has no MPS device that torch_foundry can use (it needs an M1 or later)"),
        ("14.1", "arm64", False, "this torch was built without MPS: install torch's macOS arm64 wheel, then"),
    ],
    ids=["macos13", "intel", "torch-without-mps"],
)
def test_a_mac_that_can_not_build_is_told(macos: str, machine: str, mps_built: bool, message: str) -> None:
    """setup.py with the facts of such a Mac."""
    code = (
        "import platform, runpy, torch\n"
        f"platform.system, platform.machine = lambda: 'Darwin', lambda: {machine!r}\n"
        f"platform.mac_ver = lambda: ({macos!r}, ('', '', ''), {machine!r})\n"
        f"torch.backends.mps.is_built = lambda: {mps_built}\n"
        "runpy.run_path('setup.py')"
    )
    root = Path(torch_foundry.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert result.returncode == 1
    *before, sentence = result.stderr.splitlines()  # torch warns where it finds nvcc and no GPU
    assert all("cpp_extension.py" in line for line in before), before
    assert sentence.startswith(f"torch_foundry can't be built here: {message}")
    assert "kernels run on the CPU" not in sentence


def test_mps_that_works() -> None:
    assert devices.METAL.problem(True, MAC) is None
    assert devices.METAL.problem(True, changed(MAC, macos=None)) is None  # a version that is not known
    assert devices.METAL.problem(True, LINUX) is None  # a stand-in for Metal


@pytest.mark.parametrize(
    "facts, message",
    [
        (LINUX, "this torch was built without CUDA"),
        (changed(LINUX, built=True), "torch sees no NVIDIA GPU"),
        (changed(LINUX, built=True, available=True), "no CUDA executor: build it again"),
    ],
    ids=["torch-without-cuda", "no-gpu", "no-executor"],
)
def test_no_cuda_device(facts: Facts, message: str) -> None:
    assert message in one_sentence(devices.CUDA.problem(False, facts))
    with_executor = devices.CUDA.problem(True, facts)
    assert with_executor is None if facts.available else message in one_sentence(with_executor)


def test_cuda_without_all_of_its_headers_is_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torch's packages with CUDA come: they have cuda_runtime.h, and not what it includes."""
    for header in cuda.HEADERS:
        (tmp_path / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "include" / header).touch()
    monkeypatch.setattr(cuda, "_homes", lambda: iter([tmp_path]))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert devices.CUDA.builds() and devices.CUDA.facts().problem == ""
    (tmp_path / "include/crt/host_config.h").unlink()
    assert not devices.CUDA.builds()
    problem = one_sentence(devices.CUDA.problem(False, dataclasses.replace(devices.CUDA.facts(), available=True)))
    assert "no crt/host_config.h was found: install" in problem and support.REBUILD in problem


def test_other_devices() -> None:
    assert "tensors of mps, cuda, cpu, not on xpu" in one_sentence(devices.device_problem("xpu", False))
    assert "hold no data" in one_sentence(devices.device_problem("meta", False))
    assert "no executor for the CPU" in one_sentence(devices.device_problem("cpu", False))
    assert devices.device_problem("cpu", True) is None


def test_a_python_built_for_an_old_sdk_does_not_know_its_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: ("10.16", ("", "", ""), "x86_64"))
    assert support.macos_version() is None
    monkeypatch.setattr(platform, "mac_ver", lambda: ("14.5", ("", "", ""), "arm64"))
    assert support.macos_version() == (14, 5)


def test_the_facts_of_this_process() -> None:
    known = devices.CUDA.facts()
    assert known.system == platform.system() and known.machine == platform.machine()
    assert known.built == (torch.version.cuda is not None)


# ------------------------------------------------------------------------------------------------ where they are raised


def tiny() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config)


def test_a_model_on_a_device_without_an_executor_is_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    monkeypatch.setattr(runtime, "has_executor", lambda kind: False)
    with pytest.raises(RuntimeError, match=r"cannot patch LlamaForCausalLM on cpu: this build .* has no executor"):
        api.patch(model)
    assert type(model) is LlamaForCausalLM and type(model.lm_head) is torch.nn.Linear


def test_a_model_without_weights_can_be_patched_but_not_packed() -> None:
    with torch.device("meta"):
        model = tiny()
    with pytest.raises(RuntimeError, match="cannot quantize LlamaForCausalLM: tensors on the meta device hold no data"):
        torch_foundry.patch(model, quantize="q8_0")
    assert type(model) is LlamaForCausalLM
    source = tiny().eval()
    torch_foundry.patch(model).eval().load_state_dict(source.state_dict(), assign=True)
    for name, buffer in source.named_buffers():  # not part of the state dict
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, buffer)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert_as_exact(lambda each: each(ids).logits, model, source)
    assert torch_foundry.report(model).fused == 1


@pytest.mark.parametrize("name, message", [("mps", "no MPS device|Metal"), ("xpu", "not on xpu"), ("meta", "no data")])
def test_the_command_line_says_why(name: str, message: str) -> None:
    if runtime.has_executor(name):
        pytest.skip(f"this build runs on {name}")
    with pytest.raises(UserError, match=f"--device {name}: .*({message})"):
        find_device(name)


def test_an_extension_older_than_the_sources() -> None:
    with pytest.raises(ImportError) as caught:
        fake("an_op_of_tomorrow")
    assert "make build" in one_sentence(str(caught.value))
