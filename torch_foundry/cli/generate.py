"""`torch-foundry generate`: the same prompts through stock Hugging Face and through the patched model."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import PROMPT, UserError, add_model_options, check_format, encode, load
from torch_foundry.core.errors import first_line


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("generate", help="generate text, stock and patched side by side", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--prompt", action="append", metavar="TEXT", help=f"what is asked; several: in turn ({PROMPT})")
    parser.add_argument("--prompts", metavar="FILE", type=Path, help="more prompts, a line each, in UTF-8")
    parser.add_argument("--raw", action="store_true", help="continue prompts as they are, without the chat template")
    parser.add_argument("--max-new-tokens", type=int, default=120, metavar="N", help="default: 120")
    parser.add_argument("--quantize", metavar="FORMAT", help="pack the weights first (q8_0, q4_0, ...); for both runs")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (default: 0)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0, the likeliest token")
    parser.add_argument("--top-k", type=int, default=50, metavar="N", help="0: all tokens (default: 50)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="default: 1, all tokens")
    every = "patched: read tokens in blocks of N (default: 1; 0: Hugging Face's loop)"
    parser.add_argument("--sync-every", type=int, default=1, metavar="N", help=every)
    parser.add_argument("--no-compare", action="store_true", help="run the patched model only")
    parser.add_argument("--silent", action="store_true", help="print figures alone, no text")
    parser.add_argument("--json", action="store_true", help="print texts and figures as JSON, and nothing else")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Run:
    """One generation: its new tokens and how long they took."""

    tokens: list[int]
    text: str  # where it was not printed
    prefill_seconds: float  # until the first token can be seen
    decode_seconds: float  # from then to the last
    launches: int
    first: int = 1  # tokens that can be seen at once, first

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first ones."""
        later = len(self.tokens) - self.first
        return later / self.decode_seconds if later > 0 else float("nan")


def run(args: argparse.Namespace) -> int:
    """Generate, print text and figures; 1 if greedy float32 tokens differ between stock and patched."""
    if args.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens {args.max_new_tokens}: expected at least 1")
    if args.sync_every < 0:
        raise UserError(f"--sync-every {args.sync_every}: expected a number of tokens, or 0")
    if not 0 <= args.temperature < float("inf") or args.top_k < 0 or not 0 < args.top_p <= 1:
        raise UserError("expected a finite --temperature >= 0, --top-k >= 0 and 0 < --top-p <= 1")
    if not 0 <= args.seed < 1 << 64:
        raise UserError(f"--seed {args.seed}: expected 0 to {(1 << 64) - 1}")
    check_format(args.quantize)
    prompts = _prompts(args)
    model, tokenizer = load(args)
    inputs = [encode(args, tokenizer, prompt) for prompt in prompts]
    import torch_foundry

    if args.quantize:
        torch_foundry.patch(model, quantize=args.quantize)
    runs: list[dict[str, Run]] = [{} for _ in prompts]
    modes = ["patched"] if args.no_compare else ["stock", "patched"]
    for mode in modes:
        _unpatch(model) if mode == "stock" else torch_foundry.patch(model, sync_every=args.sync_every)
        for found, each in zip(runs, inputs, strict=True):
            try:
                found[mode] = _generate(mode, model, tokenizer, each, args)
            except (ValueError, RuntimeError) as error:  # no score that can be drawn from, no memory ...
                raise UserError(first_line(error)) from error
    equal = all(len({tuple(run.tokens) for run in found.values()}) == 1 for found in runs)
    lengths = [each["input_ids"].shape[-1] for each in inputs]
    if args.json:
        print(json.dumps(_figures(prompts, lengths, runs, equal, args), indent=1))
    else:
        _print_figures(runs, equal, lengths, args)
        _print_report(torch_foundry.report(model))
    must_be_equal = args.dtype == "float32" and args.temperature == 0
    return 1 if must_be_equal and not equal else 0


