"""GGUF files whose metadata or tensors make no model: each is refused by a code and a field."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import torch_foundry
from tests.hf import tiny_models
from tests.io.gguf_models import CASES, contents, make, write_file
from torch_foundry import LoadError
from torch_foundry.io.gguf.architectures import ARCHITECTURES

F32 = gguf.GGMLQuantizationType.F32
Edit = Callable[[dict[str, Any], dict[str, Any]], None]


@functools.cache
def good(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return contents(name, make(name))


def edited(path: Path, name: str, edit: Edit, architecture: str = "") -> Path:
    keys, tensors = (dict(each) for each in good(name))
    edit(keys, tensors)
    write_file(path / "model.gguf", architecture or CASES[name].arch, keys, tensors)
    return path / "model.gguf"


def refusal(path: Path, **options: Any) -> LoadError:
    with pytest.raises(LoadError) as caught:
        torch_foundry.load(path, device="cpu", progress=False, **options)
    return caught.value


def key(name: str, value: Any) -> Edit:
    return lambda keys, tensors: keys.update({name: value})


def no_key(name: str) -> Edit:
    return lambda keys, tensors: keys.pop(name)


def tensor(name: str, data: Any, kind: Any = F32) -> Edit:
    return lambda keys, tensors: tensors.update({name: (np.asarray(data), kind)})


def no_tensor(*names: str) -> Edit:
    def remove(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in names:
            del tensors[name]

    return remove


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


FAULTS: dict[str, tuple[str, Edit, str, str]] = {
    "text for an integer": ("llama", key("llama.block_count", "2"), "HP_TYPE", "llama.block_count"),
    "float for an integer": ("llama", key("llama.block_count", 2.0), "HP_TYPE", "llama.block_count"),
    "truth value for an integer": ("llama", key("llama.block_count", True), "HP_TYPE", "llama.block_count"),
    "integer for a float": ("llama", key("llama.rope.freq_base", 10000), "HP_TYPE", "llama.rope.freq_base"),
    "type of file": ("llama", key("general.type", "adapter"), "NOT_MODEL", "general.type"),
    "no layers": ("llama", key("llama.block_count", 0), "HP_RANGE", "llama.block_count"),
    "negative layers": ("llama", key("llama.block_count", ("int32", -1)), "HP_RANGE", "llama.block_count"),
    "layers without end": ("llama", key("llama.block_count", (1 << 32) - 1), "HP_RANGE", "llama.block_count"),
    "a layer too many": ("llama", key("llama.block_count", 3), "TENSOR_MISSING", "blk.2."),
    "a layer too few": ("llama", key("llama.block_count", 1), "TENSOR_EXTRA", "blk.1."),
    "sizes by layer": (
        "llama",
        key("llama.feed_forward_length", [96, 64]),
        "HP_RANGE",
        "llama.feed_forward_length",
    ),
    "no heads": ("llama", key("llama.attention.head_count", 0), "HP_RANGE", "llama.attention.head_count"),
    "no key heads": ("llama", key("llama.attention.head_count_kv", 0), "HP_RANGE", "llama.attention.head_count_kv"),
    "key heads that don't divide": (
        "llama",
        key("llama.attention.head_count_kv", 3),
        "HP_RANGE",
        "llama.attention.head_count_kv",
    ),
    **{
        f"{why} of blocks": (
            "lfm2",
            key("lfm2.attention.head_count_kv", heads),
            "HP_RANGE",
            "lfm2.attention.head_count_kv",
        )
        for why, heads in (
            ("two numbers", [1, 2]),
            ("too few numbers", [2]),
            ("truth values", [False, True]),
            ("text", "2"),
            ("a number that doesn't divide", [0, 3]),
        )
    },
    "attention where there is none": (
        "lfm2",
        key("lfm2.attention.head_count_kv", [2, 0]),
        "TENSOR_MISSING",
        "blk.0.attn_q.weight",
    ),
    "a convolution of another size": ("lfm2", key("lfm2.shortconv.l_cache", 4), "SHAPE", "blk.0.shortconv.conv.weight"),
    "other heads": ("gemma3", key("gemma3.attention.head_count", 3), "SHAPE", "blk.0.attn_q.weight"),
    "heads that don't divide the hidden size": (
        "granite",
        key("granite.attention.head_count", 3),
        "SHAPE",
        "granite.attention.head_count",
    ),
    "hidden size": ("llama", key("llama.embedding_length", (1 << 32) - 1), "HP_RANGE", "llama.embedding_length"),
    "another hidden size": ("llama", key("llama.embedding_length", 128), "SHAPE", "blk.0.attn_q.weight"),
    "another feed-forward size": ("llama", key("llama.feed_forward_length", 64), "SHAPE", "blk.0.ffn_gate.weight"),
    "context": ("llama", key("llama.context_length", (1 << 32) - 1), "HP_RANGE", "llama.context_length"),
    "no context": ("llama", no_key("llama.context_length"), "HP_MISSING", "llama.context_length"),
    "epsilon below 0": (
        "llama",
        key("llama.attention.layer_norm_rms_epsilon", -1.0),
        "HP_RANGE",
        "llama.attention.layer_norm_rms_epsilon",
    ),
    "epsilon NaN": (
        "llama",
        key("llama.attention.layer_norm_rms_epsilon", math.nan),
        "HP_RANGE",
        "llama.attention.layer_norm_rms_epsilon",
    ),
    "epsilon 0": (
        "llama",
        key("llama.attention.layer_norm_rms_epsilon", 0.0),
        "HP_RANGE",
        "llama.attention.layer_norm_rms_epsilon",
    ),
    "frequencies infinite": ("llama", key("llama.rope.freq_base", math.inf), "HP_RANGE", "llama.rope.freq_base"),
    "frequencies 0": ("llama", key("llama.rope.freq_base", 0.0), "HP_RANGE", "llama.rope.freq_base"),
    "rotated beyond the head": (
        "llama",
        key("llama.rope.dimension_count", 1024),
        "HP_RANGE",
        "llama.rope.dimension_count",
    ),
    "rotated in part": ("llama", key("llama.rope.dimension_count", 16), "HP_RANGE", "llama.rope.dimension_count"),
    "rotated by halves": ("phi4-mini", key("phi3.rope.dimension_count", 15), "HP_RANGE", "phi3.rope.dimension_count"),
    "scaling": ("llama", key("llama.rope.scaling.type", "sideways"), "HP_RANGE", "llama.rope.scaling.type"),
    "scaling by 0": ("llama", key("llama.rope.scaling.factor", 0.0), "HP_RANGE", "llama.rope.scaling.factor"),
    "head size": ("llama", key("llama.attention.key_length", 1 << 30), "HP_RANGE", "llama.attention.key_length"),
    "values of another size": (
        "llama",
        key("llama.attention.value_length", 64),
        "HP_RANGE",
        "llama.attention.value_length",
    ),
    "more experts used than there are": (
        "mixtral",
        key("llama.expert_used_count", 5),
        "HP_RANGE",
        "llama.expert_used_count",
    ),
    "no experts used": ("mixtral", key("llama.expert_used_count", 0), "HP_RANGE", "llama.expert_used_count"),
    "experts not counted": ("qwen2moe", no_key("qwen2moe.expert_count"), "HP_MISSING", "qwen2moe.expert_count"),
    "soft cap where there is none": (
        "llama",
        key("llama.attn_logit_softcapping", 30.0),
        "HP_RANGE",
        "llama.attn_logit_softcapping",
    ),
    "window where there is none": (
        "qwen2",
        key("qwen2.attention.sliding_window", 64),
        "HP_RANGE",
        "qwen2.attention.sliding_window",
    ),
    "layers with a window by half": (
        "olmo3",
        key("olmo2.attention.sliding_window_pattern", [True]),
        "HP_TYPE",
        "olmo2.attention.sliding_window_pattern",
    ),
    "not causal": ("qwen3", key("qwen3.attention.causal", False), "HP_RANGE", "qwen3.attention.causal"),
    "pattern of another length": (
        "gemma3",
        key("gemma3.attention.sliding_window_pattern", ("array", [True, False])),
        "HP_TYPE",
        "gemma3.attention.sliding_window_pattern",
    ),
    "vocabulary size": ("llama", key("llama.vocab_size", 7), "VOCAB_SIZE", "llama.vocab_size"),
    "no embedding": ("llama", no_tensor("token_embd.weight"), "TENSOR_MISSING", "token_embd.weight"),
    "neither embedding nor output": (
        "llama",
        no_tensor("token_embd.weight", "output.weight"),
        "TENSOR_MISSING",
        "token_embd.weight",
    ),
    "no norm": ("llama", no_tensor("output_norm.weight"), "TENSOR_MISSING", "output_norm.weight"),
    "no queries": ("llama", no_tensor("blk.1.attn_q.weight"), "TENSOR_MISSING", "blk.1.attn_q.weight"),
    "no bias in one layer": (
        "llama-linear",
        no_tensor("blk.1.attn_k.bias"),
        "TENSOR_MISSING",
        "blk.1.attn_k.bias",
    ),
    "an extra tensor": ("llama", tensor("blk.0.evil.weight", f32(4)), "TENSOR_EXTRA", "blk.0.evil.weight"),
    "output of a tied architecture": ("gemma", tensor("output.weight", f32(120, 64)), "TENSOR_EXTRA", "output.weight"),
    "queries of half the heads": (
        "llama",
        tensor("blk.0.attn_q.weight", f32(64, 64)),
        "SHAPE",
        "blk.0.attn_q.weight",
    ),
    "output transposed": ("llama", tensor("output.weight", f32(64, 120)), "SHAPE", "output.weight"),
    "output of 5 rows": ("llama", tensor("output.weight", f32(5, 64)), "SHAPE", "output.weight"),
    "norm too short": ("llama", tensor("output_norm.weight", f32(63)), "SHAPE", "output_norm.weight"),
    "matrix for a norm": ("llama", tensor("output_norm.weight", f32(64, 64)), "SHAPE", "output_norm.weight"),
    "vector for a matrix": ("llama", tensor("token_embd.weight", f32(64)), "SHAPE", "token_embd.weight"),
    "integers for weights": (
        "llama",
        tensor("token_embd.weight", np.ones((120, 64), np.int32), gguf.GGMLQuantizationType.I32),
        "TENSOR_TYPE",
        "token_embd.weight",
    ),
    "a packed norm": (
        "llama",
        tensor("output_norm.weight", np.zeros(68, np.uint8), gguf.GGMLQuantizationType.Q8_0),
        "TENSOR_TYPE",
        "output_norm.weight",
    ),
    "a type that only computing has": (
        "llama",
        tensor("output.weight", np.zeros((120, 2 * 40), np.uint8), gguf.GGMLQuantizationType.Q8_1),
        "TENSOR_TYPE",
        "output.weight",
    ),
    "NaN in a norm": ("llama", tensor("output_norm.weight", f32(64) * np.nan), "NONFINITE", "output_norm.weight"),
    "factors too few": ("llama-3.1", tensor("rope_freqs.weight", f32(15)), "SHAPE", "rope_freqs.weight"),
    "factors of 0": ("llama-3.1", tensor("rope_freqs.weight", 0 * f32(16)), "HP_RANGE", "rope_freqs.weight"),
    "factors for long texts only": (
        "phi4-mini",
        no_tensor("rope_factors_short.weight"),
        "TENSOR_MISSING",
        "rope_factors_short.weight",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_have_a_code_and_a_field(fault: str, tmp_path: Path) -> None:
    name, edit, code, where = FAULTS[fault]
    error = refusal(edited(tmp_path, name, edit))
    assert error.code == code and where in error.field
    assert error.expected and error.found and str(tmp_path) in error.file


@pytest.mark.parametrize("name", ["foo", "%s%n{0.__class__}", "clip", "LLAMA"])
def test_an_unknown_architecture_is_named_and_all_known_are_listed(name: str, tmp_path: Path) -> None:
    keys, tensors = good("llama")
    write_file(tmp_path / "model.gguf", name, dict(keys), tensors)
    error = refusal(tmp_path / "model.gguf")
    assert (error.code, error.found) == ("ARCH_UNKNOWN", repr(name))
    assert all(known in error.expected for known in ARCHITECTURES)


@pytest.mark.parametrize("replacement", [None, ("uint32", 7)], ids=["absent", "number"])
def test_no_architecture(replacement: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_architecture", lambda self: None)
    edit = (lambda keys, tensors: None) if replacement is None else key("general.architecture", replacement)
    error = refusal(edited(tmp_path, "llama", edit))
    assert (error.code, error.field) == ("ARCH_MISSING", "general.architecture")


@pytest.mark.parametrize("name", sorted({case.arch for case in CASES.values()}))
def test_every_hyperparameter_that_has_to_be_there_is_asked_for(name: str, tmp_path: Path) -> None:
    case = next(case for case, known in CASES.items() if known.arch == name)
    for known in ("embedding_length", "block_count", "feed_forward_length", "attention.head_count"):
        error = refusal(edited(tmp_path, case, no_key(f"{name}.{known}")))
        assert (error.code, error.field) == ("HP_MISSING", f"{name}.{known}")


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_is_missed(name: str, tmp_path: Path) -> None:
    """Of those that aren't in a file by choice: the output layer, and rotary factors."""
    choice = ("output.weight", "rope_freqs.weight")
    # The first of its kind may say whether a file has them: without it the others are too many.
    kinds = ["blk.0.attn_q.bias", "blk.0.ffn_gate.bias", *(["blk.0.attn_q_norm.weight"] if name == "glm4moe" else ())]
    for lost in [
        each for each in good(name)[1] if each not in choice and not each.startswith(("blk.1", "blk.2", "blk.3"))
    ]:
        error = refusal(edited(tmp_path, name, no_tensor(lost)))
        missed = (error.code, error.field) == ("TENSOR_MISSING", lost)
        assert missed or (error.code == "TENSOR_EXTRA" and lost in kinds), error


