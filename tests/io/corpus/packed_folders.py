"""Folders of models (PC): config.json, generation_config.json and a tokenizer around packed and dense weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .case import Content, Node, Sparse, Table
from .packed_bytes import HIDDEN, INNER, LAYER, Folder, affine, changed, dense, f16, filled, gptq

P = Table()
Change = Callable[[Folder], object]


def config(**values: Any) -> Change:
    return lambda folder: folder.config.update(values)


def file(name: str, content: Content | None) -> Change:
    return lambda folder: folder.files.update({name: content})


def folder(id: str, what: str, codes: str, change: Change, says: str = "", base: Callable[[], Folder] = affine) -> None:
    P.reject(f"PC{id}", what, codes, changed(change, base), says)


def with_tower(change: Change) -> Change:
    """Such a folder, of mlx, that has a tensor of a tower."""

    def both(folder: Folder) -> None:
        change(folder)
        folder.put("vision_tower.norm.weight", filled("F16", [HIDDEN]))

    return both


def in_blobs(name: str) -> Change:
    """The file lies elsewhere, and a link where it should be."""

    def change(folder: Folder) -> None:
        content = folder.content().get(name, b"{}")
        folder.files.update({name: Node("link", f"blobs/{name}"), f"blobs/{name}": content})

    return change


def experts() -> Folder:
    """Mixtral's kind of layer: two experts in matrices of their own."""
    made = dense()
    made.config.update(model_type="mixtral", num_local_experts=2, num_experts_per_tok=1)
    for name in ("gate", "up", "down"):
        made.without(f"{LAYER}mlp.{name}_proj.weight")
    made.put(f"{LAYER}block_sparse_moe.gate.weight", filled("F16", [2, HIDDEN], f16(1)))
    for e in range(2):
        for name, shape in (("w1", [INNER, HIDDEN]), ("w2", [HIDDEN, INNER]), ("w3", [INNER, HIDDEN])):
            made.put(f"{LAYER}block_sparse_moe.experts.{e}.{name}.weight", filled("F16", shape, f16(0.25)))
    return made


E0 = f"{LAYER}block_sparse_moe.experts.0.w1.weight"
E1 = E0.replace("experts.0", "experts.1")


def ordered_experts() -> Folder:
    """The same, packed by GPTQ in the order of activations, which experts can't be in."""
    made, packed = experts(), gptq()
    made.config["quantization_config"] = packed.quantization
    for name in [name for name in made.tensors if ".experts." in name]:
        like = f"{LAYER}mlp.{'down' if '.w2.' in name else 'up'}_proj."
        made.without(name)
        for key in packed.tensors:
            if key.startswith(like):
                made.put(name.removesuffix("weight") + key.removeprefix(like), packed.tensors[key])
    return made


P.accept("PC00", "sound, dense", lambda: dense().content())
P.accept("PC02", "sound, experts", lambda: experts().content())
P.accept("PC04", "an attention of a hub in the config, which is not asked for",
         changed(config(_attn_implementation="kernels-community/none"), dense))  # fmt: skip
P.accept("PC06", "the same in other words", changed(config(attn_implementation="some/kernel"), dense))
P.accept("PC08", "infinity as transformers writes it",
         changed(config(of_no_use={"__float__": "Infinity"}), dense))  # fmt: skip
for id, value in (("01", []), ("03", "mlx"), ("05", 4), ("07", True)):
    folder(
        id, f"quantization_config {value!r}", "QUANT_CONFIG", config(quantization_config=value), "quantization_config"
    )
for id, method in (("09", "hqq"), ("11", ["awq"]), ("13", 1), ("15", ""), ("17", "x" * 10_000)):
    folder(id, f"quant_method {method!r:.20}", "QUANT_METHOD",
           lambda f, m=method: f.quantization.update(quant_method=m), "quant_method")  # fmt: skip
folder("19", "quantization_config null, tensors packed", "TENSOR_TYPE", config(quantization_config=None))
folder("21", "quantization_config empty", "QUANT_METHOD", config(quantization_config={}), "quant_method")
folder("23", "quantization_config of a method, tensors dense", "SHAPE|PACK_PART|TENSOR_MISSING|PACK_TYPE|QUANT_CONFIG",
       config(quantization_config={"quant_method": "foundry", "formats": {f"{LAYER}mlp.up_proj.weight": "q4_0"}}),
       "up_proj", dense)  # fmt: skip
