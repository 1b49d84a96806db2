"""What a step keeps in device memory: tokens, ends, errors, random streams; and that nothing else decides about it."""

from __future__ import annotations

import math

import kit
import numpy as np
import pytest
import torch
from kit import BF16, F16, F32, dtypes, generator, normal
from torch import Tensor

from tests.sampling.draws import MIXED, drawing, probabilities, sampler_of
from torch_foundry import capture, ops
from torch_foundry.sampling import Sampler, Settings
from torch_foundry.testing import sampler_reference

V, INF, NAN = 700, math.inf, math.nan
SETTINGS = {
    "greedy": Settings(),
    "greedy-processed": Settings(repetition_penalty=1.5, no_repeat_ngram=2, suppress=(3,)),
    "plain": drawing(),
    "mixed": drawing(**MIXED),
}
every = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def one_hot(*tokens: int, vocabulary: int = V) -> Tensor:
    """Logits from which nothing but these tokens comes, one a row."""
    logits = torch.zeros(len(tokens), vocabulary)
    logits[torch.arange(len(tokens)), list(tokens)] = 200.0
    return logits


def start(settings: Settings, batch: int = 3, capacity: int = 12, vocabulary: int = V, seed: int = 1) -> Sampler:
    prompt = torch.arange(2 * batch).view(batch, 2)
    return Sampler(settings, prompt, vocab_size=vocabulary, capacity=capacity, seed=seed)


def check_ends() -> None:
    """Two EOS tokens, padding after them, and the end of the memory; for a draw and without."""
    for settings in (
        Settings(eos=(7, 699), pad=5),
        drawing(eos=(7, 699), pad=5),
        drawing(top_k=3, eos=(7, 699), pad=5),
    ):
        sampler = start(settings, capacity=6)
        for tokens in ((10, 7, 20), (699, 30, 21), (40, 41, 22)):
            assert sampler.step(one_hot(*tokens)) is sampler.token
        assert sampler.ids.tolist() == [[0, 1, 10, 699, 5, 5], [2, 3, 7, 5, 5, 5], [4, 5, 20, 21, 22, 5]]
        assert sampler.token[:, 0].tolist() == [5, 5, 22]
        assert sampler.finished.tolist() == [1, 1, 0] and sampler.length.tolist() == [5, 5, 5]
        sampler.step(one_hot(50, 51, 23))
        assert sampler.finished.tolist() == [1, 1, 1] and sampler.length.tolist() == [6, 6, 6]
        before = sampler.ids.clone()
        sampler.step(one_hot(60, 61, 62))  # there is no room: nothing is written
        assert torch.equal(sampler.ids, before) and sampler.length.tolist() == [6, 6, 6]
        sampler.check()


def test_ends() -> None:
    check_ends()


@dtypes()
def test_greedy_is_argmax(dtype: torch.dtype) -> None:
    for n in (1, 31, 32, 33, 256, 257, 2048, 2049, 40_000):
        logits = normal(generator(n), 3, n, dtype=dtype, scale=2.0)  # with ties in the 16 bits
        for given in (logits, kit.spread(logits, 3), kit.shifted(logits)):
            assert torch.equal(start(Settings(), vocabulary=n).step(given)[:, 0], logits.argmax(-1))
    check_lowest_of_equals()


def check_lowest_of_equals() -> None:
    """In one lane, in two, in two simdgroups, and in two parts that one thread merges."""
    for places in ([4, 36, 100], [3, 30], [31, 32], [255, 256], [1, 699], [200, 201, 600], [300, 65_800]):
        vocabulary = 70_000 if places[-1] >= V else V
        logits = torch.full((3, vocabulary), -1.0)
        logits[:, places] = torch.tensor([2.0, -0.5, 0.0])[:, None]
        logits[2, places[0]] = -0.0
        for settings in (Settings(), Settings(suppress=(690,))):
            assert start(settings, vocabulary=vocabulary).step(logits)[:, 0].tolist() == [places[0]] * 3


