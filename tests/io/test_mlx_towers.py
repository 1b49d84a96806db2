"""Folders of models that are shown images as mlx-vlm lays them out, without mlx: names, windows, what is packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import torch_foundry
from tests.hf import tiny_models, tiny_wrappers
from tests.io import words
from tests.io.test_mlx_folders import AFFINE, affine
from torch_foundry import LoadError
from torch_foundry.io.parameters import TOWERS, ParameterNames
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import matrices_of

NAMES = [name for name in tiny_wrappers.WRAPPERS if name in TOWERS]
INSIDE = ("gemma3", "llava", "llava_next", "llava_onevision", "mistral3")  # the tower is a part of mlx's tower
Tensors = dict[str, Tensor]


def mlx_name(kind: str, name: str) -> str:
    """What mlx-vlm calls the parameter `name` of a model of that type."""
    decoder, tower = TOWERS[kind]
    flat = decoder == "text_model"
    places = {
        "lm_head.": "language_model.lm_head.",
        f"model.{decoder}.": "language_model." if flat else "language_model.model.",
        f"model.{tower}.": "vision_model." if flat else "vision_tower." + "vision_model." * (kind in INSIDE),
        "model.": "",
    }
    place = next(place for place in places if name.startswith(place))
    name = name.replace("embed_vision.multimodal_embedder.", "embed_vision.")
    return places[place] + name.removeprefix(place)


def of_mlx(model: Any) -> Tensors:
    """The model's tensors as mlx-vlm lays them out."""
    kind, found = model.config.model_type, {}
    for name, tensor in model.state_dict().items():
        if tensor.dim() > 3 or name.endswith(("conv1d.weight", ".conv.conv.weight")):
            tensor = tensor.movedim(1, -1)
        if kind == "qwen3_5" and name.endswith("norm.weight") and "linear_attn" not in name and "visual" not in name:
            tensor = tensor + 1
        found[mlx_name(kind, name)] = tensor
    for name, module in model.named_modules():
        if type(module).__name__.endswith("Experts"):
            path = mlx_name(kind, f"{name}.")
            del found[f"{path}gate_up_proj"], found[f"{path}down_proj"]
            for leaf, matrix in zip(("gate_proj", "up_proj", "down_proj"), matrices_of(module), strict=True):
                found[f"{path.replace('.experts.', '.switch_mlp.')}{leaf}.weight"] = matrix.detach()
    for target, source in model.all_tied_weights_keys.items():
        if found[mlx_name(kind, target)] is found[mlx_name(kind, source)]:
            del found[mlx_name(kind, target)]
    return found


def write(folder: Path, tensors: Tensors, config: Any, **more: Any) -> Path:
    config.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text()) | more
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
    words.small().save_pretrained(folder)
    return folder


def load(folder: Path, **options: Any) -> Any:
    return torch_foundry.load(folder, device="cpu", progress=False, **options)[0]


def refusal(folder: Path, **options: Any) -> tuple[str, str]:
    with pytest.raises(LoadError) as caught:
        load(folder, **options)
    return caught.value.code, str(caught.value.field)


@pytest.mark.tier("files", quick=4)
@pytest.mark.parametrize("name", NAMES)
def test_names_and_windows(name: str, tmp_path: Path) -> None:
    stock = tiny_wrappers.shared(name)
    write(tmp_path, of_mlx(stock), stock.config)
    model = load(tmp_path, images=name == "qwen3_5", patch=False)
    assert type(model) is type(stock)
    state = stock.state_dict()
    assert model.state_dict().keys() == state.keys()
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[key], rtol=0, atol=1e-6 if "norm" in key else 0, msg=key)


@pytest.mark.tier("files", quick=4)
@pytest.mark.parametrize("name", NAMES)
def test_packed_weights_stay_packed(name: str, tmp_path: Path) -> None:
    """Of towers, too; their positions are rows that stock code reads, and become dense, as Gemma 4's embedding does."""
    twin = tiny_wrappers.build(name)
    tensors, packed = of_mlx(twin), set()
    for path, module in twin.named_modules():
        kinds = (nn.Linear, nn.Embedding) if name != "llava" else (nn.Linear,)
        if isinstance(module, kinds) and module.weight.shape[1] % 32 == 0:
            key = mlx_name(name, f"{path}.weight")
            if key in tensors:
                parts, values = affine(key.removesuffix(".weight"), tensors.pop(key))
                tensors |= parts
                module.weight.data.copy_(values)
                packed.add(path)
    settings = {"bits": 4, "group_size": 32}
    write(tmp_path, tensors, twin.config, quantization=settings, quantization_config=settings)
    model = load(tmp_path, images=True)
    kinds = (FoundryLinear, FoundryEmbedding, FoundryExperts)
    left = {path for path, module in model.named_modules() if isinstance(module, kinds)}
    read = {path for path in packed if path.endswith(("position_embedding", "pos_embed"))}
    read |= {"model.language_model.embed_tokens"} if name == "gemma4" else set()
    tied = {"lm_head"} if twin.config.tie_word_embeddings else set()
    assert left == packed - read | tied and all(model.get_submodule(path).format == AFFINE for path in left)
    inputs = tiny_wrappers.prompt(name, [1], [2, 3])
    with torch.no_grad():
        found, wanted = model(**inputs).logits, twin(**inputs).logits
    assert (found - wanted).abs().max() < 1e-4 * wanted.std()


