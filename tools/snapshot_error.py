"""What packed snapshots of recurrent states cost in accuracy: `python -m tools.snapshot_error [FOLDER ...]`.

Of hybrids of Qwen3.5's layers, tiny and larger ones with random weights, and of those in the folders, by the demo
model's held-out texts: the state's error, and that of the logits of the tokens that follow, from an exact snapshot and
from a packed one, both held against stock code in float64 that read all of the text. docs/decisions/044 has the table.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig

import torch_foundry
from tests.exact import InFloat64, doubled
from torch_foundry.demo_model import demo_model_path, held_out_sample
from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.snapshots import Snapshots

AT, MORE = 192, 64  # tokens before the snapshot, and behind it
SIZES = {  # name: layers, hidden size, heads of keys and of values, their width
    "tiny, random": (2, 64, 2, 4, 32),
    "larger, random": (4, 512, 4, 8, 128),
}


def random_hybrid(layers: int, hidden: int, keys: int, values: int, width: int) -> Any:
    """A hybrid whose last layer has attention, and whose states neither vanish nor grow."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=4096,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=keys,
        linear_num_value_heads=values,
        linear_key_head_dim=width,
        linear_value_head_dim=width,
        layer_types=["linear_attention"] * (layers - 1) + ["full_attention"],
        initializer_range=hidden**-0.5,
    )
    return Qwen3_5ForCausalLM(config).eval()


@torch.no_grad()
def logits_behind(model: Any, text: Tensor, format: str | None) -> tuple[Tensor, dict[str, float]]:
    """Logits [MORE, V] behind a snapshot after the first AT tokens of `text`, and the error of each kind of state."""
    cache: Any = DynamicCache(config=model.config)
    vars(cache)["snapshots"] = Snapshots(format=format)
    model(text[:, :AT], past_key_values=cache)
    cache.snapshots.take(cache, AT)
    before = {i: copy.deepcopy(cache.layers[i].stored_tensors()) for i in cache.snapshots.stored[AT]}
    model(text[:, AT : AT + 8], past_key_values=cache)
    assert cache.snapshots.back(cache, AT) == AT
    squares: dict[str, list[Tensor]] = {}
    for i, layer in before.items():
        for name, state in layer.items():
            off = cache.layers[i].stored_tensors()[name].double() - state.double()
            sums = squares.setdefault(name, [torch.zeros((), dtype=torch.float64) for _ in range(2)])
            sums[0] += off.square().sum()
            sums[1] += state.double().square().sum()
    errors = {name: float((a / b).sqrt()) for name, (a, b) in squares.items()}
    return model(text[:, AT:], past_key_values=cache).logits[0], errors


def divergences(truth: Tensor, found: Tensor) -> Tensor:
    """KL of each token's probabilities from those of `truth`, in nats."""
    p, q = truth.double().log_softmax(-1), found.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


@torch.no_grad()
def measure(name: str, stock: Any, texts: Sequence[Tensor]) -> Iterator[str]:
    """Lines of the table."""
    exact, ours = doubled(stock), torch_foundry.patch(copy.deepcopy(stock))
    truths = []
    with InFloat64():
        for text in texts:
            truths.append(exact(text, use_cache=False).logits[0, AT:])
    for format in (None, *packed_states.NAMES):
        kl, largest, changed, errors = [], 0.0, 0, dict[str, float]()
        for text, truth in zip(texts, truths, strict=True):
            found, off = logits_behind(ours, text, format)
            kl.append(divergences(truth, found))
            largest = max(largest, float((found.double() - truth).abs().max()))
            changed += int((found.argmax(-1) != truth.argmax(-1)).sum())
            errors = {key: max(value, errors.get(key, 0.0)) for key, value in off.items()}
        states = [mixer.state for mixer in ours.model.decoder_plan().owners.values()]
        specs = [state for state in states if isinstance(state, RecurrentSpec)]
        all_kl, size = torch.cat(kl), sum(packed_states.nbytes(spec, torch.float32, format) for spec in specs)
        spread = max(float(truth.std()) for truth in truths)
        said = ", ".join(f"{key} {value:.1e}" for key, value in errors.items())
        yield (
            f"{name:15} {format or 'exact':6} {size:9} bytes  state: {said}  logits: {largest:.1e} (of {spread:.1f})  "
            f"KL: mean {all_kl.mean():.1e}, largest {all_kl.max():.1e}  first token differs: {changed} of {len(all_kl)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.snapshot_error", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of hybrids, as load() reads them")
    parser.add_argument("--texts", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    joined = tokenizer("".join(held_out_sample()), add_special_tokens=False, return_tensors="pt").input_ids
    length = AT + MORE
    texts = [joined[:, at : at + length] for at in range(0, args.texts * length, length)]
    for name, sizes in SIZES.items():
        print(*measure(name, random_hybrid(*sizes), texts), sep="\n", flush=True)
    for folder in args.folders:
        model, _ = torch_foundry.load(folder, dtype=torch.float32, patch=False, allow=("VOCAB_MISSING",))
        print(*measure(folder.name, torch_foundry.dequantize(model), texts), sep="\n", flush=True)


if __name__ == "__main__":
    main()
