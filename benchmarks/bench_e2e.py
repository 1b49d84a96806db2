"""Prefill and decode of whole models with random weights: stock Hugging Face, compiled, and patched, in the same run.

python -m benchmarks.bench_e2e --device cuda --models llama-3-8b --formats f16,q8_0 --prompts 128 --batches 1,8

Records go to e2e.jsonl in --out. Times are those of generate(), from Python. A row is invalid unless its tokens are
right (`parity.parity`); no speed-up is computed for it, and the exit code is 1. With --profile each row is run once
more under torch's profiler: tables in profiles/, records in profiles.jsonl, for attribution only.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.generating import Cell, Generated, generate, profiled, time_generation
from benchmarks.harness import machine, options, plots, record
from benchmarks.harness.clock import Times
from benchmarks.harness.machine import Machine
from benchmarks.harness.record import Parity, Record
from benchmarks.harness.table import generation_table
from benchmarks.models import DTYPES, MODELS, REAL, build, state_bytes, weight_bytes
from benchmarks.parity import parity
from benchmarks.ways import BASELINE, WAYS, GenerationMode, Network, synced
from torch_foundry import quant


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    device = options.device(args)
    names = ["tiny"] if args.quick else options.some_of(args.models, MODELS, "--models")
    formats = options.some_of(args.formats, quant.FORMATS, "--formats")
    formats.sort(key=lambda name: name not in DTYPES)  # what packed weights are compared with comes first
    tokens = options.numbers(str(args.max_tokens), "--max-tokens")[0]
    prompts, batches = options.numbers(args.prompts, "--prompts"), options.numbers(args.batches, "--batches")
    sizes = [(batch, prompt) for prompt in prompts for batch in batches]
    if args.cells:
        sizes = [options.pair(text, "--cells") for text in args.cells.split(",")]
    cells = [Cell(batch, prompt, tokens) for batch, prompt in sizes]
    ways = {key: WAYS[key] for key in options.some_of(args.ways, WAYS, "--ways")}
    if args.sync_every:
        ways |= synced(options.numbers(args.sync_every, "--sync-every"))
    found = machine.look(device, quick=args.quick, commit=args.commit)
    records: list[Record] = []
    for name in names:
        stock: dict[Cell, Times] = {}  # of float16, for packed weights
        for fmt in formats:
            run = Run(name, fmt, device, found, args.iterations, args.seed, args.out if args.profile else None)
            for row in run.records(cells, ways, stock):
                records.append(row)
                record.append(args.out / "e2e.jsonl", [row])
                if not args.silent:
                    print(f"{row.name} {row.format} {row.way} {row.shape}", file=sys.stderr)
    print(f"{found}\n{generation_table(records)}")
    if not args.no_plots:
        plots.write_all(args.out)
    return record.conclude(records, args.out / "e2e.jsonl")


@dataclasses.dataclass(frozen=True)
class Run:
    """One model in one format."""

    name: str
    format: str
    device: torch.device
    machine: Machine
    iterations: int
    seed: int
    profiles: Path | None  # folder for profiles, if they are wanted

    def records(self, cells: list[Cell], ways: dict[str, GenerationMode], stock: dict[Cell, Times]) -> Iterator[Record]:
        """All ways on all cells. `stock` takes HF eager's times in float16 and lends them to packed formats."""
        packed = self.format not in DTYPES
        bare = Record("e2e", self.name, "", self.format, {}, self.machine, seed=self.seed)
        try:
            longest = max(cell.prompt + cell.tokens for cell in cells) + 1
            network = build(MODELS[self.name], self.format, self.device, max_positions=longest, seed=self.seed)
        except torch.OutOfMemoryError as error:
            yield dataclasses.replace(bare, kind="skipped", way="all", reason=_out_of_memory(error))
            return
        expected: dict[Cell, torch.Tensor] = {}
        baseline: dict[Cell, Times] = stock if packed else {}
        for key in sorted(ways, key=lambda key: key != BASELINE):
            way = ways[key]
            if reason := way.why_not(self.device, packed):
                yield dataclasses.replace(bare, kind="skipped", way=way.title, reason=reason)
                continue
            done = self._time(network, way, cells)
            for cell, generated in done.items():
                row = dataclasses.replace(bare, way=way.title, shape=dataclasses.asdict(cell))
                if isinstance(generated, str):
                    yield dataclasses.replace(row, kind="skipped", reason=generated)
                    continue
                ids = cell.ids(network.config.vocab_size, self.device, self.seed)
                if key == BASELINE:
                    expected[cell], baseline[cell] = generated.ids, generated.decode
                    if self.format == "f16":
                        stock[cell] = generated.decode
                    right = Parity(True, "what the others are compared with", 0.0)
                else:
                    right = parity(network, way, ids, generated.ids, expected.get(cell))
                yield self._row(row, network, cell, generated, right, None if key == BASELINE else baseline.get(cell))
                if self.profiles is not None:
                    self._profile(row, network, key, way, ids, cell)
        del network
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _time(self, network: Network, way: GenerationMode, cells: list[Cell]) -> dict[Cell, Generated | str]:
        done: dict[Cell, Generated | str] = {}
        with way.ready(network):
            for cell in cells:
                ids = cell.ids(network.config.vocab_size, self.device, self.seed)
                if "torch._dynamo" in sys.modules:
                    torch.compiler.reset()  # or a second shape would be compiled for all shapes
                try:
                    done[cell] = time_generation(network, way, ids, cell, self.iterations)
                except torch.OutOfMemoryError as error:
                    done[cell] = _out_of_memory(error)
        return done

    def _row(
        self, row: Record, network: Network, cell: Cell, generated: Generated, right: Parity, stock: Times | None
    ) -> Record:
        average = cell.prompt + (cell.tokens + 1) // 2
        cache = state_bytes(network, self.format, cell.batch, average)
        return dataclasses.replace(
            row,
            times=generated.decode,
            prefill=generated.prefill,
            bytes=weight_bytes(network) + cache,
            launches=round(generated.launches, 1),
            host_us=generated.host_us,
            parity=right,
            stock=None if stock is None else f"HF eager {self.format if self.format in DTYPES else 'f16'}",
            stock_times=stock,
            flags=generated.flags,
            extra={"tokens_per_s": _speeds(generated.decode, cell.batch), "iterations": self.iterations},
        )

    def _profile(
        self, row: Record, network: Network, key: str, way: GenerationMode, ids: torch.Tensor, cell: Cell
    ) -> None:
        assert self.profiles is not None
        with way.ready(network), profiled(self.device) as profile:
            generate(network, ids, 1 + cell.tokens, **way.options)
        folder = self.profiles / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
        by = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        text = profile.key_averages().table(sort_by=by, row_limit=60, max_name_column_width=90)
        file = folder / f"{self.name}-{self.format}-{key}-{cell.batch}x{cell.prompt}.txt"
        file.write_text(f"Taken under the profiler: for attribution only.\n{text}\n")
        marked = dataclasses.replace(row, attribution_only=True, extra={"profile": f"profiles/{file.name}"})
        record.append(self.profiles / "profiles.jsonl", [marked])


def _speeds(decode: Times, batch: int) -> dict[str, Any]:
    """Tokens of all sequences a second."""
    us = decode.as_dict()
    found = {"min": us["max"], "avg": us["avg"], "median": us["median"], "max": us["min"]}
    return {name: round(1e6 * batch / value, 1) if value > 0 else None for name, value in found.items()}


def _out_of_memory(error: Exception) -> str:
    return f"out of memory: {str(error).splitlines()[0]}"


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_e2e", description=__doc__.splitlines()[0])
    options.add(parser, REAL, "f16,bf16,f32,q8_0,q4_0")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--sync-every", metavar="N,...", help="patched too, with so many tokens handed over at once")
    parser.add_argument("--prompts", default="128,512,2048", help="tokens of the prompts")
    parser.add_argument("--batches", default="1,4,8", help="sequences side by side")
    parser.add_argument("--cells", help="these BATCHxPROMPT only, as in 1x128,8x512")
    parser.add_argument("--max-tokens", type=int, default=128, help="to decode after a prompt's first; default 128")
    parser.add_argument("--iterations", type=int, default=5, help="of each measurement; default 5")
    parser.add_argument("--profile", action="store_true", help="one more run of each under torch's profiler")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_e2e", main))
