"""Models that are shown images, of two GGUF files: logits are those of transformers' model that an independent writer
made the files of, for what the processor makes of a picture; what doesn't fit is refused by name."""

from __future__ import annotations

import copy
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from PIL import Image

import torch_foundry
from tests.hf import tiny_wrappers
from tests.io import towers
from torch_foundry.core import memory
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.assemble import assemble
from torch_foundry.io.gguf.towers import TOWERS
from torch_foundry.io.load import tower_beside
from torch_foundry.io.model_file import open_model_file
from torch_foundry.nn import FoundryEmbedding, FoundryLinear
from torch_foundry.text import showing

# Whose processors want torchvision, with what makes images for them, and how many tokens one is.
WITHOUT = {
    "gemma4_unified": (tiny_wrappers.patches, 16),
    "lfm2_vl": (tiny_wrappers.shaped, 4),
    "mistral3": (tiny_wrappers.sized, 4),
}
CASES = [name for name in towers.FILES if name not in WITHOUT]
PIXELS = np.random.default_rng(0).integers(0, 255, (20, 28, 3), dtype=np.uint8)
ASKED = [
    {
        "role": "user",
        "content": [{"type": "image", "image": Image.fromarray(PIXELS)}, {"type": "text", "text": "what?"}],
    }
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("towers")


def files(folder: Path, name: str, changes: dict[str, Any] | None = None, packed: str = "") -> tuple[Path, Path]:
    """The decoder's file and the tower's, as `write_tower` writes it."""
    text, tower = folder / f"{name}.gguf", folder / f"{name}-{len(list(folder.iterdir()))}-mmproj.gguf"
    if not text.exists():
        towers.write_text(name, text)
    towers.write_tower(name, tower, changes, packed)
    return text, tower


def loaded(
    folder: Path, name: str, changes: dict[str, Any] | None = None, packed: str = "", patch: bool = False
) -> tuple[Any, Any]:
    text, tower = files(folder, name, changes, packed)
    return torch_foundry.load(text, mmproj=tower, device="cpu", patch=patch)


def shown(processor: Any, chats: Any = ASKED) -> Any:
    return processor.apply_chat_template(chats, tokenize=True, return_dict=True, return_tensors="pt")


def test_each_tower_has_a_case() -> None:
    assert {case.projector for case in towers.FILES.values()} == TOWERS.keys()
    kinds = [tower for each in TOWERS.values() for tower in (each, each.in_parts) if tower]
    assert {kind for tower in kinds for kind, _ in tower.models.values()} - {"qwen3_5_moe"} == set(towers.FILES)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(folder: Path, name: str) -> None:
    model, processor = loaded(folder, name)
    twin = towers.whole(name)
    assert type(model) is type(twin)
    inputs = shown(processor)
    with torch.no_grad():
        wanted, found = twin(**inputs).logits, model(**inputs).logits
    # Gemma's norms are stored with 1 added, decays as -exp(a)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.std().item())


@pytest.mark.parametrize("name", CASES)
def test_a_patched_model_tells_what_the_stock_one_tells(folder: Path, name: str) -> None:
    model, processor = loaded(folder, name, patch=True)
    inputs = shown(processor)
    told = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found, wanted = model.generate(**inputs, **told), towers.whole(name).generate(**inputs, **told)
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("name", WITHOUT)
def test_weights_and_config_alone(folder: Path, name: str) -> None:
    images, count = WITHOUT[name]
    text, tower = files(folder, name)
    found = open_model_file(text, mmproj=tower)
    told = {"device": torch.device("cpu"), "dtype": torch.float32, "model_class": found.model_class}
    model = assemble(found.config, found.weights, file=text, **told)
    found.close()
    twin = towers.whole(name)
    image = towers.words(name).convert_tokens_to_ids(towers.shown_as(name))
    ids = torch.tensor([[5, 6, *[image] * count, 7, 8]])
    inputs = {"input_ids": ids, **images([1])}
    if name == "gemma4_unified":
        inputs["mm_token_type_ids"] = (ids == image).long()
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, twin(**inputs).logits, rtol=1e-4, atol=1e-4)
    if find_spec("torchvision") is None:
        with pytest.raises(ImportError, match="Torchvision"):
            torch_foundry.load(text, mmproj=tower, device="cpu")


def test_images_of_larger_gemma_4_see_around(folder: Path) -> None:
    """Files don't say it: all but those with embeddings of layers (E2B, E4B) do."""
    assert TOWERS["gemma4v"].inside({"hidden_size_per_layer_input": 0}) == {"use_bidirectional_attention": "vision"}
    model, _ = loaded(folder, "gemma4")
    assert model.config.text_config.use_bidirectional_attention is None


