"""An independent writer of vision towers' GGUF files: tiny models of transformers under the names of the gguf package's
map, by the rules of llama.cpp's converter, beside files of their decoders."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

import torch_foundry
from tests.hf import tiny_wrappers
from tests.hf.tiny_wrappers import WRAPPERS
from torch_foundry.demo_model import demo_model_path
from torch_foundry.io.gguf.writer import describe_model, write_gguf
from torch_foundry.text.export import gguf_from_tokenizer

MEAN, STD = [0.5, 0.4375, 0.25], [0.5, 0.25, 0.125]
QWEN = {
    **{"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    **{"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"},
}
NAMES = {  # of published files, which the gguf package's map has, by how those of transformers' models begin
    "model.vision_tower.encoder.layers.": "vision_model.model.layers.",
    "model.vision_tower.transformer.": "vision_tower.transformer.",
    "model.vision_tower.ln_pre": "vision_tower.ln_pre",
    "model.vision_tower.patch_conv": "vision_tower.patch_conv",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.visual.": "visual.",
}
SIGLIP = {"model.vision_tower.": "vision_tower.vision_model."}


@dataclass(frozen=True)
class File:
    """What a tower's file says, besides sizes that all say.

    arch: of the decoder's file, if it isn't the one that `save_gguf` writes. keys: below clip. text, tower, options: of
    the config, in place of those of `tiny_wrappers`. names: published ones. tokens: by fields of the config.
    """

    projector: str
    tokens: dict[str, str]
    keys: dict[str, Any]
    arch: str = ""
    text: dict[str, Any] = field(default_factory=dict)
    tower: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


MERGED = {"vision.spatial_merge_size": 2}
TIED = {"tie_word_embeddings": True}
LLAVA = File(
    "mlp",
    {"image_token_index": "<image>"},
    # without the last layer, whose output nothing reads; of CLIP's own projection
    {
        **{"has_llava_projector": True, "use_gelu": False, "vision.block_count": 2, "vision.projection_dim": 24},
        "vision.attention.layer_norm_epsilon": 1e-5,
    },
    tower={"num_hidden_layers": 3},
    names={"model.multi_modal_projector.linear_1": "mm.0", "model.multi_modal_projector.linear_2": "mm.2", **SIGLIP},
)
FILES = {
    "gemma3": File(
        "gemma3",
        {
            **{"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>"},
            "eoi_token_index": "<end_of_image>",
        },
        {"use_gelu": True, "vision.projector.scale_factor": 2},
        text={**TIED, "layer_types": ["sliding_attention"] * 3},
        options=TIED,
        names=SIGLIP,
    ),
    "gemma4": File(
        "gemma4v",
        {
            **{"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>"},
            **{"video_token_id": "<|video|>", "audio_token_id": "<|audio|>"},
        },
        {"vision.projector.scale_factor": 2},
        text=TIED,
        tower={"standardize": True, "use_clipped_linears": True, "position_embedding_size": 64},
        options=TIED,
    ),
    "gemma4_unified": File(
        "gemma4uv",
        {
            **{"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>"},
            **{"video_token_id": "<|video|>", "audio_token_id": "<|audio|>"},
        },
        {
            **{"vision.block_count": 0, "vision.attention.head_count": 0, "vision.feed_forward_length": 0},
            **{"vision.patch_size": 2, "vision.projector.scale_factor": 2},
        },
        text=TIED,
        options=TIED,
        names={  # which the package's map has not yet
            "model.embed_vision.patch_dense": "v.patch_embd",
            "model.embed_vision.patch_ln": "v.patch_norm.",
            "model.embed_vision.pos_norm": "v.patch_norm.3",
            "model.embed_vision.pos_embedding": "v.position_embd.weight",
            "model.embed_vision.multimodal_embedder.embedding_projection": "mm.input_projection",
        },
    ),
    "idefics3": File(
        "idefics3",
        {"image_token_id": "<image>"},
        {"use_gelu": True, "vision.projector.scale_factor": 2, "vision.preproc_image_size": 32},
    ),
    "internvl": File(
        "internvl",
        {"image_token_id": "<IMG_CONTEXT>"},
        {"use_gelu": True, "vision.projector.scale_factor": 2, "vision.preproc_max_tiles": 4},
        tower={"attention_bias": True},
        names={
            "model.multi_modal_projector.layer_norm": "mlp1.0",
            "model.multi_modal_projector.linear_1": "mlp1.1",
            "model.multi_modal_projector.linear_2": "mlp1.3",
        },
    ),
    "lfm2_vl": File(
        "lfm2",
        {"image_token_id": "<image>"},
        {"use_gelu": True, "vision.projector.scale_factor": 2},
        names=SIGLIP,
    ),
    "llava": LLAVA,
    "llava_next": replace(
        LLAVA,
        keys={
            **{**LLAVA.keys, "vision.mm_patch_merge_type": "spatial_unpad", "vision.image_aspect_ratio": "anyres"},
            "vision.image_grid_pinpoints": [16, 32, 32, 16],
        },
        text={"sliding_window": None},
    ),
    "mistral3": File(
        "pixtral",
        {"image_token_index": "[IMG]"},
        {"use_silu": True, **MERGED},
        arch="mistral3",
        tower={"hidden_act": "silu"},
        options={"multimodal_projector_bias": True},
    ),
    "qwen2_vl": File("qwen2vl_merger", QWEN, {}, arch="qwen2vl"),
    "qwen2_5_vl": File(
        "qwen2.5vl_merger",
        QWEN,
        {"use_silu": True, "vision.n_wa_pattern": 2},
        arch="qwen2vl",
        tower={"depth": 4, "fullatt_block_indexes": [1, 3], "window_size": 112},
    ),
    "qwen3_vl": File(
        "qwen3vl_merger",
        QWEN,
        {"use_gelu": True, **MERGED, "vision.is_deepstack_layers": [True, False, True]},
        arch="qwen3vl",
        tower={"depth": 3, "deepstack_visual_indexes": [0, 2]},
    ),
    "qwen3_vl_moe": File(
        "qwen3vl_merger",
        QWEN,
        {"use_gelu": True, **MERGED, "vision.is_deepstack_layers": [True, True]},
        arch="qwen3vlmoe",
        text={"mlp_only_layers": []},
    ),
    "qwen3_5": File(
        "qwen3vl_merger",
        QWEN,
        {"use_gelu": True, **MERGED, "vision.is_deepstack_layers": [False, False]},
        text={"layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_hidden_layers": 4},
    ),
}
EXTRA = {  # tokens that processors look for
    "gemma4": ["<|audio>", "<audio|>"],
    "mistral3": ["[IMG_BREAK]", "[IMG_END]"],
    "idefics3": ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>"],
    "internvl": ["<img>", "</img>", "<|video_pad|>"],
    "lfm2_vl": ["<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"],
}


@functools.cache
def words(name: str) -> Any:
    """Metadata of a vocabulary with the tokens of a case."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_model_path())
    tokens = [*FILES[name].tokens.values(), *EXTRA.get(name, [])]
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", shown_as(name))
    return tokenizer