folder("25", "config.json absent", "ABSENT", file("config.json", None), "config.json")
folder("27", "config.json empty", "CONFIG", file("config.json", b""), "config.json")
folder("29", "config.json a list", "CONFIG", file("config.json", b"[]"), "config.json")
folder("31", "config.json 100 000 brackets", "CONFIG", file("config.json", b"[" * 100_000), "config.json")
folder("33", "config.json not UTF-8", "CONFIG", file("config.json", b'{"model_type": "\xff"}'), "config.json")
folder("35", "config.json of 1 GiB (sparse)", "CONFIG", file("config.json", Sparse(b"{", 1 << 30)), "config.json")
folder("37", "config.json of 500 000 bytes of objects", "CONFIG|ARCH_MISSING",
       file("config.json", b'{"a":[' + b"{}," * 160_000 + b"{}]}"), "config.json")  # fmt: skip
folder("38", "config.json with 600 000 spaces behind it", "CONFIG", lambda f: f.files.update(
    {"config.json": json.dumps(f.config).encode() + b" " * 600_000}), "config.json")  # fmt: skip
folder("39", "config.json names a thing twice", "CONFIG", lambda f: f.files.update(
    {"config.json": json.dumps(f.config).replace("{", '{"hidden_size": 64, ', 1).encode()}), "config.json")  # fmt: skip
folder("41", "config.json with a NaN", "CONFIG", config(rms_norm_eps=float("nan")), "config.json")
folder("43", "an integer of 5 000 digits", "CONFIG", lambda f: f.files.update(
    {"config.json": json.dumps(f.config).replace("{", '{"x": ' + "9" * 5000 + ", ", 1).encode()}))  # fmt: skip
folder("45", "model_type absent", "ARCH_MISSING", lambda f: f.config.pop("model_type"), "model_type")
folder("47", "model_type unknown", "ARCH_UNKNOWN", config(model_type="%s{0.__class__}"), "model_type")
folder("49", "model_type a list", "ARCH_MISSING", config(model_type=["llama"]), "model_type")
folder("51", "model_type of a model that isn't causal", "CONFIG|ARCH_UNKNOWN", config(model_type="clip"))
for id, name, value in (
    ("53", "hidden_size", 0), ("55", "hidden_size", -128), ("57", "hidden_size", 1 << 40),
    ("59", "hidden_size", 128.5), ("61", "hidden_size", "128"), ("63", "num_hidden_layers", 0),
    ("65", "num_hidden_layers", -1), ("67", "num_hidden_layers", 10**9), ("69", "num_attention_heads", 0),
    ("71", "num_attention_heads", -4), ("73", "num_key_value_heads", 0), ("75", "num_key_value_heads", 1 << 30),
    ("77", "head_dim", 0), ("79", "head_dim", 1 << 40), ("81", "head_dim", -32), ("83", "intermediate_size", -1),
    ("85", "intermediate_size", 1 << 50), ("87", "vocab_size", -1), ("89", "vocab_size", 1 << 60),
    ("91", "max_position_embeddings", -1), ("93", "max_position_embeddings", 1 << 60), ("95", "rms_norm_eps", -1.0),
    ("97", "rms_norm_eps", 1e400), ("99", "rms_norm_eps", "small"), ("A1", "rms_norm_eps", 0),
    ("A3", "num_hidden_layers", True), ("A5", "num_hidden_layers", "1"), ("A7", "hidden_size", [128]),
):  # fmt: skip
    folder(id, f"{name} {value!r}", "HP_RANGE|CONFIG|SHAPE", config(**{name: value}))
folder("A9", "two layers said, one there", "TENSOR_MISSING", config(num_hidden_layers=2), "layer")
folder("B1", "400 layers said, one there", "TENSOR_MISSING", config(num_hidden_layers=400), "layer")
folder("B3", "three heads of keys for four", "SHAPE|CONFIG|HP_RANGE", config(num_key_value_heads=3))
folder("B5", "another hidden_size than the tensors'", "SHAPE", config(hidden_size=256))
folder("B7", "another vocab_size than the tensors'", "SHAPE", config(vocab_size=33))
for id, rope in (
    ("B9", {"rope_type": "default", "rope_theta": -1.0}), ("C1", {"rope_type": "linear", "factor": 0.0}),
    ("C3", {"rope_type": "linear", "factor": 1e400}), ("C5", {"rope_type": "no such"}),
    ("C7", {"rope_type": "default", "rope_theta": "10000"}),
    ("C9", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": -1}),
    ("D1", {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 16, "long_factor": [0.0] * 16}),
    ("D3", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1e9}), ("D5", [1.0]), ("D7", "linear"),
):  # fmt: skip
    folder(id, f"rope_parameters {rope!r:.60}", "HP_RANGE|CONFIG", config(rope_parameters=rope))
