"""Choosing the next token on the device: Hugging Face's logits processors, greedy or a draw, end of text, no host sync.

    settings, reason = Settings.from_generation_config(generation_config, logits_processor)
    if settings is None: ...                       # `reason` names what is not known: use Hugging Face's loop
    sampler = Sampler(settings, input_ids, vocab_size=V, capacity=max_length, seed=0)
    for _ in range(n):                             # or a graph of one step, replayed n times
        sampler.step(model(sampler.token))         # logits [B, V]
    sampler.check()                                # waits; raises for a row without a possible token
    sampler.ids[:, : input_ids.shape[1] + n]

All that changes from token to token lies in the sampler's tensors and is read and written there by kernels alone, so
`with capture() as graph: sampler.step(logits)` may be replayed for each further token, whatever the step.

    .ids       int64 [B, capacity]  prompt, then tokens, each written at its row's length
    .token     int64 [B, 1]         the newest token of each row: what the embedding reads next
    .length    int32 [B]            tokens in `ids`; each step adds 1, also to finished rows (as generate())
    .finished  int32 [B]            1 after an EOS token or when `ids` is full; such rows get the pad token
    .errors    int32 [B]            0, or bits of why no token could be chosen (`Sampler.check` names them)
    .params    int32 [B, 18]        the settings' numbers: `sampler.use(settings)` changes them under a captured graph
    .rules     uint8 [B, V]         which rules name a token

`sampler.begin(other_ids)` starts again in the same memory. A step is 2 launches, 3 with no_repeat_ngram or bad words of
several tokens.

In `Sampler.empty(...)` requests come and go: `fill` and `clear` rows, each with settings, seed and stream of its own.

Draws: the n-th new token of a row uses Philox4x32-10 with key = seed and counter = (n, the row's stream id), so it
depends neither on the row's place in the batch (give rows their `streams`), nor on padding, nor on how many steps are
submitted at once. Its inverse CDF runs over token ids in order. Torch's own random numbers are not reproduced.
"""

from torch_foundry.sampling.params import Settings
from torch_foundry.sampling.sampler import Sampler

__all__ = ["Sampler", "Settings"]
