"""Whether generated tokens are right, by a criterion that nothing of what is measured can widen."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor

import torch_foundry
from benchmarks.harness.record import Parity
from benchmarks.ways import GenerationMode, Network

COMPARED = 64  # tokens of the prompt that `compare` looks at, layer by layer
TIMES = 4  # twice stock's error, as of an op, of each of two logits
TIES = 8  # roundings of the largest logit, in the model's dtype, that decide nothing
LOGITS = 2**29  # that are looked at at once
STRICT = "the greedy tokens of HF eager"


@torch.no_grad()
def parity(network: Network, way: GenerationMode, ids: Tensor, got: Tensor, expected: Tensor | None) -> Parity:
    """Whether `got` is right. `network` is the stock model; `expected` are HF eager's tokens, or None for packed
    weights.

    Equal tokens are right; in float32 nothing else is. Elsewhere rounding may decide between tokens: see `judge`; and
    no stage of a patched model may be out of line (`torch_foundry.compare`).
    """
    expected, detail = expected if way.rank == 1 else None, ""
    if expected is not None:
        if torch.equal(got, expected):
            return Parity(True, STRICT, 0.0)
        detail = f"tokens differ from step {_first_difference(got, expected)} on"
        if network.dtype == torch.float32:
            return Parity(False, STRICT, None, detail)
    if way.ours:
        found = torch_foundry.compare(network, ids[:1, :COMPARED])
        if found.first_bad is not None:
            return Parity(False, "compare: no stage out of line", found.logits, str(found).splitlines()[-1])
    found_parity = judge(network, ids, got, way.rank)
    criterion = found_parity.criterion + ", compare" * way.ours
    return Parity(found_parity.ok, criterion, found_parity.error, detail)


@torch.no_grad()
def judge(network: Network, ids: Tensor, got: Tensor, rank: int = 1) -> Parity:
    """Whether each token's logit in a wider model is as near to the `rank` largest as stock's own rounding explains.

    The wider model is stock code with the same weights, unpacked, in float32 (in float64 for float32). Stock's own
    error is how far a logit of plain torch in the network's dtype, with unpacked weights, is from it at most: no kernel
    of ours has a part in it. All in standard deviations of the logits. ids: [batch, L]; got: [batch, n].
    """
    dtype = network.dtype
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    exact, stock = _plain(network, wide), _plain(network, dtype)
    worst = own = 0.0
    for prompts, chosen in zip(*(rows.split(_rows_at_once(network, got)) for rows in (ids, got)), strict=True):
        right, rounded = _logits(exact, prompts, chosen), _logits(stock, prompts, chosen)
        deviation = right.std(-1)
        gap = right.topk(rank).values[..., -1] - right.gather(-1, chosen.to(right.device)[..., None])[..., 0]
        worst = max(worst, float((gap / deviation).nan_to_num(torch.inf).max()))
        own = max(own, float(((rounded.to(right.dtype) - right).abs().amax(-1) / deviation).max()))
    of = "largest logit" if rank == 1 else f"{rank} largest logits"
    return Parity(worst <= TIMES * own, f"each token within {TIMES} x {own:.1e} (stock's error) of the {of}", worst)


@torch.no_grad()
def near_tie(model: Network, prompt: list[int], answer: list[int], other: list[int]) -> bool:
    """Whether rounding may have decided between the first tokens in which two greedy answers part."""
    at = next((i for i, (a, b) in enumerate(zip(answer, other, strict=True)) if a != b), 0)
    text = torch.tensor([prompt + other[:at]], device=model.device)
    logits = model(text, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    gap = float((logits[answer[at]] - logits[other[at]]).abs())
    return gap <= TIES * torch.finfo(model.dtype).eps * float(logits.abs().max())


class Unpacked(torch.nn.Module):
    """A decoder layer whose weights are dense, and `dtype`, for as long as it runs: there needn't be room for all."""

    def __init__(self, layer: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def __getattr__(self, name: str) -> Any:
        """Also what a model asks its layers for."""
        return self._modules["layer"] if name == "layer" else getattr(self._modules["layer"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer's."""
        whole: Any = copy.deepcopy(self.layer)
        whole.dtype = self.dtype  # as of a whole model: what is unpacked gets it
        return torch_foundry.dequantize(whole.to(self.dtype))(*args, **kwargs)


def _plain(network: Network, dtype: torch.dtype) -> Network:
    """A copy in torch's own code alone, with the weights' values in `dtype`."""
    plain: Any = copy.deepcopy(network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers stay packed until they run
        torch_foundry.unpatch(plain)
    decoder = plain.get_decoder()
    layers, decoder.layers = decoder.layers, torch.nn.ModuleList()
    torch_foundry.dequantize(plain.to(dtype))
    decoder.layers = torch.nn.ModuleList(Unpacked(layer, dtype) for layer in layers)
    if dtype == torch.float64 and plain.device.type == "mps":
        plain = plain.cpu()
    return plain


def _logits(model: Network, ids: Tensor, got: Tensor) -> Tensor:
    """Of each token that was generated, [batch, n, V], from one pass over all before it: nothing is decoded."""
    whole = torch.cat((ids.to(model.device), got[:, :-1].to(model.device)), dim=1)
    logits: Tensor = model(whole, use_cache=False, logits_to_keep=got.shape[1]).logits
    return logits


def _rows_at_once(network: Network, got: Tensor) -> int:
    """Rows of a pass: packed layers are unpacked once for all of them, but logits are large."""
    return max(1, LOGITS // (got.shape[1] * network.config.get_text_config().vocab_size))


def _first_difference(a: Tensor, b: Tensor) -> int:
    return int((a != b).any(0).nonzero()[0])