folder("D9", "dtype that is none", "CONFIG", config(torch_dtype="evil"))
folder("E1", "pad_token_id past the vocabulary", "CONFIG|HP_RANGE", config(pad_token_id=1 << 40))
folder("E3", "hidden_act unknown", "CONFIG", config(hidden_act="os.system"))
folder("E5", "model.safetensors absent, an index that names nothing", "IDX_JSON", lambda f: f.files.update(
    {"model.safetensors": None, "model.safetensors.index.json": b'{"weight_map": {}}'}))  # fmt: skip
folder("E7", "pytorch_model.bin alone", "PICKLE", lambda f: f.files.update(
    {"model.safetensors": None, "pytorch_model.bin": b"\x80\x04."}))  # fmt: skip
folder("E9", "model.safetensors cut", "ST_TRUNC", lambda f: f.files.update(
    {"model.safetensors": f.content()["model.safetensors"][:-1]}))  # type: ignore[index]  # fmt: skip
folder("F1", "model.safetensors a pickle", "MAGIC|ST_HLEN|ST_SHORT", file("model.safetensors", b"\x80\x04" + bytes(30)))
folder("F3", "an expert absent", "TENSOR_MISSING", lambda f: f.without(E0), "expert 0", experts)
folder("F5", "an expert of another shape", "SHAPE", lambda f: f.shaped(E1, 8, HIDDEN), "w1", experts)
folder("F7", "an expert of another type", "TENSOR_TYPE",
       lambda f: f.put(E1, filled("F32", [INNER, HIDDEN], bytes(4))), "w1", experts)  # fmt: skip
folder("F9", "an expert too many", "SHAPE|TENSOR_EXTRA",
       lambda f: f.put(E1.replace("experts.1", "experts.2"), f.tensors[E1]), "", experts)  # fmt: skip
folder("G1", "an expert under two numbers", "NAME_DUP",
       lambda f: f.put(E1.replace("experts.1", "experts.01"), f.tensors[E1]), "experts", experts)  # fmt: skip
folder("G3", "an expert under two names", "NAME_DUP",
       lambda f: f.put(E1.replace("w1", "gate_proj"), f.tensors[E1]), "experts", experts)  # fmt: skip
folder("G5", "an expert's number of 5 000 digits", "TENSOR_EXTRA|TENSOR_MISSING",
       lambda f: f.put(E1.replace("s.1", "s." + "1" * 5000), f.tensors[E1]), "experts", experts)  # fmt: skip
folder("G7", "experts one by one and as one", "NAME_DUP",
       lambda f: f.put(f"{LAYER}mlp.experts.gate_proj", filled("F16", [2])), "experts", experts)  # fmt: skip
folder("G9", "a router under two names", "NAME_DUP",
       lambda f: f.put(f"{LAYER}mlp.gate.weight", filled("F16", [2, HIDDEN])), "gate", experts)  # fmt: skip
folder("H1", "generation_config.json not JSON", "CONFIG", file("generation_config.json", b"{"), "generation_config")
folder("H3", "generation_config.json a list", "CONFIG", file("generation_config.json", b"[]"), "generation_config")
folder("H5", "generation_config.json: max_new_tokens -1", "CONFIG",
       file("generation_config.json", b'{"max_new_tokens": -1}'), "generation_config")  # fmt: skip
folder("H7", "tokenizer.json empty", "TOKENIZER", file("tokenizer.json", b""))
folder("H9", "tokenizer.json an empty object", "TOKENIZER", file("tokenizer.json", b"{}"))
folder("I1", "tokenizer.json 100 000 brackets", "TOKENIZER", file("tokenizer.json", b"[" * 100_000))
folder("I3", "tokenizer.json absent", "VOCAB_MISSING", file("tokenizer.json", None))
folder("I5", "tokenizer.json of 1 GiB (sparse)", "TOKENIZER", file("tokenizer.json", Sparse(b"{", 1 << 30)))
folder("I7", "tokenizer: merges of tokens that aren't there", "TOKENIZER", file("tokenizer.json", json.dumps(
    {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}).encode()))  # fmt: skip
