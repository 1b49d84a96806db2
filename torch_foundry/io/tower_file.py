"""A model that is shown images, of two GGUF files: its decoder's, and the one of its vision tower (`mmproj`)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers

from torch_foundry.core.load_errors import AllowedFaults, LoadError
from torch_foundry.io.container import TensorInfo
from torch_foundry.io.gguf import open_gguf
from torch_foundry.io.gguf.hyperparameters import read_hyperparameters
from torch_foundry.io.gguf.keys import elements
from torch_foundry.io.gguf.layouts import LAYOUTS, check_tensor, put_together, shape_of, stored_shapes
from torch_foundry.io.gguf.slots import Slot
from torch_foundry.io.gguf.tower import Settings, Tower
from torch_foundry.io.gguf.towers import TOWERS
from torch_foundry.io.parameters import class_name
from torch_foundry.io.weights import Weight, WeightReader
from torch_foundry.text import Vocabulary, seeing, showing

_CLIP = "clip.vision"
_OTHERS = ("video_token_id", "audio_token_id", "audio_token", "boa_token", "eoa_token")  # tokens of no images
_PARTS = 16  # of an image's side, that a tower sees one by one; published ones have 4


class TowerFile:
    """What a file of a vision tower describes, checked; no weight has been read.

    decoder: the architecture of the file that it is beside. width: of the decoder's hidden states. model_type: of the
    whole, decoder_type: of its decoder inside of it; "": its own. weights: by the names of transformers' parameters.
    LoadError as of `GgufModel`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        decoder: str,
        width: int,
        *,
        mmap: bool = False,
        check_finite: bool = True,
        allow: Iterable[str] = (),
    ) -> None:
        self.container = open_gguf(path, check_finite=check_finite)
        try:
            self.allow, metadata = AllowedFaults(allow), self.container.metadata
            self.tower = self._find(metadata)
            if decoder not in self.tower.models:
                expected = f"the tower of a model of {decoder}"
                self._fail("ARCH_UNKNOWN", "clip.projector_type", expected, ", ".join(self.tower.models))
            self.model_type, self.decoder_type = self.tower.models[decoder]
            self.values = read_hyperparameters(metadata, _CLIP, self.tower.keys, self.file)
            if (found := self.values.setdefault("projection_dim", width)) != width:
                self._fail("SHAPE", f"{_CLIP}.projection_dim", f"{width}, as the decoder has", found)
            self.values["is_deepstack_layers"] = self._stacked()
            self._check_llava()
            self.sizes = self._sizes()
            self.activation = self._activation(metadata)
            for name in ("image_mean", "image_std"):
                self.values[name] = self._colours(name)
            source = WeightReader(self.container, mmap, lambda name: check_finite and not self.allow("NONFINITE", name))
            self.absent: list[str] = []  # parameters without a tensor, where that is allowed
            self.weights = {slot.parameter: self._weight(source, slot) for slot in self._found()}
            self.weights |= {name: _ones(self.sizes["H"]) for name in self.tower.unread}
        except BaseException:
            self.container.close()
            raise

    @property
    def file(self) -> Path:
        """Whom errors name."""
        return self.container.path

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """By their names in the file."""
        return self.container.tensors

    def _fail(self, code: str, field: str, expected: str, found: object) -> NoReturn:
        raise LoadError(code, self.file, field, expected=expected, found=str(found)[:80])

    def _find(self, metadata: Mapping[str, Any]) -> Tower:
        if (kind := metadata.get("general.architecture")) != "clip":
            self._fail("NOT_MODEL", "general.architecture", "'clip', of a vision tower", repr(kind))
        kind = metadata.get("clip.vision.projector_type", metadata.get("clip.projector_type"))
        if not isinstance(kind, str) or kind not in TOWERS:
            self._fail("ARCH_UNKNOWN", "clip.projector_type", "one of " + ", ".join(TOWERS), repr(kind))
        tower = TOWERS[kind]
        return tower.in_parts if tower.in_parts and f"{_CLIP}.image_grid_pinpoints" in metadata else tower

    def _listed(self, name: str, kind: type, count: int) -> list[Any]:
        """The elements of an array, so many of one kind."""
        found = self.values[name]
        listed = elements(found, count) or [found]
        if len(listed) != count or {type(each) for each in listed} != {kind}:
            self._fail("HP_RANGE", f"{_CLIP}.{name}", f"{count} of type {kind.__name__}", listed)
        return listed

    def _stacked(self) -> list[int]:
        """Layers whose features go beyond the tower."""
        if self.values.get("is_deepstack_layers") is None:
            return []
        listed = self._listed("is_deepstack_layers", bool, self.values["block_count"])
        return [index for index, there in enumerate(listed) if there]

    def _check_llava(self) -> None:
        """Refuse features of other layers than the last, or parts of images that transformers can't cut or join."""
        values = self.values
        if values.get("feature_layer") is not None:
            layers = values["block_count"]
            if (last := self._listed("feature_layer", int, 1)) != [layers]:
                self._fail("HP_RANGE", f"{_CLIP}.feature_layer", f"[{layers}], the last one", last)
        if "image_grid_pinpoints" in values:
            found, side = values["image_grid_pinpoints"], values["image_size"]
            count = 2 * min(len(found) // 2, _PARTS**2) if hasattr(found, "tolist") else 2
            sizes = self._listed("image_grid_pinpoints", int, count)
            if not sizes or not {*sizes} <= {side * parts for parts in range(1, _PARTS + 1)}:
                self._fail("HP_RANGE", f"{_CLIP}.image_grid_pinpoints", f"multiples of {side}, up to {_PARTS}", sizes)
            values["image_grid_pinpoints"] = [sizes[start : start + 2] for start in range(0, count, 2)]
            if (joined := values["mm_patch_merge_type"]) != "spatial_unpad":
                self._fail("HP_RANGE", f"{_CLIP}.mm_patch_merge_type", "spatial_unpad", joined)

    def _sizes(self) -> dict[str, int]:
        """The letters of slots' shapes."""
        values = self.values
        hidden, heads, patch = (values[name] for name in ("embedding_length", "attention.head_count", "patch_size"))
        of_heads = any(slot.shape == "D" for slot in self.tower.slots)  # InternVL's norms are of all heads
        head = self.container.rows("v.blk.0.attn_q_norm.weight") if of_heads else 0
        if not head and heads and hidden % heads:
            self._fail("HP_RANGE", f"{_CLIP}.attention.head_count", f"a divisor of {hidden}", heads)
        if (longest := values.get("preproc_image_size") or 0) > (most := _PARTS * values.get("image_size", 0)):
            self._fail("HP_RANGE", f"{_CLIP}.preproc_image_size", f"at most {most}", longest)
        head = head or hidden // max(heads, 1)
        table = self.tensors.get("v.position_embd.weight")
        places = (1, 1, *(table.shape[:-1] if table is not None else ()))
        merge = values.get("spatial_merge_size") or values.get("projector.scale_factor") or 1
        inner = values["feed_forward_length"]
        if not any(key.name == "feed_forward_length" and key.field for key in self.tower.keys):
            inner = self.container.rows("v.blk.0.ffn_up.weight")  # Qwen2-VL's files say another number
        return {
            **{"H": hidden, "F": inner, "D": head, "Q": heads * head, "C": 3, "P": patch, "L": 3 * patch * patch},
            **{"T": 2, "B": places[-2], "N": places[-1], "O": values["projection_dim"]},
            **{"M": hidden * merge * merge, "W": 3 * (patch * merge) ** 2},
            **{"S": math.isqrt(places[-1]) ** 2, "I": self.container.rows("mm.1.weight"), "1": 1},
        }

    def _activation(self, metadata: Mapping[str, Any]) -> dict[str, str]:
        said = next((name for name in ("silu", "gelu") if metadata.get(f"clip.use_{name}") is True), "")
        if not self.tower.activation:
            return {}
        if said not in self.tower.activation:
            expected = " or ".join(f"clip.use_{name}" if name else "none" for name in self.tower.activation)
            self._fail("HP_RANGE", "clip.use_gelu", expected, f"clip.use_{said}" if said else "none")
        return {"hidden_act": self.tower.activation[said]}

    def _colours(self, name: str) -> list[float]:
        """A number for red, green and blue."""
        listed = self._listed(name, float, 3)
        if not all(math.isfinite(each) for each in listed) or (name == "image_std" and min(listed) <= 0):
            self._fail("HP_RANGE", f"{_CLIP}.{name}", "finite numbers, of deviations above 0", listed)
        return listed

    def options(self) -> dict[str, bool]:
        """Whether this file has each group of tensors that not all have."""
        return {name: slots[0].tensor.format(0) in self.tensors for name, slots in self.tower.options.items()}

    def _found(self) -> list[Slot]:
        """The tensors that make it. Before anything is read: what is needed must be there, and nothing more."""
        tower, layers = self.tower, range(self.values["block_count"])
        there = (slot for name, had in self.options().items() if had for slot in tower.options[name])
        slots: list[Slot] = []
        for slot in (*tower.slots, *there):
            slots += [_of_layer(slot, index, index) for index in layers] if "{}" in slot.tensor else [slot]
        for number, index in enumerate(self.values["is_deepstack_layers"]):
            slots += [_of_layer(slot, index, number) for slot in tower.stack]
        if self.container.rows("v.blk.0.ffn_down.weight") == self.sizes["F"] != self.sizes["H"]:
            slots = [_exchanged(slot) for slot in slots]
        known = {name for slot in slots for name in slot.tensors}
        for name in self.tensors:
            if name not in known and not name.startswith(tower.unused or ()) and not self.allow("TENSOR_EXTRA", name):
                self._fail("TENSOR_EXTRA", name, f"no such tensor in a tower of {self.model_type}", "one")
        found = []
        for slot in slots:
            missing = [name for name in slot.tensors if name not in self.tensors]
            if not missing:
                found.append(slot)
            elif missing == slot.tensors and self.allow("TENSOR_MISSING", missing[0]):
                self.absent.append(slot.parameter)
            else:
                self._fail("TENSOR_MISSING", missing[0], "a tensor", "none")
        return found

    def _weight(self, source: WeightReader, slot: Slot) -> Weight:
        shape = shape_of(slot.shape, self.sizes)
        parts = []
        for name, stored in zip(slot.tensors, stored_shapes(slot, self.sizes), strict=True):
            info = self.tensors[name]
            check_tensor(self.file, info, stored or (1,), len(stored) == 2)
            head = self.sizes["D"] if slot.heads else 0
            parts.append(source.weight(info, stored, head, float(name == self.tower.raised)))
        return put_together(LAYOUTS[slot.layout], parts, shape, self.sizes) if slot.layout else parts[0]

    def make_config(self, text: Any, sections: list[int] | None, vocabulary: Vocabulary | None) -> Any:
        """transformers' config of the whole. text: that of the decoder alone. sections: of its rotary positions.

        LoadError VOCAB_MISSING, TOKEN_ID: there is no token that stands for an image; HP_RANGE: transformers won't have
        it.
        """
        if vocabulary is None:
            self._fail("VOCAB_MISSING", "tokenizer.ggml.tokens", "tokens for images", "none in the decoder's file")
        found = self._settings
        own = {key.field: self.values[key.name] for key in self.tower.keys if key.field}
        own |= found.tower | self.activation
        decoder = text.to_dict()
        decoder |= self.tower.inside(decoder)
        if decoder["pad_token_id"] is None:
            del decoder["pad_token_id"]  # Gemma 4 embeds it in place of images
        if sections is not None:
            decoder["rope_parameters"] = {**decoder["rope_parameters"], "mrope_section": sections}
        kind: Any = transformers.CONFIG_MAPPING[self.model_type]
        if self.decoder_type:
            inside = kind.sub_configs["text_config"]
            names = {name for name in decoder if hasattr(inside, name)} | set(inside.attribute_map.values())
            decoder = {name: decoder[name] for name in names & decoder.keys()} | {"model_type": self.decoder_type}
        part, whole = kind.sub_configs["vision_config"], dict(found.whole)
        for name, had in self.options().items():
            (whole if hasattr(kind, name) else own)[name] = self.tower.meaning.get(name, (False, True))[had]
        if self.tower.kind:
            own["model_type"] = self.tower.kind
        else:
            own = {name: value for name, value in own.items() if hasattr(part, name)}
        numbers = {token: index for index, token in enumerate(vocabulary.tokens)}
        for name, token in self.named(self.tower.tokens | self.tower.named, vocabulary).items():
            if token not in numbers and name not in _OTHERS:
                self._fail("TOKEN_ID", "tokenizer.ggml.tokens", f"{token} among them", "none in the decoder's file")
        ids = self.named(self.tower.tokens, vocabulary).items()
        numbered = {name: numbers[token] for name, token in ids if token in numbers}
        tied = {"tie_word_embeddings": text.tie_word_embeddings}
        try:
            return kind(text_config=decoder, vision_config=own, **tied, **whole, **numbered)
        except Exception as error:  # whatever its checks raise
            line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise LoadError("HP_RANGE", self.file, _CLIP, expected="what transformers takes", found=line) from error

    def named(self, tokens: Mapping[str, str], vocabulary: Vocabulary) -> dict[str, str]:
        """The same tokens, or those in place of what the vocabulary lacks."""
        there = set(vocabulary.tokens)
        return {name: t if t in there else self.tower.spare.get(t, t) for name, t in tokens.items()}

    @property
    def model_class(self) -> Any:
        """Of the whole, which has its config in common with Qwen3.5's decoder."""
        return getattr(transformers, str(class_name(self.model_type, images=True)))

    @property
    def _settings(self) -> Settings:
        return self.tower.settings(self.values, self.sizes)

    def make_processor(self, tokenizer: Any) -> Any:
        """The processor of the whole, around the tokenizer of the decoder's file."""
        of_whole, of_images = (getattr(transformers, name) for name in self.tower.processor)
        colours = {name: self.values[name] for name in ("image_mean", "image_std")}
        images = of_images(**self._settings.images, **colours)
        if self.tower.written:
            image = getattr(tokenizer, self.tower.written)
            if tokenizer.pad_token == image:  # Vicuna's unknown token is both
                tokenizer.pad_token = tokenizer.eos_token
            tokenizer.chat_template = showing(tokenizer, image + "\n")
        return seeing(of_whole, tokenizer, image_processor=images, **self._settings.processor)


def _ones(size: int) -> Weight:
    """In place of a vector that no file has."""
    return Weight((size,), "f32", "", lambda device: torch.ones(size, device=device))


def _of_layer(slot: Slot, index: int, number: int) -> Slot:
    """The slot of layer `index`, whose parameters have a number of their own."""
    return replace(slot, tensor=slot.tensor.replace("{}", str(index)), parameter=slot.parameter.format(number))


def _exchanged(slot: Slot) -> Slot:
    """The slot in an old file, where the two matrices of an MLP have each other's name."""
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return replace(slot, tensor=".".join(names.get(part, part) for part in slot.tensor.split(".")))
