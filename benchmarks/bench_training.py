"""Steps of training adapters (LoRA): stock code, patched, with packed weights, and peers, in the same run.

python -m benchmarks.bench_training --device cuda --models llama-3-8b --formats bf16,nf4,q4_0,q4_k --cells 1x1024

A step is a pass forward and backward through random tokens, and AdamW's on the adapters of all linear layers. Records
go to training.jsonl in --out, with the bytes of the weights and the most that a step had from torch's allocator beside
them. The adapters' gradients must be at most twice as far from those of stock code in float32 (in float64 for float32)
with the same weights, unpacked, as stock's in --dtype are; otherwise the row is invalid and the exit code is 1.
bitsandbytes, for nf4 where it is installed, packs the values that the weights have already. unsloth, for nf4 and
--dtype where --unsloth says where it is, reads them from a folder in a process of its own, or the row says why not.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_foundry
from benchmarks import adapters, unsloth_steps
from benchmarks.adapters import MATRICES, Gradients, Steps
from benchmarks.harness import machine, options, record
from benchmarks.harness.clock import Times
from benchmarks.harness.machine import Machine
from benchmarks.harness.record import Parity, Record
from benchmarks.models import DTYPES, MODELS, REAL, build
from torch_foundry import quant

TIMES = 2  # stock's error, of gradients
STOCK, PATCHED, UNSLOTH, BITSANDBYTES = "stock", "patched", "unsloth", "bitsandbytes"
QUICK = {"cells": "2x24", "rank": 4, "iterations": 2}
TELLING = 0.3  # an error of stock's beyond which it is no measure


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
        for way, steps in self._ways(network, dense, prompts).items():
            shapes = [{"batch": prompt.shape[0], "tokens": prompt.shape[1]} for prompt in prompts]
            bare = [
                self._bare(way, shape | {"rank": self.args.rank, "again": self.args.checkpointing}) for shape in shapes
            ]
            try:
                for i, found in enumerate(steps()):
                    error = _error(found.gradients, exact[i])
                    right = error <= TIMES * own[i] and own[i] < TELLING
                    parity = Parity(right, f"gradients within {TIMES} x {own[i]:.1e} (stock's error)", error)
                    before += [found.times] if way == STOCK else []
                    row = dataclasses.replace(bare[i], times=found.times, parity=parity, stock_times=before[i])
                    yield dataclasses.replace(row, extra={"weight_bytes": found.weights, "step_bytes": found.most})
            except unsloth_steps.UnslothError as error:
                yield from (dataclasses.replace(row, kind="skipped", reason=str(error)) for row in bare)

    def _bare(self, way: str, shape: dict[str, Any]) -> Record:
        """A row without what was measured."""
        return Record("e2e", self.name, way, self.format, shape, self.machine, stock=STOCK, seed=self.args.seed)

    def _ways(self, network: Any, dense: Any, prompts: Sequence[Tensor]) -> dict[str, Callable[[], Iterable[Steps]]]:
        """In this order: unsloth is given `dense`, which patching may and bitsandbytes does change."""
        packed = self.format == "nf4"
        ways: dict[str, Callable[[], Iterable[Steps]]] = {STOCK: lambda: self._steps(dense, prompts)}
        if self.args.unsloth and (packed or self.format == self.args.dtype):
            settings = {
                name: getattr(self.args, name) for name in ("dtype", "rank", "seed", "checkpointing", "iterations")
            }
            ways[UNSLOTH] = lambda: unsloth_steps.steps(
                self.args.unsloth, dense, prompts, unsloth_steps.Asked(packed, **settings)
            )
        ways[PATCHED] = lambda: self._steps(torch_foundry.patch(network), prompts)
        if packed and self.device.type == "cuda" and importlib.util.find_spec("bitsandbytes"):
            ways[BITSANDBYTES] = lambda: self._steps(_packed_by_bitsandbytes(dense), prompts)
        return ways

    def _steps(self, network: Any, prompts: Sequence[Tensor]) -> Iterator[Steps]:
        model = self._with_adapters(network)
        yield from adapters.measure(model, prompts, self.args.iterations)
        model.unload()

    def _draw(self, vocabulary: int, cell: tuple[int, int]) -> Tensor:
        generator = torch.Generator().manual_seed(self.args.seed)
        return torch.randint(0, vocabulary, cell, generator=generator).to(self.device)

    def _with_adapters(self, network: Any) -> Any:
        import peft

        lora = peft.LoraConfig(
            task_type="CAUSAL_LM", r=self.args.rank, lora_alpha=adapters.ALPHA, target_modules=MATRICES
        )
        model = peft.get_peft_model(network, lora, autocast_adapter_dtype=False)
        adapters.draw(model, self.args.seed, DTYPES[self.args.dtype])
        if self.args.checkpointing:
            adapters.checkpoint(model)
        return model.train()

    def _gradients(self, network: Any, prompts: Sequence[Tensor], checkpointing: bool = False) -> list[Gradients]:
        """Of each prompt, by adapters that `network` has for as long as this takes."""
        model = self._with_adapters(network)
        if checkpointing:
            adapters.checkpoint(model)
        found = adapters.gradients(model, prompts)
        model.unload()
        return found


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
        packed.weight = bitsandbytes.nn.Params4bit(  # with scales as they are: packed again, they would be others
            linear.weight.data.cpu(), requires_grad=False, quant_type="nf4", compress_statistics=False
        )
        packed.bias = linear.bias
        setattr(parent, name, packed.to(linear.weight.device))
    return dense


def _table(records: Sequence[Record]) -> str:
    sizes = f"{'weights, GB':>11} {'step, GB':>9}"
    lines = [
        f"{'model':14} {'format':6} {'way':12} {'batch':>5} {'tokens':>6} {'ms a step':>10} {'x':>5} {sizes}  gradients"
    ]
    for row in records:
        what = f"{row.name:14} {row.format:6} {row.way:12} {row.shape['batch']:5} {row.shape['tokens']:6}"
        if row.times is None:
            lines.append(f"{what} skipped: {row.reason}")
            continue
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
    parser.add_argument("--unsloth", type=Path, help="folder of packages with unsloth; default: it is not measured")
    parser.add_argument(
        "--checkpointing", action="store_true", help="compute activations again instead of keeping them"
    )
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_training", main))