def test_files_from_before_have_an_mlps_matrices_exchanged(folder: Path) -> None:
    stored = dict(towers.tensors("gemma3"))
    changes = {}
    for layer in range(2):
        for kind in ("weight", "bias"):
            up, down = (f"v.blk.{layer}.ffn_{name}.{kind}" for name in ("up", "down"))
            changes |= {up: stored[down], down: stored[up]}
    model, processor = loaded(folder, "gemma3", changes)
    inputs = shown(processor)
    with torch.no_grad():
        wanted, found = towers.whole("gemma3")(**inputs).logits, model(**inputs).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.std().item())


def test_what_a_tower_may_lack(folder: Path) -> None:
    """Biases of Pixtral's and LFM2-VL's projectors, the latter's norm, Gemma 4's clipped layers and deviations: the
    file says it by its tensors."""
    names = [name for name, _ in towers.tensors("gemma4") if name.endswith(("_min", "_max")) or "v.std_" in name]
    model, _ = loaded(folder, "gemma4", dict.fromkeys(names))
    assert not model.config.vision_config.standardize and not model.config.vision_config.use_clipped_linears
    text, tower = files(folder, "mistral3", {"mm.1.bias": None, "mm.2.bias": None})
    found = open_model_file(text, mmproj=tower)
    found.close()
    assert not found.config.multimodal_projector_bias
    lacking = ["mm.1.bias", "mm.2.bias", "mm.input_norm.bias", "mm.input_norm.weight"]
    text, tower = files(folder, "lfm2_vl", dict.fromkeys(lacking))
    found = open_model_file(text, mmproj=tower)
    found.close()
    assert not found.config.projector_use_layernorm and not found.config.projector_bias


def test_larger_towers_of_internvl(folder: Path) -> None:
    """Of 6B: root mean squares are their norms, heads have some, too, and no biases."""
    names = [name for name, _ in towers.tensors("internvl")]
    without = [n for n in names if n.endswith(".bias") and any(p in n for p in (".ln", "attn_q", "attn_k", "attn_v"))]
    text, tower = files(folder, "internvl", dict.fromkeys(without) | NORMED)
    found = open_model_file(text, mmproj=tower)
    told = {"device": torch.device("cpu"), "dtype": torch.float32, "model_class": found.model_class}
    model = assemble(found.config, found.weights, file=text, **told)
    found.close()
    layer = model.model.vision_tower.encoder.layer[0]
    assert type(layer.layernorm_before).__name__ == type(layer.attention.q_norm).__name__ == "InternVLVisionRMSNorm"
    assert layer.attention.q_proj.bias is None


def test_packed_layers_of_a_tower_stay_packed(folder: Path) -> None:
    name = "v.blk.0.ffn_up.weight"
    model, processor = loaded(folder, "qwen3_vl", packed=name)
    layer = model.model.visual.blocks[0].mlp.linear_fc1
    assert isinstance(layer, FoundryLinear) and layer.format == "q8_0"
    kind = gguf.GGMLQuantizationType.Q8_0
    codes = gguf.dequantize(gguf.quantize(dict(towers.tensors("qwen3_vl"))[name], kind), kind)
    twin = copy.deepcopy(towers.whole("qwen3_vl"))
    twin.model.visual.blocks[0].mlp.linear_fc1.weight.data.copy_(torch.from_numpy(codes))
    inputs = shown(processor)
    with torch.no_grad():
        wanted, found = twin(**inputs).logits, model(**inputs).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.std().item())


def test_activations_are_in_the_decoders_dtype(folder: Path) -> None:
    """Towers are float16 in most files, in which some decoders overflow."""
    stored = {name: array.astype(np.float16) for name, array in towers.tensors("gemma3") if array.ndim > 1}
    text, tower = files(folder, "gemma3", stored)
    found = open_model_file(text, mmproj=tower)
    found.close()
    assert found.dtype == torch.float32


