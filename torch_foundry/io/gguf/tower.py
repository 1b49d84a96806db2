"""What files of vision towers (`mmproj`) contain: the form of the data in `towers.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch_foundry.io.gguf.keys import EPSILON, REQUIRED, Key
from torch_foundry.io.gguf.slots import Sizes, Slot

Values = Mapping[str, Any]
LAYER, PROJECTOR = "v.blk.{}.", "model.multi_modal_projector."  # how tensors of layers, and parameters, are called
FIELDS = {  # of most towers' configs, by keys
    **{"block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads"},
    **{"embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "patch_size": "patch_size"},
    **{"image_size": "image_size", "attention.layer_norm_epsilon": "layer_norm_eps"},
}


class Settings(NamedTuple):
    """What follows from a file for the tower's config, for that of the whole, and for two processors."""

    tower: dict[str, Any]
    whole: dict[str, Any]
    images: dict[str, Any]
    processor: dict[str, Any]


@dataclass(frozen=True)
class Tower:
    """What files with one kind of projector hold.

    models: the `model_type` of the whole, and that of its decoder if alone it has another one, by the architecture of
    the decoder's file. keys: hyperparameters. slots: tensors; those with "{}" in their names are of each layer, and
    stack those of layers whose features go beyond the tower, too. In slots' shapes stand H: hidden size, F:
    feed-forward, Q: all heads, D: a head, C: colours, P: a side of a patch, L: all of a patch, T: pictures in it, N:
    places in a table, S: those of a square, B: tables, M: what patches have that become a token, W: all of their
    pixels, I: the projector's own size, O: the decoder's hidden size. options: groups of tensors that a file has or
    not, by the field of the config that says which. activation: of the config, by what a file says. settings: of values
    and sizes. tokens: of the vocabulary, by the config's fields for their ids. named: what the processor calls tokens.
    processor: its class, and that of the one for images.
    """

    models: Mapping[str, tuple[str, str]]
    keys: tuple[Key, ...]
    slots: tuple[Slot, ...]
    settings: Callable[[Values, Sizes], Settings]
    tokens: dict[str, str]
    processor: tuple[str, str]
    activation: Mapping[str, str]
    named: dict[str, str] = field(default_factory=dict)
    spare: Mapping[str, str] = field(default_factory=dict)  # tokens in place of those that older vocabularies lack
    stack: tuple[Slot, ...] = ()
    options: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    meaning: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of options without and with their tensors
    written: str = ""  # the name of the token that texts have for an image, where the decoder's template knows none
    in_parts: Tower | None = None  # what files hold that say at which sizes images are cut
    unread: tuple[str, ...] = ()  # parameters [H] that files lack, as nothing depends on them
    kind: str = ""  # of the tower's config, where the whole's has any
    decoder: str = "model.language_model."
    raised: str = ""  # the norm that files have with 1 added
    inside: Callable[[Values], dict[str, Any]] = lambda config: {}  # of the decoder's config, by what files say of it
    unused: tuple[str, ...] = ()  # tensors that are llama.cpp's alone, by how they begin


def tower_keys(fields: Mapping[str, str], *others: Key) -> tuple[Key, ...]:
    """The keys that all have, and others; fields: of the config, by keys."""
    common = (
        Key("block_count", "", int, 1, 1 << 9, REQUIRED),
        Key("attention.head_count", "", int, 1, 1 << 10, REQUIRED),
        Key("embedding_length", "", int, 1, 1 << 16, REQUIRED),
        Key("feed_forward_length", "", int, 1, 1 << 18, REQUIRED),
        Key("patch_size", "", int, 1, 1 << 10, REQUIRED),
        Key("projection_dim", "", int, 1, 1 << 20, REQUIRED),
        Key("attention.layer_norm_epsilon", "", float, EPSILON, 0.1, 1e-6),
        Key("image_mean", "", object, 0, 0, REQUIRED),
        Key("image_std", "", object, 0, 0, REQUIRED),
    )
    return tuple(replace(key, field=fields.get(key.name, "")) for key in (*common, *others))


def both(tensor: str, parameter: str, shape: str) -> Iterator[Slot]:
    """A weight, and its bias of as many numbers as it has rows. tensor: "a+b" if they lie in several."""
    for kind, size in (("weight", shape), ("bias", shape.partition(" ")[0])):
        names = "+".join(f"{name}.{kind}" for name in tensor.split("+"))
        yield Slot(names, f"{parameter}.{kind}", size, layout="joined" if "+" in tensor else "")


def attention_and_mlp(own: str) -> Iterator[Slot]:
    """Of layers as SigLIP and CLIP have them, whose parameters begin with `own`."""
    for name, part, shape in (
        *(("ln1", "layer_norm1", "H"), ("ln2", "layer_norm2", "H")),
        *((f"attn_{letter}", f"self_attn.{letter}_proj", "H H") for letter in "qkv"),
        *(("attn_out", "self_attn.out_proj", "H H"), ("ffn_up", "mlp.fc1", "F H"), ("ffn_down", "mlp.fc2", "H F")),
    ):
        yield from both(LAYER + name, own + part, shape)


IMAGE_SIZE = Key("image_size", "", int, 1, 1 << 14, REQUIRED)
MERGE = Key("spatial_merge_size", "", int, 1, 1 << 5, 2)
SCALE = Key("projector.scale_factor", "", int, 1, 1 << 5)
