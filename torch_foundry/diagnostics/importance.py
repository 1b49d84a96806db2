"""How much each input of a model's linear layers matters: what packing them with the least error of outputs needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from transformers.utils.logging import tqdm

from torch_foundry.diagnostics.perplexity.measure import CONTEXT
from torch_foundry.models.swap import is_swapped


@torch.inference_mode()
def importance(model: Any, tokens: Tensor | Sequence[Tensor], *, context: int = CONTEXT) -> dict[str, Tensor]:
    """Measure the mean square of each input of each linear layer: float32 [in_features] by the layer's name.

    tokens: int64 [n], or several such texts, each cut into windows of up to `context`. llama.cpp calls what is found an
    importance matrix.
    model: a causal language model with dense weights, not patched. Experts have none, as their inputs are routed.
    ValueError: a patched model, no tokens, or ids outside the vocabulary.
    """
    if any(is_swapped(module) for module in model.modules()):
        raise ValueError("model: expected one that is not patched: fused layers don't show their inputs")
    texts = [tokens] if isinstance(tokens, Tensor) else list(tokens)
    windows = [window for text in texts for window in text.split(context) if window.numel()]
    rows = model.get_input_embeddings().weight.shape[0]
    if not windows:
        raise ValueError("tokens: expected some, got none")
    if any(not 0 <= int(window.min()) <= int(window.max()) < rows for window in windows):
        raise ValueError(f"tokens: expected ids below {rows}")
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def seen(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        flat = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).float()
        sums[name] = sums.get(name, 0) + flat.square().sum(0)
        counts[name] = counts.get(name, 0) + flat.shape[0]

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    hooks = [module.register_forward_pre_hook(partial(seen, name)) for name, module in layers]
    was_training = model.training
    model.eval()
    try:
        for window in tqdm(windows, desc="Importance", unit="window", delay=2, disable=None):
            model(input_ids=window[None].to(model.device), use_cache=False)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return {name: sums[name] / counts[name] for name in sums}
