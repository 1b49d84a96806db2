"""Text in and out: tokenizers from GGUF metadata."""

from .tokenizer import tokenizer_from_gguf
from .vocabulary import Vocabulary, check_vocabulary

__all__ = ["Vocabulary", "check_vocabulary", "tokenizer_from_gguf"]
