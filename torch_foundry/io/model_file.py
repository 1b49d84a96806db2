"""The model in a GGUF file, or in the parts of one, and transformers' config of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import transformers

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.gguf import open_gguf
from torch_foundry.io.gguf.blocks import ROTATED, layer_types, rotated
from torch_foundry.io.gguf.hyperparameters import shortest
from torch_foundry.io.gguf.model import GgufModel
from torch_foundry.io.gguf.slots import OUTPUT
from torch_foundry.io.tower_file import TowerFile
from torch_foundry.io.weights import ModelSource
from torch_foundry.text import Vocabulary, check_vocabulary, tokenizer_from_gguf


def open_model_file(
    path: str | os.PathLike[str],
    *,
    mmap: bool = False,
    check_finite: bool = True,
    allow: Iterable[str] = (),
    mmproj: str | os.PathLike[str] | None = None,
) -> ModelSource:
    """The model in the GGUF file `path`. LoadError as `open_gguf`, `GgufModel` and `check_vocabulary` say.

    mmproj: the file of its vision tower; LoadError as `TowerFile` says.
    """
    container = open_gguf(path, check_finite=check_finite)
    try:
        model = GgufModel(container, mmap=mmap, check_finite=check_finite, allow=allow)
        vocabulary = _vocabulary(model)
        config = make_config(model)
        ids = {} if vocabulary is None else _ids(vocabulary)
        for name, value in ids.items():
            setattr(config, name, value)
        capped = getattr(config, "attn_logit_softcapping", None) is not None
        source = ModelSource(
            config=config,
            weights=model.weights,
            file=model.file,
            tokenizer=partial(_tokenizer, model, vocabulary),
            close=container.close,
            generation_config=transformers.GenerationConfig(**{k: v for k, v in ids.items() if v is not None}),
            attn_implementation="eager" if capped else None,  # others leave the cap out
            absent=tuple(model.absent),
        )
        if mmproj is None:
            return source
        options: Any = {"mmap": mmap, "check_finite": check_finite, "allow": allow}
        return _with_tower(source, model, vocabulary, TowerFile(mmproj, model.name, model.sizes["H"], **options))
    except BaseException:
        container.close()
        raise


def _with_tower(source: ModelSource, model: GgufModel, vocabulary: Vocabulary | None, tower: TowerFile) -> ModelSource:
    """The model that is shown images, of its decoder and its vision tower."""

    def inside(name: str) -> str:
        return tower.tower.decoder + name.removeprefix("model.") if name.startswith("model.") else name

    def close() -> None:
        source.close()
        tower.container.close()

    try:
        sections = model.values.get("rope.dimension_sections")
        listed = None if sections is None else _sections(model, sections)
        config = tower.make_config(source.config, listed, vocabulary)
        assert vocabulary is not None
        return replace(
            source,
            config=config,
            weights={inside(name): weight for name, weight in model.weights.items()} | tower.weights,
            absent=(*map(inside, source.absent), *tower.absent),
            model_class=tower.model_class,
            tower=frozenset(tower.weights),
            tokenizer=partial(_tokenizer, model, vocabulary, tower.named(tower.tower.named, vocabulary)),
            processor=tower.make_processor,
            close=close,
        )
    except BaseException:
        tower.container.close()
        raise


def _vocabulary(model: GgufModel) -> Vocabulary | None:
    """What the file says of its tokenizer; None if there is none, and that is allowed."""
    metadata = model.container.metadata
    if not any(key.startswith("tokenizer.") for key in metadata) and model.allow("VOCAB_MISSING", model.file.name):
        return None
    return check_vocabulary(metadata, model.file, model.sizes["V"])


def _ids(vocabulary: Vocabulary) -> dict[str, Any]:
    """The ids of special tokens under transformers' names."""
    ids: dict[str, Any] = {f"{name}_token_id": vocabulary.ids.get(name) for name in ("bos", "pad")}
    ends = vocabulary.ends
    return ids | {"eos_token_id": ends[0] if len(ends) == 1 else ends or None}


def _tokenizer(model: GgufModel, vocabulary: Vocabulary | None, named: Mapping[str, str] | None = None) -> Any:
    """The tokenizer; None: there is no vocabulary."""
    if vocabulary is None:
        return None
    return tokenizer_from_gguf(model.container.metadata, model.file, model.sizes["V"], vocabulary, named)


