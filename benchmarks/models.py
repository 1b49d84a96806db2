"""The models whose shapes are measured: published configurations with random weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
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


def _delta_rule(heads: int, key_heads: int = 16, mrope: tuple[int, int, int] = (11, 11, 10)) -> dict[str, Any]:
    """Of Qwen3.5, with so many heads of values, and of keys, in its recurrent layers."""
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [*mrope]}
    return {"rope_parameters": rope, "linear_num_value_heads": heads, "linear_num_key_heads": key_heads}


OWN_ROPE = ("Gemma4TextConfig", "GptOssConfig")  # configurations that say by themselves how heads are rotated

MODELS = {
    "qwen2.5-0.5b": Model("Qwen2Config", 896, 4864, 24, 14, 2, 64, 151936, True, {"rope_theta": 1e6}),
    "llama-3.2-1b": Model("LlamaConfig", 2048, 8192, 16, 32, 8, 64, 128256, True, {"rope_theta": 5e5}),
    "qwen3-4b": Model("Qwen3Config", 2560, 9728, 36, 32, 8, 128, 151936, True, {"rope_theta": 1e6}),
    "llama-3-8b": Model("LlamaConfig", 4096, 14336, 32, 32, 8, 128, 128256, False, {"rope_theta": 5e5}),
    "qwen3.5-0.8b": Model("Qwen3_5TextConfig", 1024, 3584, 24, 8, 2, 256, 248320, True, _delta_rule(16)),
    "qwen3.5-4b": Model("Qwen3_5TextConfig", 2560, 9216, 32, 16, 4, 256, 248320, True, _delta_rule(32)),
    "qwen3.5-9b": Model("Qwen3_5TextConfig", 4096, 12288, 32, 16, 4, 256, 248320, False, _delta_rule(32)),
    "gemma-4-e4b": Model("Gemma4TextConfig", 2560, 10240, 42, 8, 2, 256, 262144, True, {"num_kv_shared_layers": 18}),
    "lfm2-2.6b": Model(
        "Lfm2Config",
        2048,
        10752,
        30,
        32,
        8,
        64,
        65536,
        True,
        {"rope_theta": 1e6, "block_auto_adjust_ff_dim": False, "full_attn_idxs": [2, 5, 9, 12, 15, 18, 22, 26]},
    ),
    "gpt-oss-20b": Model("GptOssConfig", 2880, 2880, 24, 64, 8, 64, 201088, False, {"num_local_experts": 32}),
    "qwen3.5-35b-a3b": Model("Qwen3_5MoeTextConfig", 2048, 512, 40, 16, 2, 256, 248320, False, _delta_rule(32)),
    "gemma-4-26b-a4b": Model(
        "Gemma4TextConfig",
        2816,
        2112,
        30,
        16,
        8,
        256,
        262144,
        True,
        {
            **{"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
            **{"num_global_key_value_heads": 2, "attention_k_eq_v": True, "sliding_window": 1024},
            **{"hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0},
        },
    ),
    # Shapes for bench_ops as well.
    "qwen3-30b-a3b": Model("Qwen3MoeConfig", 2048, 6144, 48, 32, 4, 128, 151936, False, experts=(768, 8)),
    "mixtral-8x7b": Model("MixtralConfig", 4096, 14336, 32, 32, 8, 128, 32000, False, experts=(14336, 2)),
    "demo": Model("LlamaConfig", 256, 768, 9, 4, 2, 64, 4096, True),  # the bundled model, with its weights
    # For the benchmarks' own tests: nothing is to be learned from their times.
    "tiny": Model("LlamaConfig", 64, 96, 2, 2, 1, 64, 320, False, experts=(64, 2)),
    "tiny-hybrid": Model("Qwen3_5TextConfig", 64, 96, 4, 2, 1, 64, 320, False, _delta_rule(2, 1, (3, 3, 2))),
}
# With layers of several kinds, or experts: measured when they are named, and no shapes for bench_ops.
SEVERAL_KINDS = (
    *("qwen3.5-0.8b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-35b-a3b", "gemma-4-e4b", "gemma-4-26b-a4b", "lfm2-2.6b"),
    "gpt-oss-20b",
    "tiny-hybrid",
)
SMALL = ("demo", "tiny")
REAL = tuple(name for name, model in MODELS.items() if name not in (*SMALL, *SEVERAL_KINDS) and not model.experts[1])

MIXTURES = tuple(name for name, model in MODELS.items() if name != "tiny" and model.experts[1])


def config(model: Model, max_positions: int) -> Any:
    """As transformers has it."""
    import transformers

    options = dict(model.options)
    theta = options.pop("rope_theta", 1e4)
    if model.config_class not in OWN_ROPE:
        options.setdefault("rope_parameters", {"rope_type": "default", "rope_theta": theta})
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
        **options,
    )


def build(
    model: Model,
    fmt: str,
    device: torch.device,
    *,
    max_positions: int = 8192,
    seed: int = 0,
    dtype: torch.dtype = torch.float16,
) -> Any:
    """A model with random weights on `device`, in `fmt`: a dtype, or a packed format with `dtype` around it.

    Generation with it never ends early. Random networks repeat themselves, so the weights of matrices are drawn with
    a deviation that makes each layer's output as large as its input.
    """
    import transformers

    import torch_foundry
    from torch_foundry.demo_model import demo_model_path

    dtype = DTYPES.get(fmt, dtype)
    torch.manual_seed(seed)
    if model is MODELS["demo"]:
        network = transformers.AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=dtype).eval().to(device)
    else:
        with torch.device(device):
            network = transformers.AutoModelForCausalLM.from_config(config(model, max_positions), dtype=dtype).eval()
        _draw(network)
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    if fmt not in DTYPES:
        torch_foundry.quantize(network, fmt)
    return network


def save(network: Any, folder: Path) -> None:
    """A folder as transformers reads it, with a tokenizer that has a token for each word `w0`, `w1` ..."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    network.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"▁w{i}": i for i in range(network.config.vocab_size)}, unk_token="▁w0"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="▁w0").save_pretrained(folder)


