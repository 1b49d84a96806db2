"""Device memory that a recorded decode step reads: where it writes, positions, mask and rope tables."""

from __future__ import annotations

from typing import Any

import torch

SMALLEST_HORIZON = 256  # positions; doubled as needed
Table = tuple[torch.Tensor, torch.Tensor]  # cos, sin: [rows, rotated dimensions]


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`, from 1 on."""
    return 1 << (number - 1).bit_length()


def horizon_for(positions: int) -> int:
    """The number of positions to prepare for, if `positions` of them are needed."""
    return max(SMALLEST_HORIZON, power_of_two(positions))


class StepState:
    """What changes from step to step.

    start: int32 [layers, 2]. positions: int32 [B, L]. mask: bool [B, horizon], or None. The first two are parts of one
    tensor, so that one small kernel, or one copy, moves them on.
    """

    def __init__(
        self, batch: int, length: int, layers: int, horizon: int, *, masked: bool, fixed: bool, device: torch.device
    ) -> None:
        # not inference tensors: those could only be written to in inference mode
        with torch.inference_mode(False):
            self._control = torch.zeros(2 * layers + batch * length, dtype=torch.int32, device=device)
            self.mask = torch.ones(batch, horizon, dtype=torch.bool, device=device) if masked else None
        self.start = self._control[: 2 * layers].view(layers, 2)
        self.positions = self._control[2 * layers :].view(batch, length)
        self.horizon = horizon
        moving = 0 if fixed else length
        self._step = [length, 0] * layers + [moving] * (batch * length)
        self._delta: torch.Tensor | None = None
        self._at: list[int] | None = None  # what was uploaded last
        self._moved = 0  # how often the device has moved on since

    def seek(self, starts: list[int], positions: list[int]) -> None:
        """Set what the next step reads: start of each layer (flat), and a row of the rope tables for each token."""
        wanted = starts + positions
        if self._at is not None and wanted == self._after(self._moved + 1):
            self.move_on()
        elif self._at is None or wanted != self._after(self._moved):
            self._at = None
            self._control.copy_(torch.tensor(wanted, dtype=torch.int32), non_blocking=self._control.is_cuda)
            self._at, self._moved = wanted, 0

    def _after(self, moves: int) -> list[int]:
        assert self._at is not None
        return [a + moves * b for a, b in zip(self._at, self._step, strict=True)]

    def move_on(self) -> None:
        """Advance to the next step: one launch, nothing is uploaded."""
        if self._delta is None:
            with torch.inference_mode(False):
                self._delta = torch.empty_like(self._control)
                # CUDA reads pageable memory before it returns, and need not wait for what is under way
                self._delta.copy_(torch.tensor(self._step, dtype=torch.int32), non_blocking=self._control.is_cuda)
        at, self._at = self._at, None  # an interrupt right here: then nobody knows what the device has
        self._control.add_(self._delta)
        self._moved += 1
        self._at = at

    def set_mask(self, mask: torch.Tensor) -> None:
        """Take over `mask` [B, tokens so far]: nonzero where a token may be seen."""
        assert self.mask is not None
        self.mask[:, : mask.shape[1]].copy_(mask)


class Rotary:
    """A model's rotary embedding, which makes the tables: their rows equal what it gives for single positions."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.layer_types: tuple[str | None, ...] = tuple(getattr(module, "layer_types", None) or (None,))
        types = module.rope_type.values() if isinstance(module.rope_type, dict) else (module.rope_type,)
        # whether a position's row is always the same; otherwise it depends on the length of the text
        self.constant = not any("dynamic" in t or t == "longrope" for t in types)

    def __call__(self, positions: torch.Tensor, like: torch.Tensor) -> dict[str | None, Table]:
        """cos and sin of `positions` [B, L], each [B, L, R], by layer type; `like` has the device and dtype."""
        return {
            t: self.module(like, positions) if t is None else self.module(like, positions, t) for t in self.layer_types
        }

    def version(self) -> tuple[Any, ...]:
        """Changes whenever the tables would change."""
        buffers = self.module._buffers.values()
        return tuple((id(b), b.data_ptr(), 0 if b.is_inference() else b._version) for b in buffers)


class RopeTables:
    """cos and sin of the positions 0 ... rows - 1."""

    def __init__(self, rotary: Rotary, rows: int, like: torch.Tensor) -> None:
        self.rotary, self.rows, self.like = rotary, rows, (like.dtype, like.device)
        self._version = rotary.version()
        with torch.inference_mode(False), torch.no_grad():
            found = rotary(torch.arange(rows, device=like.device)[None], like)
        self.tables = {t: (cos[0].contiguous(), sin[0].contiguous()) for t, (cos, sin) in found.items()}

    def hold(self) -> bool:
        """Whether the rotary embedding would still give the same."""
        return self._version == self.rotary.version()


class RopeRows:
    """cos and sin of just the tokens of a step: for positions that only the device knows."""

    def __init__(self, rotary: Rotary, batch: int, length: int, like: torch.Tensor) -> None:
        self.rotary, self.like = rotary, like
        with torch.inference_mode(False), torch.no_grad():
            found = rotary(torch.zeros(batch, length, dtype=torch.int64, device=like.device), like)
        self.tables = {t: (cos.flatten(0, 1).clone(), sin.flatten(0, 1).clone()) for t, (cos, sin) in found.items()}

    def set(self, positions: torch.Tensor) -> None:
        """Take over `positions` [B or 1, L]."""
        for t, found in self.rotary(positions, self.like).items():
            for rows, table in zip(found, self.tables[t], strict=True):
                table.view(-1, *rows.shape[1:]).copy_(rows)

    def hold(self) -> bool:
        """Always: they are made anew at each step."""
        return True
