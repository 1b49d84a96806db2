"""Whole models in GGUF files: architectures (A) and vocabularies (V)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from .case import Table
from .gguf_bytes import BOOL, F32, I32, STR, TI32, TQ4_0, U8, U32, U64, array, numbers, scalar, string, strings, text
from .model_bytes import HIDDEN, KV, VOCABULARY, Model, bpe, changed, dense, layer, letters, model, spm_tokens

A, V = Table(), Table()
NAN, INF = float("nan"), float("inf")
Build = Callable[[], bytes]


def put(name: str, value: bytes, base: Callable[[], Model] = model) -> Build:
    return changed(lambda file: file.put(name, value), base)


def hp(name: str, value: float, kind: int = U32) -> Build:
    """The model with another hyperparameter."""
    return put(f"llama.{name}", scalar(kind, value))


def drop(*names: str, base: Callable[[], Model] = model) -> Build:
    return changed(lambda file: file.without(*names), base)


def shaped(name: str, *dims: int, kind: int = 0, data: bytes | None = None) -> Build:
    return changed(lambda file: file.tensor(name, list(dims), kind, data))


def all_of(*changes: tuple[str, bytes]) -> Build:
    return changed(lambda file: [file.put(*change) for change in changes])


A.accept("A00", "sound: one layer", lambda: model().bytes())
A.reject("A01", "general.architecture absent", "ARCH_MISSING", drop("general.architecture"), "general.architecture")
A.reject("A02", "general.architecture a number", "ARCH_MISSING", put("general.architecture", scalar(U32, 7)))
A.reject("A03", 'general.architecture = "foo"', "ARCH_UNKNOWN", put("general.architecture", string("foo")), "foo")
A.reject("A04", "general.architecture empty", "ARCH_UNKNOWN|ARCH_MISSING", put("general.architecture", string("")))
A.reject("A05", 'general.architecture = "%s%n{0.__class__}"', "ARCH_UNKNOWN",
         put("general.architecture", string("%s%n{0.__class__}")), "%s%n{0.__class__}")  # fmt: skip
A.reject("A06", 'general.architecture = "__class__"', "ARCH_UNKNOWN", put("general.architecture", string("__class__")))
A.reject("A07", "block_count = 0", "HP_RANGE", hp("block_count", 0), "llama.block_count")
A.reject("A08", "block_count = 2^32-1", "HP_RANGE", hp("block_count", 2**32 - 1), "llama.block_count")
A.reject("A09", "block_count = 2, one layer present", "TENSOR_MISSING", hp("block_count", 2), "blk.1.")
A.reject("A10", "block_count = 4096, one layer present", "TENSOR_MISSING", hp("block_count", 4096), "blk.1.")
A.reject("A11", "block_count = -1 (i32)", "HP_RANGE", hp("block_count", -1, I32), "llama.block_count")
A.reject("A12", "head_count = 0", "HP_RANGE", hp("attention.head_count", 0), "head_count")
A.reject("A13", "head_count_kv = 0", "HP_RANGE", hp("attention.head_count_kv", 0), "head_count_kv")
A.reject("A14", "head_count_kv = 3: no divisor of 4", "HP_RANGE", hp("attention.head_count_kv", 3), "a divisor of 4")
A.reject("A15", "head_count = 3: 64 does not divide", "SHAPE", hp("attention.head_count", 3), "a divisor of 64")
A.reject("A16", "embedding_length = 0", "HP_RANGE", hp("embedding_length", 0), "embedding_length")
A.reject("A17", "embedding_length = 2^32-1", "HP_RANGE", hp("embedding_length", 2**32 - 1), "embedding_length")
A.reject("A18", "context_length = 0", "HP_RANGE", hp("context_length", 0), "context_length")
A.reject("A19", "context_length = 2^32-1", "HP_RANGE", hp("context_length", 2**32 - 1), "context_length")
A.reject("A20", "rms epsilon NaN", "HP_RANGE", hp("attention.layer_norm_rms_epsilon", NAN, F32), "epsilon")
A.reject("A21", "rms epsilon = -1", "HP_RANGE", hp("attention.layer_norm_rms_epsilon", -1, F32), "epsilon")
A.reject("A22", "rope.freq_base = 0", "HP_RANGE", hp("rope.freq_base", 0, F32), "freq_base")
A.reject("A23", "rope.freq_base = inf", "HP_RANGE", hp("rope.freq_base", INF, F32), "freq_base")
A.reject("A24", "rope.freq_base NaN", "HP_RANGE", hp("rope.freq_base", NAN, F32), "freq_base")
A.reject("A25", "rope.dimension_count = 1024 > head size", "HP_RANGE", hp("rope.dimension_count", 1024))
A.reject("A26", "token_embd absent", "TENSOR_MISSING", drop("token_embd.weight"), "token_embd.weight")
A.reject("A27", "token_embd and output absent", "TENSOR_MISSING", drop("token_embd.weight", "output.weight"))
A.reject("A28", "attn_q absent", "TENSOR_MISSING", drop("blk.0.attn_q.weight"), "blk.0.attn_q.weight")
A.reject("A29", "attn_q [64, 32]", "SHAPE", shaped("blk.0.attn_q.weight", 64, 32), "blk.0.attn_q.weight")
A.reject("A30", "attn_k of one head too many", "SHAPE", shaped("blk.0.attn_k.weight", HIDDEN, KV + 16), "attn_k")
A.reject("A31", "output_norm [63]", "SHAPE", shaped("output_norm.weight", 63), "output_norm")
A.reject("A32", "ffn_down transposed", "SHAPE", shaped("blk.0.ffn_down.weight", HIDDEN, 96), "ffn_down")
A.reject("A33", "token_embd of type I32", "TENSOR_TYPE|SHAPE",
         shaped("token_embd.weight", HIDDEN, VOCABULARY, kind=TI32))  # fmt: skip
A.reject("A34", "a norm of type Q4_0", "TENSOR_TYPE",
         shaped("blk.0.attn_norm.weight", HIDDEN, kind=TQ4_0, data=bytes(36)), "attn_norm")  # fmt: skip
A.reject(
    "A35", "an extra tensor blk.0.evil.weight", "TENSOR_EXTRA", shaped("blk.0.evil.weight", 8), "blk.0.evil.weight"
)
A.reject("A36", "a layer too many", "TENSOR_EXTRA", changed(lambda file: file.tensors.update(layer(1))), "blk.1.")
A.reject("A37", "expert_count 2, expert_used_count 3", "HP_RANGE",
         all_of(("llama.expert_count", scalar(U32, 2)), ("llama.expert_used_count", scalar(U32, 3))))  # fmt: skip
A.reject("A38", "expert_count 2^32-1", "HP_RANGE", all_of(
    ("llama.expert_count", scalar(U32, 2**32 - 1)), ("llama.expert_used_count", scalar(U32, 1))))  # fmt: skip
A.reject("A39", "split.count = 3 in a lone file", "SPLIT", put("split.count", scalar(4, 3)))
A.reject("A40", "feed_forward_length = 0", "HP_RANGE", hp("feed_forward_length", 0), "feed_forward_length")
A.reject("A41", "attention.key_length = 2^30", "HP_RANGE", hp("attention.key_length", 1 << 30), "key_length")
A.reject("A42", "attention.key_length = 32 where tensors have 16", "SHAPE|HP_RANGE", hp("attention.key_length", 32))
A.reject("A43", "NaN inside attn_norm", "NONFINITE",
         shaped("blk.0.attn_norm.weight", HIDDEN, data=dense(63) + struct.pack("<f", NAN)), "attn_norm")  # fmt: skip
A.reject("A44", "Inf inside token_embd", "NONFINITE", shaped(
    "token_embd.weight", HIDDEN, VOCABULARY, data=struct.pack("<f", INF) + dense(HIDDEN * VOCABULARY - 1)))  # fmt: skip
A.reject("A45", "output.weight has 5 rows", "SHAPE", shaped("output.weight", HIDDEN, 5), "output.weight")
A.reject("A46", "token_embd of three dimensions", "SHAPE", shaped("token_embd.weight", HIDDEN, VOCABULARY // 2, 2))
A.reject("A48", "block_count absent", "HP_MISSING", drop("llama.block_count"), "llama.block_count")
A.reject("A50", "block_count a string", "HP_TYPE", put("llama.block_count", string("1")), "llama.block_count")
A.reject("A52", "block_count a truth value", "HP_TYPE", hp("block_count", 1, BOOL), "llama.block_count")
A.reject("A54", "block_count a float", "HP_TYPE", hp("block_count", 1.0, F32), "llama.block_count")
A.reject("A56", "block_count an array of strings", "HP_TYPE|HP_RANGE", put("llama.block_count", strings(["1"])))
A.reject("A58", "rms epsilon an integer", "HP_TYPE", hp("attention.layer_norm_rms_epsilon", 1))
A.reject("A60", "head_count per layer, two values", "HP_RANGE",
         put("llama.attention.head_count", numbers(U32, [4, 8])))  # fmt: skip
A.reject("A62", "head_count of an empty array", "HP_RANGE|HP_TYPE", put("llama.attention.head_count", numbers(U32, [])))
A.reject("A64", "rope.scaling.type of another world", "HP_RANGE", put("llama.rope.scaling.type", string("warp")))
A.reject("A66", "yarn with factor NaN", "HP_RANGE", all_of(
    ("llama.rope.scaling.type", string("yarn")), ("llama.rope.scaling.factor", scalar(F32, NAN))))  # fmt: skip
A.reject("A68", "yarn with factor -4", "HP_RANGE", all_of(
    ("llama.rope.scaling.type", string("yarn")), ("llama.rope.scaling.factor", scalar(F32, -4))))  # fmt: skip
A.reject("A70", "rope_freqs of the wrong length", "SHAPE", shaped("rope_freqs.weight", 7), "rope_freqs")
A.reject("A72", "rope_freqs with a 0", "HP_RANGE", shaped("rope_freqs.weight", 8, data=bytes(32)), "rope_freqs")
A.reject("A74", "rope_freqs with a NaN", "NONFINITE|HP_RANGE",
         shaped("rope_freqs.weight", 8, data=struct.pack("<8f", *[1.0] * 7, NAN)), "rope_freqs")  # fmt: skip
A.reject("A76", "rope_freqs of type F16", "TENSOR_TYPE", shaped("rope_freqs.weight", 8, kind=1, data=bytes(16)))
A.reject("A78", "rope_factors_long without short", "TENSOR_MISSING", shaped(
    "rope_factors_long.weight", 8, data=struct.pack("<8f", *[1.0] * 8)), "rope_factors_short")  # fmt: skip
A.reject("A80", "attn_q.bias alone", "TENSOR_MISSING", shaped("blk.0.attn_q.bias", HIDDEN), "bias")
A.reject("A82", "general.type = adapter", "NOT_MODEL", put("general.type", string("adapter")), "general.type")
A.reject("A84", "vocab_size = 2^32-1", "HP_RANGE|VOCAB_SIZE", hp("vocab_size", 2**32 - 1), "vocab_size")
A.reject("A86", "rope.dimension_count = 15: odd", "HP_RANGE", hp("rope.dimension_count", 15))
A.reject("A88", "not causal", "HP_RANGE", hp("attention.causal", 0, BOOL), "attention.causal")
A.reject("A90", "value_length other than key_length", "HP_RANGE", all_of(
    ("llama.attention.key_length", scalar(U32, 16)), ("llama.attention.value_length", scalar(U32, 8))))  # fmt: skip
A.reject("A92", "embedding_length 65: tensors have 64", "SHAPE|HP_RANGE", hp("embedding_length", 65))
A.reject("A94", "attn_v of type I32", "TENSOR_TYPE", shaped("blk.0.attn_v.weight", HIDDEN, KV, kind=TI32), "attn_v")
A.reject("A96", "keys of another architecture alone", "HP_MISSING", put("general.architecture", string("qwen2")))
A.reject("A98", "64 heads: a head size of 1", "HP_RANGE", changed(lambda file: (
    file.put("llama.attention.head_count", scalar(U32, 64)).put("llama.attention.head_count_kv", scalar(U32, 64)),
    file.without("llama.rope.dimension_count"))), "rope.dimension_count")  # fmt: skip
A.reject("A100", "sliding window of -5", "HP_RANGE|HP_TYPE", hp("attention.sliding_window", -5, I32))
A.reject("A110", "embedding_length 80: the embedding has 64", "SHAPE", changed(lambda file: (
    file.put("llama.embedding_length", scalar(U32, 80)).put("llama.attention.key_length", scalar(U32, 16)),
    file.tensor("blk.0.attn_q.weight", [80, 64]))), "[vocabulary, 80]")  # fmt: skip
A.reject("A112", "token_embd of one dimension", "SHAPE", shaped("token_embd.weight", HIDDEN * VOCABULARY), "vocabulary")
A.reject("A114", "token_embd [288, 64, 2]", "SHAPE", shaped("token_embd.weight", 2, HIDDEN, VOCABULARY), "vocabulary")
A.accept("A102", "output absent: tied to the embedding", drop("output.weight"))
A.accept("A104", "hyperparameters as u64", hp("block_count", 1, U64))
A.accept("A106", "head_count as an array of one value", put("llama.attention.head_count", numbers(U32, [4])))
A.accept("A108", "unknown keys", put("llama.something.new", scalar(U32, 5)), policy=True)


def tokens(change: Callable[[list[str]], object]) -> Build:
    """The model with other tokens, as many scores and types, and an embedding of as many rows or of 288."""
    changed_tokens = spm_tokens()
    change(changed_tokens)
    return put("tokenizer.ggml.tokens", strings(changed_tokens))


def key(name: str, value: bytes) -> Build:
    return put(f"tokenizer.ggml.{name}", value)


def scores(bad: float) -> Build:
    return key("scores", numbers(F32, [0.0] * 7 + [bad] + [0.0] * (VOCABULARY - 8)))


def charsmap(data: bytes) -> Build:
    return all_of(
        ("tokenizer.ggml.model", string("t5")),
        ("tokenizer.ggml.precompiled_charsmap", array(U8, data, len(data))),
    )


def trie(text: bytes = b"x\0", **units: int) -> Build:
    """A charsmap that makes "A" into the beginning of `text`. units: others of the trie's, u0 and so on."""
    made = [0] * 256
    made[65], made[200] = 65 | 1 << 8 | (65 ^ 200) << 10, 1 << 31
    for name, value in units.items():
        made[int(name[1:])] = value
    return charsmap(struct.pack("<257I", 1024, *made) + text)