# --------------------------------------------------------------------------------------------------------------- errors


def check_errors() -> None:
    """NaN anywhere and rows of -inf are errors of their rows; the others go on. +inf can be chosen but not drawn."""
    for settings in SETTINGS.values():
        for value, bit, rows in ((NAN, 1, 1), (-NAN, 1, 1), (-INF, 2, None), (INF, 4, 1)):
            sampler, logits = start(settings.replace(pad=9)), one_hot(50, 51, 52)
            if rows is None:
                logits[1] = value
            else:
                logits[1, 600] = value
            sampler.step(logits)
            if value == INF and not settings.do_sample:
                assert sampler.token[:, 0].tolist() == [50, 600, 52]
                continue
            assert sampler.errors.tolist() == [0, bit, 0], f"{value}"
            assert sampler.token[:, 0].tolist() == [50, 9, 52] and sampler.finished.tolist() == [0, 1, 0]
            with pytest.raises(RuntimeError, match=r"row 1: (NaN|no token|an infinite).*; no token was chosen"):
                sampler.check()
            sampler.step(one_hot(60, 61, 62))
            assert sampler.ids[1].tolist() == [2, 3, 9, 9] + [9] * 8 and sampler.errors.tolist() == [0, bit, 0]


def test_errors() -> None:
    check_errors()


def test_all_tokens_banned() -> None:
    sampler = start(drawing(suppress=tuple(range(V))))
    sampler.step(one_hot(1, 2, 3))
    assert sampler.errors.tolist() == [2, 2, 2]


def test_finished_rows_may_have_any_logits() -> None:
    for settings in (Settings(eos=(50,), pad=9), drawing(eos=(50,), pad=9, top_k=5)):
        sampler = start(settings)
        sampler.step(one_hot(50, 51, 52))
        logits = one_hot(50, 51, 52)
        logits[0] = NAN
        sampler.step(logits)
        sampler.check()
        assert sampler.token[:, 0].tolist() == [9, 51, 52]


# --------------------------------------------------------------------------------------------------------- independence


def steps(settings: Settings, logits: Tensor, prompt: Tensor, streams: Tensor) -> Tensor:
    sampler = Sampler(settings, prompt, vocab_size=V, capacity=40, seed=77, streams=streams)
    for one in logits:
        sampler.step(one)
    return sampler.ids[:, prompt.shape[1] :][:, : len(logits)]


@every
def test_a_rows_place_and_company_do_not_matter(settings: Settings) -> None:
    g = generator("company")
    logits = normal(g, 5, 8, V, dtype=F32, scale=3.0)  # [steps, rows, V]
    prompt, streams = torch.randint(0, V, (8, 3), generator=g), torch.arange(100, 108)
    alone = [steps(settings, logits[:, r : r + 1], prompt[r : r + 1], streams[r : r + 1])[0] for r in range(8)]
    together = steps(settings, logits, prompt, streams)
    order = torch.randperm(8, generator=g)
    assert torch.equal(together, torch.stack(alone))
    assert torch.equal(steps(settings, logits[:, order], prompt[order], streams[order]), together[order])
    if not (settings.no_repeat_ngram or settings.counts_tokens):  # left padding does not move the random numbers
        padded = torch.cat([torch.zeros(8, 4, dtype=torch.int64), prompt], 1)
        assert torch.equal(steps(settings, logits, padded, streams), together)


def test_seeds_and_streams_matter() -> None:
    logits = torch.zeros(1, V).expand(200, V)
    tokens = [start(drawing(), batch=200, seed=seed).step(logits)[:, 0] for seed in (1, 1, 2, 1 + 2**32)]
    assert torch.equal(tokens[0], tokens[1])
    assert not torch.equal(tokens[0], tokens[2]) and not torch.equal(tokens[0], tokens[3])
    prompt = torch.zeros(2, 1, dtype=torch.int64)
    low_and_high = [torch.tensor([5, 5]), torch.tensor([5, 5 + 2**32])]
    equal = [steps(drawing(), torch.zeros(20, 2, V), prompt, streams) for streams in low_and_high]
    assert torch.equal(equal[0][0], equal[0][1]) and not torch.equal(equal[1][0], equal[1][1])


