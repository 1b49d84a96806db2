"""Steps of training adapters (LoRA): stock code, patched, with packed weights, and bitsandbytes, in the same run.

python -m benchmarks.bench_training --device cuda --models llama-3-8b --formats bf16,nf4,q4_0,q4_k --cells 1x1024

A step is a pass forward and backward through random tokens, and AdamW's on the adapters of all linear layers. Records
go to training.jsonl in --out, with the bytes of the weights and the most that a step had from torch's allocator beside
them. The adapters' gradients must be at most twice as far from those of stock code in float32 (in float64 for float32)
with the same weights, unpacked, as stock's in --dtype are; otherwise the row is invalid and the exit code is 1.
bitsandbytes, for nf4 where it is installed, packs the values that the weights have already.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import torch_foundry
from benchmarks.harness import clock, machine, options, record
from benchmarks.harness.clock import Times
from benchmarks.harness.machine import Machine
from benchmarks.harness.record import Parity, Record
from benchmarks.models import DTYPES, MODELS, REAL, build
from torch_foundry import quant

MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TIMES = 2  # stock's error, of gradients
STOCK, PATCHED, PEER = "stock", "patched", "bitsandbytes"
QUICK = {"cells": "2x24", "rank": 4, "iterations": 2}
TELLING = 0.3  # an error of stock's beyond which it is no measure
Gradients = list[Tensor]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    if args.quick:
        vars(args).update(QUICK)
    device = options.device(args)
    names = ["tiny"] if args.quick else options.some_of(args.models, MODELS, "--models")
    formats = options.some_of(args.formats, quant.FORMATS, "--formats")
    cells = [options.pair(text, "--cells") for text in args.cells.split(",")]
    found = machine.look(device, quick=args.quick, commit=args.commit)
    records: list[Record] = []
    warnings.simplefilter("ignore")  # that weights stay packed, and what peft says of layers it hasn't seen
    for name in names:
        for fmt in formats:
            for row in Comparison(name, fmt, device, found, args).rows(cells):
                records.append(row)
                record.append(args.out / "training.jsonl", [row])
                if not args.silent:
                    print(f"{row.name} {row.format} {row.way} {row.shape}: {row.parity}", file=sys.stderr)
    print(f"{found}\n{_table(records)}")
    return record.conclude(records, args.out / "training.jsonl")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One model in one format, in all ways."""

    name: str
    format: str
    device: torch.device
    machine: Machine
    args: argparse.Namespace

    def rows(self, cells: Sequence[tuple[int, int]]) -> Iterator[Record]:
        """A record for each way and cell of (batch, tokens)."""
        longest = max(tokens for _, tokens in cells) + 1
        dtype, seed = DTYPES[self.args.dtype], self.args.seed
        network = build(MODELS[self.name], self.format, self.device, max_positions=longest, seed=seed, dtype=dtype)
        dense = network if self.format in DTYPES else torch_foundry.dequantize(copy.deepcopy(network))
        prompts = [self._draw(network.config.vocab_size, cell) for cell in cells]
        wide = torch.float64 if dense.dtype == torch.float32 else torch.float32
        exact = self._gradients(copy.deepcopy(dense).to(wide), prompts, checkpointing=True)
        own = [_error(*each) for each in zip(self._gradients(dense, prompts), exact, strict=True)]
        before: list[Times] = []
        for way, make in self._ways(network, dense).items():
            model = make()
            for i, got in enumerate(self._gradients(model, prompts)):
                error = _error(got, exact[i])
                right = error <= TIMES * own[i] and own[i] < TELLING
                parity = Parity(right, f"gradients within {TIMES} x {own[i]:.1e} (stock's error)", error)
                times, most = self._time(model, prompts[i])
                before += [times] if way == STOCK else []
                batch, tokens = prompts[i].shape
                shape = {"batch": batch, "tokens": tokens, "rank": self.args.rank, "again": self.args.checkpointing}
                row = Record("e2e", self.name, way, self.format, shape, self.machine, times=times, parity=parity)
                extra = {"weight_bytes": _nbytes(model), "step_bytes": most}
                yield dataclasses.replace(row, stock=STOCK, stock_times=before[i], seed=seed, extra=extra)
            model.unload()  # the adapters

    def _ways(self, network: Any, dense: Any) -> dict[str, Callable[[], Any]]:
        ways = {
            STOCK: lambda: self._with_adapters(dense),
            PATCHED: lambda: self._with_adapters(torch_foundry.patch(network)),
        }
        if self.format == "nf4" and self.device.type == "cuda" and importlib.util.find_spec("bitsandbytes"):
            ways[PEER] = lambda: self._with_adapters(_packed_by_bitsandbytes(dense))
        return ways

    def _draw(self, vocabulary: int, cell: tuple[int, int]) -> Tensor:
        generator = torch.Generator().manual_seed(self.args.seed)
        return torch.randint(0, vocabulary, cell, generator=generator).to(self.device)

    def _with_adapters(self, network: Any) -> Any:
        """With the same adapters each time, none of which is zero, and which every dtype has."""
        import peft

        torch.manual_seed(self.args.seed)
        lora = peft.LoraConfig(
            task_type="CAUSAL_LM", r=self.args.rank, target_modules=MATRICES, init_lora_weights=False
        )
        model = peft.get_peft_model(network, lora, autocast_adapter_dtype=False)
        for parameter in _adapters(model):
            drawn = torch.empty(parameter.shape).normal_(std=0.1 * parameter.shape[1] ** -0.5)
            parameter.data.copy_(drawn.to(DTYPES[self.args.dtype]))
        if self.args.checkpointing:
            _checkpoint(model)
        return model.train()

    def _gradients(self, model: Any, prompts: Sequence[Tensor], checkpointing: bool = False) -> list[Gradients]:
        """Of each prompt. A model without adapters has them for as long as this takes."""
        bare = not hasattr(model, "unload")
        model = self._with_adapters(model) if bare else model
        if checkpointing:
            _checkpoint(model)
        found = []
        for prompt in prompts:
            model(prompt, labels=prompt).loss.backward()
            found.append([parameter.grad for parameter in _adapters(model) if parameter.grad is not None])
            model.zero_grad(set_to_none=True)
        if bare:
            model.unload()
        return found

    def _time(self, model: Any, prompt: Tensor) -> tuple[Times, int | None]:
        """Of steps, and the most bytes that one had beside what was there before, where the device counts them."""
        optimizer = torch.optim.AdamW(list(_adapters(model)), lr=1e-5)

        def step() -> None:
            model(prompt, labels=prompt).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step()
        counted = self.device.type == "cuda"
        if counted:
            torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated() if counted else 0
        times = Times(tuple(clock.wall(self.device, step) for _ in range(self.args.iterations)))
        return times, torch.cuda.max_memory_allocated() - start if counted else None


