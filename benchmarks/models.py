"""The models whose shapes are measured: published configurations with random weights."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Model:
    """A configuration, in the words of Hugging Face's config classes."""

    config_class: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    experts: tuple[int, int] = (0, 0)  # width of one, and how many a token goes to; for the ops' shapes alone

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key heads, head_dim."""
        return self.num_attention_heads, self.num_key_value_heads, self.head_dim

    @property
    def qkv(self) -> int:
        """Outputs of the projections to queries, keys and values."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """Name -> (out_features, in_features) of the linear layers, those of one shape under the first's name."""
        q, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        h, inter = self.hidden_size, self.intermediate_size
        named = {
            "q_proj": (q, h),
            "k_proj": (kv, h),
            "o_proj": (h, q),
            "gate_proj": (inter, h),
            "down_proj": (h, inter),
            "lm_head": (self.vocab_size, h),
        }
        unique: dict[str, tuple[int, int]] = {}
        for name, shape in named.items():
            if shape not in unique.values():
                unique[name] = shape
        return unique


MODELS = {
    "qwen2.5-0.5b": Model("Qwen2Config", 896, 4864, 24, 14, 2, 64, 151936, True, {"rope_theta": 1e6}),
    "llama-3.2-1b": Model("LlamaConfig", 2048, 8192, 16, 32, 8, 64, 128256, True, {"rope_theta": 5e5}),
    "qwen3-4b": Model("Qwen3Config", 2560, 9728, 36, 32, 8, 128, 151936, True, {"rope_theta": 1e6}),
    "llama-3-8b": Model("LlamaConfig", 4096, 14336, 32, 32, 8, 128, 128256, False, {"rope_theta": 5e5}),
    # Shapes for bench_ops; nothing builds them.
    "qwen3-30b-a3b": Model("Qwen3MoeConfig", 2048, 6144, 48, 32, 4, 128, 151936, False, experts=(768, 8)),
    "mixtral-8x7b": Model("MixtralConfig", 4096, 14336, 32, 32, 8, 128, 32000, False, experts=(14336, 2)),
    # For the benchmarks' own tests: nothing is to be learned from its times.
    "tiny": Model("LlamaConfig", 64, 96, 2, 2, 1, 64, 320, False, experts=(64, 2)),
}
REAL = tuple(name for name, model in MODELS.items() if name != "tiny" and not model.experts[1])


MIXTURES = tuple(name for name, model in MODELS.items() if name != "tiny" and model.experts[1])


def config(model: Model, max_positions: int) -> Any:
    """As transformers has it."""
    import transformers

    options = dict(model.options)
    theta = options.pop("rope_theta", 1e4)
    return getattr(transformers, model.config_class)(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        tie_word_embeddings=model.tie_word_embeddings,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        **options,
    )


def build(model: Model, fmt: str, device: torch.device, *, max_positions: int = 8192, seed: int = 0) -> Any:
    """A model with random weights on `device`, in `fmt`: a dtype, or a packed format with float16 around it.

    Generation with it never ends early. Random networks repeat themselves, so the weights of matrices are drawn with
    a deviation that makes each layer's output as large as its input.
    """
    import transformers

    dtype = DTYPES.get(fmt, torch.float16)
    torch.manual_seed(seed)
    with torch.device(device):
        network = transformers.AutoModelForCausalLM.from_config(config(model, max_positions), dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    if fmt not in DTYPES:
        pack(network, fmt)
    return network


def pack(network: Any, fmt: str) -> None:
    """Pack the weights as `torch_foundry.patch(network, quantize=fmt)` does, but layers side by side on all cores."""
    import torch_foundry
    from torch_foundry.nn import FoundryLinear

    tied = network.get_output_embeddings().weight is network.get_input_embeddings().weight
    found = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and not (tied and child is network.get_output_embeddings())
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        packed = pool.map(lambda entry: FoundryLinear.from_linear(entry[2], fmt), found)
        for (parent, name, _), module in zip(found, packed, strict=True):
            setattr(parent, name, module)
    torch_foundry.patch(network, quantize=fmt)  # the embeddings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that weights stay packed is meant
        torch_foundry.unpatch(network)


def kv_bytes(model: Model, fmt: str, batch: int, tokens: int) -> int:
    """What attention reads of the cache for one token of each sequence of the batch."""
    per_token = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
    return batch * tokens * per_token * DTYPES.get(fmt, torch.float16).itemsize


def weight_bytes(network: Any) -> int:
    """What a decoder reads for every token: all parameters but an embedding that is not the output layer as well."""
    tensors = {id(t): t for t in (*network.parameters(), *network.buffers())}
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    if embedding.weight is not head.weight:
        tensors.pop(id(embedding.weight), None)
    return sum(t.nbytes for t in tensors.values())
