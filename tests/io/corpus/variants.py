"""Models (A) that not every maker of files writes so: a tensor for each expert, factors of NVFP4 blocks."""

from __future__ import annotations

import struct

from .gguf_bytes import TF16, TQ8_0, U32, scalar
from .model_bytes import HIDDEN, INNER, VOCABULARY, Model, changed, model
from .models import A

TNVFP4 = 40
UP, OUT = "blk.0.ffn_up.{}.weight", "blk.0.attn_output"


def experts() -> Model:
    """Two, one of them used, each with its own tensors, as in files from before these were stacked."""
    file = model().put("llama.expert_count", scalar(U32, 2)).put("llama.expert_used_count", scalar(U32, 1))
    for part in ("gate", "up", "down"):
        dims = file.tensors[f"blk.0.ffn_{part}.weight"][0]
        file.without(f"blk.0.ffn_{part}.weight")
        for expert in range(2):
            file.tensor(f"blk.0.ffn_{part}.{expert}.weight", dims)
    return file.tensor("blk.0.ffn_gate_inp.weight", [HIDDEN, 2])


def factors(file: Model | None = None, value: float = 0.5, name: str = f"{OUT}.scale") -> Model:
    """A matrix of NVFP4 and its factor."""
    file = file or model()
    file.tensor(f"{OUT}.weight", [HIDDEN, HIDDEN], TNVFP4, bytes([0x38] * 4 + [0x21] * 32) * HIDDEN)
    return file.tensor(name, [1], data=struct.pack("<f", value))


def embedding() -> Model:
    """An embedding of NVFP4, which no maker gives a factor."""
    blocks = bytes([0x38] * 4 + [0x21] * 32) * VOCABULARY
    return factors().tensor("token_embd.weight", [HIDDEN, VOCABULARY], TNVFP4, blocks)


A.accept("A300", "each expert a tensor of its own", lambda: experts().bytes())
A.reject("A301", "an expert absent", "TENSOR_MISSING", changed(lambda m: m.without(UP.format(1)), experts), "ffn_up.1")
A.reject("A302", "an expert too many", "TENSOR_EXTRA",
         changed(lambda m: m.tensor(UP.format(2), [HIDDEN, INNER]), experts), "ffn_up.2")  # fmt: skip
A.reject("A303", "an expert of another shape", "SHAPE",
         changed(lambda m: m.tensor(UP.format(1), [HIDDEN, INNER - 1]), experts), "ffn_up.1")  # fmt: skip
A.reject("A304", "an expert of another type", "TENSOR_TYPE",
         changed(lambda m: m.tensor(UP.format(1), [HIDDEN, INNER], TQ8_0, bytes(68 * INNER)), experts),
         "as the first expert has")  # fmt: skip
A.reject("A305", "experts stacked and alone", "TENSOR_EXTRA",
         changed(lambda m: m.tensor("blk.0.ffn_up_exps.weight", [HIDDEN, INNER, 2]), experts), "ffn_up.0")  # fmt: skip
A.accept("A310", "NVFP4 with a factor", lambda: factors().bytes())
A.accept("A311", "NVFP4 with a factor for what it multiplies",
         lambda: factors(factors(), name=f"{OUT}.input_scale").bytes(), policy=True)  # fmt: skip
A.reject("A312", "two factors of a matrix", "SHAPE",
         changed(lambda m: m.tensor(f"{OUT}.scale", [2]), factors), f"{OUT}.scale")  # fmt: skip
A.reject("A313", "a factor of F16", "TENSOR_TYPE",
         changed(lambda m: m.tensor(f"{OUT}.scale", [1], TF16, bytes(2)), factors), f"{OUT}.scale")  # fmt: skip
A.reject("A314", "a factor NaN", "NONFINITE", lambda: factors(value=float("nan")).bytes(), f"{OUT}.scale")
A.reject("A315", "a factor of F32 weights", "TENSOR_EXTRA",
         changed(lambda m: m.tensor("blk.0.attn_q.scale", [1])), "attn_q.scale")  # fmt: skip
A.reject("A316", "a factor of the embedding", "TENSOR_EXTRA",
         changed(lambda m: m.tensor("token_embd.scale", [1]), embedding), "token_embd.scale")  # fmt: skip
A.reject("A317", "a factor alone", "TENSOR_EXTRA", changed(lambda m: m.tensor("blk.0.ffn_gate_inp.scale", [1])), "inp")
