"""Drafting ahead: tokens per second with and without drafts, by how predictable the text is.

python -m benchmarks.bench_speculation --device cuda --models qwen2.5-0.5b --formats f16,q8_0 --holds 1,0.9,0.7,0.5

Networks: `repeating` has a model's shapes and, by construction, a text that repeats itself (see `repeating`); --holds
is the fraction of tokens that are the same as the time before. `scripted` is the same with drafts of an MTP head and of
a smaller model, each of which is right with a probability of --right, if those before it are (`scripted_drafts`).
`random` has random weights and a prompt that repeats itself. `demo` is the bundled model, also with its draft. A whole
call of generate() is timed, except for the first token; of an engine with --concurrent requests, each with a repeating
text of its own, all tokens but the first of each.
Records go to speculation.jsonl in --out. A text with drafts must equal the one without, token for token; otherwise its
row is invalid and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import torch_foundry
from benchmarks.harness import machine, options, record
from benchmarks.harness.clock import Times
from benchmarks.harness.record import Parity, Record
from benchmarks.models import DTYPES, MODELS, REAL, Model, build
from benchmarks.scripted_drafts import LITTLE, PAIRS, clocked, give_head, right
from torch_foundry import quant
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.generation.drafting import SpeculationStats
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.testing.timing import synchronize

NETWORKS = ("repeating", "scripted", "random", "demo")
PERIOD = 64  # tokens after which the text of a repeating network begins again
SECOND = 0.9  # of the largest logit there: the one of the other token that may come
WARM = 3, 10  # runs before those that count, at least and at most: until one has captured no step of a new size
Ran = tuple[list[list[int]], float, dict[str, Any]]  # texts, seconds a token, what became of drafts
STORY = "Once upon a time there was a small kite. The wind was strong. "


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    device = options.device(args)
    names = ["tiny"] if args.quick else options.some_of(args.models, MODELS, "--models")
    formats = options.some_of(args.formats, quant.FORMATS, "--formats")
    networks = options.some_of(args.networks, NETWORKS, "--networks")
    args.holds, args.right = _shares(args.holds, "--holds", least=0.51), _shares(args.right, "--right", least=0)
    args.concurrent = [] if args.concurrent == "0" else options.numbers(args.concurrent, "--concurrent")
    found = machine.look(device, quick=args.quick, commit=args.commit)
    records: list[Record] = []
    for network in networks:
        for name in [network] if network == "demo" else names:
            for fmt in formats:
                if network == "demo" and fmt not in DTYPES:
                    continue
                model, prompt = _network(network, name, fmt, device, args)
                for row in _rows(network, name, fmt, model, prompt, args):
                    records.append(dataclasses.replace(row, name=name, format=fmt, machine=found, seed=args.seed))
                    records[-1].shape["network"] = network
                    record.append(args.out / "speculation.jsonl", records[-1:])
    print(f"{found}\n{_table(records)}")
    return int(any(not row.valid for row in records))


def _rows(network: str, name: str, fmt: str, model: Any, prompt: list[int], args: Any) -> Iterator[Record]:
    """What is measured with a network."""
    sources: dict[str, dict[str, Any]] = {"prompt lookup": {"prompt_lookup_num_tokens": args.drafts}}
    if network == "demo":
        sources["draft model"] = {"assistant_model": _draft(model)}
    if network == "scripted":
        give_head(model, fmt, args.seed)
        sources = {"MTP head": {"use_mtp": True}}
        if name in PAIRS:
            draft, _ = _network(network, PAIRS[name], fmt, model.device, args)
            sources["draft model"] = {"assistant_model": draft}
    for hold in args.holds if network == "repeating" else [1.0]:
        for share in args.right if network == "scripted" else [None]:
            runs = Runs(model, prompt, hold, args)
            for source, given in sources.items():
                ways = [("generate", functools.partial(runs.generate, given))]
                if network in ("repeating", "scripted"):
                    ways += [(f"engine, {n}", functools.partial(runs.engine, n, given)) for n in args.concurrent]
                for way, run in ways:
                    with contextlib.nullcontext() if share is None else right(share, args.seed):
                        for row in runs.rows(way, source, run):
                            yield (
                                row if share is None else dataclasses.replace(row, shape={**row.shape, "right": share})
                            )


def _network(network: str, name: str, fmt: str, device: torch.device, args: Any) -> tuple[Any, list[int]]:
    """A patched model, and a prompt for it."""
    if network == "demo":
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from torch_foundry.demo_model import demo_model_path

        tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
        model: Any = AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=DTYPES[fmt])
        model.to(device)
        model.generation_config.eos_token_id = None
        prompt = tokenizer(STORY * (args.prompt // 16)).input_ids[: args.prompt]
        return torch_foundry.patch(model), prompt
    g = torch.Generator().manual_seed(args.seed)
    if network == "random":
        model = build(MODELS[name], fmt, device, seed=args.seed)
        short = torch.randint(3, MODELS[name].vocab_size, (16,), generator=g).tolist()
        return torch_foundry.patch(model), (short * args.prompt)[: args.prompt]
    first = PERIOD * int(torch.randint(0, MODELS[name].vocab_size // 2 // PERIOD, (), generator=g))
    text = [first + i % PERIOD for i in range(args.prompt)]
    return torch_foundry.patch(repeating(MODELS[name], fmt, device, seed=args.seed)), text


def _draft(model: Any) -> Any:
    """The demo model's draft."""
    from transformers import AutoModelForCausalLM

    from torch_foundry.demo_model import draft_model_path

    draft: Any = AutoModelForCausalLM.from_pretrained(draft_model_path(), dtype=model.dtype)
    return torch_foundry.patch(draft.to(model.device))