TEMPLATE = """{% for m in messages %}[{{ m.role }}]{% for part in m.content %}\
{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}[assistant]"""


def shown_as(name: str) -> str:
    """What a template writes for an image."""
    tokens = FILES[name].tokens
    if name == "gemma3":
        return tokens["boi_token_index"]
    image = tokens.get("image_token_id") or tokens["image_token_index"]
    return f"<|vision_start|>{image}<|vision_end|>" if tokens is QWEN else image


@functools.cache
def whole(name: str) -> Any:
    """The model in transformers."""
    file, case, tokenizer = FILES[name], WRAPPERS[name], words(name)
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in file.tokens.items()}
    text = {**case.text, "vocab_size": len(tokenizer), **file.text}
    if "vocab_size_per_layer_input" in text:
        text["vocab_size_per_layer_input"] = len(tokenizer)
    changed = replace(
        case, text=text, tower={**case.tower, **file.tower}, options={**case.options, **ids, **file.options}
    )
    WRAPPERS[name], kept = changed, case
    try:
        model: Any = tiny_wrappers.build(name)
    finally:
        WRAPPERS[name] = kept
    for key, buffer in model.named_buffers():
        if key.endswith(("_min", "_max")):
            buffer.fill_((-1.0 if key.endswith("min") else 1.0) * (3 + len(key) % 3))
        elif "vision_tower.std_" in key:
            buffer.copy_(torch.linspace(0.5, 1.5, len(buffer)))
    return model