def gemma(pattern: bytes) -> Build:
    """A model that says which of its layers see a window alone."""
    file = model("gemma3")
    for name in ("attn_q_norm", "attn_k_norm"):
        file.tensor(f"blk.0.{name}.weight", [16])
    for name in ("post_attention_norm", "post_ffw_norm"):
        file.tensor(f"blk.0.{name}.weight", [HIDDEN])
    file.put("gemma3.attention.sliding_window", scalar(U32, 64)).put("gemma3.attention.sliding_window_pattern", pattern)
    for name in ("key_length", "value_length"):
        file.put(f"gemma3.attention.{name}", scalar(U32, 16))
    file.without("output.weight")
    return file.bytes


A.accept("A120", "gemma 3: every second layer sees all", gemma(scalar(U32, 2)))
A.accept("A122", "gemma 3: layers listed", gemma(array(BOOL, b"\1", 1)))
A.reject("A124", "gemma 3: more layers listed than there are", "HP_TYPE", gemma(array(BOOL, b"\1\0", 2)), "pattern")
A.reject("A126", "gemma 3: the pattern is a text", "HP_TYPE", gemma(string("2")), "pattern")
A.reject("A128", "gemma 3: the pattern is a list of numbers", "HP_TYPE", gemma(numbers(U32, [1])), "pattern")
A.reject("A130", "gemma 3: the pattern is 0", "HP_TYPE|HP_RANGE", gemma(scalar(U32, 0)), "pattern")


