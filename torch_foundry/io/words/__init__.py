"""Tokenizers of folders: tokenizer.json and the files around it, which come from strangers."""

from torch_foundry.io.words.folder import check_words, load_tokenizer

__all__ = ["check_words", "load_tokenizer"]