def test_what_is_allowed_loads(tmp_path: Path) -> None:
    def damage(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["blk.0.evil.weight"] = (f32(4), F32)
        del tensors["blk.1.ffn_up.weight"]
        tensors["output_norm.weight"] = (f32(64) * np.inf, F32)

    path = edited(tmp_path, "llama", damage)
    options: dict[str, Any] = {"device": "cpu", "progress": False, "patch": False}
    faults = ["TENSOR_EXTRA:blk.*.evil.*", "TENSOR_MISSING:blk.1.ffn_up.weight", "NONFINITE:output_norm.weight"]
    model, _ = torch_foundry.load(path, allow=faults, **options)
    assert not model.model.layers[1].mlp.up_proj.weight.any() and model.model.norm.weight.isinf().all()
    for left_out in faults:
        code = left_out.partition(":")[0]
        assert refusal(path, allow=[f for f in faults if f != left_out]).code == code
        assert refusal(path, allow=[f if f != left_out else f"{code}:other" for f in faults]).code == code
    model, _ = torch_foundry.load(path, allow=faults[:2], mmap=True, **options)  # looks at no weight that it maps
    assert refusal(path, allow=faults[:2], check_finite=True).code == "NONFINITE"


def test_non_finite_scales_of_packed_weights(tmp_path: Path) -> None:
    def damage(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        blocks, kind = tensors["blk.1.attn_q.weight"]
        blocks = blocks.copy()
        blocks[5, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
        tensors["blk.1.attn_q.weight"] = blocks, kind

    path = edited(tmp_path, "llama", damage)
    assert (refusal(path).code, refusal(path).field) == ("NONFINITE", "blk.1.attn_q.weight")
    torch_foundry.load(path, device="cpu", progress=False, check_finite=False)


def test_settings_that_files_leave_out(tmp_path: Path) -> None:
    """Keys whose absence means something."""

    def fewer(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in ("rope.freq_base", "rope.dimension_count", "vocab_size", "attention.sliding_window"):
            keys.pop(f"gemma3.{name}", None)

    model, _ = torch_foundry.load(edited(tmp_path, "gemma3", fewer), device="cpu", progress=False)
    assert model.config.rope_parameters["full_attention"]["rope_theta"] == 1e6
    assert set(model.config.layer_types) == {"full_attention"}


def test_ends_of_a_text_are_all_in_the_generation_config(tmp_path: Path) -> None:
    path = edited(tmp_path, "llama", key("tokenizer.ggml.eot_token_id", 1))
    model, tokenizer = torch_foundry.load(path, device="cpu", progress=False)
    assert model.generation_config.eos_token_id == [2, 1] and model.generation_config.pad_token_id == 0
    assert tokenizer.eos_token_id == 2 and model.config.bos_token_id == 1


def test_dtype_and_mapped_weights(tmp_path: Path) -> None:
    path = edited(tmp_path, "llama", lambda keys, tensors: None)
    model, _ = torch_foundry.load(path, device="cpu", dtype=torch.bfloat16, progress=False, mmap=True)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    own, _ = torch_foundry.load(path, device="cpu", dtype=torch.bfloat16, progress=False)
    assert tiny_models.tokens(model, eos_token_id=None) == tiny_models.tokens(own, eos_token_id=None)
    with torch.no_grad():
        tiny_models.assert_equal([model(tiny_models.PROMPT).logits], [own(tiny_models.PROMPT).logits])
    mapped = [line.split("-")[0] for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    start = min(int(line, 16) for line in mapped)
    address = model.model.layers[0].mlp.up_proj.weight.data_ptr()
    assert 0 <= address - start < path.stat().st_size  # the weight lies in the file's pages


def test_folders(tmp_path: Path) -> None:
    """One GGUF in a folder is found; several have to be chosen from; pickles are refused."""
    file = edited(tmp_path, "qwen2", lambda keys, tensors: None)
    model, _ = torch_foundry.load(tmp_path, device="cpu", progress=False)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    (tmp_path / "second.gguf").write_bytes(file.read_bytes())
    assert refusal(tmp_path).code == "NOT_MODEL"
    torch_foundry.load(tmp_path, gguf_file="second.gguf", device="cpu", progress=False)
    with pytest.raises(ValueError, match="gguf_file"):
        torch_foundry.load(tmp_path, gguf_file="../model.gguf")
    for each in tmp_path.iterdir():
        each.unlink()
    assert refusal(tmp_path).code == "NOT_MODEL"
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert refusal(tmp_path).code == refusal(tmp_path / "pytorch_model.bin").code == "PICKLE"
    assert refusal(tmp_path / "absent.gguf").code == "ABSENT"
