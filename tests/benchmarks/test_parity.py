"""benchmarks.parity: what tokens are held against."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import torch_foundry
from benchmarks.models import MODELS, Model, build
from benchmarks.parity import _logits, _plain

CPU = torch.device("cpu")
MIXTURE = Model("GptOssConfig", 64, 64, 2, 2, 1, 64, 320, False, {"num_local_experts": 4, "num_experts_per_tok": 2})


@pytest.mark.tier("models")
@pytest.mark.parametrize("model", [MODELS["tiny"], MODELS["tiny-hybrid"], MIXTURE], ids=lambda m: m.config_class)
@pytest.mark.parametrize("fmt", ["f16", "q8_0"])
def test_layers_are_unpacked_one_at_a_time(model: Model, fmt: str) -> None:
    """With the bits of a whole model that is unpacked; between calls the layers are as they were."""
    network: Any = torch_foundry.patch(build(model, fmt, CPU))
    ids, got = torch.arange(3, 12)[None], torch.arange(5)[None]
    whole = torch_foundry.unpatch(copy.deepcopy(network).to(torch.float32), dequantize=True)
    plain = _plain(network, torch.float32)
    for _ in range(2):
        with torch.no_grad():
            assert torch.equal(_logits(plain, ids, got)[0], _logits(whole, ids, got)[0])
    layer = plain.get_decoder().layers[0]
    assert layer.layer is not layer and layer.mlp is layer.layer.mlp
    held = {tensor.dtype for tensor in layer.state_dict().values()}
    assert torch.float32 not in held and (torch.uint8 in held) == (fmt == "q8_0")
    assert torch_foundry.report(network).swapped  # the network itself is as it was
