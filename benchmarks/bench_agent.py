"""An agent's turns in an engine: time to the first token from a kept prefix, and with all read again.

python -m benchmarks.bench_agent --device cuda --models qwen3.5-4b --formats q4_0 --every 256,2048

Conversations share a system prompt; the first one goes on for --turns turns, each with a tool's result before the last
words of all that was said. Then it is asked short questions, each with the prefix that was kept and with the cache
forgotten. Records go to agent.jsonl in --out. The answers of both must be equal, except where two tokens are nearly
equally likely, and a turn must read at most one interval again; otherwise the row is invalid and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import torch_foundry
from benchmarks.harness import machine, options, record
from benchmarks.harness.clock import Times
from benchmarks.harness.record import Parity, Record
from benchmarks.models import MODELS, SEVERAL_KINDS, build
from benchmarks.parity import near_tie
from torch_foundry import quant
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.engine.memory import memory_of
from torch_foundry.testing.timing import synchronize

BLOCK = 16
LAST_WORDS = 12  # tokens that stay behind a tool's result
QUESTION = 32  # tokens of a short question
ANEW = "all read again"
CRITERION = "the tokens with all read again, or a near-tie where they part; at most an interval is read again"
QUICK = {"system": 40, "results": "10x30", "turns": 3, "conversations": 2, "max_tokens": 4, "every": "16"}


@dataclass(frozen=True)
class Turn:
    """What was answered, after how many seconds its first token came, and what of the text was in the cache."""

    answer: list[int]
    seconds: float
    reused: int


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    if args.quick:
        vars(args).update(QUICK)
    device = options.device(args)
    names = ["tiny-hybrid"] if args.quick else options.some_of(args.models, MODELS, "--models")
    formats = options.some_of(args.formats, quant.FORMATS, "--formats")
    found = machine.look(device, quick=args.quick, commit=args.commit)
    records: list[Record] = []
    for name in names:
        for fmt in formats:
            longest = _longest(args)
            model = torch_foundry.patch(build(MODELS[name], fmt, device, max_positions=longest, seed=args.seed))
            for every in options.numbers(args.every, "--every"):
                shape, times, parity, extra = Trace(model, every, args).run()
                for way, seconds in zip((f"kept, every {every}", ANEW), times, strict=True):
                    told = Record("e2e", name, way, fmt, shape, found, times=seconds, parity=parity, seed=args.seed)
                    records.append(replace(told, stock=ANEW, stock_times=times[1], extra=extra))
                record.append(args.out / "agent.jsonl", records[-2:])
    print(f"{found}\n{_table(records)}")
    return int(any(not row.valid for row in records))


class Trace:
    """The turns of an engine with a snapshot for each `every` tokens."""

    def __init__(self, model: Any, every: int, args: argparse.Namespace) -> None:
        self.model, self.every, self.args = model, every, args
        longest, many = _longest(args), args.conversations
        blocks = -(-longest // BLOCK) + many * (2 + -(-(LAST_WORDS + args.max_tokens) // BLOCK))
        kept: dict[str, Any] = {"snapshots": longest // every + 2 * many + 8, "snapshot_every": every}
        self.engine = Engine(model, requests=many, blocks=blocks, block_size=BLOCK, budget=max(every, 256), **kept)
        self._g = torch.Generator().manual_seed(args.seed)

    def run(self) -> tuple[dict[str, Any], tuple[Times, Times], Parity, dict[str, Any]]:
        """Shape, times to the first token (kept, all read again), parity, and what else was counted."""
        args, system = self.args, self._draw(self.args.system)
        self._ask([self._draw(2 * self.every + 50)])  # kernels are compiled, steps captured
        texts = [[*system, *self._draw(LAST_WORDS)] for _ in range(args.conversations)]
        said = texts[0] + self._ask(texts)[0].answer
        again, firsts = [], []
        for text in self._turns(said):
            (turn,) = self._ask([text])
            again.append(_common(said, text) - turn.reused)
            firsts.append(turn.seconds)
            self._say(f"{len(text)} tokens, {again[-1]} of them again, {1e3 * turn.seconds:.0f} ms")
            said[:] = text + turn.answer
        pairs = []
        for _ in range(args.iterations + 1):
            text = said + self._draw(QUESTION)
            (kept,) = self._ask([text])
            self.engine.forget()
            (anew,) = self._ask([text])
            again.append(len(said) - kept.reused)
            pairs.append((text, kept, anew))
            self._say(f"a question: {1e3 * kept.seconds:.0f} ms, all read again {1e3 * anew.seconds:.0f} ms")
        pairs = pairs[1:]
        parted = [(text, kept.answer, anew.answer) for text, kept, anew in pairs if kept.answer != anew.answer]
        right = max(again) <= self.every and not any(anew.reused for _, _, anew in pairs)
        right = right and all(near_tie(self.model, *each) for each in parted)
        times = tuple(Times(tuple(turn.seconds for turn in each)) for each in list(zip(*pairs, strict=True))[1:])
        pages, states = memory_of(self.engine.cache)
        extra = {"read_again": max(again), "turns_ms": [round(1e3 * seconds, 1) for seconds in firsts]}
        extra |= {"pages_mb": pages >> 20, "states_mb": states >> 20}
        shape = {"system": args.system, "turns": args.turns, "context": len(said), "every": self.every}
        return shape, (times[0], times[1]), Parity(right, CRITERION, detail=f"{len(parted)} part"), extra

    def _turns(self, said: list[int]) -> Iterator[list[int]]:
        """What is asked in each turn, from what was said until then."""
        least, most = options.pair(self.args.results, "--results")
        for _ in range(self.args.turns):
            result = self._draw(int(torch.randint(least, most + 1, (), generator=self._g)))
            yield [*said[:-LAST_WORDS], *result, *said[-LAST_WORDS:]]

    def _ask(self, texts: list[list[int]]) -> list[Turn]:
        """The answers to texts that are sent together, when all are there."""
        params = SamplingParams(max_tokens=self.args.max_tokens, temperature=0)
        synchronize(self.model.device)
        start = time.perf_counter()
        streams = [self.engine.submit(text, params) for text in texts]
        seconds: dict[int, float] = {}
        while not self.engine.idle:
            self.engine.step()
            now = time.perf_counter() - start
            for i, stream in enumerate(streams):
                if stream.tokens:
                    seconds.setdefault(i, now)
        return [Turn(stream.tokens, seconds[i], stream.sequence.reused) for i, stream in enumerate(streams)]

    def _say(self, line: str) -> None:
        if not self.args.silent:
            print(f"every {self.every}: {line}", file=sys.stderr)

    def _draw(self, count: int) -> list[int]:
        drawn: list[int] = torch.randint(3, self.model.config.vocab_size, (count,), generator=self._g).tolist()
        return drawn


def _common(a: list[int], b: list[int]) -> int:
    """How many tokens two texts begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _longest(args: argparse.Namespace) -> int:
    """Tokens of the longest text."""
    turns = args.turns * (options.pair(args.results, "--results")[1] + args.max_tokens)
    return args.system + LAST_WORDS + args.max_tokens + turns + QUESTION + args.max_tokens + BLOCK