def repeating(model: Model, fmt: str, device: torch.device, seed: int = 0) -> Any:
    """A network with a model's shapes, all of it computed, whose text repeats itself every PERIOD tokens.

    The rows of the output layer are those of the embedding, shifted by one token. As the layers add little to the
    residual stream, the token that was read decides which one comes next. Tokens of the vocabulary's second half are
    read like those of the first half and have SECOND times their logits; a draw among the best two, at a suitable
    temperature, decides how often the text departs from the repetition (`Runs`).
    """
    network = build(dataclasses.replace(model, tie_word_embeddings=False), "f16", device, seed=seed)
    network = network.to(DTYPES.get(fmt, torch.float16))
    half = model.vocab_size // 2
    tokens = torch.arange(half // PERIOD * PERIOD, device=device)
    following = tokens - tokens % PERIOD + (tokens + 1) % PERIOD
    with torch.no_grad():
        embedding, output = network.get_input_embeddings().weight, network.get_output_embeddings().weight
        embedding.normal_()
        embedding[half : 2 * half] = embedding[:half]
        output.normal_(std=0.1)
        output[following] = embedding[tokens]
        output[half + following] = SECOND * embedding[tokens]
        for path, weight in network.named_parameters():
            if path.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                weight.mul_(LITTLE)
    if fmt not in DTYPES:
        torch_foundry.quantize(network, fmt)
    return network


class Runs:
    """What is run with one model."""

    def __init__(self, model: Any, prompt: list[int], hold: float, args: Any) -> None:
        """hold: how often the first of the two tokens that may come is to be drawn; 1: greedy."""
        self.model, self.device, self.prompt, self.hold, self.args = model, model.device, prompt, hold, args
        self._engines: dict[Any, Engine] = {}
        self._drafts: list[Any] = []  # draft models
        self.sampling: dict[str, Any] = {"do_sample": False}
        if hold < 1:
            with torch.no_grad():
                largest = float(model(torch.tensor([prompt], device=self.device)).logits[0, -1].float().max())
            temperature = (1 - SECOND) * largest / math.log(hold / (1 - hold))
            self.sampling = {"do_sample": True, "top_k": 2, "temperature": temperature}

    def rows(self, way: str, source: str, run: Callable[[bool], Ran]) -> Iterator[Record]:
        """Records without drafts and with; the caller fills in what they have in common."""
        expected, plain, _ = self._measured(run, False)
        texts, times, extra = self._measured(run, True)
        for name, seconds, more in ((way, plain, {}), (f"{way}, {source}", times, extra)):
            yield Record(
                kind="e2e",
                name="",
                way=name,
                format="",
                shape={"prompt": len(self.prompt), "tokens": self.args.max_tokens, "hold": self.hold},
                machine=None,  # type: ignore[arg-type]
                times=Times(tuple(seconds)),
                parity=Parity(texts == expected, "the tokens without drafts, one by one"),
                stock=way,
                stock_times=Times(tuple(plain)),
                extra=more,
            )

    def _measured(
        self, run: Callable[[bool], Ran], drafts: bool
    ) -> tuple[list[list[int]], list[float], dict[str, Any]]:
        """Texts, seconds per token of each run, and what became of drafts in the last run."""
        for number in range(WARM[1]):
            before = self._captured()
            run(drafts)
            if number + 1 >= WARM[0] and self._captured() == before:
                break
        before, taken = self._captured(), [run(drafts) for _ in range(self.args.iterations)]
        extra = {**taken[-1][2], "captured": self._captured() - before} if drafts else {}
        return taken[-1][0], [seconds for _, seconds, _ in taken], extra

    def _captured(self) -> int:
        """Steps that were captured so far, of the model and of what drafts for it."""
        models = [self.model, self.model.generator_plan().mtp, *self._drafts]
        return sum(decoder_plan(model).captured for model in models if hasattr(model, "generator_plan"))

    def generate(self, given: dict[str, Any], drafts: bool) -> Ran:
        """A call of generate(), with drafts from what is `given`, or without."""
        source, plan = given if drafts else {}, self.model.generator_plan()
        self._drafts = [value for value in given.values() if hasattr(value, "generator_plan")]
        short = self._generate(1, **source)[1]
        before = dataclasses.replace(plan.speculation)
        with clocked() as spent:
            tokens, whole = self._generate(self.args.max_tokens + 1, **source)
        return (
            [tokens],
            (whole - short) / self.args.max_tokens,
            _difference(before, plan.speculation, sum(spent) / whole),
        )

    def _generate(self, tokens: int, **source: Any) -> tuple[list[int], float]:
        text = torch.tensor([self.prompt], device=self.device)
        torch.manual_seed(self.args.seed)
        start = self._now()
        out = self.model.generate(
            text,
            attention_mask=torch.ones_like(text),
            max_new_tokens=tokens,
            **self.sampling,
            **source,
        )
        return out[0, len(self.prompt) :].tolist(), self._now() - start

    def engine(self, requests: int, given: dict[str, Any], drafts: bool) -> Ran:
        """The same in an engine, which is kept because its steps are captured."""
        key = requests, drafts and tuple(given)
        self._drafts = [value for value in given.values() if hasattr(value, "generator_plan")]
        if key not in self._engines:
            blocks = requests * -(-(len(self.prompt) + self.args.max_tokens + 8) // 16)
            self._engines[key] = Engine(self.model, requests=requests, blocks=blocks, **(given if drafts else {}))
        run = self._engines[key]
        run.forget()
        before = dataclasses.replace(run.speculation)
        vocabulary = self.model.config.vocab_size // 2 // PERIOD * PERIOD
        sampling = {name: value for name, value in self.sampling.items() if name != "do_sample"} or {"temperature": 0}
        streams = [
            run.submit(
                [(token + i * PERIOD) % vocabulary for token in self.prompt],
                SamplingParams(max_tokens=self.args.max_tokens + 1, seed=i, **sampling),
            )
            for i in range(requests)
        ]
        while any(not stream.tokens for stream in streams):
            run.step()
        early, start = sum(len(stream.tokens) for stream in streams), self._now()
        with clocked() as spent:
            run.run()
        seconds = self._now() - start
        texts = [stream.tokens for stream in streams]
        extra = _difference(before, run.speculation, sum(spent) / seconds)
        return texts, seconds / (sum(map(len, texts)) - early), extra

    def _now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()


def _difference(before: SpeculationStats, after: SpeculationStats, share: float) -> dict[str, Any]:
    """What became of drafts between two looks. share: of the time, in making them."""
    steps, drafted, accepted, tokens = (
        getattr(after, name) - getattr(before, name) for name in ("steps", "drafted", "accepted", "tokens")
    )
    per_step = round(tokens / steps, 3) if steps else 0.0
    found = {"tokens_per_step": per_step, "accepted": accepted, "drafted": drafted, "stopped": after.stopped}
    times = {
        f"{size}x{rows}" if size > 1 else str(rows): round(t * 1e6, 1)
        for (size, rows), t in sorted(after.times.items())
    }
    return found | {"step_us_by_rows": times, "drafting": round(share, 3)}


def _table(records: Sequence[Record]) -> str:
    lines = [f"{'model':14} {'format':6} {'network':9} {'holds':>5} {'way':26} {'tok/s':>8} {'x':>6}  drafts"]
    for row in records:
        assert row.times is not None
        speed = "WRONG" if row.speedup is None else f"{row.speedup:.2f}"
        shape, said = row.shape, ""
        if extra := row.extra:
            said = f"{extra['accepted']} of {extra['drafted']} right, {extra['tokens_per_step']:.2f} tokens a step, "
            said += (
                f"us by (sequences x) rows {extra['step_us_by_rows']}, {extra['drafting']:.0%} of the time in drafting"
            )
            said += f", {extra['captured']} steps captured" * bool(extra["captured"]) + f"; {extra['stopped']}"
        share = shape.get("right", shape["hold"])
        what = f"{row.name:14} {row.format:6} {shape['network']:9} {share:5} {row.way:26}"
        lines.append(f"{what} {1 / row.times.median:8.1f} {speed:>6}  {said}")
    return "\n".join(lines)


def _shares(text: str, name: str, *, least: float) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(least <= value <= 1 for value in values):
        raise options.UserError(f"{name}: expected numbers from {least} to 1, got {text!r}")
    return values


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_speculation", description=__doc__.splitlines()[0])
    options.add(parser, REAL, "f16,q8_0")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="some of %(default)s")
    parser.add_argument(
        "--holds", default="1,0.95,0.9,0.8,0.6", help="how often a repeating text repeats; default %(default)s"
    )
    parser.add_argument("--right", default="0.9,0.7,0.5,0", help="how often scripted drafts are; default %(default)s")
    parser.add_argument(
        "--concurrent", default="1,8,32", help="requests of an engine; 0: no engine; default %(default)s"
    )
    parser.add_argument("--drafts", type=int, default=7, help="in a step, at most; default %(default)s")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt; default %(default)s")
    parser.add_argument("--max-tokens", type=int, default=256, help="of a text; default %(default)s")
    parser.add_argument("--iterations", type=int, default=3, help="of each measurement; default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_speculation", main))
