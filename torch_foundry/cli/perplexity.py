"""`torch-foundry perplexity`: what a model loses by its weights' format, against a reference, token by token."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import (
    UserError,
    add_model_options,
    add_output_options,
    check_outputs,
    load,
    write_outputs,
)
from torch_foundry.core.errors import first_line


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("perplexity", help="perplexity, and distance from a dense model", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--against", metavar="PATH", type=Path, help="the reference, which runs unpatched")
    parser.add_argument("--quantize", metavar="FORMAT", nargs="+", help="pack the model: q8_0, q4_K, ...; each in turn")
    kinds = "keys and values: q8_0, q4_0, f16, ..., or K,V for one each; the reference's stay dense"
    parser.add_argument("--kv-cache", metavar="FORMAT", type=_kv_cache, help=kinds)
    parser.add_argument("--text", metavar="FILE", type=Path, help="UTF-8 (default: text that the demo model never saw)")
    parser.add_argument("--context", type=int, help="tokens of a window (default: 512, or what the model can take)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def _kv_cache(text: str) -> dict[str, str]:
    from torch_foundry.kvcache.formats import NAMES

    names = text.lower().split(",")
    if not 1 <= len(names) <= 2 or not set(names) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"{text}: expected one of {', '.join(NAMES)}, or two with a comma between")
    return {"k": names[0], "v": names[-1]}


def run(args: argparse.Namespace) -> int:
    """Print a line for each format. The model is patched; the reference, by default the model before, is not."""
    import transformers

    from torch_foundry import quant
    from torch_foundry.diagnostics.perplexity.svg import svg

    for name in args.quantize or ():
        if name.lower() not in quant.PACKABLE:
            raise UserError(f"--quantize {name}: expected some of {quant.listing(quant.PACKABLE)}")
    check_outputs(args)
    model, tokenizer = load(args)
    tokens = _tokens(args, tokenizer)
    reference = None
    if args.against is not None:
        reference, other = load(argparse.Namespace(**{**vars(args), "model": args.against}))
        if any(a.tolist() != b.tolist() for a, b in zip(tokens, _tokens(args, other), strict=True)):
            raise UserError(f"--against {args.against}: its tokenizer gives other tokens than the model's")
    stored = f"keys {args.kv_cache['k']}, values {args.kv_cache['v']}" if args.kv_cache else "a dense KV cache"
    print(f"{args.device}, {args.dtype}, {stored}")
    found = {}
    transformers.utils.logging.enable_progress_bar()  # minutes, even for the demo model
    try:
        for name, each, dense in _variants(args, model, reference):
            found[name] = _measure(each, tokens, dense, args.context)
            print(_line(name, found[name], heading=len(found) == 1), flush=True)
    except (ValueError, RuntimeError, KeyError) as error:
        raise UserError(first_line(error)) from error
    title = f"{args.model.name if args.model else 'demo model'}, {args.dtype}, {stored}, {args.device}"
    write_outputs(args, {name: quality.to_json() for name, quality in found.items()}, svg(title, found))
    return 0


def _variants(args: argparse.Namespace, model: Any, reference: Any) -> Any:
    """(name, patched model, reference) for each line; one more model than that is in memory at a time."""
    from torch_foundry import patch, quant

    if not args.quantize and not args.kv_cache:
        yield "as it is", patch(model), reference
        return
    formats = args.quantize or [None]
    for i, name in enumerate(formats):
        dense = model if reference is None else reference
        last = i == len(formats) - 1 and reference is not None
        packed = model if last else copy.deepcopy(model)
        title = quant.get_format(name).name if name else "as it is"
        yield title, patch(packed, quantize=name, kv_cache=args.kv_cache), dense


def _measure(model: Any, tokens: Any, reference: Any, context: int | None) -> Any:
    from torch_foundry.diagnostics.perplexity import perplexity

    return perplexity(model, tokens, against=reference, context=context)


def _tokens(args: argparse.Namespace, tokenizer: Any) -> list[Any]:
    """The texts as tensors of ids: the file as one text, or the held-out documents of the demo model."""
    from torch_foundry.demo_model import held_out_sample

    if args.text is None:
        texts = [(text, False) for text in held_out_sample()]  # with their own token for the beginning
    else:
        try:
            texts = [(args.text.read_text(encoding="utf-8"), True)]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{args.text}: cannot be read: {first_line(error)}") from error
    ids = [tokenizer(t, add_special_tokens=s, return_tensors="pt", verbose=False).input_ids[0] for t, s in texts]
    if not any(len(each) > 1 for each in ids):
        raise UserError(f"{args.text}: too short: expected at least 2 tokens, got {sum(map(len, ids))}")
    return ids


def _line(name: str, quality: Any, heading: bool) -> str:
    from torch_foundry import quant

    known = quant.FORMATS.get(name)
    bits = f"{8 * known.block_bytes / known.block_size:.2f}" if known else "-"
    head = f"{'weights':<18}{'bits':>6}  {'perplexity':<19}"
    text = f"{name:<18}{bits:>6}  {_with_error(quality.perplexity, quality.perplexity_error, 4):<19}"
    d = quality.against
    if d is not None:
        head = (
            f"reference: perplexity {_with_error(d.perplexity, d.perplexity_error, 4)}, {quality.tokens} tokens, "
            f"windows of {quality.context}\n{head}{'ratio':<21}{'KL mean':<21}{'KL 99 %':<10}same top-1"
        )
        text += f"{_with_error(d.ratio, d.ratio_error, 5):<21}{_with_error(d.kl_mean, d.kl_error, 6):<21}"
        text += f"{d.kl_99:<10.5f}{100 * d.top1:.2f} %"
    return f"{head}\n{text}" if heading else text


def _with_error(value: float, error: float, digits: int) -> str:
    from torch_foundry.diagnostics.perplexity.result import with_error

    return with_error(value, error, digits if value < 100 else 1)
