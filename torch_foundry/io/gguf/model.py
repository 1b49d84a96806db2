"""The model that a GGUF file describes: its config, and a weight for each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from torch_foundry.core.load_errors import AllowedFaults, LoadError
from torch_foundry.io.container import Container, TensorInfo
from torch_foundry.io.gguf.activations import activations
from torch_foundry.io.gguf.blocks import alike, alone, head_sizes, latent, of_each_block, state_sizes, two_kinds
from torch_foundry.io.gguf.hyperparameters import find_architecture, read_hyperparameters
from torch_foundry.io.gguf.layouts import LAYOUTS, check_tensor, put_together, shape_of, stored_shapes
from torch_foundry.io.gguf.rope import RopeError, proportional, rope_parameters
from torch_foundry.io.gguf.slots import BLOCK, EMBEDDING, OUTPUT, QKVO, ROPE_TENSORS, Sizes, Slot, experts_in_one
from torch_foundry.io.gguf.streams import streams
from torch_foundry.io.weights import Weight, WeightReader

# What reads of blocks what they have of their own, by `Architecture.blocks`.
BLOCKS = {"alike": alike, "two_kinds": two_kinds, "latent": latent, "alone": alone, "streams": streams}


class GgufModel:
    """What a GGUF file describes, checked; no weight has been read.

    name: of the architecture. values: hyperparameters by their keys. weights: by the names of transformers' parameters.
    LoadError: ARCH_MISSING, ARCH_UNKNOWN, HP_MISSING, HP_TYPE, HP_RANGE, SHAPE, TENSOR_MISSING, TENSOR_EXTRA,
    TENSOR_TYPE, VOCAB_SIZE, and what reading raises.
    """

    def __init__(
        self, container: Container, *, mmap: bool = False, check_finite: bool = True, allow: Iterable[str] = ()
    ) -> None:
        self.container, self.file = container, container.path
        self.allow = AllowedFaults(allow)
        self.name, self.architecture = find_architecture(container.metadata, self.file)
        self.values = read_hyperparameters(container.metadata, self.name, self.architecture.keys, self.file)
        self.tensors = container.tensors
        self.layers = self.values["block_count"] - (self.values.get("nextn_predict_layers") or 0)
        if self.layers < 1:
            raise self.fail("HP_RANGE", "nextn_predict_layers", "fewer than there are blocks", "all of them")
        self.blocks = BLOCKS[self.architecture.blocks](self)
        self._kv_heads = self._heads_of_blocks()
        self.sizes = self._sizes() | self.blocks.common
        found = self._found()
        self._own = {name for _, names, _ in found for name in names}
        source = WeightReader(container, mmap, lambda name: check_finite and not self.allow("NONFINITE", name))
        self.weights = {slot.parameter: self._weight(source, slot, names, sizes) for slot, names, sizes in found}
        self.weights |= activations(self) if self.architecture.xielu else {}
        self.rope = self._rope()

    def fail(self, code: str, key: str, expected: str, found: object) -> LoadError:
        of_a_tensor = key in self.tensors or key.startswith("blk.") or key.endswith((".weight", ".bias"))
        field = key if of_a_tensor else f"{self.name}.{key}"
        return LoadError(code, self.file, field, expected=expected, found=str(found))

    def _sizes(self) -> dict[str, int]:
        """The letters of slots' shapes."""
        values = self.values
        hidden, heads = values["embedding_length"], values["attention.head_count"]
        kv_heads = max(self._kv_heads) or heads
        head = values["attention.key_length"]
        if head is None:
            if hidden % heads:
                raise self.fail("SHAPE", "attention.head_count", f"a divisor of {hidden}", heads)
            head = hidden // heads
        queries = self.tensors.get("blk.0.attn_q.weight")
        if QKVO[0] in self.architecture.layer and queries is not None and queries.shape != (heads * head, hidden):
            raise self.fail("SHAPE", queries.name, str([heads * head, hidden]), list(queries.shape))
        if heads % kv_heads:
            raise self.fail("HP_RANGE", "attention.head_count_kv", f"a divisor of {heads}", kv_heads)
        if (value := values["attention.value_length"]) not in (None, head):
            raise self.fail("HP_RANGE", "attention.value_length", f"{head}, as keys have", value)
        rotated = (values["rope.dimension_count"] if self.architecture.rotated else None) or head
        allowed = range(2, head + 1, 2) if self.architecture.partial_rope else (head,)
        if rotated not in allowed or head % 2:
            raise self.fail("HP_RANGE", "rope.dimension_count", f"an even number up to the head size {head}", rotated)
        sizes = {"1": 1, "H": hidden, "R": rotated, "F": values["feed_forward_length"]}
        sizes |= head_sizes(heads, kv_heads, head) | self._expert_sizes()
        if "shortconv.l_cache" in values:
            sizes["T"] = values["shortconv.l_cache"]
        elif "ssm.inner_size" in values:
            sizes |= self._state_sizes()
        if (inputs := values.get("embedding_length_per_layer_input")) is not None:
            sizes |= {"P": inputs, "J": inputs * self.layers, "Y": self.container.rows("per_layer_token_embd.weight")}
        return sizes | {"V": self._vocabulary(hidden)}

    def _expert_sizes(self) -> dict[str, int]:
        values = self.values
        if not (experts := values.get("expert_count")):
            return {}
        used, dense = values["expert_used_count"], values["feed_forward_length"]
        if used > experts:
            raise self.fail("HP_RANGE", "expert_used_count", f"at most {experts}", used)
        groups, chosen = (values.get(f"expert_group_{name}") or 1 for name in ("count", "used_count"))
        if experts % groups or chosen > groups:
            expected = f"a divisor of {experts}, with as many groups chosen at most"
            raise self.fail("HP_RANGE", "expert_group_count", expected, f"{groups}, {chosen} chosen")
        all_alone = self.architecture.expert_size == "intermediate_size"
        inner = values.get("expert_feed_forward_length") or (dense if all_alone else dense // used)
        shared = values.get("expert_shared_feed_forward_length") or inner * (values.get("expert_shared_count") or 0)
        sizes = {"E": experts, "X": inner, "S": shared or dense}
        if (seen := values.get("moe_latent_size")) is not None:
            sizes |= {"I": seen, "L": seen or values["embedding_length"]}
        return sizes

    def _heads_of_blocks(self) -> list[int]:
        """How many heads keys have in each block; 0: it has no attention."""
        name = "attention.head_count_kv"
        if self.values[name] is None:
            return [self.values["attention.head_count"]] * self.values["block_count"]
        listed = of_each_block(self, name)
        if len(set(listed) - {0}) > 1:
            raise self.fail("HP_RANGE", name, "one number, or 0 in some blocks", str(listed)[:80])
        return listed

    def _state_sizes(self) -> dict[str, int]:
        values = self.values
        keys, key, heads = (values[f"ssm.{name}"] for name in ("group_count", "state_size", "time_step_rank"))
        if heads % keys:
            raise self.fail("HP_RANGE", "ssm.time_step_rank", f"a multiple of {keys}", heads)
        if (inner := values["ssm.inner_size"]) % heads:
            raise self.fail("HP_RANGE", "ssm.inner_size", f"a multiple of {heads}", inner)
        return state_sizes(keys, key, heads, inner // heads) | {"T": values["ssm.conv_kernel"]}

    def recurrent(self, index: int) -> bool:
        """Whether block `index` has a recurrent state, in place of attention."""
        if "full_attention_interval" in self.values:
            return (index + 1) % self.values["full_attention_interval"] != 0
        return self._kv_heads[index] == 0

    def _vocabulary(self, hidden: int) -> int:
        """Rows of the embedding, which is what tells."""
        info = self._tensor(self.architecture.embedding.tensor)
        if len(info.shape) != 2 or info.shape[1] != hidden:
            raise self.fail("SHAPE", info.name, f"[vocabulary, {hidden}]", list(info.shape))
        if (said := self.values["vocab_size"]) not in (None, info.shape[0]):
            raise self.fail("VOCAB_SIZE", "vocab_size", f"{info.shape[0]}, the rows of {info.name}", said)
        return info.shape[0]

    def _tensor(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise self.fail("TENSOR_MISSING", name, "a tensor", "none")
        return self.tensors[name]

    def _slots(self) -> Iterator[tuple[list[str], Slot, Sizes]]:
        """The tensors that there have to be, for each parameter, and what letters stand for in its block."""
        output = (OUTPUT,) if OUTPUT.tensor in self.tensors and not self.architecture.tied else ()
        for slot in (*self.architecture.whole, *output):
            if not slot.needs or self.sizes[slot.needs]:
                yield slot.tensors, slot, self.sizes
        for index in range(self.layers):
            leading = index < (self.values.get("leading_dense_block_count") or 0)
            yield from self._of_block(index, self.architecture.slots(self.recurrent(index), leading), index)

    def _of_block(self, index: int, slots: Iterable[Slot], layer: int) -> Iterator[tuple[list[str], Slot, Sizes]]:
        """The same of block `index`, with `slots`, as a layer of transformers' model."""
        prefix, sizes = BLOCK.format(index), self.sizes | self.blocks.sizes[min(index, self.layers - 1)]
        if prefix + "ffn_gate_up_exps.weight" in self.tensors:
            slots = experts_in_one(slots)
        options = [slot for option in self.options() for slot in self.architecture.options[option]]
        for slot in (*slots, *options):
            if not slot.needs or sizes.get(slot.needs):
                parameter = self.architecture.block.format(layer) + slot.parameter
                yield [prefix + name for name in slot.tensors], replace(slot, parameter=parameter), sizes

    def options(self) -> list[str]:
        """The groups of tensors that this file has beyond those that all have."""
        first = BLOCK.format(0)
        return [name for name, group in self.architecture.options.items() if first + group[0].tensor in self.tensors]

    def _found(self) -> list[tuple[Slot, list[str], Sizes]]:
        """The tensors that make the model, several where each expert has its own. Before anything else: what is needed
        must be there, and nothing more."""
        found = []
        self.absent: list[str] = []  # parameters without a tensor, where that is allowed
        for wanted, slot, sizes in self._slots():
            names = self._experts(wanted[0]) if len(wanted) == 1 else wanted
            missing = [each for each in names if each not in self.tensors]
            if not missing:
                found.append((slot, names, sizes))
            elif missing == wanted and self.allow("TENSOR_MISSING", missing[0]):
                self.absent.append(slot.parameter)
            else:
                raise self.fail("TENSOR_MISSING", missing[0], "a tensor", "none")
        known = ROPE_TENSORS.union(*(names for _, names, _ in found))
        known |= {side for _, (name, *_), _ in found for side in _sides(name) if self._has_sides(name)}
        # what blocks have that use the keys of others: nothing reads it
        for index, sizes in enumerate(self.blocks.sizes):
            unused = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight") if sizes.get("K") == 0 else ()
            known |= {BLOCK.format(index) + name for name in unused}
        beyond = range(self.layers, self.values["block_count"])  # that predict further tokens
        ignored = tuple(BLOCK.format(index) for index in beyond)
        for name in self.tensors:
            if name not in known and not name.startswith(ignored) and not self.allow("TENSOR_EXTRA", name):
                raise LoadError("TENSOR_EXTRA", self.file, name, expected=f"no such tensor in {self.name}", found="one")
        return found

    def _experts(self, name: str) -> list[str]:
        """The tensor's name, or those of its experts in files from before they were stacked."""
        each = name.replace("_exps.", ".{}.")
        if name in self.tensors or each == name or each.format(0) not in self.tensors:
            return [name]
        return [each.format(expert) for expert in range(self.sizes["E"])]

    def _has_sides(self, name: str) -> bool:
        """Whether tensor `name` may have factors beside it: of its blocks, or of activations (which are not used)."""
        return self.tensors[name].format == "nvfp4" and name != EMBEDDING.tensor

    def _factors(self, name: str) -> TensorInfo | None:
        """The factors of a tensor's blocks. A parameter of that name, as of Gemma 4's experts, has them in it."""
        if not self._has_sides(name) or _sides(name)[0] in self._own:
            return None
        count = self.sizes["E"] if "_exps." in name else 1
        for side in _sides(name):
            if (info := self.tensors.get(side)) is not None:
                if info.shape != (count,):
                    raise self.fail("SHAPE", side, f"[{count}]", list(info.shape))
                if info.format != "f32":
                    raise self.fail("TENSOR_TYPE", side, "f32", info.format)
        return self.tensors.get(_sides(name)[0])

    def _weight(self, source: WeightReader, slot: Slot, names: list[str], sizes: Sizes) -> Weight:
        shape = shape_of(slot.shape, sizes)
        infos = [self.tensors[name] for name in names]
        if slot.layout:
            return self._laid_out(source, infos, slot, shape, sizes)
        stored = stored_shapes(slot, sizes)[0] if slot.stored else shape[len(names) > 1 :]
        for info in infos:
            check_tensor(self.file, info, stored, len(shape) > 1 and not slot.single)
            if info.format != infos[0].format:
                raise self.fail("TENSOR_TYPE", info.name, f"{infos[0].format}, as the first expert has", info.format)
        head = self.sizes["D"] if slot.heads and self.architecture.interleaved else 0
        offset = self.architecture.norm_offset if slot.offset else 0.0
        return source.weight(infos, shape, head, offset, self._factors(names[0]))

    def _laid_out(
        self, source: WeightReader, infos: list[TensorInfo], slot: Slot, shape: tuple[int, ...], sizes: Sizes
    ) -> Weight:
        """A parameter that no tensor is as it lies there."""
        layout, parts = LAYOUTS[slot.layout], []
        for info, stored in zip(infos, stored_shapes(slot, sizes), strict=True):
            check_tensor(self.file, info, stored, not slot.single)
            parts.append(source.weight(info, stored, factors=self._factors(info.name)))
        weight = put_together(layout, parts, shape, self.sizes)
        if not layout.negated or self.allow("NONFINITE", infos[0].name):
            return weight

        def load(device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
            assert weight.load_as is not None
            loaded = weight.load_as(device, dtype or torch.float32)
            if not bool(loaded.isfinite().all()):
                raise self.fail("NONFINITE", infos[0].name, "numbers below 0", "others")
            return loaded

        return replace(weight, load=load, load_as=load)

    def _rope(self) -> dict[str, Any]:
        """`rope_parameters`, from keys and from tensors that are no parameters."""
        factors = {}
        for name in sorted(ROPE_TENSORS & self.tensors.keys()):
            info, half = self.tensors[name], self.sizes["R"] // 2
            if info.shape != (half,):
                raise self.fail("SHAPE", name, f"[{half}]", list(info.shape))
            if info.format != "f32":
                raise self.fail("TENSOR_TYPE", name, "f32", info.format)
            factors[name] = self.container.read(name)
        try:
            kind = proportional if self.architecture.blocks == "two_kinds" else rope_parameters
            return kind(self.values, factors, self.sizes["R"])
        except RopeError as error:
            code = "TENSOR_MISSING" if error.key not in self.tensors and error.key.endswith("weight") else "HP_RANGE"
            raise self.fail(code, error.key, error.expected, error.found) from None


def _sides(name: str) -> tuple[str, str]:
    stem = name.removesuffix("weight")
    return f"{stem}scale", f"{stem}input_scale"
