"""A model split over several GPUs by transformers' tensor parallelism: fused and captured, as stock, and on one GPU.

torchrun --nproc-per-node 2 -m benchmarks.bench_tp --models llama-3-8b,qwen3-32b

Weights are random and the same in all ways; nothing is written but records (tp.jsonl in --out), and nothing is read.
What one GPU has room for is measured on the first one alone, too. An engine answers several prompts at a time, which
the first process submits. Greedy tokens must be those of stock code (in one process if it has room, else split),
except where two tokens are nearly equally likely; otherwise the row is invalid and the exit code is 1.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

import torch_foundry
from benchmarks.harness import machine, options, record
from benchmarks.harness.clock import Times
from benchmarks.harness.record import Parity, Record
from benchmarks.models import DTYPES, MODELS, Model, config
from benchmarks.parity import TIES
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.testing.timing import synchronize

KNOWN = {
    "llama-3-8b": MODELS["llama-3-8b"],
    "qwen3-32b": Model("Qwen3Config", 5120, 25600, 64, 64, 8, 128, 151936, False, {"rope_theta": 1e6}),
    "llama-3-70b": Model("LlamaConfig", 8192, 28672, 80, 64, 8, 128, 128256, False, {"rope_theta": 5e5}),
    "tiny": Model("LlamaConfig", 128, 192, 2, 4, 2, 32, 320, False),
}
CRITERION = "each token is stock code's, or a near-tie, behind those before it"
QUICK = {"prompt": 40, "tokens": 8, "iterations": 2, "requests": 2}
SPARE = 4 << 30  # bytes beside the weights that a GPU should have
PATIENCE = datetime.timedelta(hours=1)  # of processes that wait while the first one measures alone


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    if args.quick:
        vars(args).update(QUICK)
    if "RANK" not in os.environ:
        raise options.UserError(
            "expected to be started by torchrun: torchrun --nproc-per-node 2 -m benchmarks.bench_tp"
        )
    device = options.device(args)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    warnings.simplefilter("ignore")
    names = ["tiny"] if args.quick else options.some_of(args.models, KNOWN, "--models")
    first = distributed.get_rank() == 0
    found = machine.look(device, quick=args.quick, commit=args.commit) if first else None
    records: list[Record] = []
    with torch.no_grad():
        for name in names:
            for fmt in options.some_of(args.formats, DTYPES, "--formats"):
                rows = Comparison(name, fmt, device, args).rows()
                if found is None:
                    continue
                records += [Record("e2e", name, format=fmt, machine=found, seed=args.seed, **row) for row in rows]
                record.append(args.out / "tp.jsonl", records[-len(rows) :])
    distributed.destroy_process_group()
    if found is None:
        return 0
    print(f"{found}\n{_table(records)}")
    return int(any(not row.valid for row in records))


class Comparison:
    """One model in all ways. Its methods are called by all processes at the same time."""

    def __init__(self, name: str, fmt: str, device: torch.device, args: argparse.Namespace) -> None:
        self.name, self.fmt, self.device, self.args = name, fmt, device, args
        self.count, self.first = distributed.get_world_size(), distributed.get_rank() == 0
        generator = torch.Generator().manual_seed(args.seed)
        shape = (args.requests, args.prompt)
        self.prompts = torch.randint(3, KNOWN[name].vocab_size, shape, generator=generator).to(device)
        self.found: list[dict[str, Any]] = []
        self.tokens: list[Tensor] = []  # of ways that are not judged yet, behind the first prompt
        self.stock: Times | None = None

    def rows(self) -> list[dict[str, Any]]:
        """What records say of each way, in the first process."""
        if self.first and self._fits():
            self._alone(build(KNOWN[self.name], self.fmt, self.device, self.args))
            self._free()
        distributed.barrier()
        self._together(build(KNOWN[self.name], self.fmt, self.device, self.args, self.count))
        self._free()
        return [{**row, "stock_times": self.stock} for row in self.found]

    def _alone(self, network: Any) -> None:
        self._time("one GPU: stock", lambda: self._generate(network))
        torch_foundry.patch(network)
        self._time("one GPU: patched", lambda: self._generate(network))
        self._judge(network)

    def _together(self, network: Any) -> None:
        self._time(f"{self.count} GPUs: stock", lambda: self._generate(network), together=True)
        torch_foundry.patch(network)
        self._time(f"{self.count} GPUs: patched", lambda: self._generate(network), together=True)
        self._say(f"not captured: {dict(torch_foundry.report(network).eager) or 'nothing'}")
        self._engine(network)
        self._judge(network, together=True)

    def _fits(self) -> bool:
        """Whether one device has room for all."""
        if self.device.type != "cuda":
            return True
        with torch.device("meta"):
            size = sum(parameter.nbytes for parameter in _network(KNOWN[self.name], self.fmt, self.args).parameters())
        return size + SPARE < torch.cuda.mem_get_info(self.device)[0]

    def _generate(self, network: Any) -> Any:
        ids = self.prompts[:1]
        told = {"max_new_tokens": self.args.tokens, "do_sample": False}
        return network.generate(ids, attention_mask=torch.ones_like(ids), **told)

    def _time(self, way: str, run: Callable[[], Any], together: bool = False, requests: int = 1) -> None:
        """Note the seconds of one token of each request, a prompt's share included, and the first request's tokens."""
        got, rounds = None, []
        for number in range(self.args.iterations + 1):
            if together:
                distributed.barrier()
            synchronize(self.device)
            start = time.perf_counter()
            got = run()
            synchronize(self.device)
            if number:  # kernels are compiled and steps captured by the first
                rounds.append((time.perf_counter() - start) / self.args.tokens)
        tokens = got[:, self.args.prompt :] if isinstance(got, Tensor) else torch.tensor(got, device=self.device)
        self.tokens.append(tokens[0])
        times = Times(tuple(rounds))
        self.stock = self.stock or times
        self._say(f"{way}: {requests / times.median:.1f} tokens/s")
        shape = {"gpus": 1 if way.startswith("one") else self.count, "prompt": self.args.prompt}
        row = {"way": way, "shape": {**shape, "tokens": self.args.tokens, "requests": requests}, "times": times}
        self.found.append({**row, "stock": "the first row"})

    def _judge(self, network: Any, together: bool = False) -> None:
        """Note whether the tokens are right that ways chose since this was called last."""
        torch_foundry.unpatch(network)
        ways = 3 if together else 2  # an engine's answer is the first process's
        got = torch.stack(self.tokens) if self.first else torch.zeros(ways, self.args.tokens, dtype=torch.long)
        got, self.tokens = got.to(self.device), []
        if together:
            distributed.broadcast(got, 0)
        for chosen, row in zip(got, self.found[-ways:] if self.first else [{}] * ways, strict=True):
            whole = torch.cat((self.prompts[0], chosen[:-1]))[None]
            logits = network(whole, use_cache=False, logits_to_keep=len(chosen)).logits[0]
            row["parity"] = self._parity(chosen, logits.float())
            self._say(f"{row.get('way')}: {'ok' if row['parity'].ok else 'WRONG'}, {row['parity'].detail}")

    def _parity(self, chosen: Tensor, logits: Tensor) -> Parity:
        """Of tokens [n], and stock's logits [n, V] for each behind those before it."""
        gaps = logits.amax(-1) - logits.gather(-1, chosen[:, None])[:, 0]
        eps = 0.0 if self.fmt == "f32" else torch.finfo(DTYPES[self.fmt]).eps
        near = gaps <= TIES * eps * logits.abs().amax(-1)  # no NaN is
        wrong = int((~near).sum())
        detail = f"{wrong} wrong, {int((near & (gaps > 0)).sum())} nearly as likely, by up to {float(gaps.max()):.2e}"
        return Parity(not wrong, CRITERION, detail=detail if gaps.any() else "equal")

    def _engine(self, network: Any) -> None:
        """Several requests at a time, submitted by the first process."""
        blocks = self.args.requests * (2 + (self.args.prompt + self.args.tokens) // 16)
        engine = Engine(network, requests=self.args.requests, blocks=blocks)

        def run() -> list[list[int]]:
            params = SamplingParams(max_tokens=self.args.tokens, temperature=0)
            streams = [engine.submit(prompt, params) for prompt in self.prompts]
            engine.run()
            engine.forget()
            return [stream.tokens for stream in streams]

        if self.first:
            self._time(f"{self.count} GPUs: engine", run, requests=self.args.requests)
            engine.close()
        else:
            engine.follow()

    def _free(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _say(self, line: str) -> None:
        if self.first and not self.args.silent:
            print(f"{self.name} {self.fmt}: {line}", file=sys.stderr)


def _network(model: Model, fmt: str, args: argparse.Namespace) -> Any:
    import transformers

    own = config(model, args.prompt + args.tokens + 64)
    return transformers.AutoModelForCausalLM.from_config(own, dtype=DTYPES[fmt]).eval()


def build(model: Model, fmt: str, device: torch.device, args: argparse.Namespace, count: int = 1) -> Any:
    """A model with random weights, this process's part of it if there are `count`; the whole has the same weights."""
    from torch.distributed.tensor import distribute_tensor
    from transformers.distributed import DistributedConfig

    with torch.device("meta"):
        network = _network(model, fmt, args)
    if count > 1:
        cls = type(network)
        told, _, mesh = cls.prepare_distribute_model(DistributedConfig(tp_size=count))
        network = cls.maybe_distribute_model(network, told, mesh)
    network.to_empty(device=device)
    network.model.rotary_emb = type(network.model.rotary_emb)(network.config).to(device)  # its buffers are no weights
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(float("bias" not in name))
            continue
        generator = torch.Generator(device).manual_seed(args.seed + zlib.crc32(name.encode()))
        std = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device).normal_(std=std, generator=generator)
        if hasattr(parameter, "device_mesh"):
            split = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(split.to_local())
        else:
            parameter.copy_(whole)
    network.generation_config.eos_token_id, network.generation_config.pad_token_id = None, 0
    return network


def _table(records: Sequence[Record]) -> str:
    lines = [f"{'model':12} {'format':6} {'way':18} {'tokens/s':>9} {'ms a token':>11} {'of the first':>13}  parity"]
    for row in records:
        assert row.times is not None and row.stock_times is not None
        rate = row.shape["requests"] / row.times.median
        share = f"{rate * row.stock_times.median:.2f} x" if row.valid else "-"
        what = f"{row.name:12} {row.format:6} {row.way:18} {rate:9.1f} {1e3 * row.times.median:11.3f} {share:>13}"
        lines.append(f"{what}  {'ok' if row.valid else 'WRONG'}, {row.parity.detail}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_tp", description=__doc__.splitlines()[0])
    options.add(parser, [name for name in KNOWN if name != "tiny"], "bf16")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt; default %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer; default %(default)s")
    parser.add_argument("--requests", type=int, default=8, help="at a time, of an engine; default %(default)s")
    parser.add_argument("--iterations", type=int, default=3, help="of each way; default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_tp", main))
