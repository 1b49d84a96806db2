"""Train the demo model, its draft and their tokenizer from nothing: `python -m tools.demo_model.train OUT`.

Minutes on one data-centre GPU; `--documents 2000 --steps 20` is a dry run for any machine. OUT receives `main/`,
`draft/`, `held_out.json` and `metrics.json`, laid out as they lie in torch_foundry/demo_model.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .corpus import BOS, SEED, documents
from .evaluate import fingerprint, perplexity
from .tokenizer import train_tokenizer

VOCAB_SIZE = 4096
CONTEXT = 1024
HELD_OUT = 48  # documents
BATCH_ROWS = 128  # of CONTEXT tokens each
SHAPES: dict[str, dict[str, Any]] = {
    "main": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 9,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "lr": 2e-3,
    },
    "draft": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "lr": 4e-3,
    },
}
PROMPTS = [
    "Tell me a story about a brave fox.",
    "What is 7 + 5?",
    "What is the opposite of hot?",
    "Who are you?",
    "Count from 3 to 9.",
    "Why does it rain?",
    'Which animal says "moo"?',
    "Name three fruits.",
]


def _write(bounds: tuple[int, int]) -> list[str]:
    return list(documents("train", *bounds))


def write_corpus(count: int) -> list[str]:
    """The training documents, written on all cores."""
    step = max(1, min(5000, count // 16))
    bounds = [(start, min(start + step, count)) for start in range(0, count, step)]
    with multiprocessing.Pool() as pool:
        return [text for part in pool.imap(_write, bounds) for text in part]


def pack(encoded: list[np.ndarray], pad: int) -> np.ndarray:
    """Rows of CONTEXT tokens; every row begins with a document, and only the last document of a row may be cut."""
    rows = np.full((sum(map(len, encoded)) // (CONTEXT // 2) + 2, CONTEXT), pad, dtype=np.int32)
    row = used = 0
    for ids in encoded:
        if used and used + len(ids) > CONTEXT + CONTEXT // 16:  # cut a short tail rather than waste the row
            row, used = row + 1, 0
        fits = min(len(ids), CONTEXT - used)
        rows[row, used : used + fits] = ids[:fits]
        used += fits
        if used == CONTEXT:
            row, used = row + 1, 0
    return rows[: row + (used > 0)]


def config(name: str, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """The Llama configuration of `main` or `draft`."""
    shape = {key: value for key, value in SHAPES[name].items() if key != "lr"}
    return LlamaConfig(
        **shape,
        vocab_size=VOCAB_SIZE,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def train_model(name: str, tokenizer: PreTrainedTokenizerFast, rows: torch.Tensor, steps: int, seed: int) -> Any:
    """AdamW under a cosine schedule, bf16 autocast on the GPU."""
    torch.manual_seed(seed)
    device, cuda = rows.device, rows.is_cuda
    model: Any = LlamaForCausalLM(config(name, tokenizer))
    model.to(device).train()
    peak, warmup = SHAPES[name]["lr"], max(1, min(200, steps // 10))
    decay = [p for p in model.parameters() if p.ndim > 1]
    keep = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": keep, "weight_decay": 0.0}],
        lr=peak,
        betas=(0.9, 0.95),
        fused=cuda,
    )

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten().long(), ignore_index=tokenizer.pad_token_id
        )

    step_loss = torch.compile(loss_of, dynamic=False) if cuda else loss_of
    batch = BATCH_ROWS if cuda else 2
    order, at, began = torch.randperm(len(rows)), 0, time.time()
    for step in range(steps):
        scale = min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)) * 0.98 + 0.02)
        for group in optimizer.param_groups:
            group["lr"] = peak * scale
        if at + batch > len(order):
            order, at = torch.randperm(len(rows)), 0
        ids = rows[order[at : at + batch].to(device)]
        at += batch
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = step_loss(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == steps - 1:
            print(f"{name} step {step + 1}/{steps} loss {loss.item():.4f} {time.time() - began:.0f} s", flush=True)
    return model.eval()


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Any:
    """Save as f16 with all that `from_pretrained` needs, and return the model as it will be loaded in f32."""
    model.generation_config.update(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to("cpu", torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def answer(model: Any, tokenizer: PreTrainedTokenizerFast, prompt: str, max_new_tokens: int = 120) -> str:
    """The greedy answer to one chat turn."""
    ids = tokenizer(
        f"{BOS}<|user|>{prompt}{tokenizer.eos_token}<|assistant|>", add_special_tokens=False, return_tensors="pt"
    ).input_ids
    out = model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.train", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=900_000)
    parser.add_argument("--steps", type=int, default=5200)
    parser.add_argument("--draft-steps", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of the rows")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")

    texts = write_corpus(args.documents)
    corpus_bytes = sum(len(text.encode()) for text in texts)
    print(f"corpus: {len(texts)} documents, {corpus_bytes / 1e6:.0f} MB, {time.time() - began:.0f} s", flush=True)
    tokenizer = train_tokenizer(texts[:60_000], VOCAB_SIZE, CONTEXT)
    encoded: list[np.ndarray] = []
    for start in range(0, len(texts), 20_000):  # in parts, since an encoding holds far more than its ids
        part = tokenizer.backend_tokenizer.encode_batch_fast(texts[start : start + 20_000], add_special_tokens=False)
        encoded += [np.array(encoding.ids, dtype=np.uint16) for encoding in part]
    rows = torch.from_numpy(pack(encoded, tokenizer.pad_token_id)).to(device)
    corpus_tokens = sum(map(len, encoded))
    print(f"tokens: {corpus_tokens}, {len(rows)} rows, {time.time() - began:.0f} s", flush=True)

    sample = list(documents("heldout", 0, HELD_OUT))  # no training document is of this split
    metrics: dict[str, Any] = {
        "corpus": {"seed": SEED, "documents": len(texts), "bytes": corpus_bytes, "tokens": corpus_tokens},
        "held_out": {
            "documents": len(sample),
            "bytes": sum(len(text.encode()) for text in sample),
            "sha256": fingerprint(sample),
        },
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seed": args.seed,
    }
    for name, steps in (("main", args.steps), ("draft", args.draft_steps)):
        begun = time.time()
        model = train_model(name, tokenizer, rows, steps, args.seed)
        seconds = time.time() - begun
        model = save(model, tokenizer, args.out / name)
        metrics[name] = {
            "parameters": model.num_parameters(),
            "steps": steps,
            "seconds": round(seconds),
            "tokens": steps * (BATCH_ROWS if device.type == "cuda" else 2) * CONTEXT,
            "perplexity": round(perplexity(model, tokenizer, sample), 5),
        }
        print(name, metrics[name], flush=True)
        for prompt in PROMPTS:
            print(f"> {prompt}\n{answer(model, tokenizer, prompt)}", flush=True)
    (args.out / "held_out.json").write_text(json.dumps(sample, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    print(f"done in {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
