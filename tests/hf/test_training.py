"""transformers' Trainer with peft's LoRA on packed weights: the losses of the dense model, and the memory of a step."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import torch_foundry
from benchmarks.harness.allocations import most_allocated
from tests.exact import assert_found_as_exact
from tests.hf.tiny_models import ids
from tests.io.test_mlx_folders import written
from torch_foundry.demo_model import draft_model_path, held_out_sample
from torch_foundry.nn import FoundryExperts, FoundryLinear
from torch_foundry.nn import linear as packed

pytestmark = pytest.mark.usefixtures("quiet")
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
PARTS = (
    1 << 14
)  # weights that are unpacked at a time, in place of DEQUANT_CHUNK: no matrix of the models here is as small


@cache
def demo(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def pair(path: Path, fmt: str) -> tuple[Any, Any]:
    """The demo model at `path` with packed weights, patched, and the dense one that has their values, of stock code."""
    ours = torch_foundry.quantize(copy.deepcopy(demo(path)), fmt)
    dense = torch_foundry.dequantize(copy.deepcopy(ours))
    return torch_foundry.patch(ours), dense


def with_lora(model: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=ATTENTION + MLP)
    return peft.get_peft_model(model, config, **options)


@cache
def documents(tokenizer: Any, length: int) -> list[dict[str, Tensor]]:
    text = tokenizer("".join(held_out_sample()), return_tensors="pt").input_ids[0]
    return [{"input_ids": part, "labels": part} for part in text.split(length)[:-1]]


class Losses(Trainer):
    """A Trainer that remembers the loss of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: list[float] = []

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        result = super().compute_loss(*args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        self.losses.append(float(loss.detach()))
        return result


def fit(model: Any, data: list[dict[str, Tensor]], steps: int, folder: Path, **options: Any) -> list[float]:
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=2, learning_rate=2e-3, lr_scheduler_type="constant",
        logging_strategy="no", save_strategy="no", report_to=[], use_cpu=True, seed=5, disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = Losses(model=model, args=arguments, train_dataset=data)
    trainer.train()
    return trainer.losses


def assert_same_curve(found: list[float], expected: list[float], tolerance: float) -> None:
    assert len(found) == len(expected) and min(expected) < expected[0] - 0.05
    off = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    assert off <= tolerance * expected[0], (off, found, expected)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "DEQUANT_CHUNK", PARTS)


# Roundings of float32 differ where products with parts of a matrix are added up; each step's go on into the next.
CURVES = [
    pytest.param(draft_model_path(), "q4_0", 10, {}, 1e-5, id="a few steps"),
    pytest.param(draft_model_path(), "q8_0", 4, {"gradient_checkpointing": True}, 1e-5, id="checkpointing"),
    pytest.param(draft_model_path(), "nf4", 6, {"bf16": True}, 1e-2, id="bf16"),
    pytest.param(draft_model_path(), "q4_1", 200, {}, 1e-3, id="200 steps", marks=pytest.mark.tier("nightly")),
]


@pytest.mark.cpu_only
@pytest.mark.parametrize("path, fmt, steps, options, tolerance", CURVES)
def test_losses_are_those_of_the_dense_model(
    path: Path, fmt: str, steps: int, options: dict[str, Any], tolerance: float, tmp_path: Path, small_parts: None
) -> None:
    _, tokenizer = torch_foundry.load(path, device="cpu", progress=False)
    data = documents(tokenizer, 48)
    found, expected = (fit(with_lora(model), data, steps, tmp_path, **options) for model in pair(path, fmt))
    assert_same_curve(found, expected, tolerance)


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_memory_of_a_step(dtype: torch.dtype, small_parts: None) -> None:
    """Beside its weights a packed model needs what the dense one needs, activations and adapters, and one unpacked
    part of a matrix; never a dense copy of a matrix. Adapters have the dtype that they have around a dense layer."""
    prompt, most = ids(1, 24, seed=1), []
    for base in pair(draft_model_path(), "q8_0"):
        model = with_lora(base.to(dtype), autocast_adapter_dtype=False).train()
        assert {p.dtype for p in model.parameters() if p.requires_grad} == {dtype}

        def step(model: Any = model) -> None:
            model.zero_grad(set_to_none=True)
            model(prompt, labels=prompt).loss.backward()

        step()
        most.append(most_allocated(step))
    largest = base.lm_head.weight.nbytes
    assert most[0] <= most[1] + dtype.itemsize * PARTS + (16 << 10), most
    assert largest > 8 * dtype.itemsize * PARTS, "a dense copy of the largest matrix would be noticed"


@pytest.mark.parametrize("kind", ["gguf", "mlx"])
def test_a_file_is_tuned_saved_and_merged(kind: str, tmp_path: Path) -> None:
    """As docs/training.md has it."""
    file = tmp_path / ("model.gguf" if kind == "gguf" else "folder")
    if kind == "gguf":
        ours = torch_foundry.quantize(copy.deepcopy(demo(draft_model_path())), "q8_0")
        _, tokenizer = torch_foundry.load(draft_model_path(), device="cpu", progress=False)
        torch_foundry.save_gguf(ours, file, tokenizer)
    else:
        file.mkdir()
        written("lfm2", file)

    def load() -> Any:
        return torch_foundry.load(file, device="cpu", progress=False)[0]

    base = load()
    assert {module.compute_dtype for module in base.modules() if isinstance(module, FoundryLinear)} == {base.dtype}
    before = {name: value.clone() for name, value in base.state_dict().items() if value.dtype == torch.uint8}
    model = with_lora(base)
    part = ids(1, 32, seed=2)[0]
    losses = fit(model, [{"input_ids": part, "labels": part}] * 16, 4, tmp_path / "run", gradient_checkpointing=True)
    assert losses[-1] < losses[0] - 0.05, losses
    after = base.state_dict()
    stay = [name for name in after if name.replace(".base_layer", "") in before]
    assert len(stay) == len(before) > 4
    assert all(torch.equal(after[name], before[name.replace(".base_layer", "")]) for name in stay)

    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(load(), tmp_path / "adapter").eval()
    prompt = ids(1, 20)
    with torch.no_grad():
        expected = model.eval()(prompt).logits
        assert torch.equal(again(prompt).logits, expected)
        merged = torch_foundry.merge_adapters(again)
        assert sum(isinstance(module, FoundryLinear) for module in merged.modules()) > 4
        found = merged(prompt).logits
    assert float((found - expected).abs().mean()) < 0.2 * float(expected.abs().mean())


def test_gradients_through_published_mxfp4_experts(tmp_path: Path) -> None:
    """gpt-oss in mlx's form: adapters of attention learn through experts that stay packed."""
    twin = written("gpt_oss", tmp_path)
    base = torch_foundry.load(tmp_path, device="cpu", progress=False)[0]
    assert {m.formats for m in base.modules() if isinstance(m, FoundryExperts)} == {("mxfp4",) * 3}
    prompt = ids(2, 40)

    def gradients(model: Any) -> list[Tensor]:
        torch.manual_seed(3)
        config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "o_proj"], init_lora_weights=False)
        tuned = peft.get_peft_model(model, config).train()
        tuned(prompt, labels=prompt).loss.backward()
        return [p.grad for p in tuned.parameters() if p.requires_grad]

    assert_found_as_exact(gradients(base), gradients, twin)