@pytest.mark.parametrize("name", ["gemma4", "qwen3_vl"])
def test_packed_decoders(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 4's embedding, of which stock code reads a row, becomes dense, and memory is asked for it."""
    _, tower = files(folder, name)
    text = folder / f"{name}-packed.gguf"
    towers.write_text(name, text, packed="q8_0")
    asked: list[int] = []
    monkeypatch.setattr(memory, "check", lambda device, nbytes, *_: asked.append(nbytes))
    model, processor = torch_foundry.load(text, mmproj=tower, device="cpu")
    assert isinstance(model.get_input_embeddings(), FoundryEmbedding) == (name != "gemma4")
    held = {tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}
    assert abs(asked[0] - sum(held.values())) < 0.02 * asked[0]
    inputs, stock = shown(processor), torch_foundry.unpatch(copy.deepcopy(model), dequantize=True)
    told = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert model.generate(**inputs, **told).tolist() == stock.generate(**inputs, **told).tolist()


def test_a_batch_of_chats(folder: Path) -> None:
    _, processor = loaded(folder, "qwen2_vl")
    alone, both = shown(processor), shown(processor, [ASKED, ASKED])
    assert both["input_ids"].tolist() == alone["input_ids"].tolist() * 2
    text = processor.apply_chat_template(ASKED)
    assert text == "[user]<|vision_start|><|image_pad|><|vision_end|>what?[assistant]"


KNOWING_NONE = [
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}",
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content"
    " %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if m.content is not string %}{{ raise_exception('text') }}{% endif %}[{{ m.role }}]{{"
    " m.content }}{% endfor %}",
]


@pytest.mark.parametrize("template", KNOWING_NONE, ids=["of texts", "another token", "refuses"])
def test_a_template_that_knows_no_images(folder: Path, template: str) -> None:
    """Texts of messages show them then."""
    text, tower = folder / f"knows-{len(template)}.gguf", files(folder, "internvl")[1]
    towers.write_text("internvl", text, template=template)
    _, processor = torch_foundry.load(text, mmproj=tower, device="cpu", patch=False)
    assert processor.apply_chat_template(ASKED) == "[user]<IMG_CONTEXT>\nwhat?"
    chat = [
        {"role": "system", "content": "Be brief."},
        *ASKED,
        {"role": "assistant", "content": [{"type": "text", "text": "A"}]},
    ]
    assert processor.apply_chat_template(chat) == "[system]Be brief.[user]<IMG_CONTEXT>\nwhat?[assistant]A"
    assert shown(processor)["pixel_values"].shape == (5, 3, 16, 16)  # four parts, and the whole


def test_processors_are_saved_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    _, processor = loaded(folder, "gemma3")
    processor.save_pretrained(tmp_path)
    assert (tmp_path / "processor_config.json").exists()
    _, processor = loaded(folder, "qwen2_vl")
    with pytest.raises(ValueError, match="this processor has no video_processor"):
        processor.save_pretrained(tmp_path)


