"""What `patch` compiles before a model's first token, counted on the mock: libraries, pipelines, none afterwards."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from tests.hf.tiny_models import PROMPT, shared
from torch_foundry import ops
from torch_foundry.core import extension, runtime
from torch_foundry.core.ahead import KernelList
from torch_foundry.hf.api import _state_of

mock = torch.ops.mock_metal
LIBRARIES, PIPELINES = 6, 20  # at most, of a dense model

PROGRAM = """
import json, sys, torch, torch_foundry.core.extension
from transformers import AutoModelForCausalLM
from torch_foundry.demo_model import demo_model_path
from torch_foundry.hf.api import patch
mock = torch.ops.mock_metal
mock.set("run", 0)  # it is what is compiled that counts
def compiled():
    return [event for event in mock.trace() if event.startswith(("compile", "pipeline"))]
model = AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=torch.float16, local_files_only=True)
model = model.to("mps").eval()
before, memory = compiled(), mock.allocated()
patch(model, quantize=sys.argv[1] or None)
ahead, memory = compiled(), mock.allocated() - memory
for sample in (False, True):
    model.generate(torch.arange(40, 53, device="mps")[None], max_new_tokens=2, do_sample=sample)
print(json.dumps([before, ahead, compiled(), memory]))
"""


def process(cache: Path, quantize: str = "", **settings: str) -> Any:
    """Events before and in `patch`, and in two generations after it; bytes that it left on the device."""
    own = {"TORCH_FOUNDRY_CACHE": str(cache), "TORCH_FOUNDRY_METAL_ARCHIVE": "1", **settings}
    command = [sys.executable, "-c", PROGRAM, quantize]
    result = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


def test_a_dense_model(tmp_path: Path) -> None:
    """One library for each folder of shaders, all side by side; the next process finds every pipeline on disk."""
    before, ahead, later, memory = process(tmp_path)
    libraries = [event for event in ahead if event.startswith("compile")]
    assert not before and not later and memory == 0
    assert set(libraries) == {"compile side by side"} and 0 < len(libraries) <= LIBRARIES
    assert 8 < len(ahead) - len(libraries) <= PIPELINES
    before, again, later, memory = process(tmp_path)
    pipelines = [event for event in again if event not in libraries]
    assert len(pipelines) == len(ahead) - len(libraries)
    assert all(event.startswith("pipeline from archive ") for event in pipelines) and not later


def test_packed_weights(tmp_path: Path) -> None:
    _, ahead, later, _ = process(tmp_path, "q4_0")
    assert sum(event.startswith("compile") for event in ahead) <= LIBRARIES and not later


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    _, ahead, later, _ = process(tmp_path, TORCH_FOUNDRY_COMPILE_AHEAD="0", TORCH_FOUNDRY_METAL_ARCHIVE="0")
    assert not ahead and later and not (tmp_path / "metal").exists()
    assert sum(event.startswith("compile") for event in later) > LIBRARIES, "each kernel is a library of its own"


@pytest.fixture
def broken(tmp_path: Path) -> Any:
    """Shaders one of which does not compile."""
    import shutil

    shutil.copytree(extension.CHECKOUT / "shaders", tmp_path / "shaders")
    text = tmp_path / "shaders" / "norm" / "rms_norm.metal"
    text.write_text(text.read_text() + "kernel void wrong(device int* y [[buffer(0)]]) { os_log(y); }\n")
    with runtime.use_shaders(tmp_path / "shaders"):
        yield


def test_an_error_is_said_where_the_kernel_is_needed(broken: None) -> None:
    model = torch_foundry.patch(copy.deepcopy(shared("llama")).to("mps"))
    assert "kernels" in _state_of(model).ahead
    for _ in range(2):  # it is not remembered
        with torch.no_grad(), pytest.raises(RuntimeError, match=r"rms_norm\.metal: kernel rms_norm<.*error"):
            model(PROMPT.to("mps"))


def test_kernels_that_do_not_compile_together_are_compiled_alone() -> None:
    """With a warning, as it is a mistake of the package; nothing else is different."""
    kernels, x, weight = KernelList(torch.device("mps")), torch.randn(3, 96), torch.ones(96)
    other = torch.zeros(96)
    with kernels.record():
        ops.rms_norm(x.to("meta"), weight.to("meta"), 1e-6)
        ops.layer_norm(x.to("meta"), weight.to("meta"), other.to("meta"), 1e-6)
    same = "layer_norm.metal", "rms_norm.metal"
    assert tuple(file for file, _ in kernels.names()) == same
    texts = {file: (extension.BUILT / "translated" / file).read_text() for file in same}
    clash = "#ifdef OF_BOTH\n#error both\n#endif\n#define OF_BOTH\n"
    for file, text in texts.items():
        torch.ops.torch_foundry._add_source(file, text + clash, "")
    try:
        mock.trace()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kernels.compile()
        events = [event for event in mock.trace() if event.startswith(("compile", "pipeline"))]
    finally:
        extension.add_own_shaders()
    assert sum(event.startswith("compile") for event in events) == 3
    assert sum(event.startswith("pipeline") for event in events) == 2
    said = [str(each.message) for each in caught]
    assert sum("shaders/norm do not compile as one library" in each for each in said) == 1, said
