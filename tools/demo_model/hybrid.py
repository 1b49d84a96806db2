"""Train a small hybrid (Qwen3.5's layers) with an MTP head, for tests: `python -m tools.demo_model.hybrid OUT`.

Twenty minutes of one core. It has the demo model's tokenizer, begins with the draft model's embedding, and
learns the draft's probabilities on the same corpus: of the next token, and of those that the head drafts. OUT becomes
a folder of packed weights, the head's among them by Qwen's names (`mtp.*`), and `metrics.json`, in which is also how
many of the drafts behind held-out texts are right.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

import torch_foundry
from torch_foundry import quant
from torch_foundry.demo_model import draft_model_path, held_out_sample
from torch_foundry.generation import draft_length, speculation

from .corpus import documents
from .evaluate import perplexity
from .train import CONTEXT, pack

PIECE = 256  # tokens of a row
ROWS = 4  # of a step
DEPTH = 2  # draft tokens behind one text that the head learns
OF_HEAD = 0.3  # weight of a draft token's loss beside the model's
LIKELY = 16  # tokens whose probabilities it learns
PEAK = 3e-3  # learning rate
TEXTS, PROMPT, NEW = 16, 40, 48  # held-out texts that are gone on from; their first tokens; and those behind them
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95}
# what is read most often has the smaller blocks; the whole stays below a megabyte
FORMATS = {"*.mlp.*": "q4_0", "model.embed_tokens": "q4_0", "*": "q8_0"}


class Head(nn.Module):
    """The head by the names of Qwen's files: one layer of attention behind a matrix that joins its two inputs."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        alone = Qwen3_5TextConfig(**{**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]})
        alone._attn_implementation = "sdpa"
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Qwen3_5RMSNorm(size, eps), Qwen3_5RMSNorm(size, eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(alone, 0)])
        self.norm = Qwen3_5RMSNorm(size, eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)

    def forward(self, embedding: Tensor, hidden: Tensor, rotary: Any) -> Tensor:
        """Of tokens and of the hidden states before them, both [B, L, H], what the output layer gets."""
        both = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], dim=-1)
        at = torch.arange(embedding.shape[1])[None]
        return self.norm(self.layers[0](self.fc(both), position_embeddings=rotary(both, at[None])))


def config(tokenizer: Any) -> Qwen3_5TextConfig:
    """Three layers of the gated delta rule and one of attention."""
    return Qwen3_5TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def losses(model: Any, head: Head, ids: Tensor, likely: Tensor, shares: Tensor, pad: int) -> list[Tensor]:
    """Cross entropies with the teacher's probabilities `shares` of the tokens `likely`, both [B, L, n], behind each
    token: the model's, then each draft token's."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    embedding, found = model.model.embed_tokens(ids), []
    for depth in range(DEPTH + 1):
        if depth:
            hidden = head(embedding[:, depth:], hidden[:, :-1], model.model.rotary_emb)
        real = ids[:, depth:] != pad
        logits = model.lm_head(hidden)
        known = (shares[:, depth:] * logits.gather(-1, likely[:, depth:])).sum(-1)
        found.append(((logits.logsumexp(-1) - known) * real).sum() / real.sum())
    return found


def train(rows: Tensor, tokenizer: Any, minutes: float, steps: int, seed: int) -> tuple[Any, Head, dict[str, Any]]:
    """AdamW under a cosine schedule, which ends after `minutes`, or `steps`."""
    torch.manual_seed(seed)
    draft: Any = AutoModelForCausalLM.from_pretrained(draft_model_path(), dtype=torch.float32).eval()
    model: Any = Qwen3_5ForCausalLM(config(tokenizer)).train()
    head = Head(model.config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(draft.model.embed_tokens.weight)
    weights = [*model.parameters(), *head.parameters()]
    groups = [{"params": [w for w in weights if w.ndim > 1], "weight_decay": 0.1}]
    groups += [{"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95))
    order, began, step, done = torch.randperm(len(rows)), time.process_time(), 0, 0.0
    while done < 1:
        at = step * ROWS % (len(rows) - ROWS + 1)
        ids = rows[order[at : at + ROWS]]
        with torch.no_grad():
            likely = draft(input_ids=ids, use_cache=False).logits.topk(LIKELY)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min((step + 1) / 50, 0.5 * (1 + math.cos(math.pi * done)) * 0.98 + 0.02)
        own, *of_head = losses(model, head, ids, likely.indices, likely.values.softmax(-1), tokenizer.pad_token_id)
        (own + OF_HEAD * sum(of_head)).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, seconds = step + 1, time.process_time() - began
        done = max(seconds / (60 * minutes), step / steps)
        if step % 100 == 0 or done >= 1:
            said = " ".join(f"{loss.item():.3f}" for loss in (own, *of_head))
            print(f"step {step} losses {said} {seconds:.0f} s", flush=True)
    return model.eval(), head.eval(), {"steps": step, "tokens": step * ROWS * PIECE, "seconds": round(seconds)}


def save(model: Any, head: Head, tokenizer: Any, folder: Path) -> None:
    """A folder of packed weights, as `torch_foundry.load` and `load_mtp` read it; without the tokenizer."""
    model.generation_config.update(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    torch_foundry.quantize(model, FORMATS).save_pretrained(folder)
    file, about = folder / "model.safetensors", folder / "config.json"
    tensors, settings = load_file(file), json.loads(about.read_text(encoding="utf-8"))
    for name, weight in head.state_dict(prefix="mtp.").items():
        fmt = "q4_0" if ".mlp." in name else "q8_0"
        packed = weight.ndim == 2
        tensors[name] = quant.quantize(weight, fmt) if packed else weight
        if packed:
            settings["quantization_config"]["formats"][name] = fmt
    save_file(tensors, file, {"format": "pt"})
    about.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def always(drafts: int) -> Iterator[None]:
    """So many draft tokens in each step that may have them, whatever they cost: 1, 3 or 7."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)  # by which all steps take as long
    with (
        mock.patch.object(speculation, "time", clock),
        mock.patch.object(draft_length, "ROWS", (1 + drafts,)),
        mock.patch.object(draft_length.DraftLengthController, "pays", lambda *_: True),
    ):
        yield