NORMED = {f"v.blk.{layer}.attn_{name}_norm.weight": np.ones(32, np.float32) for layer in range(2) for name in "qk"}
REFUSED = [
    ("gemma3", {"clip.projector_type": "ldp"}, "ARCH_UNKNOWN", "clip.projector_type"),
    ("gemma3", {"clip.projector_type": "pixtral"}, "ARCH_UNKNOWN", "clip.projector_type"),
    ("gemma3", {"clip.vision.block_count": None}, "HP_MISSING", "clip.vision.block_count"),
    ("gemma3", {"clip.vision.block_count": 3}, "TENSOR_MISSING", "v.blk.2.ln1.weight"),
    ("gemma3", {"clip.vision.block_count": 1}, "TENSOR_EXTRA", "v.blk.1."),
    ("gemma3", {"clip.vision.projection_dim": 64}, "SHAPE", "clip.vision.projection_dim"),
    ("gemma3", {"clip.vision.attention.head_count": 5}, "HP_RANGE", "clip.vision.attention.head_count"),
    ("gemma3", {"clip.vision.image_mean": [0.5, 0.5]}, "HP_RANGE", "clip.vision.image_mean"),
    ("gemma3", {"clip.vision.image_mean": [0.5, 0.5, float("nan")]}, "HP_RANGE", "clip.vision.image_mean"),
    ("gemma3", {"clip.vision.image_std": [0.5, 0.5, 0.0]}, "HP_RANGE", "clip.vision.image_std"),
    ("gemma3", {"clip.vision.image_std": 0.5}, "HP_RANGE", "clip.vision.image_std"),
    ("idefics3", {"clip.vision.preproc_image_size": 512}, "HP_RANGE", "clip.vision.preproc_image_size"),
    ("lfm2_vl", {"v.position_embd.weight": np.zeros((15, 32), np.float32)}, "SHAPE", "v.position_embd.weight"),
    ("lfm2_vl", {"mm.1.weight": np.zeros(128, np.float32)}, "SHAPE", "mm.1.weight"),
    ("lfm2_vl", {"mm.1.bias": None}, "TENSOR_EXTRA", "mm.2.bias"),
    ("lfm2_vl", {"clip.vision.projector.scale_factor": 3}, "SHAPE", "mm.1.weight"),
    ("qwen3_vl", {"clip.vision.is_deepstack_layers": True}, "HP_RANGE", "clip.vision.is_deepstack_layers"),
    ("internvl", {"clip.vision.preproc_max_tiles": 1 << 20}, "HP_RANGE", "clip.vision.preproc_max_tiles"),
    ("internvl", {"clip.vision.image_size": 32}, "SHAPE", "v.position_embd.weight"),
    ("internvl", {"clip.vision.attention.head_count": 5, **NORMED}, "HP_RANGE", "clip.vision.attention.head_count"),
    ("internvl", {"v.blk.1.attn_k.bias": None}, "TENSOR_MISSING", "v.blk.1.attn_k.bias"),
    ("internvl", {"v.class_embd": np.zeros((2, 32), np.float32)}, "SHAPE", "v.class_embd"),
    ("llava", {"clip.vision.feature_layer": [1, 2]}, "HP_RANGE", "clip.vision.feature_layer"),
    ("llava", {"clip.vision.feature_layer": [1]}, "HP_RANGE", "clip.vision.feature_layer"),
    ("llava", {"model.image_newline": np.zeros(128, np.float32)}, "TENSOR_EXTRA", "model.image_newline"),
    ("llava", {"v.post_ln.bias": np.zeros(32, np.float32)}, "TENSOR_EXTRA", "v.post_ln.bias"),
    ("llava", {"mm.2.weight": np.zeros((64, 64), np.float32)}, "SHAPE", "mm.2.weight"),
    ("llava_next", {"clip.vision.mm_patch_merge_type": "flat"}, "HP_RANGE", "clip.vision.mm_patch_merge_type"),
    ("llava_next", {"clip.vision.image_grid_pinpoints": [16, 32, 32]}, "HP_RANGE", "clip.vision.image_grid_pinpoints"),
    ("llava_next", {"clip.vision.image_grid_pinpoints": [16, 24]}, "HP_RANGE", "clip.vision.image_grid_pinpoints"),
    ("llava_next", {"clip.vision.image_grid_pinpoints": [16] * 514}, "HP_RANGE", "clip.vision.image_grid_pinpoints"),
    ("llava_next", {"clip.vision.image_grid_pinpoints": 16}, "HP_RANGE", "clip.vision.image_grid_pinpoints"),
    ("gemma3", {"clip.use_gelu": None}, "HP_RANGE", "clip.use_gelu"),
    ("gemma3", {"v.post_ln.bias": None}, "TENSOR_MISSING", "v.post_ln.bias"),
    ("gemma3", {"v.post_ln.bias": np.zeros(31, np.float32)}, "SHAPE", "v.post_ln.bias"),
    ("gemma3", {"v.extra.weight": np.zeros(4, np.float32)}, "TENSOR_EXTRA", "v.extra.weight"),
    ("gemma3", {"v.post_ln.bias": np.full(32, np.nan, np.float32)}, "NONFINITE", "v.post_ln.bias"),
    ("qwen3_vl", {"clip.vision.is_deepstack_layers": [True, True]}, "HP_RANGE", "clip.vision.is_deepstack_layers"),
    ("qwen3_vl", {"clip.vision.is_deepstack_layers": [1, 0, 1]}, "HP_RANGE", "clip.vision.is_deepstack_layers"),
    ("qwen3_5", {"clip.vision.is_deepstack_layers": [True, False]}, "TENSOR_MISSING", "v.deepstack.0"),
    ("qwen2_5_vl", {"clip.vision.n_wa_pattern": None}, "HP_MISSING", "clip.vision.n_wa_pattern"),
]