def merged(*merges: str) -> Build:
    return lambda: bpe(list(merges)).bytes()


def odd_merge(merge: str) -> Build:
    """Byte pairs with a token "abc", which this merge makes."""
    file = bpe([merge])
    made = [f"{left}{right}" for left in "abcdefgh" for right in "ijkl"][:30]
    listed = strings([*letters(), *made, "abc", "<|end|>"])
    return lambda: file.put("tokenizer.ggml.tokens", listed).bytes()


V.accept("V00", "sound: byte pairs", lambda: bpe().bytes())
V.reject("V01", "tokens absent", "VOCAB_MISSING", drop("tokenizer.ggml.tokens"), "tokens")
V.reject("V02", "tokenizer.ggml.model absent", "VOCAB_MISSING", drop("tokenizer.ggml.model"), "model")
V.reject("V03", "10 tokens more than rows", "VOCAB_SIZE", tokens(lambda t: t.extend(f"x{i}" for i in range(10))))
V.reject("V04", "10 tokens fewer than rows", "VOCAB_SIZE|VOCAB_LEN", tokens(lambda t: t.__delitem__(slice(9))))
V.reject("V05", "token_type shorter than tokens", "VOCAB_LEN", key("token_type", numbers(I32, [1] * 287)), "token_type")
V.reject("V06", "scores longer than tokens", "VOCAB_LEN", key("scores", numbers(F32, [0.0] * 289)), "scores")
V.reject("V07", "eos_token_id = 2^32-1", "TOKEN_ID", key("eos_token_id", scalar(U32, 2**32 - 1)), "eos_token_id")
V.reject("V08", "bos_token_id = 288: one past the last", "TOKEN_ID", key("bos_token_id", scalar(U32, 288)), "bos")
V.reject("V09", "the same token twice", "VOCAB_DUP", tokens(lambda t: t.__setitem__(270, t[269])))
V.reject("V10", "eos_token_id = -1 (i32)", "TOKEN_ID", key("eos_token_id", scalar(I32, -1)), "eos_token_id")
V.reject("V11", "tokens an array of u32", "VOCAB_TYPE", key("tokens", numbers(U32, list(range(288)))), "tokens")
V.reject("V12", "tokens a string", "VOCAB_TYPE", key("tokens", string("abc")), "tokens")
V.reject("V13", "a NaN score", "NONFINITE", scores(NAN), "scores")
V.reject("V14", "an infinite score", "NONFINITE", scores(INF), "scores")
V.reject("V15", "merge without a space", "MERGES", merged("a"), "two tokens")
V.reject("V16", "merge of unknown tokens", "MERGES", merged("a b"), "two tokens")
V.reject("V17", "merges absent", "MERGES", drop("tokenizer.ggml.merges", base=bpe), "merges")
V.reject("V18", "merge with two spaces", "MERGES", merged("a  b"), "two tokens")
V.reject("V19", "charsmap whose trie size is 2^32-4", "CHARSMAP", charsmap(b"\xfc\xff\xff\xff" + bytes(8)), "charsmap")
V.reject("V20", "charsmap of three bytes", "CHARSMAP", charsmap(b"\1\2\3"), "charsmap")
V.reject("V21", "vocab_size = 7 against 288 tokens", "VOCAB_SIZE", hp("vocab_size", 7), "the rows of token_embd.weight")
V.reject("V22", "tokens empty", "VOCAB_MISSING", key("tokens", array(STR, b"", 0)), "tokens")
V.reject("V24", "token types out of range", "VOCAB_TYPE|TOKEN_TYPE", key("token_type", numbers(I32, [99] * 288)))
V.reject("V26", "token types of floats", "VOCAB_TYPE", key("token_type", numbers(F32, [1.0] * 288)), "token_type")
V.reject("V28", "scores of strings", "VOCAB_TYPE", key("scores", strings(["x"] * 288)), "scores")
V.reject("V30", "eos_token_id a string", "VOCAB_TYPE|TOKEN_ID", key("eos_token_id", string("2")), "eos_token_id")
V.reject("V32", "eos_token_id a float", "VOCAB_TYPE|TOKEN_ID", key("eos_token_id", scalar(F32, 2.0)), "eos_token_id")
V.reject("V34", 'model "gpt3"', "TOKENIZER", key("model", string("gpt3")), "tokenizer.ggml.model")
V.reject("V36", "pre-tokenizer of another world", "TOKENIZER",
         put("tokenizer.ggml.pre", string("warp"), bpe), "warp")  # fmt: skip
