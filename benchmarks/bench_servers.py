"""Servers side by side over HTTP: tokens a second, and the wait for the first token, at several requests at a time.

python -m benchmarks.bench_servers --device cuda --models qwen2.5-0.5b,llama-3-8b --formats f16 --concurrent 1,8,32,128

Writes a folder with random weights and a tokenizer of one word a token, starts `torch-foundry serve` and `transformers
serve --continuous-batching` on it, one after the other, and sends each so many streamed greedy completions at once,
--iterations times after one that isn't counted. Packed formats are not for transformers' server, over which x is where
it came before. llama.cpp's, `--servers llama-server`, has to be on the PATH and gets prompts as tokens. Records go to
servers.jsonl in --out, a server's before the next one starts. An answer must be as long as was asked for, and right by
`parity.judge` in the network with the same weights; otherwise the row is invalid and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import torch
from torch import Tensor

from benchmarks.harness import machine, options, record
from benchmarks.harness.clock import Times
from benchmarks.harness.record import Parity, Record
from benchmarks.models import DTYPES, MODELS, REAL, build, save
from benchmarks.parity import judge
from benchmarks.peers import gguf_file
from torch_foundry import quant

QUICK = {"concurrent": "1,2", "prompt": 8, "max_tokens": 6, "iterations": 1}
START = 600.0  # seconds that a server may take to load a model
FIRST = re.compile(rb'"text": ?"[^"]')  # where a first token is
Command = Callable[[Path, str, str, int], list[str]]  # folder, format, device, port


def _own(folder: Path, fmt: str, device: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "torch_foundry", "serve", str(folder), "--name", str(folder), "--device", device]
    command += ["--port", str(port), "--requests", "128", "--concurrent", "512"]
    return command + (["--quantize", fmt] if fmt not in DTYPES else [])


def _llama(folder: Path, fmt: str, device: str, port: int) -> list[str]:
    command = [LLAMA, "--model", str(folder / GGUF), "--port", str(port), "--offline", "--no-ui", "--log-disable"]
    return [*command, "--parallel", "128", "--ctx-size", str(128 * 1024), "--cache-ram", "0", "--flash-attn", "on"]


def _stock(folder: Path, fmt: str, device: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--continuous-batching"]
    return [*command, "--device", device, "--port", str(port), "--log-level", "error"]


STOCK = "transformers"  # what the others are faster than
LLAMA, GGUF = "llama-server", "model.gguf"
SERVERS: dict[str, Command] = {STOCK: _stock, "torch-foundry": _own, LLAMA: _llama}


class ServerError(RuntimeError):
    """A server answered with an error."""


@dataclass(frozen=True)
class Answer:
    """What a server said to a prompt. first, last: seconds from the start of all until its first and last piece."""

    text: str
    first: float
    last: float


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    if args.quick:
        vars(args).update(QUICK)
    device = options.device(args)
    names = ["tiny"] if args.quick else options.some_of(args.models, MODELS, "--models")
    formats = options.some_of(args.formats, quant.FORMATS, "--formats")
    servers = options.some_of(args.servers, SERVERS, "--servers")
    found = machine.look(device, quick=args.quick, commit=args.commit)
    records: list[Record] = []
    for name in names:
        for fmt in formats:
            dtype = fmt if fmt in DTYPES else "f16"
            stock: dict[int, Times | None] = {}  # of transformers' server, by requests, if it came before
            with tempfile.TemporaryDirectory() as folder:
                vocabulary = write(Path(folder), name, dtype, device, args.seed)
                if LLAMA in servers:
                    gguf_file.write(Path(folder) / GGUF, build(MODELS[name], fmt, device, seed=args.seed), words=True)
                for server in servers if fmt in DTYPES else [name for name in servers if name != STOCK]:
                    load = Load(server, Path(folder), fmt, device, vocabulary, args)
                    way = server if server == LLAMA else f"{server} serve"
                    bare = Record("e2e", name, way, fmt, {}, found, seed=args.seed)
                    rows = list(load.rows(bare))
                    judged = Judge(name, fmt, device, args.seed)  # now, so that a run that is cut off has whole rows
                    for row, answers in rows:
                        requests = row.shape["requests"]
                        if row.kind != "skipped":
                            row = replace(row, parity=judged(answers, args.max_tokens), stock=f"{STOCK} serve")
                            row = replace(row, stock_times=stock.get(requests))
                        if server == STOCK:
                            stock[requests] = row.times
                        records.append(row)
                        record.append(args.out / "servers.jsonl", records[-1:])
                    del judged
    print(f"{found}\n{_table(records)}")
    return int(any(not row.valid for row in records if row.kind != "skipped"))


def write(folder: Path, name: str, dtype: str, device: torch.device, seed: int) -> int:
    """A folder as transformers reads it, with weights of `build` and a token for each word `w0`, `w1` ...; how many."""
    network = build(MODELS[name], dtype, device, seed=seed)
    save(network, folder)
    return int(network.config.vocab_size)


class Load:
    """One server, and what is asked of it."""

    def __init__(
        self, server: str, folder: Path, fmt: str, device: torch.device, vocabulary: int, args: argparse.Namespace
    ) -> None:
        self.server, self.folder, self.args = server, folder, args
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = SERVERS[server](folder, fmt, device.type, self.port)
        self.concurrent = options.numbers(args.concurrent, "--concurrent")
        self._g = torch.Generator().manual_seed(args.seed)
        self._draw = lambda n: torch.randint(1, vocabulary, (n, args.prompt), generator=self._g)

    def rows(self, bare: Record) -> Iterator[tuple[Record, list[tuple[Tensor, str]]]]:
        """A row for each number of requests, and what was answered in its last round; or why there is none."""
        with self._running():
            for count in self.concurrent:
                shape = {"requests": count, "prompt": self.args.prompt, "tokens": self.args.max_tokens}
                prompts = [self._draw(count) for _ in range(self.args.iterations + 1)]  # new: servers keep prefixes
                try:
                    rounds = [asyncio.run(self._round(each)) for each in prompts][1:]
                except ServerError as error:
                    self._say(str(error))
                    yield replace(bare, kind="skipped", shape=shape, reason=str(error)), []
                    continue
                tokens = count * self.args.max_tokens
                times = Times(tuple(max(each.last for each in answers) / tokens for answers in rounds))
                firsts = [each.first for answers in rounds for each in answers]
                extra = {"first_ms": round(1e3 * statistics.median(firsts), 1), "last_ms": round(1e3 * max(firsts), 1)}
                self._say(f"{count}: {1 / times.median:.0f} tokens/s, first token {extra['first_ms']} ms")
                texts = [each.text for each in rounds[-1]]
                row = replace(bare, shape=shape, times=times, extra=extra)
                yield row, list(zip(prompts[-1], texts, strict=True))

    @contextmanager
    def _running(self) -> Iterator[None]:
        with tempfile.TemporaryFile() as log:
            try:
                server = subprocess.Popen(self.command, stdout=log, stderr=log)
            except FileNotFoundError:
                raise options.UserError(f"{self.server}: there is no {self.command[0]} on the PATH") from None
            try:
                until = time.monotonic() + START
                while not self._answers():
                    if server.poll() is not None or time.monotonic() > until:
                        log.seek(0)
                        raise options.UserError(f"{self.server} does not answer:\n{log.read().decode()[-2000:]}")
                    time.sleep(0.2)
                yield
            finally:
                server.terminate()
                server.wait(60)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health").is_success
        except httpx.TransportError:
            return False

    async def _round(self, prompts: Tensor) -> list[Answer]:
        start = time.perf_counter()
        return list(await asyncio.gather(*(self._ask(row, start) for row in prompts)))

    async def _ask(self, prompt: Tensor, start: float) -> Answer:
        """By a bare socket, whose bytes are read when all is over: a client isn't what is measured."""
        told = {"model": str(self.folder), "prompt": _text(prompt), "max_tokens": self.args.max_tokens}
        if self.server == LLAMA:  # whose vocabulary can't be one of whole words, and has an end
            told |= {"prompt": prompt.tolist(), "ignore_eos": True}
        body = json.dumps(told | {"temperature": 0, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head.encode() + body)
        raw, ends, times = b"", [], []
        while piece := await reader.read(1 << 16):
            raw += piece
            ends.append(len(raw))
            times.append(time.perf_counter() - start)
        writer.close()
        text, first = "", FIRST.search(raw)
        for line in _content(raw).decode().splitlines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "choices" not in event:
                    raise ServerError(f"{self.server}: {line.removeprefix('data: ')}")
                text += "".join(choice.get("text") or "" for choice in event["choices"])
        if first is None:
            raise ServerError(f"{self.server}: {raw[:200].decode(errors='replace')}")
        return Answer(text, times[bisect.bisect(ends, first.start())], times[-1])

    def _say(self, line: str) -> None:
        if not self.args.silent:
            print(f"{self.server}, {line}", file=sys.stderr)


class Judge:
    """Whether answers are right, by the network that the folder was written from. An answer is looked at once."""

    def __init__(self, name: str, fmt: str, device: torch.device, seed: int) -> None:
        self.network = build(MODELS[name], fmt, device, seed=seed)
        self.known: dict[tuple[str, str], Parity] = {}

    def __call__(self, answers: list[tuple[Tensor, str]], tokens: int) -> Parity:
        """The worst of them."""
        asked = [(_text(prompt), prompt, text.split()) for prompt, text in answers]
        if short := [words for _, _, words in asked if len(words) != tokens]:
            return Parity(False, f"answers of {tokens} tokens", detail=f"{len(short)} of other lengths: {short[0][:8]}")
        new = [(key, p, words) for key, p, words in asked if (key, " ".join(words)) not in self.known]
        if new:
            ids = torch.stack([prompt for _, prompt, _ in new]).to(self.network.device)
            got = torch.tensor([[int(word[1:]) for word in words] for _, _, words in new], device=ids.device)
            found = judge(self.network, ids, got)
            self.known |= {(key, " ".join(words)): found for key, _, words in new}
        found_all = [self.known[key, " ".join(words)] for key, _, words in asked]
        return min(found_all, key=lambda parity: (bool(parity.ok), -(parity.error or 0.0)))


def _text(prompt: Tensor) -> str:
    return " ".join(f"w{token}" for token in prompt.tolist())


def _content(raw: bytes) -> bytes:
    """The body of a response, out of its chunks."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def _table(records: Sequence[Record]) -> str:
    lines = [
        f"{'model':13} {'format':6} {'server':21} {'requests':>8} {'tokens/s':>9} {'first, ms':>10} {'x':>6}  parity"
    ]
    for row in records:
        if row.times is None:
            lines.append(f"{row.name:13} {row.format:6} {row.way:21} {row.shape['requests']:8} skipped: {row.reason}")
            continue
        share = "-" if row.speedup is None else f"{row.speedup:.2f}"
        what = f"{row.name:13} {row.format:6} {row.way:21} {row.shape['requests']:8} {1 / row.times.median:9.0f}"
        told = f"regret {row.parity.error:.1e}" if row.valid else f"WRONG: {row.parity.criterion} {row.parity.detail}"
        lines.append(f"{what} {row.extra['first_ms']:10.1f} {share:>6}  {told}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_servers", description=__doc__.splitlines()[0])
    options.add(parser, REAL, "f16")
    parser.add_argument("--servers", default=f"{STOCK},torch-foundry", help=f"some of {', '.join(SERVERS)}")
    parser.add_argument("--concurrent", default="1,8,32,128", help="requests at a time; default %(default)s")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt; default %(default)s")
    parser.add_argument("--max-tokens", type=int, default=128, help="of each answer; default %(default)s")
    parser.add_argument("--iterations", type=int, default=3, help="of each number of requests; default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_servers", main))