def _adapters(model: Any) -> Iterator[nn.Parameter]:
    return (parameter for name, parameter in model.named_parameters() if "lora_" in name)


def _checkpoint(model: Any) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()


def _nbytes(model: Any) -> int:
    """Of all that is no adapter."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return sum(tensor.nbytes for name, tensor in tensors.items() if "lora_" not in name)


def _error(got: Gradients, right: Gradients) -> float:
    """The relative L2 error of all gradients together."""
    off = sum(float((g.double() - r.double()).square().sum()) for g, r in zip(got, right, strict=True))
    return float((off / sum(float(r.double().square().sum()) for r in right)) ** 0.5)


def _packed_by_bitsandbytes(dense: Any) -> Any:
    """`dense`, the linear layers of its layers in bitsandbytes' own module."""
    import bitsandbytes

    found = [(parent, name) for parent in dense.modules() for name, _ in parent.named_children() if name in MATRICES]
    for parent, name in found:
        linear = getattr(parent, name)
        packed = bitsandbytes.nn.Linear4bit(
            linear.in_features, linear.out_features, linear.bias is not None, linear.weight.dtype, quant_type="nf4"
        )
        packed.weight = bitsandbytes.nn.Params4bit(linear.weight.data.cpu(), requires_grad=False, quant_type="nf4")
        packed.bias = linear.bias
        setattr(parent, name, packed.to(linear.weight.device))
    return dense


def _table(records: Sequence[Record]) -> str:
    sizes = f"{'weights, GB':>11} {'step, GB':>9}"
    lines = [
        f"{'model':14} {'format':6} {'way':12} {'batch':>5} {'tokens':>6} {'ms a step':>10} {'x':>5} {sizes}  gradients"
    ]
    for row in records:
        assert row.times is not None
        what = f"{row.name:14} {row.format:6} {row.way:12} {row.shape['batch']:5} {row.shape['tokens']:6}"
        times = f"{1e3 * row.times.median:10.1f} {row.speedup or 0:5.2f}"
        sizes = " ".join(
            f"{(row.extra[name] or 0) / 1e9:{n}.2f}" for name, n in (("weight_bytes", 11), ("step_bytes", 9))
        )
        state = f"{'ok' if row.valid else 'WRONG'}, off by {row.parity.error:.1e}; {row.parity.criterion}"
        lines.append(f"{what} {times} {sizes}  {state}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_training", description=__doc__.splitlines()[0])
    options.add(parser, REAL, "bf16,nf4,q4_0,q4_k")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES, help="of what isn't packed; default %(default)s")
    parser.add_argument("--cells", default="1x1024", help="BATCHxTOKENS of a step, several with commas")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters; default %(default)s")
    parser.add_argument("--iterations", type=int, default=5, help="steps that are timed; default %(default)s")
    parser.add_argument(
        "--checkpointing", action="store_true", help="compute activations again instead of keeping them"
    )
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_training", main))