def generate(model: Any, tokenizer: Any, texts: Sequence[str], **options: Any) -> tuple[list[list[int]], Any]:
    """Texts of NEW tokens behind the first PROMPT tokens of each of `texts`, and what became of draft tokens."""
    plan, found = model.generator_plan(), list[list[int]]()
    before = replace(plan.speculation)
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[:, :PROMPT]
        torch.manual_seed(0)
        told = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False, **options}
        found.append(model.generate(ids, **told)[0].tolist())
    now = plan.speculation
    names = "steps", "drafted", "accepted", "tokens"
    return found, SimpleNamespace(**{name: getattr(now, name) - getattr(before, name) for name in names})


def evaluate(folder: Path, tokenizer: Any) -> dict[str, Any]:
    """Perplexity on the held-out texts, and of the head's drafts there: how many are accepted, and tokens a step."""
    model, _ = torch_foundry.load(folder, device="cpu", allow=("VOCAB_MISSING",))
    torch_foundry.load_mtp(model, folder)
    texts = held_out_sample(TEXTS)
    found: dict[str, Any] = {"perplexity": round(perplexity(model, tokenizer, held_out_sample()), 5)}
    for name, sampling in (("greedy", {}), ("sampled", SAMPLED)):
        plain, _ = generate(model, tokenizer, texts, **sampling)
        for drafts in (1, 3, 7):
            with always(drafts):
                drafted, stats = generate(model, tokenizer, texts, use_mtp=True, **sampling)
            assert drafted == plain, "another text with drafts"
            found[f"{name}, {drafts} drafts"] = {
                "accepted": round(stats.accepted / stats.drafted, 3),
                "tokens a step": round(stats.tokens / stats.steps, 2),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.hybrid", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=19.0, help="of training")
    parser.add_argument("--steps", type=int, default=1_000_000, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of the rows")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(draft_model_path())
    texts = list(documents("train", 0, args.documents))
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    packed = pack([np.array(each.ids, dtype=np.uint16) for each in encoded], tokenizer.pad_token_id)
    rows = torch.from_numpy(packed).long().view(-1, PIECE)
    print(f"{len(texts)} documents, {len(rows)} rows of {PIECE} tokens", flush=True)
    model, head, metrics = train(rows, tokenizer, args.minutes, args.steps, args.seed)
    metrics["parameters"] = {"model": model.num_parameters(), "head": sum(w.numel() for w in head.parameters())}
    metrics |= {"torch": torch.__version__, "transformers": transformers.__version__, "seed": args.seed}
    save(model, head, tokenizer, args.out)
    metrics |= evaluate(args.out, tokenizer)
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    print(metrics, flush=True)


if __name__ == "__main__":
    main()