def test_torchs_seed_decides_by_default() -> None:
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    torch.manual_seed(3)
    seeds = [Sampler(drawing(), prompt, vocab_size=V, capacity=4).seed for _ in range(2)]
    torch.manual_seed(3)
    assert seeds[0] != seeds[1] and Sampler(drawing(), prompt, vocab_size=V, capacity=4).seed == seeds[0]


def device_of(request: pytest.FixtureRequest) -> str:
    """Where the plugins that run suites on other devices want tensors that are not to be copied back and forth."""
    options = request.config.option
    return getattr(options, "on_device", None) or ("mps" if getattr(options, "on_mps", False) else "cpu")


@every
def test_steps_of_a_graph_are_steps(settings: Settings, request: pytest.FixtureRequest) -> None:
    """One captured step, replayed: all that changes from token to token is read from memory."""
    device = device_of(request)
    logits = normal(generator("graph"), 6, 4, V, dtype=F16, scale=3.0).to(device)
    prompt = torch.randint(0, V, (4, 5), generator=generator("graph prompt")).to(device)
    eager = Sampler(settings, prompt, vocab_size=V, capacity=30, seed=5)
    captured = Sampler(settings, prompt, vocab_size=V, capacity=30, seed=5)
    for one in logits:
        eager.step(one)
    slot = logits[0].clone()
    with capture() as graph:
        captured.step(slot)
    assert len(graph) == (3 if settings.bans_sequences else 2)
    for one in logits[1:]:
        slot.copy_(one)
        graph.replay()
    for name in ("ids", "token", "length", "finished", "errors"):
        assert torch.equal(getattr(eager, name).cpu(), getattr(captured, name).cpu()), name
    if settings.truncates:  # other numbers under the same graph
        captured.use(settings.replace(top_k=1), seed=6)
        graph.replay()
        assert torch.equal(captured.token[:, 0].cpu(), logits[-1].cpu().argmax(-1))
    with pytest.raises(ValueError, match="use: expected settings with the same processors"):
        captured.use(settings.replace(suppress=(1, 2)))


@every
def test_a_sampler_begins_again(settings: Settings, request: pytest.FixtureRequest) -> None:
    """With other prompts and other numbers under the same graph, as a new one would."""
    device = device_of(request)
    g = generator("again")
    logits = normal(g, 6, 4, V, dtype=F32, scale=3.0).to(device)
    first, second = (torch.randint(0, V, (4, n), generator=g).to(device) for n in (5, 9))
    settings = settings.replace(repetition_ignore=2)
    sampler = Sampler(settings, first, vocab_size=V, capacity=20, seed=5)
    slot = logits[0].clone()
    with capture() as graph:
        sampler.step(slot)
    graph.replay()
    other = settings.replace(temperature=0.8, pad=3, repetition_ignore=(1, 0, 7, 2))
    sampler.begin(second, settings=other, seed=8, streams=[7, 6, 5, 4])
    new = Sampler(other, second, vocab_size=V, capacity=20, seed=8, streams=torch.tensor([7, 6, 5, 4]))
    for one in logits:
        slot.copy_(one)
        graph.replay()
        new.step(one)
    for name in ("ids", "token", "length", "finished", "errors", "params"):
        assert torch.equal(getattr(sampler, name).cpu(), getattr(new, name).cpu()), name
    with pytest.raises(ValueError, match="input_ids: expected 4 rows, got 3"):
        sampler.begin(second[:3])
    with pytest.raises(ValueError, match="repetition_ignore: expected 4 numbers, got 3"):
        sampler.begin(second, settings=settings.replace(repetition_ignore=(1, 2, 3)))