def _prompts(args: argparse.Namespace) -> list[str]:
    """All that is to be asked, in order."""
    prompts = list(args.prompt or ())
    if args.prompts is not None:
        try:
            prompts += [line for line in args.prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--prompts {args.prompts}: cannot be read: {first_line(error)}") from error
        if not prompts:
            raise UserError(f"--prompts {args.prompts}: no prompt in it: expected one a line")
    return prompts or [PROMPT]


def _unpatch(model: Any) -> None:
    """Back to stock code; weights that were packed stay packed, as they are for both runs."""
    import torch_foundry

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_foundry.unpatch(model)


def _generate(title: str, model: Any, tokenizer: Any, inputs: dict[str, Any], args: argparse.Namespace) -> Run:
    import torch

    from torch_foundry import counters, reset_counters
    from torch_foundry.text import TextStreamer

    class Clock(TextStreamer):
        """Prints text as it comes and notes when each token came."""

        def __init__(self) -> None:
            emit = pieces.append if quiet else None
            super().__init__(tokenizer, skip_prompt=True, emit=emit, skip_special_tokens=True)
            self.times: list[float] = []

        def put(self, value: Any) -> None:
            self.times.append(time.perf_counter())
            super().put(value)

        def end(self) -> None:
            super().end()
            if not quiet:
                print()

    quiet, pieces = args.silent or args.json, list[str]()
    options: dict[str, Any] = {"max_new_tokens": args.max_new_tokens, "do_sample": args.temperature > 0}
    if args.temperature > 0:
        options |= {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        options["pad_token_id"] = tokenizer.eos_token_id
    model.generate(**inputs, max_new_tokens=2, do_sample=False, pad_token_id=options.get("pad_token_id"))  # warm up
    if not quiet:
        print(f"--- {title}")
    torch.manual_seed(args.seed)
    reset_counters()
    clock = Clock()
    start = time.perf_counter()
    output = model.generate(**inputs, **options, streamer=clock)
    launches = counters().launches
    tokens = output[0, inputs["input_ids"].shape[-1] :].tolist()
    block = max(args.sync_every, 1) if title == "patched" else 1
    first, last = clock.times[min(block, len(tokens))], clock.times[-1]  # times[0] is the prompt
    return Run(tokens, "".join(pieces), first - start, last - first, launches, block)


def _figures(
    prompts: list[str], lengths: list[int], runs: list[dict[str, Run]], equal: bool, args: argparse.Namespace
) -> dict[str, Any]:
    """What --json prints: times in seconds; null for a rate of too few tokens."""
    return {
        **_about(args),
        "equal": equal,
        "prompts": [
            {
                "prompt": prompt,
                "prompt_tokens": length,
                **{
                    mode: {
                        "text": run.text,
                        "tokens": len(run.tokens),
                        "prefill_seconds": run.prefill_seconds,
                        "decode_seconds": run.decode_seconds,
                        "tokens_per_second": run.decode_rate if run.decode_rate == run.decode_rate else None,
                        "launches": run.launches,
                    }
                    for mode, run in found.items()
                },
            }
            for prompt, length, found in zip(prompts, lengths, runs, strict=True)
        ],
    }


def _about(args: argparse.Namespace) -> dict[str, str]:
    import torch
    import transformers

    from torch_foundry import executor

    return {
        "executor": executor(args.device),
        "device": args.device,
        "weights": args.quantize or args.dtype,
        "activations": args.dtype,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _print_figures(runs: list[dict[str, Run]], equal: bool, lengths: list[int], args: argparse.Namespace) -> None:
    print(f"\n{'':8}  {'tokens':>6}  {'prefill ms':>10}  {'decode tok/s':>12}  {'launches/token':>14}")
    for found in runs:
        for title, r in found.items():
            launches = f"{r.launches / len(r.tokens):.1f}" if r.launches else "-"
            figures = f"{len(r.tokens):6}  {r.prefill_seconds * 1e3:10.1f}  {r.decode_rate:12.1f}"
            print(f"{title:8}  {figures}  {launches:>14}")
    if not args.no_compare:
        drawn = args.temperature > 0 and args.sync_every > 0
        print(f"tokens equal: {'yes' if equal else 'no'}{' (other random numbers)' if drawn and not equal else ''}")
    about, prompts = _about(args), ", ".join(map(str, lengths))
    print(
        f"executor: {about['executor']} ({about['device']}), weights {about['weights']}, activations "
        f"{about['activations']}, prompt {prompts} tokens, torch {about['torch']}, transformers {about['transformers']}"
    )


def _print_report(seen: Any) -> None:
    print(f"loop: {seen.tokens} tokens of which the host read {seen.tokens / max(seen.reads, 1):.1f} at a time")
    for what, reasons in (("stock code ran for", seen.fallbacks), ("no graph for", seen.eager)):
        if reasons:
            print(f"{what}: {', '.join(reasons)}")
