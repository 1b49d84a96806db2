"""A whole token in one call: decode steps recorded as tapes, and a generation loop that reads tokens in blocks.

`torch_foundry.patch` gives a model these classes by itself. Two things follow:

- A forward pass of up to eight tokens on a `DynamicCache` replays a tape (`decoder.py`): Hugging Face's own loops,
  streamers, processors, beams, assisted generation, and anybody's own loop run on it.
- `generate()`, greedy or sampling, runs a loop of ours (`generator.py`): up to `sync_every` tokens are handed to the
  device before the first of them is read.

What neither of them does runs as before, layer by layer; `torch_foundry.report(model)` counts why.
"""