@every
def test_lane_orders(settings: Settings) -> None:
    logits = normal(generator("lanes"), 4, 2500, dtype=BF16, scale=2.0)

    def tokens() -> Tensor:
        sampler = sampler_of(settings, torch.zeros(4, 2, dtype=torch.int64), 2500, 3, "lanes")
        for _ in range(3):
            sampler.step(logits)
        return sampler.ids

    kit.in_every_lane_order(tokens)
    if settings.truncates:
        settings = drawing(top_p=0.97, top_k=2000)  # the slow path
        kit.in_every_lane_order(tokens)


def test_streams_of_rows_are_uniform() -> None:
    """The random numbers themselves: 200 rows of 100 steps, by their deciles and by neighbours."""
    flat = torch.stack([torch.from_numpy(sampler_reference.uniforms(9, np.arange(200), n)) for n in range(100)])
    counts = torch.histc(flat, 10, 0.0, 1.0)
    assert ((counts - 2000).square() / 2000).sum() < 40
    for shifted in (flat[1:] * flat[:-1], flat[:, 1:] * flat[:, :-1]):
        assert abs(float(shifted.mean()) - 0.25) < 0.01


# ------------------------------------------------------------------------------------------------------------ arguments


def arguments(settings: Settings) -> tuple[Tensor, ...]:
    s = start(settings)
    probs = torch.zeros(3, V) if settings.do_sample else None
    return (
        *(one_hot(1, 2, 3), s.params, s.rules, s.sequences, s.counts, s.banned, s.start, s.streams, s.length),
        *(s.finished, s.errors, s.ids, s.token, probs),
        *(settings.has_rules, settings.do_sample, settings.truncates),
    )


@pytest.mark.cpu_only
@every
def test_opcheck(settings: Settings) -> None:
    kit.opcheck("sample", *arguments(settings))


@pytest.mark.cpu_only
def test_opcheck_of_the_others() -> None:
    s = start(Settings(repetition_penalty=2.0))
    kit.opcheck("sample_count_prompt", s.ids, torch.zeros(3, dtype=torch.int32), 2, s.counts)


def test_bad_arguments() -> None:
    sampler = start(drawing())
    with kit.refuses(r"logits: expected dtype Float or Half or BFloat16, got Long"):
        sampler.step(torch.zeros(3, V, dtype=torch.int64))
    with kit.refuses(r"rules: expected \[batch=3, vocabulary=800\], got \[3, 700\]"):
        sampler.step(torch.zeros(3, 800))
    with kit.refuses(r"params: expected \[batch=2, 18\], got \[3, 18\]"):
        sampler.step(torch.zeros(2, V))
    with kit.refuses(r"logits: expected a contiguous last dimension"):
        sampler.step(torch.zeros(V, 3).t())
    with kit.refuses(r"probs: expected None without a draw"):
        probabilities(start(Settings()), torch.zeros(3, V))
    with kit.refuses(r"prompt: expected at most 12 tokens, got 13"):
        counts = torch.zeros(3, V, dtype=torch.int32)
        ops.sample_count_prompt(sampler.ids, torch.zeros(3, dtype=torch.int32), 13, counts)
    with pytest.raises(ValueError, match="capacity: expected at least the prompt's 2 tokens, got 1"):
        start(drawing(), capacity=1)
    with pytest.raises(ValueError, match=r"bad_words: expected tokens of a vocabulary of 700, got \[700\]"):
        start(drawing(bad_words=((1, 700),)))


def test_no_rows() -> None:
    sampler = Sampler(drawing(), torch.zeros(0, 2, dtype=torch.int64), vocab_size=V, capacity=4)
    assert sampler.step(torch.zeros(0, V)).shape == (0, 1)
    sampler.check()
