"""A tiny model that is shown images, with a processor that reads files of them."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, LlavaConfig, LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tests.hf.tiny_inputs import SCALE, TEXT, TOWER
from torch_foundry.hf.api import patch

TEMPLATE = """{% for m in messages %}[{{ m.role }}]{% for part in m.content %}\
{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}[assistant]"""


def picture_file(color: tuple[int, int, int], size: tuple[int, int] = (20, 24), format: str = "PNG") -> bytes:
    """An image with a white spot, as a file has it."""
    file = io.BytesIO()
    image = Image.new("RGB", size, color)
    image.putpixel((3, 3), (255, 255, 255))
    image.save(file, format)
    return file.getvalue()


def model_and_processor(tokenizer: Any) -> tuple[Any, Any]:
    """The model, patched, and its processor, with a copy of `tokenizer`; it says nonsense, of each image another."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"height": 16, "width": 16}
    images = CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
    processor = LlavaProcessor(images, tokenizer, patch_size=4, vision_feature_select_strategy="full")
    tokenizer.chat_template = processor.chat_template = TEMPLATE
    config = LlavaConfig(
        text_config={**TEXT, "model_type": "llama", "vocab_size": len(tokenizer)},
        vision_config={"model_type": "clip_vision_model", **TOWER},
        image_token_index=processor.image_token_id,
        image_seq_length=17,
        vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )
    processor.num_additional_image_tokens = 1
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "bias" not in name:
                parameter.copy_(SCALE * torch.randn(parameter.shape))
    model.generation_config.eos_token_id = None
    return patch(model), processor
