"""The head by which a model predicts the token after next (multi-token prediction, MTP), as a model of one layer.

It is a causal language model of the same family, whose embedding, and whose output layer, are those of the model that
it belongs to. What its layer sees of a token is made of the token's embedding and of the last hidden state that the
model has of the token before (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torch_foundry.models.guards import epsilon
from torch_foundry.models.weights import Gemm, Linear, Norm

NAME = "mtp"  # of the module in the decoder


class MTPInput(nn.Module):
    """Weights of what comes before the layer: norms of both inputs, and a matrix for each.

    Files have one matrix, of both side by side. Two need no copy of the inputs to be put side by side.
    """

    def __init__(self, norm: nn.Module, hidden_size: int) -> None:
        """norm: the decoder's last, whose class and eps the two have."""
        super().__init__()
        kind: Any = type(norm)
        self.norm_embedding, self.norm_hidden = (kind(hidden_size, eps=epsilon(norm)) for _ in range(2))
        self.fc_embedding = nn.Linear(hidden_size, hidden_size, bias=False)
        self.fc_hidden = nn.Linear(hidden_size, hidden_size, bias=False)


class FusedMTPInput:
    """The same on our ops."""

    __slots__ = ("_linears", "_norms", "modules")

    def __init__(self, module: Any) -> None:
        self.modules = (module.norm_embedding, module.norm_hidden, module.fc_embedding, module.fc_hidden)
        self._norms = Norm(module.norm_embedding), Norm(module.norm_hidden)
        self._linears = Linear(module.fc_embedding), Linear(module.fc_hidden)

    def __call__(self, embedding: Tensor, hidden: Tensor, gemm: Gemm) -> Tensor:
        """What the layer gets [B, L, H], for embeddings of tokens and hidden states of those before, both [B, L, H]."""
        (of_embedding, of_hidden), (first, second) = self._norms, self._linears
        return gemm.product(second, of_hidden(hidden), gemm.product(first, of_embedding(embedding)))


def input_of(decoder: nn.Module) -> FusedMTPInput | None:
    """What comes before the layer, if `decoder` is that of such a head."""
    module = decoder._modules.get(NAME)
    return None if module is None else FusedMTPInput(module)


def is_head_of(head: Any, model: Any) -> bool:
    """Whether `head`, a patched model, still has the embedding and the output layer of `model`, and its dtype."""
    same = head.get_input_embeddings() is model.get_input_embeddings() and head.lm_head is model.lm_head
    first: Any = next(head.get_submodule(head.base_model_prefix).layers.parameters(), None)
    return same and (first is None or first.device == torch.device(model.device))
