"""Tables of cos and sin for rotary position embeddings."""

from __future__ import annotations

from typing import Any

import torch

from torch_foundry.core.errors import Fallback
from torch_foundry.core.limits import power_of_two
from torch_foundry.models.families import ROTARIES
from torch_foundry.models.family import LATENT, Family, class_key
from torch_foundry.models.watch import version_of

SMALLEST_HORIZON = 256  # positions; doubled as needed
# cos, sin: [rows, rotated dims] or [rows, 2, rotated dims], as ops take them; and float32 [rows, 1], if whole queries
# are multiplied by that
Table = tuple[torch.Tensor, ...]
Kind = str | float | None  # of layers that rotate alike: their type, or theta, or all


def tables_of(family: Family, config: Any, table: Table, positions: Any) -> Table:
    """What ops rotate heads by, of what stock code's rotary embedding gives for `positions` [B, L]."""
    if family.tables == "complex":
        both: Any = table
        return torch.cat((both.real, both.real), -1), torch.cat((both.imag, both.imag), -1)
    cos, sin = table
    if family.tables == "backwards":
        return cos, -sin
    if family.tables == "halves":
        return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    if family.tables == "pairs":
        cos, sin = (torch.cat((one[..., ::2], one[..., 1::2]), -1) for one in table)
        return cos, sin
    if family.multipliers:  # of keys; in float32, in which the products are as exact as those of keys are
        wide = [one.float() for one in table]
        return tuple(torch.stack((one, one * config.key_multiplier), -2) for one in wide)
    if not family.scaled_queries:
        return table
    rope = config.rope_parameters
    grown = torch.log(1 + torch.floor(positions / rope["original_max_position_embeddings"]))
    scale = (1 + rope["llama_4_scaling_beta"] * grown).to(cos.dtype)[..., None].float()
    if family.mixer == LATENT:  # most of a query is not rotated
        return cos, sin, scale
    cos, sin = cos.float(), sin.float()  # in which the products are exact, of narrower numbers
    return torch.stack((cos * scale, cos), -2), torch.stack((sin * scale, sin), -2)


def horizon_for(positions: int) -> int:
    """The number of positions to prepare for, if `positions` of them are needed."""
    return max(SMALLEST_HORIZON, power_of_two(positions))


def rotaries_of(decoder: Any, name: str) -> list[Any]:
    """The rotary embeddings of a decoder: one for each theta, or one for all layers, called `name`, or none ("")."""
    return list(getattr(decoder, "rotary_embs", None) or filter(None, [getattr(decoder, name) if name else None]))


class Rotary:
    """A model's rotary embedding, which makes the tables: their rows equal what it gives for single positions.

    modules: none if no layer rotates; then there are no tables. Several: one for each theta. mrope: they take positions
    by time, height and width. Those of a text are equal, so a table has a row for each.
    """

    def __init__(self, modules: list[Any], mrope: bool = False) -> None:
        self.mrope, self.constant = mrope, True
        self._modules = modules
        self._made: dict[Kind, tuple[Any, tuple[str, ...]]] = {}  # by which module, with which arguments
        for each in self._modules:
            for t in getattr(each, "layer_types", None) or (None,):
                kind = each.config.rope_parameters["rope_theta"] if len(modules) > 1 else t
                self._made[kind] = each, () if t is None else (t,)
            types = each.rope_type.values() if isinstance(each.rope_type, dict) else (each.rope_type,)
            # whether a position's row is always the same; otherwise it depends on the length of the text
            self.constant &= not any("dynamic" in t or t == "longrope" for t in types)

    def __call__(self, positions: torch.Tensor, like: torch.Tensor) -> dict[Kind, Table]:
        """The tables of `positions` [B, L], or [3, B, L] as of `sections`, by kind of layer, each with [B, L] in place
        of rows. like: its device and dtype are those of cos and sin."""
        if self.mrope:
            positions = positions.expand(3, *positions.shape[-2:])
        made: dict[Kind, Table] = {}
        for kind, (module, rest) in self._made.items():
            table, family = module(like, positions, *rest), ROTARIES.get(class_key(type(module)))
            made[kind] = table if family is None else tables_of(family, module.config, table, positions)
        return made

    def sections(self, positions: Any, batch: int) -> torch.Tensor:
        """`positions` without those that only masks are made from: [B or 1, L], or with mrope [1 or 3, B or 1, L].
        Raises Fallback for anything else."""
        shape: tuple[int, ...] = positions.shape if type(positions) is torch.Tensor else ()
        if len(shape) == 3 and self.mrope and shape[0] in (1, 3, 4):
            positions = positions[1:] if shape[0] == 4 else positions
        elif len(shape) != 2:
            raise Fallback("positions are not [batch, tokens]")
        if shape[-2] not in (1, batch):
            raise Fallback("positions are not [batch, tokens]")
        sections: torch.Tensor = positions
        return sections

    def version(self) -> tuple[Any, ...]:
        """Changes whenever the tables would change."""
        buffers = (b for module in self._modules for b in module._buffers.values())
        return tuple((id(b), b.data_ptr(), version_of(b)) for b in buffers)


def last_positions(positions: torch.Tensor, batch: int) -> list[int]:
    """Of the last token of each row, of `sections`. Raises Fallback if text behind it would have unlike sections."""
    last, *others = positions[..., -1].tolist() if positions.ndim == 3 else [positions[:, -1].tolist()]
    if any(other != last for other in others):
        raise Fallback("the prompt ends with an image")
    return last if len(last) == batch else last * batch


class RopeTables:
    """cos and sin of the positions 0 ... rows - 1."""

    def __init__(self, rotary: Rotary, rows: int, like: torch.Tensor) -> None:
        self.rotary, self.rows, self.like = rotary, rows, (like.dtype, like.device)
        self._version = rotary.version()
        with torch.inference_mode(False), torch.no_grad():
            made = rotary(torch.arange(rows, device=like.device)[None], like)
        self.tables = {t: tuple(each[0].contiguous() for each in table) for t, table in made.items()}

    def is_valid(self) -> bool:
        """Whether the rotary embedding would still give the same."""
        return self._version == self.rotary.version()


class RopeRows:
    """cos and sin of just the tokens of a step: for positions that only the device knows."""

    def __init__(self, rotary: Rotary, batch: int, length: int, like: torch.Tensor) -> None:
        self.rotary, self.like = rotary, like
        with torch.inference_mode(False), torch.no_grad():
            made = rotary(torch.zeros(batch, length, dtype=torch.int64, device=like.device), like)
        self.tables = {t: tuple(each.flatten(0, 1).clone() for each in table) for t, table in made.items()}

    def set(self, positions: torch.Tensor) -> None:
        """Take over `positions` [B or 1, L]."""
        for t, new in self.rotary(positions, self.like).items():
            for rows, table in zip(new, self.tables[t], strict=True):
                table.view(-1, *rows.shape[1:]).copy_(rows)

    def is_valid(self) -> bool:
        """True: they are computed anew at each step."""
        return True
