"""A whole model of one layer in a folder, with packed weights as each method writes them; parts of it to be changed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any

from .case import Content
from .tensors_file import raw

HIDDEN, KV, INNER, VOCABULARY = 128, 64, 192, 32
SHAPES = {  # outputs and inputs of the matrices of a layer
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}  # fmt: skip
LAYER = "model.layers.0."
Q = LAYER + "self_attn.q_proj"
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
STATE = ".weight.quant_state.bitsandbytes__nf4"
Tensor = tuple[str, list[int], bytes]  # dtype, shape, bytes
_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


@cache
def codes(count: int) -> bytes:
    """Bytes of packed codes, the same for every tensor of that size."""
    return bytes((i * 37 + 11) & 255 for i in range(count))


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def f16(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def filled(dtype: str, shape: list[int], value: bytes | None = None) -> Tensor:
    """A tensor of this value, or of codes."""
    count = 1
    for size in shape:
        count *= size
    return dtype, shape, codes(count * _SIZES[dtype]) if value is None else value * count


@dataclass
class Folder:
    """config: of config.json. tensors: of model.safetensors, in this order. files: instead of or beside those."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: dict[str, Content | None] = field(default_factory=dict)

    @property
    def quantization(self) -> dict[str, Any]:
        return self.config["quantization_config"]

    def put(self, name: str, tensor: Tensor) -> Folder:
        self.tensors[name] = tensor
        return self

    def without(self, *names: str) -> Folder:
        for name in names:
            del self.tensors[name]
        return self

    def shaped(self, name: str, *shape: int) -> Folder:
        """Another shape, of codes."""
        return self.put(name, filled(self.tensors[name][0], list(shape)))

    def first(self, name: str, value: bytes, at: int = 0) -> Folder:
        """The bytes from `at` on are others."""
        dtype, shape, data = self.tensors[name]
        return self.put(name, (dtype, shape, data[:at] + value + data[at + len(value) :]))

    def last(self, name: str, value: bytes) -> Folder:
        return self.first(name, value, len(self.tensors[name][2]) - len(value))

    def state(self, **changes: Any) -> Folder:
        """Other values in the quant state of the query's projection; `...` leaves one out."""
        described = json.loads(self.tensors[Q + STATE][2]) | changes
        return self.put(Q + STATE, text(json.dumps({k: v for k, v in described.items() if v is not ...})))

    def content(self) -> Mapping[str, Content]:
        found: dict[str, Content | None] = {
            "config.json": json.dumps(self.config).encode(),
            "model.safetensors": safetensors(self.tensors),
            "tokenizer.json": _tokenizer(),
            "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
        }
        return {name: content for name, content in (found | self.files).items() if content is not None}


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    ends = list(accumulate(len(data) for _, _, data in tensors.values()))
    entries = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [end - len(data), end]}
        for (name, (dtype, shape, data)), end in zip(tensors.items(), ends, strict=True)
    }
    return raw(json.dumps(entries), b"".join(data for _, _, data in tensors.values()))


def text(value: str | bytes) -> Tensor:
    data = value.encode() if isinstance(value, str) else value
    return "U8", [len(data)], data


