"""The routed experts of a mixture-of-experts block, over packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torch_foundry import quant
from torch_foundry.nn.linear import _PackedMatmul

_DENSE = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
NAMES = ("gate_proj", "up_proj", "down_proj")


class FoundryExperts(nn.Module):
    """Experts whose weights stay packed, in the place of a stock module with `gate_up_proj` and `down_proj`.

    gate_proj, up_proj: buffers [experts, intermediate, bytes of a row], down_proj: [experts, hidden, bytes of a row];
    uint8, so `.to(dtype)` leaves them alone, or [experts, N, K] of a floating dtype where a weight isn't packed. The
    gradient flows to the hidden states and to the routing weights, never to the experts.
    """

    gate_proj: torch.Tensor
    up_proj: torch.Tensor
    down_proj: torch.Tensor

    def __init__(
        self, experts: nn.Module, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, formats: Sequence[str]
    ) -> None:
        """gate, up, down: as they are stored, in `formats` (of `quant.FORMATS`), one each.

        experts: the stock module, which may be on the meta device. It gives its weights up and is kept for
        `to_experts`. ValueError if a shape is not the one that `experts` has.
        """
        super().__init__()
        stock: Any = experts
        self.num_experts, self.hidden_dim = int(stock.num_experts), int(stock.hidden_dim)
        self.intermediate_dim = int(stock.intermediate_dim)
        self.act_fn: nn.Module = stock.act_fn
        for name, tensor, fmt in zip(NAMES, (gate, up, down), formats, strict=True):
            known = quant.get_format(fmt)
            rows, columns = self._shape(name)
            expected = (self.num_experts, rows, known.row_size(columns))
            if tensor.dtype != known.dtype or tuple(tensor.shape) != expected:
                found = f"{tensor.dtype} {list(tensor.shape)}"
                raise ValueError(f"{name}: expected {known.dtype} {list(expected)} for {fmt}, got {found}")
            self.register_buffer(name, tensor)
        self._packed_as = tuple(fmt if quant.get_format(fmt).packed else None for fmt in formats)
        for name in list(stock._parameters):
            stock._parameters[name] = None
        self.__dict__["_dense"] = stock
        self.train(stock.training)

    @classmethod
    def from_experts(cls, experts: nn.Module, fmt: str) -> FoundryExperts:
        """`experts` with its weights packed as `fmt`; those whose rows are not whole blocks stay dense."""
        stock: Any = experts
        size = quant.get_format(fmt).block_size
        both, down = stock.gate_up_proj.detach(), stock.down_proj.detach()
        tensors, formats = [], []
        for dense in (*both.split(stock.intermediate_dim, dim=1), down):
            count, rows, columns = dense.shape
            own = fmt if columns % size == 0 else _DENSE[dense.dtype]
            packed = quant.quantize(dense.reshape(-1, columns), own)
            tensors.append(packed.view(count, rows, -1))
            formats.append(own)
        gate, up, last = tensors
        return cls(experts, gate, up, last, formats)

    @property
    def formats(self) -> tuple[str, ...]:
        """Of gate, up and down."""
        return tuple(fmt or _DENSE[self._buffers[name].dtype] for name, fmt in self._stored())  # type: ignore[union-attr]

    def to_experts(self, dtype: torch.dtype) -> nn.Module:
        """The stock module that this one was made from, with the dequantised weights."""
        gate, up, down = (self.dequantized(name, dtype) for name in NAMES)
        stock: nn.Module = self.__dict__["_dense"]
        stock._parameters["gate_up_proj"] = nn.Parameter(torch.cat([gate, up], dim=1))
        stock._parameters["down_proj"] = nn.Parameter(down)
        stock.train(self.training)
        return stock

    def dequantized(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """One of NAMES as the packed weight says it is: [experts, N, K]."""
        weight: torch.Tensor = getattr(self, name)
        rows, columns = self._shape(name)
        return quant.dequantize(weight.flatten(0, 1), self._format(name), columns, dtype).view(-1, rows, columns)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum of the chosen experts' outputs, [T, hidden].

        hidden_states: [T, hidden]. top_k_index: integers [T, k]; those outside of the experts add nothing.
        top_k_weights: [T, k].
        """
        result = torch.zeros_like(hidden_states)
        for expert in torch.unique(top_k_index).tolist():
            if 0 <= expert < self.num_experts:
                token, place = torch.where(top_k_index == expert)
                x = hidden_states[token]
                inner = self.act_fn(self._product("gate_proj", expert, x)) * self._product("up_proj", expert, x)
                y = self._product("down_proj", expert, inner) * top_k_weights[token, place, None]
                result = result.index_add(0, token, y.to(result.dtype))
        return result

    def _product(self, name: str, expert: int, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _PackedMatmul.apply(
            x, getattr(self, name)[expert], None, self._format(name), self._shape(name)[1]
        )
        return y

    def _stored(self) -> list[tuple[str, str | None]]:
        return list(zip(NAMES, self._packed_as, strict=True))

    def _format(self, name: str) -> str:
        return self.formats[NAMES.index(name)]

    def _shape(self, name: str) -> tuple[int, int]:
        inner, hidden = self.intermediate_dim, self.hidden_dim
        return (hidden, inner) if name == "down_proj" else (inner, hidden)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        sizes = f"{self.num_experts} experts, hidden={self.hidden_dim}, intermediate={self.intermediate_dim}"
        return f"{sizes}, formats={'/'.join(dict.fromkeys(self.formats))}"