folder("I9", "tokenizer_config.json not JSON", "TOKENIZER", file("tokenizer_config.json", b"{"))
folder("J1", "tokenizer_config.json: a class of the folder's code", "TOKENIZER", file(
    "tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": ["evil.T", null]}, "tokenizer_class": "T"}'))  # fmt: skip
folder("J3", "tokenizer_config.json a list", "TOKENIZER", file("tokenizer_config.json", b"[]"))
folder("J5", "chat template that doesn't end", "TMPL_BUDGET", file(
    "chat_template.jinja", b"{% for i in range(10**9) %}{{ i }}{% endfor %}"))  # fmt: skip
folder("J7", "chat template that reaches for code", "TMPL_SANDBOX", file(
    "chat_template.jinja", b"{{ cycler.__init__.__globals__.os.popen('id') }}"))  # fmt: skip
folder("J9", "no tensor at all", "TENSOR_MISSING|ST_JSON|NOT_MODEL", lambda f: f.tensors.clear())
folder("K1", "a name of one dot, ten times longer than any", "TENSOR_EXTRA",
       lambda f: f.put("." + "x" * 100_000, filled("F16", [1])), "x", dense)  # fmt: skip
folder("K3", "model_type of another task's model", "ARCH_UNKNOWN", config(model_type="t5"), "model_type")
folder("K5", "experts in GPTQ's order of activations", "TENSOR_TYPE", lambda f: None, "experts", ordered_experts)
for id, name in (("L1", "config.json"), ("L3", "model.safetensors"), ("L5", "generation_config.json"),
                 ("L7", "tokenizer.json"), ("L9", "tokenizer_config.json")):  # fmt: skip
    folder(id, f"{name} a pipe", "NOT_FILE", file(name, Node("pipe")), name)
    folder(id[0] + str(int(id[1]) - 1), f"{name} a folder", "NOT_FILE", file(name, Node("folder")), name)
    folder("M" + id[1], f"{name} a link to itself", "LOOP", file(name, Node("link", name)), name)
    folder("N" + id[1], f"{name} a link to nothing", "ABSENT", file(name, Node("link", "nothing")), name)
    folder("O" + id[1], f"{name} a device", "NOT_FILE", file(name, Node("link", "/dev/zero")), name)
    P.accept("PCP" + id[1], f"{name} a link, as in the cache of a hub", changed(in_blobs(name), affine))
folder("T1", "NaN as transformers writes it", "CONFIG", config(rms_norm_eps={"__float__": "NaN"}), "config.json")
for id, where in (("T3", {}), ("T5", {"model_type": "gemma3"})):
    layers = {"num_hidden_layers": 10**9, "per_layer_config": {"0": {"head_dim": 32}}}
    folder(id, f"10**9 layers, one unlike others {where}", "HP_RANGE",
           config(**where, **({"text_config": layers} if where else layers)), "num_hidden_layers")  # fmt: skip
for id, kind, tower in (
    ("U1", "gemma3", {"model_type": "siglip_vision_model", "num_hidden_layers": 10**9}),
    ("U3", "qwen3_vl", {"depth": 10**9}), ("U5", "qwen3_vl", {"depth": 400}),
):  # fmt: skip
    settings = {"text_config": {"num_hidden_layers": 1, "vocab_size": 32}, "vision_config": tower}
    folder(id, f"{kind} with a tower {tower}", "TENSOR_MISSING", config(model_type=kind, **settings), "layer", dense)
    mlx = config(model_type=kind, **settings)
    folder(f"{id}M", f"the same of mlx, {kind} with a tower {tower}", "TENSOR_MISSING", with_tower(mlx), "layer")
folder("T9", "of mlx, the decoder of a wrapper that has none by itself", "ARCH_UNKNOWN",
       config(model_type="glm4v", text_config={"num_hidden_layers": 1}), "model_type")  # fmt: skip
folder("T7", "a head_dim of one layer alone", "HP_RANGE",
       config(per_layer_config={"0": {"head_dim": 1 << 40}}), "head_dim")  # fmt: skip
