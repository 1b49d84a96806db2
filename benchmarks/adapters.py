"""Adapters (LoRA) of all linear layers, and their steps: the same for each way to train, in this process or another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import clock
from benchmarks.harness.clock import Times

MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ALPHA = 8
Gradients = list[Tensor]


@dataclass(frozen=True)
class Steps:
    """What a way did with one prompt. most: bytes that a step had beside what was there, where the device counts them.

    weights: bytes of the model without adapters.
    """

    gradients: Gradients
    times: Times
    most: int | None
    weights: int


def parameters(model: Any) -> Iterator[nn.Parameter]:
    """Of the adapters, in the model's order."""
    return (parameter for name, parameter in model.named_parameters() if "lora_" in name)


def draw(model: Any, seed: int, dtype: torch.dtype) -> None:
    """The same values whoever made the adapters, none of them zero, and which every dtype has as `dtype` has them."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters(model):
        drawn = torch.empty(parameter.shape).normal_(std=0.1 * parameter.shape[1] ** -0.5, generator=generator)
        parameter.data.copy_(drawn.to(dtype))


def checkpoint(model: Any) -> None:
    """Let `model` compute activations again instead of keeping them."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()


def gradients(model: Any, prompts: Sequence[Tensor]) -> list[Gradients]:
    """The adapters' of each prompt."""
    found = []
    for prompt in prompts:
        model(prompt, labels=prompt).loss.backward()
        found.append([parameter.grad for parameter in parameters(model) if parameter.grad is not None])
        model.zero_grad(set_to_none=True)
    return found


def time(model: Any, prompt: Tensor, iterations: int) -> tuple[Times, int | None]:
    """Of steps, and the most bytes that one had beside what was there before, where the device counts them."""
    optimizer = torch.optim.AdamW(list(parameters(model)), lr=1e-5)

    def step() -> None:
        model(prompt, labels=prompt).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    counted = prompt.device.type == "cuda"
    if counted:
        torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated() if counted else 0
    times = Times(tuple(clock.wall(prompt.device, step) for _ in range(iterations)))
    return times, torch.cuda.max_memory_allocated() - start if counted else None


def measure(model: Any, prompts: Sequence[Tensor], iterations: int) -> Iterator[Steps]:
    """Each prompt's steps. All gradients come first, as steps change the adapters."""
    for prompt, found in zip(prompts, gradients(model, prompts), strict=True):
        times, most = time(model, prompt, iterations)
        yield Steps(found, times, most, nbytes(model))


def nbytes(model: Any) -> int:
    """Of all that is no adapter, with what bitsandbytes keeps of a packed weight beside it."""
    total = 0
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "lora_" not in name:
            state = getattr(tensor, "quant_state", None)
            nested = getattr(state, "state2", None)
            beside = (getattr(state, "absmax", None), getattr(nested, "absmax", None))
            total += tensor.nbytes + sum(part.nbytes for part in beside if part is not None)
    return total
