"""The model that a GGUF file describes: its config, and a weight for each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch_foundry import quant
from torch_foundry.core.load_errors import AllowedFaults, LoadError
from torch_foundry.io.container import Container, TensorInfo
from torch_foundry.io.gguf.architectures import BLOCK, EMBEDDING, MODEL_LAYER, NORM, OUTPUT, ROPE_TENSORS, Slot
from torch_foundry.io.gguf.hyperparameters import find_architecture, read_hyperparameters
from torch_foundry.io.gguf.rope import RopeError, rope_parameters
from torch_foundry.io.weights import Weight, WeightReader


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
        self.values = read_hyperparameters(container.metadata, self.name, self.architecture, self.file)
        self.tensors = container.tensors
        self.sizes = self._sizes()
        found = self._found()
        source = WeightReader(container, mmap, lambda name: check_finite and not self.allow("NONFINITE", name))
        self.weights = {slot.parameter: self._weight(source, names, slot) for slot, names in found}
        self.rope = self._rope()

    def _fail(self, code: str, key: str, expected: str, found: object) -> LoadError:
        field = key if key in self.tensors or key.endswith((".weight", ".bias")) else f"{self.name}.{key}"
        return LoadError(code, self.file, field, expected=expected, found=str(found))

    def _sizes(self) -> dict[str, int]:
        """The letters of slots' shapes."""
        values = self.values
        hidden, heads = values["embedding_length"], values["attention.head_count"]
        kv_heads = values["attention.head_count_kv"] or heads
        head = values["attention.key_length"]
        if head is None:
            if hidden % heads:
                raise self._fail("SHAPE", "attention.head_count", f"a divisor of {hidden}", heads)
            head = hidden // heads
        queries = self.tensors.get("blk.0.attn_q.weight")
        if queries is not None and queries.shape != (heads * head, hidden):
            raise self._fail("SHAPE", queries.name, str([heads * head, hidden]), list(queries.shape))
        if heads % kv_heads:
            raise self._fail("HP_RANGE", "attention.head_count_kv", f"a divisor of {heads}", kv_heads)
        if (value := values["attention.value_length"]) not in (None, head):
            raise self._fail("HP_RANGE", "attention.value_length", f"{head}, as keys have", value)
        rotated = values["rope.dimension_count"] or head
        allowed = range(2, head + 1, 2) if self.architecture.partial_rope else (head,)
        if rotated not in allowed or head % 2:
            raise self._fail("HP_RANGE", "rope.dimension_count", f"an even number up to the head size {head}", rotated)
        sizes = {"H": hidden, "Q": heads * head, "K": kv_heads * head, "D": head, "R": rotated, "1": 1}
        sizes["F"] = values["feed_forward_length"]
        if experts := values.get("expert_count"):
            used = values["expert_used_count"]
            if used > experts:
                raise self._fail("HP_RANGE", "expert_used_count", f"at most {experts}", used)
            inner = values.get("expert_feed_forward_length")
            default = sizes["F"] if self.architecture.config == "MixtralConfig" else sizes["F"] // used
            sizes |= {"E": experts, "X": inner or default}
            sizes["S"] = values.get("expert_shared_feed_forward_length") or sizes["F"]
        sizes["V"] = self._vocabulary(hidden)
        return sizes

    def _vocabulary(self, hidden: int) -> int:
        """Rows of the embedding, which is what tells."""
        info = self._tensor(EMBEDDING.tensor)
        if len(info.shape) != 2 or info.shape[1] != hidden:
            raise self._fail("SHAPE", info.name, f"[vocabulary, {hidden}]", list(info.shape))
        if (said := self.values["vocab_size"]) not in (None, info.shape[0]):
            raise self._fail("VOCAB_SIZE", "vocab_size", f"{info.shape[0]}, the rows of {info.name}", said)
        return info.shape[0]

    def _tensor(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise self._fail("TENSOR_MISSING", name, "a tensor", "none")
        return self.tensors[name]

    def _slots(self) -> Iterator[tuple[str, Slot]]:
        """Every tensor that there has to be, and what it is."""
        yield EMBEDDING.tensor, EMBEDDING
        yield NORM.tensor, NORM
        if OUTPUT.tensor in self.tensors and not self.architecture.tied:
            yield OUTPUT.tensor, OUTPUT
        layer = list(self.architecture.layer)
        for option in self.options():
            layer += self.architecture.options[option]
        for index in range(self.values["block_count"]):
            for slot in layer:
                parameter = MODEL_LAYER.format(index) + slot.parameter
                yield BLOCK.format(index) + slot.tensor, Slot(slot.tensor, parameter, slot.shape, slot.heads)

    def options(self) -> list[str]:
        """The groups of tensors that this file has beyond those that all have."""
        first = BLOCK.format(0)
        return [name for name, group in self.architecture.options.items() if first + group[0].tensor in self.tensors]

    def _found(self) -> list[tuple[Slot, list[str]]]:
        """The tensors that make the model, several where each expert has its own. Before anything else: what is needed
        must be there, and nothing more."""
        found = []
        self.absent: list[str] = []  # parameters without a tensor, where that is allowed
        for name, slot in self._slots():
            names = self._experts(name)
            missing = [each for each in names if each not in self.tensors]
            if not missing:
                found.append((slot, names))
            elif missing == [name] and self.allow("TENSOR_MISSING", name):
                self.absent.append(slot.parameter)
            else:
                raise self._fail("TENSOR_MISSING", missing[0], "a tensor", "none")
        known = ROPE_TENSORS.union(*(names for _, names in found))
        known |= {side for _, (name, *_) in found for side in _sides(name) if self._has_sides(name)}
        for name in self.tensors:
            if name not in known and not self.allow("TENSOR_EXTRA", name):
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
        """The factors of a tensor's blocks."""
        if not self._has_sides(name):
            return None
        count = self.sizes["E"] if "_exps." in name else 1
        for side in _sides(name):
            if (info := self.tensors.get(side)) is not None:
                if info.shape != (count,):
                    raise self._fail("SHAPE", side, f"[{count}]", list(info.shape))
                if info.format != "f32":
                    raise self._fail("TENSOR_TYPE", side, "f32", info.format)
        return self.tensors.get(_sides(name)[0])

    def _shape(self, slot: Slot) -> tuple[int, ...]:
        return tuple(sum(self.sizes[letter] for letter in part.split("+")) for part in slot.shape.split())

    def _weight(self, source: WeightReader, names: list[str], slot: Slot) -> Weight:
        shape, infos = self._shape(slot), [self.tensors[name] for name in names]
        known = [fmt.name for fmt in quant.FORMATS.values() if fmt.gguf_type is not None]
        known = known if len(shape) > 1 else list(quant.DENSE)
        stored = shape if len(names) == 1 else shape[1:]
        for info in infos:
            if info.shape != stored and info.shape != tuple(size for size in stored if size != 1):
                raise self._fail("SHAPE", info.name, str(list(stored)), list(info.shape))
            if info.format not in known:
                raise self._fail("TENSOR_TYPE", info.name, "one of " + quant.listing(known), info.format)
            if info.format != infos[0].format:
                raise self._fail("TENSOR_TYPE", info.name, f"{infos[0].format}, as the first expert has", info.format)
        norm = slot.tensor.endswith("norm.weight")
        head = self.sizes["D"] if slot.heads and self.architecture.interleaved else 0
        offset = self.architecture.norm_offset if norm else 0.0
        return source.weight(infos, shape, head, offset, self._factors(names[0]))

    def _rope(self) -> dict[str, Any]:
        """`rope_parameters`, from keys and from tensors that are no parameters."""
        factors = {}
        for name in sorted(ROPE_TENSORS & self.tensors.keys()):
            info, half = self.tensors[name], self.sizes["R"] // 2
            if info.shape != (half,):
                raise self._fail("SHAPE", name, f"[{half}]", list(info.shape))
            if info.format != "f32":
                raise self._fail("TENSOR_TYPE", name, "f32", info.format)
            factors[name] = self.container.read(name)
        try:
            return rope_parameters(self.values, factors, self.sizes["R"])
        except RopeError as error:
            code = "TENSOR_MISSING" if error.key not in self.tensors and error.key.endswith("weight") else "HP_RANGE"
            raise self._fail(code, error.key, error.expected, error.found) from None


def _sides(name: str) -> tuple[str, str]:
    stem = name.removesuffix("weight")
    return f"{stem}scale", f"{stem}input_scale"
