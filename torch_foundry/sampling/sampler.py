"""The device state of a batch that is being generated, and one step on it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.sampling.settings import Settings

# Bits of rules[token], as in shaders/sample.h.
EOS, BAD_WORD, MIN_LENGTH, MIN_NEW, FORCED_BOS, FORCED_EOS, SUPPRESSED, BEGIN_SUPPRESSED = (1 << i for i in range(8))
ERRORS = {1: "NaN among the scores", 2: "no token has a score above -inf", 4: "an infinite score can't be drawn from"}


class Sampler:
    """Tokens, lengths and random streams of B rows on the device of `input_ids`; see the package's text for tensors.

    settings: what to do. input_ids: int64 [B, prompt length], left padded if need be. vocab_size: V of the logits.
    capacity: columns of `ids`, at least prompt length; generate()'s max_length.
    seed: 64 bits; default: from torch's default generator, so that torch.manual_seed decides. streams: of each row, the
        random stream, 64 bits; default: 0 ... B-1.
    ValueError: a setting names a token outside the vocabulary where Hugging Face would raise, or sizes don't fit.
    """

    def __init__(
        self,
        settings: Settings,
        input_ids: Tensor,
        *,
        vocab_size: int,
        capacity: int,
        seed: int | None = None,
        streams: Sequence[int] | Tensor | None = None,
    ) -> None:
        batch, prompt = input_ids.shape
        if capacity < prompt:
            raise ValueError(f"capacity: expected at least the prompt's {prompt} tokens, got {capacity}")
        device = input_ids.device
        self.settings, self.vocab_size, self.device = settings, vocab_size, device
        if seed is None:
            seed = int(torch.randint(-(2**63), 2**63 - 1, ()))
        self.seed = seed
        self.ids = torch.full((batch, capacity), settings.pad, dtype=torch.int64, device=device)
        self.ids[:, :prompt] = input_ids
        self.token = self.ids[:, prompt - 1 : prompt].clone() if prompt else self.ids.new_zeros(batch, 1)
        self.length = torch.full((batch,), prompt, dtype=torch.int32, device=device)
        self.start = self.length.clone()
        self.finished = torch.zeros(batch, dtype=torch.int32, device=device)
        self.errors = torch.zeros(batch, dtype=torch.int32, device=device)
        self.streams = torch.as_tensor(torch.arange(batch) if streams is None else streams, dtype=torch.int64).to(
            device
        )
        self.params = torch.tensor(_params(settings, seed), dtype=torch.int32).to(device)
        self.rules = _rules(settings, vocab_size).to(device)
        self.sequences = _sequences(settings, vocab_size).to(device) if settings.bans_sequences else None
        table = (batch, vocab_size)
        self.counts = torch.zeros(table, dtype=torch.int32, device=device) if settings.counts_tokens else None
        self.banned = torch.zeros(table, dtype=torch.int32, device=device) if settings.bans_sequences else None
        if self.counts is not None:
            ignore = settings.repetition_ignore or 0
            if not isinstance(ignore, int) and len(ignore) != batch:
                raise ValueError(f"repetition_ignore: expected {batch} numbers, got {len(ignore)}")
            first = torch.tensor([ignore] * batch if isinstance(ignore, int) else ignore, dtype=torch.int32)
            ops.count_prompt(self.ids[:, :prompt], first.to(device), self.counts)

    def step(self, logits: Tensor) -> Tensor:
        """Choose and write one token per row; returns `token`.

        logits: [B, V], float32, float16 or bfloat16, rows may be strided. Stream-ordered: nothing is waited for.
        """
        raise NotImplementedError

    def use(self, settings: Settings) -> None:
        """Go on with other numbers (temperature, top_k, ...), also in tapes that were recorded before.

        ValueError if `settings` need other kernels or tables than the present ones: a processor more or less.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Wait for the device and raise RuntimeError if some row had no possible token, naming row and reason."""
        for row, bits in enumerate(self.errors.tolist()):
            if bits:
                why = ", ".join(text for bit, text in ERRORS.items() if bits & bit)
                raise RuntimeError(f"row {row}: {why}; nothing was chosen from there on")


def _params(settings: Settings, seed: int) -> list[int]:
    return []


def _rules(settings: Settings, vocab_size: int) -> Tensor:
    """uint8 [V]: which rules name a token."""
    return torch.zeros(vocab_size, dtype=torch.uint8)


def _sequences(settings: Settings, vocab_size: int) -> Tensor:
    """int32: n, then n + 1 offsets into what follows: the tokens of bad words with more than one."""
    return torch.zeros(1, dtype=torch.int32)
