"""Ripple: a small hybrid model that nobody else has, and all that it takes to run it.

Every other decoder layer has a convolution and a gated linear recurrence in place of attention. The first half is what
transformers would have: stock code on transformers' own cache. The second half is what a new mixer consists of: a
class, and a row for the family.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin, LlamaConfig
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_causal_mask, create_recurrent_attention_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama import modeling_llama as llama

from tests.hf.tiny_cases import COMMON
from torch_foundry.core.shader import compile_shader
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.recurrent import RecurrentLayer
from torch_foundry.kvcache.view import StateView
from torch_foundry.models import families
from torch_foundry.models.checks import check_linear, require
from torch_foundry.models.family import Family
from torch_foundry.models.layer import Mixer, mixes
from torch_foundry.models.weights import Linear, LinearGroup

WIDTH = 3  # of the convolution


class RippleConfig(LlamaConfig):
    model_type = "ripple"
    number_of_conv_states = 1


class RippleRMSNorm(llama.LlamaRMSNorm):
    pass


class RippleAttention(llama.LlamaAttention):
    pass


class RippleRecurrence(nn.Module):
    """y = out(h * silu(g)), h = d * h' + (1 - d) * conv(u), d = sigmoid(a), where in_proj gives u, a and g."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.in_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.conv = nn.Parameter(torch.empty(config.hidden_size, WIDTH))
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        if mask is not None:
            x = x * mask[..., None]
        tokens = x.shape[1]
        u, a, g = self.in_proj(x).chunk(3, dim=-1)
        u, h = u.transpose(1, 2), None
        if cache is not None:
            h = cache.get_recurrent_state(self.layer_idx)
            u = cache.update_conv_state(u, self.layer_idx, conv_kernel_size=WIDTH)
        u = functional.pad(u, (WIDTH - 1, 0)).unfold(2, WIDTH, 1)[:, :, -tokens:]
        u = (u * self.conv[:, None]).sum(-1).transpose(1, 2).float()
        h, states = torch.zeros_like(u[:, 0]) if h is None else h.clone(), []
        for t, d in enumerate(torch.sigmoid(a.float()).unbind(1)):
            h = d * h + (1 - d) * u[:, t]
            states.append(h)
        if cache is not None:
            cache.update_recurrent_state(h, self.layer_idx)
        return self.out_proj((torch.stack(states, 1) * functional.silu(g.float())).to(x.dtype))


class RippleDecoderLayer(nn.Module):
    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.recurrent = config.layer_types[layer_idx] == "linear_attention"
        if self.recurrent:
            self.recurrence = RippleRecurrence(config, layer_idx)
        else:
            self.self_attn = RippleAttention(config, layer_idx)
        self.mlp = llama.LlamaMLP(config)
        self.input_layernorm = RippleRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RippleRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, *, attention_mask: Any, past_key_values: Any, **kwargs: Any) -> Tensor:
        h = self.input_layernorm(x)
        if self.recurrent:
            h = self.recurrence(h, past_key_values, attention_mask)
        else:
            h, _ = self.self_attn(h, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs)
        x = x + h
        return x + self.mlp(self.post_attention_layernorm(x))


class RipplePreTrainedModel(llama.LlamaPreTrainedModel):
    config_class = RippleConfig
    _no_split_modules = ("RippleDecoderLayer",)


class RippleModel(RipplePreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(RippleDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RippleRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = llama.LlamaRotaryEmbedding(config=config)
        self.post_init()

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        use_cache: Any = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is None and use_cache is not False:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(seen, seen + x.shape[1], device=x.device)[None]
        masks = attention_mask
        if not isinstance(masks, dict):
            of: dict[str, Any] = {"attention_mask": attention_mask, "past_key_values": past_key_values}
            of |= {"config": self.config, "inputs_embeds": x, "position_ids": position_ids}
            masks = {
                "full_attention": create_causal_mask(**of),
                "linear_attention": create_recurrent_attention_mask(**of),
            }
        rope = self.rotary_emb(x, position_ids=position_ids)
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            x = layer(x, attention_mask=masks[kind], past_key_values=past_key_values, position_embeddings=rope)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)


class RippleForCausalLM(RipplePreTrainedModel, GenerationMixin):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = RippleModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        given: dict[str, Any] = {"position_ids": position_ids, "past_key_values": past_key_values, **kwargs}
        out = self.model(input_ids, attention_mask=attention_mask, **given)
        logits = self.lm_head(out.last_hidden_state[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, past_key_values=out.past_key_values)


for _class in list(globals().values()):
    if isinstance(_class, type) and _class.__name__.startswith("Ripple"):
        _class.__module__ = "ripple.modeling_ripple"  # as if a package had it
sys.modules["ripple.modeling_ripple"] = sys.modules[__name__]


def build(dtype: torch.dtype = torch.float32, layers: int = 4, seed: int = 0) -> Any:
    """A new model, in eval mode; its first layer is a recurrent one."""
    types = (["linear_attention", "full_attention"] * layers)[:layers]
    config = RippleConfig(**{**COMMON, "num_hidden_layers": layers}, layer_types=types)
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    model = RippleForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * noise) if "norm" in name else parameter.copy_((1 if "conv" in name else 0.1) * noise)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, bos_token_id=1)
    return model.to(dtype)


