"""What is far back is still found: a name in a conversation with the demo model, and keys beyond 8,192."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.cache_utils import DynamicCache

import torch_foundry
from tests.hf.tiny_cases import COMMON
from tests.hf.tiny_models import ids
from torch_foundry import demo_model
from torch_foundry.kvcache.hf_cache import new_cache
from torch_foundry.kvcache.paged import PagedCache

pytestmark = pytest.mark.tier("models")

MIXED = {"k": "q8_0", "v": "q4_0"}
CACHES: dict[str, Any] = {
    "q8_0": lambda c: new_cache(c, "q8_0"),
    "k q8_0, v q4_0": lambda c: new_cache(c, MIXED),
    "q4_0": lambda c: new_cache(c, "q4_0"),
    "pages": lambda c: PagedCache(c, 60),
    "pages, q8_0": lambda c: PagedCache(c, 60, kv_cache="q8_0"),
}
NAMES = ["Pepper", "Ivy", "Karl", "Wendy"]
TALK = [
    ("How many legs has a wolf?", "A wolf has four legs."),
    ("What is half of 66?", "Half of 66 is 33."),
    ("Is milk white?", "Yes, milk is white."),
    ("What number comes after 93?", "After 93 comes 94."),
    ("What is 16 + 6?", "16 plus 6 is 22."),
    ("Count from 11 to 19.", "11, 12, 13, 14, 15, 16, 17, 18, 19."),
    ("Why do bears sleep in winter?", "Bears sleep in winter because there is little food then."),
]


@functools.cache
def demo() -> tuple[Any, Any]:
    directory = Path(demo_model.__file__).parent / "main"
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return torch_foundry.patch(model), transformers.AutoTokenizer.from_pretrained(directory)


def conversation(name: str, before: int, after: int) -> torch.Tensor:
    """A name that is told between so many turns about other things, then asked for."""
    hello = ("Hello, my name is " + name + ".", f"Nice to meet you, {name}! How can I help you?")
    start = NAMES.index(name)
    talk = [TALK[(start + i) % len(TALK)] for i in range(before + after)]
    turns = [*talk[:before], hello, *talk[before:]]
    text = "".join(f"<|user|>{q}<|end|><|assistant|>{a}<|end|>" for q, a in turns)
    _, tokenizer = demo()
    whole = f"<|start|>{text}<|user|>What is my name?<|end|><|assistant|>"
    return tokenizer(whole, add_special_tokens=False, return_tensors="pt").input_ids


@pytest.mark.parametrize("kind", CACHES)
def test_a_name_is_found(kind: str) -> None:
    """After 100 tokens of talk (further back the demo model itself mixes names up), and at the end of 700."""
    model, tokenizer = demo()
    for name, before, after in [*((name, 0, 4) for name in NAMES), (NAMES[-1], 24, 3)]:
        prompt, cache = conversation(name, before, after), CACHES[kind](model.config)
        out = model.generate(prompt, past_key_values=cache, max_new_tokens=12, do_sample=False, pad_token_id=0)
        said = tokenizer.decode(out[0, prompt.shape[1] :])
        assert said.startswith(f"Your name is {name}.<|end|>"), f"{said} of {prompt.shape[1]} tokens"


@pytest.mark.parametrize("kind", ["dense", "q8_0", "pages"])
@torch.no_grad()
def test_pieces_are_one_shot_beyond_8192(kind: str) -> None:
    """A prompt in pieces around 8,192 keys and single tokens behind it: the stock model's logits of all at once."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 32}
    settings = transformers.LlamaConfig(**{**COMMON, **sizes, "max_position_embeddings": 16384})
    torch.manual_seed(0)
    stock = transformers.LlamaForCausalLM(settings).eval()
    tokens = ids(1, 8250)
    stock.model.layers[0].self_attn.q_proj.weight.mul_(20)  # so that scores are far from equal
    expected = stock(tokens, logits_to_keep=70).logits[0]
    model = torch_foundry.patch(stock)
    cache = {"dense": DynamicCache, "q8_0": lambda: new_cache(settings, "q8_0"),
             "pages": lambda: PagedCache(settings, 516)}[kind]()  # fmt: skip
    parts = tokens.split([4000, 4180, 10, 3, *[1] * 5, 52], dim=1)
    logits = torch.cat([model(part, past_key_values=cache).logits[0] for part in parts])[-70:]
    error = float((logits - expected).norm() / expected.norm())
    assert error < (5e-3 if kind == "q8_0" else 1e-5), error
    assert cache.get_seq_length() == 8250 and not torch_foundry.report(model).fallbacks
