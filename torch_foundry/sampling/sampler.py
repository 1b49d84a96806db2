"""The device state of a batch that is being generated, and one step on it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.limits import SAMPLE_BITS as BITS
from torch_foundry.limits import SAMPLE_PARAMS
from torch_foundry.sampling.settings import Settings

ERRORS = {
    BITS["error_nan"]: "NaN among the scores",
    BITS["error_nothing"]: "no token has a score above -inf",
    BITS["error_infinite"]: "an infinite score can't be drawn from",
}


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
        batch, device = len(input_ids), input_ids.device
        self.settings, self.seed, self.vocab_size, self.device = settings, 0, vocab_size, device
        self.ids = torch.empty(batch, capacity, dtype=torch.int64, device=device)
        self.token = torch.empty(batch, 1, dtype=torch.int64, device=device)
        self.length, self.start, self.finished, self.errors = (
            torch.empty(batch, dtype=torch.int32, device=device) for _ in range(4)
        )
        self.streams = torch.empty(batch, dtype=torch.int64, device=device)
        self.params = torch.empty(len(SAMPLE_PARAMS), dtype=torch.int32, device=device)
        self.rules = rules_of(settings, vocab_size).to(device)
        self.sequences = _sequences(settings, vocab_size).to(device) if settings.bans_sequences else None
        table = (batch, vocab_size)
        self.counts = torch.empty(table, dtype=torch.int32, device=device) if settings.counts_tokens else None
        self.banned = torch.empty(table, dtype=torch.int32, device=device) if settings.bans_sequences else None
        self.begin(input_ids, seed=seed, streams=streams)

    def begin(
        self,
        input_ids: Tensor,
        *,
        settings: Settings | None = None,
        seed: int | None = None,
        streams: Sequence[int] | Tensor | None = None,
    ) -> None:
        """Start again with other prompts, in the same memory, so that tapes of a step stay valid.

        Arguments as of the class; settings: as `use` takes them. ValueError: another number of rows, or a prompt that
        is longer than the capacity.
        """
        prompt, (rows, capacity) = input_ids.shape[1], self.ids.shape
        if len(input_ids) != rows:
            raise ValueError(f"input_ids: expected {rows} rows, got {len(input_ids)}")
        if capacity < prompt:
            raise ValueError(f"capacity: expected at least the prompt's {prompt} tokens, got {capacity}")
        ignore = (settings or self.settings).repetition_ignore or 0
        if not isinstance(ignore, int) and len(ignore) != rows:
            raise ValueError(f"repetition_ignore: expected {rows} numbers, got {len(ignore)}")
        self.use(settings or self.settings, _random_seed() if seed is None else seed)
        self.ids[:, prompt:] = self.settings.pad
        self.ids[:, :prompt] = input_ids
        self.token.copy_(input_ids[:, -1:]) if prompt else self.token.fill_(self.settings.pad)
        for tensor, value in ((self.length, prompt), (self.start, prompt), (self.finished, 0), (self.errors, 0)):
            tensor.fill_(value)
        self.streams.copy_(
            torch.as_tensor(torch.arange(rows, device="cpu") if streams is None else streams, dtype=torch.int64)
        )
        if self.banned is not None:
            self.banned.zero_()
        if self.counts is not None:
            first = torch.tensor(
                [ignore] * rows if isinstance(ignore, int) else ignore, dtype=torch.int32, device="cpu"
            )
            ops.sample_count_prompt(self.ids, first.to(self.device), prompt, self.counts.zero_())

    def seek(self, lengths: Sequence[int], tokens: Sequence[int] | None = None) -> None:
        """Continue each row after `lengths` tokens, of which `tokens` are the newest ones; `ids` stays as it is.

        Only for settings that don't look at earlier tokens; ValueError for others.
        """
        if self.settings.counts_tokens or self.settings.bans_sequences:
            raise ValueError("seek: what may come next depends on the tokens before it")
        self.length.copy_(torch.tensor(lengths, dtype=torch.int32), non_blocking=self.length.is_cuda)
        self.finished.zero_()
        if tokens is not None:
            self.token.copy_(torch.tensor(tokens)[:, None], non_blocking=self.token.is_cuda)

    def step(self, logits: Tensor) -> Tensor:
        """Choose and write one token per row; returns `token`.

        logits: [B, V], float32, float16 or bfloat16, rows may be strided. Stream-ordered: nothing is waited for.
        """
        self._sample(logits, None)
        return self.token

    def probabilities(self, logits: Tensor) -> Tensor:
        """A step of a sampler that draws, which also returns what it drew from: float32 [B, V]."""
        probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        self._sample(logits, probs)
        return probs

    def use(self, settings: Settings, seed: int | None = None) -> None:
        """Continue with other numbers (temperature, top_k, pad ...) or another seed; also applies to tapes recorded
        before.

        ValueError if `settings` need other kernels or name other tokens than the present ones.
        """
        if settings.structure != self.settings.structure:
            raise ValueError("use: expected settings with the same processors and tokens, only other numbers")
        self.settings, self.seed = settings, self.seed if seed is None else seed
        self.params.copy_(torch.tensor(params_of(settings, self.seed), dtype=torch.int32, device="cpu"))

    def check(self) -> None:
        """Wait for the device and raise RuntimeError if some row had no possible token, naming row and reason."""
        check_errors(self.errors.tolist())

    def _sample(self, logits: Tensor, probs: Tensor | None) -> None:
        ops.sample(
            logits,
            self.params,
            self.rules,
            start=self.start,
            streams=self.streams,
            length=self.length,
            finished=self.finished,
            errors=self.errors,
            ids=self.ids,
            newest=self.token,
            sequences=self.sequences,
            counts=self.counts,
            banned=self.banned,
            probs=probs,
            use_rules=self.settings.has_rules,
            draw=self.settings.do_sample,
            truncate=self.settings.truncates,
        )


def check_errors(errors: Sequence[int]) -> None:
    """RuntimeError for the first row whose error bits say why no token could be chosen."""
    for row, bits in enumerate(errors):
        if bits:
            why = ", ".join(text for bit, text in ERRORS.items() if bits & bit)
            raise RuntimeError(f"row {row}: {why}; no token was chosen from there on")


def _random_seed() -> int:
    """64 bits of torch's default generator on the CPU."""
    return int(torch.randint(-(2**63), 2**63 - 1, (), device="cpu"))


