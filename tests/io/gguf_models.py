"""An independent writer of GGUF files: transformers' models under the names of the gguf package's own map, by the rules
of llama.cpp's converter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.hf.tiny_cases import COMMON, VOCAB
from tests.hf.tiny_models import config
from tests.io import gguf_cases, gguf_kin_cases

CASES, LAID_OUT = (getattr(gguf_cases, kind) | getattr(gguf_kin_cases, kind) for kind in ("CASES", "LAID_OUT"))
ALL = CASES | LAID_OUT | gguf_kin_cases.READ

TYPES = {name: getattr(gguf.GGMLQuantizationType, name.upper()) for name in ("f32", "f16", "q8_0", "q4_0")}


INTERLEAVED = ("llama", "mistral3", "granite", "granitehybrid", "granitemoe", "smollm3", "nemotron_h", "nemotron_h_moe")
INTERLEAVED += ("arcee", "olmo", "granite_swa")
STATE_SPACE = ("A_log", "D", "dt_bias", "conv1d.bias", "conv1d.weight", "norm.weight")  # of Nemotron-H's mixers
EPSILON = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")
LAYER_NORM = (
    "gptneox",
    "falcon",
    "nemotron",
    "jais2",
    "starcoder2",
    "stablelm",
    "phi2",
    "olmo",
    "command-r",
    "cohere2",
)
RAISED = ("gemma", "gemma2", "gemma3", "qwen3next", "qwen35", "qwen35moe", "nemotron")  # whose norms have 1 added


NOTHING = ("sliding_window", "q_lora_rank", "n_group", "topk_group")  # settings that may say so


# those that the gguf package doesn't know yet: what their tensors are named like
LIKE = {"mellum": "qwen3moe", "granite_swa": "granite", "granite_swa-moe": "granitemoe"}


def names_of(name: str, layers: int = 16) -> Any:
    """The gguf package's map of names, for a case."""
    wanted = LIKE.get(name, ALL[name].arch)
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == wanted)
    return gguf.get_tensor_name_map(arch, layers)


def make(name: str, seed: int = 0) -> Any:
    """The model of a case, with logits far enough apart that rounding doesn't choose tokens."""
    import transformers

    case = ALL[name]
    options = {key: value for key, value in case.options.items() if value is not None or key in NOTHING}
    if case.options.get("head_dim", 0) is None:
        options["head_dim"] = COMMON["hidden_size"] // COMMON["num_attention_heads"]
    settings = config(case.config, **options)
    own = getattr(transformers, case.config.replace("Config", "ForCausalLM"), None)  # Auto doesn't know Mistral 4's
    build = transformers.AutoModelForCausalLM.from_config if own is None else own._from_config
    model = build(settings, attn_implementation=case.attention).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in key or "bias" in key or "A_log" in key or "scale" in key:
                p.add_(0.3 * noise)
            else:
                p.copy_((0.3 if "embed" in key or "gate.weight" in key or "conv.conv" in key else 0.06) * noise)
        for key, buffer in model.named_buffers():
            if "bias" in key or "scalar" in key:
                buffer.add_(0.3 * torch.randn(buffer.shape, generator=generator))
    model.generation_config.eos_token_id = None
    return model


def mixed(name: str) -> str:
    """A type for each matrix, by its name in the file."""
    if "ffn_gate_inp" in name or "shortconv.conv" in name:
        return "f32"
    if "attn_v" in name or "ffn_down" in name:
        return "q8_0"
    if "attn_output" in name:
        return "f16"
    return "q4_0"