def test_a_tied_layer_stays_packed_where_its_embedding_is_read(tmp_path: Path) -> None:
    stock = tiny_wrappers.shared("gemma4")
    tensors = of_mlx(stock)
    del tensors["language_model.lm_head.weight"]
    parts, values = affine("language_model.model.embed_tokens", tensors.pop("language_model.model.embed_tokens.weight"))
    settings = {"bits": 4, "group_size": 32}
    write(tmp_path, tensors | parts, stock.config, quantization=settings, tie_word_embeddings=True)
    model = load(tmp_path)
    head, embedding = model.lm_head, model.get_input_embeddings()
    assert isinstance(head, FoundryLinear) and type(embedding).__name__ == "Gemma4TextScaledWordEmbedding"
    assert torch.equal(embedding.weight, values)
    assert torch.equal(torch_foundry.unpatch(model, dequantize=True).lm_head.weight, values)


def test_mistakes_of_a_tower(tmp_path: Path) -> None:
    stock = tiny_wrappers.shared("gemma3")
    good = of_mlx(stock)
    tower = "vision_tower.vision_model."
    window = f"{tower}embeddings.patch_embedding.weight"

    def with_(**changes: Tensor | None) -> Path:
        tensors = good | {name: tensor for name, tensor in changes.items() if tensor is not None}
        gone = [name for name, tensor in changes.items() if tensor is None]
        return write(tmp_path, {n: t for n, t in tensors.items() if n not in gone}, stock.config)

    assert refusal(with_(**{window: good[window].movedim(-1, 1)})) == ("SHAPE", window)  # as transformers has it
    assert refusal(with_(**{window: good[window][0]})) == ("SHAPE", window)
    assert refusal(with_(**{f"{tower}encoder.layers.1.mlp.fc1.bias": None})) == (
        "TENSOR_MISSING",
        "model.vision_tower.encoder.layers.1.mlp.fc1.bias",
    )
    assert refusal(with_(**{f"{tower}more.weight": torch.ones(3)})) == ("TENSOR_EXTRA", f"{tower}more.weight")
    assert refusal(with_(**{"audio_tower.weight": torch.ones(3)})) == ("TENSOR_EXTRA", "audio_tower.weight")
    twice = {"vision_tower.embeddings.patch_embedding.weight": good[window]}
    assert refusal(with_(**twice))[0] == "NAME_DUP"
    config = json.loads((with_() / "config.json").read_text())
    config["vision_config"]["num_hidden_layers"] = 5
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(tmp_path)[0] == "TENSOR_MISSING"


def test_a_decoder_alone(tmp_path: Path) -> None:
    """As mlx-lm writes it, or of a wrapper whose tower is another: unless images are asked for."""
    stock = tiny_wrappers.shared("qwen3_5")
    tensors = of_mlx(stock)
    assert type(load(write(tmp_path, tensors, stock.config))).__name__ == "Qwen3_5ForCausalLM"
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("vision_tower.")}
    write(tmp_path, tensors, stock.config)
    assert type(load(tmp_path)).__name__ == "Qwen3_5ForCausalLM"
    assert refusal(tmp_path, images=True)[0] == "TENSOR_MISSING"
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "gemma3n"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(tmp_path, images=True) == ("ARCH_UNKNOWN", "model_type")


def test_images_of_what_sees_none(tmp_path: Path) -> None:
    stock = tiny_models.build("llama")
    write(tmp_path, dict(stock.state_dict()), stock.config)
    assert refusal(tmp_path, images=True) == ("ARCH_UNKNOWN", "model_type")
    torch_foundry.save_gguf(stock, tmp_path / "model.gguf")
    for path, options in ((tmp_path / "model.gguf", {}), (tmp_path, {"gguf_file": "model.gguf"})):
        assert refusal(path, images=True, **options)[0] == "NOT_MODEL"


def test_names_of_a_head_that_predicts_more_tokens() -> None:
    """They are of no model that is shown images, though of its type."""
    assert ParameterNames("qwen3_5").of_mlx("mtp.fc.weight") == "mtp.fc.weight"
