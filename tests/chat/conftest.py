"""A model that says what it is told to, with the demo model's tokenizer and config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from tests.hf.conftest import _one_thread  # noqa: F401
from torch_foundry.chat.conversation import Conversation
from torch_foundry.demo_model import demo_model_path


class Scripted(torch.nn.Module):
    """Answers with `answers` in turn, token by token; an exception among their words is raised.

    seen: the prompt of each turn, as text. before: is called before each token.
    """

    def __init__(self, tokenizer: Any, *answers: Any) -> None:
        super().__init__()
        self.tokenizer, self.answers, self.seen = tokenizer, list(answers), []
        self.config = AutoConfig.from_pretrained(demo_model_path())
        self.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.before: Callable[[], object] = lambda: None

    def generate(self, input_ids: torch.Tensor, streamer: Any, **options: Any) -> torch.Tensor:
        self.seen.append(self.tokenizer.decode(input_ids[0]))
        self.options = options
        streamer.put(input_ids)
        answer = self.answers.pop(0)
        ids = input_ids[0].tolist()
        for part in answer if isinstance(answer, list) else [answer]:
            if isinstance(part, Exception):
                raise part
            for token in self.tokenizer(part, add_special_tokens=False).input_ids:
                self.before()
                ids.append(token)
                streamer.put(torch.tensor([token]))
        streamer.put(torch.tensor([self.tokenizer.eos_token_id]))
        streamer.end()
        return torch.tensor([[*ids, self.tokenizer.eos_token_id]])


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model_path())


@pytest.fixture
def scripted(tokenizer: Any) -> Callable[..., Conversation]:
    """Makes conversations with a `Scripted` model."""

    def make(*answers: Any, **options: Any) -> Conversation:
        return Conversation(Scripted(tokenizer, *answers), tokenizer, **options)

    return make
