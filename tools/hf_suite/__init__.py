"""transformers' own tests, on stock and on patched models: what passes on the first has to pass on the second."""