@torch.no_grad()
def _draw(network: Any) -> None:
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2 and "embed" not in name:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
        elif parameter.dim() == 3 and ".experts." in name:
            parameter.normal_(std=parameter[0].numel() ** -0.25)


def state_bytes(network: Any, fmt: str, batch: int, tokens: int) -> int:
    """What a decoder reads of its caches for one token of each sequence of the batch: keys and values within windows,
    and recurrent states, which are written as well."""
    own, total = network.config, 0
    for path, mixer in network.named_modules():
        if path.endswith(".self_attn"):
            heads = own.num_attention_heads // mixer.num_key_value_groups
            seen = min(tokens, getattr(mixer, "sliding_window", None) or tokens)
            total += 2 * heads * mixer.head_dim * seen * DTYPES.get(fmt, torch.float16).itemsize
        elif path.endswith(".linear_attn"):
            total += 2 * mixer.num_v_heads * mixer.head_k_dim * mixer.head_v_dim * torch.float32.itemsize
    return batch * total


def weight_bytes(network: Any) -> int:
    """What a decoder reads for every token: all parameters but embeddings that are not the output layer as well, and of
    experts those that a token goes to."""
    own = network.config
    experts = getattr(own, "num_local_experts", None) or getattr(own, "num_experts", None)
    chosen = getattr(own, "num_experts_per_tok", None) or getattr(own, "top_k_experts", None)
    head = network.get_output_embeddings()
    tensors: dict[int, float] = {}
    for path, module in network.named_modules():
        if not isinstance(module, nn.Embedding) or module.weight is head.weight:
            share = chosen / experts if experts and path.endswith(".experts") else 1
            own_tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            tensors |= {id(t): t.nbytes * share for t in own_tensors if id(t) not in tensors}
    return int(sum(tensors.values()))