def _table(records: Sequence[Record]) -> str:
    lines = [f"{'model':12} {'format':6} {'context':>8} {'way':18} {'first token, ms':>16} {'share':>7}  parity"]
    for row in records:
        assert row.times is not None and row.stock_times is not None
        share = f"{row.times.median / row.stock_times.median:.1%}" if row.valid else "-"
        state = f"{'ok' if row.valid else 'WRONG'}, {row.parity.detail}, read again {row.extra['read_again']}"
        what = f"{row.name:12} {row.format:6} {row.shape['context']:8} {row.way:18}"
        lines.append(f"{what} {1e3 * row.times.median:16.1f} {share:>7}  {state}")
    for row in records[::2]:
        lines.append(f"{row.way}, of each turn, ms: {row.extra['turns_ms']}")
        lines.append(f"pages {row.extra['pages_mb']} MiB, states {row.extra['states_mb']} MiB")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_agent", description=__doc__.splitlines()[0])
    options.add(parser, [name for name in SEVERAL_KINDS if name != "tiny-hybrid"], "f16,q4_0")
    parser.add_argument("--every", default="256,2048", help="tokens between snapshots; default %(default)s")
    parser.add_argument("--system", type=int, default=12288, help="tokens of the shared prompt; default %(default)s")
    parser.add_argument("--results", default="2048x8192", help="tokens of a tool's result; default %(default)s")
    parser.add_argument("--turns", type=int, default=20, help="of the first conversation; default %(default)s")
    parser.add_argument("--conversations", type=int, default=8, help="that share a prompt; default %(default)s")
    parser.add_argument("--max-tokens", type=int, default=32, help="of an answer; default %(default)s")
    parser.add_argument("--iterations", type=int, default=3, help="of a short question; default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_agent", main))
