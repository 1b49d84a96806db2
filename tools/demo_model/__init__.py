"""Where the bundled demo model comes from: its corpus, tokenizer and training."""
