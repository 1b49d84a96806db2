"""The same shapes on other engines: MLX, mlx_lm and llama.cpp (llama-cpp-python), where they are installed.

python -m benchmarks.bench_peers --models qwen2.5-0.5b --formats f16,q8_0,q4_0 --peers mlx-ops,llama.cpp

Records go to peers.jsonl in --out. If an engine is missing, its row has the reason. Products are compared with float64,
models with stock Hugging Face on the same weights; rows that fail are invalid and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.generating import Cell
from benchmarks.harness import machine, options, record
from benchmarks.harness.record import Record
from benchmarks.harness.table import generation_table, table
from benchmarks.models import MODELS, REAL
from benchmarks.peers import PEERS, Job
from torch_foundry import quant


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    device = options.device(args)
    tokens = options.numbers(str(args.max_tokens), "--max-tokens")[0]
    names = ["tiny"] if args.quick else options.some_of(args.models, MODELS, "--models")
    job = Job(
        models=tuple(names),
        formats=tuple(options.some_of(args.formats, quant.FORMATS, "--formats")),
        rows=tuple(options.numbers(args.rows, "--rows")),
        cells=tuple(Cell(1, prompt, tokens) for prompt in options.numbers(args.prompts, "--prompts")),
        device=device,
        machine=machine.look(device, quick=args.quick, commit=args.commit),
        cache_bytes=machine.cache_bytes(device, args.quick),
        iterations=args.iterations,
        seed=args.seed,
    )
    records: list[Record] = []
    for name in options.some_of(args.peers, PEERS, "--peers"):
        peer = PEERS[name]
        if reason := peer.why_not():
            records.append(Record("skipped", name, name, "", {}, job.machine, reason=reason))
            record.append(args.out / "peers.jsonl", records[-1:])
            continue
        for row in peer.records(job):
            records.append(row)
            record.append(args.out / "peers.jsonl", [row])
            if not args.silent:
                print(f"{row.way} {row.name} {row.format} {row.shape}", file=sys.stderr)
    whole = [r for r in records if r.prefill is not None]
    print(f"{job.machine}\n{table([r for r in records if r.prefill is None])}")
    if whole:
        print(generation_table(whole))
    return record.conclude(records, args.out / "peers.jsonl")


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_peers", description=__doc__.splitlines()[0])
    options.add(parser, REAL, "f16,q8_0,q4_0")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--rows", default="1,4", help="of products")
    parser.add_argument("--prompts", default="128", help="tokens of the prompts")
    parser.add_argument("--max-tokens", type=int, default=128, help="to decode after a prompt's first; default 128")
    parser.add_argument("--iterations", type=int, default=5, help="of each measurement; default 5")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_peers", main))
