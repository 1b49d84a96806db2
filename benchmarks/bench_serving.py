"""Many requests at a time: tokens per second, compared with one request.

python -m benchmarks.bench_serving --device cuda --models qwen2.5-0.5b --formats f16,q8_0 --concurrent 1,8,32

Requests come all at once with prompts of equal length, or one after the other (`arriving`) with prompts and answers of
many lengths, to an engine that is already at work. Records go to serving.jsonl in --out. An engine's answers must equal
those of single requests, except where two tokens are nearly equally likely; otherwise the row is invalid and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch

import torch_foundry
from benchmarks.harness import machine, options, record
from benchmarks.harness.clock import Times
from benchmarks.harness.record import Parity, Record
from benchmarks.models import MODELS, REAL, build
from benchmarks.parity import near_tie
from torch_foundry import quant
from torch_foundry.engine import Engine, SamplingParams, Stream
from torch_foundry.testing.timing import synchronize

CRITERION = "the tokens of one request, or a near-tie where they part"
SHORTEST = 16  # tokens of a prompt, and of an answer, of requests that arrive
EVERY = 2  # steps of the engine between two of them
Timed = tuple[list[list[int]], float]  # answers, seconds a token


@dataclass(frozen=True)
class GenerationMode:
    """What a row measures, and what its answers are compared with. extra: further figures of the last run."""

    name: str
    shape: dict[str, Any]
    run: Callable[[], Timed]
    prompts: list[list[int]]
    expected: list[list[int]]
    extra: dict[str, Any] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    device = options.device(args)
    names = ["tiny"] if args.quick else options.some_of(args.models, MODELS, "--models")
    formats = options.some_of(args.formats, quant.FORMATS, "--formats")
    concurrent = options.numbers(args.concurrent, "--concurrent")
    found = machine.look(device, quick=args.quick, commit=args.commit)
    records: list[Record] = []
    for name in names:
        for fmt in formats:
            model = torch_foundry.patch(build(MODELS[name], fmt, device, seed=args.seed))
            runs = Runs(model, args.prompt, args.max_tokens, args.seed)
            stock: dict[str, Times] = {}
            ways = [*runs.engines(sorted({1, *concurrent})), runs.generate()]
            for way in (*ways, *([runs.arriving(args.arriving, args.longest)] if args.arriving else [])):
                taken = [way.run() for _ in range(args.iterations + 1)][1:]  # the first one compiles and captures
                times = Times(tuple(seconds for _, seconds in taken))
                kind = way.name.split(",")[0]
                records.append(
                    Record(
                        kind="e2e",
                        name=name,
                        way=way.name,
                        format=fmt,
                        shape=way.shape,
                        machine=found,
                        times=times,
                        parity=runs.parity(way, taken[-1][0]),
                        stock=kind,
                        stock_times=stock.setdefault(kind, times),
                        extra=way.extra,
                    )
                )
                record.append(args.out / "serving.jsonl", records[-1:])
    print(f"{found}\n{_table(records)}")
    return int(any(not row.valid for row in records))


class Runs:
    """What is run with one model, greedily."""

    def __init__(self, model: Any, prompt: int, tokens: int, seed: int) -> None:
        self.model, self.prompt, self.tokens, self.device = model, prompt, tokens, model.device
        g = torch.Generator().manual_seed(seed)
        self._draw = lambda n=prompt: torch.randint(3, model.config.vocab_size, (n,), generator=g).tolist()
        self._lengths = lambda n, most: torch.randint(SHORTEST, max(SHORTEST, most) + 1, (n,), generator=g).tolist()

    def engines(self, concurrent: Sequence[int]) -> Iterator[GenerationMode]:
        """The engine with so many requests at a time; only tokens after each one's first are timed."""
        prompts = [self._draw() for _ in range(max(concurrent))]
        engine = self._engine(1)
        alone = [self._serve(engine, [prompt])[0][0] for prompt in prompts]
        for n in concurrent:
            shape = {"requests": n, "prompt": self.prompt, "tokens": self.tokens}
            engine, some = self._engine(n), prompts[:n]
            yield GenerationMode(f"engine, {n}", shape, partial(self._serve, engine, some), some, alone[:n])

    def _engine(self, requests: int) -> Engine:
        blocks = requests * (1 + -(-(self.prompt + self.tokens) // 16))
        return Engine(self.model, requests=requests, budget=max(256, requests), blocks=blocks)

    def _serve(self, engine: Engine, prompts: list[list[int]]) -> Timed:
        engine.forget()
        params = SamplingParams(max_tokens=self.tokens, temperature=0)
        streams = [engine.submit(prompt, params) for prompt in prompts]
        while any(not stream.tokens for stream in streams):
            engine.step()
        early, start = sum(len(stream.tokens) for stream in streams), self._now()
        engine.run()
        seconds = self._now() - start
        answers = [stream.tokens for stream in streams]
        return answers, seconds / (sum(map(len, answers)) - early)

    def arriving(self, count: int, longest: int) -> GenerationMode:
        """Requests that arrive while others are answered. Timed from the arrival of the first one to the last token."""
        prompts = [self._draw(n) for n in self._lengths(count, longest)]
        tokens = self._lengths(count, self.tokens)
        engine = Engine(self.model, requests=count)
        each = [SamplingParams(max_tokens=most, temperature=0) for most in tokens]
        alone = [list(engine.submit(*request)) for request in zip(prompts, each, strict=True)]
        extra: dict[str, Any] = {}

        def run() -> Timed:
            engine.forget()
            return self._arrive(engine, list(zip(prompts, each, strict=True)), extra)

        shape = {"requests": count, "prompts": sum(map(len, prompts)), "tokens": sum(tokens)}
        return GenerationMode(f"arriving, {count}", shape, run, prompts, alone, extra)

    def _arrive(self, engine: Engine, requests: list[tuple[list[int], SamplingParams]], extra: dict[str, Any]) -> Timed:
        streams: list[Stream] = []
        seen: list[list[tuple[float, int]]] = []  # when a request had how many tokens
        start, steps = self._now(), 0
        while len(streams) < len(requests) or not engine.idle:
            if steps % EVERY == 0 and len(streams) < len(requests):
                seen.append([(time.perf_counter(), 0)])
                streams.append(engine.submit(*requests[len(streams)]))
            engine.step()  # which waits for the device
            steps, now = steps + 1, time.perf_counter()
            for stream, had in zip(streams, seen, strict=True):
                if (have := len(stream.tokens)) > had[-1][1]:
                    had.append((now, have))
        seconds, answers = self._now() - start, [stream.tokens for stream in streams]
        waits = [[b - a for (a, _), (b, _) in pairwise(had)] for had in seen]
        first, gaps = [wait[0] for wait in waits], [gap for wait in waits for gap in wait[1:]]
        for name, found in ("first_ms", first), ("gap_ms", gaps):
            times = Times(tuple(found))
            extra[name] = {f"p{round(100 * q)}": round(1e3 * times.quantile(q), 3) for q in (0.5, 0.8, 0.99, 1)}
        extra["steps"] = steps
        return answers, seconds / sum(map(len, answers))

    def generate(self) -> GenerationMode:
        """generate() with one sequence, whose steps are graphs."""
        prompt = self._draw()
        shape = {"prompt": len(prompt), "tokens": self.tokens}
        return GenerationMode("generate", shape, lambda: self._generate(prompt), [prompt], self._generate(prompt)[0])

    def _generate(self, prompt: list[int]) -> Timed:
        text = torch.tensor([prompt], device=self.device)
        marks = []
        for tokens in (1, 1 + self.tokens):
            start = self._now()
            out = self.model.generate(
                text, attention_mask=torch.ones_like(text), do_sample=False, max_new_tokens=tokens
            )
            marks.append(self._now() - start)
        return [out[0, len(prompt) :].tolist()], (marks[1] - marks[0]) / self.tokens

    def _now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()

    def parity(self, way: GenerationMode, answers: list[list[int]]) -> Parity:
        """Whether the answers are those expected."""
        pairs = list(zip(way.prompts, answers, way.expected, strict=True))
        parted = [pair for pair in pairs if pair[1] != pair[2]]
        return Parity(all(near_tie(self.model, *pair) for pair in parted), CRITERION, detail=f"{len(parted)} part")


def _table(records: Sequence[Record]) -> str:
    lines = [f"{'model':14} {'format':6} {'way':24} {'tok/s':>9} {'x':>6}  parity"]
    for row in records:
        assert row.times is not None
        speed = "-" if row.speedup is None else f"{row.speedup:.2f}"
        state = f"{'ok' if row.valid else 'WRONG'}, {row.parity.detail}"
        lines.append(f"{row.name:14} {row.format:6} {row.way:24} {1 / row.times.median:9.1f} {speed:>6}  {state}")
        lines += [f"{name:>24} {found}" for name, found in row.extra.items()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_serving", description=__doc__.splitlines()[0])
    options.add(parser, REAL, "f16,q8_0")
    parser.add_argument("--concurrent", default="1,8,32", help="requests at a time; default %(default)s")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt; default %(default)s")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer; default %(default)s")
    parser.add_argument("--arriving", type=int, default=32, help="requests that arrive; default %(default)s; 0: none")
    parser.add_argument("--longest", type=int, default=600, help="tokens of their prompts; default %(default)s")
    parser.add_argument("--iterations", type=int, default=3, help="of each measurement; default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_serving", main))
