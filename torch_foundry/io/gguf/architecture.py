"""What GGUF files of an architecture contain: the form of the data in `architectures.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_foundry.io.gguf.keys import COMMON, Key
from torch_foundry.io.gguf.slots import EMBEDDING, MODEL_LAYER, NORM, Slot

FEED_FORWARD = ("mlp.", "feed_forward.")  # what parameters of such blocks begin with


@dataclass(frozen=True)
class Architecture:
    """One architecture, or a variant of it.

    config: class of transformers. layer: tensors of each block. options: groups of tensors that a file has in every
    block or in none, by the field of the config that says which. interleaved: rotary pairs lie side by side in the rows
    of a head (transformers has them half a head apart). norm_offset: what the file's norms have been raised by. tied:
    the output layer is always the embedding. pattern: every which layer sees beyond the sliding window. constants:
    fields of the config that follow from the architecture. scalar_layers: number of layers of the one size whose scores
    are scaled by hidden size / heads instead of by the head size. recurrent: tensors of blocks without attention, in
    place of its own; kind: their type in the config. norm: the last norm, if it has a weight. leading: the feed-forward
    block of the first blocks, as many as leading_dense_block_count says, in place of experts. expert_size: field of the
    config that has the feed-forward length of an expert. rope: what rope parameters of a type have besides what files
    say. variants: key that is above 0 -> what it is then. value_size, shared_size: fields of the config that have the
    size of a value head of a recurrent state, and of a shared expert. unused: fields that say nothing of such a model.
    outer: tensors beside those of blocks. blocks: what they have of their own, in `model.BLOCKS`. alone: types in the
    config of blocks that are a state space, attention or a feed-forward block alone. rotated: whether heads are. xielu:
    the activation function is xIELU, whose numbers are metadata.
    block: what the names of a block's parameters begin with.
    """

    config: str
    layer: tuple[Slot, ...]
    own_keys: tuple[Key, ...] = ()
    options: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    tied: bool = False
    pattern: int = 0
    partial_rope: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    scalar_layers: int = 0
    recurrent: tuple[Slot, ...] = ()
    kind: str = "linear_attention"
    embedding: Slot = EMBEDDING
    norm: Slot | None = NORM
    block: str = MODEL_LAYER
    leading: tuple[Slot, ...] = ()
    rope: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expert_size: str = "moe_intermediate_size"
    outer: tuple[Slot, ...] = ()
    blocks: str = "alike"
    alone: tuple[str, ...] = ()
    xielu: bool = False
    rotated: bool = True
    value_size: str = "linear_value_head_dim"
    shared_size: str = "shared_expert_intermediate_size"
    unused: frozenset[str] = frozenset()
    variants: Mapping[str, Architecture] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[Key, ...]:
        """All hyperparameters; its own take the place of common ones."""
        return tuple({key.name: key for key in (*COMMON, *self.own_keys)}.values())

    @property
    def whole(self) -> tuple[Slot, ...]:
        """The tensors beside those of blocks and an output layer."""
        return (self.embedding, *((self.norm,) if self.norm else ()), *self.outer)

    def fits(self, config: Any) -> bool:
        """Whether `config`, of that class, has its constants and no other types of blocks."""
        if self.alone and not set(config.layer_types) <= set(self.alone):
            return False
        return all(getattr(config, name, value) == value for name, value in self.constants.items())

    def slots(self, recurrent: bool, leading: bool = False) -> tuple[Slot, ...]:
        """The tensors of a block with attention or with a recurrent state, of one of the leading ones or of others."""
        layer = self.layer
        if leading:
            layer = (*(slot for slot in layer if not slot.parameter.startswith(FEED_FORWARD)), *self.leading)
        if recurrent:
            layer = (*self.recurrent, *(slot for slot in layer if not slot.parameter.startswith("self_attn.")))
        return layer