def converted(name: str, model: Any) -> dict[str, np.ndarray]:
    """The tensors of the file, float32, by the converter's rules."""
    case, settings = ALL[name], model.config
    names = names_of(name, settings.num_hidden_layers)
    found = {}
    state = {k: v.detach().float() for k, v in model.state_dict().items()}
    for kind in ("projections", "unembed_projections") if case.arch == "gemma3n" else ():
        state[f"model.altup_{kind}.weight"] = torch.stack(
            [state.pop(f"model.altup_{kind}.{i}.weight") for i in range(3)]
        )
    for key, tensor in state.items():
        if (key == "lm_head.weight" and settings.tie_word_embeddings) or ".act_fn." in key:
            continue
        if case.arch.startswith("nemotron_h"):
            key = key.replace("model.", "backbone.", 1)
        if case.arch == "granite_swa" and key.endswith("sinks"):
            found[f"blk.{key.split('.')[2]}.attn_sinks.weight"] = tensor.numpy()
            continue
        if ".conv1d." in key and case.arch == "kimi-linear":
            layer = key.split(".")[2]
            for x, part in zip("qkv", tensor.chunk(3), strict=True):
                found[f"blk.{layer}.ssm_conv1d_{x}.weight"] = part.numpy()
            continue
        if ".forget_gate." in key:
            key = key.replace(".forget_gate", "").replace("dt_bias", "dt_proj.bias")
            if key.endswith("A_log"):
                found[names.get_name(key)] = -tensor.exp().view(-1, 1).numpy()
                continue
        if case.arch == "gptneox" and "query_key_value" in key:  # a head's queries, keys and values lie together
            heads = tensor.view(settings.num_attention_heads, 3, -1, *tensor.shape[1:])
            tensor = heads.transpose(0, 1).reshape(tensor.shape)
        tensor = multiplied(key, tensor, settings) if case.arch == "falcon-h1" else tensor
        if case.arch == "gpt-oss" and ".experts." in key:
            parts = gpt_oss_experts(key, tensor)
        elif ".mamba." in key or key.rpartition("mixer.")[2] in STATE_SPACE:
            found |= state_space(names, key, tensor, settings)
            continue
        elif "shared_mlp.input" in key or "shared_mlp.output" in key:
            layer, kind = key.split(".")[2], "_shexp" if settings.num_local_experts else ""
            halves = tensor.chunk(2) if "input" in key else [tensor]
            for part, value in zip(("gate", "up") if "input" in key else ("down",), halves, strict=True):
                found[f"blk.{layer}.ffn_{part}{kind}.weight"] = value.numpy()
            continue
        elif key.endswith("kv_b_proj.weight") and "attention.key_length_mla" in case.keys:
            heads = tensor.unflatten(0, (settings.num_attention_heads, -1))
            keys, values = heads.split((settings.qk_nope_head_dim, settings.v_head_dim), 1)
            layer = key.split(".")[2]
            found[f"blk.{layer}.attn_k_b.weight"] = keys.transpose(1, 2).contiguous().numpy()
            found[f"blk.{layer}.attn_v_b.weight"] = values.contiguous().numpy()
            continue
        elif ".linear_attn." in key:
            found |= delta_rule(names, key, tensor, settings, tiled=case.arch != "qwen3next")
            continue
        elif "router." in key and key.endswith("scale"):  # Gemma 4's
            name_of = "ffn_down_exps" if "per_expert" in key else "ffn_gate_inp"
            found[f"blk.{key.split('.')[2]}.{name_of}.scale"] = tensor.numpy()
            continue
        elif key.endswith("gate_up_proj") and case.arch not in ("gemma4", "mistral4"):
            gate, up = tensor.chunk(2, dim=1)
            parts = {key.replace("gate_up_proj", "gate_proj"): gate, key.replace("gate_up_proj", "up_proj"): up}
        else:
            parts = {key: tensor}
        for part, value in parts.items():
            part = part.replace("e_score_correction_bias", "e_score_correction.bias")
            part = part.replace("expert_bias", "expert_bias.bias").replace("gate.moe_statics", "moe_statics")
            part = part.replace("_moe.router.weight", "_moe.router.layer.weight")
            part = part.replace("block_sparse_moe.experts", "mlp.experts")
            if ".mixer.experts." in part:
                part = part.replace("backbone", "model").replace("mixer", "mlp")
            full = part if part.endswith((".weight", ".bias")) else part + ".weight"
            stem, _, kind = full.rpartition(".")
            if case.arch in INTERLEAVED and stem.endswith(("q_proj", "k_proj")):
                heads = settings.num_attention_heads if stem.endswith("q_proj") else settings.num_key_value_heads
                value = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2)
                value = value.reshape(tensor.shape)
            if case.arch in RAISED and full.endswith("norm.weight"):
                value = value + 1
            if stem.endswith(("shared_expert_gate", "conv.conv", "moe_statics.e_score_correction")):
                value = value.squeeze(int("conv" in stem))
            stem = (
                stem.replace("mlp.gate", "block_sparse_moe.gate")
                if name == "mixtral" and "experts" not in stem
                else stem
            )
            whole = names.get_name(full)  # Falcon-H1's second norm, whose name has no ending
            target = whole or f"{names.get_name(stem)}.{kind}"
            assert not target.startswith("None"), stem
            found[target] = value.numpy()
    rope = getattr(settings, "rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        plain = 1 / rope["rope_theta"] ** (torch.arange(0, settings.head_dim, 2) / settings.head_dim)
        found["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq).numpy()
    if case.arch == "gemma4":  # of the blocks without a window
        half = case.keys["attention.key_length"] // 2
        turned = half * rope["full_attention"]["partial_rotary_factor"]
        found["rope_freqs.weight"] = np.where(np.arange(half) < turned, 1, 1e30).astype(np.float32)
    if rope.get("rope_type") == "longrope":
        for length in ("long", "short"):
            found[f"rope_factors_{length}.weight"] = np.array(rope[f"{length}_factor"], np.float32)
    return found


def multiplied(key: str, tensor: torch.Tensor, settings: Any) -> torch.Tensor:
    """A parameter of Falcon-H1, times what its results or inputs are multiplied by."""
    before, groups = settings.attention_in_multiplier, settings.mamba_n_groups * settings.mamba_d_state
    gate, down = settings.mlp_multipliers
    widths = torch.tensor([*(settings.mamba_d_ssm,) * 2, groups, groups, settings.mamba_n_heads])
    factors = {
        **{"q_proj": before, "k_proj": before * settings.key_multiplier, "v_proj": before},
        **{"o_proj": settings.attention_out_multiplier, "out_proj": settings.ssm_out_multiplier},
        "in_proj": settings.ssm_in_multiplier
        * torch.tensor(settings.ssm_multipliers).repeat_interleave(widths)[:, None],
        **{"gate_proj": gate, "down_proj": down, "lm_head": settings.lm_head_multiplier},
        "embed_tokens": settings.embedding_multiplier,
    }
    return tensor * factors.get(key.split(".")[-2], 1.0)


def gpt_oss_experts(key: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """By their names in other models: matrices are turned, and gate and up take turns."""
    stem, kind = (key.removesuffix("_bias"), ".bias") if key.endswith("_bias") else (key, ".weight")
    rows = tensor if kind == ".bias" else tensor.transpose(1, 2)
    if "gate_up" not in stem:
        return {stem + kind: rows}
    return {
        stem.replace("gate_up", "gate") + kind: rows[:, 0::2],
        stem.replace("gate_up", "up") + kind: rows[:, 1::2],
    }


def delta_rule(names: Any, key: str, tensor: torch.Tensor, settings: Any, tiled: bool) -> dict[str, np.ndarray]:
    """The tensors of a gated delta rule. tiled: value heads i of all key heads lie together."""
    keys, heads = settings.linear_num_key_heads, settings.linear_num_value_heads
    key_dim, value_dim, each = settings.linear_key_head_dim, settings.linear_value_head_dim, heads // keys
    stem, _, leaf = key.rpartition("linear_attn.")
    stem += "linear_attn."

    def tile(rows: torch.Tensor, width: int) -> torch.Tensor:
        if not tiled:
            return rows
        return torch.cat([rows.view(keys, each, width, -1)[:, i].flatten(0, 1) for i in range(each)])

    layer = key.split(".")[2]
    if leaf == "A_log":
        return {names.get_name(key): tile(-tensor.exp()[:, None], 1).flatten().numpy()}
    if leaf == "dt_bias":
        return {f"{names.get_name(stem + 'dt_proj')}.bias": tile(tensor[:, None], 1).flatten().numpy()}
    if leaf == "in_proj_qkvz.weight":
        parts = tensor.view(keys, -1, tensor.shape[1]).split([key_dim, key_dim, each * value_dim, each * value_dim], 1)
        q, k, v, z = (part.flatten(0, 1) for part in parts)
        return {
            f"blk.{layer}.attn_qkv.weight": torch.cat((q, k, v)).numpy(),
            f"blk.{layer}.attn_gate.weight": z.numpy(),
        }
    value = tensor
    if leaf in ("in_proj_qkv.weight", "conv1d.weight"):
        both, last = tensor.reshape(tensor.shape[0], -1).split([2 * keys * key_dim, heads * value_dim])
        value = torch.cat((both, tile(last, value_dim)))
    elif leaf in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight"):
        value = tile(tensor, value_dim if "z" in leaf else 1)
    elif leaf == "out_proj.weight":
        value = tile(tensor.t(), value_dim).t()
    return {f"{names.get_name(key.removesuffix('.weight'))}.weight": value.contiguous().numpy()}


def state_space(names: Any, key: str, tensor: torch.Tensor, settings: Any) -> dict[str, np.ndarray]:
    """The tensor of Mamba2."""
    mixer = "mixer" if ".mixer." in key else "mamba"
    stem, _, leaf = key.rpartition(f"{mixer}.")
    value, name, kind = tensor, leaf.removesuffix(".weight"), ".weight"
    if leaf in ("A_log", "D"):
        value, kind = (-tensor.exp() if leaf == "A_log" else tensor)[:, None], ""
    elif leaf in ("dt_bias", "conv1d.bias"):
        name, kind = {"dt_bias": "dt_proj", "conv1d.bias": "conv1d"}[leaf], ".bias"
    elif leaf == "conv1d.weight":
        value = tensor.squeeze(1)
    elif leaf == "norm.weight":
        value = tensor.view(getattr(settings, "mamba_n_groups", 0) or settings.n_groups, -1)
    return {f"{names.get_name(f'{stem}{mixer}.{name}')}{kind}": value.contiguous().numpy()}


Keys = dict[str, Any]  # int: u32, float: f32; a pair (method of the writer, value) for others
Tensors = dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]


def contents(name: str, model: Any, choose: Callable[[str], str] = mixed) -> tuple[Keys, Tensors]:
    """The metadata and the stored tensors of the file."""
    case, settings = ALL[name], model.config
    heads = settings.num_attention_heads
    plain = settings.to_dict()  # of Gemma 4 what blocks with a window have
    head = plain.get("head_dim") or settings.hidden_size // heads
    rms = "" if case.arch in LAYER_NORM else "rms_"
    keys: Keys = {
        "context_length": settings.max_position_embeddings,
        "embedding_length": settings.hidden_size,
        "block_count": settings.num_hidden_layers,
        "feed_forward_length": getattr(settings, "intermediate_size", 96),
        "attention.head_count": heads,
        "attention.head_count_kv": plain.get("num_key_value_heads", heads),
        f"attention.layer_norm_{rms}epsilon": next(
            (float(found) for name in EPSILON if (found := getattr(settings, name, None))), 1e-5
        ),
        "rope.dimension_count": head,
        "vocab_size": settings.vocab_size,
    }
    if "rope.freq_base" not in case.keys:
        keys["rope.freq_base"] = float(getattr(settings, "rope_parameters", {"rope_theta": 1e4})["rope_theta"])
    if head * heads != settings.hidden_size:
        keys |= {"attention.key_length": head, "attention.value_length": head}
    keys = {f"{case.arch}.{key}": value for key, value in {**keys, **case.keys}.items()}
    if case.arch == "apertus":
        for number in ("alpha_n", "alpha_p", "beta", "eps"):
            keys[f"xielu.{number}"] = [float(getattr(layer.mlp.act_fn, number)) for layer in model.model.layers]
    tensors: Tensors = {}
    for tensor, value in converted(name, model).items():
        vector = not tensor.endswith(".weight") or "conv1d" in tensor or tensor.endswith("_norm.weight")
        matrix = value.ndim > 1 and not vector
        kind = TYPES[choose(tensor) if matrix else "f32"]
        tensors[tensor] = gguf.quantize(value, kind), kind
    return keys | vocabulary(), tensors


def write_file(path: Path, architecture: str, keys: Keys, tensors: Tensors, in_a_part: int = 0) -> None:
    """A file of this content; or the parts of one, `in_a_part` tensors in each."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=in_a_part)
    methods = {int: "uint32", float: "float32", str: "string", list: "array", bool: "bool"}
    for key, value in keys.items():
        method, value = value if isinstance(value, tuple) else (methods[type(value)], value)
        getattr(writer, f"add_{method}")(key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for written in path.parent.glob(f"{path.stem}*.gguf"):
        os.utime(written, (0, 0))  # a file that was written just now is read a little later


def write(path: Path, name: str, model: Any, choose: Callable[[str], str] = mixed) -> dict[str, np.ndarray]:
    """The file of a case, and its tensors as they are stored."""
    keys, tensors = contents(name, model, choose)
    write_file(path, CASES[name].arch, keys, tensors)
    return {tensor: data for tensor, (data, _) in tensors.items()}


def vocabulary() -> Keys:
    """VOCAB tokens of a byte-level vocabulary: three control tokens, letters, pairs of letters and fillers."""
    tokens = ["<pad>", "<s>", "</s>", *(chr(33 + i) for i in range(94))]
    tokens += [a + b for a in "etao" for b in "nirsh"]
    tokens += [f"<x{i}>" for i in range(VOCAB - len(tokens))]
    assert len(tokens) == VOCAB
    prefix = "tokenizer.ggml."
    return {
        prefix + "model": "gpt2",
        prefix + "pre": "gpt-2",
        prefix + "tokens": tokens,
        prefix + "token_type": [3] * 3 + [1] * (VOCAB - 3),
        prefix + "merges": [f"{t[0]} {t[1]}" for t in tokens[97:117]],
        prefix + "bos_token_id": 1,
        prefix + "eos_token_id": 2,
        prefix + "padding_token_id": 0,
    }
