"""The routed experts of a mixture-of-experts block, over packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_foundry import ops, quant
from torch_foundry.nn import packing
from torch_foundry.nn.activations import activation_of_experts
from torch_foundry.nn.linear import MAX_GEMV_ROWS, linear_routes, packed_linear
from torch_foundry.nn.packing import KERNEL_DTYPES

NAMES = ("gate_proj", "up_proj", "down_proj")  # of the matrices of experts with a gate


Biases = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]  # of gate, up and down


def _turned(experts: Any) -> bool:
    """Whether matrices are stored [E, inputs, outputs], with gate and up in turn, and there are biases, as in gpt-oss;
    otherwise gate_up_proj is [E, 2 * inner, hidden] with gate first, and down_proj [E, hidden, inner]."""
    return "gate_up_proj_bias" in experts._parameters


def names_of(experts: Any) -> tuple[str, ...]:
    """Of a module's matrices: NAMES, or those without a gate's."""
    if isinstance(experts, FoundryExperts):
        return experts.names
    return NAMES[1:] if "up_proj" in experts._parameters else NAMES


def matrices_of(experts: Any) -> tuple[torch.Tensor, ...]:
    """Views of a module's dense or packed matrices, as `names_of` names them: gate, if there is one, and up
    [E, inner, hidden], and down [E, hidden, inner]; rows of packed ones are bytes."""
    if isinstance(experts, FoundryExperts) or len(names_of(experts)) < len(NAMES):
        return tuple(getattr(experts, name) for name in names_of(experts))
    both, down = experts._parameters["gate_up_proj"], experts._parameters["down_proj"]
    if _turned(experts):
        both, down = both.transpose(1, 2), down.transpose(1, 2)
        return both[:, ::2], both[:, 1::2], down
    gate, up = both.chunk(2, dim=1)
    return gate, up, down


def set_matrices(experts: Any, matrices: Sequence[torch.Tensor]) -> None:
    """Give a stock module its dense matrices, as `matrices_of` returns them."""
    turned = _turned(experts)
    if len(matrices) < len(NAMES):
        experts._parameters.update({n: nn.Parameter(m) for n, m in zip(NAMES[1:], matrices, strict=True)})
        return
    gate, up, down = matrices
    both = torch.stack([gate, up], dim=2).flatten(1, 2) if turned else torch.cat([gate, up], dim=1)
    for name, dense in (("gate_up_proj", both), ("down_proj", down)):
        experts._parameters[name] = nn.Parameter(dense.transpose(1, 2) if turned else dense)


def biases_of(experts: Any) -> Biases:
    """Views of a module's biases: gate, up [E, inner] and down [E, hidden], of any strides; None: it has none."""
    if not _turned(experts):
        return None, None, None
    both = experts._parameters["gate_up_proj_bias"]
    return both[:, ::2], both[:, 1::2], experts._parameters["down_proj_bias"]


def lay_out(experts: Any) -> None:
    """Store dense matrices so that an output's weights lie side by side, as kernels read them. Parameters keep their
    shapes and values; one matrix at a time lies beside the others."""
    for name in ("gate_up_proj", "down_proj") if _turned(experts) else ():
        packing.lay_out(experts._parameters[name])