# ------------------------------------------------------------------------------------------------------- the new mixer

SOURCE = """
#include <metal_stdlib>
using namespace metal;

// A channel of a sequence. x: [T, 3 * channels]; conv: pools of the last three inputs; hidden: pools of h.
kernel void ripple(device const float* x [[buffer(0)]], device const float* weight [[buffer(1)]],
                   device float* conv [[buffer(2)]], device float* hidden [[buffer(3)]],
                   device const int* runs [[buffer(4)]], device const int* table [[buffer(5)]],
                   device const int* count [[buffer(6)]], device float* y [[buffer(7)]],
                   constant int4& strides [[buffer(8)]], constant int2& sizes [[buffer(9)]],
                   uint2 at [[thread_position_in_grid]]) {
  const int channel = at.x, sequence = at.y, slots = sizes.x, channels = sizes.y;
  const int first = runs[sequence * strides.x], tokens = runs[sequence * strides.x + 1];
  if (tokens == 0) return;
  device const int* own = table + sequence * strides.y;
  const int number = count[sequence * strides.z];
  float h = 0, u0 = 0, u1 = 0, u2 = 0;
  if (number != 0) {
    const int slot = own[number % slots] * channels + channel;
    h = hidden[slot], u0 = conv[3 * slot], u1 = conv[3 * slot + 1], u2 = conv[3 * slot + 2];
  }
  for (int t = 0; t < tokens; ++t) {
    device const float* in = x + (first + t) * 3 * channels + channel;
    u0 = u1, u1 = u2, u2 = in[0];
    const float u = weight[3 * channel] * u0 + weight[3 * channel + 1] * u1 + weight[3 * channel + 2] * u2;
    const float d = 1 / (1 + exp(-in[channels])), g = in[2 * channels];
    h = d * h + (1 - d) * u;
    y[(first + t) * channels + channel] = h * g / (1 + exp(-g));
    if (tokens < slots || t + 1 == tokens) {
      const int slot = own[(number + 1 + (tokens < slots ? t : 0)) % slots] * channels + channel;
      hidden[slot] = h, conv[3 * slot] = u0, conv[3 * slot + 1] = u1, conv[3 * slot + 2] = u2;
    }
  }
}
"""


@functools.cache
def shader() -> Any:
    """The kernel, for any device."""
    return compile_shader(SOURCE)


@mixes("Recurrence")
class Ripple(Mixer):
    """Ripple's recurrence."""

    def __init__(self, module: Any, facts: int, residual: Any) -> None:
        self.module, self.residual = module, residual
        self.into, self.out = Linear(module.in_proj), Linear(module.out_proj)
        self.groups = (LinearGroup([self.into]),)
        self.state = RecurrentSpec((("conv", (facts, WIDTH), None), ("recurrent", (facts,), torch.float32)))
        self.width = 4 * facts

    @staticmethod
    def read(module: Any, family: Family) -> int:
        hidden = int(module.config.hidden_size)
        check_linear("in_proj", module.in_proj, hidden, 3 * hidden)
        check_linear("out_proj", module.out_proj, hidden, hidden)
        require(module.conv.dtype == torch.float32, "only float32")
        return hidden

    def without_cache(self, x: Tensor) -> StateView:
        return RecurrentLayer().reserve(x.shape[0], self.state, x.shape[1], x.dtype, x.device)

    def mask_reason(self, mask: Any, x: Tensor, layer: Any) -> str | None:
        return None if mask.shape == x.shape[:2] else "mask is not one of [batch, tokens]"

    def __call__(self, x: Tensor, state: StateView, rope: Any, gemm: Any, mask: Tensor | None) -> Tensor:
        h = self.residual.pre(x)
        if mask is not None:
            h = h * mask[..., None].to(h.dtype)
        h = gemm.product(self.into, h)
        y, weight = torch.empty_like(x), self.module._parameters["conv"]
        runs, table, count, channels = state.runs, state.table, state.count, x.shape[-1]
        shader().ripple(
            h, weight, state.pools["conv"], state.pools["recurrent"], runs, table, count, y,
            (runs.stride(0), table.stride(0), count.stride(0), 0), (table.shape[1], channels),
            threads=(channels, len(runs)),
        )  # fmt: skip
        return self.residual.add(x, self.out, y, gemm)


TABLES = (families.FAMILIES, families.NORMS, families.DECODERS, families.HEADS)


@contextlib.contextmanager
def known() -> Iterator[None]:
    """Inside the block the patch knows the family."""
    before = [copy.copy(table) for table in TABLES]
    families.register(Family("ripple"))
    yield
    for table, content in zip(TABLES, before, strict=True):
        table.clear()
        table.update(content)  # type: ignore[arg-type]
