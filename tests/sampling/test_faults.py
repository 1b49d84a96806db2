"""The tests are tested: each seeded mistake in the sampler's shaders makes the check fail that is to notice it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kit import Fault, within

from tests.sampling import draws, test_probabilities, test_state
from torch_foundry.core import runtime

pytestmark = pytest.mark.tier("nightly")

REPLAYS = {case.name: case for case in draws.CASES}


@functools.cache
def replay(name: str, rows: int = 4000) -> Callable[[], None]:
    case = REPLAYS[name]
    return lambda: draws.check(dataclasses.replace(case, rows=min(rows, case.rows)))


@functools.cache
def probabilities(name: str) -> Callable[[], None]:
    return lambda: test_probabilities.check_processors(name)


@functools.cache
def ties(name: str) -> Callable[[], None]:
    return lambda: test_probabilities.check_ties(name)


def fault(name: str, file: str, old: str, new: str, check: Callable[[], None]) -> Fault:
    return Fault(name, "sample.metal", old, new, check, file)


MAIN, KEEP, SLOW, DRAW = "sample.metal", "sample_keep.h", "sample_slow.h", "sample_draw.h"
GROUP, SCORES, PHILOX = "sample_group.h", "sample_scores.h", "philox.h"
ABOVE = (
    "above += is_above ? masses[j] : 0; rank += is_above; } const bool in_top_p = !top_p || above < limit || "
    "rank < params.top_p_keep; const bool in_min_p = !min_p || metal::exp(scores[i]"
)
FAULTS = [
    # scores
    fault("temperature-1.001", MAIN, "s /= params->temperature;", "s /= 1.001f * params->temperature;",
          replay("plain")),
    fault("temperature-multiplies", MAIN, "s /= params", "s *= params", replay("temperature-low", 500)),
    fault("logits-as-bfloat", MAIN, "float s = float(x[i]);", "float s = float(bfloat(float(x[i])));", replay("plain")),
    fault("penalty-of-negative-scores", SCORES, "score < 0.0f ?", "score > 0.0f ?", probabilities("repetition")),
    fault("penalty-of-the-prompt-only", SCORES, "if (count) score", "if (count == 1) score", replay("repetition", 500)),
    fault("frequency-once", SCORES, "float(count >> 1)", "float(count > 1)", replay("presence-frequency", 1000)),
    fault("presence-of-the-prompt", SCORES, "count > 1 ?", "count > 0 ?", replay("presence-frequency", 500)),
    fault("min-length-one-more", SCORES, "length < params.min_length ", "length <= params.min_length ",
          probabilities("min-length-reached")),
    fault("forced-eos-one-later", SCORES, "length == params.forced_eos_length",
          "length - 1 == params.forced_eos_length",
          probabilities("forced-eos")),
    fault("forced-after-suppressed", SCORES,
          "return rules & active & (rule_suppressed | rule_begin_suppressed) ? -INFINITY : score;",
          "return !(active & rule_forced_eos) && (rules & active & rule_suppressed) ? -INFINITY : score;",
          probabilities("suppress-one-of-the-forced")),
    fault("begin-suppress-always", SCORES, "length == params.begin_index ?", "length >= params.begin_index ?",
          probabilities("begin-suppress-elsewhere")),
    fault("bans-never-end", MAIN, "== now ? -INFINITY", "!= 0 ? -INFINITY", replay("bans", 500)),
    fault("ngram-misses-the-last-window", MAIN, *within("ngram && i + ngram <= known", "<=", "<"),
          probabilities("ngram-1")),
    fault("bad-words-by-their-first-token", MAIN, "while (same < prefix && x", "while (same < prefix && same < 1 && x",
          probabilities("bad-words")),
    # masses
    fault("probabilities-as-half", GROUP, "rint(weight *", "rint(float(half(weight)) *", replay("plain")),
    fault("a-cut-tail", GROUP, *within("return ulong(metal::rint(weight *", "return", "return weight < 1e-3f ? 0 :"),
          replay("plain")),
    fault("coarse-masses", GROUP, "weight * 1099511627776.0f", "weight * 1048576.0f", replay("plain-heavy-tail")),
    fault("largest-0.5%-heavier", GROUP, "mass_of(metal::exp(score - largest))",
          "mass_of(metal::exp(score - largest) * (score == largest ? 1.005f : 1.0f))", replay("plain")),
    fault("share-of-the-upper-half", GROUP, "+ (((mass & 0xffffffffu) * fraction) >> 32)", "", replay("plain")),
    # truncation
    fault("top-k-one-more", KEEP, "larger < params.top_k", "larger <= params.top_k", probabilities("top-k-50")),
    fault("top-k-without-ties", KEEP, "larger += scores[j] > scores[i];",
          "larger += scores[j] > scores[i] || (scores[j] == scores[i] && j < i);", ties("top-k-50")),
    fault("top-p-one-less", KEEP, *within(ABOVE, "above <", "above + masses[i] <"), probabilities("top-p-0.9")),
    fault("top-p-at-an-exact-tie", KEEP, "above < limit || rank", "above <= limit || rank",
          lambda: test_probabilities.check_exact_ties(4, 0.5)),
    fault("top-p-before-top-k", KEEP, "stages & stage_top_k ? total(shared) : row.mass", "row.mass",
          replay("top-k-top-p", 500)),
    fault("top-p-cuts-higher-indices", KEEP, "scores[j] == scores[i] && j > i", "scores[j] == scores[i] && j < i",
          ties("top-p-0.5")),
    fault("top-p-keeps-one-only", KEEP, "rank < params.top_p_keep", "rank < 1", probabilities("top-p-0.3-keep-100")),
    fault("min-p-above", KEEP, ">= params.min_p ||", "> params.min_p ||", ties("min-p-1.0")),
    fault("min-p-keeps-one-only", KEEP, "rank < params.min_p_keep", "rank < 1", probabilities("min-p-0.5-keep-50")),
    fault("bound-of-top-p-too-high", KEEP, "reaching * sample_tile * mass_of", "reaching * mass_of",
          lambda: test_probabilities.check_many_tiles()),
    fault("bound-of-top-k-too-high", KEEP, "reaching >= needed", "reaching + 5 >= needed",
          lambda: test_probabilities.check_many_tiles()),
    fault("candidates-swapped", KEEP, *within("scores[before] = score; indices[before] = i;", "i;", "i ^ 1;"),
          probabilities("top-k-50")),
    fault("raised-bound-too-high", SLOW,
          *within("<true>(key, row, shared, simdgroup, lane); cut = total(shared)", "total", "2 * total"),
          replay("candidates-fit-later")),
    fault("slow-top-p-one-less", SLOW, "(room + one - 1) / one", "room / one", replay("candidates-do-not-fit", 400)),
    fault("slow-top-p-at-an-exact-tie", SLOW, "(room + one - 1) / one", "(room + one) / one",
          lambda: test_probabilities.check_exact_ties(4096, 0.5)),
    fault("slow-top-k-without-ties", SLOW, "key = *result; measure_above<false>(key - 1,",
          "key = *result; measure_above<false>(key,",
          lambda: test_probabilities.check_shapes("top-k-50", 0.0)),
    fault("slow-ties-from-the-start", DRAW, "+ limit.ties >= limit.all_ties", "< limit.ties",
          replay("candidates-do-not-fit-ties", 200)),
    # the draw
    fault("philox-round-constant", PHILOX, "metal::mulhi(0xCD9E8D57u", "metal::mulhi(0xCD9E8D59u",
          replay("plain", 100)),
    fault("philox-key-schedule", PHILOX, "0x9E3779B9u", "0x9E3779B1u", replay("plain", 100)),
    fault("philox-nine-rounds", PHILOX, "round < 10", "round < 9", replay("plain", 100)),
    fault("uniform-of-16-bits", MAIN, "params->seed_high)).x;", "params->seed_high)).x & 0xffff0000u;",
          replay("plain")),
    fault("half-of-the-stream", MAIN, "uint(stream >> 32), 0u", "0u, 0u", replay("plain", 100)),
    fault("position-instead-of-step", MAIN, "uint(length[r] - start[r])", "uint(length[r])", replay("plain", 100)),
    fault("draw-from-the-next-token", DRAW, "metal::simd_min(sum > rest ?", "1 + metal::simd_min(sum > rest ?",
          replay("plain", 100)),
    fault("mass-of-cut-candidates", DRAW,
          *within("ulong mass = 0; for (uint i = own.first; i < own.last; ++i) mass += kept[i] ? masses[i] : 0;",
                  "kept[i] ? masses[i] : 0", "masses[i]"),
          replay("top-p", 100)),
    # greedy, ends and errors
    fault("highest-of-equals", MAIN, "if (k > key) {", "if (k >= key) {", test_state.check_lowest_of_equals),
    fault("highest-of-equal-parts", MAIN, "p.value < best.value", "p.value > best.value",
          test_state.check_lowest_of_equals),
    fault("negative-zero-is-less", "sample.h", "x == 0.0f ? 0.0f : x", "x", test_state.check_lowest_of_equals),
    fault("nan-is-largest", "sample.h", "if (key == 0xffffffffu) return error_nan;", "", test_state.check_errors),
    fault("nothing-is-a-token", "sample.h", "if (key <= key_of_nothing) return error_nothing;", "",
          test_state.check_errors),
    fault("finished-rows-go-on", MAIN, "if (!error && !done) {", "if (!error) {", test_state.check_ends),
    fault("eos-forgotten", MAIN, "done = rules[token] & rule_eos;", "done = false;", test_state.check_ends),
    fault("full-rows-go-on", MAIN, "place + 1 == int(args.capacity)", "false", test_state.check_ends),
]  # fmt: skip


@functools.cache
def passes(check: Callable[[], None]) -> bool:
    """Whether the shaders as they are pass, asked once for all faults that share the check."""
    check()
    return True


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_noticed(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "sort", functools.partial(torch.sort, stable=True))
    assert passes(fault.check)
    with runtime.use_shaders(fault.seed(tmp_path)), pytest.raises(AssertionError):
        fault.check()


def test_there_are_enough() -> None:
    claimed = re.search(
        r"(\d+) seeded faults \(`tests/sampling", (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    )
    assert claimed and len(FAULTS) >= int(claimed[1]) and len({f.name for f in FAULTS}) == len(FAULTS)