@pytest.mark.parametrize(("name", "changes", "code", "field"), REFUSED)
def test_what_does_not_fit_is_refused(folder: Path, name: str, changes: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(LoadError) as caught:
        loaded(folder, name, changes)
    assert caught.value.code == code
    assert field in str(caught.value)


def test_a_model_in_place_of_a_tower(folder: Path) -> None:
    text, tower = files(folder, "gemma3")
    with pytest.raises(LoadError, match=r"general\.architecture: expected 'clip'") as caught:
        torch_foundry.load(text, mmproj=text, device="cpu")
    assert caught.value.code == "NOT_MODEL"
    with pytest.raises(LoadError) as caught:
        torch_foundry.load(tower, device="cpu")
    assert caught.value.code == "ARCH_UNKNOWN"
    with pytest.raises(LoadError) as caught:
        loaded(folder, "gemma3", packed="v.post_ln.weight")
    assert caught.value.code == "TENSOR_TYPE"


@pytest.mark.parametrize(("name", "token"), [("qwen3_vl", "<|image_pad|>"), ("internvl", "<img>")])
def test_a_vocabulary_without_images(folder: Path, name: str, token: str) -> None:
    _, tower = files(folder, name)
    text = folder / f"{name}-without.gguf"
    towers.write_text(name, text, {token: "<|other|>"})
    with pytest.raises(LoadError, match=re.escape(token)) as caught:
        torch_foundry.load(text, mmproj=tower, device="cpu")
    assert caught.value.code == "TOKEN_ID"


def test_a_vocabulary_that_ends_before_the_token_of_images(folder: Path) -> None:
    """As in the first files of Gemma 3: an unused token, whose embedding is never read, stands for it."""
    _, tower = files(folder, "gemma3")
    text = folder / "ends-before.gguf"
    towers.write_text("gemma3", text, {"<image_soft_token>": "<unused0>"})
    model, processor = torch_foundry.load(text, mmproj=tower, device="cpu", patch=False)
    inputs = shown(processor)
    assert processor.tokenizer.image_token == "<unused0>"
    with torch.no_grad():
        wanted, found = towers.whole("gemma3")(**inputs).logits, model(**inputs).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.std().item())


def test_a_vocabulary_that_knows_no_images(folder: Path) -> None:
    """As of Vicuna, of which LLaVA is made: the unknown token stands for them, with which texts were padded."""
    _, tower = files(folder, "llava")
    text, padding = folder / "knows-none.gguf", towers.words("llava").pad_token
    towers.write_text("llava", text, {"<image>": "<other>", padding: "<unk>"}, template=KNOWING_NONE[0])
    model, processor = torch_foundry.load(text, mmproj=tower, device="cpu", patch=False)
    assert processor.apply_chat_template(ASKED) == "[user]<unk>\nwhat?"
    longer = [*ASKED, {"role": "assistant", "content": "A square."}]
    texts = [processor.apply_chat_template(chat) for chat in (ASKED, longer)]
    alone = shown(processor)
    both = processor(text=texts, images=[Image.fromarray(PIXELS)] * 2, padding=True, return_tensors="pt")
    twin = copy.deepcopy(towers.whole("llava"))
    twin.config.image_token_index = model.config.image_token_index
    with torch.no_grad():
        wanted, found, padded = twin(**alone).logits, model(**alone).logits, model(**both).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.std().item())
    torch.testing.assert_close(padded[:1, -1], wanted[:, -1], rtol=0, atol=1e-4 * wanted.std().item())


def test_templates_that_are_left_alone(folder: Path) -> None:
    """Those that there are none of, and those that texts don't help."""
    of_parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    _, processor = loaded(folder, "internvl")
    for template in (None, of_parts, {"default": KNOWING_NONE[0]}, "{{ messages.missing.name }}"):
        processor.tokenizer.chat_template = template
        assert showing(processor.tokenizer, "<IMG_CONTEXT>\n") == template


def test_a_file_without_a_vocabulary(folder: Path, tmp_path: Path) -> None:
    _, tower = files(folder, "gemma3")
    torch_foundry.save_gguf(towers.decoder("gemma3"), tmp_path / "silent.gguf")
    with pytest.raises(LoadError) as caught:
        torch_foundry.load(tmp_path / "silent.gguf", mmproj=tower, device="cpu", allow="VOCAB_MISSING")
    assert caught.value.code == "VOCAB_MISSING"


def test_a_folder_with_both(tmp_path: Path) -> None:
    """The model is loaded alone unless the tower is named; that is found by its name."""
    text, tower = tmp_path / "model.gguf", tmp_path / "mmproj-model.gguf"
    towers.write_text("qwen2_vl", text)
    towers.write_tower("qwen2_vl", tower)
    model, tokenizer = torch_foundry.load(tmp_path, device="cpu", patch=False)
    assert type(model).__name__ == "Qwen2ForCausalLM" and not hasattr(tokenizer, "image_processor")
    assert tower_beside(text) == tower_beside(tmp_path) == tower
    model, processor = torch_foundry.load(tmp_path, mmproj=tower, device="cpu", patch=False)
    assert type(model).__name__ == "Qwen2VLForConditionalGeneration" and processor.tokenizer
    towers.write_tower("qwen2_vl", tmp_path / "mmproj-other.gguf")
    with pytest.raises(LoadError, match=r"mmproj-model\.gguf, mmproj-other\.gguf"):
        tower_beside(text)
