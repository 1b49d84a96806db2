"""What is asked of an engine: its own configuration, and how a request is answered."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.load_errors import is_fault
from torch_foundry.engine.next_tokens import Constraint
from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.packed_state_tables import PackedStateTables
from torch_foundry.kvcache.room import check_states
from torch_foundry.kvcache.state_tables import EVERY, StateTables
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.sampling import Settings

LARGEST = (2 - 2**-23) * 2.0**127  # of 32-bit floats, which kernels get
SMALLEST = 1e-30  # what scores are divided by: one that 32-bit floats take for 0 would make them infinite
LONGEST = 2**31 - 1  # tokens of a text
MOST_LOGPROBS = 20  # likeliest tokens of each new one
MOST_STOPS, LONGEST_STOP = 64, 1024  # stop texts, and characters of one: each new token looks for all of them


class QueueFull(RuntimeError):
    """An engine has as many requests waiting as it takes; later there may be room."""


@dataclass(frozen=True)
class SamplingParams:
    """How a request is answered. ValueError names what is out of range.

    max_tokens: new tokens at most.
    temperature: 0 is greedy, whatever the other sampling settings are. top_k, top_p, min_p: None: off.
    seed: 64 bits. The same seed draws the same tokens, whatever else runs; None: a random one.
    stop: texts that end the answer and are not part of it (needs a tokenizer); up to 64, of up to 1024 characters.
    stop_token_ids: in addition to the model's own end-of-text tokens, which `ignore_eos` disables.
    min_tokens: the answer doesn't end before (except by `stop`).
    repetition_penalty, presence_penalty, frequency_penalty: as in `torch_foundry.sampling.Settings`.
    logit_bias: token ids and what is added to their logits, first of all.
    logprobs: note the log-probability of each new token, and of up to 20 of the likeliest (`Stream.logprobs`).
    constraint: what limits the answer to a language, such as a grammar: an object of this request alone.
    skip_special_tokens: whether special tokens are left out of the text.
    With logprobs or a constraint tokens come one by one, without draft tokens, as the host sees each.
    prompt_lookup_num_tokens: draft up to so many tokens, from what followed the same words before. 0: none; None:
        as the engine is set. Draft tokens never change a token.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    constraint: Constraint | None = None
    skip_special_tokens: bool = True
    prompt_lookup_num_tokens: int | None = None

    def __post_init__(self) -> None:
        check_whole("max_tokens", self.max_tokens, 1)
        check_whole("min_tokens", self.min_tokens, 0)
        for name in ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_p", "min_p"):
            value = getattr(self, name)
            if not isinstance(value, Real) and not (value is None and name in ("top_p", "min_p")):
                raise ValueError(f"{name}: expected a number, got {value!r}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature: expected a number from 0 on, got {self.temperature!r}")
        for name in ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            if abs(getattr(self, name)) > LARGEST:  # would end the step of all requests, not this one
                raise ValueError(f"{name}: expected a number of 32 bits, got {getattr(self, name)!r}")
        for name in ("temperature", "repetition_penalty"):
            if 0 < getattr(self, name) < SMALLEST:
                raise ValueError(f"{name}: expected a number from {SMALLEST} on, got {getattr(self, name)!r}")
        if self.top_k is not None and type(self.top_k) is not int:
            raise ValueError(f"top_k: expected None or a whole number, got {self.top_k!r}")
        if self.seed is not None and (type(self.seed) is not int or not -(2**63) <= self.seed < 2**64):
            raise ValueError(f"seed: expected a number of 64 bits, got {self.seed!r}")
        for name, kind in (("stop", str), ("stop_token_ids", int)):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or any(type(each) is not kind or each == "" for each in value):
                texts = "texts that are not empty" if kind is str else "token ids"
                raise ValueError(f"{name}: expected a tuple of {texts}, got {value!r:.60}")
            object.__setattr__(self, name, tuple(value))
        if len(self.stop) > MOST_STOPS:
            raise ValueError(f"stop: expected up to {MOST_STOPS} texts, got {len(self.stop)}")
        if (longest := max(map(len, self.stop), default=0)) > LONGEST_STOP:
            raise ValueError(f"stop: expected texts of up to {LONGEST_STOP} characters, got one of {longest}")
        for token, value in self.logit_bias.items():
            if type(token) is not int or not isinstance(value, Real) or not abs(value) <= LARGEST:
                raise ValueError(f"logit_bias: expected numbers by token id, got {token!r}: {value!r:.60}")
        if self.logprobs is not None and (type(self.logprobs) is not int or not 0 <= self.logprobs <= MOST_LOGPROBS):
            raise ValueError(f"logprobs: expected None or 0 to {MOST_LOGPROBS}, got {self.logprobs!r}")
        if self.ignore_eos and self.constraint is not None:  # behind the end of its language nothing may follow
            raise ValueError("ignore_eos: can't be met beside a constraint, which says where an answer ends")
        self.settings(0, None)
        check_lookup(self.prompt_lookup_num_tokens)

    def settings(self, prompt: int, eos: int | Sequence[int] | None) -> Settings:
        """For a prompt of so many tokens and a model whose texts end with one of `eos`."""
        eos = () if eos is None or self.ignore_eos else (eos,) if isinstance(eos, int) else eos
        ends = (*eos, *self.stop_token_ids)
        draw = self.temperature > 0
        return Settings(
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            min_new_length=min(prompt + self.min_tokens, LONGEST) if self.min_tokens else 0,
            min_new_tokens=ends if self.min_tokens else (),
            do_sample=draw,
            temperature=self.temperature if draw else 1.0,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            masked=self.constraint is not None,
            eos=ends,
        )

    def bias(self, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """`logit_bias` on `device`: ids, and what is added. ValueError: an id that a vocabulary of that size lacks."""
        if wrong := [i for i in self.logit_bias if not 0 <= i < vocabulary]:
            raise ValueError(f"logit_bias: expected tokens of a vocabulary of {vocabulary}, got {wrong[0]}")
        drawn, penalty = min(self.temperature or 1.0, 1.0), self.repetition_penalty
        most = 0.99 * LARGEST * drawn * min(penalty, 1 / penalty)  # what these make of a larger one is no number
        values = torch.tensor([*self.logit_bias.values()], dtype=torch.float64).clamp(-most, most).float()
        return (torch.tensor([*self.logit_bias]).to(device), values.to(device)) if self.logit_bias else None


@dataclass(frozen=True)
class EngineConfig:
    """The options of an `Engine`; ValueError names what is out of range.

    requests: how many are answered at a time. queue: how many more may wait. budget: tokens per step; longer prompts
        are read in parts, beside the other requests' tokens. Default: what suits the device, or less if it has no room.
    blocks, block_size: size of the KV cache; default: room for `requests` texts of 1024 tokens, or one of 8192.
        kv_cache: as in `patch`.
    batch_invariant: give each answer the bits, and so the tokens, that it would have alone. Slower. Without it, many
        rows use another matrix product than few, so in float16 and bfloat16 a near-tie may go to another token.
    prompt_lookup_num_tokens: draft tokens per step for requests that don't set it. assistant_model: a smaller patched
        model with the same tokenizer, which drafts for the others. Draft tokens never change a token; their number
        adapts (`Engine.speculation`). assistant_tokenizer: its own; for models of one tokenizer that pad their
        vocabularies differently. use_mtp: the model's own MTP head drafts for the others, as in `generate()`.
    ahead: while all requests generate and none has draft tokens, up to this many steps are with the device, in two
        groups: one is computed while the tokens of the one before are read. Tokens then come in groups of half as many,
        and a request that arrives waits for both. 1: each step's tokens are waited for. A model with recurrent layers
        keeps that many states of each request, and one more.
    snapshots: of a model with recurrent layers: states at the ends of cached prefixes, from which later prompts go on;
        default: 32. snapshot_every: tokens between two of a prompt, at most; a step reads no more of one.
        snapshot_format: "q8_0" keeps them in about a quarter of the memory, with an error that what goes on from one
        has (decision 44), so not with `batch_invariant`; default: as they are.
    cache_bytes: memory of blocks and snapshots together, in place of their numbers, or of one of them; the states of
        running requests come on top.
    """

    requests: int = 32
    budget: int | None = None
    blocks: int | None = None
    block_size: int = 16
    kv_cache: Any = None
    queue: int = 256
    batch_invariant: bool = False
    prompt_lookup_num_tokens: int | None = None
    assistant_model: Any = None
    assistant_tokenizer: Any = None
    use_mtp: bool = False
    ahead: int = 4
    snapshots: int | None = None
    snapshot_every: int = EVERY
    snapshot_format: str | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "queue", "ahead"):
            check_whole(name, getattr(self, name), 1)
        check_whole("block_size", self.block_size, 1)
        check_whole("snapshot_every", self.snapshot_every, self.block_size)
        for name, least in (("budget", 1), ("snapshots", 0), ("cache_bytes", 1)):
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, least)
        if None not in (self.cache_bytes, self.blocks, self.snapshots):
            raise ValueError("cache_bytes, blocks, snapshots: expected two of them at most, got all")
        packed_states.check(self.snapshot_format)
        if self.snapshot_format is not None and self.batch_invariant:
            raise ValueError("snapshot_format: answers that go on from packed snapshots are not batch_invariant")
        check_lookup(self.prompt_lookup_num_tokens)
        if type(self.use_mtp) is not bool:
            raise ValueError(f"use_mtp: expected True or False, got {self.use_mtp!r}")
        if len(given := self.drafts) > 1:
            raise ValueError(f"{', '.join(given)}: expected one of them, got {'both' if len(given) == 2 else 'all'}")

    @property
    def drafts(self) -> list[str]:
        """Options by which requests that don't say so have draft tokens."""
        given = {
            "prompt_lookup_num_tokens": self.prompt_lookup_num_tokens,
            "use_mtp": self.use_mtp,
            "assistant_model": self.assistant_model is not None,
        }
        return [name for name, value in given.items() if value]

    def state_tables(self, snapshots: int) -> StateTables:
        """Slots for the recurrent states of all requests, and snapshots. DoesNotFit: they are too many."""
        ring = 1 + max(self.ahead, LONGEST_STEP if self.drafts else 1)
        check_states(self.requests, ring, snapshots)
        sizes, every = (self.requests, ring, snapshots), self.snapshot_every
        if self.snapshot_format is None:
            return StateTables(*sizes, every=every)
        return PackedStateTables(*sizes, every=every, format=self.snapshot_format)

    def cache_blocks(self, max_tokens: int) -> int:
        """Blocks of the cache, for texts of up to `max_tokens` tokens."""
        if self.blocks is not None:
            return self.blocks
        sizes = (1, 8192), (self.requests, 1024)
        return max(math.ceil(min(tokens, max_tokens) / self.block_size) * n for n, tokens in sizes)


