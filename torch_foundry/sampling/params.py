"""What a sampler does with logits, as one value; and its translation from Hugging Face's processors."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.limits import SAMPLE_BITS as BITS
from torch_foundry.core.limits import SAMPLE_PARAMS

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """Processors in the order in which they are applied (Hugging Face's), then greedy or a draw.

    Scores are float32. "Length" counts all tokens of a row so far, with prompt and padding, as `input_ids.shape[1]`.
    ValueError for numbers outside their range. The defaults are greedy decoding that never stops.
    """

    repetition_penalty: float = 1.0  # > 0; once per token id that is in the row, prompt included
    repetition_ignore: int | Ids | None = (
        None  # first tokens of the rows that it doesn't count, for all or for each row
    )
    presence_penalty: float = 0.0  # subtracted once from ids that were generated (not Hugging Face's: vLLM's meaning)
    frequency_penalty: float = 0.0  # subtracted as often as the id was generated
    no_repeat_ngram: int = 0  # 0: off
    bad_words: tuple[Ids, ...] = ()  # sequences whose last token is banned where the others stand at the end
    min_length: int = 0  # below this length ...
    min_length_tokens: Ids = ()  # ... these are banned
    min_new_length: int = 0  # the same for min_new_tokens: prompt length + min_new_tokens
    min_new_tokens: Ids = ()
    forced_bos: int | None = None  # the only token at length 1
    forced_eos: Ids = ()  # the only tokens, with equal scores, at length forced_eos_length
    forced_eos_length: int = -1  # max_length - 1
    suppress: Ids = ()  # never
    begin_suppress: Ids = ()  # not at length begin_index
    begin_index: int = -1
    masked: bool = False  # only what `Sampler.allow` says, before each token
    do_sample: bool = False  # False: the largest score, lowest id among equals; what follows is not applied
    temperature: float = 1.0  # > 0
    top_k: int | None = None  # > 0; ties of the k-th are kept
    top_p: float | None = None  # 0 ... 1
    top_p_keep: int = 1  # min_tokens_to_keep
    min_p: float | None = None  # 0 ... 1
    min_p_keep: int = 1
    eos: Ids = ()  # tokens after which a row is finished
    pad: int = 0  # what finished rows get

    def __post_init__(self) -> None:
        for name in ("repetition_penalty", "temperature"):
            _require(0 < getattr(self, name) < math.inf, name, "a positive number", getattr(self, name))
        for name in ("presence_penalty", "frequency_penalty"):
            _require(math.isfinite(getattr(self, name)), name, "a finite number", getattr(self, name))
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            _require(value is None or 0 <= value <= 1, name, "None or a number from 0 to 1", value)
        _require(self.top_k is None or self.top_k > 0, "top_k", "None or a positive number", self.top_k)
        for name in ("top_p_keep", "min_p_keep"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(self.no_repeat_ngram >= 0, "no_repeat_ngram", "0 or a positive number", self.no_repeat_ngram)
        _require(not (self.masked and self.suppress), "suppress", "none with a mask", self.suppress)
        _require(all(self.bad_words), "bad_words", "sequences of at least one token", self.bad_words)

    @property
    def counts_tokens(self) -> bool:
        """Whether a table of the tokens seen is needed."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def bans_sequences(self) -> bool:
        """Whether the ids so far decide what is banned."""
        return self.no_repeat_ngram > 0 or any(len(word) > 1 for word in self.bad_words)

    @property
    def has_rules(self) -> bool:
        """Whether single tokens are banned or forced."""
        return any(
            (
                self.forced_bos is not None,
                self.forced_eos,
                self.masked,
                self.suppress,
                self.begin_suppress,
                self.min_length_tokens,
                self.min_new_tokens,
                any(len(word) == 1 for word in self.bad_words),
            )
        )

    @property
    def processes(self) -> bool:
        """Whether scores differ from logits before the temperature."""
        return self.counts_tokens or self.bans_sequences or self.has_rules

    @functools.cached_property
    def flags(self) -> tuple[bool, bool, bool, bool]:
        """What decides about launches: rules, counts of tokens, a draw, a draw among some of the tokens only."""
        return self.has_rules, self.counts_tokens, self.do_sample, self.do_sample and self.truncates

    @functools.cached_property
    def structure(self) -> Settings:
        """Without the numbers that `Sampler.use` can change: settings with equal structures run the same kernels."""
        return dataclasses.replace(
            self,
            repetition_penalty=2.0 if self.counts_tokens else 1.0,
            repetition_ignore=None,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            no_repeat_ngram=int(self.no_repeat_ngram > 0 and self.bans_sequences),
            min_length=0,
            min_new_length=0,
            forced_eos_length=-1,
            begin_index=-1,
            temperature=1.0,
            top_k=1 if self.truncates else None,
            top_p=None,
            top_p_keep=1,
            min_p=None,
            min_p_keep=1,
            pad=0,
        )

    @property
    def truncates(self) -> bool:
        """Whether a draw is among some of the tokens only."""
        return self.top_k is not None or self.top_p is not None or self.min_p is not None

    @classmethod
    def from_generation_config(cls, config: Any, processors: Iterable[Any]) -> tuple[Settings | None, str]:
        """The settings that do what generate() would do, or None and the reason why there are none.

        config: a GenerationConfig as `_sample` gets it; only do_sample and the special tokens are read. processors: its
        LogitsProcessorList, which decides what is applied. It must be in Hugging Face's usual order.
        Returns (settings, "") or (None, "TopHLogitsWarper is not known").
        """
        fields: dict[str, Any] = {"do_sample": bool(config.do_sample)}
        step = -1
        for processor in processors:
            name = type(processor).__name__
            known = type(processor).__module__ == "transformers.generation.logits_process"
            if not known or name not in _TRANSLATIONS:
                return None, f"{name} is not known"
            place = list(_TRANSLATIONS).index(name)
            if place <= step:
                return None, f"{name} comes after {list(_TRANSLATIONS)[step]}"
            if place >= _FIRST_WARPER and not config.do_sample:
                return None, f"{name} without do_sample"
            step = place
            if getattr(processor, "filter_value", -math.inf) != -math.inf:
                return None, f"{name} has the filter value {processor.filter_value}"
            if getattr(processor, "logits_indices", None) is not None:
                return None, f"{name} works on a continuous batch"
            fields.update(_TRANSLATIONS[name](processor))
        eos = _ids(_first(config, "_eos_token_tensor", "eos_token_id"))
        pad = _ids(_first(config, "_pad_token_tensor", "pad_token_id"))
        settings = cls(**fields, eos=eos, pad=(pad or eos or (0,))[0])
        try:
            params_of(settings, 0)
        except (OverflowError, struct.error):
            return None, "a setting is no number of 32 bits"
        return settings, ""

    def replace(self, **changes: Any) -> Settings:
        """A copy with other values."""
        return dataclasses.replace(self, **changes)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {value}")


def _first(config: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _ids(value: Any) -> Ids:
    if value is None:
        return ()
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else (int(value),)


def _ignored(value: Any) -> int | Ids | None:
    return value if value is None or isinstance(value, int) else _ids(value)


# By class, in the order of `_get_logits_processor`: the fields that a processor sets.
_TRANSLATIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "RepetitionPenaltyLogitsProcessor": lambda p: {
        "repetition_penalty": p.penalty,
        "repetition_ignore": _ignored(p.prompt_ignore_length),
    },
    "NoRepeatNGramLogitsProcessor": lambda p: {"no_repeat_ngram": p.ngram_size},
    "NoBadWordsLogitsProcessor": lambda p: {"bad_words": tuple(_ids(word) for word in p.sequence_bias)},
    "MinLengthLogitsProcessor": lambda p: {"min_length": p.min_length, "min_length_tokens": _ids(p.eos_token_id)},
    "MinNewTokensLengthLogitsProcessor": lambda p: {
        "min_new_length": p.prompt_length_to_skip + p.min_new_tokens,
        "min_new_tokens": _ids(p.eos_token_id),
    },
    "ForcedBOSTokenLogitsProcessor": lambda p: {"forced_bos": p.bos_token_id},
    "ForcedEOSTokenLogitsProcessor": lambda p: {
        "forced_eos": _ids(p.eos_token_id),
        "forced_eos_length": p.max_length - 1,
    },
    "SuppressTokensLogitsProcessor": lambda p: {"suppress": _ids(p.suppress_tokens)},
    "SuppressTokensAtBeginLogitsProcessor": lambda p: {
        "begin_suppress": _ids(p.begin_suppress_tokens),
        "begin_index": p.begin_index,
    },
    "TemperatureLogitsWarper": lambda p: {"temperature": p.temperature},
    "TopKLogitsWarper": lambda p: {"top_k": p.top_k},
    "TopPLogitsWarper": lambda p: {"top_p": p.top_p, "top_p_keep": p.min_tokens_to_keep},
    "MinPLogitsWarper": lambda p: {"min_p": p.min_p, "min_p_keep": p.min_tokens_to_keep},
}
_FIRST_WARPER = list(_TRANSLATIONS).index("TemperatureLogitsWarper")


def params_of(settings: Settings, seed: int) -> list[int]:
    """SampleParams of shaders/sampling/sample.h, word by word."""
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


def sequences_of(settings: Settings, vocab_size: int) -> Tensor:
    """int32: n, then n + 1 offsets into what follows: the tokens of bad words with more than one."""
    words = [word for word in settings.bad_words if len(word) > 1]
    for word in words:
        _require_known("bad_words", word, vocab_size)
    ends = itertools.accumulate((len(word) for word in words), initial=0)
    return torch.tensor([len(words), *ends, *itertools.chain(*words)], dtype=torch.int32, device="cpu")


def _require_known(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    if unknown := [token for token in tokens if not 0 <= token < vocab_size]:
        raise ValueError(f"{name}: expected tokens of a vocabulary of {vocab_size}, got {unknown}")