V.reject("V38", "merges of numbers", "MERGES", put("tokenizer.ggml.merges", numbers(U32, [1, 2]), bpe), "merges")
V.reject("V40", "add_bos_token a number", "VOCAB_TYPE", key("add_bos_token", scalar(U32, 1)), "add_bos_token")
V.reject("V42", "scores absent", "VOCAB_MISSING", drop("tokenizer.ggml.scores"), "scores")
V.reject("V44", "a token of 2 000 letters", "TOKENIZER",
         tokens(lambda t: t.__setitem__(287, "x" * 2000)))  # fmt: skip
V.reject("V46", "tokens not UTF-8", "UTF8", key("tokens", array(STR, text(b"\xff") * 288, 288)), "tokens")
V.reject(
    "V48",
    "charsmap of floats",
    "VOCAB_TYPE|CHARSMAP",
    all_of(("tokenizer.ggml.model", string("t5")), ("tokenizer.ggml.precompiled_charsmap", numbers(F32, [NAN] * 8))),
)
V.reject("V50", "chat template with a syntax error", "TMPL_SYNTAX",
         put("tokenizer.chat_template", string("{% if %}"), bpe), "chat_template")  # fmt: skip
V.reject("V52", "chat template that is a number", "VOCAB_TYPE|TMPL_SYNTAX|KEY_TYPE",
         put("tokenizer.chat_template", scalar(U32, 1), bpe), "chat_template")  # fmt: skip