def check_lookup(value: int | None) -> None:
    """ValueError unless it is a number of draft tokens, or None."""
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"prompt_lookup_num_tokens: expected None or a whole number from 0 on, got {value!r}")


def check_whole(name: str, value: int, least: int) -> None:
    """ValueError unless it is a whole number from `least` on."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: expected a whole number from {least} on, got {value!r}")


def prompt_ids(prompt: str | Iterable[int] | Tensor, tokenizer: Any, vocabulary: int) -> list[int]:
    """The tokens of a prompt; ValueError if it is something else, none, or outside the vocabulary."""
    found: Any = prompt
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("prompt: a text needs an engine with a tokenizer; token ids do not")
        try:
            found = tokenizer(prompt)["input_ids"]
        except BaseException as fault:
            if not is_fault(fault):
                raise
            raise ValueError(f"prompt: the tokenizer failed: {type(fault).__name__}: {fault}") from fault
    elif isinstance(prompt, Tensor):
        if prompt.numel() != prompt.shape[-1:].numel():
            raise ValueError(f"prompt: expected one text, got a tensor of shape {list(prompt.shape)}")
        found = prompt.flatten().tolist()
    try:
        found = list(found)
        if isinstance(prompt, bytes | bytearray | memoryview) or any(isinstance(i, bool) for i in found):
            raise TypeError  # numbers to Python, but not tokens
        ids = [operator.index(i) for i in found]
    except TypeError:
        raise ValueError(f"prompt: expected a text or token ids, got {prompt!r:.60}") from None
    if not ids:
        raise ValueError("prompt: expected at least one token, got none")
    if wrong := [i for i in ids if not 0 <= i < vocabulary]:
        raise ValueError(f"prompt: expected tokens of a vocabulary of {vocabulary}, got {wrong[0]}")
    return ids