@dataclass(frozen=True, slots=True)
class Weights:
    """Experts' matrices as kernels take them: gate, up [E, inner, ..], down [E, hidden, ..]; formats: of these, None
    for dense ones. gate: None if there is none; its format is that of up."""

    gate: torch.Tensor | None
    up: torch.Tensor
    down: torch.Tensor
    formats: tuple[str | None, ...]
    biases: Biases
    activation: str

    @classmethod
    def of(cls, experts: Any, activation: str) -> Weights:
        """Those of a module, packed or not."""
        *gate, up, down = matrices_of(experts)
        packed = experts.packed_as if isinstance(experts, FoundryExperts) else (None,) * 3
        formats = packed[0], *packed[-2:]
        return cls(gate[0] if gate else None, up, down, formats, biases_of(experts), activation)

    @property
    def together(self) -> bool:
        """Whether gate and up can share a launch per token: the better way for up to MAX_GEMV_ROWS tokens."""
        return self.gate is None or (self.formats[0] == self.formats[1] and self.gate.dtype == self.up.dtype)

    def gemv(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        shared: Sequence[torch.Tensor] = (),
        **norm: Any,
    ) -> torch.Tensor:
        """residual + scale * the weighted sum of the experts' outputs for x [T, hidden], or for its norm. shared: the
        matrices of one more, the last of each token's; empty: there is none."""
        gate_format, _, down_format = self.formats
        *biases, bias = self.biases
        how: dict[str, Any] = {"format": gate_format, "activation": self.activation, "biases": biases}
        rest: dict[str, Any] = {"format": down_format, "residual": residual, "scale": scale, "bias": bias}
        if shared:
            how["shared"], rest["shared"] = (*(None,) * (self.gate is None), *shared[:-1]), shared[-1]
        h = ops.moe_glu(x, ids, self.gate, self.up, **how, **norm)
        return ops.moe_down(h, ids, weights, self.down, **rest)

    def gemm(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """The same for many tokens: an expert's weights are read once for some 32 of them."""
        experts = self.up.shape[0]
        order, tiles = ops.moe_group(ids, experts)

        def product(x: torch.Tensor, weight: torch.Tensor, index: int, activation: str | None = None) -> torch.Tensor:
            how: dict[str, Any] = {"format": self.formats[index], "bias": self.biases[index], "activation": activation}
            return ops.moe_linear(x, order, tiles, weight, **how)

        if self.gate is None:
            inner = product(x, self.up, 1, self.activation)
        else:
            inner = ops.glu(product(x, self.gate, 0), product(x, self.up, 1), self.activation)
        y = product(inner, self.down, 2)
        return ops.moe_combine(y, ids, weights, experts, residual=residual, scale=scale)


class FoundryExperts(nn.Module):
    """Experts whose weights stay packed, in the place of a stock module with `gate_up_proj` and `down_proj`, or with
    `up_proj` in place of the former, if there is no gate.

    gate_proj, up_proj: buffers [experts, intermediate, bytes of a row], down_proj: [experts, hidden, bytes of a row];
    uint8, so `.to(dtype)` leaves them alone, or [experts, N, K] of a floating dtype where a weight isn't packed. Biases
    stay parameters under their stock names. The gradient flows to the hidden states and to the routing weights, never
    to the experts.
    """

    gate_proj: torch.Tensor
    up_proj: torch.Tensor
    down_proj: torch.Tensor

    def __init__(self, experts: nn.Module, matrices: Sequence[torch.Tensor], formats: Sequence[str]) -> None:
        """matrices: gate, if there is one, up and down as they are stored, in `formats` (of `quant.FORMATS`), one each.

        experts: the stock module, which may be on the meta device. It gives its weights up and is kept for
        `to_experts`. ValueError if a shape is not the one that `experts` has.
        """
        super().__init__()
        stock: Any = experts
        self.names = names_of(stock)
        self.num_experts, self.intermediate_dim, self.hidden_dim = matrices_of(stock)[0].shape
        self.act_fn: nn.Module | None = getattr(stock, "act_fn", None)
        for name, tensor, fmt in zip(self.names, matrices, formats, strict=True):
            known = quant.get_format(fmt)
            rows, columns = self._shape(name)
            expected = (self.num_experts, rows, known.row_size(columns))
            if tensor.dtype != known.dtype or tuple(tensor.shape) != expected:
                found = f"{tensor.dtype} {list(tensor.shape)}"
                raise ValueError(f"{name}: expected {known.dtype} {list(expected)} for {fmt}, got {found}")
            self.register_buffer(name, tensor)
        self.packed_as = tuple(fmt if quant.get_format(fmt).packed else None for fmt in formats)
        for name, parameter in stock._parameters.items():
            if name.endswith("_bias"):
                self.register_parameter(name, parameter)
            stock._parameters[name] = None
        self.__dict__["_dense"] = stock
        self.train(stock.training)

    @classmethod
    def from_experts(cls, experts: nn.Module, fmt: str) -> FoundryExperts:
        """`experts` with its weights packed as `fmt`; those whose rows are not whole blocks stay dense."""
        size = quant.get_format(fmt).block_size
        tensors, formats = [], []
        for matrix in matrices_of(experts):
            dense = matrix.detach()
            count, rows, columns = dense.shape
            own = fmt if columns % size == 0 else quant.DENSE_NAMES[dense.dtype]
            packed = quant.quantize(dense.reshape(-1, columns).contiguous(), own)
            tensors.append(packed.view(count, rows, -1))
            formats.append(own)
        return cls(experts, tensors, formats)

    @property
    def formats(self) -> tuple[str, ...]:
        """Of its matrices."""
        return tuple(fmt or quant.DENSE_NAMES[self._buffers[name].dtype] for name, fmt in self._stored())  # type: ignore[union-attr]

    def unpacks(self, pairs: int) -> bool:
        """Whether torch's own product on unpacked weights beats tiles for so many pairs of token and expert."""
        first: torch.Tensor = getattr(self, self.names[0])
        return pairs > linear_routes(first[0], self.packed_as[0]).experts * self.num_experts

    def to_experts(self, dtype: torch.dtype) -> nn.Module:
        """The stock module that this one was made from, with the dequantised weights."""
        matrices = [self.dequantized(name, dtype) for name in self.names]
        stock: nn.Module = self.__dict__["_dense"]
        stock._parameters.update(self._parameters)
        set_matrices(stock, matrices)
        stock.train(self.training)
        return stock

    def dequantized(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """One of `names` as the packed weight says it is: [experts, N, K]."""
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
        x, known = hidden_states, activation_of_experts(self)
        if (
            torch.compiler.is_compiling()
            or known is None
            or x.dtype not in KERNEL_DTYPES
            or not x.numel()
            or (torch.is_grad_enabled() and (x.requires_grad or top_k_weights.requires_grad))
            or self.unpacks(top_k_index.numel())
        ):
            return self._one_by_one(x, top_k_index, top_k_weights)
        weights, x = Weights.of(self, known), x.contiguous()
        routed = top_k_index.to(torch.int32), top_k_weights.float()
        few = len(x) <= MAX_GEMV_ROWS and weights.together
        return weights.gemv(x, *routed) if few else weights.gemm(x, *routed)

    def _one_by_one(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Each expert's tokens through torch's own matrix product. Waits for the device, to learn which tokens those
        are."""
        result = torch.zeros_like(x)
        by_name = dict(zip(NAMES, biases_of(self), strict=True))
        for expert in torch.unique(index).tolist():
            if 0 <= expert < self.num_experts:
                token, place = torch.where(index == expert)
                h = x[token]
                inner = [_plus(self._product(name, expert, h), by_name[name], expert) for name in self.names[:-1]]
                y = _plus(self._product("down_proj", expert, self._activated(*inner)), by_name["down_proj"], expert)
                y = y * weights[token, place, None]
                result = result.index_add(0, token, y.to(result.dtype))
        return result

    def _activated(self, first: torch.Tensor, *up: torch.Tensor) -> torch.Tensor:
        """Of gate and up, or of up alone."""
        if self.act_fn is None:
            inner: torch.Tensor = self.__dict__["_dense"]._apply_gate(torch.stack([first, *up], dim=-1).flatten(-2))
        else:
            inner = self.act_fn(first)
            inner = inner * up[0] if up else inner
        return inner

    def _product(self, name: str, expert: int, x: torch.Tensor) -> torch.Tensor:
        weight, fmt = getattr(self, name)[expert], dict(self._stored())[name]
        if fmt is None:
            return nn.functional.linear(x, weight.to(x.dtype))
        return packed_linear(x, weight, fmt)

    def _stored(self) -> list[tuple[str, str | None]]:
        return list(zip(self.names, self.packed_as, strict=True))

    def _format(self, name: str) -> str:
        return self.formats[self.names.index(name)]

    def _shape(self, name: str) -> tuple[int, int]:
        inner, hidden = self.intermediate_dim, self.hidden_dim
        return (hidden, inner) if name == "down_proj" else (inner, hidden)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        sizes = f"{self.num_experts} experts, hidden={self.hidden_dim}, intermediate={self.intermediate_dim}"
        return f"{sizes}, formats={'/'.join(dict.fromkeys(self.formats))}"


def _plus(y: torch.Tensor, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
    return y if bias is None else y + bias[expert]
