"""The routed experts of a mixture-of-experts block, over packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_foundry import ops, quant
from torch_foundry.nn.activations import activation_of
from torch_foundry.nn.linear import MAX_GEMV_ROWS, _PackedMatmul, linear_gemm
from torch_foundry.nn.packing import KERNEL_DTYPES

NAMES = ("gate_proj", "up_proj", "down_proj")
MANY_EACH = 64  # tokens of an expert, on average, for which torch's own product on unpacked weights beats tiles


@dataclass(frozen=True, slots=True)
class Weights:
    """Experts' matrices as kernels take them: gate, up [E, inner, ..], down [E, hidden, ..]; formats: None for dense
    ones."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    formats: tuple[str | None, ...]
    activation: str

    @property
    def together(self) -> bool:
        """Whether gate and up can share a launch per token: the better way for up to MAX_GEMV_ROWS tokens."""
        return self.formats[0] == self.formats[1] and self.gate.dtype == self.up.dtype

    def gemv(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        **norm: Any,
    ) -> torch.Tensor:
        """residual + scale * the weighted sum of the experts' outputs for x [T, hidden], or for its norm."""
        gate_format, _, down_format = self.formats
        h = ops.moe_glu(x, ids, self.gate, self.up, format=gate_format, activation=self.activation, **norm)
        return ops.moe_down(h, ids, weights, self.down, format=down_format, residual=residual, scale=scale)

    def gemm(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """The same for many tokens: an expert's weights are read once for some 32 of them."""
        experts = self.gate.shape[0]
        order, tiles = ops.moe_group(ids, experts)

        def product(x: torch.Tensor, weight: torch.Tensor, index: int) -> torch.Tensor:
            return ops.moe_linear(x, order, tiles, weight, format=self.formats[index])

        inner = ops.glu(product(x, self.gate, 0), product(x, self.up, 1), self.activation)
        y = product(inner, self.down, 2)
        return ops.moe_combine(y, ids, weights, experts, residual=residual, scale=scale)


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
            own = fmt if columns % size == 0 else quant.DENSE_NAMES[dense.dtype]
            packed = quant.quantize(dense.reshape(-1, columns), own)
            tensors.append(packed.view(count, rows, -1))
            formats.append(own)
        gate, up, last = tensors
        return cls(experts, gate, up, last, formats)

    @property
    def formats(self) -> tuple[str, ...]:
        """Of gate, up and down."""
        return tuple(fmt or quant.DENSE_NAMES[self._buffers[name].dtype] for name, fmt in self._stored())  # type: ignore[union-attr]

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
        x, known = hidden_states, activation_of(self.act_fn)
        if (
            torch.compiler.is_compiling()
            or known is None
            or x.dtype not in KERNEL_DTYPES
            or not x.numel()
            or (torch.is_grad_enabled() and (x.requires_grad or top_k_weights.requires_grad))
            or top_k_index.numel() >= MANY_EACH * self.num_experts
        ):
            return self._one_by_one(x, top_k_index, top_k_weights)
        weights, x = self.weights(known), x.contiguous()
        routed = top_k_index.to(torch.int32), top_k_weights.float()
        few = len(x) <= MAX_GEMV_ROWS and weights.together
        return weights.gemv(x, *routed) if few else weights.gemm(x, *routed)

    def weights(self, activation: str) -> Weights:
        """For kernels."""
        formats = tuple(fmt for _, fmt in self._stored())
        return Weights(self.gate_proj, self.up_proj, self.down_proj, formats, activation)

    def _one_by_one(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Each expert's tokens through torch's own matrix product. Waits for the device, to learn which tokens those
        are."""
        result = torch.zeros_like(x)
        for expert in torch.unique(index).tolist():
            if 0 <= expert < self.num_experts:
                token, place = torch.where(index == expert)
                h = x[token]
                inner = self.act_fn(self._product("gate_proj", expert, h)) * self._product("up_proj", expert, h)
                y = self._product("down_proj", expert, inner) * weights[token, place, None]
                result = result.index_add(0, token, y.to(result.dtype))
        return result

    def _product(self, name: str, expert: int, x: torch.Tensor) -> torch.Tensor:
        weight, fmt = getattr(self, name)[expert], self._format(name)
        grad = torch.is_grad_enabled() and x.requires_grad
        if grad or x.dtype not in KERNEL_DTYPES or torch.compiler.is_compiling():
            y: torch.Tensor = _PackedMatmul.apply(x, weight, None, fmt, self._shape(name)[1])
            return y
        return linear_gemm(x, weight.to(x.dtype) if weight.is_floating_point() else weight,
                              None if weight.is_floating_point() else fmt, None)  # fmt: skip

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
