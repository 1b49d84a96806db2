"""Text in and out: tokenizers from GGUF metadata, chat templates under a budget, and streamed decoding."""

from .chat import adopt, guard
from .processor import seeing, showing
from .stream import StreamDecoder, TextStreamer
from .template import check_template, render
from .tokenizer import tokenizer_from_gguf
from .vocabulary import Vocabulary, check_vocabulary

__all__ = [
    "StreamDecoder",
    "TextStreamer",
    "Vocabulary",
    "adopt",
    "check_template",
    "check_vocabulary",
    "guard",
    "render",
    "seeing",
    "showing",
    "tokenizer_from_gguf",
]
