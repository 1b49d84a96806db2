"""The device state of rows whose next tokens are chosen together, and one step on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core import devices
from torch_foundry.core.limits import SAMPLE_BITS as BITS
from torch_foundry.core.limits import SAMPLE_PARAMS
from torch_foundry.sampling.params import Settings, params_of, rules_of, sequences_of

ERRORS = {
    BITS["error_nan"]: "NaN among the scores",
    BITS["error_nothing"]: "no token has a score above -inf",
    BITS["error_infinite"]: "an infinite score can't be drawn from",
}
PEEKED = 1 << 26  # bytes, at most, of what `peek` copies at a time


class Sampler:
    """Tokens, lengths and random streams of rows on the device of `input_ids`; see the package's text for tensors.

    The constructor makes a uniform batch. The rows of `empty` are filled one by one as requests come and go, each with
    settings of its own: a row's tokens are those that it would get alone with its settings, seed and stream.

    settings: what to do. input_ids: int64 [B, prompt length], left padded if need be. vocab_size: V of the logits, up
    to 2^20. capacity: columns of `ids`, at least prompt length; generate()'s max_length.
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
        rows, device = len(input_ids), input_ids.device
        self.seed, self.vocab_size, self.device = 0, vocab_size, device
        self.settings: list[Settings | None] = [settings] * rows
        self.ids = torch.empty(rows, capacity, dtype=torch.int64, device=device)
        self.token = torch.empty(rows, 1, dtype=torch.int64, device=device)
        self.length, self.start, self.finished, self.errors = (
            torch.empty(rows, dtype=torch.int32, device=device) for _ in range(4)
        )
        self.streams = torch.empty(rows, dtype=torch.int64, device=device)
        self.params = torch.empty(rows, len(SAMPLE_PARAMS), dtype=torch.int32, device=device)
        self.rules = rules_of(settings, vocab_size).to(device).repeat(rows, 1)
        table = (rows, vocab_size)
        self.counts = torch.empty(table, dtype=torch.int32, device=device) if settings.counts_tokens else None
        self.sequences = sequences_of(settings, vocab_size).to(device) if settings.bans_sequences else None
        self.banned = torch.empty(table, dtype=torch.int32, device=device) if settings.bans_sequences else None
        self.begin(input_ids, settings=settings, seed=seed, streams=streams)

    @classmethod
    def empty(cls, rows: int, *, capacity: int, vocab_size: int, device: torch.device | str) -> Sampler:
        """Rows that are nobody's yet."""
        none = torch.empty(rows, 0, dtype=torch.int64, device=device)
        sampler = cls(Settings(), none, vocab_size=vocab_size, capacity=capacity, seed=0)
        for row in range(rows):
            sampler.clear(row)
        return sampler

    def begin(
        self,
        input_ids: Tensor,
        *,
        settings: Settings | None = None,
        seed: int | None = None,
        streams: Sequence[int] | Tensor | None = None,
    ) -> None:
        """Start all rows again with other prompts, in the same memory, so that captured steps stay valid.

        Arguments as of the class; settings: as `use` takes them. ValueError: another number of rows, or a prompt that
        is longer than the capacity.
        """
        prompt, (rows, capacity) = input_ids.shape[1], self.ids.shape
        if len(input_ids) != rows:
            raise ValueError(f"input_ids: expected {rows} rows, got {len(input_ids)}")
        if capacity < prompt:
            raise ValueError(f"capacity: expected at least the prompt's {prompt} tokens, got {capacity}")
        if settings is None:
            settings = self.settings[0]
            assert settings is not None
        ignore = settings.repetition_ignore or 0
        if not isinstance(ignore, int) and len(ignore) != rows:
            raise ValueError(f"repetition_ignore: expected {rows} numbers, got {len(ignore)}")
        self.use(settings, int(torch.randint(-(2**63), 2**63 - 1, (), device="cpu")) if seed is None else seed)
        self.ids[:, prompt:] = settings.pad
        self.ids[:, :prompt] = input_ids
        self.token.copy_(input_ids[:, -1:]) if prompt else self.token.fill_(settings.pad)
        for tensor, value in ((self.length, prompt), (self.start, prompt), (self.finished, 0), (self.errors, 0)):
            tensor.fill_(value)
        self.streams.copy_(
            torch.as_tensor(range(rows) if streams is None else streams, dtype=torch.int64, device="cpu")
        )
        if self.banned is not None:
            self.banned.fill_(-1)  # not 0: a row whose prompt was embeddings is at length 0
        if self.counts is not None:
            first = [ignore] * rows if isinstance(ignore, int) else ignore
            first_ids = torch.tensor(first, dtype=torch.int32, device="cpu").to(self.device)
            ops.sample_count_prompt(self.ids, first_ids, prompt, self.counts.zero_())

    def use(self, settings: Settings, seed: int | None = None) -> None:
        """Continue all rows with other numbers (temperature, top_k, pad ...) or another seed; also in captured steps.

        ValueError if `settings` need other kernels or name other tokens than the present ones.
        """
        if not self.suits(settings):
            raise ValueError("use: expected settings with the same processors and tokens, only other numbers")
        self.settings, self.seed = [settings] * len(self.settings), self.seed if seed is None else seed
        self.params.copy_(torch.tensor(params_of(settings, self.seed), dtype=torch.int32, device="cpu"))

    def suits(self, settings: Settings | None) -> bool:
        """Whether `use` takes these settings."""
        return settings is not None and all(own and own.structure == settings.structure for own in self.settings)

    def fill(
        self, row: int, settings: Settings, text: list[int], *, seed: int, stream: int = 0, prompt: int | None = None
    ) -> None:
        """Give `row` to a request whose text so far is `text`; the first `prompt` tokens (default: all) were given.

        A request that was preempted continues with the tokens that it would have had.
        ValueError: more tokens than `capacity`, a token outside the vocabulary, or settings that ban sequences.
        """
        prompt, capacity = len(text) if prompt is None else prompt, self.ids.shape[1]
        if settings.bans_sequences:
            raise ValueError("settings: no_repeat_ngram and bad words of several tokens need a batch of their own")
        if not 0 < prompt <= len(text) <= capacity:
            raise ValueError(f"text: expected 1 to {capacity} tokens, got {len(text)}, of which {prompt} given")
        if not 0 <= min(text) <= max(text) < self.vocab_size:
            raise ValueError(f"text: expected tokens of a vocabulary of {self.vocab_size}")
        rules, ids = rules_of(settings, self.vocab_size), torch.tensor(text)
        self.settings[row] = settings
        self.params[row].copy_(torch.tensor(params_of(settings, seed), dtype=torch.int32))
        self.rules[row].copy_(rules)
        self.ids[row, : len(text)].copy_(ids)
        self.token[row] = text[-1]
        for tensor, value in ((self.length, len(text)), (self.start, prompt), (self.finished, 0), (self.errors, 0)):
            tensor[row] = value
        self.streams[row] = stream
        if settings.counts_tokens or self.counts is not None:
            self._count(row, settings, ids, prompt)

    def clear(self, row: int) -> None:
        """Free `row`. It may still take part in steps; their result for it means nothing."""
        self.settings[row] = None
        self.params[row].copy_(torch.tensor(params_of(Settings(), 0), dtype=torch.int32))
        self.finished[row] = 1
        self.length[row] = self.ids.shape[1]  # nothing is written
        self.errors[row] = 0

    def allow(self, row: int, allowed: Tensor) -> None:
        """Ban the tokens of `row`, whose settings are `masked`, where `allowed`, uint8 [V] on the CPU, is 0; until it
        is said again. ValueError: another shape, or settings without a mask."""
        settings, rules, bit = self.settings[row], self.rules[row], BITS["rule_suppressed"]
        if settings is None or not settings.masked or allowed.shape != rules.shape:
            raise ValueError(f"allowed: expected [{self.vocab_size}] for a masked row, got {list(allowed.shape)}")
        rules.bitwise_and_(0xFF - bit).bitwise_or_(((allowed == 0).to(torch.uint8) * bit).to(self.device))

    def flags(self, rows: Sequence[int] | None = None) -> tuple[bool, ...]:
        """`Settings.flags` of `rows` (default: all) together: a captured step is valid while they stay the same."""
        some = self.settings if rows is None else [self.settings[row] for row in rows]
        return tuple(map(any, zip((False,) * 4, *(own.flags for own in some if own), strict=True)))

    def step(self, logits: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Choose and write a token for each of `rows` (default: all), which ascend; returns `token`, of all rows.

        logits: [n, V], float32, float16 or bfloat16, rows may be strided. Stream-ordered: nothing is waited for.
        Neighbours share launches.
        """
        if rows is None:
            self._step(logits, slice(None), self.flags())
            return self.token
        at = 0
        while at < len(rows):
            end = at + 1
            while end < len(rows) and rows[end] == rows[end - 1] + 1:
                end += 1
            self._step(logits[at:end], slice(rows[at], rows[end - 1] + 1), self.flags(rows[at:end]))
            at = end
        return self.token

    def _step(self, logits: Tensor, rows: slice, flags: tuple[bool, ...]) -> None:
        def part(tensor: Tensor) -> Tensor:
            return tensor if rows == slice(None) else tensor[rows]

        use_rules, use_counts, draw, truncate = flags
        ops.sample(
            logits,
            part(self.params),
            part(self.rules),
            start=part(self.start),
            streams=part(self.streams),
            length=part(self.length),
            finished=part(self.finished),
            errors=part(self.errors),
            ids=part(self.ids),
            newest=part(self.token),
            sequences=self.sequences,
            counts=part(self.counts) if use_counts and self.counts is not None else None,
            banned=None if self.banned is None else part(self.banned),
            use_rules=use_rules,
            draw=draw,
            truncate=truncate,
        )

    def peek(self, logits: Tensor, rows: Sequence[int], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What would be chosen for `rows` behind `lengths` tokens, and error bits: int64 [n] and int32 [n].

        logits: [n, V]. A row may come several times. Nothing of a row changes; for settings that don't count tokens.
        """
        most = max(1, PEEKED // (8 * self.ids.shape[1] + self.vocab_size))
        if len(rows) > most:
            parts = [slice(at, at + most) for at in range(0, len(rows), most)]
            found = zip(*(self.peek(logits[part], rows[part], lengths[part]) for part in parts), strict=True)
            return torch.cat(next(found)), torch.cat(next(found))
        errors = torch.zeros(len(rows), dtype=torch.int32, device=self.device)
        return self.branch(rows, lengths, errors)(logits), errors

    def branch(
        self, rows: Sequence[int], lengths: Sequence[int], errors: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        """What chooses for `rows` behind `lengths` tokens, as `peek`, then behind what it has chosen, up to an end of
        the text: called with logits [n, V] it returns tokens, int64 [n], which the next call overwrites."""
        use_rules, counts, draw, truncate = self.flags(rows)
        if counts:
            raise ValueError("peek: what may come next depends on the tokens before it")
        index, length = self._put(rows), self._put(lengths)
        own = index if len(set(rows)) > 1 else rows[0]
        finished, errors = torch.zeros_like(length), torch.zeros_like(length) if errors is None else errors
        token = torch.zeros(len(rows), 1, dtype=torch.int64, device=self.device)
        ids = torch.empty(len(rows), self.ids.shape[1], dtype=torch.int64, device=self.device)
        told = {"start": self.start[index], "streams": self.streams[index], "length": length, "finished": finished}
        told |= {"errors": errors, "ids": ids, "newest": token}
        params, rules = self.params[own], self.rules[own]

        def choose(logits: Tensor) -> Tensor:
            ops.sample(logits, params, rules, **told, use_rules=use_rules, draw=draw, truncate=truncate)
            return token[:, 0]

        return choose

    def seek(
        self, lengths: Sequence[int], tokens: Sequence[int] | None = None, *, rows: Sequence[int] | None = None
    ) -> None:
        """Continue `rows` (default: all) after `lengths` tokens, of which `tokens`, of all rows, are the newest ones;
        `ids` stays as it is.

        Only for settings that don't look at earlier tokens; ValueError for others.
        """
        if self.banned is not None or self.flags(rows)[1]:
            raise ValueError("seek: what may come next depends on the tokens before it")
        if rows is not None:
            self.length[self._put(rows)] = self._put(lengths)
            return
        overlaps = devices.of(self.device).overlaps_copies
        self.length.copy_(torch.tensor(lengths, dtype=torch.int32), non_blocking=overlaps)
        self.finished.zero_()
        if tokens is not None:
            self.token.copy_(torch.tensor(tokens)[:, None], non_blocking=overlaps)

    def check(self) -> None:
        """Wait for the device and raise RuntimeError if some row had no possible token, naming row and reason."""
        check_errors(self.errors.tolist())

    def _put(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self.device, non_blocking=True)

    def _count(self, row: int, settings: Settings, ids: Tensor, prompt: int) -> None:
        """Bit 0: the token is in the prompt; above it, how often it was generated."""
        if self.counts is None:
            self.counts = torch.zeros(len(self.ids), self.vocab_size, dtype=torch.int32, device=self.device)
        counts = torch.zeros(self.vocab_size, dtype=torch.int32)
        ignored = settings.repetition_ignore if isinstance(settings.repetition_ignore, int) else 0
        counts[ids[ignored:prompt]] = 1
        counts.index_add_(0, ids[prompt:], torch.full((len(ids) - prompt,), 2, dtype=torch.int32))
        self.counts[row].copy_(counts)


def error_text(bits: int) -> str:
    """Why no token could be chosen."""
    why = ", ".join(text for bit, text in ERRORS.items() if bits & bit)
    return f"{why}; no token was chosen from there on"


def check_errors(errors: Sequence[int]) -> None:
    """RuntimeError for the first row whose error bits say why no token could be chosen."""
    for row, bits in enumerate(errors):
        if bits:
            raise RuntimeError(f"row {row}: {error_text(bits)}")