@cache
def _tokenizer() -> bytes:
    vocabulary = {chr(97 + i) if i else "<unk>": i for i in range(VOCABULARY)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode()


def model(quantization: dict[str, Any] | None, matrix: Callable[[str, int, int], dict[str, Tensor]]) -> Folder:
    """A sound one, whose matrices `matrix(name, outputs, inputs)` makes."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 1,
        "intermediate_size": INNER, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float16",
    }  # fmt: skip
    if quantization is not None:
        config["quantization_config"] = quantization
    norms = (LAYER + "input_layernorm", LAYER + "post_attention_layernorm", "model.norm")
    tensors = {f"{name}.weight": filled("F16", [HIDDEN], f16(1)) for name in norms}
    tensors["model.embed_tokens.weight"] = filled("F16", [VOCABULARY, HIDDEN], f16(0.5))
    for name, (outputs, inputs) in SHAPES.items():
        tensors |= matrix(LAYER + name, outputs, inputs)
    return Folder(config, tensors)


def dense() -> Folder:
    return model(None, lambda name, n, k: {f"{name}.weight": filled("F16", [n, k], f16(0.25))})


def affine_matrix(name: str, *shape: int, bits: int = 4, group: int = 64) -> dict[str, Tensor]:
    *rows, k = shape
    return {
        f"{name}.weight": filled("U32", [*rows, k * bits // 32]),
        f"{name}.scales": filled("F16", [*rows, k // group], f16(0.01)),
        f"{name}.biases": filled("F16", [*rows, k // group], f16(-0.08)),
    }


def affine(bits: int = 4, group: int = 64) -> Folder:
    return model(
        {"bits": bits, "group_size": group}, lambda name, n, k: affine_matrix(name, n, k, bits=bits, group=group)
    )


def affine_experts() -> Folder:
    """Mixtral's kind of layer as mlx packs it: two experts, each of their matrices in one tensor."""
    made = affine()
    made.config.update(model_type="mixtral", num_local_experts=2, num_experts_per_tok=1)
    block = f"{LAYER}block_sparse_moe."
    for name, n, k in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
        made.without(*(f"{LAYER}mlp.{name}_proj.{part}" for part in ("weight", "scales", "biases")))
        for part, tensor in affine_matrix(f"{block}switch_mlp.{name}_proj", 2, n, k).items():
            made.put(part, tensor)
    return made.put(f"{block}gate.weight", filled("F16", [2, HIDDEN], f16(1)))


def floats(mode: str) -> Folder:
    """mlx's other modes: a byte for the scale of a group."""
    group, bits, scale = {"mxfp4": (32, 4, b"\x70"), "mxfp8": (32, 8, b"\x70"), "nvfp4": (16, 4, b"\x38")}[mode]

    def matrix(name: str, n: int, k: int) -> dict[str, Tensor]:
        weight = ("U32", [n, k * bits // 32], bytes(b & 0x77 for b in codes(n * k * bits // 8)))
        return {f"{name}.weight": weight, f"{name}.scales": filled("U8", [n, k // group], scale)}

    return model({"bits": bits, "group_size": group, "mode": mode}, matrix)


def finite_fp8(shape: list[int]) -> Tensor:
    """Floats of 8 bits, none of them NaN."""
    dtype, _, data = filled("F8_E4M3", shape)
    return dtype, shape, bytes(b & 0xF7 for b in data)


def fp8(square: int = 128) -> Folder:
    """As DeepSeek's and Qwen's: a scale for a square of weights, and a factor for activations that nobody needs."""

    def matrix(name: str, n: int, k: int) -> dict[str, Tensor]:
        grid = [-(-n // square), -(-k // square)]
        scales = filled("F32", grid, f32(0.01))
        return {f"{name}.weight": finite_fp8([n, k]), f"{name}.weight_scale_inv": scales,
                f"{name}.input_scale": filled("F32", [], f32(1))}  # fmt: skip

    return model({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [square, square]}, matrix)


def fp8_rows() -> Folder:
    """As compressed-tensors': a scale for a row."""
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "block_structure": None}
    return model(
        {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}},
        lambda name, n, k: {f"{name}.weight": finite_fp8([n, k]),
                            f"{name}.weight_scale": filled("BF16", [n, 1], b"\x80\x3c")},
    )  # fmt: skip


def fp8_experts() -> Folder:
    """Two experts, each of their matrices in one tensor."""
    made = fp8()
    made.config.update(model_type="mixtral", num_local_experts=2, num_experts_per_tok=1)
    for name in ("gate", "up", "down"):
        made.without(*(n for n in list(made.tensors) if n.startswith(f"{LAYER}mlp.{name}_proj.")))
    for name, n, k in (("gate_up", 2 * INNER, HIDDEN), ("down", HIDDEN, INNER)):
        path = f"{LAYER}mlp.experts.{name}_proj"
        made.put(path, finite_fp8([2, n, k]))
        made.put(f"{path}_scale_inv", filled("F32", [2, -(-n // 128), -(-k // 128)], f32(0.01)))
    return made.put(f"{LAYER}mlp.gate.weight", filled("F16", [2, HIDDEN], f16(1)))


def gptq(bits: int = 4, group: int = 32) -> Folder:
    def matrix(name: str, n: int, k: int) -> dict[str, Tensor]:
        groups = [i % (k // group) for i in range(k)]  # the order of activations
        return {
            f"{name}.qweight": filled("I32", [k * bits // 32, n]),
            f"{name}.qzeros": filled("I32", [k // group, n * bits // 32]),
            f"{name}.scales": filled("F16", [k // group, n], f16(0.01)),
            f"{name}.g_idx": ("I32", [k], i32(*groups)),
        }

    return model({"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": True}, matrix)


def awq(group: int = 32) -> Folder:
    def matrix(name: str, n: int, k: int) -> dict[str, Tensor]:
        return {
            f"{name}.qweight": filled("I32", [k, n // 8]),
            f"{name}.qzeros": filled("I32", [k // group, n // 8]),
            f"{name}.scales": filled("F16", [k // group, n], f16(0.01)),
        }

    return model({"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}, matrix)


def bitsandbytes(nested: bool = True) -> Folder:
    def matrix(name: str, n: int, k: int) -> dict[str, Tensor]:
        blocks = n * k // 64
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": [n, k], "dtype": "float16"}
        found = {
            f"{name}.weight": filled("U8", [n * k // 2, 1]),
            f"{name}.weight.quant_map": ("F32", [16], f32(*NF4)),
            f"{name}.weight.absmax": filled("U8", [blocks]) if nested else filled("F32", [blocks], f32(0.5)),
        }
        if nested:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
            found |= {
                f"{name}.weight.nested_absmax": filled("F32", [-(-blocks // 256)], f32(0.25)),
                f"{name}.weight.nested_quant_map": ("F32", [256], f32(*((i - 127) / 128 for i in range(256)))),
            }
        return found | {name + STATE: text(json.dumps(state))}

    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return model(settings | {"bnb_4bit_use_double_quant": nested}, matrix)


def own(fmt: str = "q4_0", block: int = 32, block_bytes: int = 18, head: bytes = f16(0.01)) -> Folder:
    def matrix(name: str, n: int, k: int) -> dict[str, Tensor]:
        data = (head + codes(block_bytes - len(head))) * (n * k // block)
        return {f"{name}.weight": ("U8", [n, k // block * block_bytes], data)}

    formats = {f"{LAYER}{name}.weight": fmt for name in SHAPES}
    return model({"quant_method": "foundry", "formats": formats}, matrix)


def gpt_oss() -> Folder:
    """Of two experts, in MXFP4 as published."""
    attention = "self_attn."
    folder = model({"quant_method": "mxfp4"}, lambda name, n, k: {
        f"{name}.weight": filled("F16", [n, k], f16(0.25)), f"{name}.bias": filled("F16", [n], f16(0.1)),
    } if attention in name else {})  # fmt: skip
    folder.config |= {
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "intermediate_size": 64, "head_dim": 32,
        "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 16, "layer_types": ["sliding_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }  # fmt: skip
    experts = f"{LAYER}mlp.experts."
    for name, n, k in (("gate_up_proj", 128, HIDDEN), ("down_proj", HIDDEN, 64)):
        folder.put(f"{experts}{name}_blocks", filled("U8", [2, n, k // 32, 16]))
        folder.put(f"{experts}{name}_scales", filled("U8", [2, n, k // 32], b"\x78"))
        folder.put(f"{experts}{name}_bias", filled("F16", [2, n], f16(0.1)))
    folder.put(f"{LAYER}mlp.router.weight", filled("F16", [2, HIDDEN], f16(0.25)))
    folder.put(f"{LAYER}mlp.router.bias", filled("F16", [2], f16(0.1)))
    return folder.put(f"{LAYER}{attention}sinks", filled("F16", [4], f16(0.1)))


def changed(change: Callable[[Folder], object], base: Callable[[], Folder]) -> Callable[[], Mapping[str, Content]]:
    """The folder after that change."""

    def build() -> Mapping[str, Content]:
        folder = base()
        change(folder)
        return folder.content()

    return build


def gpt_oss_of_mlx() -> Folder:
    """The same as mlx writes it: each matrix of experts in a module of its own, with its bias."""
    folder, quantization = gpt_oss(), {"bits": 4, "group_size": 32, "mode": "mxfp4"}
    folder.config["quantization_config"] = quantization
    experts = f"{LAYER}mlp.experts."
    for name in ("gate_up_proj", "down_proj"):
        folder.without(*(f"{experts}{name}_{part}" for part in ("blocks", "scales", "bias")))
    for name, n, k in (("gate_proj", 64, HIDDEN), ("up_proj", 64, HIDDEN), ("down_proj", HIDDEN, 64)):
        weight = ("U32", [2, n, k // 8], bytes(b & 0x77 for b in codes(n * k)))
        folder.put(f"{experts}{name}.weight", weight).put(f"{experts}{name}.bias", filled("F16", [2, n], f16(0.1)))
        folder.put(f"{experts}{name}.scales", filled("U8", [2, n, k // 32], b"\x70"))
    return folder
