"""unsloth's steps of training adapters, in a process of their own, with packages of their own: importing it changes
transformers for everybody, and it wants an older one than torch_foundry.

`steps` leaves a folder with the model, the prompts and what is asked for, and the process, `answer`, its steps there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import adapters
from benchmarks.adapters import Steps
from benchmarks.harness.clock import Times
from benchmarks.models import DTYPES, save

ROOT = Path(__file__).parents[1]
JOB, FOUND, LOG = "job.pt", "found.pt", "log.txt"
WAIT = 540.0  # seconds: it compiles a layer first
# unsloth comes first, as it asks for. Nothing is asked of a hub, and nothing is told one.
START = "import unsloth, sys; from benchmarks import unsloth_steps; unsloth_steps.answer(sys.argv[1])"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}


class UnslothError(RuntimeError):
    """The process ended without steps."""


@dataclass(frozen=True)
class Asked:
    """What is asked of the process. packed: as nf4, or in `dtype`, a name, which the rest has in any case."""

    packed: bool
    dtype: str
    rank: int
    seed: int
    checkpointing: bool
    iterations: int


def steps(packages: Path, network: Any, prompts: Sequence[Tensor], asked: Asked) -> list[Steps]:
    """The steps of each prompt with the weights of `network`, which is dense, on the prompts' device.

    packages: a folder with unsloth, and what it needs beside the packages that this interpreter has of its own.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(network, folder)
        torch.save({"prompts": list(prompts), **asdict(asked)}, folder / JOB)
        if prompts[0].is_cuda:
            torch.cuda.empty_cache()  # the GPU is its own meanwhile
        paths = os.pathsep.join((str(packages.absolute()), str(ROOT)))
        own = {"PYTHONPATH": paths, "UNSLOTH_COMPILE_LOCATION": str(folder / "compiled")}
        with (folder / LOG).open("w") as log:
            command = [sys.executable, "-c", START, name]
            try:
                code = subprocess.run(
                    command, env={**os.environ, **OFFLINE, **own}, stdout=log, stderr=log, timeout=WAIT
                ).returncode
            except subprocess.TimeoutExpired:
                raise UnslothError(f"no answer within {WAIT:.0f} s") from None
        if code or not (folder / FOUND).exists():
            lines = (folder / LOG).read_text(errors="replace").strip().splitlines()
            raise UnslothError(f"exit code {code}: " + "\n".join(lines[-20:]))
        found = torch.load(folder / FOUND, map_location=prompts[0].device, weights_only=True)
    return [Steps(**{**each, "times": Times(tuple(each["times"]))}) for each in found]


def answer(name: str) -> None:
    """The process: reads what is asked for from the folder `name`, and leaves the steps there."""
    folder = Path(name)
    job = torch.load(folder / JOB, weights_only=True)
    prompts = job.pop("prompts")
    asked = Asked(**job)
    model = _load(folder, asked, max(prompt.shape[1] for prompt in prompts) + 1)
    adapters.draw(model, asked.seed, DTYPES[asked.dtype])
    found = [
        {"gradients": each.gradients, "times": list(each.times.rounds), "most": each.most, "weights": each.weights}
        for each in adapters.measure(model, prompts, asked.iterations)
    ]
    torch.save(found, folder / FOUND)


def _load(folder: Path, asked: Asked, longest: int) -> Any:
    """The model with adapters, by unsloth's own calls."""
    from transformers import BitsAndBytesConfig
    from unsloth import FastLanguageModel

    dtype = DTYPES[asked.dtype]
    # Scales that aren't packed again, which is where unsloth's own choice differs: the weights are to be the others'.
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    model, _ = FastLanguageModel.from_pretrained(
        str(folder),
        max_seq_length=longest,
        dtype=dtype,
        load_in_4bit=asked.packed,
        use_gradient_checkpointing=asked.checkpointing,
        offload_embedding=False,
        **({"quantization_config": packed} if asked.packed else {}),
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=asked.rank,
        target_modules=adapters.MATRICES,
        lora_alpha=adapters.ALPHA,
        use_gradient_checkpointing=asked.checkpointing,
        random_state=asked.seed,
    )
    bases = [module.weight for name, module in model.named_modules() if name.endswith(".base_layer")]
    if not bases or any(asked.packed != hasattr(weight, "quant_state") for weight in bases):
        raise RuntimeError(
            f"unsloth has weights that are {'not ' if asked.packed else ''}packed"
        )  # it says so, and goes on
    for parameter in adapters.parameters(model):
        parameter.data = parameter.data.to(dtype)  # it makes them float32; the other ways' have the model's dtype
    return model.train()
