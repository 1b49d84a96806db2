"""A server under load: every answer is compared with the one that its prompt gets alone.

python -m benchmarks.bench_http --connections 256 --seconds 600

Starts `torch-foundry serve` on this machine and keeps so many connections busy, each with one request behind the other:
streamed and not, greedy and drawn, with answers of many lengths. Some clients leave in the middle of an answer, some
read slowly. Prints what came, times of the first token and of answers, and the server's memory in each tenth of the
time. The exit code is 1 if an answer was another one than alone, or failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

import torch_foundry
from torch_foundry.demo_model import demo_model_path
from torch_foundry.engine import Engine, SamplingParams

WORDS = ("fox", "kite", "river", "lamp", "crow", "boat", "king", "snow", "bread", "moon", "road", "bell")
SLOW = 0.05  # seconds that a slow client waits behind each piece


@dataclass(frozen=True)
class Case:
    """A request of the load, and its answer alone."""

    prompt: str
    options: dict[str, Any]
    expected: str


@dataclass
class Seen:
    """What came of a load. first, whole: seconds until the first piece, and until the end."""

    counts: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # KiB of the server


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="bench_http", description=__doc__)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--max-tokens", type=int, default=48, help="of the longest answer")
    parser.add_argument("--leave", type=float, default=0.1, help="share of clients that leave (default: 0.1)")
    parser.add_argument("--slow", type=float, default=0.1, help="share of clients that read slowly (default: 0.1)")
    args = parser.parse_args(argv)
    cases = _cases(args.max_tokens)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = str(2 * args.connections)  # a client that leaves keeps its place until that is noticed
    command = [sys.executable, "-m", "torch_foundry", "serve", "--device", "cpu", "--port", str(port)]
    command += ["--queue", places, "--concurrent", places]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(server, port)
        began = time.perf_counter()
        seen = asyncio.run(_load(cases, port, args, server.pid))
        seconds = time.perf_counter() - began
        with httpx.Client() as client:
            metrics = client.get(f"http://127.0.0.1:{port}/metrics").text
    finally:
        server.terminate()
        server.wait(60)
    _print(
        seen, seconds, [line for line in metrics.splitlines() if line.startswith(("torch_foundry_new_tokens_total",))]
    )
    return int(bool(seen.counts["other answer"] + seen.counts["error"]) or not seen.counts["right"])


def _cases(longest: int) -> list[Case]:
    """With what an engine that has nothing else to do answers."""
    model, tokenizer = torch_foundry.load(demo_model_path(), device="cpu")
    engine, cases = Engine(model, tokenizer, requests=1), []
    for i, word in enumerate(WORDS):
        tokens = 1 + (longest - 1) * i // (len(WORDS) - 1)
        drawn: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": i} if i % 2 else {"temperature": 0.0}
        prompt = f"Once there was a {word} " * (1 + i % 4 * 5)
        stream = engine.submit(prompt, SamplingParams(max_tokens=tokens, **drawn))
        stream.result()
        cases.append(Case(prompt, {"max_tokens": tokens, **drawn}, stream.text))
    return cases


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health")
            return
        except httpx.TransportError:
            time.sleep(0.2)
    raise RuntimeError(f"the server has ended with {server.returncode}")


async def _load(cases: list[Case], port: int, args: argparse.Namespace, pid: int) -> Seen:
    seen, until = Seen(), time.perf_counter() + args.seconds

    async def watch() -> None:
        for _ in range(10):
            await asyncio.sleep(args.seconds / 10)
            found = await asyncio.to_thread(subprocess.check_output, ["ps", "-o", "rss=", "-p", str(pid)])
            seen.memory.append(int(found))

    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        await asyncio.gather(watch(), *(_client(i, client, cases, until, args, seen) for i in range(args.connections)))
    return seen


async def _client(
    number: int, client: Any, cases: list[Case], until: float, args: argparse.Namespace, seen: Seen
) -> None:
    chance, asked = random.Random(number), 0
    while not asked or time.perf_counter() < until:
        asked += 1
        case, kind = chance.choice(cases), chance.random()
        leaves, slow = kind < args.leave, kind > 1 - args.slow
        began = time.perf_counter()
        told = {"model": "demo", "prompt": case.prompt, **case.options}
        try:
            if chance.random() < 0.5 and not (leaves or slow):
                answer = await client.completions.create(**told)
                text = answer.choices[0].text
            else:
                text, stream = "", await client.completions.create(**told, stream=True)
                async with stream:
                    async for chunk in stream:
                        if not text:
                            seen.first.append(time.perf_counter() - began)
                        text += chunk.choices[0].text
                        if leaves:
                            break
                        await asyncio.sleep(SLOW if slow else 0)
        except openai.OpenAIError as error:
            seen.counts["error"] += 1
            seen.counts[f"error: {type(error).__name__}"] += 1
            continue
        right = case.expected.startswith(text) if leaves else text == case.expected
        seen.counts["other answer" if not right else "left" if leaves else "right"] += 1
        seen.whole.append(time.perf_counter() - began)


def _print(seen: Seen, seconds: float, lines: list[str]) -> None:
    print(f"{seconds:.0f} s: {', '.join(f'{n} {what}' for what, n in sorted(seen.counts.items()))}")
    for name, times in (("first token", seen.first), ("answer", seen.whole)):
        if len(times) > 1:
            p99 = statistics.quantiles(times, n=100)[98]
            print(f"{name}: median {statistics.median(times):.2f} s, 99 % {p99:.2f} s, longest {max(times):.2f} s")
    print(f"server's memory, MiB: {', '.join(str(kib >> 10) for kib in seen.memory)}")
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