def decoder(name: str) -> Any:
    """The decoder alone, as a causal language model."""
    model = whole(name)
    text = model.config.get_text_config()
    own = {
        "gemma4_unified_text": "gemma4_text",
        "mistral": "llama",
        "qwen2_vl_text": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe_text": "qwen3_moe",
    }
    settings = text.to_dict()
    kind = own.get(settings["model_type"], settings["model_type"])
    if kind != settings["model_type"]:
        rope = {key: value for key, value in settings["rope_parameters"].items() if key != "mrope_section"}
        settings |= {"rope_parameters": rope}
    if name == "gemma4_unified":
        settings |= {"use_bidirectional_attention": None, "hidden_size_per_layer_input": 0}
    settings |= {"model_type": kind, "tie_word_embeddings": model.config.tie_word_embeddings}
    config = transformers.CONFIG_MAPPING[kind].from_dict(settings)
    alone = transformers.AutoModelForCausalLM.from_config(config)
    inside = FILES_DECODER.get(name, "model.language_model.")
    state = {key.replace(inside, "model."): value for key, value in model.state_dict().items() if inside in key}
    alone.load_state_dict(state | {"lm_head.weight": model.lm_head.weight})
    return alone.eval()


FILES_DECODER = {"idefics3": "model.text_model."}


def write_text(
    name: str, path: Path, renamed: dict[str, str] | None = None, packed: str = "", template: str = ""
) -> None:
    """The decoder's file, with the vocabulary. renamed: tokens in place of others. packed: the format of matrices.
    template: in place of the one that shows images."""
    model = torch_foundry.quantize(decoder(name), packed) if packed else decoder(name)
    metadata, tensors = describe_model(model)
    arch, wanted = metadata["general.architecture"], FILES[name].arch
    if wanted and wanted != arch:
        metadata = {key.replace(f"{arch}.", f"{wanted}.", 1): value for key, value in metadata.items()}
        metadata["general.architecture"] = wanted
        if wanted.startswith("qwen"):
            metadata[f"{wanted}.rope.dimension_sections"] = [4, 6, 6, 0]
    metadata |= gguf_from_tokenizer(words(name), model.config.vocab_size)
    metadata["tokenizer.chat_template"] = template or metadata["tokenizer.chat_template"]
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.tokens"] = [(renamed or {}).get(token, token) for token in tokens]
    write_gguf(path, metadata, tensors)


def said(name: str) -> dict[str, Any]:
    """Metadata of the tower's file."""
    model, file = whole(name), FILES[name]
    tower = model.config.vision_config
    sizes = {
        **{"image_size": 16, "patch_size": 4, "embedding_length": 32, "feed_forward_length": 48},
        "block_count": getattr(tower, "num_hidden_layers", None) or getattr(tower, "depth", 0),
        **{"attention.head_count": 2, "projection_dim": model.config.get_text_config().hidden_size},
        **{"image_mean": MEAN, "image_std": STD, "attention.layer_norm_epsilon": 1e-6},
    }
    keys = {f"vision.{key}": value for key, value in sizes.items()} | file.keys
    keys |= {"has_vision_encoder": True, "projector_type": file.projector}
    return {f"clip.{key}": value for key, value in keys.items()}