def params_of(settings: Settings, seed: int) -> list[int]:
    """SampleParams of shaders/sample.h, word by word."""
    s = settings
    named = {"top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p, "forced_bos": s.forced_bos}
    stages = sum(BITS[f"stage_{name}"] for name, value in named.items() if value is not None)
    # p = 1 is no limit, and has no fraction of 32 bits
    if s.top_p == 1:
        stages &= ~BITS["stage_top_p"]
    if not s.do_sample:
        stages = stages & BITS["stage_forced_bos"] | BITS["stage_greedy"]
    params = {
        "repetition": s.repetition_penalty,
        "presence": s.presence_penalty,
        "frequency": s.frequency_penalty,
        "temperature": s.temperature if s.do_sample else 1.0,
        "min_p": s.min_p or 0.0,
        "top_p": min(round((s.top_p or 0.0) * 2**32), 2**32 - 1),
        "top_k": min(s.top_k or 0, 2**32 - 1),
        "stages": stages,
        "top_p_keep": s.top_p_keep,
        "min_p_keep": s.min_p_keep,
        "min_length": s.min_length,
        "min_new_length": s.min_new_length,
        "forced_eos_length": s.forced_eos_length,
        "begin_index": s.begin_index,
        "ngram": s.no_repeat_ngram,
        "pad": s.pad,
        "seed_low": seed & 0xFFFFFFFF,
        "seed_high": seed >> 32 & 0xFFFFFFFF,
    }
    packed = struct.pack("<" + "".join(SAMPLE_PARAMS.values()), *(params[name] for name in SAMPLE_PARAMS))
    return list(struct.unpack(f"<{len(SAMPLE_PARAMS)}i", packed))


def rules_of(settings: Settings, vocab_size: int) -> Tensor:
    """uint8 [V]: which rules name a token. Hugging Face ignores tokens outside the vocabulary in some of them."""
    s, rules = settings, torch.zeros(vocab_size, dtype=torch.uint8, device="cpu")
    single = tuple(word[0] for word in s.bad_words if len(word) == 1)
    forced = () if s.forced_bos is None else (s.forced_bos,)
    for name, tokens in (("bad_words", single), ("forced_bos", forced), ("forced_eos", s.forced_eos)):
        _require_known(name, tokens, vocab_size)
    for name, tokens in (
        ("eos", s.eos),
        ("bad_word", single),
        ("min_length", s.min_length_tokens),
        ("min_new", s.min_new_tokens),
        ("forced_bos", forced),
        ("forced_eos", s.forced_eos),
        ("suppressed", s.suppress),
        ("begin_suppressed", s.begin_suppress),
    ):
        known = [token for token in tokens if 0 <= token < vocab_size]
        rules[known] |= BITS[f"rule_{name}"]
    return rules


def _sequences(settings: Settings, vocab_size: int) -> Tensor:
    """int32: n, then n + 1 offsets into what follows: the tokens of bad words with more than one."""
    words = [word for word in settings.bad_words if len(word) > 1]
    for word in words:
        _require_known("bad_words", word, vocab_size)
    ends = itertools.accumulate((len(word) for word in words), initial=0)
    return torch.tensor([len(words), *ends, *itertools.chain(*words)], dtype=torch.int32, device="cpu")


def _require_known(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    if unknown := [token for token in tokens if not 0 <= token < vocab_size]:
        raise ValueError(f"{name}: expected tokens of a vocabulary of {vocab_size}, got {unknown}")
