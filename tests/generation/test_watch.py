"""What a snapshot of modules takes for a change: whatever a graph captured before would not know of."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import torch_foundry
from tests.hf.tiny_models import ids, shared
from torch_foundry.core.errors import Fallback
from torch_foundry.generation.step_state import CacheLayers, StepState
from torch_foundry.hf.api import report
from torch_foundry.hf.generation_request import check_request
from torch_foundry.models.watch import ModuleGuard

pytestmark = pytest.mark.usefixtures("quiet")


def modules() -> list[Any]:
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).eval().bfloat16()
    return [block, *block]


def other_memory(block: Any) -> None:
    block[0].weight.data = block[0].weight.data.clone()


def other_dtype(block: Any) -> None:
    block[0].weight.data = block[0].weight.data.view(torch.float16)


def other_parameter(block: Any) -> None:
    block[0].weight = nn.Parameter(block[0].weight.data)


def other_buffer(block: Any) -> None:
    block[2].running_mean = block[2].running_mean.clone()


def other_child(block: Any) -> None:
    block[0] = nn.Linear(4, 4)


def one_child_more(block: Any) -> None:
    block.append(nn.Linear(4, 4))


def other_class(block: Any) -> None:
    block[0].__class__ = type("Linear", (nn.Linear,), {})


def training(block: Any) -> None:
    block[1].train()


def hook(block: Any) -> None:
    block[0].register_forward_hook(lambda *_: None)


def pre_hook(block: Any) -> None:
    block[2].register_forward_pre_hook(lambda *_: None)


def other_forward(block: Any) -> None:
    block[1].forward = block[1].forward


CHANGES = (
    other_memory, other_dtype, other_parameter, other_buffer, other_child, one_child_more, other_class, training, hook,
    pre_hook, other_forward,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_seen(change: Callable[[Any], None]) -> None:
    found = modules()
    guard = ModuleGuard(found)
    assert guard.is_valid()
    with torch.no_grad():
        found[0][0].weight.mul_(2)  # a graph reads values when it runs
    found[0][0].train()  # of which a linear layer takes no notice
    assert guard.is_valid()
    change(found[0])
    gc.collect()
    assert not guard.is_valid()


def test_hooks_on_all_modules() -> None:
    guard = ModuleGuard(modules())
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    try:
        assert not guard.is_valid() and guard.reason() == "global module hooks"
    finally:
        handle.remove()
    assert guard.is_valid()


@torch.no_grad()
def test_a_layer_with_a_config_of_its_own() -> None:
    """Which nobody would look at when it changes."""
    model = copy.deepcopy(shared("llama"))
    model.model.layers[1].self_attn.config = copy.deepcopy(model.config)
    torch_foundry.patch(model)
    cache = DynamicCache(config=model.config)
    model(ids(1, 9), past_key_values=cache)
    model(ids(1, 1), past_key_values=cache)
    assert report(model).eager == {"a layer has a config of its own": 1} and report(model).steps == 0


@torch.no_grad()
def test_an_interrupted_upload_is_done_again() -> None:
    """Nobody knows then what the device has."""
    model = torch_foundry.patch(copy.deepcopy(shared("llama")))
    cache = DynamicCache(config=model.config)
    model(torch.ones(1, 3, dtype=torch.long), past_key_values=cache)
    decoder = model.model.decoder_plan()
    decoder.check()
    layers = CacheLayers(cache, range(2), decoder.state.kv_cache)
    layers.place(decoder, 1, 1)
    state = StepState(decoder, layers, torch.zeros(1, 1, dtype=torch.long), positions=16)
    state.seek([1, 0, 2, 0], [5])
    control = state._control

    class Interrupted:
        """Has copied, when the interrupt comes."""

        is_cuda = False

        def copy_(self, values: torch.Tensor, non_blocking: bool) -> None:
            control.copy_(values)
            raise KeyboardInterrupt

    state._control = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        state.seek([7, 0, 8, 0], [9])
    state._control = control
    state.seek([1, 0, 2, 0], [5])
    assert control.tolist() == [1, 0, 2, 0, 5]


@torch.no_grad()
def test_gpus_that_wait_for_each_other_take_hugging_faces_loop() -> None:
    model = torch_foundry.patch(copy.deepcopy(shared("llama")))
    given = {"past_key_values": DynamicCache(config=model.config)}
    check_request(model, model.generation_config, False, given)
    with pytest.raises(Fallback, match="synced_gpus"):
        check_request(model, model.generation_config, True, given)