V.reject("V58", "merge that begins with a space", "MERGES", merged(" b"), "two tokens")
V.reject("V60", "merge whose left side is no token", "MERGES", odd_merge("ab c"), "two tokens")
V.reject("V62", "merge whose right side is no token", "MERGES", odd_merge("a bc"), "two tokens")
V.reject("V64", "model a number", "VOCAB_TYPE", key("model", scalar(U32, 1)), "model")
V.reject("V66", "tokens a number", "VOCAB_TYPE", key("tokens", scalar(U32, 288)), "tokens")
V.reject("V68", "scores a string of 288 letters", "VOCAB_TYPE", key("scores", string("1" * VOCABULARY)), "scores")
V.reject("V70", "scores a number", "VOCAB_TYPE", key("scores", scalar(F32, 1.0)), "scores")
V.reject("V72", "eos_token_id a truth value", "VOCAB_TYPE", key("eos_token_id", scalar(BOOL, 1)), "eos_token_id")
V.accept("V54", "token_type absent", drop("tokenizer.ggml.token_type"), policy=True)
V.accept("V56", "merges of nothing", merged(), policy=True)
V.accept("V74", "sound: charsmap", trie())
V.reject("V75", "charsmap: a trie of nothing", "CHARSMAP", charsmap(struct.pack("<2I", 0, 0) + b"x\0"), "charsmap")
V.reject("V77", "charsmap: a trie of 1000 bytes", "CHARSMAP", charsmap(struct.pack("<I", 1000) + bytes(1024)), "blocks")
V.reject("V79", "charsmap: a trie longer than the data", "CHARSMAP", charsmap(struct.pack("<I", 2048) + bytes(1024)))
V.reject("V81", "charsmap: text without an end", "CHARSMAP", trie(b"x"), "charsmap")
V.reject("V83", "charsmap: text that is not UTF-8", "CHARSMAP", trie(b"\xff\0"), "charsmap")
V.reject("V85", "charsmap: a root past the end", "CHARSMAP", trie(u0=300 << 10), "charsmap")
V.reject("V87", "charsmap: a leaf past the end", "CHARSMAP", trie(u65=65 | 1 << 8 | 300 << 10), "charsmap")
V.reject("V89", "charsmap: a node whose children are past the end", "CHARSMAP", trie(u65=65 | 300 << 10), "charsmap")
V.reject("V91", "charsmap: a replacement past the end of the text", "CHARSMAP", trie(u200=1 << 31 | 99), "charsmap")
V.reject("V95", "charsmap: a replacement by 65 letters", "CHARSMAP", trie(b"x" * 65 + b"\0"), "charsmap")
V.reject("V93", "charsmap: the middle of a character", "CHARSMAP", trie("é\0".encode(), u200=1 << 31 | 1), "charsmap")
