"""Drafts that are right as often as one says: heads and draft models of networks whose text is known, made wrong."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import torch_foundry
from benchmarks.models import DTYPES
from torch_foundry.engine.drafting import PagedDraftModel
from torch_foundry.engine.mtp import PagedMTPDrafter
from torch_foundry.generation.draft_model import DraftModel
from torch_foundry.generation.mtp import MTPDrafter
from torch_foundry.models.mtp import NAME, MTPInput

# a smaller model with the same vocabulary
PAIRS = {
    "llama-3-8b": "llama-3.2-1b",
    "qwen3-4b": "qwen2.5-0.5b",
    "qwen3.5-4b": "qwen3.5-0.8b",
    "qwen3.5-9b": "qwen3.5-0.8b",
    "tiny": "tiny",
    "tiny-hybrid": "tiny-hybrid",
}
DRAFTERS = MTPDrafter, DraftModel, PagedMTPDrafter, PagedDraftModel
LITTLE = 0.01  # of what a layer of a repeating network adds to its input


@torch.no_grad()
def give_head(model: Any, fmt: str, seed: int) -> None:
    """An MTP head for a patched repeating network, all of it computed, that drafts what the network will choose: that
    depends on the newest token alone."""
    import transformers

    config = copy.deepcopy(model.config.get_text_config())
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"]
    torch.manual_seed(seed)
    with torch.device(model.device):
        head: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=model.dtype).eval()
        head.model.add_module(NAME, MTPInput(head.model.norm, config.hidden_size).to(model.dtype))
    head.model.embed_tokens, head.lm_head = torch.nn.Identity(), torch.nn.Identity()
    for name, weight in head.model.named_parameters():
        if weight.dim() == 2:
            weight.normal_(std=weight.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight", "fc_hidden.weight")):
                weight.mul_(LITTLE)
    torch.nn.init.eye_(head.model.mtp.fc_embedding.weight)
    if fmt not in DTYPES:
        torch_foundry.quantize(head.model, {"*": fmt})
    head.model.embed_tokens, head.lm_head = model.get_input_embeddings(), model.lm_head
    head.all_tied_weights_keys = {}
    model.generator_plan().mtp = torch_foundry.patch(head)


@contextlib.contextmanager
def right(share: float, seed: int) -> Iterator[None]:
    """Of drafts that all are right, let each be so with a probability of `share`, whatever came before; of others, of
    which a step's first wrong one leaves none, it says nothing."""
    wrong = (torch.rand(1 << 16, generator=torch.Generator().manual_seed(seed)) >= share).long()
    used, tables = [0], dict[torch.device, Tensor]()

    def scripted(propose: Callable[..., None]) -> Callable[..., None]:
        def wrapped(self: Any, sequences: Any, count: int) -> None:
            propose(self, sequences, count)
            for own in sequences:
                n = len(own.drafts)
                at = used[0] = (used[0] + n) % (len(wrong) - 64)
                if isinstance(own.drafts, Tensor):
                    if own.drafts.device not in tables:
                        tables[own.drafts.device] = wrong.to(own.drafts.device)
                    own.drafts = own.drafts + tables[own.drafts.device][at : at + n]  # the token beside
                else:
                    own.drafts = [a + b for a, b in zip(own.drafts, wrong[at : at + n].tolist(), strict=True)]

        return wrapped

    with contextlib.ExitStack() as stack:
        for kind in DRAFTERS:
            stack.enter_context(mock.patch.object(kind, "propose", scripted(kind.propose)))
        yield


@contextlib.contextmanager
def clocked() -> Iterator[list[float]]:
    """Seconds that the host spends in making drafts, one number each time, waiting for them included where it does."""
    spent: list[float] = []

    def timed(propose: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*args: Any) -> None:
            start = time.perf_counter()
            propose(*args)
            spent.append(time.perf_counter() - start)

        return wrapped

    with contextlib.ExitStack() as stack:
        for kind in DRAFTERS:
            stack.enter_context(mock.patch.object(kind, "propose", timed(kind.propose)))
        yield spent