def make_config(model: GgufModel) -> Any:
    """The config; ids of tokens are not in it. LoadError HP_RANGE if transformers won't have it."""
    architecture, values = model.architecture, model.values
    fields = {key.field: values[key.name] for key in architecture.keys if key.field}
    fields |= {
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.sizes["K"] // model.sizes["D"],
        "head_dim": model.sizes["D"],
        "vocab_size": model.sizes["V"],
        "tie_word_embeddings": architecture.tied or OUTPUT.tensor not in model.tensors,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **architecture.constants,
    }
    fields |= model.blocks.fields
    if architecture.rotated:
        fields["rope_parameters"] = _rope_parameters(model)
    fields |= {option: option in model.options() for option in architecture.options}
    if values.get("expert_count"):
        fields[architecture.expert_size] = model.sizes["X"]
    if "expert_shared_feed_forward_length" in values:
        fields[architecture.shared_size] = model.sizes["S"]
    if "original_max_position_embeddings" in model.rope and architecture.partial_rope:
        fields["original_max_position_embeddings"] = model.rope["original_max_position_embeddings"]
    if architecture.recurrent:
        kinds = ("full_attention", architecture.kind)
        fields["layer_types"] = [kinds[model.recurrent(index)] for index in range(model.layers)]
    if "U" in model.sizes:
        fields[architecture.value_size] = model.sizes["U"]
    if "mamba_d_head" in fields and "mamba_d_ssm" not in fields:
        fields["mamba_expand"] = model.sizes["Z"] // model.sizes["H"]
    if values.get("rope.scaling.finetuned"):
        fields["position_embedding_type"] = "rope"
    if architecture.pattern:
        fields["layer_types"] = layer_types(model)
    if ROTATED in values:
        fields["layer_rope_theta"] = [fields["rope_parameters"]["rope_theta"] * here for here in rotated(model)]
    if architecture.scalar_layers:
        fields["query_pre_attn_scalar"] = _scalar(model)
    if "sliding_window" in fields:
        fields["sliding_window"] = fields["sliding_window"] or None
    if fields.get("attention_multiplier", 1) is None:
        fields["attention_multiplier"] = model.sizes["D"] ** -0.5
    kind = getattr(transformers, architecture.config)
    fields = {key: value for key, value in fields.items() if not isinstance(getattr(kind, key, None), property)}
    try:
        return kind(**fields)
    except Exception as error:  # whatever its checks raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise LoadError("HP_RANGE", model.file, model.name, expected="what transformers takes", found=line) from error


def _scalar(model: GgufModel) -> int:
    """What scores are divided by the square root of."""
    if model.values["block_count"] == model.architecture.scalar_layers:
        return model.sizes["H"] // model.values["attention.head_count"]
    return model.sizes["D"]


def _rope_parameters(model: GgufModel) -> dict[str, Any]:
    found, values = dict(model.rope), model.values
    found |= model.architecture.rope.get(found["rope_type"], {})
    # files say what is the same for both, and a tenth
    if model.architecture.blocks == "latent" and "mscale_all_dim" in found:
        found["mscale"] = found["mscale_all_dim"] = shortest(found["mscale_all_dim"] * 10)
    if (sections := values.get("rope.dimension_sections")) is not None:
        listed = _sections(model, sections)
        found |= {"mrope_section": listed} if model.architecture.rope else {}
    if model.architecture.partial_rope:
        found["partial_rotary_factor"] = model.sizes["R"] / model.sizes["D"]
    if "rope.freq_base_swa" not in values:
        return found
    base = values["rope.freq_base_swa"] or found["rope_theta"]
    return {"full_attention": found, "sliding_attention": {"rope_type": "default", "rope_theta": base}}


def _sections(model: GgufModel, found: Any) -> list[int]:
    """How many of the rotated pairs go by time, height and width; a fourth number is 0."""
    listed = found.tolist() if hasattr(found, "tolist") and len(found) <= 4 else []
    pairs = model.sizes["R"] // 2
    if not {3, 4} & {len(listed)} or set(map(type, listed)) != {int} or min(listed) < 0 or sum(listed[:3]) < pairs:
        expected = f"three whole numbers that add up to {pairs} or more"
        raise LoadError(
            "HP_RANGE", model.file, f"{model.name}.rope.dimension_sections", expected=expected, found=str(listed)
        )
    return listed[:3]