def tensors(name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The tower's tensors, by their names in the file."""
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    for key, value in whole(name).state_dict().items():
        if key.startswith(("lm_head", "model.language_model.", "model.text_model.")):
            continue
        if name in ("llava", "llava_next") and (".layers.2." in key or ".post_layernorm." in key):
            continue
        for published, part in published_parts(name, key, value):
            stem, _, suffix = published.rpartition(".")
            if suffix not in ("weight", "1", "bias", "input_min", "input_max", "output_min", "output_max"):
                stem, suffix = published, ""
            named = stem if stem.startswith(("v.", "mm.", "model.image_newline")) else known.get_name(stem)
            assert named, published
            if "position_embedding_table" in published:
                suffix = "weight"
            if name in ("llava", "llava_next") and "ffn_" in named:  # exchanged by the script that writes them
                layer, _, kind = named.rpartition("_")
                named = layer + {"up": "_down", "down": "_up"}[kind]
            yield f"{named}.{suffix}".removesuffix("."), part.float().contiguous().numpy()


def published_parts(name: str, key: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Under names of published files, as the converter takes them apart."""
    for begin, there in (*FILES[name].names.items(), *NAMES.items()):
        if key.startswith(begin):
            key = key.replace(begin, there, 1)
            break
    key = key.replace(".linear.", ".").replace("projection_weight", "projection.weight")
    if "lambda_" in key or key.endswith("position_embeddings"):
        key += ".weight"
    if name == "gemma4_unified":
        if key.startswith(("v.patch_embd.weight", "v.patch_norm.1")):  # red of all pixels first
            value = value.unflatten(-1, (4, 4, 3)).movedim(-1, -3).flatten(-3)
        elif key == "v.position_embd.weight":
            value = value.transpose(0, 1)
    if key.endswith("patch_embed.proj.weight"):
        yield "v.patch_embd.weight", value[:, :, 0]
        yield "v.patch_embd.weight.1", value[:, :, 1]
    elif ".deepstack_merger_list." in key:
        index, part = key.split("deepstack_merger_list.")[1].split(".", 1)
        layer = FILES[name].tower.get("deepstack_visual_indexes", [0, 1])[int(index)]
        yield f"v.deepstack.{layer}.{part.replace('linear_', '')}", value
    elif "visual.merger." in key and name.startswith("qwen3"):
        own = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
        part, suffix = key.split("visual.merger.")[1].split(".")
        yield f"{own[part]}.{suffix}", value
    elif ".attn.qkv." in key and name.startswith("qwen2"):
        for letter, rows in zip("qkv", value.chunk(3), strict=True):
            yield key.replace("qkv", letter), rows
    elif name == "mistral3" and key.endswith(("q_proj.weight", "k_proj.weight")):
        yield key, value.view(2, 2, 8, 32).transpose(1, 2).reshape(32, 32)
    elif key.endswith("patch_embedder.input_proj.weight") or (name == "lfm2_vl" and "patch_embedding.weight" in key):
        yield key, value.view(-1, 4, 4, 3).permute(0, 3, 1, 2)
    elif "soft_emb_norm" in key:
        yield key, value + 1
    else:
        yield key, value if value.dim() else value[None]


def write_tower(name: str, path: Path, changes: dict[str, Any] | None = None, packed: str = "") -> None:
    """The tower's file. changes: of metadata and tensors, by name; None: without. packed: the tensor that is q8_0."""
    writer = gguf.GGUFWriter(path, "clip")
    settings, stored = said(name), dict(tensors(name))
    for key, value in (changes or {}).items():
        place: dict[str, Any] = stored if key.startswith(("v.", "mm.", "model.")) else settings
        if value is None:
            del place[key]
        else:
            place[key] = value
    for key, value in settings.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds.get(type(value), writer.add_array)(key, value)
    for key, array in stored.items():
        kind = gguf.GGMLQuantizationType.Q8_0
        if key == packed:
            writer.add_tensor(key, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
